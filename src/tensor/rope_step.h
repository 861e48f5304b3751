/* rope_step.h: the angle by which rotary positions turn a pair of values from one position to the next. */
#ifndef NEB_TENSOR_ROPE_STEP_H
#define NEB_TENSOR_ROPE_STEP_H

#include <nebula/device_compute.h>

#include <math.h>

/* The frequency f, where long wavelengths are stretched. */
static inline double neb__rope_stretched(double f, const struct neb_rope_scale *s)
{
    const double pi = 3.14159265358979323846, turns = (double)s->original * f / (2 * pi);
    if (!(s->factor > 0) || (s->original > 0 && turns > (double)s->high)) return f;
    if (!(s->original > 0) || turns < (double)s->low) return f / (double)s->factor;
    const double mix = (turns - (double)s->low) / ((double)s->high - (double)s->low);
    return mix * f + (1 - mix) * f / (double)s->factor;
}

/* Pair j of `half` pairs: values j and j + half of a head. */
static inline double neb__rope_step(int64_t j, int64_t half, double base, const struct neb_rope_scale *s)
{
    return neb__rope_stretched(pow(base, -(double)j / (double)half), s);
}

#endif
