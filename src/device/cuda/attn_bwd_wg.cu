/* attn_bwd_wg.cu: attention backward for Hopper, pipelined: head size 64, blocks of 128 keys.
 *
 * The mathematics is that of attn_bwd.cu: two warpgroups of 64 keys each walk over tiles of 64 queries. The
 * difference is that nothing waits long: S and dP of the next tile are queued before dV, dK and dQ of this
 * one, so the exponentials are computed while the matrix units work. Queries pass through four stages and dS
 * through two, so one barrier per tile suffices. After it, dS of this tile and the queries of the tile after
 * the next are visible, and the memory that was read one tile ago is free. */
#include "attn_bwd.cuh"

#define HD       64
#define WARPS    8
#define KEYS     128
#define STAGES   4
#define K_BYTES  (KEYS * HD * 2)
#define Q_BYTES  (QUERIES * HD * 2)
#define DS_BYTES (KEYS * QUERIES * 2)
#define SHARED   (2 * K_BYTES + 2 * DS_BYTES + STAGES * 2 * Q_BYTES + STAGES * 2 * QUERIES * 4)

#if NEB_WGMMA
/* S^T = K Q^T and dP^T = V dO^T, as two groups. K and V stay in registers, because reads of shared memory are
 * the bottleneck. */
static __device__ __forceinline__ void start_scores(float s[8][4], float dp[8][4], const uint32_t k[4][4],
                                                    const uint32_t v[4][4], uint32_t tile)
{
    uint64_t q = wg_tile(tile), d_o = wg_tile(tile + Q_BYTES);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wg_product_registers<0>(s, k[kk], q + kk * K_STEP, kk > 0);
    wg_commit();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wg_product_registers<0>(dp, v[kk], d_o + kk * K_STEP, kk > 0);
    wg_commit();
}
#endif

#if NEB_WGMMA
/* The place of a step's tile. */
struct spot {
    int head, first; /* query head; the tile's first query */
    const float *lse, *delta;
    bool edge; /* the mask hides some pair of this tile */
};

/* P^T and dS^T of a tile as left operands, made from S and dP as they arrive. S has arrived when at most <A>
 * groups are pending. With at most <B> pending, dP has arrived and the registers of `packed_p` and
 * `packed_ds` are free. */
template <bool DROP, int A, int B>
static __device__ __forceinline__ void make_left(uint32_t packed_p[4][4], uint32_t packed_ds[4][4],
                                                 float (&s)[8][4], float (&dp)[8][4], const spot &at,
                                                 const struct neb_attn &p, int key, int keys, int limit,
                                                 const neb_dropper &drop, uint32_t sample)
{
    float prob[8][4], grad[8][4], scale_log2 = p.scale * 1.4426950408889634f;
    int lane = threadIdx.x % 32;
    wg_wait<A>();
    wg_ready(s);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 l = *(const float2 *)(at.lse + n * 8 + lane % 4 * 2);
        l.x *= -1.4426950408889634f, l.y *= -1.4426950408889634f;
#pragma unroll
        for (int i = 0; i < 4; i++) prob[n][i] = pow2(fmaf(s[n][i], scale_log2, i % 2 ? l.y : l.x));
    }
    if (at.edge)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = n * 8 + lane % 4 * 2 + i % 2, row = key + i / 2 * 8;
                if (row >= keys || (p.causal && row > at.first + c + limit)) prob[n][i] = 0.f;
            }
    wg_wait<B>();
    wg_ready(dp);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 d = *(const float2 *)(at.delta + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int c = n * 8 + lane % 4 * 2 + i % 2, row = key + i / 2 * 8;
            float mask = DROP ? attn_mask(drop, at.head, at.first + c, row, sample) : 1.f;
            grad[n][i] = prob[n][i] * (dp[n][i] * mask - (i % 2 ? d.y : d.x));
            if (DROP) prob[n][i] *= mask;
        }
    }
    pack_left(packed_p, prob);
    pack_left(packed_ds, grad);
}
#endif

