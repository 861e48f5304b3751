/* lossless.h: the last stage for the body of a code (zstd, level 1). */
#ifndef NEB_CODEC_LOSSLESS_H
#define NEB_CODEC_LOSSLESS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Writes at most `cap` bytes. *len 0: the result does not fit. NEB_ERR_NOMEM. */
neb_status neb__lossless_pack(const uint8_t *in, size_t n, size_t cap, uint8_t *out, size_t *len);
/* Writes exactly `n` bytes. NEB_ERR_CORRUPT: another number would come out. NEB_ERR_NOMEM. */
neb_status neb__lossless_unpack(const uint8_t *in, size_t len, size_t n, uint8_t *out);

#endif
