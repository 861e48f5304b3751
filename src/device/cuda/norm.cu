/* norm.cu: s = residual + drop(x), y = norm(s) * gamma + beta, and its backward, each in one pass.
 *
 * One warp owns a row and keeps it in registers: 32 lanes times G groups of eight values, so d <= 256 G.
 * Statistics are computed from s as stored (rounded), so forward, backward and the unfused composition see
 * the same s. In the backward every warp also sums its rows' part of dgamma and dbeta in registers; the
 * blocks' partial sums meet in the workspace and are added in order. Rows longer than 2048, or not a multiple
 * of eight, take the slow kernels, which use a block per row and read values again instead of keeping
 * them. */
#include "kernel.cuh"

#define WARPS      4
#define BWD_BLOCKS (132 * 3) /* a constant, because the order of the sums must not depend on the GPU */

template <class T, int G> static __global__ void __launch_bounds__(WARPS * 32) norm_kernel(struct neb_norm p)
{
    int lane = threadIdx.x % 32;
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, d = p.d;
    if (r >= p.rows) return;
    float v[G][8], sum = 0.f;
    neb_dropper drop = make_dropper(p.drop);
#pragma unroll
    for (int g = 0; g < G; g++) {
        int64_t c = (g * 32 + lane) * 8;
        if (c >= d) continue;
        load8((const T *)p.x + r * d + c, v[g]);
        if (p.residual) {
            float u[8];
            load8((const T *)p.residual + r * d + c, u);
            if (drop.threshold)
                drop8(drop, (uint32_t)(c / 8), (uint32_t)p.drop.position[r], p.drop.sample[r], v[g]);
#pragma unroll
            for (int j = 0; j < 8; j++) v[g][j] = rounded<T>(u[j] + v[g][j]);
            store8((T *)p.s + r * d + c, v[g]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[g][j];
    }
    if (!p.y) return;
    float mean = p.kind == NEB_NORM_RMS ? 0.f : warp_sum(sum) / d, square = 0.f;
#pragma unroll
    for (int g = 0; g < G; g++)
        if ((g * 32 + lane) * 8 < d)
#pragma unroll
            for (int j = 0; j < 8; j++) square += (v[g][j] - mean) * (v[g][j] - mean);
    float rstd = rsqrtf(warp_sum(square) / d + p.eps);
    if (lane == 0) {
        if (p.mean) p.mean[r] = mean;
        if (p.rstd) p.rstd[r] = rstd;
    }
#pragma unroll
    for (int g = 0; g < G; g++) {
        int64_t c = (g * 32 + lane) * 8;
        if (c >= d) continue;
        float gamma[8], beta[8] = {0};
        load8(p.gamma + c, gamma);
        if (p.beta) load8(p.beta + c, beta);
#pragma unroll
        for (int j = 0; j < 8; j++) v[g][j] = (v[g][j] - mean) * rstd * gamma[j] + beta[j];
        store8((T *)p.y + r * d + c, v[g]);
    }
}

/* For any d: one block per row. s, or x when there is no residual, is read again from memory. */
template <class T> static __global__ void norm_slow_kernel(struct neb_norm p)
{
    __shared__ float shared[33];
    int64_t r = blockIdx.x, d = p.d;
    const T *x = (const T *)p.x + r * d, *s = p.residual ? (const T *)p.s + r * d : x;
    neb_dropper drop = make_dropper(p.drop);
    float sum = 0.f, square = 0.f;
    for (int64_t c = threadIdx.x * 8; c < d; c += blockDim.x * 8) {
        int n = (int)min((int64_t)8, d - c);
        float v[8];
        get8(x + c, v, n, 0);
        if (p.residual) {
            float u[8];
            get8((const T *)p.residual + r * d + c, u, n, 0);
            if (drop.threshold)
                drop8(drop, (uint32_t)(c / 8), (uint32_t)p.drop.position[r], p.drop.sample[r], v);
            for (int j = 0; j < 8; j++) v[j] = rounded<T>(u[j] + v[j]);
            put8((T *)p.s + r * d + c, v, n, 0);
        }
        for (int j = 0; j < n; j++) sum += v[j];
    }
    if (!p.y) return;
    float mean = p.kind == NEB_NORM_RMS ? 0.f : block_reduce<false>(sum, shared) / d;
    for (int64_t c = threadIdx.x * 8; c < d; c += blockDim.x * 8)
        for (int64_t j = c; j < min(c + 8, d); j++) {
            float v = to_float(s[j]) - mean;
            square += v * v;
        }
    float rstd = rsqrtf(block_reduce<false>(square, shared) / d + p.eps);
    if (threadIdx.x == 0) {
        if (p.mean) p.mean[r] = mean;
        if (p.rstd) p.rstd[r] = rstd;
    }
    for (int64_t c = threadIdx.x * 8; c < d; c += blockDim.x * 8)
        for (int64_t j = c; j < min(c + 8, d); j++)
            ((T *)p.y)[r * d + j] =
                from_float<T>((to_float(s[j]) - mean) * rstd * p.gamma[j] + (p.beta ? p.beta[j] : 0.f));
}

/* Whether 16-byte accesses are possible for all of these pointers (NULL counts as possible). */
static int all_aligned(const void *const *p, int n)
{
    for (int i = 0; i < n; i++)
        if (!aligned16(p[i])) return 0;
    return 1;
}

template <class T, int G> static void launch_norm(struct neb_cuda *dev, const struct neb_norm &p)
{
    norm_kernel<T, G><<<(unsigned)neb__ceil_div(p.rows, WARPS), WARPS * 32, 0, dev->stream>>>(p);
}

template <class T> static neb_status norm(struct neb_cuda *dev, const struct neb_norm &p)
{
    const void *const pointers[] = {p.x, p.residual, p.gamma, p.beta, p.s, p.y};
    if (p.d % 8 || p.d > 2048 || !all_aligned(pointers, 6))
        norm_slow_kernel<T><<<(unsigned)p.rows, 256, 0, dev->stream>>>(p);
    else if (p.d <= 256)
        launch_norm<T, 1>(dev, p);
    else if (p.d <= 512)
        launch_norm<T, 2>(dev, p);
    else if (p.d <= 768)
        launch_norm<T, 3>(dev, p);
    else if (p.d <= 1024)
        launch_norm<T, 4>(dev, p);
    else
        launch_norm<T, 8>(dev, p);
    CUDA_LAUNCHED(dev, "norm");
    return NEB_OK;
}

neb_status neb__cuda_norm(void *ctx, const struct neb_norm *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->rows <= 0 || p->d <= 0) return NEB_OK;
    struct neb_norm a = *p;
    if (!a.residual) a.drop.threshold = 0;
    NEB_BY_TYPE(dev, p->type, "norm", return norm<T>(dev, a));
}

/* ---- backward ---- */

/* Eight values as they lie in memory. */
template <class T> struct raw8;
template <> struct raw8<bf16> {
    uint4 a;
};
template <> struct raw8<float> {
    float4 a, b;
};
template <class T> static __device__ __forceinline__ void unpack(const raw8<T> &r, float v[8])
{
    load8((const T *)&r, v);
}

/* The inputs of a row's backward, fetched one row ahead. */
template <class T, int G> struct row_input {
    raw8<T> s[G], dy[G], more[G];
    float mean, rstd;
};
template <class T, int G>
static __device__ __forceinline__ void fetch_row(row_input<T, G> &in, const struct neb_norm_bwd &p, int64_t r)
{
    if (r >= p.rows) return;
    in.mean = p.kind == NEB_NORM_RMS ? 0.f : p.mean[r];
    in.rstd = p.rstd[r];
#pragma unroll
    for (int i = 0; i < G; i++) {
        int64_t c = (i * 32 + threadIdx.x % 32) * 8;
        if (c >= p.d) continue;
        in.s[i] = *(const raw8<T> *)((const T *)p.s + r * p.d + c);
        in.dy[i] = *(const raw8<T> *)((const T *)p.dy + r * p.d + c);
        if (p.ds_in) in.more[i] = *(const raw8<T> *)((const T *)p.ds_in + r * p.d + c);
    }
}

/* partial: (gridDim.x, 2, d): the block's sums for dgamma and dbeta. */
template <class T, int G>
static __global__ void __launch_bounds__(WARPS * 32, G <= 3 ? 3 : 1)
    norm_bwd_kernel(struct neb_norm_bwd p, float *partial)
{
    extern __shared__ float sums[]; /* (WARPS, d) when partial */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t d = p.d;
    float dg[G][8] = {{0}}, db[G][8] = {{0}};
    neb_dropper drop = make_dropper(p.drop);
    bool rms = p.kind == NEB_NORM_RMS;
    int64_t step = (int64_t)gridDim.x * WARPS, first = (int64_t)blockIdx.x * WARPS + warp;
    row_input<T, G> in;
    fetch_row(in, p, first);
    for (int64_t r = first; r < p.rows; r += step) {
        float h[G][8], g[G][8], c1 = 0.f, c2 = 0.f, mean = in.mean, rstd = in.rstd;
        raw8<T> more[G];
#pragma unroll
        for (int i = 0; i < G; i++) {
            if ((i * 32 + lane) * 8 >= d) continue;
            unpack<T>(in.s[i], h[i]);
            unpack<T>(in.dy[i], g[i]);
            more[i] = in.more[i];
        }
        fetch_row(in, p, r + step);
#pragma unroll
        for (int i = 0; i < G; i++) {
            int64_t c = (i * 32 + lane) * 8;
            if (c >= d) continue;
            float gamma[8];
            load8(p.gamma + c, gamma);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                h[i][j] = (h[i][j] - mean) * rstd;
                dg[i][j] += g[i][j] * h[i][j];
                db[i][j] += g[i][j];
                g[i][j] *= gamma[j];
                c1 += g[i][j];
                c2 += g[i][j] * h[i][j];
            }
        }
        c1 = rms ? 0.f : warp_sum(c1) / d;
        c2 = warp_sum(c2) / d;
#pragma unroll
        for (int i = 0; i < G; i++) {
            int64_t c = (i * 32 + lane) * 8;
            if (c >= d) continue;
            float extra[8] = {0};
            if (p.ds_in) unpack<T>(more[i], extra);
#pragma unroll
            for (int j = 0; j < 8; j++) g[i][j] = rstd * (g[i][j] - c1 - h[i][j] * c2) + extra[j];
            if (p.ds) store8((T *)p.ds + r * d + c, g[i]);
            if (!p.dx) continue;
#pragma unroll
            for (int j = 0; j < 8; j++) g[i][j] = rounded<T>(g[i][j]);
            if (drop.threshold)
                drop8(drop, (uint32_t)(c / 8), (uint32_t)p.drop.position[r], p.drop.sample[r], g[i]);
            if (p.acc_dx) {
                float old[8];
                load8((const T *)p.dx + r * d + c, old);
#pragma unroll
                for (int j = 0; j < 8; j++) g[i][j] += old[j];
            }
            store8((T *)p.dx + r * d + c, g[i]);
        }
    }
    if (!partial) return;
    for (int which = 0; which < 2; which++) {
#pragma unroll
        for (int i = 0; i < G; i++) {
            int64_t c = (i * 32 + lane) * 8;
            if (c < d) store8(sums + warp * d + c, which ? db[i] : dg[i]);
        }
        __syncthreads();
        for (int64_t c = threadIdx.x; c < d; c += WARPS * 32) {
            float sum = 0.f;
            for (int w = 0; w < WARPS; w++) sum += sums[w * d + c];
            partial[(blockIdx.x * 2 + which) * d + c] = sum;
        }
        __syncthreads();
    }
}

