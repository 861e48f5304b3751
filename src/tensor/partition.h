/* partition.h (internal): masters, gradients and parameters, of which each rank of a site holds a part.
 *
 * The trainable slab is cut into one range for each rank, at the blocks of the gradient's norm. It is also cut
 * into units: the parameters of one layer that lie side by side. A unit is what is in memory at one time.
 *
 * Masters (level 1). Where the device computes in BF16, a rank keeps the F32 values of its range alone; all ranks have
 * the BF16 copy that ops read, and F32 copies of the parameters of one dimension. After an update the ranks gather the
 * copy. In F32 the values are what ops read, and level 1 changes nothing here.
 *
 * Gradients (level 2). The contributions to a unit's gradient meet in a bucket, which is an allocation of the
 * run like any other, so the planner lays it over activations that are not alive then. After the last one the
 * ranks add up their buckets, each rank keeps the sum of its own range, and the bucket is gone. Every
 * micro-batch does so; a rank's range collects the sums.
 *
 * Parameters (level 3). A rank holds the values of its ranges alone, one of the trainable and one of the frozen
 * part. An op that reads a parameter has its unit gathered from all ranks into an allocation of the run. The
 * last few units are remembered; when a unit has been forgotten, the next op that reads it gathers it again, so
 * its memory is free between the forward and the backward pass. In BF16 it is the copy of which a rank has a part, and
 * that is gathered. All ranks run the same model in step.
 *
 * Where ranks are on several machines, the units that will be read next are gathered two ahead, while ops still read the present one. A
 * dry run tells the order of the units; a second one, with that order, makes the plan. So memory of gathered units is planned
 * with it: of the units that are remembered, two are those to come. */
#ifndef NEB_TENSOR_PARTITION_H
#define NEB_TENSOR_PARTITION_H

#include "tensor/params.h"
#include "tensor/plan.h"

/* How the ranks exchange values. Both calls are made by all ranks, in the same order. */
struct neb_partition_link {
    void *arg;
    int rank, size;
    /* Rank r gets the sum of the values [edge[r], edge[r + 1]); the rest is undefined afterwards. */
    neb_status (*sum_scatter)(void *arg, float *values, const int64_t *edge);
    /* Rank r has the values [edge[r], edge[r + 1]); after the join with this ticket every rank has all of them. */
    neb_status (*gather)(void *arg, void *values, const int64_t *edge, neb_dtype type, int *ticket);
    neb_status (*join)(void *arg, int ticket);
    bool ahead; /* a gather gets on while this rank computes */
};

enum { NEB_UNITS_KEPT = 4, NEB_UNITS_AHEAD = 2 };

/* Values [first, end) of the slab are at `at` of this rank's memory. */
struct neb_held {
    int64_t first, end, at;
};

struct neb_unit {
    int64_t first, end; /* in the slab, with the gaps between parameters */
    bool trainable;
    /* of the present run */
    int bucket;   /* allocation of its gradient, or -1 */
    int left;     /* parameters whose gradient is not complete */
    bool touched; /* a contribution came since the last look */
    int gathered; /* allocation of its values, or -1 */
    int ticket;   /* its gather is under way; 0: it is over */
};

struct neb_partition {
    int level;    /* 1: masters; 2: gradients, too; 3: parameters, too */
    bool masters; /* a rank has the masters of its ranges alone */
    struct neb_partition_link link;
    int64_t *edge;              /* (ranks + 1): the ranges, in values of the trainable slab */
    int64_t first, end;         /* this rank's */
    int64_t *frozen;            /* (ranks + 1): the ranges of the frozen part */
    struct neb_held held[2];    /* with masters: trainable, frozen (all of them below level 3) */
    int recent[NEB_UNITS_KEPT]; /* units that are gathered, the last one read first; -1: none */
    int64_t *cut;               /* (ranks + 1): the ranges inside a unit */
    struct neb_unit *unit;
    int units;
    bool ahead;                          /* gathers units before they are read */
    struct neb_unit_order reads;         /* of the present dry run */
    const struct neb_unit_order *coming; /* of the present run; NULL: not known */
    int read;                            /* how many units were read so far */
    int last;                            /* … the last one, or -1 */
    uint64_t order;                      /* a hash of the exchanges of this step: equal at all ranks */
};

/* Cuts the slab at blocks of the norm, one range for each of `size` ranks. A block has NEB_SUMSQ_BLOCK values of
 * one parameter, or its last ones. edge: (size + 1). */
void neb__partition_edges(const neb_params *ps, int size, int64_t *edge);

/* The ranks share out what belongs to the level. Before neb_params_ready(). */
neb_status neb__params_partition(neb_params *ps, int level, const struct neb_partition_link *link);
/* Ranges and units, once the parameters have their places. */
neb_status neb__partition_place(neb_params *ps);
void neb__partition_free(struct neb_partition *x); /* NULL is fine */

/* Whether a rank has a part of the gradients alone; of the masters alone. */
bool neb__partition_of_grads(const neb_params *ps);
bool neb__partition_of_masters(const neb_params *ps);
size_t neb__partition_width(const neb_params *ps); /* bytes of a value that is gathered */
/* Whether ranks hold parts of the parameters. */
bool neb__partition_of_values(const neb_params *ps);
/* How many values of the slab are here. */
int64_t neb__partition_held(const neb_params *ps);

/* ---- in a run: these do nothing for a set without a partition ----------------------------------------------- */

void neb__partition_reset(neb_tape *t, const int *contributions); /* NULL: a dry run */
/* After a dry run without an order: the order of its units, if runs gather ahead. The caller owns the list. */
struct neb_unit_order neb__partition_take_order(neb_params *ps);
/* Before a run: the order that its plan has. NULL: not known. */
void neb__partition_expect(neb_params *ps, const struct neb_unit_order *coming);
/* p's values, with those of its unit: the allocation, and where in it they begin. -1: the run has failed */
int neb__partition_gather(neb_tape *t, neb_param *p, int64_t *offset);
/* Memory for p's gradient in this run. */
float *neb__partition_grad(neb_tape *t, neb_param *p);
/* After a node: adds up the buckets that are complete. */
neb_status neb__partition_announce(neb_tape *t);
/* At the end of a run: ranges of parameters that no op reached. */
neb_status neb__partition_finish(neb_tape *t);

#endif
