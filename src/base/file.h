/* file.h: files that survive a power cut. */
#ifndef NEB_BASE_FILE_H
#define NEB_BASE_FILE_H

#include "base/buf.h"

#include <sys/types.h>

/* Writes all of it: temporary file in the same folder, fsync, rename over `path`, fsync of the folder. On any
 * error the old content of `path` is untouched and the temporary file is gone.
 *   NEB_ERR_IO, NEB_ERR_NOSPACE (disk or quota full), NEB_ERR_INVALID (path too long) */
neb_status neb__file_replace(const char *path, const void *data, size_t n, mode_t mode);

/* Appends the content of `path` to `out`. NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_NOSPACE (larger than out->max
 * allows), NEB_ERR_NOMEM. */
neb_status neb__file_read(const char *path, struct neb_buf *out);
/* The same for a file of a folder that somebody else made: a pipe or a device, which may never end, is NEB_ERR_IO. */
neb_status neb__file_read_plain(const char *path, struct neb_buf *out);
/* Such a file, open for reading. It owes a close(). */
neb_status neb__file_open_plain(const char *path, int *out);

/* fsync of the folder that holds `path`, so that a rename or a new name is durable. */
neb_status neb__file_sync_parent(const char *path);

enum neb_lock {
    NEB_LOCK_FILE,       /* for one process; a file that is not there is made */
    NEB_LOCK_SHARED,     /* of a file, with others that share it */
    NEB_LOCK_FOLDER,     /* for one process */
    NEB_LOCK_FOLDER_WAIT /* the same, after the process that has it */
};

/* Locks until *out is closed or the process ends, however it ends. Logs nothing: the caller knows what the lock is for.
 *   NEB_ERR_BUSY: another process has it; NEB_ERR_NOTFOUND: no such file (SHARED) or folder;
 *   NEB_ERR_IO: this file system has no locks, or the file cannot be opened */
neb_status neb__file_lock(const char *path, enum neb_lock how, int *out);

/* mkdir -p. */
neb_status neb__file_make_dir(const char *path, mode_t mode);

#endif
