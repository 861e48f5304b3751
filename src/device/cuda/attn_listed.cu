/* attn_listed.cu: attention of single queries over listed rows, used when text is generated. Each query has a
 * list of the rows it may see, which may lie anywhere in the cache.
 *
 * A block is one query and one head. A row of a head is read by LANES neighbouring threads, 8 values each, so
 * a warp reads 32 / LANES rows at a time, keys and values in the same turn. Each such team keeps its own
 * softmax (largest score, sum, weighted values) over its rows. Teams are joined at the end in a fixed order:
 * inside the warp by shuffles, over the warps through shared memory. Queries that share rows (the beams of a
 * sentence) are neighbouring blocks and find them in the cache. With few queries a block gets more warps, so
 * that the list is walked in fewer turns; a team asks for several rows before it uses the first. Listed rows that do not exist are skipped. */
#include "kernel.cuh"

#define MOST_WARPS 16
#define UNDER_WAY  4 /* rows that a team has asked for before it uses the first */

struct part {
    float m, s, o[8]; /* m in units of log 2 */
};

static __device__ __forceinline__ float finite_base(float m)
{
    return m == -CUDART_INF_F ? 0.f : m;
}

static __device__ __forceinline__ void join(part *a, float m, float s, const float o[8])
{
    float top = fmaxf(a->m, m), base = finite_base(top), f = pow2(a->m - base), g = pow2(m - base);
    a->m = top;
    a->s = a->s * f + s * g;
#pragma unroll
    for (int i = 0; i < 8; i++) a->o[i] = a->o[i] * f + o[i] * g;
}

/* One row into a team's part; q is scaled already. */
template <int LANES>
static __device__ __forceinline__ void take_row(part *p, const float q[8], const float k[8], const float v[8])
{
    float score = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) score = fmaf(q[i], k[i], score);
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) score += __shfl_xor_sync(~0u, score, i);
    join(p, score, 1.f, v);
}

template <class T, int LANES>
static __global__ void __launch_bounds__(MOST_WARPS * 32) listed_kernel(struct neb_attn_listed a, int wide)
{
    constexpr int TEAMS = 32 / LANES, WIDTH = LANES * 8;
    extern __shared__ float shared[]; /* (warps): m, s; (warps, WIDTH): o */
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t r = blockIdx.x / a.heads, head = blockIdx.x % a.heads, kh = head * a.kv_heads / a.heads;
    const int at = lane % LANES * 8, team = warp * TEAMS + lane / LANES, teams = warps * TEAMS;
    const int count = max(0, min(8, (int)a.head_dim - at));
    const int32_t *key = a.key + r * a.max_k;
    const int n = (int)max((int64_t)0, min((int64_t)a.count[r], a.max_k));
    const T *k = (const T *)a.k + kh * a.head_dim + at, *v = (const T *)a.v + kh * a.head_dim + at;
    float q[8];
    get8((const T *)a.q + r * a.ldq + head * a.head_dim + at, q, count, wide);
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] *= a.scale * 1.4426950408889634f;
    part p = {-CUDART_INF_F, 0.f, {0}};
    int next[UNDER_WAY];
#pragma unroll
    for (int u = 0; u < UNDER_WAY; u++) next[u] = u * teams + team < n ? key[u * teams + team] : -1;
    for (int j = 0; j < n;
         j += UNDER_WAY * teams) { /* the same turns for all threads of a warp: they shuffle */
        float kv[UNDER_WAY][8] = {}, vv[UNDER_WAY][8] = {};
        bool there[UNDER_WAY];
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) {
            const int64_t row = next[u];
            const int later = j + (UNDER_WAY + u) * teams + team;
            next[u] = later < n ? key[later] : -1;
            there[u] = row >= 0 && row < a.k_rows;
            if (there[u])
                get8(k + row * a.ldk, kv[u], count, wide), get8(v + row * a.ldv, vv[u], count, wide);
        }
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) {
            if (j + u * teams >= n) break; /* no team has a row */
            const part before = p;
            take_row<LANES>(&p, q, kv[u], vv[u]);
            if (!there[u]) p = before;
        }
    }
