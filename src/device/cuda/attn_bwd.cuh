/* attn_bwd.cuh: code that the two backward kernels of attention share: the destination of dQ, small pieces of
 * registers and memory. */
#ifndef NEB_CUDA_ATTN_BWD_CUH
#define NEB_CUDA_ATTN_BWD_CUH

#include "wgmma.cuh"

#define QUERIES 64

enum neb_dq_mode { DQ_DIRECT, DQ_ATOMIC, DQ_SLICES };

static __device__ __forceinline__ void pack_left(uint32_t out[QUERIES / 16][4], const float s[QUERIES / 8][4])
{
#pragma unroll
    for (int kk = 0; kk < QUERIES / 16; kk++) {
        out[kk][0] = pack2(s[2 * kk][0], s[2 * kk][1]);
        out[kk][1] = pack2(s[2 * kk][2], s[2 * kk][3]);
        out[kk][2] = pack2(s[2 * kk + 1][0], s[2 * kk + 1][1]);
        out[kk][3] = pack2(s[2 * kk + 1][2], s[2 * kk + 1][3]);
    }
}

static __device__ __forceinline__ void add2(float *p, float x, float y)
{
#if __CUDA_ARCH__ >= 900
    atomicAdd((float2 *)p, make_float2(x, y));
#else
    atomicAdd(p, x);
    atomicAdd(p + 1, y);
#endif
}

static __device__ void clear_rows(bf16 *x, int64_t ld, int width, int64_t first, int64_t last, int64_t part,
                                  int64_t parts)
{
    for (int64_t r = first + part; r < last; r += parts)
        for (int c = threadIdx.x; c < width; c += blockDim.x) x[r * ld + c] = from_float<bf16>(0.f);
}

struct neb_bwd_extra {
    const float *delta; /* (heads, q_rows) */
    float *dq;          /* fp32 (slices, q_rows, heads * head_dim), or NULL with DQ_DIRECT */
};

/* lse and delta of a tile of queries, without waiting for them: 64 threads each. A query past the end has 0
 * in all its operands, so its probability of 1 has no effect. */
static __device__ __forceinline__ void fetch_rows(float *to, const struct neb_attn &p, const float *delta,
                                                  int head, int q0, int first, int queries)
{
    int r = first + threadIdx.x % QUERIES;
    bool valid = r < queries;
    const float *from = threadIdx.x < QUERIES ? p.lse : delta;
    if (threadIdx.x < 2 * QUERIES)
        copy4(to + threadIdx.x, from + head * p.q_rows + q0 + (valid ? r : 0), valid);
}

/* dq, one warp's 16 rows from `row` on and N columns from `column` on, to the destination that MODE
 * selects. */
template <int MODE, int N>
static __device__ __forceinline__ void put_dq(const float dq[N / 8][4], const struct neb_attn_bwd &b,
                                              float *sums, int q0, int row, int queries, int head, int column)
{
    const struct neb_attn &p = b.f;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + lane / 4 + 8 * h, c = head * (int)p.head_dim + column + lane % 4 * 2;
        if (r >= queries) continue;
        int64_t slice = MODE == DQ_SLICES ? blockIdx.x * p.q_rows : 0, width = p.heads * p.head_dim;
        float *sum = MODE == DQ_DIRECT ? NULL : sums + (slice + q0 + r) * width + c;
        bf16 *out = (bf16 *)b.dq + (int64_t)(q0 + r) * p.ldq + c;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            float x = dq[n][2 * h] * p.scale, y = dq[n][2 * h + 1] * p.scale;
            if (MODE == DQ_DIRECT)
                *(uint32_t *)(out + n * 8) = pack2(x, y);
            else if (MODE == DQ_ATOMIC)
                add2(sum + n * 8, x, y);
            else
                *(float2 *)(sum + n * 8) = make_float2(x, y);
        }
    }
}

/* One warp's 16 rows of dk and dv, from key `key` of the sequence (the lane's first row) on. */
template <int HD>
static __device__ __forceinline__ void put_dkv(const float dk[HD / 8][4], const float dv[HD / 8][4],
                                               const struct neb_attn_bwd &b, int k0, int key, int keys,
                                               int kv_head)
{
    const struct neb_attn &p = b.f;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = key + 8 * h;
        if (row >= keys) continue;
        int64_t c = kv_head * HD + lane % 4 * 2;
        bf16 *out_k = (bf16 *)b.dk + (int64_t)(k0 + row) * p.ldk + c;
        bf16 *out_v = (bf16 *)b.dv + (int64_t)(k0 + row) * p.ldv + c;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            *(uint32_t *)(out_k + n * 8) = pack2(dk[n][2 * h] * p.scale, dk[n][2 * h + 1] * p.scale);
            *(uint32_t *)(out_v + n * 8) = pack2(dv[n][2 * h], dv[n][2 * h + 1]);
        }
    }
}

/* The pipelined warpgroup kernel: Hopper, head size 64, blocks of 128 keys (attn_bwd_wg.cu). */
neb_status neb__attn_wg_bwd(struct neb_cuda *dev, const struct neb_attn_bwd *b, neb_bwd_extra extra,
                            int mode);

#endif
