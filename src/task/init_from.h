/* init_from.h: values of a model's parameters from the folders that a job names (init.from). */
#ifndef NEB_TASK_INIT_FROM_H
#define NEB_TASK_INIT_FROM_H

#include "nn/model.h"
#include "job/job.h"

/* For the names that both have, and match init.match. Several folders, separated by commas: their mean.
 *   NEB_ERR_CONFIG: nothing in common, or folders with different parameters or tokenizers; NEB_ERR_SHAPE,
 * NEB_ERR_NOMEM */
neb_status neb__init_from(const struct neb_job *job, struct neb_model *m);

/* Frozen parameters of other stages, as neb__folder_read_frozen(). Where the job names no folder, or several, none is there. */
neb_status neb__init_frozen(const struct neb_job *job, const struct neb_model *m, float *whole, bool *have);

#endif
