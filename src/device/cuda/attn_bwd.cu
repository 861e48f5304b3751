/* attn_bwd.cu: attention backward on tensor cores.
 *
 * A block takes WARPS * 16 keys of one key head of one sequence, each warp 16 of them, and walks over the
 * queries in tiles of 64. Scores are computed transposed, S^T = K Q^T. So P^T and dS^T are already in the
 * registers in the form of left operands for dV += P^T dO and dK += dS^T Q. Only dS goes through shared
 * memory, for dQ = dS K. On Hopper, head size 64 takes the warpgroup instructions, which run while the
 * exponentials are computed.
 *
 * dQ has a contribution from every block of keys. When one block holds all keys, dQ is written directly.
 * Otherwise it is added up in fp32 scratch: with atomics or, under `deterministic`, in one slice for each
 * block of keys, and the slices are summed in order afterwards. */
#include "attn_bwd.cuh"

/* acc (16 x N) += a-rows [row, +16) of `left` (stored [m][k]) times `right` (stored [n][k]), k = HD. */
template <int HD, int N>
static __device__ __forceinline__ void product_nt(float acc[N / 8][4], const uint32_t left[HD / 16][4],
                                                  uint32_t right)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = 0.f;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++)
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[4];
            right_fragments<HD>(b, right, n * 16, kk * 2);
            mma16816(acc[2 * n], left[kk], b[0], b[1]);
            mma16816(acc[2 * n + 1], left[kk], b[2], b[3]);
        }
}

/* acc (16 x HD) += s (16 x QUERIES, in registers, rounded to bf16) times `right` (stored [k][n]). */
template <int HD>
static __device__ __forceinline__ void product_registers(float acc[HD / 8][4],
                                                         const uint32_t s[QUERIES / 16][4], uint32_t right)
{
#pragma unroll
    for (int kk = 0; kk < QUERIES / 16; kk++)
#pragma unroll
        for (int n = 0; n < HD / 16; n++) {
            uint32_t b[4];
            right_fragments_trans<HD>(b, right, kk * 16, n * 2);
            mma16816(acc[2 * n], s[kk], b[0], b[1]);
            mma16816(acc[2 * n + 1], s[kk], b[2], b[3]);
        }
}

/* dq (16 x N) = rows [row, +16) of dS, stored transposed, times columns [column, +N) of K. */
template <int HD, int KEYS, int N>
static __device__ __forceinline__ void product_ds(float dq[N / 8][4], uint32_t ds, int row, uint32_t k,
                                                  int column)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dq[n][i] = 0.f;
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t a[4];
        left_fragment_trans<QUERIES>(a, ds, kk * 16, row / 8);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t r[4];
            right_fragments_trans<HD>(r, k, kk * 16, column / 8 + n * 2);
            mma16816(dq[2 * n], a, r[0], r[1]);
            mma16816(dq[2 * n + 1], a, r[2], r[3]);
        }
    }
}

