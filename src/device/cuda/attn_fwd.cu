/* attn_fwd.cu: attention forward on tensor cores, after FlashAttention-2 (Dao, 2023).
 *
 * A block takes WARPS * 16 queries of one head of one sequence, each warp 16 of them; keys and values come in
 * tiles of 64, and the next tile is copied while the present one is used. Scores never leave registers: the
 * accumulators of Q K^T, exponentiated, are the left operand of P V. On Hopper, head size 64 takes the
 * warpgroup instructions. Rows of no sequence (padding) get zeros from the blocks of one more "sequence" at
 * the end of the grid. */
#include "wgmma.cuh"

#define KEYS 64

template <int HD> struct fwd_state {
    float o[HD / 8][4], max[2], sum[2];
};

/* s = q k^T for the warp's 16 rows and the tile's 64 keys. */
template <int HD>
static __device__ __forceinline__ void scores(float s[KEYS / 8][4], const uint32_t q[HD / 16][4],
                                              uint32_t k_tile)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = 0.f;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++)
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            right_fragments<HD>(b, k_tile, n * 16, kk * 2);
            mma16816(s[2 * n], q[kk], b[0], b[1]);
            mma16816(s[2 * n + 1], q[kk], b[2], b[3]);
        }
}

/* Hides keys that row `row` (its first of two, the other 8 below) may not see. limit = keys visible to row
 * 0. */
static __device__ __forceinline__ void hide(float s[KEYS / 8][4], int first_key, int row, int keys, int limit,
                                            bool causal)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = first_key + n * 8 + lane % 4 * 2 + i % 2, r = row + i / 2 * 8;
            if (key >= keys || (causal && key >= limit + r)) s[n][i] = -CUDART_INF_F;
        }
}

/* Turns scores into unnormalised probabilities and keeps maximum, sum and output in step. */
template <int HD>
static __device__ __forceinline__ void softmax_step(fwd_state<HD> &st, float s[KEYS / 8][4], float scale_log2)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = st.max[h];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        float base = m == -CUDART_INF_F ? 0.f : m * scale_log2;
        float shrink = pow2(st.max[h] * scale_log2 - base), sum = 0.f;
        st.max[h] = m;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                s[n][i] = pow2(fmaf(s[n][i], scale_log2, -base));
                sum += s[n][i];
            }
        st.sum[h] = st.sum[h] * shrink + sum;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) st.o[n][2 * h] *= shrink, st.o[n][2 * h + 1] *= shrink;
    }
}

static __device__ __forceinline__ void drop_scores(float s[KEYS / 8][4], const neb_dropper &d, int head,
                                                   int row, int first_key, uint32_t sample)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 r = philox(make_uint4((d.first + (uint32_t)head) << 20 | (uint32_t)(first_key / 8 + n),
                                        (uint32_t)(row + 8 * h), sample, d.step),
                             make_uint2(d.seed, d.op));
            int j = lane % 4;
            uint32_t w = j == 0 ? r.x : j == 1 ? r.y : j == 2 ? r.z : r.w;
            if ((w & 0xffff) < d.threshold) s[n][2 * h] = 0.f;
            if ((w >> 16) < d.threshold) s[n][2 * h + 1] = 0.f;
        }
}

