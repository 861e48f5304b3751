/* site.h: what a site does to its own copy: capture, merge, settle. x is the live model, theta the outer parameters
 * it is measured against, e the residual; all arrays have n values. Unlike the outer state these need not be bit-identical
 * between sites.
 *
 * The residual is kept as bfloat16, and what that leaves out goes back into x: nothing is lost, and the next capture takes
 * it up. So e costs half the memory and half the traffic. */
#ifndef NEB_OUTER_SITE_H
#define NEB_OUTER_SITE_H

#include "base/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is encoded is z = d + feedback * e with d = x - theta. feedback is 1; in the sparse class NEB_SPARSE_FEEDBACK, and
 * what decays is dropped once the parcel is in. d: x on entry, x - theta on return. Returns whether any d or e is not 0. */
#define NEB_SPARSE_FEEDBACK 0.95f
bool neb__site_delta(float *restrict d, const float *restrict theta, const uint16_t *restrict e, size_t n);

void neb__site_widen(const uint16_t *restrict e, size_t n, float *restrict out);
void neb__site_narrow(const float *restrict in, size_t n, uint16_t *restrict e); /* to the nearest */

/* The hook between capture and encode. clip scales z down to the norm `bound` (0: none) and returns the norm before; if the
 * residual is computed from the z before, what was cut off is sent later. noise adds a normal deviate of deviation
 * `sigma` to every value, drawn from *rng; for privacy the residual must then be 0: a later parcel would undo it. */
double neb__site_clip(float *z, size_t n, double bound);
void neb__site_noise(float *z, size_t n, double sigma, struct neb_rng *rng);
double neb__site_norm(const float *z, size_t n);

/* The own parcel was named: with r = (d + feedback * e) - decoded in the encoder's roundings, e <- bfloat16(r), and d
 * becomes what x is to be moved by, moved - d + (r - e). decoded NULL: all of it counts as sent. */
void neb__site_take(float *restrict d, uint16_t *restrict e, const float *restrict moved,
                    const float *restrict decoded, float feedback, size_t n);

/* After a time away: e <- gamma * e. Returns the norm of what was dropped. (x is shrunk towards theta by the same factor.) */
double neb__site_fade(uint16_t *e, float gamma, size_t n);

#endif