template <int HD, int WARPS, bool DROP, int MODE>
static __global__ void __launch_bounds__(WARPS * 32, 1)
    attn_bwd_kernel(struct neb_attn_bwd b, neb_bwd_extra extra)
{
    constexpr int KEYS = WARPS * 16, THREADS = WARPS * 32, SPLIT = WARPS / 4, DQ_N = HD / SPLIT;
    constexpr int K_BYTES = KEYS * HD * 2, Q_BYTES = QUERIES * HD * 2;
    extern __shared__ __align__(1024) char memory[];
    [[maybe_unused]] constexpr bool WG = NEB_WGMMA && HD == 64;
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
    uint32_t stages = ds_tile + KEYS * QUERIES * 2; /* (Q, dO) twice */
    float *rows =
        (float *)(memory + 2 * K_BYTES + KEYS * QUERIES * 2 + 4 * Q_BYTES); /* lse, delta of two stages */
    load_tile<HD, KEYS, THREADS>(k_tile, (const bf16 *)p.k + k0 * p.ldk + kv_head * HD, p.ldk, first_key,
                                 keys);
    load_tile<HD, KEYS, THREADS>(v_tile, (const bf16 *)p.v + k0 * p.ldv + kv_head * HD, p.ldv, first_key,
                                 keys);

    int begin = 0; /* the first query tile that sees a key of this block */
    if (p.causal && MODE != DQ_DIRECT) begin = max(0, first_key - limit) / QUERIES;
    int tiles = (queries + QUERIES - 1) / QUERIES - begin;
    if (tiles < 0) tiles = 0;
    int steps = tiles * group;
    float scale_log2 = p.scale * 1.4426950408889634f;
    auto fetch = [&](int step) {
        int head = kv_head * group + step / tiles, first = (begin + step % tiles) * QUERIES, stage = step % 2;
        uint32_t tile = stages + stage * 2 * Q_BYTES;
        load_tile<HD, QUERIES, THREADS>(tile, (const bf16 *)p.q + q0 * p.ldq + head * HD, p.ldq, first,
                                        queries);
        load_tile<HD, QUERIES, THREADS>(tile + Q_BYTES, (const bf16 *)b.d_o + q0 * p.ldo + head * HD, p.ldo,
                                        first, queries);
        fetch_rows(rows + stage * 2 * QUERIES, p, extra.delta, head, q0, first, queries);
        copy_commit();
    };
    if (steps)
        fetch(0);
    else
        copy_commit();

    float dk[HD / 8][4], dv[HD / 8][4];
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dk[n][i] = dv[n][i] = 0.f;
    neb_dropper drop = {};
    uint32_t sample = 0;
    if (DROP) drop = make_dropper(p.drop), sample = p.drop.sample[sequence];
    int key = first_key + warp * 16 + lane / 4;
    for (int step = 0; step < steps; step++) {
        int head = kv_head * group + step / tiles, first = (begin + step % tiles) * QUERIES;
        copy_wait<0>();
#if NEB_WGMMA
        if (WG) wg_publish();
#endif
        __syncthreads(); /* this step's tiles have arrived; the other stage and dS are free */
        if (step + 1 < steps) fetch(step + 1);
        uint32_t q_tile = stages + step % 2 * 2 * Q_BYTES, do_tile = q_tile + Q_BYTES;
        const float *lse = rows + step % 2 * 2 * QUERIES, *delta = lse + QUERIES;
        float s[QUERIES / 8][4], dp[QUERIES / 8][4], dq[DQ_N / 8][4];
        uint32_t packed_p[QUERIES / 16][4], packed_ds[QUERIES / 16][4];
        int q_part = warp % 4 * 16, column = warp / 4 * DQ_N;
#if NEB_WGMMA
        uint64_t own_k = wg_tile(k_tile + warp / 4 * 64 * HD * 2),
                 own_v = wg_tile(v_tile + warp / 4 * 64 * HD * 2);
        uint64_t wg_q = wg_tile(q_tile), wg_do = wg_tile(do_tile);
        if constexpr (WG) {
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                wg_product<0, 0>(s, own_k + kk * K_STEP, wg_q + kk * K_STEP, kk > 0);
            wg_commit();
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                wg_product<0, 0>(dp, own_v + kk * K_STEP, wg_do + kk * K_STEP, kk > 0);
            wg_commit();
            wg_wait<1>();
            wg_ready(s);
        } else
#endif
        {
            uint32_t left[HD / 16][4];
#pragma unroll
            for (int kk = 0; kk < HD / 16; kk++) left_fragment<HD>(left[kk], k_tile, warp * 16, kk * 2);
            product_nt<HD, QUERIES>(s, left, q_tile);
#pragma unroll
            for (int kk = 0; kk < HD / 16; kk++) left_fragment<HD>(left[kk], v_tile, warp * 16, kk * 2);
            product_nt<HD, QUERIES>(dp, left, do_tile);
        }
        bool edge = first_key + KEYS > keys || (p.causal && first_key + KEYS - 1 > first + limit);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = n * 8 + lane % 4 * 2 + i % 2, row = key + i / 2 * 8;
                s[n][i] = pow2(fmaf(s[n][i], scale_log2, lse[c] * -1.4426950408889634f));
                if (edge && (row >= keys || (p.causal && row > first + c + limit))) s[n][i] = 0.f;
            }
#if NEB_WGMMA
        if constexpr (WG) {
            wg_wait<0>();
            wg_ready(dp);
        }
#endif
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = n * 8 + lane % 4 * 2 + i % 2, row = key + i / 2 * 8;
                float mask = DROP ? attn_mask(drop, head, first + c, row, sample) : 1.f;
                dp[n][i] = s[n][i] * (dp[n][i] * mask - delta[c]);
                s[n][i] *= mask;
            }
        pack_left(packed_p, s);
        pack_left(packed_ds, dp);
