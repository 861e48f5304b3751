/* site.h: what a site does to its own copy: capture, merge, settle. x is the live model, theta the outer parameters
 * it is measured against, e the residual; all arrays have n values. A GPU has kernels of the same meaning; unlike the
 * outer state these need not be bit-identical between sites. */
#ifndef NEB_OUTER_SITE_H
#define NEB_OUTER_SITE_H

#include <stddef.h>

/* d = x - theta;  z = d + e: what is to be encoded. */
void neb__site_capture(const float *x, const float *theta, const float *e, size_t n, float *d, float *z);

/* r = z - decoded: the residual that holds once the parcel is in. */
void neb__site_residual(const float *z, const float *decoded, size_t n, float *r);

/* The own parcel was named: x <- theta' + ((x - theta) - d);  e <- r. */
void neb__site_merge_named(float *x, float *e, const float *theta, const float *next_theta, const float *d,
                           const float *r, size_t n);
/* It was not: x <- theta' + (x - theta). */
void neb__site_merge_other(float *x, const float *theta, const float *next_theta, size_t n);

/* After a time away: u, e <- gamma * u, gamma * e;  x <- theta + u. Returns the norm of what was dropped. */
double neb__site_settle(float *x, float *e, const float *theta, double gamma, size_t n);

#endif
