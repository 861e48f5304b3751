/* loss.cu: losses over rows, with their gradients in the same pass.
 *
 * A block takes a row. Cross-entropy reads the logits once for the maximum and the sums of exponentials (kept
 * online: sums are rescaled when the maximum grows), and once more, mostly from L2, to overwrite them with
 * the gradient. The losses of the rows are written out, and one more kernel adds them up in row order, so a
 * sum of losses has the same bits every time. */
#include "kernel.cuh"

#define MAX_TEACHER 1024

struct online { /* max, sum of exp(x - max), sum of exp((x - max) / T), sum of x */
    float max, sum, soft, total;
};

static __device__ __forceinline__ void online_add(online &a, const float *v, int n, float inv_t, bool kd)
{
    float m = a.max;
    for (int j = 0; j < n; j++) m = fmaxf(m, v[j]);
    if (m == -CUDART_INF_F) return;
    if (m > a.max) {
        a.sum *= __expf(a.max - m);
        if (kd) a.soft *= __expf((a.max - m) * inv_t);
        a.max = m;
    }
    for (int j = 0; j < n; j++) {
        a.sum += __expf(v[j] - m);
        if (kd) a.soft += __expf((v[j] - m) * inv_t);
        a.total += v[j];
    }
}

/* Softmax of the teacher's row at temperature T: all threads get maximum and sum. Ids outside the classes do
 * not count; the sum is 0 when no id counts. */
static __device__ void teacher_sums(const float *x, const int32_t *ids, int64_t classes, int64_t k,
                                    float inv_t, float *shared, float *max, float *sum)
{
    float m = -CUDART_INF_F, s = 0.f;
    auto valid = [=](int64_t i) { return !ids || (ids[i] >= 0 && ids[i] < classes); };
    for (int64_t i = threadIdx.x; i < k; i += blockDim.x)
        if (valid(i)) m = fmaxf(m, x[i]);
    m = block_reduce<true>(m, shared);
    for (int64_t i = threadIdx.x; i < k; i += blockDim.x)
        if (valid(i)) s += __expf((x[i] - m) * inv_t);
    *sum = block_reduce<false>(s, shared);
    *max = m;
}