/* ds and dx for any d, one block per row. norm_params_kernel computes dgamma and dbeta. */
template <class T> static __global__ void norm_bwd_slow_kernel(struct neb_norm_bwd p)
{
    __shared__ float shared[33];
    int64_t r = blockIdx.x, d = p.d;
    neb_dropper drop = make_dropper(p.drop);
    float mean = 0.f, rstd = 0.f, c1 = 0.f, c2 = 0.f;
    const T *s = (const T *)p.s + r * d, *dy = (const T *)p.dy + r * d;
    if (p.dy) {
        mean = p.kind == NEB_NORM_RMS ? 0.f : p.mean[r], rstd = p.rstd[r];
        for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
            float g = to_float(dy[c]) * p.gamma[c];
            c1 += g;
            c2 += g * (to_float(s[c]) - mean) * rstd;
        }
        c1 = block_reduce<false>(c1, shared) / d;
        c2 = block_reduce<false>(c2, shared) / d;
        if (p.kind == NEB_NORM_RMS) c1 = 0.f;
    }
    for (int64_t c = threadIdx.x * 8; c < d; c += blockDim.x * 8) {
        int n = (int)min((int64_t)8, d - c);
        float v[8] = {0};
        if (p.ds_in) get8((const T *)p.ds_in + r * d + c, v, n, 0);
        for (int j = 0; p.dy && j < n; j++)
            v[j] +=
                rstd * (to_float(dy[c + j]) * p.gamma[c + j] - c1 - (to_float(s[c + j]) - mean) * rstd * c2);
        if (p.ds) put8((T *)p.ds + r * d + c, v, n, 0);
        if (!p.dx) continue;
        for (int j = 0; j < 8; j++) v[j] = rounded<T>(v[j]);
        if (drop.threshold) drop8(drop, (uint32_t)(c / 8), (uint32_t)p.drop.position[r], p.drop.sample[r], v);
        float old[8] = {0};
        if (p.acc_dx) get8((const T *)p.dx + r * d + c, old, n, 0);
        for (int j = 0; j < 8; j++) v[j] += old[j];
        put8((T *)p.dx + r * d + c, v, n, 0);
    }
}

