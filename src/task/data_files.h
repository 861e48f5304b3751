/* data_files.h: the files of a corpus, and what is in them. */
#ifndef NEB_TASK_DATA_FILES_H
#define NEB_TASK_DATA_FILES_H

#include "base/hash.h"
#include "job/job.h"

/* data[].file and data[].second name a file, or are a pattern (*, ?, [a-z]) for several, which are read in the order of their
 * names as one text. */
struct neb_data_files {
    char **path[2]; /* (n + 1) of each side, ended by NULL; [1] NULL: there is no second side */
    int n;
};

/* Owes a free. NEB_ERR_NOTFOUND (quiet, says which): a file is missing or cannot be read, or no file matches;
 *   NEB_ERR_CONFIG: the sides are not as many; NEB_ERR_NOMEM */
neb_status neb__data_files_find(const struct neb_job_data *c, struct neb_data_files *out);
void neb__data_files_free(struct neb_data_files *f);

/* The hash of all bytes of a corpus. The files are read once and the result is kept in the folder `cache`; they are read again when
 * path, size, inode or a time of a file (ns) changes. So a moved or re-dated file has its hash, and another text of equal size
 * another one. *gone: the files are not there, and the hash is that of the last time.
 *   NEB_ERR_NOTFOUND (quiet): they are not there, and were never seen; NEB_ERR_CONFIG, NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__data_content(const char *cache, const struct neb_job_data *c, struct neb_hash *out,
                             bool *gone);

/* Whether such a hash is kept. */
bool neb__data_content_known(const char *cache, const struct neb_job_data *c);

#endif
