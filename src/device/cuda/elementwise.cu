/* elementwise.cu: the operations that work element by element: copies with conversion, sums, products,
 * activations, biases, gated units, dropout, rotary positions. They are bound by memory, so a thread reads or
 * writes 16 bytes per access. */
#include "kernel.cuh"

template <class S, class D> static neb_status copy_rows(struct neb_cuda *dev, const struct neb_copy2d &a)
{
    const S *src = (const S *)a.src;
    D *dst = (D *)a.dst;
    int64_t lds = a.ld_src, ldd = a.ld_dst;
    int ws = wide_rows(src, lds), wd = wide_rows(dst, ldd);
    return rows8(dev, a.rows, a.cols, "copy2d", [=] __device__(int64_t r, int64_t c, int n) {
        float v[8];
        get8(src + r * lds + c, v, n, ws);
        put8(dst + r * ldd + c, v, n, wd);
    });
}

neb_status neb__cuda_copy2d(void *ctx, const struct neb_copy2d *a)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (a->rows <= 0 || a->cols <= 0) return NEB_OK;
    if (a->src_type == NEB_F32 && a->dst_type == NEB_F32) return copy_rows<float, float>(dev, *a);
    if (a->src_type == NEB_BF16 && a->dst_type == NEB_BF16) return copy_rows<bf16, bf16>(dev, *a);
    if (a->src_type == a->dst_type) {
        size_t w = neb__type_size(a->src_type);
        CUDA_TRY(dev, cudaMemcpy2DAsync(a->dst, a->ld_dst * w, a->src, a->ld_src * w, a->cols * w, a->rows,
                                        cudaMemcpyDeviceToDevice, dev->stream));
        return NEB_OK;
    }
    if (a->src_type == NEB_F32 && a->dst_type == NEB_BF16) return copy_rows<float, bf16>(dev, *a);
    if (a->src_type == NEB_BF16 && a->dst_type == NEB_F32) return copy_rows<bf16, float>(dev, *a);
    return neb__cuda_fail(dev, NEB_ERR_DTYPE, "cuda copy2d: cannot convert type %d to type %d", a->src_type,
                          a->dst_type);
}