template <bool DROP, int MODE>
static __global__ void __launch_bounds__(WARPS * 32, 1)
    attn_bwd_wg_kernel(struct neb_attn_bwd b, neb_bwd_extra extra)
{
#if NEB_WGMMA
    extern __shared__ __align__(1024) char memory[];
    const struct neb_attn &p = b.f;
    int sequence = blockIdx.z, kv_head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t part = blockIdx.y * gridDim.x + blockIdx.x, parts = (int64_t)gridDim.x * gridDim.y;
    if (sequence == p.sequences) {
        clear_rows((bf16 *)b.dk, p.ldk, (int)p.kv_heads * HD, p.starts_k[sequence], p.k_rows, part, parts);
        clear_rows((bf16 *)b.dv, p.ldv, (int)p.kv_heads * HD, p.starts_k[sequence], p.k_rows, part, parts);
        if (MODE == DQ_DIRECT)
            clear_rows((bf16 *)b.dq, p.ldq, (int)p.heads * HD, p.starts_q[sequence], p.q_rows, part, parts);
        return;
    }
    int q0 = p.starts_q[sequence], k0 = p.starts_k[sequence];
    int queries = p.starts_q[sequence + 1] - q0, keys = p.starts_k[sequence + 1] - k0;
    int first_key = blockIdx.x * KEYS, group = (int)(p.heads / p.kv_heads), limit = keys - queries;
    if (first_key >= keys) {
        if (MODE == DQ_DIRECT && keys == 0 && blockIdx.x == 0)
            clear_rows((bf16 *)b.dq + kv_head * group * HD, p.ldq, group * HD, q0, q0 + queries, 0, 1);
        return;
    }
    uint32_t k_tile = shared_address(memory), v_tile = k_tile + K_BYTES, ds_tile = v_tile + K_BYTES;
    uint32_t stages = ds_tile + 2 * DS_BYTES;
    float *rows = (float *)(memory + 2 * K_BYTES + 2 * DS_BYTES + STAGES * 2 * Q_BYTES);
    int begin = p.causal && MODE != DQ_DIRECT ? max(0, first_key - limit) / QUERIES : 0;
    int tiles = max(0, (queries + QUERIES - 1) / QUERIES - begin), steps = tiles * group;
    auto fetch = [&](int step) {
        if (step < steps) {
            int head = kv_head * group + step / tiles, first = (begin + step % tiles) * QUERIES,
                stage = step % STAGES;
            uint32_t tile = stages + stage * 2 * Q_BYTES;
            load_tile<HD, QUERIES, WARPS * 32>(tile, (const bf16 *)p.q + q0 * p.ldq + head * HD, p.ldq, first,
                                               queries);
            load_tile<HD, QUERIES, WARPS * 32>(tile + Q_BYTES, (const bf16 *)b.d_o + q0 * p.ldo + head * HD,
                                               p.ldo, first, queries);
            fetch_rows(rows + stage * 2 * QUERIES, p, extra.delta, head, q0, first, queries);
        }
        copy_commit();
    };
    load_tile<HD, KEYS, WARPS * 32>(k_tile, (const bf16 *)p.k + k0 * p.ldk + kv_head * HD, p.ldk, first_key,
                                    keys);
    load_tile<HD, KEYS, WARPS * 32>(v_tile, (const bf16 *)p.v + k0 * p.ldv + kv_head * HD, p.ldv, first_key,
                                    keys);
    fetch(0);
    fetch(1);
    fetch(2);
    copy_wait<1>();
    wg_publish();
    __syncthreads();

    float dk[8][4], dv[8][4], s[8][4], dp[8][4], dq[4][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dk[n][i] = dv[n][i] = s[n][i] = dp[n][i] = dq[n / 2][i] = 0.f;
    neb_dropper drop = {};
    uint32_t sample = 0, packed_p[4][4], packed_ds[4][4];
    if (DROP) drop = make_dropper(p.drop), sample = p.drop.sample[sequence];
    int key = first_key + warp * 16 + lane / 4, column = warp / 4 * 32;
    uint32_t own_k[4][4], own_v[4][4];
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        left_fragment<HD>(own_k[kk], k_tile, warp * 16, kk * 2);
        left_fragment<HD>(own_v[kk], v_tile, warp * 16, kk * 2);
    }
    uint64_t all_k = wg_tile(k_tile + column * 2);
    auto place = [&](int step) {
        int first = (begin + step % max(tiles, 1)) * QUERIES;
        const float *lse = rows + step % STAGES * 2 * QUERIES;
        return spot{kv_head * group + step / max(tiles, 1), first, lse, lse + QUERIES,
                    first_key + KEYS > keys || (p.causal && first_key + KEYS - 1 > first + limit)};
    };
    spot now = place(0);
    start_scores(s, dp, own_k, own_v, stages);
    make_left<DROP, 1, 0>(packed_p, packed_ds, s, dp, now, p, key, keys, limit, drop, sample);
    for (int step = 0; step < steps; step++) {
        uint32_t tile = stages + step % STAGES * 2 * Q_BYTES, ds_now = ds_tile + step % 2 * DS_BYTES;
        uint64_t q = wg_tile(tile), d_o = wg_tile(tile + Q_BYTES), ds = wg_tile(ds_now);
        /* After the last tile this multiplies an old stage in vain, but a single path lets the compiler count
         * groups. */
        start_scores(s, dp, own_k, own_v, stages + (step + 1) % STAGES * 2 * Q_BYTES);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) wg_product_registers<1>(dv, packed_p[kk], d_o + kk * T_STEP, 1);
#pragma unroll
        for (int kk = 0; kk < 4; kk++) wg_product_registers<1>(dk, packed_ds[kk], q + kk * T_STEP, 1);
        wg_commit();
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t at = ds_now + tile_at<QUERIES>(warp * 16 + lane / 4 + 8 * h, n) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(at), "r"(packed_ds[n / 2][n % 2 * 2 + h])
                             : "memory");
            }
        copy_wait<0>();
        wg_publish();
        /* dS of all warps is complete, the queries of step + 2 have arrived, the stage of step + 3 is free */
        __syncthreads();
        fetch(step + 3);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; kk++)
            wg_product32<1, 1>(dq, ds + kk * T_STEP, all_k + kk * T_STEP, kk > 0);
        wg_commit();
        spot next = place(step + 1);
        make_left<DROP, 3, 1>(packed_p, packed_ds, s, dp, next, p, key, keys, limit, drop, sample);
        wg_wait<0>();
        wg_ready(dq);
        put_dq<MODE, 32>(dq, b, extra.dq, q0, now.first + warp % 4 * 16, queries, now.head, column);
        now = next;
    }
    copy_wait<0>();
    wg_wait<0>();
    wg_ready(dk);
    wg_ready(dv);
    put_dkv<HD>(dk, dv, b, k0, key, keys, kv_head);