template <class T>
static __global__ void xent_kernel(struct neb_xent p, int wide, float *losses, uint8_t *marks)
{
    __shared__ float shared[33];
    __shared__ int32_t top_id[MAX_TEACHER];
    __shared__ float top_p[MAX_TEACHER], top_x[MAX_TEACHER];
    int64_t r = blockIdx.x;
    T *x = (T *)p.logits + r * p.ld;
    const struct neb_targets &t = p.t;
    bool kd = t.kd != 0.f, dense = kd && !t.teacher_ids, sparse = kd && t.teacher_ids;
    int target = t.target ? t.target[r] : 0;
    float weight = (p.loss.weight ? p.loss.weight[r] : 1.f);
    bool counted = weight > 0.f && target >= 0 && target < p.classes;
    float w = counted || (weight < 0.f && target >= 0) ? weight * p.loss.scale * p.loss.ctl->loss_scale : 0.f;
    if (w == 0.f && !counted) { /* nothing to read */
        const float zero[8] = {0};
        if (p.want_grad)
            for (int64_t c = threadIdx.x * 8; c < p.classes; c += blockDim.x * 8)
                put8(x + c, zero, (int)min((int64_t)8, p.classes - c), wide);
        if (threadIdx.x == 0) losses[r] = 0.f, marks[r] = 0;
        return;
    }
    float inv_t = kd ? 1.f / t.temperature : 1.f;
    online a = {-CUDART_INF_F, 0.f, 0.f, 0.f};
    for (int64_t c = threadIdx.x * 8; c < p.classes; c += blockDim.x * 8) {
        float v[8];
        int n = (int)min((int64_t)8, p.classes - c);
        get8(x + c, v, n, wide);
        online_add(a, v, n, inv_t, kd);
    }
    float max = block_reduce<true>(a.max, shared);
    float shift = a.max == -CUDART_INF_F ? 0.f : __expf(a.max - max);
    float sum = block_reduce<false>(a.sum * shift, shared);
    float soft = kd ? block_reduce<false>(
                          a.max == -CUDART_INF_F ? 0.f : a.soft * __expf((a.max - max) * inv_t), shared)
                    : 1.f;
    float total = t.smoothing != 0.f ? block_reduce<false>(a.total, shared) : 0.f;
    float lse = max + logf(sum), soft_lse = max * inv_t + logf(soft), loss = 0.f;
    float at_target = t.target ? to_float(x[target]) : 0.f;
    if (t.target)
        loss = t.ce * ((1.f - t.smoothing) * (lse - at_target) + t.smoothing * (lse - total / p.classes));

    const float *teacher = kd ? t.teacher_logits + r * (dense ? p.classes : t.teacher_k) : NULL;
    float teacher_max = 0.f, teacher_sum = 1.f;
    if (kd) {
        int64_t k = dense ? p.classes : t.teacher_k;
        const int32_t *ids = sparse ? t.teacher_ids + r * k : NULL;
        teacher_sums(teacher, ids, p.classes, k, inv_t, shared, &teacher_max, &teacher_sum);
        if (teacher_sum == 0.f) kd = dense = sparse = false; /* the teacher has no valid id in this row */
    }
    if (kd) {
        int64_t k = dense ? p.classes : t.teacher_k;
        float kl = 0.f;
        for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
            int64_t id = dense ? i : t.teacher_ids[r * t.teacher_k + i];
            bool valid = id >= 0 && id < p.classes;
            float q = __expf((teacher[i] - teacher_max) * inv_t) / teacher_sum,
                  value = valid ? to_float(x[id]) : 0.f;
            float log_q = (teacher[i] - teacher_max) * inv_t - logf(teacher_sum);
            if (q > 0.f && valid) kl += q * (log_q - (value * inv_t - soft_lse));
            if (sparse) top_id[i] = valid ? (int32_t)id : -1, top_p[i] = q, top_x[i] = value;
        }
        loss += t.kd * t.temperature * t.temperature * block_reduce<false>(kl, shared);
    }
    if (threadIdx.x == 0) {
        losses[r] = w * loss;
        marks[r] = (uint8_t)((t.target && at_target >= max ? 1 : 0) | 2);
    }
    if (!p.want_grad) return;
    __syncthreads(); /* every read of x above is done */
    float hard = t.target ? w * t.ce : 0.f, spread = hard * t.smoothing / p.classes, inv_sum = 1.f / sum;
    float pull = kd ? w * t.kd * t.temperature : 0.f, inv_soft = 1.f / soft;
    auto gradient = [&](float v, int64_t c) {
        float g = hard * __expf(v - max) * inv_sum - spread;
        if (t.target && c == target) g -= hard * (1.f - t.smoothing);
        if (kd) g += pull * __expf((v - max) * inv_t) * inv_soft;
        if (dense) g -= pull * __expf((teacher[c] - teacher_max) * inv_t) / teacher_sum;
        return g;
    };
    for (int64_t c = threadIdx.x * 8; c < p.classes; c += blockDim.x * 8) {
        float v[8];
        int n = (int)min((int64_t)8, p.classes - c);
        get8(x + c, v, n, wide);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < n) v[j] = gradient(v[j], c + j);
        put8(x + c, v, n, wide);
    }
    if (!sparse) return;
    __syncthreads();
    for (int i = threadIdx.x; i < t.teacher_k; i += blockDim.x)
        if (top_id[i] >= 0) x[top_id[i]] = from_float<T>(gradient(top_x[i], top_id[i]) - pull * top_p[i]);
}

/* Plain cross-entropy of aligned bf16 logits, on which training spends its time. Exponentials are in base 2.
 * The target's own gradient is corrected afterwards, which saves a comparison for every class. Long rows take
 * large blocks: fewer rows are in flight, so the second pass still finds them in L2. */
template <int FAST_THREADS, bool SMOOTH>
static __global__ void __launch_bounds__(FAST_THREADS)
    xent_fast_kernel(struct neb_xent p, float *losses, uint8_t *marks)
{
    constexpr float LOG2E = 1.4426950408889634f;
    __shared__ float shared[33];
    int64_t r = blockIdx.x;
    bf16 *x = (bf16 *)p.logits + r * p.ld;
    int target = p.t.target[r], classes = (int)p.classes, whole = classes / 8 * 8;
    float weight = p.loss.weight ? p.loss.weight[r] : 1.f;
    bool counted = weight > 0.f && target >= 0 && target < classes;
    if (!counted) {
        if (p.want_grad)
            for (int c = threadIdx.x * 8; c < whole; c += FAST_THREADS * 8)
                *(uint4 *)(x + c) = make_uint4(0, 0, 0, 0);
        if (p.want_grad && whole + threadIdx.x < classes) x[whole + threadIdx.x] = from_float<bf16>(0.f);
        if (threadIdx.x == 0) losses[r] = 0.f, marks[r] = 0;
        return;
    }
    float max = -CUDART_INF_F, sum = 0.f, last = 0.f, total = 0.f;
    bool tail = whole + threadIdx.x < classes;
    if (tail) last = to_float(x[whole + threadIdx.x]), max = last * LOG2E, sum = 1.f, total = last;
#pragma unroll 2
    for (int c = threadIdx.x * 8; c < whole; c += FAST_THREADS * 8) {
        float v[8];
        load8(x + c, v);
        float m =
            fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7]))) *
            LOG2E;
        if (m > max) sum *= pow2(max - m), max = m;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum += pow2(fmaf(v[j], LOG2E, -max));
            if (SMOOTH) total += v[j];
        }
    }
    float all = block_reduce<true>(max, shared);
    sum = block_reduce<false>(max == -CUDART_INF_F ? 0.f : sum * pow2(max - all), shared);
    float at_target = to_float(x[target]), w = weight * p.loss.scale * p.loss.ctl->loss_scale;
    float smoothing = SMOOTH ? p.t.smoothing : 0.f;
    if (SMOOTH) total = block_reduce<false>(total, shared);
    float base = all + log2f(sum); /* log2 of the sum of exponentials */
    if (threadIdx.x == 0) {
        losses[r] = w * p.t.ce * (base / LOG2E - (1.f - smoothing) * at_target - smoothing * total / classes);
        marks[r] = (uint8_t)((at_target * LOG2E >= all ? 1 : 0) | 2);
    }
    if (!p.want_grad) return;
    __syncthreads(); /* x[target] is read */
    float hard = w * p.t.ce, spread = SMOOTH ? hard * smoothing / classes : 0.f;
