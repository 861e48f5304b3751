/* reduce.cu: sums over rows, sequences and whole slabs, always in an order that depends on the sizes alone.
 *
 * A sum runs in two launches: every block leaves a partial result in the device's workspace, and a second
 * kernel adds the partials in their order. There are no atomics on floating-point values, so the bits are the
 * same every time. */
#include "kernel.cuh"

static __global__ void sum_partials_kernel(const float *partial, int64_t n, int64_t stride, int64_t cols,
                                           float *out, int acc)
{
    __shared__ float part[8][33];
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0.f;
    if (c < cols)
        for (int64_t b = threadIdx.y; b < n; b += 8) sum += partial[b * stride + c];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
        for (int i = 1; i < 8; i++) sum += part[i][threadIdx.x];
        out[c] = acc ? out[c] + sum : sum;
    }
}

neb_status neb__sum_partials(struct neb_cuda *dev, const float *partial, int64_t n, int64_t stride,
                             int64_t cols, float *out, int acc)
{
    sum_partials_kernel<<<(unsigned)neb__ceil_div(cols, 32), dim3(32, 8), 0, dev->stream>>>(
        partial, n, stride, cols, out, acc);
    CUDA_LAUNCHED(dev, "sum of partials");
    return NEB_OK;
}

/* ---- column sums ---- */

/* A block sums rows [y * span, …) of 256 columns: 32 threads across, 8 rows at a time. */
template <class T>
static __global__ void colsum_kernel(const T *x, int64_t rows, int64_t cols, int64_t ld, int64_t span,
                                     int wide, float *partial)
{
    __shared__ float part[8][256 + 8];
    int64_t c = ((int64_t)blockIdx.x * 32 + threadIdx.x) * 8;
    int64_t first = blockIdx.y * span, last = min(rows, first + span);
    int n = (int)max((int64_t)0, min((int64_t)8, cols - c));
    float sum[8] = {0};
    if (n > 0)
#pragma unroll 4
        for (int64_t r = first + threadIdx.y; r < last; r += 8) {
            float v[8];
            get8(x + r * ld + c, v, n, wide);
#pragma unroll
            for (int j = 0; j < 8; j++) sum[j] += v[j];
        }
#pragma unroll
    for (int j = 0; j < 8; j++) part[threadIdx.y][threadIdx.x * 8 + j] = sum[j];
    __syncthreads();
    int t = threadIdx.y * 32 + threadIdx.x;
    int64_t column = (int64_t)blockIdx.x * 256 + t;
    if (column >= cols) return;
    float total = 0.f;
    for (int i = 0; i < 8; i++) total += part[i][t];
    partial[blockIdx.y * cols + column] = total;
}

neb_status neb__cuda_colsum(void *ctx, const struct neb_colsum *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->cols <= 0) return NEB_OK;
    if (p->rows <= 0) {
        if (!p->acc) CUDA_TRY(dev, cudaMemsetAsync(p->out, 0, p->cols * sizeof(float), dev->stream));
        return NEB_OK;
    }
    int64_t tiles = neb__ceil_div(p->cols, 256);
    int64_t room = (int64_t)(NEB_CUDA_WORK_BYTES / sizeof(float)) / p->cols;
    int64_t splits =
        neb__ceil_div(132 * 6, tiles); /* not dev->sms: the order of the sum must not depend on it */
    if (splits > neb__ceil_div(p->rows, 64)) splits = neb__ceil_div(p->rows, 64);
    if (splits > room) splits = room;
    if (splits < 1)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda colsum: %lld columns do not fit the workspace",
                              (long long)p->cols);
    int64_t span = neb__ceil_div(p->rows, splits);
    splits = neb__ceil_div(p->rows, span);
    float *partial = splits == 1 && !p->acc ? p->out : (float *)dev->work;
    dim3 grid((unsigned)tiles, (unsigned)splits), block(32, 8);
    NEB_BY_TYPE(dev, p->type, "colsum",
                colsum_kernel<T>
                <<<grid, block, 0, dev->stream>>>((const T *)p->x, p->rows, p->cols, p->ldx, span,
                                                  wide_rows((const T *)p->x, p->ldx), partial));
    CUDA_LAUNCHED(dev, "colsum");
    if (partial == p->out) return NEB_OK;
    return neb__sum_partials(dev, partial, splits, p->cols, p->cols, p->out, p->acc);
}

/* ---- mean over sequences ---- */

template <class T>
static __global__ void pool_kernel(const T *x, T *y, const int32_t *starts, int rows, int64_t d)
{
    int64_t s = blockIdx.y, c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int first = max(starts[s], 0), last = min(starts[s + 1], rows);
    if (c >= d) return;
    float sum = 0.f;
    for (int r = first; r < last; r++) sum += to_float(x[r * d + c]);
    y[s * d + c] = from_float<T>(last > first ? sum / (last - first) : 0.f);
}

/* One block per row; bisection finds the row's sequence. */
template <class T>
static __global__ void pool_bwd_kernel(const T *dy, T *dx, const int32_t *starts, int sequences, int64_t d,
                                       int acc)
{
    int64_t r = blockIdx.x;
    int lo = 0, hi = sequences; /* the last s with starts[s] <= r, if any */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (starts[mid + 1] <= r)
            lo = mid + 1;
        else
            hi = mid;
    }
    bool inside = lo < sequences && starts[lo] <= r;
    if (!inside && acc) return;
    float scale = inside ? 1.f / (starts[lo + 1] - starts[lo]) : 0.f;
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
        float v = inside ? to_float(dy[lo * d + c]) * scale : 0.f;
        dx[r * d + c] = from_float<T>(acc ? to_float(dx[r * d + c]) + v : v);
    }
}

