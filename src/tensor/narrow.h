/* narrow.h (internal): frozen weights in 16, 8 or 4 bits.
 *
 * A narrow weight lies outside the slab of parameters: it has neither master nor gradient, only its code in the
 * device's memory (nebula/device_narrow.h), and products are all that reads it. The host codes and decodes, with
 * the same bits on every machine. Coding decoded values gives the same code again, so that a model may be written
 * and read any number of times. */
#ifndef NEB_TENSOR_NARROW_H
#define NEB_TENSOR_NARROW_H

#include "tensor/params.h"

struct neb_hash;

static inline int64_t neb__narrow_blocks(int64_t cols)
{
    return (cols + NEB_NF4_BLOCK - 1) / NEB_NF4_BLOCK;
}

static inline size_t neb__narrow_code_bytes(neb_narrow_kind kind, int64_t rows, int64_t cols)
{
    if (kind == NEB_NARROW_NF4) return (size_t)(rows * neb__narrow_blocks(cols)) * (NEB_NF4_BLOCK / 2);
    return (size_t)(rows * cols) * (kind == NEB_NARROW_BF16 ? 2 : 1);
}

static inline size_t neb__narrow_scale_bytes(neb_narrow_kind kind, int64_t rows, int64_t cols)
{
    if (kind == NEB_NARROW_NF4) return (size_t)(rows * neb__narrow_blocks(cols)) * sizeof(uint16_t);
    return kind == NEB_NARROW_INT8 ? (size_t)rows * sizeof(float) : 0;
}

/* All bytes of a weight: its code, then its scales, each 256-byte aligned. */
size_t neb__narrow_bytes(neb_narrow_kind kind, int64_t rows, int64_t cols);

/* Host memory. NEB_ERR_RANGE: a value is not finite. */
neb_status neb__narrow_encode(neb_narrow_kind kind, int64_t rows, int64_t cols, const float *values,
                              void *code, void *scale);
void neb__narrow_decode(neb_narrow_kind kind, int64_t rows, int64_t cols, const void *code, const void *scale,
                        float *out);

/* A parameter that is frozen becomes narrow. Before neb_params_ready(); it must have two dimensions.
 *   NEB_ERR_STATE, NEB_ERR_SHAPE
 *   NEB_ERR_UNSUPPORTED  it is cut or elsewhere (parallel.tensor, parallel.pipeline) */
neb_status neb__param_make_narrow(neb_param *p, neb_narrow_kind kind);

/* Memory for all narrow weights of the set. NEB_ERR_UNSUPPORTED: the device cannot widen them. */
neb_status neb__narrow_alloc(neb_params *ps);
void neb__narrow_free(neb_params *ps);
neb_status neb__narrow_read(const neb_param *p, float *host);
neb_status neb__narrow_write(neb_param *p, const float *host);
/* BF16 values that need no coding, at any address. NEB_ERR_RANGE: one is not finite. */
bool neb__narrow_takes(const neb_param *p);
neb_status neb__narrow_put(neb_param *p, const void *bf16);
/* For a product; p is narrow. */
struct neb_narrow neb__narrow_of(const neb_param *p);

/* Adds the code of p, as it is on the device, to a hash. */
struct neb_hasher;
neb_status neb__narrow_hash(const neb_param *p, struct neb_hasher *h);

#endif
