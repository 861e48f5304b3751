/* optimizer.h (internal): an optimizer, and its share of the work among the ranks of a site.
 *
 * Ranks that train the same parameters on different micro-batches (data parallelism) add up their gradients
 * and then make the same update. With zero 1 each rank holds the moments of one range of the slab: it gets the
 * sum of that range's gradients, updates the range, and the ranks gather the parameters. Ranges begin at the
 * blocks of the norm, so the norm and all parameters have the same bits either way. With zero 2 a rank keeps
 * the gradient of its range alone: tensor/partition.h adds up the others during the backward pass.
 *
 *     optimizer.c   the moments, one step
 *     ranks.c       what the ranks do together in a step and for a checkpoint
 */
#ifndef NEB_OPTIM_OPTIMIZER_H
#define NEB_OPTIM_OPTIMIZER_H

#include "group/group.h"
#include "tensor/params.h"
#include "tensor/tape.h"

struct neb_optimizer {
    neb_device *dev;
    neb_params *params;
    struct neb_optimizer_config config;
    struct neb_group *ranks;      /* that train the same parameters; NULL: this one alone */
    int64_t *edge;                /* (ranks + 1) of the ranges with zero 1; NULL: every rank has all */
    int64_t first, end;           /* the range of the slab whose moments are here */
    double *blocks;               /* host: sums of the norm's blocks, with zero 1 */
    float *m, *v;                 /* device, of that range */
    struct neb_segment *segments; /* device; offsets count from `first` */
    int n_segments;
    void *scratch; /* device, for the norm */
    int64_t step;
};

/* An optimizer whose work is shared by ranks; they make all calls together. zero: 0, 1 or, for
 * parameters that neb__ranks_partition() has shared out, 2. */
neb_status neb__optimizer_create(neb_device *d, neb_params *ps, const struct neb_optimizer_config *c,
                                 struct neb_group *ranks, int zero, neb_optimizer **out);

/* ranks.c */

/* With zero 2 the ranks share out the gradients of these parameters. Before neb_params_ready(). */
neb_status neb__ranks_partition(neb_params *ps, struct neb_group *ranks, int zero);
/* The gradient of this rank's range. */
float *neb__ranks_grad(const neb_optimizer *o);

/* Shares out the slab. */
neb_status neb__ranks_ranges(neb_optimizer *o, int zero);
/* Adds up gradients, losses and counts, and puts the norm of the whole gradient into `ctl`. */
neb_status neb__ranks_reduce(neb_optimizer *o, neb_tape *t);
/* After the update: every rank gets all parameters. */
neb_status neb__ranks_gather(neb_optimizer *o);
/* The first rank gets all of a moment; `all` is NULL at the others. `own` is this rank's range, host memory. */
neb_status neb__ranks_collect(const neb_optimizer *o, const float *own, float *all);

#endif
