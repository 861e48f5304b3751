/* ints.h: lists of unsigned integers, entropy-coded. */
#ifndef NEB_CODEC_INTS_H
#define NEB_CODEC_INTS_H

#include "base/buf.h"
#include "base/bytes.h"

/* Appends n integers. NEB_ERR_NOSPACE, NEB_ERR_NOMEM: out is as it was. */
neb_status neb__ints_encode(const uint32_t *v, size_t n, struct neb_buf *out);
/* Reads exactly n. NEB_ERR_CORRUPT, NEB_ERR_NOMEM. */
neb_status neb__ints_decode(struct neb_reader *r, size_t n, uint32_t *v);

#endif
