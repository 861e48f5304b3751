/* simd.h: 16-lane vectors for kernels_body.h. They are GCC/Clang vector extensions, with the few operations
 * that those lack or compile badly. Without AVX the same source runs on whatever the target has. */
#ifndef NEB_CODEC_SIMD_H
#define NEB_CODEC_SIMD_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(16)));
typedef int8_t vsb __attribute__((vector_size(16)));

struct neb_vec_double { /* sums in double, one a lane */
    double lane[16];
};

#define VINLINE static inline __attribute__((always_inline))

VINLINE vf vload(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

VINLINE void vstore(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

VINLINE vf vset(float x)
{
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

VINLINE vu vsetu(uint32_t x)
{
    return (vu){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

VINLINE vu vabs(vf v)
{
    return (vu)v & vsetu(0x7FFFFFFFu);
}

/* The arguments are magnitudes as bits. They are below 2^31, so the difference cannot overflow. (GCC takes
 * comparisons of vectors wider than the machine's apart into scalars. It only splits arithmetic.) */
VINLINE vu vmaxu(vu a, vu b)
{
#if defined(__AVX512F__)
    return (vu)_mm512_max_epu32((__m512i)a, (__m512i)b);
#else
    vi d = (vi)a - (vi)b;
    return (vu)((vi)a - (d & d >> 31));
#endif
}

VINLINE vf vclamp(vf v, float lo, float hi)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps(_mm512_max_ps((__m512)v, _mm512_set1_ps(lo)), _mm512_set1_ps(hi));
#elif defined(__AVX__)
    __m256 half[2];
    memcpy(half, &v, sizeof v);
    for (int i = 0; i < 2; i++)
        half[i] = _mm256_min_ps(_mm256_max_ps(half[i], _mm256_set1_ps(lo)), _mm256_set1_ps(hi));
    memcpy(&v, half, sizeof v);
    return v;
#else
    float lane[16];
    memcpy(lane, &v, sizeof v);
    for (int i = 0; i < 16; i++) {
        lane[i] = lane[i] > lo ? lane[i] : lo;
        lane[i] = lane[i] < hi ? lane[i] : hi;
    }
    memcpy(&v, lane, sizeof v);
    return v;
#endif
}

VINLINE void vstream(float *p, vf v) /* p 64-byte aligned */
{
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX__)
    __m256 half[2];
    memcpy(half, &v, sizeof v);
    _mm256_stream_ps(p, half[0]);
    _mm256_stream_ps(p + 8, half[1]);
#elif defined(__x86_64__)
    __m128 part[4];
    memcpy(part, &v, sizeof v);
    for (int i = 0; i < 4; i++) _mm_stream_ps(p + 4 * i, part[i]);
#else
    vstore(p, v);
#endif
}

VINLINE void vstream_end(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

VINLINE void vput(float *p, vf v, _Bool stream)
{
    if (stream)
        vstream(p, v);
    else
        vstore(p, v);
}

/* One bit a lane: set where the magnitude is above x. */
VINLINE uint32_t vabove(vu v, uint32_t x)
{
#if defined(__AVX512F__)
    return _mm512_cmpgt_epu32_mask((__m512i)v, _mm512_set1_epi32((int)x));
#elif defined(__AVX2__)
    __m256i half[2], t = _mm256_set1_epi32((int)x);
    memcpy(half, &v, sizeof v);
    uint32_t lo = (uint32_t)_mm256_movemask_ps((__m256)_mm256_cmpgt_epi32(half[0], t));
    uint32_t hi = (uint32_t)_mm256_movemask_ps((__m256)_mm256_cmpgt_epi32(half[1], t));
    return lo | hi << 8;
#else
    uint32_t lanes[16], mask = 0;
    memcpy(lanes, &v, sizeof v);
    for (int i = 0; i < 16; i++) mask |= (uint32_t)(lanes[i] > x) << i;
    return mask;
#endif
}

/* The low byte of each lane. */
VINLINE void vstore8(uint8_t *p, vu v)
{
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
    __m256i half[2];
    memcpy(half, &v, sizeof v);
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4,
                                          8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int i = 0; i < 2; i++) {
        __m256i b = _mm256_shuffle_epi8(half[i], pick);
        uint32_t lo = (uint32_t)_mm256_extract_epi32(b, 0), hi = (uint32_t)_mm256_extract_epi32(b, 4);
        memcpy(p + 8 * i, &lo, 4);
        memcpy(p + 8 * i + 4, &hi, 4);
    }
#else
    vb b = __builtin_convertvector(v, vb);
    memcpy(p, &b, sizeof b);
#endif
}

/* The low half of each lane. */
VINLINE void vstore16(uint8_t *p, vu v)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16((__m512i)v));
#else
    uint32_t lane[16];
    uint16_t half[16];
    memcpy(lane, &v, sizeof v);
    for (int i = 0; i < 16; i++) half[i] = (uint16_t)lane[i];
    memcpy(p, half, sizeof half);
#endif
}

VINLINE vi vload8s(const uint8_t *p) /* 16 signed bytes */
{
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined(__AVX2__)
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m256i half[2] = {_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))};
    vi v;
    memcpy(&v, half, sizeof v);
    return v;
#else
    vsb b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, vi);
#endif
}

VINLINE vu vload8u(const uint8_t *p) /* 16 bytes */
{
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined(__AVX2__)
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m256i half[2] = {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
    vu v;
    memcpy(&v, half, sizeof v);
    return v;
#else
    vb b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, vu);
#endif
}

VINLINE vu vload16(const uint8_t *p) /* 16 halves */
{
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
#else
    uint16_t half[16];
    uint32_t lane[16];
    memcpy(half, p, sizeof half);
    for (int i = 0; i < 16; i++) lane[i] = half[i];
    vu v;
    memcpy(&v, lane, sizeof v);
    return v;
#endif
}

VINLINE vf vfloat(vi v)
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    __m256i half[2];
    memcpy(half, &v, sizeof v);
    __m256 f[2] = {_mm256_cvtepi32_ps(half[0]), _mm256_cvtepi32_ps(half[1])};
    vf r;
    memcpy(&r, f, sizeof r);
    return r;
#else
    return __builtin_convertvector(v, vf);
#endif
}

/* The folds join lane i with lane i + 8, then + 4, + 2, + 1. */
VINLINE uint32_t vfold_max(vu v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_epu32((__m512i)v);
#else
    uint32_t s[16];
    memcpy(s, &v, sizeof v);
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++) s[i] = s[i] > s[i + w] ? s[i] : s[i + w];
    return s[0];
#endif
}

VINLINE float vfold_sum(vf v)
{
    float s[16];
    memcpy(s, &v, sizeof v);
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++) s[i] += s[i + w];
    return s[0];
}

VINLINE void vadd_double(struct neb_vec_double *sum, vf v)
{
#if defined(__AVX512F__)
    __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
    __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
    _mm512_storeu_pd(sum->lane, _mm512_add_pd(_mm512_loadu_pd(sum->lane), lo));
    _mm512_storeu_pd(sum->lane + 8, _mm512_add_pd(_mm512_loadu_pd(sum->lane + 8), hi));
#else
    float lane[16];
    memcpy(lane, &v, sizeof v);
    for (int i = 0; i < 16; i++) sum->lane[i] += (double)lane[i];
#endif
}

VINLINE double vfold_sum_double(const struct neb_vec_double *v)
{
    double s[16];
    memcpy(s, v->lane, sizeof s);
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++) s[i] += s[i + w];
    return s[0];
}

#endif
