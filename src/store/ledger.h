/* ledger.h: the log on disk, and the acked mark.  */
#ifndef NEB_STORE_LEDGER_H
#define NEB_STORE_LEDGER_H

#include "store/disk.h"

#define NEB_LEDGER_ENTRY_MAX (64 * 1024)
#define NEB_LEDGER_NOTE_MAX  256

struct neb_ledger_note {
    uint64_t index;
    size_t length;
    uint8_t bytes[NEB_LEDGER_NOTE_MAX];
};

struct neb_ledger {
    const struct neb_disk *disk;
    uint64_t length; /* bytes of the ledger file that count */
    uint64_t sequence;
    struct neb_ledger_note note; /* that an open found */
    bool note_at_risk; /* it is in no slot, so the next append must not write over it before it is */
    bool tail;         /* bytes that do not count stand behind `length`; the next append cuts them off */
    bool broken;       /* a sync failed: the content of the disk is unknown until the next open */
};

/* An entry that is neither a record nor a mark: its meaning is the caller's. Kinds from 3 on. A batch may have one NOTE of at
 * most NEB_LEDGER_NOTE_MAX bytes. It is as durable as the batch, and gone when the next one is: an open finds that of the last
 * batch, as the last entry. */
enum { NEB_LEDGER_NOTE = 8 };
struct neb_ledger_extra {
    uint8_t kind;
    uint64_t index;
    const uint8_t *bytes; /* of an open: in found.bytes */
    size_t length;
};

/* The result of an open, owned by the caller; neb__ledger_found_free() releases it. */
struct neb_ledger_found {
    bool damaged; /* something at or below the acked mark is lost */
    struct neb_buf bytes;
    size_t mark_at, mark_length; /* in bytes; length 0: none */
    size_t *at, *size;           /* in bytes, of the records 1, 2, … */
    uint64_t records, capacity;
    struct neb_ledger_extra *extra; /* of whole batches, in the order of the file */
    size_t extras, extra_capacity;
};

struct neb_ledger_batch {
    uint64_t first, count; /* records first … first + count - 1; they replace everything from `first` on */
    const uint8_t *const *record;
    const size_t *length;
    uint64_t head; /* the log's last index after this batch */
    const uint8_t *mark;
    size_t mark_length;
    const struct neb_ledger_extra *extra;
    size_t extras;
};

/* Makes the files of a new site, also in place of those of a start that was broken off.
 *   NEB_ERR_EXISTS              the site has begun (quiet)
 *   NEB_ERR_NOSPACE, NEB_ERR_IO no files are left; the caller may try again */
neb_status neb__ledger_create(const struct neb_disk *disk, const uint8_t *mark, size_t mark_length);
/* Changes nothing. A damaged ledger is a result, not an error. NEB_ERR_IO: it could not be read,
 * whatever is in it; NEB_ERR_NOMEM */
neb_status neb__ledger_open(const struct neb_disk *disk, struct neb_ledger *out,
                            struct neb_ledger_found *found);
void neb__ledger_found_free(struct neb_ledger_found *found);

/* Appends, syncs, then sets and syncs the mark.
 *   NEB_OK            durable
 *   NEB_ERR_NOSPACE   nothing of the batch counts; the caller may try it again
 *   NEB_ERR_IO        a sync failed: never try again; open anew and verify */
neb_status neb__ledger_append(struct neb_ledger *l, const struct neb_ledger_batch *batch);

#endif
