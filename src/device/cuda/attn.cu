/* attn.cu: attention's slots, and the plain kernels for cases that the tensor-core kernels do not cover
 * (fp32, odd head sizes).
 *
 * In the plain kernels a warp takes one query (or, for dK and dV, one key). The other side comes 32 rows at a
 * time: each lane computes the score of one row, then each lane takes a column and adds up the 32 rows. There
 * are no atomics, so the bits are the same every time. */
#include "attn.cuh"

#define WARPS    4
#define MAX_HEAD 256
#define PER_LANE (MAX_HEAD / 32)

template <class T> static __device__ __forceinline__ float dot_row(const float *a, const T *b, int n)
{
    float sum = 0.f;
    for (int i = 0; i < n; i++) sum += a[i] * to_float(b[i]);
    return sum;
}

/* One query with one head: everything the kernels below need to know. */
struct place {
    int sequence, query, queries, keys;
    int64_t q0, k0;
};
static __device__ __forceinline__ bool find_place(const struct neb_attn &p, int64_t row, place &at)
{
    at.sequence = sequence_of(p.starts_q, (int)p.sequences, row);
    if (at.sequence < 0) return false;
    at.q0 = p.starts_q[at.sequence], at.k0 = p.starts_k[at.sequence];
    at.queries = p.starts_q[at.sequence + 1] - (int)at.q0, at.keys = p.starts_k[at.sequence + 1] - (int)at.k0;
    at.query = (int)(row - at.q0);
    return true;
}
static __device__ __forceinline__ int visible_keys(const struct neb_attn &p, const place &at)
{
    return p.causal ? max(0, min(at.keys, at.query + at.keys - at.queries + 1)) : at.keys;
}

template <class T> static __global__ void __launch_bounds__(WARPS * 32) simple_fwd_kernel(struct neb_attn p)
{
    __shared__ float q_rows[WARPS][MAX_HEAD];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, hd = (int)p.head_dim, head = blockIdx.y;
    int64_t row = (int64_t)blockIdx.x * WARPS + warp;
    if (row >= p.q_rows) return;
    int kv_head = (int)(head * p.kv_heads / p.heads);
    T *o = (T *)p.o + row * p.ldo + head * hd;
    place at;
    float acc[PER_LANE] = {0}, max = -CUDART_INF_F, sum = 0.f;
    bool inside = find_place(p, row, at);
    int n = inside ? visible_keys(p, at) : 0;
    float *q = q_rows[warp];
    for (int c = lane; c < hd; c += 32) q[c] = to_float(((const T *)p.q)[row * p.ldq + head * hd + c]);
    __syncwarp();
    neb_dropper drop = make_dropper(p.drop);
    uint32_t sample = inside && drop.threshold ? p.drop.sample[at.sequence] : 0;
    for (int first = 0; first < n; first += 32) {
        int key = first + lane;
        float s = -CUDART_INF_F;
        if (key < n) s = p.scale * dot_row(q, (const T *)p.k + (at.k0 + key) * p.ldk + kv_head * hd, hd);
        float m = fmaxf(max, warp_max(s)), shrink = expf(max - m), e = key < n ? expf(s - m) : 0.f;
        sum = sum * shrink + warp_sum(e);
        max = m;
        if (drop.threshold && key < n) e *= attn_mask(drop, head, at.query, key, sample);
        for (int i = 0; i < PER_LANE; i++) acc[i] *= shrink;
        for (int j = 0; j < min(32, n - first); j++) {
            float w = __shfl_sync(~0u, e, j);
            const T *v = (const T *)p.v + (at.k0 + first + j) * p.ldv + kv_head * hd;
            for (int i = 0; i < PER_LANE; i++)
                if (lane + 32 * i < hd) acc[i] += w * to_float(v[lane + 32 * i]);
        }
    }
    for (int i = 0; i < PER_LANE; i++)
        if (lane + 32 * i < hd) o[lane + 32 * i] = from_float<T>(sum > 0.f ? acc[i] / sum : 0.f);
    if (p.lse && lane == 0 && inside)
        p.lse[head * p.q_rows + row] = sum > 0.f ? max + logf(sum) : -CUDART_INF_F;
}

