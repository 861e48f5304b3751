/* fallback.h (internal): the fused slots composed from primitives: the reference they are tested against, and
 * the fallback for a device that lacks one. Each takes the slot's arguments and gets scratch memory from the
 * arena. */
#ifndef NEB_TENSOR_FALLBACK_H
#define NEB_TENSOR_FALLBACK_H

#include "tensor/tape.h"

neb_status neb__reference_linear(neb_tape *t, const struct neb_linear *a);
neb_status neb__reference_linear_bwd(neb_tape *t, const struct neb_linear_bwd *a);
neb_status neb__reference_norm_residual(neb_tape *t, const struct neb_norm *a);
neb_status neb__reference_norm_residual_bwd(neb_tape *t, const struct neb_norm_bwd *a);
neb_status neb__reference_attn(neb_tape *t, const struct neb_attn *a);
neb_status neb__reference_attn_bwd(neb_tape *t, const struct neb_attn_bwd *a);
neb_status neb__reference_linear_xent(neb_tape *t, const struct neb_linear_xent *a);

bool neb__tape_want_param(neb_tape *t, const char *op, const char *what, const neb_param *p, int64_t rows,
                          int64_t cols);

#endif
