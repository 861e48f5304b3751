/* site.h: what a site does to its own copy: capture and merge. x is the live model, theta the outer parameters it is
 * measured against; all arrays have n values. Unlike the outer state these need not be bit-identical between sites. */
#ifndef NEB_OUTER_SITE_H
#define NEB_OUTER_SITE_H

#include "base/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is encoded is d = x - theta. d: x on entry, x - theta on return. Returns whether any of it is not 0. */
bool neb__site_delta(float *restrict d, const float *restrict theta, size_t n);

/* The hook between capture and encode. clip scales z down to the norm `bound` (0: none) and returns the norm before; what
 * was cut off stays in x and is sent later. noise adds a normal deviate of deviation `sigma` to every value, drawn from
 * *rng; for privacy nothing may then stay: a later update would undo it. */
double neb__site_clip(float *z, size_t n, double bound);
void neb__site_noise(float *z, size_t n, double sigma, struct neb_rng *rng);
double neb__site_norm(const float *z, size_t n);

/* The own update was named: d becomes what x is to be moved by, moved - decoded. decoded NULL: all of d counts as sent. */
void neb__site_take(float *restrict d, const float *restrict moved, const float *restrict decoded, size_t n);

#endif
