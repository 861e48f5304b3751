/* kernel.cuh: code that the kernels share: groups of eight values, sums over warps and blocks, Philox,
 * activations.
 *
 * Nearly every kernel works on groups of eight neighbouring values: 16 bytes of bf16, two times 16 of fp32,
 * and one Philox call's worth of dropout bits. Arithmetic is fp32 everywhere; bf16 is only how values are
 * stored. */
#ifndef NEB_CUDA_KERNEL_CUH
#define NEB_CUDA_KERNEL_CUH

#include "cuda.h"

#include <math_constants.h>

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}
static __device__ __forceinline__ float to_float(bf16 x)
{
    return __bfloat162float(x);
}
template <class T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
/* The value as it will be read back. */
template <class T> static __device__ __forceinline__ float rounded(float x)
{
    return to_float(from_float<T>(x));
}

static __device__ __forceinline__ void load8(const float *p, float v[8])
{
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
static __device__ __forceinline__ void load8(const bf16 *p, float v[8])
{
    uint4 u = *(const uint4 *)p;
    const __nv_bfloat162 *h = (const __nv_bfloat162 *)&u;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = __bfloat1622float2(h[i]);
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}
static __device__ __forceinline__ void store8(float *p, const float v[8])
{
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}
static __device__ __forceinline__ void store8(bf16 *p, const float v[8])
{
    uint4 u;
    __nv_bfloat162 *h = (__nv_bfloat162 *)&u;
#pragma unroll
    for (int i = 0; i < 4; i++) h[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    *(uint4 *)p = u;
}

/* Eight values, or the `count` < 8 that are left; `wide` says that 16-byte accesses are aligned. */
template <class T> static __device__ __forceinline__ void get8(const T *p, float v[8], int count, int wide)
{
    if (wide && count >= 8) return load8(p, v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i < count ? to_float(p[i]) : 0.f;
}
template <class T> static __device__ __forceinline__ void put8(T *p, const float v[8], int count, int wide)
{
    if (wide && count >= 8) return store8(p, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) p[i] = from_float<T>(v[i]);
}

/* 2^x, results below 2^-126 becoming 0: exp2f() spends four more instructions on those. */
static __device__ __forceinline__ float pow2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
    return x;
}
static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int i = 16; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}
/* Reduces over the block; every thread gets the result. blockDim.x is a multiple of 32. `shared` holds 33
 * floats and may be reused at once. */
template <bool MAX> static __device__ float block_reduce(float x, float *shared)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = MAX ? warp_max(x) : warp_sum(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float y = lane < warps ? shared[lane] : (MAX ? -CUDART_INF_F : 0.f);
        y = MAX ? warp_max(y) : warp_sum(y);
        if (lane == 0) shared[32] = y;
    }
    __syncthreads();
    float y = shared[32];
    __syncthreads();
    return y;
}

/* ---- values that compete ---- */

/* A value and its column as one number: the value's bits, turned so that they order as unsigned numbers,
 * above the complement of the column. The larger key has the larger value or, among equal values, the lower
 * column. No two keys are equal. */
typedef unsigned long long uint64_key;

static __device__ __forceinline__ uint32_t ordered(float x)
{
    uint32_t u = __float_as_uint(x + 0.f); /* -0 becomes 0: they are equal */
    return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}
static __device__ __forceinline__ uint64_key key_of(uint32_t value, uint32_t column)
{
    return (uint64_key)value << 32 | (uint32_t)~column;
}
static __device__ __forceinline__ float value_of(uint64_key key)
{
    uint32_t o = (uint32_t)(key >> 32);
    return __uint_as_float(o ^ (o >> 31 ? 0x80000000u : 0xffffffffu));
}
static __device__ __forceinline__ uint32_t column_of(uint64_key key)
{
    return ~(uint32_t)key;
}

/* ---- dropout: see nebula/device.h ---- */

