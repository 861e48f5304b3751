/* update.cu: the optimizer's step over the whole parameter slab in one launch.
 *
 * A block takes 2048 values; its first thread finds the segment of the first of them by bisection, the others
 * walk on from there. Learning rate, bias corrections, clipping factor and the non-finite flag are read from
 * ctl on the device, so a skipped step needs nothing from the host. Values between segments do not change. */
#include "kernel.cuh"

#define SPAN 2048

struct rates {
    float lr, clip, inv_bias1, inv_bias2, beta1, beta2, eps;
};

static __device__ __forceinline__ float adamw(float x, float g, float &m, float &v, float decay, float lr,
                                              const rates &a)
{
    m = a.beta1 * m + (1.f - a.beta1) * g;
    v = a.beta2 * v + (1.f - a.beta2) * g * g;
    x -= lr * decay * x;
    return x - lr * (m * a.inv_bias1) / (sqrtf(v * a.inv_bias2) + a.eps);
}

static __device__ __forceinline__ float sgd(float x, float g, float *m, float decay, float lr, const rates &a)
{
    if (m) g = *m = a.beta1 * *m + g;
    x -= lr * decay * x;
    return x - lr * g;
}

static __device__ int64_t first_segment(const struct neb_segment *s, int64_t n, int64_t at)
{
    int64_t lo = 0, hi = n; /* the first segment that ends after `at` */
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (s[mid].offset + s[mid].n <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static __device__ void update_one(const struct neb_update &p, const struct neb_segment &s, int64_t i,
                                  const rates &a)
{
    float lr = a.lr * s.lr_scale, x = p.param[i], g = p.grad[i] * a.clip;
    if (p.v) {
        float m = p.m[i], v = p.v[i];
        x = adamw(x, g, m, v, s.decay, lr, a);
        p.m[i] = m, p.v[i] = v;
    } else
        x = sgd(x, g, p.m ? p.m + i : NULL, s.decay, lr, a);
    p.param[i] = x;
    if (p.shadow) ((bf16 *)p.shadow)[i] = __float2bfloat16_rn(x);
}

static __global__ void update_kernel(struct neb_update p, int wide)
{
    __shared__ int64_t start;
    if (p.ctl->nonfinite) return;
    int64_t origin = p.segments[0].offset & ~(int64_t)7;
    int64_t block = origin + (int64_t)blockIdx.x * SPAN, i = block + threadIdx.x * 8;
    if (threadIdx.x == 0) start = first_segment(p.segments, p.n_segments, block);
    __syncthreads();
    rates a = {p.ctl->lr, p.ctl->clip, 1.f / p.ctl->bias1, 1.f / p.ctl->bias2, p.beta1, p.beta2, p.eps};
    int64_t k = start;
    while (k < p.n_segments && p.segments[k].offset + p.segments[k].n <= i) k++;
    if (k >= p.n_segments) return;
    struct neb_segment s = p.segments[k];
    if (wide && p.v && s.offset <= i && i + 8 <= s.offset + s.n) {
        float x[8], g[8], m[8], v[8], lr = a.lr * s.lr_scale;
        load8(p.param + i, x);
        load8(p.grad + i, g);
        load8(p.m + i, m);
        load8(p.v + i, v);
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = adamw(x[j], g[j] * a.clip, m[j], v[j], s.decay, lr, a);
        store8(p.param + i, x);
        store8(p.m + i, m);
        store8(p.v + i, v);
        if (p.shadow) store8((bf16 *)p.shadow + i, x);
        return;
    }
    for (int j = 0; j < 8; j++) {
        while (k < p.n_segments && p.segments[k].offset + p.segments[k].n <= i + j) k++;
        if (k >= p.n_segments) return;
        if (p.segments[k].offset <= i + j) update_one(p, p.segments[k], i + j, a);
    }
}

neb_status neb__cuda_update(void *ctx, const struct neb_update *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->n <= 0 || p->n_segments <= 0) return NEB_OK;
    if (p->v && !p->m)
        return neb__cuda_fail(dev, NEB_ERR_INVALID,
                              "cuda update: second moments are given without first moments");
    int wide = aligned16(p->param) && aligned16(p->grad) && aligned16(p->m) && aligned16(p->v) &&
               aligned16(p->shadow);
    update_kernel<<<(unsigned)neb__ceil_div(p->n + 8, SPAN), SPAN / 8, 0, dev->stream>>>(*p, wide);
    CUDA_LAUNCHED(dev, "update");
    return NEB_OK;
}
