/* norms.h: how long the updates of each site were lately, and how much one that is too long is made shorter.
 *
 * The lengths are part of the outer state: every cell has them beside theta and momentum, under its hash, so a site that
 * fetches a cell can go on with them. */
#ifndef NEB_OUTER_NORMS_H
#define NEB_OUTER_NORMS_H

#include "base/rung_class.h"

#include <stddef.h>
#include <stdint.h>

enum { NEB_NORM_SITES = 64, NEB_NORM_BACK = 4, NEB_NORM_CLASSES = 2 };

/* The newest first; 0: none. */
struct neb_norms {
    float last[NEB_NORM_CLASSES][NEB_NORM_SITES][NEB_NORM_BACK];
};

struct neb_norm_rule {
    float clip, bound; /* round/influence.h */
};

/* The updates of one record. */
struct neb_norm_step {
    uint32_t n;
    const uint16_t *site; /* (n) */
    const uint8_t *cls;   /* (n) neb_rung_class */
    const double *norm;   /* (n) of the decoded update, over all its cells */
};

/* The factor of each update, 1 or less, by the lengths before this record and by those in it. */
void neb__norms_scales(const struct neb_norms *before, const struct neb_norm_rule *rule,
                       const struct neb_norm_step *step, float *scale); // (n)
/* Adds the lengths as they were applied. */
void neb__norms_add(struct neb_norms *norms, const struct neb_norm_step *step, const float *scale);

/* Sum of squares in the order of the values; equal on every machine. */
double neb__norms_square(const float *z, size_t n);
/* The same of two vectors at a time, in little more than the time of one. */
void neb__norms_squares(const float *a, size_t na, const float *b, size_t nb, double sum[2]);
void neb__norms_shorten(float *z, size_t n, float scale);

#endif
