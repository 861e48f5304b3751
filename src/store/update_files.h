/* update_files.h: updates in files, named by their hash, within a quota; and snapshots of cells. */
#ifndef NEB_STORE_UPDATE_FILES_H
#define NEB_STORE_UPDATE_FILES_H

#include "base/hash.h"
#include "store/disk.h"

struct neb_update_files {
    const struct neb_disk *disk;
    uint64_t bytes, quota; /* quota 0: none */
};

/* Adds up what is there, and removes what a killed process left half written: the folder is this process's alone. */
neb_status neb__update_files_open(const struct neb_disk *disk, uint64_t quota, struct neb_update_files *out);
/* Durable when it returns. NEB_ERR_CORRUPT: the bytes are not what the name says; NEB_ERR_NOSPACE: disk or quota. */
neb_status neb__update_save(struct neb_update_files *p, const struct neb_hash *name, const void *bytes,
                            size_t n);
/* The same for a caller that has just computed the name from these bytes. */
neb_status neb__update_keep(struct neb_update_files *p, const struct neb_hash *name, const void *bytes,
                            size_t n);
/* Appends to out, verified. A damaged file is removed: NEB_ERR_CORRUPT; NEB_ERR_NOTFOUND. */
neb_status neb__update_load(struct neb_update_files *p, const struct neb_hash *name, struct neb_buf *out);
/* Its first n bytes, unverified, and how many there are in all. NEB_ERR_NOTFOUND, NEB_ERR_IO */
neb_status neb__update_head(const struct neb_update_files *p, const struct neb_hash *name, void *out,
                            size_t n, uint64_t *size);
bool neb__update_exists(const struct neb_update_files *p, const struct neb_hash *name);
neb_status neb__update_remove(struct neb_update_files *p, const struct neb_hash *name);
neb_status neb__update_files_list(const struct neb_update_files *p,
                                  void (*each)(void *arg, const struct neb_hash *name), void *arg);

/* One cell of the outer state. Two files a cell, so that the older one is there while the newer is written. */
struct neb_snapshot {
    uint32_t cell;
    uint64_t version;
    size_t values;
    float *theta, *m; /* (values) */
    int slot;         /* which of the two files */
};
/* In place of the older or damaged one, which is found by reading both. */
neb_status neb__snapshot_save(const struct neb_disk *d, const struct neb_snapshot *s);
/* In place of the one in s->slot: for a caller that remembers what is in the two. */
neb_status neb__snapshot_put(const struct neb_disk *d, const struct neb_snapshot *s);
/* The newest undamaged one into s->theta and s->m, and where it was into s->slot; s->cell and s->values say which.
 * *older: version of the other file, 0 when there is none. NEB_ERR_NOTFOUND: none. */
neb_status neb__snapshot_load(const struct neb_disk *d, struct neb_snapshot *s, uint64_t *older);

#endif
