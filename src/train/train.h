/* train.h: runs a job to its end on this site. */
#ifndef NEB_TRAIN_TRAIN_H
#define NEB_TRAIN_TRAIN_H

#include "job/job.h"

/* Alone, or as the site that neb__job_at() made it. Goes on from the newest checkpoint in OUT/checkpoints when there is one. SIGINT and SIGTERM: a checkpoint, then
 * NEB_ERR_CANCELLED; a second one ends the process at once. */
neb_status neb__train_job(const struct neb_job *job);

/* The learning rates of its steps. NEB_ERR_CONFIG */
neb_status neb__train_schedule(const struct neb_job *job, struct neb_schedule *out);

#endif
