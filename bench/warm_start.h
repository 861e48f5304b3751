/* warm_start.h: synchronous training before the local steps of a benchmark. Every variant starts from its
 * end. It has one optimizer, the batches of all replicas in one, and one schedule for the steps before and
 * after. */
#ifndef NEB_BENCH_WARM_START_H
#define NEB_BENCH_WARM_START_H

#include "task/work.h"

struct neb_warm_start {
    struct neb_schedule schedule;
    int64_t steps;
    size_t n;     /* values */
    float *x;     /* (n) parameters where the synchronous steps end */
    float *m, *v; /* (slab) the optimizer's moments there */
};

/* `steps` before, `more` after. */
void neb__warm_plan(struct neb_warm_start *w, int64_t steps, int64_t more, double lr);
void neb__warm_free(struct neb_warm_start *w); /* also takes an all-zero struct */

/* Steps [from, to) of the schedule; their tokens are added to *tokens (NULL: not counted). */
neb_status neb__warm_steps(const struct neb_warm_start *w, struct neb_work *work, int64_t from, int64_t to,
                           int64_t *tokens);

/* Makes the synchronous steps and keeps their end. The first time it also allocates, because n is known then.
 * NEB_ERR_NOMEM and those of a step */
neb_status neb__warm_make(struct neb_warm_start *w, struct neb_work *work);

/* Sets a replica to that end. */
neb_status neb__warm_load(const struct neb_warm_start *w, struct neb_work *work);

#endif
