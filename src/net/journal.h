/* journal.h: keeps on disk the items of a stream that its consumer does not yet retain. A successful open
 * owes a close. */
#ifndef NEB_NET_JOURNAL_H
#define NEB_NET_JOURNAL_H

#include "base/buf.h"

#include <stdbool.h>

struct neb_journal;

/* The journal holds items `first` to `next - 1`. A new journal begins with item `begin`. A torn end is cut
 * off.
 *   NEB_ERR_CORRUPT  damage in the middle;  NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__journal_open(const char *dir, const char *name, uint64_t begin, struct neb_journal **out);
void neb__journal_close(struct neb_journal *j); /* NULL is fine */

uint64_t neb__journal_first(const struct neb_journal *j);
uint64_t neb__journal_next(const struct neb_journal *j);
uint64_t neb__journal_bytes(const struct neb_journal *j);

/* Writes the item; it is not durable yet. */
neb_status neb__journal_append(struct neb_journal *j, const uint8_t *data, size_t size);
/* Returns a descriptor; fdatasync() on it makes everything appended so far durable. */
int neb__journal_fd(const struct neb_journal *j);
/* Appends item `item` to `out` after checking it. NEB_ERR_NOTFOUND: the journal does not hold it. */
neb_status neb__journal_read(struct neb_journal *j, uint64_t item, struct neb_buf *out);
/* Items up to `item` are no longer needed. Files that hold nothing else are removed. */
void neb__journal_retain(struct neb_journal *j, uint64_t item);

/* Both are for a journal that is not open: they count its files, and remove it. */
neb_status neb__journal_segments(const char *dir, const char *name, uint32_t *out);
neb_status neb__journal_remove(const char *dir, const char *name);

#endif
