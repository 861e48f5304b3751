/* device_narrow.h: weights in fewer bits than the activations have, and the slots that read them. Part of
 * nebula/device.h, which states the rules.
 *
 * A narrow weight is frozen: the host codes it once and uploads the code. Its values are defined here to the bit, so
 * that they are the same on every device:
 *
 *     BF16   the upper halves of floats
 *     INT8   code * scale[row], both factors such that the product is exact
 *     NF4    level[code] * scale[row, block], a float product; a block has 64 columns. A row has ceil(cols / 64)
 *            blocks of 32 bytes; byte i of a block has column i in its lower and column i + 32 in its upper four
 *            bits. Codes behind the last column are 0.
 *
 * Where activations are BF16, a product may round the values to BF16 (nearest even) first. */
#ifndef NEBULA_DEVICE_NARROW_H
#define NEBULA_DEVICE_NARROW_H

#include <nebula/device_compute.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum neb_narrow_kind {
    NEB_WIDE = 0, /* not narrow */
    NEB_NARROW_BF16 = 1,
    NEB_NARROW_INT8 = 2,
    NEB_NARROW_NF4 = 3,
} neb_narrow_kind;

enum { NEB_NF4_BLOCK = 64 };

/* Quantiles of a normal distribution, from -1 to 1 (Dettmers et al. 2023). */
#define NEB_NF4_LEVELS                                                                                      \
    {                                                                                                       \
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,    \
            -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, \
            0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,          \
            0.7229568362236023f, 1.0f                                                                       \
    }

struct neb_narrow {
    const void *code;  /* (rows, cols) BF16 or int8_t; NF4: (rows, blocks, 32) bytes */
    const void *scale; /* INT8: float (rows); NF4: BF16 (rows, blocks); BF16: NULL */
    neb_narrow_kind kind;
};

/* out = the values of w. */
struct neb_widen {
    struct neb_narrow w; /* (rows, cols) */
    void *out;           /* (rows, cols) */
    int64_t rows, cols;
    neb_dtype type; /* of out */
};

/* linear and linear_bwd with a narrow weight (out, in): l.w and l.packed are NULL, and so is the gradient l.dw. */
struct neb_linear_narrow {
    struct neb_linear l;
    struct neb_narrow w;
};
struct neb_linear_narrow_bwd {
    struct neb_linear_bwd l;
    struct neb_narrow w;
};

#ifdef __cplusplus
}
#endif
#endif