template <class T>
static __global__ void norm_params_kernel(struct neb_norm_bwd p, int64_t span, float *partial)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * span;
    if (c >= p.d) return;
    float dg = 0.f, db = 0.f;
    for (int64_t r = first; r < min(p.rows, first + span); r++) {
        float g = to_float(((const T *)p.dy)[r * p.d + c]);
        float mean = p.kind == NEB_NORM_RMS ? 0.f : p.mean[r];
        dg += g * (to_float(((const T *)p.s)[r * p.d + c]) - mean) * p.rstd[r];
        db += g;
    }
    partial[(blockIdx.y * 2) * p.d + c] = dg;
    partial[(blockIdx.y * 2 + 1) * p.d + c] = db;
}

int64_t neb__norm_bwd_scratch(struct neb_cuda *dev, const struct neb_norm_bwd *p)
{
    (void)dev;
    return p->dgamma || p->dbeta || p->rows ? (int64_t)BWD_BLOCKS * 2 * p->d * 4 : 0;
}

template <class T, int G>
static neb_status launch_bwd(struct neb_cuda *dev, const struct neb_norm_bwd &p, unsigned blocks,
                             float *partial)
{
    size_t shared = partial ? WARPS * p.d * sizeof(float) : 0;
    norm_bwd_kernel<T, G><<<blocks, WARPS * 32, shared, dev->stream>>>(p, partial);
    CUDA_LAUNCHED(dev, "norm_bwd");
    return NEB_OK;
}

