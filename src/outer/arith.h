/* arith.h: the fixed arithmetic of the outer state. The same inputs give the same bits on every machine. */
#ifndef NEB_OUTER_ARITH_H
#define NEB_OUTER_ARITH_H

#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Enter sets the floating-point environment that the contract asks for: round to nearest, no flush to zero.
 * Every computation of the outer state stands between enter and leave. `saved` keeps the caller's
 * environment. */
void neb__arith_enter(uint32_t *saved);
void neb__arith_leave(uint32_t saved);

/* The share of one weight in the sum of all: (float)((double)weight / (double)sum). */
float neb__arith_share(uint32_t weight, uint64_t sum);

/* g = w * z (first) or g + w * z. Each product and each sum is rounded. */
void neb__arith_add(float *restrict g, const float *restrict z, float w, size_t n, bool first);

/* m' = mu * m + g;  theta' = theta + eta * (g + mu * m'): six roundings an element. The results go to the
 * `next` arrays. False: some result is not finite. */
bool neb__arith_nesterov(const float *restrict theta, const float *restrict m, const float *restrict g,
                         float eta, float mu, size_t n, float *restrict next_theta, float *restrict next_m);
/* m' = 0;  theta' = theta + g. */
bool neb__arith_average(const float *restrict theta, const float *restrict g, size_t n,
                        float *restrict next_theta, float *restrict next_m);

/* Runs the functions above on a golden vector (denormals, -0, ties, near overflow). Compares the hash of the
 * result with the one that every site must get. NEB_ERR_UNSUPPORTED: this build or machine must not join a
 * run. */
neb_status neb__arith_self_test(void);
neb_status neb__arith_golden(struct neb_hash *out); /* the hash that this machine gets */

#endif
