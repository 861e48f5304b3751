/* clamp.h: a number kept within bounds. A NaN becomes `low`. */
#ifndef NEB_BASE_CLAMP_H
#define NEB_BASE_CLAMP_H

#include <stddef.h>
#include <stdint.h>

static inline double neb__clamp(double x, double low, double high)
{
    if (x > high) return high;
    return x >= low ? x : low;
}

static inline int64_t neb__clamp_int(int64_t x, int64_t low, int64_t high)
{
    if (x > high) return high;
    return x < low ? low : x;
}

static inline size_t neb__clamp_size(size_t x, size_t low, size_t high)
{
    if (x > high) return high;
    return x < low ? low : x;
}

#endif