template <class T> static neb_status norm_bwd(struct neb_cuda *dev, const struct neb_norm_bwd &p)
{
    const void *const pointers[] = {p.s, p.dy, p.ds_in, p.gamma, p.ds, p.dx};
    int want = p.dy && (p.dgamma || p.dbeta);
    float *partial = want ? (float *)p.scratch : NULL;
    int64_t blocks = BWD_BLOCKS;
    if (blocks > neb__ceil_div(p.rows, WARPS)) blocks = neb__ceil_div(p.rows, WARPS);
    unsigned n = (unsigned)blocks;
    if (!p.dy || p.d % 8 || p.d > 2048 || !all_aligned(pointers, 6)) {
        norm_bwd_slow_kernel<T><<<(unsigned)p.rows, 256, 0, dev->stream>>>(p);
        CUDA_LAUNCHED(dev, "norm_bwd");
        if (want) {
            int64_t span = neb__ceil_div(p.rows, blocks);
            blocks = neb__ceil_div(p.rows, span);
            dim3 grid((unsigned)neb__ceil_div(p.d, 128), (unsigned)blocks);
            norm_params_kernel<T><<<grid, 128, 0, dev->stream>>>(p, span, partial);
            CUDA_LAUNCHED(dev, "norm_bwd");
        }
    } else if (p.d <= 256)
        NEB_TRY((launch_bwd<T, 1>(dev, p, n, partial)));
    else if (p.d <= 512)
        NEB_TRY((launch_bwd<T, 2>(dev, p, n, partial)));
    else if (p.d <= 768)
        NEB_TRY((launch_bwd<T, 3>(dev, p, n, partial)));
    else if (p.d <= 1024)
        NEB_TRY((launch_bwd<T, 4>(dev, p, n, partial)));
    else
        NEB_TRY((launch_bwd<T, 8>(dev, p, n, partial)));
    if (want && p.dgamma)
        NEB_TRY(neb__sum_partials(dev, partial, blocks, 2 * p.d, p.d, p.dgamma, p.acc_dgamma));
    if (want && p.dbeta)
        NEB_TRY(neb__sum_partials(dev, partial + p.d, blocks, 2 * p.d, p.d, p.dbeta, p.acc_dbeta));
    return NEB_OK;
}

neb_status neb__cuda_norm_bwd(void *ctx, const struct neb_norm_bwd *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->rows <= 0 || p->d <= 0) return NEB_OK;
    NEB_BY_TYPE(dev, p->type, "norm_bwd", return norm_bwd<T>(dev, *p));
}
