/* watch_child.h (internal): `nebula-i watch` beside a training, for `train --watch PORT`. */
#ifndef NEB_CLI_WATCH_CHILD_H
#define NEB_CLI_WATCH_CHILD_H

#include "job/job.h"

#include <sys/types.h>

struct neb_watch_child {
    pid_t pid; /* 0: none */
};

/* Starts it in a process of its own, which ends with this one, however this one ends. If that fails there is a warning, and
 * the training goes on without a page. The job's section `watch` is passed on. */
void neb__watch_child_start(struct neb_watch_child *c, const struct neb_job *job, int port);
void neb__watch_child_stop(struct neb_watch_child *c); /* one that was not started is fine */

#endif