#if NEB_WGMMA
        if constexpr (WG) {
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < 4; kk++) wg_product_registers<1>(dv, packed_p[kk], wg_do + kk * T_STEP, 1);
#pragma unroll
            for (int kk = 0; kk < 4; kk++) wg_product_registers<1>(dk, packed_ds[kk], wg_q + kk * T_STEP, 1);
            wg_commit();
        } else
#endif
            product_registers<HD>(dv, packed_p, do_tile);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t at = ds_tile + tile_at<QUERIES>(warp * 16 + lane / 4 + 8 * h, n) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(at), "r"(packed_ds[n / 2][n % 2 * 2 + h])
                             : "memory");
            }
#if NEB_WGMMA
        if constexpr (WG) {
            wg_publish();
            __syncthreads(); /* dS of all warps is complete */
            uint64_t ds = wg_tile(ds_tile), all_k = wg_tile(k_tile + column * 2);
            wg_fence();
#pragma unroll
            for (int kk = 0; kk < KEYS / 16; kk++)
                if constexpr (DQ_N == 64)
                    wg_product<1, 1>(dq, ds + kk * T_STEP, all_k + kk * T_STEP, kk > 0);
                else
                    wg_product32<1, 1>(dq, ds + kk * T_STEP, all_k + kk * T_STEP, kk > 0);
            wg_commit();
            wg_wait<0>();
            wg_ready(dq);
            wg_ready(dk);
            wg_ready(dv);
        } else
#endif
        {
            product_registers<HD>(dk, packed_ds, q_tile);
            __syncthreads(); /* dS of all warps is complete */
            product_ds<HD, KEYS, DQ_N>(dq, ds_tile, q_part, k_tile, column);
        }
        put_dq<MODE, DQ_N>(dq, b, extra.dq, q0, first + q_part, queries, head, column);
    }
    copy_wait<0>();
    put_dkv<HD>(dk, dv, b, k0, key, keys, kv_head);
}

/* dq = the sum of its slices that were written: those whose block of keys begins inside the sequence and,
 * under a causal mask, was visited by the query's tile. */
static __global__ void dq_finish_kernel(struct neb_attn_bwd b, const float *dq, int width, int block_keys,
                                        int slices)
{
    const struct neb_attn &p = b.f;
    int64_t r = blockIdx.x;
    int sequence = slices > 1 ? sequence_of(p.starts_q, (int)p.sequences, r) : -1, used = 1;
    if (slices > 1) {
        used = 0;
        if (sequence >= 0) {
            int queries = p.starts_q[sequence + 1] - p.starts_q[sequence];
            int keys = p.starts_k[sequence + 1] - p.starts_k[sequence];
            int tile_end =
                ((int)r - p.starts_q[sequence]) / QUERIES * QUERIES + QUERIES; /* see `begin` above */
            int seen = p.causal ? min(keys, tile_end + keys - queries) : keys;
            used = seen > 0 ? (seen + block_keys - 1) / block_keys : 0;
        }
    }
    for (int c = threadIdx.x * 8; c < width; c += blockDim.x * 8) {
        float sum[8] = {0};
        for (int s = 0; s < used; s++) {
            float v[8];
            load8(dq + ((int64_t)s * p.q_rows + r) * width + c, v);
            for (int j = 0; j < 8; j++) sum[j] += v[j];
        }
        store8((bf16 *)b.dq + r * p.ldq + c, sum);
    }
}

static int block_keys(const struct neb_attn *p)
{
    return p->max_k <= 64 ? 64 : 128;
}

static int dq_mode(struct neb_cuda *dev, const struct neb_attn *p)
{
    if (p->max_k <= block_keys(p)) return DQ_DIRECT;
    return dev->config.deterministic ? DQ_SLICES : DQ_ATOMIC;
}

static int64_t delta_bytes(const struct neb_attn *p)
{
    return neb__ceil_div(p->heads * p->q_rows * 4, 256) * 256;
}

