/* train.h: runs a job to its end on this site. */
#ifndef NEB_TRAIN_TRAIN_H
#define NEB_TRAIN_TRAIN_H

#include "job/job.h"

/* Trains alone, or as the site that neb__job_at() made it, and goes on from the newest checkpoint in
 * OUT/checkpoints if there is one. After SIGINT, SIGTERM or SIGHUP it writes a checkpoint and returns
 * NEB_ERR_CANCELLED; a second signal ends the process at once. `parallel: auto` is settled in the job. */
neb_status neb__train_job(struct neb_job *job);

/* The signal that ended the last training; 0: none did. */
int neb__train_signal(void);

/* The learning rates of the job's steps. NEB_ERR_CONFIG */
neb_status neb__train_schedule(const struct neb_job *job, struct neb_schedule *out);

#endif