neb_status neb__attn_simple(struct neb_cuda *dev, const struct neb_attn *p)
{
    dim3 grid((unsigned)neb__ceil_div(p->q_rows, WARPS), (unsigned)p->heads);
    NEB_BY_TYPE(dev, p->type, "attention", simple_fwd_kernel<T><<<grid, WARPS * 32, 0, dev->stream>>>(*p));
    CUDA_LAUNCHED(dev, "attention");
    return NEB_OK;
}

template <class T> static __global__ void delta_kernel(struct neb_attn_bwd b, float *delta)
{
    const struct neb_attn &p = b.f;
    int64_t i = (int64_t)blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8, row = i / p.heads;
    int lane = threadIdx.x % 8, head = (int)(i - row * p.heads);
    float sum = 0.f;
    if (row < p.q_rows) {
        int64_t at = row * p.ldo + head * p.head_dim;
        const T *o = (const T *)p.o + at, *d = (const T *)b.d_o + at;
        int wide = p.head_dim % 8 == 0 && ((uintptr_t)o & 15) == 0 && ((uintptr_t)d & 15) == 0;
        for (int c = lane * 8; c < p.head_dim; c += 64) {
            float u[8], v[8];
            int n = min(8, (int)p.head_dim - c);
            get8(o + c, u, n, wide);
            get8(d + c, v, n, wide);
            for (int j = 0; j < 8; j++) sum += u[j] * v[j];
        }
    }
    for (int j = 4; j; j >>= 1) sum += __shfl_xor_sync(~0u, sum, j);
    if (row < p.q_rows && lane == 0) delta[head * p.q_rows + row] = sum;
}

neb_status neb__attn_delta(struct neb_cuda *dev, const struct neb_attn_bwd *b, float *delta)
{
    unsigned blocks = (unsigned)neb__ceil_div(b->f.q_rows * b->f.heads, 32);
    NEB_BY_TYPE(dev, b->f.type, "attention backward",
                delta_kernel<T><<<blocks, 256, 0, dev->stream>>>(*b, delta));
    CUDA_LAUNCHED(dev, "attention backward");
    return NEB_OK;
}

/* Probability, its dropped form and dS (without `scale`) of one pair. */
struct pair {
    float prob, ds;
};
static __device__ __forceinline__ pair make_pair(float score, float dp, float lse, float delta, float mask)
{
    float prob = expf(score - lse);
    return {prob * mask, prob * (dp * mask - delta)};
}

