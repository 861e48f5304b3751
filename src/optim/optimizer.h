/* optimizer.h (internal): an optimizer, and its share of the work among the ranks of a site.
 *
 * Ranks that train the same parameters on different micro-batches (data parallelism) add up their gradients
 * and then make the same update. With zero 1 each rank holds the moments of one range of the slab: it gets the
 * sum of that range's gradients, updates the range, and the ranks gather the parameters. With zero 2 a rank keeps
 * the gradient of its range alone: tensor/partition.h adds up the others during the backward pass. With zero 3 it
 * keeps the parameters of its range alone, and they are gathered where an op reads them.
 *
 * The norm is a sum over blocks of NEB_SUMSQ_BLOCK values. A block lies inside one parameter and has one number
 * under every layout; ranges begin at blocks; the sums of the blocks are added in the order of their numbers. So
 * the norm, and with it all parameters, have the same bits whichever rank took a block. A parameter that is cut
 * among tensor ranks is the exception: its ranks' sums are added in rank order. A GPU sums its range in its own way.
 *
 * An update walks the range in buckets: one, or many where the state is on the host (offload.h). With Muon a bucket is what
 * lies between two matrices, and matrices have no second moments: they take no memory, and no bytes of a checkpoint.
 *
 *     optimizer.c   the moments, one step
 *     private_step.c  one step with a clip for each sample, and noise
 *     muon.c        the update of matrices that Muon takes; orthogonal.c
 *     beside.c      gradients that are added up during the last backward pass
 *     norm.c        the blocks, and the norm over all ranks
 *     offload.c     moments and masters on the host
 *     ranks.c       what the ranks do together in a step and for a checkpoint
 *     whole.c       values of all ranks at the first one, and back
 */
#ifndef NEB_OPTIM_OPTIMIZER_H
#define NEB_OPTIM_OPTIMIZER_H

#include "group/layout.h"
#include "tensor/params.h"
#include "tensor/tape.h"

/* Blocks [block, block + blocks) of the norm are values [first, first + n) of this process's slab. cut: they are
 * all added to the number `block`, because the parameter is cut and its blocks are not those of the whole. */
struct neb_norm_run {
    int64_t first, n, block, blocks;
    bool cut;
};

struct neb_norm_plan {
    bool host;                /* the device's memory is the host's */
    struct neb_norm_run *run; /* (runs) of the parameters that this process counts, in slab order */
    int runs;
    int64_t blocks;  /* of the whole slab */
    double *sums;    /* (blocks) and room for the step's results */
    double *scratch; /* (the most blocks of a run) */
};

/* A part of the range. */
struct neb_state_bucket {
    int64_t first, n;  /* from the range's first value on */
    int segment, segs; /* of the table of segments, whose offsets count from the bucket's first value */
    int64_t v;         /* where its second moments begin */
};

enum { NEB_OFFLOAD_BUCKET = 4 << 20, NEB_SUM_BUCKET = 2 << 20, NEB_SUM_BUCKET_GPU = 8 << 20 }; /* values */

struct neb_beside;
struct neb_offload;
struct neb_muon;

struct neb_optimizer {
    neb_device *dev;
    neb_params *params;
    struct neb_optimizer_config config;
    const struct neb_layout *layout; /* NULL: this process alone */
    struct neb_pipeline *pipeline;   /* the parameters are those of one stage; NULL: of all */
    struct neb_site_stage *site;     /* the same, with the other stages at other sites; or NULL */
    int64_t *edge;      /* (data ranks + 1) of the ranges with zero 1; NULL: every rank has all */
    int64_t first, end; /* the range of the slab whose moments are here */
    struct neb_norm_plan norm;
    struct neb_beside *beside; /* NULL: gradients are added up when the runs are over */
    float *m, *v;              /* of that range: device, or host with offload. v has what the buckets have */
    struct neb_segment *segments; /* device */
    struct neb_state_bucket *bucket;
    int n_buckets;
    struct neb_offload *offload; /* NULL: the state is on the device */
    struct neb_muon *muon;       /* NULL: this rank's range has no matrix that Muon takes */
    void *scratch;               /* device, for the norm */
    int64_t step;
    bool added_up; /* the slab has the gradient of all ranks already, whole at each of them */
    bool timed;    /* the device is waited for between the runs of a step and its update, for … */
    double runs_s; /* … the seconds of all runs so far */
};

