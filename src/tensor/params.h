/* params.h (internal): parameters in one slab.
 *
 * Layout, in values: [trainable parameters][frozen parameters], each parameter aligned to NEB_PARAM_ALIGN
 * values; the gaps hold zeros. Gradients and the optimizer's moments mirror the trainable part only. So a
 * range of the trainable slab means the same parameters in every array. */
#ifndef NEB_TENSOR_PARAMS_H
#define NEB_TENSOR_PARAMS_H

#include "tensor/device.h"

#include <nebula/engine.h>

#define NEB_PARAM_ALIGN 64

struct neb_param {
    char *name;
    int number; /* its place in the set's list */
    int ndim;
    int64_t shape[4];  /* local */
    int64_t global[4]; /* of the whole, unsplit parameter */
    int64_t values;    /* local */
    int64_t offset;    /* in the slab, in values */
    int64_t first;     /* first index of the local part in the split dimension */
    neb_split split;
    neb_init init;
    float scale;
    bool no_decay, trainable;
    struct neb_params *set;
    int unit; /* with a partition: which unit it belongs to */
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
    int64_t trainable_values, all_values; /* of the slab, with padding */
    float *value, *grad;                  /* device */
    void *shadow;                         /* device, BF16 copy of value; NULL when computing in F32 */
    struct neb_partition *partition;      /* ranks hold a part each (partition.h); NULL: all is here */
};

#endif
