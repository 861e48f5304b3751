/* stat.h: one cell of a statistical code. sparse.h is its counterpart for the few largest values. */
#ifndef NEB_CODEC_STAT_H
#define NEB_CODEC_STAT_H

#include "codec/kernels.h"

/* The most bytes a cell of n values can take. */
size_t neb__stat_bound(size_t n);

/* Working memory of an encoder. Create (NULL: out of memory), free. */
struct neb__stat;
struct neb__stat *neb__stat_create(void);
void neb__stat_free(struct neb__stat *s);

/* *len: bytes written to out (at most the bound). False: a value is not allowed. */
bool neb__stat_encode(struct neb__stat *s, const struct neb_rung *rung, struct neb__pass *p, uint8_t *out,
                      size_t *len);
/* False: damaged. */
bool neb__stat_decode(const uint8_t *bytes, size_t len, size_t n, float *out);

#endif
