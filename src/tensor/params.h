/* params.h (internal): parameters in one slab.
 *
 * Layout, in values: [trainable parameters][frozen parameters], each parameter aligned to NEB_PARAM_ALIGN
 * values; the gaps hold zeros. Gradients and the optimizer's moments mirror the trainable part only. So a
 * range of the trainable slab means the same parameters in every array. Narrow weights (narrow.h) take no place in it.
 *
 * Where several processes share the parameters, each has a slab of its own parts. The whole slab, which one
 * process alone would have, gives every value one place under every layout: pieces.h. The public functions
 * (neb_param_shape, _values, _offset, _read, _write) speak of whole parameters. */
#ifndef NEB_TENSOR_PARAMS_H
#define NEB_TENSOR_PARAMS_H

#include "tensor/device.h"

#include <nebula/engine.h>

#define NEB_PARAM_ALIGN 64
enum { NEB_PARAM_PARTS = 3 };

struct neb_param {
    char *name;
    int number; /* its place in the set's list */
    int ndim;
    int64_t shape[4];  /* local */
    int64_t global[4]; /* of the whole, unsplit parameter */
    int64_t values;    /* local */
    int64_t offset;    /* in the slab, in values */
    int parts;         /* of the split dimension that are here; 0: all of it */
    int64_t part_first[NEB_PARAM_PARTS], part_count[NEB_PARAM_PARTS];
    int64_t whole_values; /* of the whole, unsplit parameter … */
    int64_t whole_offset; /* … and its place in the whole slab (pieces.h) */
    bool elsewhere;       /* nothing of it is here */
    bool counted;         /* this process is the one that counts it: in the norm, in a checkpoint */
    bool partial;         /* its gradient is a part of a sum over the team (team.h) */
    int64_t first_id;     /* as a table: the id of its first row */
    neb_split split;
    bool hidden;          /* a weight between hidden states */
    bool taken_as_matrix; /* by an optimizer: ranks do not share it out in pieces (matrices.h) */
    int matrices;         /* one below the other, at least 1 if it has two dimensions */
    int64_t matrix_rows[NEB_PARAM_PARTS]; /* global */
    neb_init init;
    float scale;
    bool no_decay, trainable;
    neb_narrow_kind narrow; /* its code lies outside the slab (narrow.h) … */
    size_t narrow_at;       /* … at this place */
    bool halved; /* narrow because ops read BF16 here anyway; a checkpoint has it as if it were not */
    bool coded;  /* its code is on the device */
    struct neb_params *set;
    int64_t vector; /* in the vectors of offloaded masters; -1: not there */
    int unit;       /* with a partition: which unit it belongs to */
    /* of the present run */
    bool written;      /* the gradient has been written: further contributions add */
    int contributions; /* dry: how many contributions there are; else: how many are still to come */
    bool complete;     /* no contribution is left; not announced yet */
};

struct neb_params {
    neb_device *dev;
    struct neb_param **list;
    int count, cap;
    neb_status failed; /* first error of neb_params_add */
    bool ready;
    bool only_used; /* nothing is trained, and the caller writes every value */
    bool awaited;   /* the caller writes most narrow weights, then calls neb__params_fill_rest() */
    int64_t trainable_values, all_values; /* of the slab, with padding */
    int64_t whole_trainable, whole_all;   /* of the slab that one process alone would have */
    const float *whole;  /* host: all values of all processes, while somebody has them here; or NULL */
    float *value, *grad; /* device; value may be host memory (masters.h) */
    void *shadow;        /* device, BF16 copy of value; NULL when computing in F32 */
    struct {
        bool wanted, on_host;        /* value is host memory */
        float *vectors;              /* device: values of the parameters of one dimension … */
        int64_t vector_values;       /* … and how many */
        float *stage;                /* device */
        uint64_t fence;              /* of the last copy to `value`; 0: none */
    } masters;                       /* masters.h */
    uint8_t *narrow;                 /* device: the codes of narrow weights; NULL: there are none */
    const struct neb_team *team;     /* processes that share the layers (team.h); NULL: none; not owned */
    struct neb_partition *partition; /* ranks hold a part each (partition.h); NULL: all is here */
    bool matrices_taken;             /* matrices.h */
    uint64_t seed;                   /* of the initial values */
};

/* Initial values are drawn in neb_params_ready(). Random numbers for billions of weights that a folder then overwrites
 * take minutes, so a caller may say before it that it will write
 *   all parameters, none of which is trained: no value is drawn, and on a device that computes in BF16 no matrix has a
 *   copy in F32;
 *   most narrow ones: what it left out is drawn in neb__params_fill_rest(), or when it is read before. */
void neb__params_only_use(neb_params *ps);
void neb__params_await(neb_params *ps);
neb_status neb__params_fill_rest(neb_params *ps);

/* Coded by the user's choice, and so in no checkpoint. */
static inline bool neb__param_left_out(const neb_param *p)
{
    return p->narrow && !p->halved;
}

/* Values that a parameter occupies in this process's slab, and in the whole one. */
static inline int64_t neb__param_slab_values(const neb_param *p)
{
    return p->narrow ? 0 : p->values;
}
static inline int64_t neb__param_slab_whole(const neb_param *p)
{
    return neb__param_left_out(p) ? 0 : p->whole_values;
}

#endif