#endif
}

template <bool DROP, int MODE>
static neb_status launch(struct neb_cuda *dev, const struct neb_attn_bwd *b, neb_bwd_extra extra)
{
    auto kernel = attn_bwd_wg_kernel<DROP, MODE>;
    CUDA_TRY(dev, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    dim3 grid((unsigned)neb__ceil_div(b->f.max_k, KEYS), (unsigned)b->f.kv_heads,
              (unsigned)b->f.sequences + 1);
    kernel<<<grid, WARPS * 32, SHARED, dev->stream>>>(*b, extra);
    CUDA_LAUNCHED(dev, "attention backward");
    return NEB_OK;
}

neb_status neb__attn_wg_bwd(struct neb_cuda *dev, const struct neb_attn_bwd *b, neb_bwd_extra extra, int mode)
{
    int drop = b->f.drop.threshold != 0;
    if (mode == DQ_DIRECT)
        return drop ? launch<true, DQ_DIRECT>(dev, b, extra) : launch<false, DQ_DIRECT>(dev, b, extra);
    if (mode == DQ_ATOMIC)
        return drop ? launch<true, DQ_ATOMIC>(dev, b, extra) : launch<false, DQ_ATOMIC>(dev, b, extra);
    return drop ? launch<true, DQ_SLICES>(dev, b, extra) : launch<false, DQ_SLICES>(dev, b, extra);
}
