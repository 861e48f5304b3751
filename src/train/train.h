/* train.h: runs a job to its end on this site. */
#ifndef NEB_TRAIN_TRAIN_H
#define NEB_TRAIN_TRAIN_H

#include "task/job.h"

/* site: which of the job's sites this is; NULL: alone. Goes on from the newest checkpoint in OUT/checkpoints when there is one. SIGINT and SIGTERM: a checkpoint, then
 * NEB_ERR_CANCELLED; a second one ends the process at once. */
neb_status neb__train(const struct neb_job *job, const char *site);

#endif
