/* orthogonal.h (internal): the orthogonal matrix nearest to a given one, approximately.
 *
 * With the singular value decomposition x = U S V^T the result is about U V^T: five steps of a Newton-Schulz iteration
 * (Jordan et al. 2024) bring all singular values that are not tiny between 0.7 and 1.2. It is made of products alone, so
 * every device can do it. */
#ifndef NEB_OPTIM_ORTHOGONAL_H
#define NEB_OPTIM_ORTHOGONAL_H

#include "tensor/device.h"

#include <nebula/engine.h>

enum { NEB_ORTHOGONAL_STEPS = 5 };
/* x <- a x + b (x x^T) x + c (x x^T)^2 x: the coefficients of the public reference */
#define NEB_ORTHOGONAL_A 3.4445f
#define NEB_ORTHOGONAL_B (-4.7750f)
#define NEB_ORTHOGONAL_C 2.0315f

struct neb_orthogonal_shape {
    int64_t rows, cols;
    void *diagonal; /* (side, side) of the type, the device's: a on the diagonal; side = min(rows, cols) */
    struct neb_segment *unit; /* the device's: all values, times -1 */
};

struct neb_orthogonal {
    neb_device *dev;
    neb_dtype type;
    struct neb_orthogonal_shape *shape;
    int shapes;
    /* device memory */
    float *unit; /* F32: the matrix of norm 1 */
    void *x[2], *gram, *polynomial;
    struct neb_ctl *ctl; /* a fresh one, and that of the norm in hand */
    void *scratch;
};

/* Memory for matrices of these shapes. type: of the products. A successful create owes a free; so does a failed one. */
neb_status neb__orthogonal_create(neb_device *d, neb_dtype type, const int64_t (*shapes)[2], int n,
                                  struct neb_orthogonal *out);
void neb__orthogonal_free(struct neb_orthogonal *o);

/* out = scale * the orthogonal matrix of x; both F32 (rows, cols) of shape s, in the device's memory. Zeros, and values
 * that are not finite, give zeros. */
neb_status neb__orthogonal_run(struct neb_orthogonal *o, int s, const float *x, float scale, float *out);

#endif
