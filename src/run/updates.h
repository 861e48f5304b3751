/* updates.h (internal): the updates that this site made or was given: in memory until their record, on disk
 * as long as somebody may need them.
 *
 * All of it is the driver's alone, or read between two of its events (see session.h): there is no lock. */
#ifndef NEB_RUN_UPDATES_H
#define NEB_RUN_UPDATES_H

#include "codec/codec.h"
#include "round/round.h"
#include "store/update_files.h"

#include <nebula/nebula.h>

/* An update that was made or checked here not long ago, and waits for its record. */
struct neb_recent {
    struct neb_hash hash;
    struct neb_buf bytes; /* empty: none */
    double norm;          /* of its values; negative: not known */
};
enum { NEB_RECENT = 32, NEB_RECENT_BYTES = 64 << 20 };

/* The residual that goes to disk with the newest own update: left_out.c */
struct neb_left_out {
    struct neb_buf coded;
    uint32_t crc;
};

/* The disk: which updates may go, which went: retention.c */
struct neb_retention {
    uint64_t (*covered)[2]; /* per cell: versions of its two snapshots, by slot */
    uint64_t swept;         /* updates of the records up to here are gone */
    uint64_t orphans_at;    /* at this record those that no record names were looked for */
    uint64_t
        saved_k[2]; /* own updates up to here are settled in the caller's last checkpoint, the one before */
    int64_t full_since; /* ns; 0: there is room */
};

/* An update of another site on disk that no record names, as far as known: unnamed.c */
struct neb_unnamed {
    struct neb_hash hash;
    struct neb_update_header header;
};
struct neb_unnamed_list {
    struct neb_unnamed *all;
    size_t n, cap;
};

/* The first update of a site that is ahead of the log here, until the log is there. */
struct neb_ahead {
    int64_t since; /* ns; 0: none */
    uint32_t c0;
    uint64_t b;
};

struct neb_updates {
    struct neb_update_files files;
    struct neb_buf made; /* the newest own one, header and code */
    struct neb_hash made_hash;
    struct neb_left_out left_out;
    struct neb_recent recent[NEB_RECENT];
    uint32_t next_recent;
    uint64_t last_k;       /* number of the newest own one */
    uint64_t checkpoint_k; /* the same in the checkpoint that the site began with */
    struct neb_retention keep;
    struct neb_unnamed_list unnamed;
    struct neb_ahead ahead[NEB_SITES_MAX];
};

/* ---- updates.c: in memory ------------------------------------------------------------------------------ */

/* `cells`: of the model; `max`: the largest update, in bytes. The files come later. */
neb_status neb__updates_open(struct neb_updates *u, size_t cells, size_t max);
void neb__updates_close(struct neb_updates *u);
void neb__updates_remember(struct neb_updates *u, const struct neb_hash *hash, const void *bytes, size_t n);
/* An update that was remembered and not forgotten since, if it is still in memory; valid until the next one
 * is. */
const struct neb_buf *neb__updates_recent(struct neb_updates *u, const struct neb_hash *hash);
void neb__updates_set_norm(struct neb_updates *u, const struct neb_hash *hash, double norm);
double neb__updates_norm(struct neb_updates *u, const struct neb_hash *hash); /* negative: not known */
void neb__updates_forget(struct neb_updates *u, const struct neb_hash *hash);
/* Reads one back from disk, with its header. */
bool neb__updates_load(struct neb_updates *u, const struct neb_hash *hash, struct neb_buf *b,
                       struct neb_update_header *h);
/* Only the header, unverified: enough to tell whether the rest is worth reading. */
bool neb__updates_header(const struct neb_updates *u, const struct neb_hash *hash,
                         struct neb_update_header *h);

/* ---- retention.c: on disk ------------------------------------------------------------------------------ */

neb_status neb__session_keep(neb_session *s, const struct neb_hash *hash, const void *bytes, size_t n);
void neb__session_sweep(neb_session *s);
void neb__session_full(neb_session *s, bool full, const char *what);
neb_status neb__session_snapshot(neb_session *s, const struct neb_snapshot *snap);

/* ---- left_out.c: the residual that an update leaves, on disk under the update's number ----------------- */

void neb__left_out_begin(struct neb_left_out *l, uint64_t k);
void neb__left_out_add(struct neb_left_out *l, const float *r, size_t n); /* of the next cell */
void neb__left_out_end(struct neb_left_out *l, struct neb_disk *disk, uint32_t c0);
/* `out`: (values of the cells [c0, c1)) zeros if none was kept under k. */
void neb__left_out_restore(neb_session *s, uint32_t c0, uint32_t c1, uint64_t k, float *out);

/* ---- peer_updates.c: to and from the other sites ------------------------------------------------------- */

size_t neb__session_update_max(const neb_session *s);
/* Cells of this model, and as many values as they have. */
bool neb__session_update_fits(const neb_session *s, const struct neb_update_header *h, const uint8_t *bytes,
                              size_t n);
void neb__session_push(neb_session *s, uint16_t peer, const struct neb_hash *hash, bool asked_for);
void neb__session_update(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n);
void neb__session_look_for(neb_session *s,
                           const struct neb_hash *hash); /* on this site's disk, for the core */

#endif