template <class T> static neb_status axpby(struct neb_cuda *dev, const struct neb_axpby &p)
{
    const T *x = (const T *)p.x;
    T *y = (T *)p.y;
    float a = p.a, b = p.b;
    int wide = aligned16(x) && aligned16(y);
    return each8(dev, p.n, "axpby", [=] __device__(int64_t i, int n) {
        float u[8], v[8] = {0};
        get8(x + i, u, n, wide);
        if (b != 0.f) get8(y + i, v, n, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = a * u[j] + b * v[j];
        put8(y + i, v, n, wide);
    });
}

neb_status neb__cuda_axpby(void *ctx, const struct neb_axpby *p)
{
    NEB_BY_TYPE(neb__cuda(ctx), p->type, "axpby", return axpby<T>(neb__cuda(ctx), *p));
}

template <class T> static neb_status mul(struct neb_cuda *dev, const struct neb_mul &p)
{
    const T *x = (const T *)p.x, *y = (const T *)p.y;
    T *z = (T *)p.z;
    int acc = p.acc, wide = aligned16(x) && aligned16(y) && aligned16(z);
    return each8(dev, p.n, "mul", [=] __device__(int64_t i, int n) {
        float u[8], v[8], w[8] = {0};
        get8(x + i, u, n, wide);
        get8(y + i, v, n, wide);
        if (acc) get8(z + i, w, n, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] += u[j] * v[j];
        put8(z + i, w, n, wide);
    });
}

neb_status neb__cuda_mul(void *ctx, const struct neb_mul *p)
{
    NEB_BY_TYPE(neb__cuda(ctx), p->type, "mul", return mul<T>(neb__cuda(ctx), *p));
}

template <class T, int ACT> static neb_status act_forward(struct neb_cuda *dev, const struct neb_act_args &p)
{
    const T *x = (const T *)p.x;
    T *y = (T *)p.y;
    int wide = aligned16(x) && aligned16(y);
    return each8(dev, p.n, "act", [=] __device__(int64_t i, int n) {
        float v[8];
        get8(x + i, v, n, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = act_value<ACT, T>(v[j]);
        put8(y + i, v, n, wide);
    });
}

template <class T, int ACT> static neb_status act_backward(struct neb_cuda *dev, const struct neb_act_args &p)
{
    const T *x = (const T *)p.x, *dy = (const T *)p.dy;
    T *dx = (T *)p.dx;
    int acc = p.acc_dx, wide = aligned16(x) && aligned16(dy) && aligned16(dx);
    return each8(dev, p.n, "act_bwd", [=] __device__(int64_t i, int n) {
        float u[8], g[8], v[8] = {0};
        get8(x + i, u, n, wide);
        get8(dy + i, g, n, wide);
        if (acc) get8(dx + i, v, n, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += g[j] * act_slope<ACT, T>(u[j]);
        put8(dx + i, v, n, wide);
    });
}

neb_status neb__cuda_act(void *ctx, const struct neb_act_args *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_BY_TYPE(dev, p->type, "act", NEB_BY_ACT(dev, p->act, return (act_forward<T, ACT>(dev, *p))));
    return NEB_OK;
}

neb_status neb__cuda_act_bwd(void *ctx, const struct neb_act_args *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_BY_TYPE(dev, p->type, "act_bwd", NEB_BY_ACT(dev, p->act, return (act_backward<T, ACT>(dev, *p))));
    return NEB_OK;
}

template <class T, class B> static neb_status add_bias(struct neb_cuda *dev, const struct neb_bias &p)
{
    T *y = (T *)p.y;
    const B *bias = (const B *)p.bias;
    int64_t ld = p.cols;
    int wide = wide_rows(y, ld), wide_bias = aligned16(bias);
    return rows8(dev, p.rows, p.cols, "bias", [=] __device__(int64_t r, int64_t c, int n) {
        float u[8], v[8];
        get8(y + r * ld + c, u, n, wide);
        get8(bias + c, v, n, wide_bias);
#pragma unroll
        for (int j = 0; j < 8; j++) u[j] += v[j];
        put8(y + r * ld + c, u, n, wide);
    });
}

neb_status neb__cuda_bias(void *ctx, const struct neb_bias *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->bias_type == NEB_F32) NEB_BY_TYPE(dev, p->type, "bias", return (add_bias<T, float>(dev, *p)));
    if (p->bias_type == NEB_BF16) NEB_BY_TYPE(dev, p->type, "bias", return (add_bias<T, bf16>(dev, *p)));
    return neb__cuda_fail(dev, NEB_ERR_DTYPE, "cuda bias: type %d is neither F32 nor BF16", p->bias_type);
}

template <class T> static neb_status swiglu(struct neb_cuda *dev, const struct neb_swiglu &p)
{
    const T *x = (const T *)p.x;
    T *y = (T *)p.y;
    int64_t n = p.n;
    int wide = wide_rows(x, n) && wide_rows(y, n);
    return rows8(dev, p.rows, n, "swiglu", [=] __device__(int64_t r, int64_t c, int k) {
        float g[8], u[8];
        get8(x + r * 2 * n + c, g, k, wide);
        get8(x + r * 2 * n + n + c, u, k, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) u[j] *= act_value<NEB_ACT_SILU, T>(g[j]);
        put8(y + r * n + c, u, k, wide);
    });
}

template <class T> static neb_status swiglu_backward(struct neb_cuda *dev, const struct neb_swiglu &p)
{
    const T *x = (const T *)p.x, *dy = (const T *)p.dy;
    T *dx = (T *)p.dx;
    int64_t n = p.n;
    int wide = wide_rows(x, n) && wide_rows(dy, n) && wide_rows(dx, n);
    return rows8(dev, p.rows, n, "swiglu_bwd", [=] __device__(int64_t r, int64_t c, int k) {
        float g[8], u[8], d[8];
        get8(x + r * 2 * n + c, g, k, wide);
        get8(x + r * 2 * n + n + c, u, k, wide);
        get8(dy + r * n + c, d, k, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float up = u[j];
            u[j] = d[j] * act_value<NEB_ACT_SILU, T>(g[j]);
            g[j] = d[j] * up * act_slope<NEB_ACT_SILU, T>(g[j]);
        }
        put8(dx + r * 2 * n + c, g, k, wide);
        put8(dx + r * 2 * n + n + c, u, k, wide);
    });
}

neb_status neb__cuda_swiglu(void *ctx, const struct neb_swiglu *p)
{
    NEB_BY_TYPE(neb__cuda(ctx), p->type, "swiglu", return swiglu<T>(neb__cuda(ctx), *p));
}

neb_status neb__cuda_swiglu_bwd(void *ctx, const struct neb_swiglu *p)
{
    NEB_BY_TYPE(neb__cuda(ctx), p->type, "swiglu_bwd", return swiglu_backward<T>(neb__cuda(ctx), *p));
}

template <class T> static neb_status dropout(struct neb_cuda *dev, const struct neb_dropout_args &p)
{
    const T *x = (const T *)p.x;
    T *y = (T *)p.y;
    int64_t ld = p.cols;
    int acc = p.acc, wide = wide_rows(x, ld) && wide_rows(y, ld);
    struct neb_dropout drop = p.drop;
    return rows8(dev, p.rows, p.cols, "dropout", [=] __device__(int64_t r, int64_t c, int n) {
        float u[8], v[8] = {0};
        neb_dropper d = make_dropper(drop);
        get8(x + r * ld + c, u, n, wide);
        if (acc) get8(y + r * ld + c, v, n, wide);
        if (d.threshold) drop8(d, (uint32_t)(c / 8), (uint32_t)drop.position[r], drop.sample[r], u);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += u[j];
        put8(y + r * ld + c, v, n, wide);
    });
}

neb_status neb__cuda_dropout(void *ctx, const struct neb_dropout_args *p)
{
    NEB_BY_TYPE(neb__cuda(ctx), p->type, "dropout", return dropout<T>(neb__cuda(ctx), *p));
}

static __device__ double stretched(double f, neb_rope_scale s)
{
    const double turns = (double)s.original * f / (2 * 3.14159265358979323846);
    if (!(s.factor > 0) || (s.original > 0 && turns > (double)s.high)) return f;
    if (!(s.original > 0) || turns < (double)s.low) return f / (double)s.factor;
    double mix = (turns - (double)s.low) / ((double)s.high - (double)s.low);
    return mix * f + (1 - mix) * f / (double)s.factor;
}

/* One thread rotates one pair in all heads of a row, because the sine and cosine are the expensive part. */
template <class T>
static __global__ void rope_kernel(T *x, const int32_t *position, int64_t rows, int heads, int half,
                                   int64_t ld, float base, float sign, neb_rope_scale scale)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, r = i / half;
    int j = (int)(i - r * half);
    if (r >= rows) return;
    double angle = (double)position[r] * stretched(pow((double)base, -(double)j / half), scale);
    double s, c;
    sincos(angle, &s, &c);
    float sn = sign * (float)s, cs = (float)c;
    T *p = x + r * ld + j;
    for (int h = 0; h < heads; h++, p += 2 * half) {
        float a = to_float(p[0]), b = to_float(p[half]);
        p[0] = from_float<T>(a * cs - b * sn);
        p[half] = from_float<T>(a * sn + b * cs);
    }
}

neb_status neb__cuda_rope(void *ctx, const struct neb_rope *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->rows <= 0 || p->heads <= 0) return NEB_OK;
    if (p->head_dim % 2)
        return neb__cuda_fail(dev, NEB_ERR_SHAPE, "cuda rope: head size %lld is not even",
                              (long long)p->head_dim);
    int half = (int)(p->head_dim / 2);
    unsigned blocks = (unsigned)neb__ceil_div(p->rows * half, 128);
    NEB_BY_TYPE(dev, p->type, "rope",
                rope_kernel<T>
                <<<blocks, 128, 0, dev->stream>>>((T *)p->x, p->position, p->rows, (int)p->heads, half,
                                                  p->ldx, p->base, p->inverse ? -1.f : 1.f, p->scale));
    CUDA_LAUNCHED(dev, "rope");
    return NEB_OK;
}
