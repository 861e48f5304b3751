/* dot.h: the product of two vectors on the host. */
#ifndef NEB_TASK_DOT_H
#define NEB_TASK_DOT_H

#include <stdint.h>

/* Sixteen sums, so that the compiler may use vectors. */
static inline float neb__dot(const float *a, const float *b, int64_t n)
{
    enum { LANES = 16 };
    float part[LANES] = {0}, sum = 0;
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int i = 0; i < LANES; i++) part[i] += a[k + i] * b[k + i];
    for (; k < n; k++) sum += a[k] * b[k];
    for (int i = 0; i < LANES; i++) sum += part[i];
    return sum;
}

#endif
