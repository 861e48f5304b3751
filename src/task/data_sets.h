/* data_sets.h: the token sets of a job's corpora: made here from text, or prepared by `nebula-i corpus tokenise`. */
#ifndef NEB_TASK_DATA_SETS_H
#define NEB_TASK_DATA_SETS_H

#include "base/pool.h"
#include "task/data.h"

/* data.c */
bool neb__data_is_pair(const struct neb_job_data *c);
void neb__data_lang_of(const struct neb_job_data *c, int i, char out[NEB_LANG_SIZE]);
neb_status neb__data_lock(const struct neb_data *d, int *lock);

/* data[].file is a folder: a set whose text need not be here. */
bool neb__data_is_prepared(const struct neb_job_data *c);

/* Why this corpus cannot be read; NEB_OK: its text is here, or was, or it is a prepared set. NEB_ERR_NOTFOUND (quiet) */
neb_status neb__data_there(const struct neb_data *d, const struct neb_job_data *c);

/* Opens the sets of all corpora of this site, after making what is missing. *lock: of the cache, -1 if it is not held. */
neb_status neb__data_open_sets(struct neb_data *d, struct neb_pool *pool, int *lock);

#endif
