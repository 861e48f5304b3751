/* launch.h: starts the ranks of a site with mpirun, and starts them again when one of them is lost. */
#ifndef NEB_TRAIN_LAUNCH_H
#define NEB_TRAIN_LAUNCH_H

#include "job/job.h"

#include <stdbool.h>

enum { NEB_EXIT_RANK_LOST = 75 }; /* of a rank that lost another one */

/* Whether this process must start the ranks: the job asks for several, and nobody has started them yet. */
bool neb__launch_needed(const struct neb_job *job);

/* Starts this very command once for each rank and waits until they have ended. A signal that asks for an end
 * is passed on: the ranks write a checkpoint and stop. When a rank dies or hangs, all are started again from
 * the last checkpoint, until several starts in a row have led to no new one. *code: the ranks' exit status,
 * or 128 and the signal.
 *   NEB_ERR_NOTFOUND  mpirun is missing; the message says what to install
 *   NEB_ERR_PEER      ranks were lost again and again */
neb_status neb__launch_run(const struct neb_job *job, int *code);

#endif