template <int HD>
static __device__ __forceinline__ void add_values(fwd_state<HD> &st, const float s[KEYS / 8][4],
                                                  uint32_t v_tile)
{
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t a[4] = {pack2(s[2 * kk][0], s[2 * kk][1]), pack2(s[2 * kk][2], s[2 * kk][3]),
                         pack2(s[2 * kk + 1][0], s[2 * kk + 1][1]),
                         pack2(s[2 * kk + 1][2], s[2 * kk + 1][3])};
#pragma unroll
        for (int n = 0; n < HD / 16; n++) {
            uint32_t b[4];
            right_fragments_trans<HD>(b, v_tile, kk * 16, n * 2);
            mma16816(st.o[2 * n], a, b[0], b[1]);
            mma16816(st.o[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* Zeros for the rows after the last sequence. */
static __device__ void clear_padding(bf16 *x, int64_t ld, int width, int64_t first, int64_t rows)
{
    int64_t block = blockIdx.y * gridDim.x + blockIdx.x, blocks = (int64_t)gridDim.x * gridDim.y;
    for (int64_t r = first + block; r < rows; r += blocks)
        for (int c = threadIdx.x; c < width; c += blockDim.x) x[r * ld + c] = from_float<bf16>(0.f);
}

#if NEB_WGMMA
/* s = q k^T of the warpgroup's 64 rows. Queries are read from shared memory again for every tile. If they
 * were kept in registers, ptxas 13.0 would assign the same registers to P, and every tile but the first would
 * be wrong. */
static __device__ __forceinline__ void wg_scores(float (&s)[8][4], uint64_t q, uint64_t k)
{
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wg_product<0, 0>(s, q + kk * K_STEP, k + kk * K_STEP, kk > 0);
    wg_commit();
    wg_wait<0>();
    wg_ready(s);
}

static __device__ __forceinline__ void wg_add_values(float (&o)[8][4], const float s[8][4], uint64_t v)
{
    uint32_t a[4][4];
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[kk][i] = pack2(s[2 * kk + i / 2][i % 2 * 2], s[2 * kk + i / 2][i % 2 * 2 + 1]);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wg_product_registers<1>(o, a[kk], v + kk * T_STEP, 1);
    wg_commit();
    wg_wait<0>();
    wg_ready(o);
}
#endif

template <int HD, int WARPS, bool DROP>
static __global__ void __launch_bounds__(WARPS * 32, HD == 128 ? 1 : 2) attn_fwd_kernel(struct neb_attn p)
{
    constexpr int QUERIES = WARPS * 16, TILE = KEYS * HD * 2, THREADS = WARPS * 32;
    extern __shared__ __align__(1024) char memory[];
    [[maybe_unused]] constexpr bool WG = NEB_WGMMA && HD == 64;
    int sequence = blockIdx.z, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (sequence == p.sequences)
        return clear_padding((bf16 *)p.o, p.ldo, (int)p.heads * HD, p.starts_q[sequence], p.q_rows);
    int q0 = p.starts_q[sequence], k0 = p.starts_k[sequence];
    int queries = p.starts_q[sequence + 1] - q0, keys = p.starts_k[sequence + 1] - k0;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES; /* the longest rows of a causal mask first */
    if (first >= queries) return;
    int row = first + warp * 16 + lane / 4, limit = keys - queries + 1;
    int last_key = p.causal ? min(keys, first + QUERIES - 1 + limit) : keys;
    int tiles = last_key > 0 ? (last_key + KEYS - 1) / KEYS : 0;

    uint32_t q_tile = shared_address(memory), kv = q_tile + QUERIES * HD * 2; /* stages of (K, V) follow */
    int kv_head = (int)(head * p.kv_heads / p.heads);
    const bf16 *q = (const bf16 *)p.q + q0 * p.ldq + head * HD;
    const bf16 *k = (const bf16 *)p.k + k0 * p.ldk + kv_head * HD,
               *v = (const bf16 *)p.v + k0 * p.ldv + kv_head * HD;
    load_tile<HD, QUERIES, THREADS>(q_tile, q, p.ldq, first, queries);
    if (tiles)
        load_tile<HD, KEYS, THREADS>(kv, k, p.ldk, 0, keys),
            load_tile<HD, KEYS, THREADS>(kv + TILE, v, p.ldv, 0, keys);
    copy_commit();

    fwd_state<HD> st;
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) st.o[n][i] = 0.f;
    st.max[0] = st.max[1] = -CUDART_INF_F, st.sum[0] = st.sum[1] = 0.f;
    float scale_log2 = p.scale * 1.4426950408889634f;
    neb_dropper drop = {};
    uint32_t sample = 0, q_part[HD / 16][4];
    if (DROP) drop = make_dropper(p.drop), sample = p.drop.sample[sequence];
    auto arrive = [&] { /* the requested tile has arrived, and all warps are done with the previous one */
                        copy_wait<0>();
#if NEB_WGMMA
                        if (WG) wg_publish();
#endif
                        __syncthreads();
    };
    arrive();
    if (!WG)
#pragma unroll
        for (int kk = 0; kk < HD / 16; kk++) left_fragment<HD>(q_part[kk], q_tile, warp * 16, kk * 2);
    for (int t = 0; t < tiles; t++) {
        if (t) arrive();
        if (t + 1 < tiles) {
            uint32_t next = kv + (t + 1) % 2 * 2 * TILE;
            load_tile<HD, KEYS, THREADS>(next, k, p.ldk, (t + 1) * KEYS, keys);
            load_tile<HD, KEYS, THREADS>(next + TILE, v, p.ldv, (t + 1) * KEYS, keys);
            copy_commit();
        }
        uint32_t k_tile = kv + t % 2 * 2 * TILE;
        float s[KEYS / 8][4];
#if NEB_WGMMA
        if constexpr (WG)
            wg_scores(s, wg_tile(q_tile + warp / 4 * 64 * HD * 2), wg_tile(k_tile));
        else
#endif
            scores<HD>(s, q_part, k_tile);
        if ((t + 1) * KEYS > keys || (p.causal && (t + 1) * KEYS > first + warp * 16 + limit))
            hide(s, t * KEYS, row, keys, limit, p.causal);
        softmax_step<HD>(st, s, scale_log2);
        if (DROP) drop_scores(s, drop, head, row, t * KEYS, sample);
#if NEB_WGMMA
        if constexpr (WG)
            wg_add_values(st.o, s, wg_tile(k_tile + TILE));
        else
#endif
            add_values<HD>(st, s, k_tile + TILE);
    }
    copy_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = st.sum[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        float inv = sum > 0.f ? (DROP ? drop.scale : 1.f) / sum : 0.f;
        int r = row + 8 * h;
        if (r >= queries) continue;
        if (p.lse && lane % 4 == 0)
            p.lse[head * p.q_rows + q0 + r] = sum > 0.f ? st.max[h] * p.scale + logf(sum) : -CUDART_INF_F;
        bf16 *o = (bf16 *)p.o + (int64_t)(q0 + r) * p.ldo + head * HD + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            *(uint32_t *)(o + n * 8) = pack2(st.o[n][2 * h] * inv, st.o[n][2 * h + 1] * inv);
    }
}

template <int HD, int WARPS, bool DROP>
static neb_status launch_fwd(struct neb_cuda *dev, const struct neb_attn *p)
{
    constexpr int SHARED = WARPS * 16 * HD * 2 + 4 * KEYS * HD * 2;
    auto kernel = attn_fwd_kernel<HD, WARPS, DROP>;
    CUDA_TRY(dev, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    dim3 grid((unsigned)neb__ceil_div(p->max_q, WARPS * 16), (unsigned)p->heads, (unsigned)p->sequences + 1);
    kernel<<<grid, WARPS * 32, SHARED, dev->stream>>>(*p);
    CUDA_LAUNCHED(dev, "attention");
    return NEB_OK;
}

template <int HD> static neb_status fwd_by_shape(struct neb_cuda *dev, const struct neb_attn *p)
{
    if (p->max_q <= 64) {
        if (p->drop.threshold) return launch_fwd<HD, 4, true>(dev, p);
        return launch_fwd<HD, 4, false>(dev, p);
    }
    if (p->drop.threshold) return launch_fwd<HD, 8, true>(dev, p);
    return launch_fwd<HD, 8, false>(dev, p);
}

neb_status neb__attn_mma(struct neb_cuda *dev, const struct neb_attn *p)
{
    if (p->head_dim == 32) return fwd_by_shape<32>(dev, p);
    if (p->head_dim == 64) return fwd_by_shape<64>(dev, p);
    return fwd_by_shape<128>(dev, p);
}
