/* scales.c: the scales of the integer codes of a secure sum.
 *
 * A scale that followed from the update in hand would tell of it, and the codes of all sites must have the same. So the scales are a
 * function of the outer state before the sum: of what past sums left in the momentum. A block's codes reach up to 4 (1 - mu) times its
 * greatest momentum: four times the usual step if all steps went one way, about one if they did not. A block that has hardly moved
 * reaches a 32nd of the cell's greatest momentum, so that it can begin to. A cell without momentum (the first sum; after a mean) goes by
 * its parameters: half of the block's greatest, at least an eighth of the cell's. A value beyond the reach goes out in several rounds,
 * since what a code leaves out stays in the live parameters.
 *
 * The reach also bounds a sum in which somebody lies: no coordinate moves by more than about twice of it.
 *
 * Only maxima and single products: the same bits on every machine. */
#include "outer/scales.h"
#include "outer/arith.h"

#include <string.h>

static const float levels = 127, without_anything = 0x1p-6f;

/* Bits of finite numbers without their sign are ordered as the magnitudes are. */
static float greatest(const float *x, size_t n)
{
    int32_t most = 0;
    float out;
    for (size_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    memcpy(&out, &most, sizeof out);
    return out;
}

/* The greatest magnitude of each block; returns that of all. */
static float block_maxima(const float *x, size_t n, float *out)
{
    float most = 0;
    for (size_t b = 0; b * NEB_SCALE_BLOCK < n; b++) {
        size_t first = b * NEB_SCALE_BLOCK, k = n - first < NEB_SCALE_BLOCK ? n - first : NEB_SCALE_BLOCK;
        out[b] = greatest(x + first, k);
        most = out[b] > most ? out[b] : most;
    }
    return most;
}

static float at_least(float x, float least)
{
    return x > least ? x : least;
}

void neb__outer_scales(const struct neb_outer *o, uint32_t cell, float mu, float *scale)
{
    size_t at, n = neb__outer_cell(o, cell, &at), blocks = (n + NEB_SCALE_BLOCK - 1) / NEB_SCALE_BLOCK;
    const float *theta = o->theta + at, *m = o->m + at;
    uint32_t saved;
    neb__arith_enter(&saved);
    float most = block_maxima(m, n, scale);
    bool moved = most > 0;
    if (!moved) most = block_maxima(theta, n, scale);
    const float factor = moved ? 4 * (1 - mu) : 0.5f;
    float reach = most * factor * (moved ? 0x1p-5f : 0x1p-2f);
    if (!(reach >= 0x1p-40f)) reach = moved ? 0x1p-40f : without_anything;
    for (size_t b = 0; b < blocks; b++) {
        scale[b] = at_least(scale[b] * factor, reach) / levels;
        if (!(scale[b] <= 0x1p60f)) scale[b] = 0x1p60f;
    }
    neb__arith_leave(saved);
}
