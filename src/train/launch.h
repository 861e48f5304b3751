/* launch.h: the program that starts the ranks of a site: mpirun. */
#ifndef NEB_TRAIN_LAUNCH_H
#define NEB_TRAIN_LAUNCH_H

#include "job/job.h"

#include <stdbool.h>

/* Names the file that ranks which only measure write (plan_here.c). */
#define NEB_PROBE_VARIABLE "NEBULA_PLAN_PROBE"

enum { NEB_EXIT_RANK_LOST = 75 }; /* of a rank that lost another one */

struct neb_launch;

/* Whether this process must start the ranks: the job asks for several, and nobody has started them yet. */
bool neb__launch_needed(const struct neb_job *job);

/* Makes the command that starts this very program once for each rank. Owes a close.
 *   NEB_ERR_CONFIG  the layout does not fit, or Slurm has another number of tasks */
neb_status neb__launch_open(const struct neb_job *job, struct neb_launch **out);
void neb__launch_close(struct neb_launch *l); /* NULL is fine; after a stop */

/* The same for so many ranks, whatever the job's layout is: they measure (plan_here.c). */
neb_status neb__launch_open_ranks(const struct neb_job *job, int ranks, struct neb_launch **out);

/* NEB_ERR_NOTFOUND: the launcher is missing; the message says what to install */
neb_status neb__launch_start(struct neb_launch *l);
/* *code: its exit status, or 128 and the signal. */
bool neb__launch_ended(struct neb_launch *l, int *code);
/* Ends all ranks, those that hang, too. */
void neb__launch_stop(struct neb_launch *l);
/* Whether it ended with this status because a rank was lost. */
bool neb__launch_lost(int code);

#endif