#pragma unroll 2
    for (int c = threadIdx.x * 8; c < whole; c += FAST_THREADS * 8) {
        float v[8];
        load8(x + c, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = hard * pow2(fmaf(v[j], LOG2E, -base)) - spread;
        store8(x + c, v);
    }
    if (tail) x[whole + threadIdx.x] = from_float<bf16>(hard * pow2(fmaf(last, LOG2E, -base)) - spread);
    __syncthreads();
    if (threadIdx.x == 0)
        x[target] =
            from_float<bf16>(hard * (pow2(fmaf(at_target, LOG2E, -base)) - (1.f - smoothing)) - spread);
}

neb_status neb__xent_rows(struct neb_cuda *dev, const struct neb_xent *p, float *losses, uint8_t *marks)
{
    if (p->t.kd != 0.f && p->t.teacher_ids && p->t.teacher_k > MAX_TEACHER)
        return neb__cuda_fail(
            dev, NEB_ERR_LIMIT,
            "cuda cross-entropy: a teacher with %lld values per row; at most %d are possible",
            (long long)p->t.teacher_k, MAX_TEACHER);
    if (p->type == NEB_BF16 && p->t.target && p->t.kd == 0.f && wide_rows((const bf16 *)p->logits, p->ld)) {
        bool large = p->classes > 16384;
        auto kernel = large ? xent_fast_kernel<1024, false> : xent_fast_kernel<256, false>;
        if (p->t.smoothing != 0.f)
            kernel = large ? xent_fast_kernel<1024, true> : xent_fast_kernel<256, true>;
        kernel<<<(unsigned)p->rows, large ? 1024 : 256, 0, dev->stream>>>(*p, losses, marks);
        CUDA_LAUNCHED(dev, "cross-entropy");
        return NEB_OK;
    }
    unsigned threads = p->classes > 2048 ? 256 : 128;
    if (p->classes > 8192) threads = 1024;
    NEB_BY_TYPE(dev, p->type, "cross-entropy",
                xent_kernel<T><<<(unsigned)p->rows, threads, 0, dev->stream>>>(
                    *p, wide_rows((const T *)p->logits, p->ld), losses, marks));
    CUDA_LAUNCHED(dev, "cross-entropy");
    return NEB_OK;
}

/* Checks that the losses and marks of this many rows fit into the workspace, and places them there. */
static neb_status rows_fit(struct neb_cuda *dev, int64_t rows, float **losses, uint8_t **marks)
{
    if (rows > (int64_t)(NEB_CUDA_WORK_BYTES / 8))
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda: a loss over %lld rows does not fit the workspace",
                              (long long)rows);
    *losses = (float *)dev->work;
    *marks = (uint8_t *)(*losses + rows);
    return NEB_OK;
}

neb_status neb__cuda_xent(void *ctx, const struct neb_xent *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    float *losses;
    uint8_t *marks;
    if (p->rows <= 0) return NEB_OK;
    NEB_TRY(rows_fit(dev, p->rows, &losses, &marks));
    NEB_TRY(neb__xent_rows(dev, p, losses, marks));
    return neb__sum_losses(dev, losses, marks, p->rows, p->loss.ctl, p->loss.slot);
}

/* ---- binary cross-entropy ---- */

