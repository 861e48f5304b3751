/* class_share.cu: cross-entropy over classes that several processes share out.
 *
 * A process has the logits of its classes. First a kernel takes each row's sums over them: the largest logit, the sum
 * of exponentials, the target's logit where it is here, and the sum of all. The processes gather these sums. Then every
 * process combines them in the order of the processes, so all get the same bits, and computes the loss of the row and
 * the gradient of its own logits. A block takes a row. */
#include "kernel.cuh"

struct class_args {
    void *logits; /* (rows, classes) */
    int64_t classes, ld, first, total;
    struct neb_targets t;
    struct neb_loss loss;
    int want_grad, ranks, rank, wide;
};

template <class T> static __global__ void class_sums_kernel(struct class_args a, struct neb_class_sums *out)
{
    __shared__ float shared[33];
    int64_t r = blockIdx.x, target = a.t.target[r] - a.first;
    const T *x = (const T *)a.logits + r * a.ld;
    float max = -CUDART_INF_F, sum = 0.f, total = 0.f;
    for (int64_t c = threadIdx.x * 8; c < a.classes; c += blockDim.x * 8) {
        float v[8], m = max;
        int n = (int)min((int64_t)8, a.classes - c);
        get8(x + c, v, n, a.wide);
        for (int j = 0; j < n; j++) m = fmaxf(m, v[j]);
        if (m == -CUDART_INF_F) continue;
        if (m > max) sum *= __expf(max - m), max = m;
        for (int j = 0; j < n; j++) sum += __expf(v[j] - max), total += v[j];
    }
    float all = block_reduce<true>(max, shared);
    sum = block_reduce<false>(max == -CUDART_INF_F ? 0.f : sum * __expf(max - all), shared);
    total = a.t.smoothing != 0.f ? block_reduce<false>(total, shared) : 0.f;
    if (threadIdx.x) return;
    out[r].max = all;
    out[r].sum = sum;
    out[r].target = target >= 0 && target < a.classes ? to_float(x[target]) : 0.f;
    out[r].all = total;
}

static __device__ struct neb_class_sums combined(const struct neb_class_sums *every, int64_t rows, int ranks)
{
    struct neb_class_sums s = {every->max, 0, 0, 0};
    for (int r = 1; r < ranks; r++) s.max = fmax(s.max, every[rows * r].max);
    for (int r = 0; r < ranks; r++) {
        const struct neb_class_sums *part = &every[rows * r];
        s.sum += part->sum * exp(part->max - s.max);
        s.target += part->target;
        s.all += part->all;
    }
    return s;
}

template <class T>
static __global__ void class_loss_kernel(struct class_args a, const struct neb_class_sums *every,
                                         int64_t rows, float *losses, uint8_t *marks)
{
    __shared__ struct neb_class_sums all;
    int64_t r = blockIdx.x, target = a.t.target[r];
    T *x = (T *)a.logits + r * a.ld;
    float weight = a.loss.weight ? a.loss.weight[r] : 1.f;
    bool valid = target >= 0 && target < a.total;
    float w = valid ? weight * a.loss.scale * a.loss.ctl->loss_scale : 0.f;
    if (threadIdx.x == 0) {
        all = combined(every + r, rows, a.ranks);
        double lse = all.max + log(all.sum), s = a.t.smoothing;
        losses[r] =
            w == 0.f ? 0.f : (float)(w * a.t.ce * (lse - (1 - s) * all.target - s * all.all / a.total));
        marks[r] = valid && weight > 0.f ? (uint8_t)((all.target >= all.max ? 1 : 0) | 2) : 0;
    }
    if (!a.want_grad) return;
    __syncthreads();
    float max = (float)all.max, hard = w * a.t.ce, inv_sum = (float)(1 / all.sum),
          spread = hard * a.t.smoothing / a.total;
    target -= a.first;
    for (int64_t c = threadIdx.x * 8; c < a.classes; c += blockDim.x * 8) {
        float v[8];
        int n = (int)min((int64_t)8, a.classes - c);
        get8(x + c, v, n, a.wide);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j >= n) break;
            v[j] = w == 0.f ? 0.f : hard * __expf(v[j] - max) * inv_sum - spread;
            if (w != 0.f && c + j == target) v[j] -= hard * (1.f - a.t.smoothing);
        }
        put8(x + c, v, n, a.wide);
    }
}

neb_status neb__class_rows(struct neb_cuda *dev, const struct neb_xent *x,
                           const struct neb_class_share *share, struct neb_class_sums *every, float *losses,
                           uint8_t *marks)
{
    struct class_args a = {x->logits,    x->classes,  x->ld,   share->first,
                           share->total, x->t,        x->loss, x->want_grad,
                           share->ranks, share->rank, 0};
    const unsigned threads = 256;
    struct neb_class_sums *own = every + x->rows * share->rank;
    NEB_BY_TYPE(dev, x->type, "linear_xent", a.wide = wide_rows((const T *)x->logits, x->ld);
                class_sums_kernel<T><<<(unsigned)x->rows, threads, 0, dev->stream>>>(a, own));
    CUDA_LAUNCHED(dev, "sums of shared classes");
    NEB_TRY(share->gather(share->arg, every, x->rows));
    NEB_BY_TYPE(dev, x->type, "linear_xent",
                class_loss_kernel<T>
                <<<(unsigned)x->rows, threads, 0, dev->stream>>>(a, every, x->rows, losses, marks));
    CUDA_LAUNCHED(dev, "loss of shared classes");
    return NEB_OK;
}
