/* bf16.h: bfloat16 on the host: the upper half of a float, rounded to nearest even. */
#ifndef NEB_BASE_BF16_H
#define NEB_BASE_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t neb__bf16(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    if ((b & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(b >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((b + 0x7FFFu + (b >> 16 & 1)) >> 16);
}

static inline float neb__bf16_value(uint16_t h)
{
    uint32_t b = (uint32_t)h << 16;
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

#endif