int64_t neb__attn_bwd_scratch(struct neb_cuda *dev, const struct neb_attn_bwd *b)
{
    const struct neb_attn *p = &b->f;
    int64_t sum = p->q_rows * p->heads * p->head_dim * 4, slices = neb__ceil_div(p->max_k, block_keys(p));
    int mode = dq_mode(dev, p);
    if (p->type != NEB_BF16 || mode == DQ_DIRECT) return delta_bytes(p);
    return delta_bytes(p) + (mode == DQ_SLICES ? slices * sum : sum);
}

template <int HD, int WARPS, bool DROP, int MODE>
static neb_status launch_bwd(struct neb_cuda *dev, const struct neb_attn_bwd *b, neb_bwd_extra extra)
{
    constexpr int KEYS = WARPS * 16;
    constexpr int SHARED = 2 * KEYS * HD * 2 + KEYS * QUERIES * 2 + 4 * QUERIES * HD * 2 + 4 * QUERIES * 4;
    auto kernel = attn_bwd_kernel<HD, WARPS, DROP, MODE>;
    CUDA_TRY(dev, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    dim3 grid((unsigned)neb__ceil_div(b->f.max_k, KEYS), (unsigned)b->f.kv_heads,
              (unsigned)b->f.sequences + 1);
    kernel<<<grid, WARPS * 32, SHARED, dev->stream>>>(*b, extra);
    CUDA_LAUNCHED(dev, "attention backward");
    return NEB_OK;
}

template <int HD, bool DROP>
static neb_status bwd_by_mode(struct neb_cuda *dev, const struct neb_attn_bwd *b, neb_bwd_extra e)
{
    if (block_keys(&b->f) == 64) return launch_bwd<HD, 4, DROP, DQ_DIRECT>(dev, b, e);
    switch (dq_mode(dev, &b->f)) {
    case DQ_DIRECT: return launch_bwd<HD, 8, DROP, DQ_DIRECT>(dev, b, e);
    case DQ_ATOMIC: return launch_bwd<HD, 8, DROP, DQ_ATOMIC>(dev, b, e);
    }
    return launch_bwd<HD, 8, DROP, DQ_SLICES>(dev, b, e);
}

template <int HD>
static neb_status bwd_by_drop(struct neb_cuda *dev, const struct neb_attn_bwd *b, neb_bwd_extra e)
{
    return b->f.drop.threshold ? bwd_by_mode<HD, true>(dev, b, e) : bwd_by_mode<HD, false>(dev, b, e);
}

neb_status neb__attn_mma_bwd(struct neb_cuda *dev, const struct neb_attn_bwd *b)
{
    const struct neb_attn *p = &b->f;
    int mode = dq_mode(dev, p);
    int64_t width = p->heads * p->head_dim;
    neb_bwd_extra e = {(float *)b->scratch,
                       mode == DQ_DIRECT ? NULL : (float *)((char *)b->scratch + delta_bytes(p))};
    NEB_TRY(neb__attn_delta(dev, b, (float *)b->scratch));
    if (mode == DQ_ATOMIC) CUDA_TRY(dev, cudaMemsetAsync(e.dq, 0, p->q_rows * width * 4, dev->stream));
    if (NEB_HOPPER && p->head_dim == 64 && dev->major == 9 && block_keys(p) == 128)
        NEB_TRY(neb__attn_wg_bwd(dev, b, e, mode));
    else if (p->head_dim == 32)
        NEB_TRY(bwd_by_drop<32>(dev, b, e));
    else if (p->head_dim == 64)
        NEB_TRY(bwd_by_drop<64>(dev, b, e));
    else
        NEB_TRY(bwd_by_drop<128>(dev, b, e));
    if (mode == DQ_DIRECT) return NEB_OK;
    int slices = mode == DQ_SLICES ? (int)neb__ceil_div(p->max_k, block_keys(p)) : 1;
    unsigned threads = width >= 1024 ? 128 : 96;
    dq_finish_kernel<<<(unsigned)p->q_rows, threads, 0, dev->stream>>>(*b, e.dq, (int)width, block_keys(p),
                                                                       slices);
    CUDA_LAUNCHED(dev, "attention backward");
    return NEB_OK;
}
