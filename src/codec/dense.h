/* dense.h: one cell of a dense code. sparse.h is its counterpart; codec.c calls both. */
#ifndef NEB_CODEC_DENSE_H
#define NEB_CODEC_DENSE_H

#include "codec/kernels.h"

/* Bytes of a dense cell of n values. Rung and n fix them. */
size_t neb__dense_size(const struct neb_rung *rung, size_t n);

/* p names the cell's values. False: a value is not allowed. */
bool neb__dense_encode(const struct neb_rung *rung, struct neb__pass *p, const float *scales, int limit,
                       uint8_t *out);
/* `bytes` has neb__dense_size() bytes. False: damaged. */
bool neb__dense_decode(const struct neb_rung *rung, const uint8_t *bytes, const float *scales, size_t n,
                       bool stream, float *out);

#endif
