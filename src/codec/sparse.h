/* sparse.h: one cell of a sparse code. */
#ifndef NEB_CODEC_SPARSE_H
#define NEB_CODEC_SPARSE_H

#include "codec/kernels.h"

#define NEB__CHUNK 4096

/* The most bytes a cell of n values can take. */
size_t neb__sparse_bound(const struct neb_rung *rung, size_t n);

/* Working memory of one encoder or decoder. Create (NULL: out of memory), free. */
struct neb__sparse;
struct neb__sparse *neb__sparse_create(void);
void neb__sparse_free(struct neb__sparse *s);

/* *len: bytes written to out (at most the bound). False: a value is not allowed. */
bool neb__sparse_encode(struct neb__sparse *s, const struct neb_rung *rung, struct neb__pass *p, uint8_t *out,
                        size_t *len);
/* False: damaged. */
bool neb__sparse_decode(const struct neb_rung *rung, const uint8_t *bytes, size_t len, size_t n, float *out);

#endif
