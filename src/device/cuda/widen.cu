/* widen.cu: weights in few bits become activations' values, for the product that follows (device_narrow.h).
 *
 * A thread makes eight values of a row. Eight columns that begin at a multiple of eight lie in one half of an NF4
 * block, so they have one scale and eight bytes in a row. Codes are read once and values written once, with wide
 * accesses where rows allow them. */
#include "kernel.cuh"

static __constant__ float nf4_levels[16] = NEB_NF4_LEVELS;

static __device__ void codes8(const unsigned char *from, int n, int wide, unsigned char *out)
{
    if (wide && n == 8) {
        *(uint2 *)out = *(const uint2 *)from;
        return;
    }
    for (int j = 0; j < 8; j++) out[j] = j < n ? from[j] : 0;
}

template <class T>
static __global__ void widen_kernel(struct neb_widen a, int64_t pieces, int wide_in, int wide_out)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.rows * pieces) return;
    const int64_t r = i / pieces, c = i % pieces * 8;
    const int n = (int)min((int64_t)8, a.cols - c);
    float v[8] = {0};
    __align__(8) unsigned char code[8];
    if (a.w.kind == NEB_NARROW_INT8) {
        const float scale = ((const float *)a.w.scale)[r];
        codes8((const unsigned char *)a.w.code + r * a.cols + c, n, wide_in, code);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = (float)(signed char)code[j] * scale;
    } else if (a.w.kind == NEB_NARROW_NF4) {
        const int64_t blocks = (a.cols + NEB_NF4_BLOCK - 1) / NEB_NF4_BLOCK,
                      at = r * blocks + c / NEB_NF4_BLOCK;
        const int in = (int)(c % NEB_NF4_BLOCK), shift = in < NEB_NF4_BLOCK / 2 ? 0 : 4;
        const float scale = to_float(((const bf16 *)a.w.scale)[at]);
        codes8((const unsigned char *)a.w.code + at * (NEB_NF4_BLOCK / 2) + in % (NEB_NF4_BLOCK / 2), 8, 1,
               code);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = nf4_levels[code[j] >> shift & 15] * scale;
    } else {
        get8((const bf16 *)a.w.code + r * a.cols + c, v, n, wide_in);
    }
    put8((T *)a.out + r * a.cols + c, v, n, wide_out);
}

neb_status neb__cuda_widen(void *ctx, const struct neb_widen *a)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (a->w.kind < NEB_NARROW_BF16 || a->w.kind > NEB_NARROW_NF4)
        return neb__cuda_fail(dev, NEB_ERR_DTYPE, "cuda widen: unknown kind %d of a narrow weight",
                              (int)a->w.kind);
    if (a->rows <= 0 || a->cols <= 0) return NEB_OK;
    const int64_t pieces = neb__ceil_div(a->cols, 8);
    const unsigned blocks = (unsigned)neb__ceil_div(a->rows * pieces, 256);
    const int wide_in = a->cols % 8 == 0;
    NEB_BY_TYPE(dev, a->type, "widen",
                (widen_kernel<T><<<blocks, 256, 0, dev->stream>>>(*a, pieces, wide_in,
                                                                  wide_rows((const T *)a->out, a->cols))));
    CUDA_LAUNCHED(dev, "widen");
    return NEB_OK;
}