template <class T>
static __global__ void __launch_bounds__(WARPS * 32)
    simple_dq_kernel(struct neb_attn_bwd b, const float *delta)
{
    __shared__ float rows[WARPS][2][MAX_HEAD];
    const struct neb_attn &p = b.f;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, hd = (int)p.head_dim, head = blockIdx.y;
    int64_t row = (int64_t)blockIdx.x * WARPS + warp;
    if (row >= p.q_rows) return;
    int kv_head = (int)(head * p.kv_heads / p.heads);
    place at;
    bool inside = find_place(p, row, at);
    int n = inside ? visible_keys(p, at) : 0;
    float *q = rows[warp][0], *go = rows[warp][1], acc[PER_LANE] = {0};
    for (int c = lane; c < hd; c += 32) {
        q[c] = to_float(((const T *)p.q)[row * p.ldq + head * hd + c]);
        go[c] = to_float(((const T *)b.d_o)[row * p.ldo + head * hd + c]);
    }
    __syncwarp();
    neb_dropper drop = make_dropper(p.drop);
    uint32_t sample = inside && drop.threshold ? p.drop.sample[at.sequence] : 0;
    float lse = n ? p.lse[head * p.q_rows + row] : 0.f, d = n ? delta[head * p.q_rows + row] : 0.f;
    for (int first = 0; first < n; first += 32) {
        int key = first + lane;
        float ds = 0.f;
        if (key < n) {
            float s = p.scale * dot_row(q, (const T *)p.k + (at.k0 + key) * p.ldk + kv_head * hd, hd);
            float dp = dot_row(go, (const T *)p.v + (at.k0 + key) * p.ldv + kv_head * hd, hd);
            ds = make_pair(s, dp, lse, d, drop.threshold ? attn_mask(drop, head, at.query, key, sample) : 1.f)
                     .ds;
        }
        for (int j = 0; j < min(32, n - first); j++) {
            float w = __shfl_sync(~0u, ds, j);
            const T *k = (const T *)p.k + (at.k0 + first + j) * p.ldk + kv_head * hd;
            for (int i = 0; i < PER_LANE; i++)
                if (lane + 32 * i < hd) acc[i] += w * to_float(k[lane + 32 * i]);
        }
    }
    for (int i = 0; i < PER_LANE; i++)
        if (lane + 32 * i < hd)
            ((T *)b.dq)[row * p.ldq + head * hd + lane + 32 * i] = from_float<T>(p.scale * acc[i]);
}

template <class T>
static __global__ void __launch_bounds__(WARPS * 32)
    simple_dkv_kernel(struct neb_attn_bwd b, const float *delta)
{
    __shared__ float rows[WARPS][2][MAX_HEAD];
    const struct neb_attn &p = b.f;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, hd = (int)p.head_dim, kv_head = blockIdx.y;
    int64_t row = (int64_t)blockIdx.x * WARPS + warp;
    if (row >= p.k_rows) return;
    int sequence = sequence_of(p.starts_k, (int)p.sequences, row), queries = 0, key = 0, begin = 0;
    int64_t q0 = 0;
    if (sequence >= 0) {
        int64_t k0 = p.starts_k[sequence];
        int keys = p.starts_k[sequence + 1] - (int)k0;
        q0 = p.starts_q[sequence], queries = p.starts_q[sequence + 1] - (int)q0, key = (int)(row - k0);
        if (p.causal) begin = max(0, key - (keys - queries));
    }
    float *k = rows[warp][0], *v = rows[warp][1], dk[PER_LANE] = {0}, dv[PER_LANE] = {0};
    for (int c = lane; c < hd; c += 32) {
        k[c] = to_float(((const T *)p.k)[row * p.ldk + kv_head * hd + c]);
        v[c] = to_float(((const T *)p.v)[row * p.ldv + kv_head * hd + c]);
    }
    __syncwarp();
    neb_dropper drop = make_dropper(p.drop);
    uint32_t sample = sequence >= 0 && drop.threshold ? p.drop.sample[sequence] : 0;
    int group = (int)(p.heads / p.kv_heads);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int first = begin; first < queries; first += 32) {
            int query = first + lane;
            pair w = {0.f, 0.f};
            if (query < queries) {
                int64_t r = q0 + query;
                float s = p.scale * dot_row(k, (const T *)p.q + r * p.ldq + head * hd, hd);
                float dp = dot_row(v, (const T *)b.d_o + r * p.ldo + head * hd, hd);
                float mask = drop.threshold ? attn_mask(drop, head, query, key, sample) : 1.f;
                w = make_pair(s, dp, p.lse[head * p.q_rows + r], delta[head * p.q_rows + r], mask);
            }
            for (int j = 0; j < min(32, queries - first); j++) {
                float prob = __shfl_sync(~0u, w.prob, j), ds = __shfl_sync(~0u, w.ds, j);
                int64_t r = q0 + first + j;
                const T *q = (const T *)p.q + r * p.ldq + head * hd,
                        *go = (const T *)b.d_o + r * p.ldo + head * hd;
                for (int i = 0; i < PER_LANE; i++)
                    if (lane + 32 * i < hd) {
                        dk[i] += ds * to_float(q[lane + 32 * i]);
                        dv[i] += prob * to_float(go[lane + 32 * i]);
                    }
            }
        }
    for (int i = 0; i < PER_LANE; i++)
        if (lane + 32 * i < hd) {
            ((T *)b.dk)[row * p.ldk + kv_head * hd + lane + 32 * i] = from_float<T>(p.scale * dk[i]);
            ((T *)b.dv)[row * p.ldv + kv_head * hd + lane + 32 * i] = from_float<T>(dv[i]);
        }
}

