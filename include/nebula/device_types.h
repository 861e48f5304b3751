/* device_types.h: types that all slots of a device share: data types, activations, the step's control block,
 * dropout. Part of nebula/device.h, which states the rules. */
#ifndef NEBULA_DEVICE_TYPES_H
#define NEBULA_DEVICE_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum neb_dtype { NEB_F32 = 0, NEB_BF16 = 1, NEB_I32 = 2, NEB_I8 = 3, NEB_DTYPES = 4 } neb_dtype;

typedef enum neb_act {
    NEB_ACT_NONE = 0,
    NEB_ACT_GELU = 1,      /* exact, with erf */
    NEB_ACT_GELU_TANH = 2, /* the tanh approximation (GPT-2) */
    NEB_ACT_SILU = 3,
    NEB_ACT_RELU = 4,
    NEB_ACT_TANH = 5,
} neb_act;

typedef enum neb_norm_kind { NEB_NORM_LAYER = 0, NEB_NORM_RMS = 1 } neb_norm_kind;

/* A step's settings and results, in device memory. The engine uploads the first part before a step and
 * downloads the second part afterwards, one step late on an asynchronous device. */
struct neb_ctl {
    /* in */
    uint32_t step;    /* optimizer steps done + 1 */
    uint32_t seed;    /* of dropout */
    float lr;         /* learning rate of this step */
    float loss_scale; /* 1 / (sum of weights over all micro-batches and ranks) */
    float max_norm;   /* clip the global gradient norm to this; <= 0: no clipping */
    float bias1;      /* 1 - beta1^step */
    float bias2;      /* 1 - beta2^step */
    uint32_t reserved_in[9];
    /* out */
    float loss[8];      /* one accumulator per loss slot, already scaled */
    float norm2;        /* squared norm of the gradient */
    float clip;         /* factor applied to the gradient; 0 when the step was skipped */
    uint32_t nonfinite; /* not 0: a loss or the norm was NaN or infinite, and the update was skipped */
    float counts[4];    /* metrics: see the losses */
    uint32_t reserved_out[1];
}; /* 128 bytes */

/* The dropout of one op: its threshold, and the sample and position of each row, which decide the random
 * bits. */
struct neb_dropout {
    uint32_t threshold;      /* of 65536; 0: no dropout, and the other fields are not read */
    uint32_t op;             /* which dropout of the model this is */
    const uint32_t *sample;  /* (rows) global sample id of each row; for attention (sequences) */
    const int32_t *position; /* (rows) position of each row in its sequence; for attention unused */
    const struct neb_ctl *ctl;
    uint32_t first; /* attention: number of the first head, where several processes share them out; else 0 */
};

#ifdef __cplusplus
}
#endif
#endif
