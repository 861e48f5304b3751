/* whole_file.h: a file that appears whole or not at all, written piece by piece.
 *
 * create makes PATH.PID.tmp; commit syncs it, renames it to PATH and syncs the folder; abandon removes it. A
 * successful create owes one of the two. */
#ifndef NEB_STORE_WHOLE_FILE_H
#define NEB_STORE_WHOLE_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct neb_whole_file {
    int fd;
    uint64_t written;
    char *path, *tmp;
};

/* NEB_ERR_IO, NEB_ERR_NOTFOUND (no such folder), NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__whole_file_create(const char *path, mode_t mode, struct neb_whole_file *out);
neb_status neb__whole_file_write(struct neb_whole_file *f, const void *p, size_t n);
neb_status neb__whole_file_zeros(struct neb_whole_file *f, size_t n); /* n below 4096 */

/* Releases f in every case; on an error the old content of the path is untouched and the temporary file
 * gone. */
neb_status neb__whole_file_commit(struct neb_whole_file *f);
void neb__whole_file_abandon(struct neb_whole_file *f);

#endif
