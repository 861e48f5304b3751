/* parallel_arm.h: one layout of ranks under measurement: a job for the benchmark, and the processes that make
 * its steps when they are told to. */
#ifndef NEB_BENCH_PARALLEL_ARM_H
#define NEB_BENCH_PARALLEL_ARM_H

#include "base/status.h"

#include <stdint.h>
#include <sys/types.h>

/* The model and its batches: causal language modelling on random words. */
struct neb_arm_job {
    const char *folder; /* an absolute path */
    int64_t hidden, layers, heads, vocab, tokens, micro, max_len;
    const char *device, *dtype;
};

/* Writes FOLDER/job.yaml with its vocabulary and text, and tokenises it. */
neb_status neb__arm_job_make(const struct neb_arm_job *j);

/* The cost of a step, the mean of those that were made together: seconds; the share of its forwards and backwards in which stages of a pipeline waited for
 * each other, the mean of all ranks. And what the rank holds that holds the most: bytes of state, and of memory
 * for its runs; values: of the trained parameters. */
struct neb_arm_step {
    double seconds, idle, state, runs, values;
};

struct neb_arm {
    pid_t pid;
    int to, from; /* pipes */
};

/* Starts the processes of a layout ("parallel.data=2 train.threads=1") and waits until they are ready. NEB_ERR_NOTFOUND: there
 * is no mpirun. A successful start owes a stop. */
neb_status neb__arm_start(const char *folder, const char *layout, int ranks, struct neb_arm *out);
void neb__arm_stop(struct neb_arm *a);
neb_status neb__arm_step(struct neb_arm *a, int64_t steps, struct neb_arm_step *out);
/* The same with gradients that are added up behind the backward pass. An error for ranks on one machine, which always do so. */
neb_status neb__arm_step_behind(struct neb_arm *a, int64_t steps, struct neb_arm_step *out);

/* Such a process: makes as many steps as each line of the standard input says. */
int neb__arm_serve(const char *folder, const char *layout);

#endif