template <class T> static __global__ void bce_kernel(struct neb_bce p, float *losses, uint8_t *marks)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= p.rows) return;
    float x = to_float(((const T *)p.x)[r]), weight = p.loss.weight ? p.loss.weight[r] : 1.f;
    int t = p.target[r];
    float w = t < 0 ? 0.f : weight * p.loss.scale * p.loss.ctl->loss_scale;
    float loss = fmaxf(x, 0.f) - x * (float)t + log1pf(expf(-fabsf(x)));
    bool counted = t >= 0 && weight > 0.f, right = counted && (x > 0.f) == (t == 1);
    losses[r] = w == 0.f ? 0.f : w * loss;
    marks[r] = (uint8_t)(right | counted << 1 | (counted && t == 1) << 2 | (right && t == 1) << 3);
    if (!p.dx) return;
    float g = w == 0.f ? 0.f : w * (1.f / (1.f + expf(-x)) - (float)t);
    T *dx = (T *)p.dx + r;
    *dx = from_float<T>(p.acc_dx ? to_float(*dx) + g : g);
}

neb_status neb__cuda_bce(void *ctx, const struct neb_bce *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    float *losses;
    uint8_t *marks;
    if (p->rows <= 0) return NEB_OK;
    NEB_TRY(rows_fit(dev, p->rows, &losses, &marks));
    NEB_BY_TYPE(dev, p->type, "bce",
                bce_kernel<T>
                <<<(unsigned)neb__ceil_div(p->rows, 128), 128, 0, dev->stream>>>(*p, losses, marks));
    CUDA_LAUNCHED(dev, "bce");
    return neb__sum_losses(dev, losses, marks, p->rows, p->loss.ctl, p->loss.slot);
}

/* ---- losses between two rows ---- */

template <class T> static __device__ void add_to(void *base, int64_t at, float g, int acc)
{
    T *p = (T *)base + at;
    *p = from_float<T>(acc ? to_float(*p) + g : g);
}

template <class T, bool COSINE> static __global__ void pair_kernel(struct neb_pair_loss p, float *losses)
{
    __shared__ float shared[33];
    int64_t r = blockIdx.x;
    const T *x = (const T *)p.x + r * p.d, *y = (const T *)p.y + r * p.d;
    float weight = p.loss.weight ? p.loss.weight[r] : 1.f, w = weight * p.loss.scale * p.loss.ctl->loss_scale;
    float xx = 0.f, yy = 0.f, xy = 0.f;
    for (int64_t c = threadIdx.x; c < p.d; c += blockDim.x) {
        float a = to_float(x[c]), b = to_float(y[c]);
        if (COSINE)
            xx += a * a, yy += b * b, xy += a * b;
        else
            xx += (a - b) * (a - b);
    }
    xx = block_reduce<false>(xx, shared);
    if (COSINE) yy = block_reduce<false>(yy, shared), xy = block_reduce<false>(xy, shared);
    float norm = sqrtf(xx) * sqrtf(yy), inv = COSINE ? (norm > 0.f ? 1.f / norm : 0.f) : 0.f;
    if (threadIdx.x == 0) losses[r] = w == 0.f ? 0.f : w * (COSINE ? 1.f - xy * inv : xx / p.d);
    for (int64_t c = threadIdx.x; c < p.d; c += blockDim.x) {
        float a = to_float(x[c]), b = to_float(y[c]), ga, gb;
        if (COSINE) {
            ga = w * inv * (xx > 0.f ? a * xy / xx - b : 0.f);
            gb = w * inv * (yy > 0.f ? b * xy / yy - a : 0.f);
        } else {
            ga = w * 2.f / p.d * (a - b);
            gb = -ga;
        }
        if (w == 0.f) ga = gb = 0.f;
        if (p.dx) add_to<T>(p.dx, r * p.d + c, ga, p.acc_dx);
        if (p.dy) add_to<T>(p.dy, r * p.d + c, gb, p.acc_dy);
    }
}

template <bool COSINE> static neb_status pair_loss(struct neb_cuda *dev, const struct neb_pair_loss *p)
{
    float *losses;
    uint8_t *marks;
    if (p->rows <= 0 || p->d <= 0) return NEB_OK;
    NEB_TRY(rows_fit(dev, p->rows, &losses, &marks));
    NEB_BY_TYPE(dev, p->type, "mse or cosine",
                (pair_kernel<T, COSINE><<<(unsigned)p->rows, 128, 0, dev->stream>>>(*p, losses)));
    CUDA_LAUNCHED(dev, "mse or cosine");
    return neb__sum_losses(dev, losses, NULL, p->rows, p->loss.ctl, p->loss.slot);
}

neb_status neb__cuda_mse(void *ctx, const struct neb_pair_loss *p)
{
    return pair_loss<false>(neb__cuda(ctx), p);
}

neb_status neb__cuda_cosine(void *ctx, const struct neb_pair_loss *p)
{
    return pair_loss<true>(neb__cuda(ctx), p);
}
