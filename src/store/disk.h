/* disk.h: the few operations that the store needs of a disk. The simulator replaces them with a disk that
 * loses, tears and corrupts. Names are plain file names in one folder. */
#ifndef NEB_STORE_DISK_H
#define NEB_STORE_DISK_H

#include "base/buf.h"

#include <stdbool.h>

struct neb_disk_ops {
    /* NEB_ERR_NOTFOUND, NEB_ERR_IO */
    neb_status (*size)(void *ctx, const char *name, uint64_t *out);
    neb_status (*read)(void *ctx, const char *name, uint64_t at, void *to, size_t n);
    /* NEB_ERR_NOSPACE, NEB_ERR_IO; creates the file. Durable after sync. */
    neb_status (*write)(void *ctx, const char *name, uint64_t at, const void *from, size_t n);
    neb_status (*cut)(void *ctx, const char *name, uint64_t size);
    neb_status (*sync)(void *ctx, const char *name);
    /* Durable after sync_dir. */
    neb_status (*rename)(void *ctx, const char *from, const char *to);
    neb_status (*remove)(void *ctx, const char *name);
    neb_status (*sync_dir)(void *ctx);
    neb_status (*list)(void *ctx, const char *prefix, void (*each)(void *arg, const char *name), void *arg);
};

struct neb_disk {
    const struct neb_disk_ops *ops;
    void *ctx;
};

/* Opens a real folder, which must exist, and locks it. Owes a close. NEB_ERR_BUSY: another process has it. */
neb_status neb__disk_open(const char *folder, struct neb_disk *out);
/* The same for readers: nothing is written, and several may read at once. Operations that would change a file
 * answer NEB_ERR_STATE; a sync does nothing. */
neb_status neb__disk_open_to_read(const char *folder, struct neb_disk *out);
void neb__disk_close(struct neb_disk *d);

/* Replaces a whole file atomically by several pieces, one behind the other. `keep` false: without fsync, for
 * data that may be lost. On any error the old file is untouched and nothing is left of the new one. */
struct neb_disk_piece {
    const void *data;
    size_t n;
};
neb_status neb__disk_replace(const struct neb_disk *d, const char *name, const struct neb_disk_piece *pieces,
                             int count, bool keep);
/* Removes the half-written files of a killed process. */
void neb__disk_sweep(const struct neb_disk *d);

/* The same with a checksum at the end; at most seven pieces. */
neb_status neb__blob_save(const struct neb_disk *d, const char *name, const void *data, size_t n, bool keep);
neb_status neb__blob_join(const struct neb_disk *d, const char *name, const struct neb_disk_piece *pieces,
                          int count, bool keep);
/* Appends the content to `out`. NEB_ERR_NOTFOUND, NEB_ERR_CORRUPT, NEB_ERR_NOSPACE
 * (too large for out), NEB_ERR_IO */
neb_status neb__blob_load(const struct neb_disk *d, const char *name, struct neb_buf *out);

/* Writes over the existing file, without fsync: there are no new blocks, and nothing for the file system to
 * order. After a crash the file may be torn, and no checksum tells. So it is for data that may be lost and
 * that tells by itself whether it is whole. */
neb_status neb__disk_overwrite(const struct neb_disk *d, const char *name, const void *data, size_t n);
/* Appends a file, unchecked, to `out`. NEB_ERR_NOTFOUND, NEB_ERR_NOSPACE (too large for out), NEB_ERR_IO */
neb_status neb__disk_load(const struct neb_disk *d, const char *name, struct neb_buf *out);

#endif
