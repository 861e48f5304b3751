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

struct neb_outfile {
    int fd;
    uint64_t written;
    char *path, *tmp;
};

/* NEB_ERR_IO, NEB_ERR_NOTFOUND (no such folder), NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__outfile_create(const char *path, mode_t mode, struct neb_outfile *out);
neb_status neb__outfile_write(struct neb_outfile *f, const void *p, size_t n);
neb_status neb__outfile_zeros(struct neb_outfile *f, size_t n); /* n below 4096 */

/* Releases f in every case; on an error the old content of the path is untouched and the temporary file gone. */
neb_status neb__outfile_commit(struct neb_outfile *f);
void neb__outfile_abandon(struct neb_outfile *f);

#endif