neb_status neb__attn_simple_bwd(struct neb_cuda *dev, const struct neb_attn_bwd *b)
{
    float *delta = (float *)b->scratch;
    dim3 queries((unsigned)neb__ceil_div(b->f.q_rows, WARPS), (unsigned)b->f.heads);
    dim3 keys((unsigned)neb__ceil_div(b->f.k_rows, WARPS), (unsigned)b->f.kv_heads);
    NEB_TRY(neb__attn_delta(dev, b, delta));
    NEB_BY_TYPE(dev, b->f.type, "attention backward", {
        simple_dq_kernel<T><<<queries, WARPS * 32, 0, dev->stream>>>(*b, delta);
        if (keys.x) simple_dkv_kernel<T><<<keys, WARPS * 32, 0, dev->stream>>>(*b, delta);
    });
    CUDA_LAUNCHED(dev, "attention backward");
    return NEB_OK;
}

/* ---- the slots ---- */

static neb_status check(struct neb_cuda *dev, const struct neb_attn *p)
{
    if (p->head_dim < 1 || p->head_dim > MAX_HEAD || p->heads < 1 || p->heads > 65535 || p->kv_heads < 1 ||
        p->heads % p->kv_heads)
        return neb__cuda_fail(
            dev, NEB_ERR_SHAPE,
            "cuda attention: cannot run %lld heads over %lld key heads of size %lld: key heads must divide "
            "heads (at most 65535), and the size is at most %d",
            (long long)p->heads, (long long)p->kv_heads, (long long)p->head_dim, MAX_HEAD);
    return NEB_OK;
}

static int tensor_cores(const struct neb_attn *p)
{
    return p->type == NEB_BF16 && (p->head_dim == 32 || p->head_dim == 64 || p->head_dim == 128) &&
           p->sequences < 65535 && p->max_q > 0 && p->max_k > 0 && wide_rows((const bf16 *)p->q, p->ldq) &&
           wide_rows((const bf16 *)p->k, p->ldk) && wide_rows((const bf16 *)p->v, p->ldv) &&
           wide_rows((const bf16 *)p->o, p->ldo);
}

neb_status neb__cuda_attn(void *ctx, const struct neb_attn *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_TRY(check(dev, p));
    if (p->q_rows <= 0) return NEB_OK;
    return tensor_cores(p) ? neb__attn_mma(dev, p) : neb__attn_simple(dev, p);
}

neb_status neb__cuda_attn_bwd(void *ctx, const struct neb_attn_bwd *b)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_TRY(check(dev, &b->f));
    if (b->f.q_rows <= 0) {
        size_t size = neb__type_size(b->f.type),
               width = b->f.kv_heads * b->f.head_dim * size; /* not requested */
        if (b->f.k_rows <= 0) return NEB_OK;
        CUDA_TRY(dev, cudaMemset2DAsync(b->dk, b->f.ldk * size, 0, width, b->f.k_rows, dev->stream));
        CUDA_TRY(dev, cudaMemset2DAsync(b->dv, b->f.ldv * size, 0, width, b->f.k_rows, dev->stream));
        return NEB_OK;
    }
    int fast =
        tensor_cores(&b->f) && aligned16(b->dq) && aligned16(b->dk) && aligned16(b->dv) && aligned16(b->d_o);
    return fast ? neb__attn_mma_bwd(dev, b) : neb__attn_simple_bwd(dev, b);
}