static __device__ __forceinline__ uint4 philox(uint4 c, uint2 k)
{
#pragma unroll
    for (int i = 0; i < 10; i++) {
        uint32_t h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x;
        uint32_t h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
        c = make_uint4(h1 ^ c.y ^ k.x, l1, h0 ^ c.w ^ k.y, l0);
        k.x += 0x9E3779B9u, k.y += 0xBB67AE85u;
    }
    return c;
}

/* The fields of struct neb_dropout that a kernel needs, read once per thread. */
struct neb_dropper {
    uint32_t threshold, op, seed, step;
    float scale;
    uint32_t first; /* attention: number of the first head here */
};
static __device__ __forceinline__ neb_dropper make_dropper(const struct neb_dropout &d)
{
    neb_dropper out = {d.threshold, d.op, 0, 0, 1.f, d.first};
    if (d.threshold) {
        out.seed = d.ctl->seed;
        out.step = d.ctl->step;
        out.scale = 65536.f / (float)(65536 - (int)d.threshold);
    }
    return out;
}
/* v[j] becomes 0 or v[j] * scale for the eight columns of group `c0`. */
static __device__ __forceinline__ void drop8(const neb_dropper &d, uint32_t c0, uint32_t c1, uint32_t sample,
                                             float v[8])
{
    uint4 r = philox(make_uint4(c0, c1, sample, d.step), make_uint2(d.seed, d.op));
    const uint32_t w[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = ((w[j / 2] >> 16 * (j % 2)) & 0xffff) >= d.threshold ? v[j] * d.scale : 0.f;
}

/* ---- activations ---- */

/* For bf16 results the hardware's tanh (2^-11) and a rational erf (1.5e-7; Abramowitz and Stegun, 7.1.26)
 * will do; they share exp(-x^2 / 2) with the density. fp32 takes the library's functions. */
struct neb_gauss {
    float cdf, pdf;
};
template <class T> static __device__ __forceinline__ neb_gauss gauss(float x)
{
    if (sizeof(T) == 4)
        return {0.5f * (1.f + erff(x * 0.70710678118654752f)), 0.39894228040143268f * expf(-0.5f * x * x)};
    float e = __expf(-0.5f * x * x), t = __fdividef(1.f, fmaf(0.23164190f, fabsf(x), 1.f));
    float tail = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t,
                      0.254829592f) *
                 t * e * 0.5f;
    return {x < 0.f ? tail : 1.f - tail, 0.39894228040143268f * e};
}
template <class T> static __device__ __forceinline__ float tanh_of(float x)
{
    if (sizeof(T) == 4) return tanhf(x);
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
template <class T> static __device__ __forceinline__ float sigmoid(float x)
{
    return sizeof(T) == 4 ? 1.f / (1.f + expf(-x)) : __fdividef(1.f, 1.f + __expf(-x));
}
template <int ACT, class T> static __device__ __forceinline__ float act_value(float x)
{
    if (ACT == NEB_ACT_GELU) return x * gauss<T>(x).cdf;
    if (ACT == NEB_ACT_GELU_TANH)
        return 0.5f * x * (1.f + tanh_of<T>(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    if (ACT == NEB_ACT_SILU) return x * sigmoid<T>(x);
    if (ACT == NEB_ACT_RELU) return fmaxf(x, 0.f);
    if (ACT == NEB_ACT_TANH) return tanh_of<T>(x);
    return x;
}
template <int ACT, class T> static __device__ __forceinline__ float act_slope(float x)
{
    if (ACT == NEB_ACT_GELU) {
        neb_gauss n = gauss<T>(x);
        return n.cdf + x * n.pdf;
    }
    if (ACT == NEB_ACT_GELU_TANH) {
        float t = tanh_of<T>(0.79788456080286536f * (x + 0.044715f * x * x * x));
        return 0.5f * (1.f + t) + 0.5f * x * (1.f - t * t) * 0.79788456080286536f * (1.f + 0.134145f * x * x);
    }
    if (ACT == NEB_ACT_SILU) {
        float s = sigmoid<T>(x);
        return s * (1.f + x * (1.f - s));
    }
    if (ACT == NEB_ACT_RELU) return x > 0.f ? 1.f : 0.f;
    if (ACT == NEB_ACT_TANH) {
        float t = tanh_of<T>(x);
        return 1.f - t * t;
    }
    return 1.f;
}
/* Runs the statement with ACT bound to the activation as a constant. */
#define NEB_BY_ACT(dev, act, ...)                                                                        \
    do {                                                                                                 \
        switch (act) {                                                                                   \
        case NEB_ACT_NONE: {                                                                             \
            constexpr int ACT = NEB_ACT_NONE;                                                            \
            __VA_ARGS__;                                                                                 \
            break;                                                                                       \
        }                                                                                                \
        case NEB_ACT_GELU: {                                                                             \
            constexpr int ACT = NEB_ACT_GELU;                                                            \
            __VA_ARGS__;                                                                                 \
            break;                                                                                       \
        }                                                                                                \
        case NEB_ACT_GELU_TANH: {                                                                        \
            constexpr int ACT = NEB_ACT_GELU_TANH;                                                       \
            __VA_ARGS__;                                                                                 \
            break;                                                                                       \
        }                                                                                                \
        case NEB_ACT_SILU: {                                                                             \
            constexpr int ACT = NEB_ACT_SILU;                                                            \
            __VA_ARGS__;                                                                                 \
            break;                                                                                       \
        }                                                                                                \
        case NEB_ACT_RELU: {                                                                             \
            constexpr int ACT = NEB_ACT_RELU;                                                            \
            __VA_ARGS__;                                                                                 \
            break;                                                                                       \
        }                                                                                                \
        case NEB_ACT_TANH: {                                                                             \
            constexpr int ACT = NEB_ACT_TANH;                                                            \
            __VA_ARGS__;                                                                                 \
            break;                                                                                       \
        }                                                                                                \
        default: return neb__cuda_fail(dev, NEB_ERR_INVALID, "cuda: unknown activation %d", (int)(act)); \
        }                                                                                                \
    } while (0)

/* ---- launching over groups of eight ---- */

/* f(first, count) for every group of eight of n values. */
template <class F> static __global__ void each8_kernel(int64_t n, F f)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i < n) f(i, (int)min((int64_t)8, n - i));
}
template <class F> static neb_status each8(struct neb_cuda *dev, int64_t n, const char *what, F f)
{
    if (n <= 0) return NEB_OK;
    each8_kernel<<<(unsigned)neb__ceil_div(n, 8 * 256), 256, 0, dev->stream>>>(n, f);
    CUDA_LAUNCHED(dev, what);
    return NEB_OK;
}
/* f(row, column, count) for every group of eight columns of (rows, cols). */
template <class F> static __global__ void rows8_kernel(int64_t rows, int64_t cols, uint32_t groups, F f)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t r = i / groups;
    if (r >= rows) return;
    int64_t c = (i - r * groups) * 8;
    f(r, c, (int)min((int64_t)8, cols - c));
}
template <class F>
static neb_status rows8(struct neb_cuda *dev, int64_t rows, int64_t cols, const char *what, F f)
{
    if (rows <= 0 || cols <= 0) return NEB_OK;
    int64_t groups = neb__ceil_div(cols, 8);
    rows8_kernel<<<(unsigned)neb__ceil_div(rows * groups, 256), 256, 0, dev->stream>>>(rows, cols,
                                                                                       (uint32_t)groups, f);
    CUDA_LAUNCHED(dev, what);
    return NEB_OK;
}

static inline int aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}
/* 16-byte accesses work on every row of a matrix with this first element and leading dimension. */
template <class T> static inline int wide_rows(const T *p, int64_t ld)
{
    return aligned16(p) && ld * (int64_t)sizeof(T) % 16 == 0;
}

#endif