/* Where an optimizer's state is. */
struct neb_state_place {
    const struct neb_layout *layout; /* whose ranks share the work; they make all calls together. It outlives
                                        the optimizer. NULL: this process alone */
    int zero;       /* 0, 1 or, for parameters that neb__ranks_partition() has shared out, 2 or 3 */
    bool offload;   /* the moments are on the host, and masters that neb__params_offload() put there */
    int64_t bucket; /* values; 0: NEB_OFFLOAD_BUCKET */
    int64_t
        sums; /* values of a bucket of gradients that copies add up (beside.c); 0: NEB_SUM_BUCKET, on GPUs NEB_SUM_BUCKET_GPU */
};
neb_status neb__optimizer_create(neb_device *d, neb_params *ps, const struct neb_optimizer_config *c,
                                 const struct neb_state_place *place, neb_optimizer **out);
/* 2: AdamW, Muon; 1: SGD with momentum; 0: without */
int neb__optimizer_moments(const neb_optimizer *o);
/* The arguments of the update of a bucket, as it is without offload. */
struct neb_update neb__optimizer_update(neb_optimizer *o, neb_tape *t, int64_t bucket);

/* The two ends of a step: the step's numbers, for losses that weigh `weight` together; and the update by the gradient that
 * stands in the slab then. */
neb_status neb__optimizer_begin(neb_optimizer *o, neb_tape *t, double weight, float lr, uint32_t seed);
neb_status neb__optimizer_finish(neb_optimizer *o, neb_tape *t, const struct neb_reduce *reduce,
                                 struct neb_step_info *info);

/* norm.c */

neb_status neb__norm_make(const neb_params *ps, bool host, struct neb_norm_plan *out);
void neb__norm_free(struct neb_norm_plan *n);
/* The sums of the blocks that are here and counted, of the values [first, end) of the slab; 0 for all others. */
neb_status neb__norm_blocks(neb_optimizer *o);
/* The square of the norm of this process's gradient, after neb__ranks_reduce(). Negative: only
 * the step's numbers, on the device, have it. */
double neb__norm_here(const neb_optimizer *o);
/* Losses, counts, the non-finite flag and the norm of all ranks, into `ctl`. */
neb_status neb__norm_reduce(neb_optimizer *o, struct neb_ctl *ctl);
/* The same where ctl is in the memory of a device: its sums, added up in its stream. Nothing waits. */
neb_status neb__norm_on_device(neb_optimizer *o, struct neb_ctl *ctl);

/* ranks.c */

/* With zero 2 the copies of the model share out the gradients of these parameters. Before neb_params_ready(). */
neb_status neb__ranks_partition(neb_params *ps, const struct neb_layout *layout, int zero);
/* The gradient and the values of this rank's range. */
float *neb__ranks_grad(const neb_optimizer *o);
float *neb__ranks_values(const neb_optimizer *o);
void *neb__ranks_shadow(const neb_optimizer *o,
                        int64_t at); /* BF16, of the range's value `at`; NULL in F32 */
/* With zero 3: this rank's values go to the first rank of the data group, or come from there. here: the slab, at
 * that rank. trainable: only that part of it. */
neb_status neb__ranks_exchange_values(const struct neb_layout *l, neb_params *ps, bool collect,
                                      bool trainable, float *here);

/* Shares out the slab. */
neb_status neb__ranks_ranges(neb_optimizer *o, int zero);
/* The runs of a step are over at this rank, or it cannot make them: no rank goes on alone. */
neb_status neb__ranks_run_over(neb_optimizer *o, neb_status status);
/* The step is over at this rank: where only this one failed, nobody waits for it. */
neb_status neb__ranks_step_over(const neb_optimizer *o, neb_status status);
/* Adds up gradients, losses and counts, and puts the norm of the whole gradient into `ctl`. */
neb_status neb__ranks_reduce(neb_optimizer *o, neb_tape *t);
/* After the update: every rank gets all parameters. */
neb_status neb__ranks_gather(neb_optimizer *o);
/* Where ranks share out the masters of BF16 parameters: what ops read of them, from the masters. shadow: this rank's
 * BF16 values are old, too. A collective call. */
neb_status neb__ranks_copies(const struct neb_layout *l, neb_params *ps, bool shadow);
/* The first rank gets all of a moment, in the layout of the whole slab; `whole` is NULL at the others. `own` is
 * this rank's range, host memory. */
neb_status neb__ranks_collect(const neb_optimizer *o, const float *own, float *whole);

#endif
