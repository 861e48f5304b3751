/* update_files.h: updates in files, named by their hash, within a quota; and snapshots of cells. */
#ifndef NEB_STORE_UPDATE_FILES_H
#define NEB_STORE_UPDATE_FILES_H

#include "base/hash.h"
#include "store/disk.h"

struct neb_update_files {
    const struct neb_disk *disk;
    uint64_t bytes, quota; /* quota 0: none */
};

/* Adds up the sizes of the files, and removes half-written files of a killed process: no
 * other process uses the folder. */
neb_status neb__update_files_open(const struct neb_disk *disk, uint64_t quota, struct neb_update_files *out);
/* The update is durable on return. NEB_ERR_CORRUPT: the name is not the hash of the bytes;
 * NEB_ERR_NOSPACE: disk or quota. */
neb_status neb__update_save(struct neb_update_files *p, const struct neb_hash *name, const void *bytes,
                            size_t n);
/* The same for a caller that has just computed the name from these bytes. */
neb_status neb__update_keep(struct neb_update_files *p, const struct neb_hash *name, const void *bytes,
                            size_t n);
/* Appends the update to out, verified. NEB_ERR_CORRUPT: the file was damaged
 * and is removed; NEB_ERR_NOTFOUND. */
neb_status neb__update_load(struct neb_update_files *p, const struct neb_hash *name, struct neb_buf *out);
/* Reads the update's first n bytes, unverified, and its size. NEB_ERR_NOTFOUND, NEB_ERR_IO */
neb_status neb__update_head(const struct neb_update_files *p, const struct neb_hash *name, void *out,
                            size_t n, uint64_t *size);
bool neb__update_exists(const struct neb_update_files *p, const struct neb_hash *name);
neb_status neb__update_remove(struct neb_update_files *p, const struct neb_hash *name);
neb_status neb__update_files_list(const struct neb_update_files *p,
                                  void (*each)(void *arg, const struct neb_hash *name), void *arg);

/* One cell of the outer state. A cell has two files, so that the older one is
 * there while the newer is written. */
struct neb_snapshot {
    uint32_t cell;
    uint64_t version;
    size_t values;
    float *theta, *m; /* (values) */
    int slot;         /* which of the two files */
    void *more;       /* so many bytes more that belong to the cell; NULL: none */
    size_t more_size;
};
/* Replaces the older or damaged file, which is found by reading both. */
neb_status neb__snapshot_save(const struct neb_disk *d, const struct neb_snapshot *s);
/* Replaces the file in s->slot: for a caller that remembers the content of both. */
neb_status neb__snapshot_put(const struct neb_disk *d, const struct neb_snapshot *s);
/* Loads the newest undamaged snapshot of s->cell, of s->values values, into s->theta and s->m, and
 * its place into s->slot. *older: version of the other file, 0 when there is none.
 * NEB_ERR_NOTFOUND: there is no snapshot. */
neb_status neb__snapshot_load(const struct neb_disk *d, struct neb_snapshot *s, uint64_t *older);

#endif
