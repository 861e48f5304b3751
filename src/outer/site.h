/* site.h: a site changes its own copy here: capture and merge. x is the live parameters, theta the outer
 * parameters that they are measured against. All arrays have n values. Unlike the outer state they need not
 * be bit-identical between sites. */
#ifndef NEB_OUTER_SITE_H
#define NEB_OUTER_SITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Computes the delta that is encoded. d: x on entry, x - theta on return. Returns whether any value is not
 * 0. */
bool neb__site_delta(float *restrict d, const float *restrict theta, size_t n);

/* Runs between capture and encode. clip scales z down to the norm `bound` (0: no bound) and returns the
 * norm before. The part that it cuts off stays in x and is sent later. */
double neb__site_clip(float *z, size_t n, double bound);
double neb__site_norm(const float *z, size_t n);

/* A record named the own update. d becomes the move of x: moved - decoded. decoded NULL: all of d counts as
 * sent. */
void neb__site_take(float *restrict d, const float *restrict moved, const float *restrict decoded, size_t n);

#endif