#pragma unroll
    for (int i = LANES; i < 32; i <<= 1) {
        float o[8], m = __shfl_xor_sync(~0u, p.m, i), s = __shfl_xor_sync(~0u, p.s, i);
#pragma unroll
        for (int c = 0; c < 8; c++) o[c] = __shfl_xor_sync(~0u, p.o[c], i);
        join(&p, m, s, o);
    }
    float *to = shared + 2 * warps + warp * WIDTH + at;
    if (lane < LANES)
#pragma unroll
        for (int c = 0; c < 8; c++) to[c] = p.o[c];
    if (lane == 0) shared[2 * warp] = p.m, shared[2 * warp + 1] = p.s;
    __syncthreads();
    float top = -CUDART_INF_F, sum = 0.f;
    for (int w = 0; w < warps; w++) top = fmaxf(top, shared[2 * w]);
    top = finite_base(top);
    for (int w = 0; w < warps; w++) sum += shared[2 * w + 1] * pow2(shared[2 * w] - top);
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    T *out = (T *)a.o + r * a.ldo + head * a.head_dim;
    for (int c = threadIdx.x; c < a.head_dim; c += blockDim.x) {
        float x = 0.f;
        for (int w = 0; w < warps; w++) x += shared[2 * warps + w * WIDTH + c] * pow2(shared[2 * w] - top);
        out[c] = from_float<T>(x * inverse);
    }
}

template <class T, int LANES>
static neb_status launch(struct neb_cuda *dev, const struct neb_attn_listed *p, int wide)
{
    const int64_t blocks = p->q_rows * p->heads, turn = 32 / LANES; /* rows a warp reads at a time */
    int warps = 4;
    if (blocks < 4 * (int64_t)dev->sms) warps = 8;
    if (blocks < 2 * (int64_t)dev->sms) warps = MOST_WARPS;
    while (warps > 1 && warps / 2 * turn >= p->max_k) warps /= 2;
    const size_t shared = (size_t)warps * (2 + LANES * 8) * sizeof(float);
    listed_kernel<T, LANES><<<(unsigned)blocks, (unsigned)warps * 32, shared, dev->stream>>>(*p, wide);
    CUDA_LAUNCHED(dev, "attn_listed");
    return NEB_OK;
}

template <class T> static neb_status by_size(struct neb_cuda *dev, const struct neb_attn_listed *p)
{
    const int64_t hd = p->head_dim;
    const int wide = hd * (int64_t)sizeof(T) % 16 == 0 && wide_rows((const T *)p->q, p->ldq) &&
                     wide_rows((const T *)p->k, p->ldk) && wide_rows((const T *)p->v, p->ldv);
    if (hd <= 8) return launch<T, 1>(dev, p, wide);
    if (hd <= 16) return launch<T, 2>(dev, p, wide);
    if (hd <= 32) return launch<T, 4>(dev, p, wide);
    if (hd <= 64) return launch<T, 8>(dev, p, wide);
    if (hd <= 128) return launch<T, 16>(dev, p, wide);
    return launch<T, 32>(dev, p, wide);
}

neb_status neb__cuda_attn_listed(void *ctx, const struct neb_attn_listed *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->heads < 1 || p->kv_heads < 1 || p->heads % p->kv_heads)
        return neb__cuda_fail(dev, NEB_ERR_SHAPE, "cuda attn_listed: %lld heads cannot share %lld key heads",
                              (long long)p->heads, (long long)p->kv_heads);
    if (p->head_dim < 1 || p->head_dim > 256)
        return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED,
                              "cuda attn_listed: head size %lld is not between 1 and 256",
                              (long long)p->head_dim);
    if (p->max_k > INT32_MAX / 2 || p->q_rows > INT32_MAX / p->heads)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT,
                              "cuda attn_listed: %lld queries over %lld rows are too many",
                              (long long)p->q_rows, (long long)p->max_k);
    if (p->q_rows < 1) return NEB_OK;
    NEB_BY_TYPE(dev, p->type, "attn_listed", return by_size<T>(dev, p));
}
