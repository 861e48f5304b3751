/* keyed_file.h: byte strings by key in one file that only grows. It keeps data that has crossed a slow line
 * once. A successful open owes a close.
 *
 * Entries carry a tag, and tags never fall. Opening with a checkpoint's mark cuts off newer entries, so the
 * content is a function of the mark. */
#ifndef NEB_STORE_KEYED_FILE_H
#define NEB_STORE_KEYED_FILE_H

#include "base/buf.h"
#include "base/hash.h"
#include "store/keyset.h"

enum { NEB_KEYED_FILE_ENTRY_MAX = 64 << 20 };

struct neb_keyed_file;

/* Keeps the entries with tags up to `upto`. `of` identifies what the entries depend on; a file of something
 * else is replaced, with a warning. A torn or damaged end is cut off.
 *   NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__keyed_file_open(const char *path, const struct neb_hash *of, uint64_t upto,
                                struct neb_keyed_file **out);
void neb__keyed_file_close(struct neb_keyed_file *c); /* NULL is fine */

/* Appends the entry's bytes to `out`. NEB_ERR_NOTFOUND (quiet); NEB_ERR_CORRUPT: damaged on disk; the
 * entry is forgotten; NEB_ERR_IO */
neb_status neb__keyed_file_get(struct neb_keyed_file *c, const struct neb_keyset_key *key,
                               struct neb_buf *out);
/* A key that is already there keeps its old bytes. NEB_ERR_INVALID: a tag below the last; NEB_ERR_NOSPACE,
 * NEB_ERR_IO: the file is as before */
neb_status neb__keyed_file_put(struct neb_keyed_file *c, const struct neb_keyset_key *key, uint64_t tag,
                               const void *bytes, size_t n);
/* Afterwards everything put before survives a power cut. */
neb_status neb__keyed_file_sync(struct neb_keyed_file *c);
uint64_t neb__keyed_file_bytes(const struct neb_keyed_file *c); /* of the file */

#endif