neb_status neb__cuda_pool(void *ctx, const struct neb_pool_args *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->sequences <= 0 || p->d <= 0) return NEB_OK;
    if (p->sequences > 65535)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda pool: more than 65535 sequences are not possible");
    dim3 grid((unsigned)neb__ceil_div(p->d, 128), (unsigned)p->sequences);
    NEB_BY_TYPE(dev, p->type, "pool",
                pool_kernel<T>
                <<<grid, 128, 0, dev->stream>>>((const T *)p->x, (T *)p->y, p->starts, (int)p->rows, p->d));
    CUDA_LAUNCHED(dev, "pool");
    return NEB_OK;
}

neb_status neb__cuda_pool_bwd(void *ctx, const struct neb_pool_args *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->rows <= 0 || p->d <= 0) return NEB_OK;
    NEB_BY_TYPE(dev, p->type, "pool_bwd",
                pool_bwd_kernel<T><<<(unsigned)p->rows, 128, 0, dev->stream>>>(
                    (const T *)p->dy, (T *)p->dx, p->starts, (int)p->sequences, p->d, p->acc_dx));
    CUDA_LAUNCHED(dev, "pool_bwd");
    return NEB_OK;
}

/* ---- the gradient's norm, and what follows from it ---- */

#define SUMSQ_BLOCKS 1024

static __global__ void sumsq_kernel(const float *x, int64_t n, int wide, float *partial)
{
    __shared__ float shared[33];
    float sum = 0.f;
    int64_t step = (int64_t)gridDim.x * blockDim.x * 8;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8; i < n; i += step) {
        float v[8];
        get8(x + i, v, (int)min((int64_t)8, n - i), wide);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[j] * v[j];
    }
    sum = block_reduce<false>(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void sumsq_finish_kernel(const float *partial, struct neb_ctl *ctl)
{
    __shared__ float shared[33];
    float sum = block_reduce<false>(partial[threadIdx.x], shared);
    if (threadIdx.x == 0) ctl->norm2 += sum;
}

neb_status neb__cuda_sumsq(void *ctx, const struct neb_sumsq *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->blocks) return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED, "cuda: sumsq: sums of blocks");
    if (p->n <= 0) return NEB_OK;
    float *partial = (float *)dev->work;
    sumsq_kernel<<<SUMSQ_BLOCKS, 256, 0, dev->stream>>>(p->x, p->n, aligned16(p->x), partial);
    sumsq_finish_kernel<<<1, SUMSQ_BLOCKS, 0, dev->stream>>>(partial, p->ctl);
    CUDA_LAUNCHED(dev, "sumsq");
    return NEB_OK;
}

static __global__ void clip_kernel(struct neb_ctl *ctl)
{
    bool bad = ctl->nonfinite != 0 || !isfinite(ctl->norm2);
    for (int i = 0; i < 8; i++) bad |= !isfinite(ctl->loss[i]);
    float norm = sqrtf(ctl->norm2), clip = 1.f;
    if (ctl->max_norm > 0.f && norm > ctl->max_norm) clip = ctl->max_norm / norm;
    ctl->nonfinite = bad;
    ctl->clip = bad ? 0.f : clip;
}

neb_status neb__cuda_clip(void *ctx, const struct neb_clip *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    clip_kernel<<<1, 1, 0, dev->stream>>>(p->ctl);
    CUDA_LAUNCHED(dev, "clip");
    return NEB_OK;
}

/* ---- losses of rows into ctl ---- */

static __global__ void sum_losses_kernel(const float *loss, const uint8_t *marks, int64_t rows,
                                         struct neb_ctl *ctl, int slot)
{
    __shared__ float shared[33];
    float sum = 0.f, count[4] = {0};
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) {
        sum += loss[r];
        int m = marks ? marks[r] : 0;
#pragma unroll
        for (int j = 0; j < 4; j++) count[j] += (float)(m >> j & 1);
    }
    sum = block_reduce<false>(sum, shared);
#pragma unroll
    for (int j = 0; j < 4; j++) count[j] = marks ? block_reduce<false>(count[j], shared) : 0.f;
    if (threadIdx.x) return;
    ctl->loss[slot] += sum;
    if (!isfinite(sum)) ctl->nonfinite = 1;
    for (int j = 0; j < 4; j++)
        if (count[j] != 0.f) ctl->counts[j] += count[j];
}

neb_status neb__sum_losses(struct neb_cuda *dev, const float *loss, const uint8_t *marks, int64_t rows,
                           struct neb_ctl *ctl, int slot)
{
    if (slot < 0 || slot >= 8)
        return neb__cuda_fail(dev, NEB_ERR_INVALID, "cuda: loss slot %d is not between 0 and 7", slot);
    sum_losses_kernel<<<1, 1024, 0, dev->stream>>>(loss, marks, rows, ctl, slot);
    CUDA_LAUNCHED(dev, "sum of losses");
    return NEB_OK;
}
