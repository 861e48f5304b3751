/* scales.h: the scales of the integer codes of a secure sum. */
#ifndef NEB_OUTER_SCALES_H
#define NEB_OUTER_SCALES_H

#include "outer/outer.h"

enum { NEB_SCALE_BLOCK = 256, NEB_SCALES = (1 << 18) / NEB_SCALE_BLOCK };

/* The scales of the cell's blocks for its next sum, from the state that all sites have. mu: of the run. scale: (ceil(values / 256)). */
void neb__outer_scales(const struct neb_outer *o, uint32_t cell, float mu, float *scale);

#endif
