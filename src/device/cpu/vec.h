/* vec.h: one vector type for all instruction sets. The kernels are written once with the compiler's vector
 * extension and compiled three times; a register of the instruction set holds LANES floats.
 *
 * Loads and stores take a type and a width. The type is a constant at every call after inlining, so BF16
 * costs nothing in code that does not use it. The width saves a loop its separate tail. */
#ifndef NEB_CPU_VEC_H
#define NEB_CPU_VEC_H

#include <nebula/device.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif
#define INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef float vf_mem __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t vu_mem __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t vh_mem __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE vf set1(float x)
{
    return x - (vf){0};
}
INLINE vu set1u(uint32_t x)
{
    return x - (vu){0};
}
INLINE vf ld(const float *p)
{
    return *(const vf_mem *)p;
}
INLINE void st(float *p, vf v)
{
    *(vf_mem *)p = v;
}
INLINE vf pick(vi mask, vf a, vf b) /* a where the mask is set */
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}
/* Both return b when either is NaN, so put the constant first to let NaN pass through. */
INLINE vf vmax(vf a, vf b)
{
#if LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return pick(a > b, a, b);
#endif
}
INLINE vf vmin(vf a, vf b)
{
#if LANES == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return pick(a < b, a, b);
#endif
}
INLINE vf vsqrt(vf a)
{
#if LANES == 16
    return (vf)_mm512_sqrt_ps((__m512)a);
#elif LANES == 8
    return (vf)_mm256_sqrt_ps((__m256)a);
#else
    for (int i = 0; i < LANES; i++) a[i] = __builtin_sqrtf(a[i]);
    return a;
#endif
}

INLINE vf ld_part(const float *p, int n)
{
#if LANES == 16
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    float t[LANES] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return ld(t);
#endif
}
INLINE void st_part(float *p, vf v, int n)
{
#if LANES == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    for (int i = 0; i < n; i++) p[i] = v[i];
#endif
}

/* bf16 is the upper half of a float; rounding is to nearest even, NaN stays NaN. */
INLINE vf from_bf16(vh h)
{
    return (vf)(__builtin_convertvector(h, vu) << 16);
}
INLINE vh to_bf16(vf v)
{
    vu u = (vu)v;
    vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    vu nan = (vu)(v != v);
    return __builtin_convertvector((rounded & ~nan) | (0x7fc0 & nan), vh);
}
INLINE float scalar_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
INLINE uint16_t scalar_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return f != f ? 0x7fc0 : (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* Elements i … i + n - 1 of p, n <= LANES; the other lanes are 0. */
INLINE vf load(const void *p, int64_t i, int n, neb_dtype type)
{
    if (type == NEB_F32) {
        const float *f = (const float *)p + i;
        return __builtin_expect(n == LANES, 1) ? ld(f) : ld_part(f, n);
    }
    const uint16_t *h = (const uint16_t *)p + i;
    if (__builtin_expect(n == LANES, 1)) return from_bf16(*(const vh_mem *)h);
    uint16_t t[LANES] = {0};
    for (int j = 0; j < n; j++) t[j] = h[j];
    return from_bf16(*(const vh_mem *)t);
}
INLINE void store(void *p, int64_t i, vf v, int n, neb_dtype type)
{
    if (type == NEB_F32) {
        float *f = (float *)p + i;
        if (__builtin_expect(n == LANES, 1))
            st(f, v);
        else
            st_part(f, v, n);
        return;
    }
    uint16_t *h = (uint16_t *)p + i;
    vh b = to_bf16(v);
    if (__builtin_expect(n == LANES, 1)) {
        *(vh_mem *)h = b;
        return;
    }
    for (int j = 0; j < n; j++) h[j] = b[j];
}
INLINE float load1(const void *p, int64_t i, neb_dtype type)
{
    return type == NEB_F32 ? ((const float *)p)[i] : scalar_from_bf16(((const uint16_t *)p)[i]);
}
INLINE void store1(void *p, int64_t i, float v, neb_dtype type)
{
    if (type == NEB_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = scalar_to_bf16(v);
}
/* Address of element i. */
INLINE void *at(const void *p, int64_t i, neb_dtype type)
{
    return (char *)(uintptr_t)p + i * (type == NEB_F32 ? 4 : 2);
}

INLINE int width(int64_t left)
{
    return left < LANES ? (int)left : LANES;
}

/* The sum of the lanes, always in the same order. */
INLINE float hsum(vf v)
{
    float t[LANES];
    st(t, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}
INLINE float hmax(vf v)
{
    float t[LANES];
    st(t, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
    return t[0];
}

#endif
