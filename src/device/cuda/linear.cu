/* linear.cu: products of row-major matrices, and the linear layer with what surrounds it.
 *
 * A row-major matrix is its transpose to cuBLASLt, so operands swap: y (rows, out) = x w^T is D (out, rows) =
 * w x. Bias, tanh GELU and their gradients are computed in cuBLASLt's epilogues when it supports them for the
 * shape. Everything else needs one more elementwise pass, above all the exact GELU (cuBLASLt knows only the
 * tanh form). */
#include "kernel.cuh"

static __global__ void scale_rows_kernel(void *c, neb_dtype type, int64_t m, int64_t n, int64_t ld,
                                         int64_t stride, float beta)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    int64_t at = blockIdx.y * stride + i / n * ld + i % n;
    if (type == NEB_F32)
        ((float *)c)[at] = beta == 0.f ? 0.f : beta * ((float *)c)[at];
    else
        ((bf16 *)c)[at] = from_float<bf16>(beta == 0.f ? 0.f : beta * to_float(((bf16 *)c)[at]));
}

neb_status neb__cuda_gemm(void *ctx, const struct neb_gemm *g)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    int64_t batch = g->batch < 1 ? 1 : g->batch;
    if (g->m <= 0 || g->n <= 0) return NEB_OK;
    if (g->k <= 0) { /* an empty product */
        dim3 grid((unsigned)neb__ceil_div(g->m * g->n, 256), (unsigned)batch);
        scale_rows_kernel<<<grid, 256, 0, dev->stream>>>(g->c, g->c_type, g->m, g->n, g->ldc, g->stride_c,
                                                         g->beta);
        CUDA_LAUNCHED(dev, "gemm");
        return NEB_OK;
    }
    struct neb_matmul p = {};
    p.a = g->b, p.b = g->a, p.d = g->c;
    p.m = g->n, p.n = g->m, p.k = g->k, p.lda = g->ldb, p.ldb = g->lda, p.ldd = g->ldc;
    p.batch = batch, p.stride_a = g->stride_b, p.stride_b = g->stride_a, p.stride_d = g->stride_c;
    p.ta = g->trans_b, p.tb = g->trans_a;
    p.alpha = g->alpha, p.beta = g->beta, p.ab_type = g->type, p.d_type = g->c_type;
    return neb__cuda_product(dev, &p);
}

/* y = act(pre) over rows that may lie ld apart. */
template <class T, int ACT>
static neb_status act_rows(struct neb_cuda *dev, const T *pre, T *y, int64_t rows, int64_t cols, int64_t ld)
{
    int wide = wide_rows(pre, ld) && wide_rows(y, ld);
    return rows8(dev, rows, cols, "linear activation", [=] __device__(int64_t r, int64_t c, int n) {
        float v[8];
        get8(pre + r * ld + c, v, n, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = act_value<ACT, T>(v[j]);
        put8(y + r * ld + c, v, n, wide);
    });
}

neb_status neb__cuda_linear(void *ctx, const struct neb_linear *l)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (l->rows <= 0 || l->out <= 0) return NEB_OK;
    if (l->acc_y && l->act != NEB_ACT_NONE)
        return neb__cuda_fail(dev, NEB_ERR_INVALID,
                              "cuda linear: acc_y and an activation cannot be combined");
    if (neb__cuda_is_few_rows(l)) return neb__cuda_few_rows(dev, l);
    struct neb_matmul p = {};
    p.a = l->w, p.b = l->x, p.d = l->y;
    p.m = l->out, p.n = l->rows, p.k = l->in, p.lda = l->in, p.ldb = l->ldx, p.ldd = l->ldy, p.batch = 1;
    p.ta = 1, p.alpha = l->alpha, p.beta = l->acc_y ? 1.f : 0.f, p.ab_type = p.d_type = l->type;
    p.epilogue = l->bias ? NEB_EPI_BIAS : NEB_EPI_NONE, p.bias = (void *)l->bias;
    if (l->act == NEB_ACT_GELU_TANH && l->pre && l->type == NEB_BF16 && l->ldy % 8 == 0 &&
        aligned16(l->pre)) {
        struct neb_matmul fused = p;
        fused.epilogue = NEB_EPI_GELU_AUX_BIAS, fused.aux = l->pre, fused.ld_aux = l->ldy;
        if (neb__matmul_supported(dev, &fused)) return neb__cuda_product(dev, &fused);
    }
    if (l->act == NEB_ACT_RELU && !l->pre) { /* no gradient is needed: text is generated */
        struct neb_matmul fused = p;
        fused.epilogue = NEB_EPI_RELU_BIAS;
        if (neb__matmul_supported(dev, &fused)) return neb__cuda_product(dev, &fused);
    }
    if (l->acc_y && l->pre) { /* the sum is in y; `pre` is a copy of it */
        struct neb_copy2d copy = {l->y, l->pre, l->rows, l->out, l->ldy, l->ldy, l->type, l->type};
        NEB_TRY(neb__cuda_product(dev, &p));
        return neb__cuda_copy2d(dev, &copy);
    }
    void *pre = l->pre ? l->pre : l->y;
    p.d = pre;
    NEB_TRY(neb__cuda_product(dev, &p));
    if (l->act == NEB_ACT_NONE && pre == l->y) return NEB_OK;
    NEB_BY_TYPE(
        dev, l->type, "linear",
        NEB_BY_ACT(dev, l->act,
                   return (act_rows<T, ACT>(dev, (const T *)pre, (T *)l->y, l->rows, l->out, l->ldy))));
    return NEB_OK;
}

/* ---- backward ---- */

/* dx = product * act'(pre), and the column sums of dx over the block's rows: the layout of colsum_kernel.
 * cuBLASLt has written `product` into dx, or into a buffer of its own when the result is added to dx. */
template <class T, int ACT>
static __global__ void act_colsum_kernel(const T *product, int64_t ldp, const T *pre, T *dx, int64_t rows,
                                         int64_t cols, int64_t ld, int64_t span, int wide, int acc,
                                         float *partial)
{
    __shared__ float part[8][256 + 8];
    int64_t c = ((int64_t)blockIdx.x * 32 + threadIdx.x) * 8;
    int64_t first = blockIdx.y * span, last = min(rows, first + span);
    int n = (int)max((int64_t)0, min((int64_t)8, cols - c));
    float sum[8] = {0};
    if (n > 0)
#pragma unroll 2
        for (int64_t r = first + threadIdx.y; r < last; r += 8) {
            float g[8], u[8];
            get8(product + r * ldp + c, g, n, wide);
            if (ACT != NEB_ACT_NONE) get8(pre + r * ld + c, u, n, wide);
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (ACT != NEB_ACT_NONE) g[j] *= act_slope<ACT, T>(u[j]);
            if (acc) {
                get8(dx + r * ld + c, u, n, wide);
#pragma unroll
                for (int j = 0; j < 8; j++) g[j] += u[j];
            }
#pragma unroll
            for (int j = 0; j < 8; j++) sum[j] += rounded<T>(g[j]);
            if (dx && (ACT != NEB_ACT_NONE || acc)) put8(dx + r * ld + c, g, n, wide);
        }
    if (!partial) return;
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

static void cut_rows(int64_t rows, int64_t cols, int64_t *tiles, int64_t *splits, int64_t *span)
{
    *tiles = neb__ceil_div(cols, 256);
    *splits = neb__ceil_div(132 * 8, *tiles);
    if (*splits > neb__ceil_div(rows, 32)) *splits = neb__ceil_div(rows, 32);
    *span = neb__ceil_div(rows, *splits);
    *splits = neb__ceil_div(rows, *span);
}

/* Scratch: the product when the result is added to dx, and the column sums in D's type that the epilogue
 * writes. */
int64_t neb__linear_bwd_scratch(struct neb_cuda *dev, const struct neb_linear_bwd *p)
{
    (void)dev;
    int64_t size = (int64_t)neb__type_size(p->type);
    int64_t product =
        p->acc_dx && p->x_act != NEB_ACT_NONE ? neb__ceil_div(p->rows * p->in * size, 256) * 256 : 0;
    return product + neb__ceil_div(p->in * 4, 256) * 256 + neb__ceil_div(p->out * 4, 256) * 256;
}

static neb_status act_and_sums(struct neb_cuda *dev, const struct neb_linear_bwd *l, const void *product,
                               int64_t ldp)
{
    int64_t tiles, splits, span;
    int acc = product != l->dx && l->acc_dx;
    cut_rows(l->rows, l->in, &tiles, &splits, &span);
    if (l->dx_colsum && splits * l->in * sizeof(float) > NEB_CUDA_WORK_BYTES / 2)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda linear_bwd: %lld columns do not fit the workspace",
                              (long long)l->in);
    float *partial = l->dx_colsum ? (float *)dev->work : NULL;
    dim3 grid((unsigned)tiles, (unsigned)splits), block(32, 8);
    NEB_BY_TYPE(dev, l->type, "linear_bwd", {
        int wide = wide_rows((const T *)product, ldp) && wide_rows((const T *)l->dx, l->lddx) &&
                   wide_rows((const T *)l->x_pre, l->lddx);
        NEB_BY_ACT(dev, l->x_act,
                   (act_colsum_kernel<T, ACT><<<grid, block, 0, dev->stream>>>(
                       (const T *)product, ldp, (const T *)l->x_pre, (T *)l->dx, l->rows, l->in, l->lddx,
                       span, wide, acc, partial)));
    });
    CUDA_LAUNCHED(dev, "linear_bwd");
    if (!partial) return NEB_OK;
    return neb__sum_partials(dev, partial, splits, l->in, l->in, l->dx_colsum, l->acc_dx_colsum);
}

/* Computes the column sums of a dx that is not requested. dx is made piece by piece in the second half of the
 * workspace; act_and_sums leaves its partial sums in the first half. */
static neb_status sums_only(struct neb_cuda *dev, const struct neb_linear_bwd *l)
{
    size_t size = neb__type_size(l->type);
    void *room = (char *)dev->work + NEB_CUDA_WORK_BYTES / 2;
    int64_t step = (int64_t)(NEB_CUDA_WORK_BYTES / 2) / (l->in * (int64_t)size);
    if (step < 1)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda linear_bwd: %lld columns do not fit the workspace",
                              (long long)l->in);
    for (int64_t first = 0; first < l->rows; first += step) {
        struct neb_linear_bwd part = *l;
        part.rows = l->rows - first < step ? l->rows - first : step;
        part.g = (const char *)l->g + first * l->ldg * size;
        if (l->x_pre) part.x_pre = (const char *)l->x_pre + first * l->lddx * size;
        part.acc_dx = 0, part.acc_dx_colsum = first > 0 || l->acc_dx_colsum;
        struct neb_matmul p = {};
        p.a = l->w, p.b = part.g, p.d = room;
        p.m = l->in, p.n = part.rows, p.k = l->out, p.lda = l->in, p.ldb = l->ldg, p.ldd = l->in, p.batch = 1;
        p.alpha = l->alpha, p.ab_type = p.d_type = l->type;
        NEB_TRY(neb__cuda_product(dev, &p));
        NEB_TRY(act_and_sums(dev, &part, room, l->in));
    }
    return NEB_OK;
}

/* dst (+)= src, a vector in the activations' type into F32. */
template <class T>
static neb_status add_vector(struct neb_cuda *dev, const T *src, float *dst, int64_t n, int acc)
{
    return each8(dev, n, "linear_bwd bias", [=] __device__(int64_t i, int count) {
        for (int64_t j = i; j < i + count; j++) dst[j] = acc ? dst[j] + to_float(src[j]) : to_float(src[j]);
    });
}

/* How the slope of the tanh GELU and the column sums are computed: the product's epilogue computes both, the
 * slope alone, or neither. cuBLASLt's epilogues are not always faster (on an H200 the sums in the epilogue
 * cost four times the product), so the measured times decide. Without a measurement the slope is fused. */
enum slope { SLOPE_APART, SLOPE_FUSED, SLOPE_AND_SUMS };

static enum slope choose_slope(struct neb_cuda *dev, const struct neb_linear_bwd *l, struct neb_matmul plain,
                               struct neb_matmul *fused, void *sums)
{
    const float bytes_per_us = 3e6f, size = 2.f * (float)(l->rows * l->in);
    struct neb_matmul both = *fused;
    fused->epilogue = NEB_EPI_DGELU;
    float apart = neb__matmul_micros(dev, &plain), slope = neb__matmul_micros(dev, fused), all = -1.f;
    if (l->dx_colsum) {
        both.epilogue = NEB_EPI_DGELU_BGRAD, both.bias = sums;
        all = neb__matmul_micros(dev, &both);
    }
    if (slope < 0.f) return SLOPE_APART;
    if (apart <= 0.f || slope == 0.f) return SLOPE_FUSED;
    apart += 3.f * size / bytes_per_us;
    if (l->dx_colsum) slope += size / bytes_per_us;
    if (all > 0.f && all < slope && all < apart) {
        *fused = both;
        return SLOPE_AND_SUMS;
    }
    return slope < apart ? SLOPE_FUSED : SLOPE_APART;
}

static neb_status input_gradient(struct neb_cuda *dev, const struct neb_linear_bwd *l, char *scratch,
                                 void *sums)
{
    struct neb_matmul p = {};
    p.a = l->w, p.b = l->g, p.d = l->dx;
    p.m = l->in, p.n = l->rows, p.k = l->out, p.lda = l->in, p.ldb = l->ldg, p.ldd = l->lddx, p.batch = 1;
    p.alpha = l->alpha, p.ab_type = p.d_type = l->type;
    int act = l->x_act != NEB_ACT_NONE;
    if (l->x_act == NEB_ACT_GELU_TANH && l->type == NEB_BF16 && !l->acc_dx && l->lddx % 8 == 0 &&
        aligned16(l->x_pre)) {
        struct neb_matmul fused = p;
        fused.aux = (void *)l->x_pre, fused.ld_aux = l->lddx;
        switch (choose_slope(dev, l, p, &fused, sums)) {
        case SLOPE_AND_SUMS:
            NEB_TRY(neb__cuda_product(dev, &fused));
            return add_vector(dev, (const bf16 *)sums, l->dx_colsum, l->in, l->acc_dx_colsum);
        case SLOPE_FUSED: {
            NEB_TRY(neb__cuda_product(dev, &fused));
            if (!l->dx_colsum) return NEB_OK;
            struct neb_colsum c = {l->dx, l->dx_colsum, l->rows, l->in, l->lddx, l->acc_dx_colsum, l->type};
            return neb__cuda_colsum(dev, &c);
        }
        case SLOPE_APART: break;
        }
    }
    if (act && l->acc_dx)
        p.d = scratch, p.ldd = l->in;
    else
        p.beta = l->acc_dx ? 1.f : 0.f;
    NEB_TRY(neb__cuda_product(dev, &p));
    if (!act && !l->dx_colsum) return NEB_OK;
    return act_and_sums(dev, l, p.d, p.ldd);
}

static neb_status weight_gradient(struct neb_cuda *dev, const struct neb_linear_bwd *l)
{
    struct neb_matmul p = {};
    p.a = l->x, p.b = l->g, p.d = l->dw;
    p.m = l->in, p.n = l->out, p.k = l->rows, p.lda = l->ldx, p.ldb = l->ldg, p.ldd = l->in, p.batch = 1;
    p.tb = 1, p.alpha = l->alpha, p.beta = l->acc_dw ? 1.f : 0.f, p.ab_type = l->type, p.d_type = NEB_F32;
    NEB_TRY(neb__cuda_product(dev, &p));
    if (!l->db) return NEB_OK;
    struct neb_colsum c = {l->g, l->db, l->rows, l->out, l->ldg, l->acc_db, l->type};
    return neb__cuda_colsum(dev, &c);
}

neb_status neb__cuda_linear_bwd(void *ctx, const struct neb_linear_bwd *l)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (l->rows <= 0 || l->in <= 0 || l->out <= 0) return NEB_OK;
    char *in_sums = (char *)l->scratch, *out_sums = in_sums + neb__ceil_div(l->in * 4, 256) * 256;
    char *product = out_sums + neb__ceil_div(l->out * 4, 256) * 256;
    if (l->dw)
        NEB_TRY(weight_gradient(dev, l));
    else if (l->db) {
        struct neb_colsum c = {l->g, l->db, l->rows, l->out, l->ldg, l->acc_db, l->type};
        NEB_TRY(neb__cuda_colsum(dev, &c));
    }
    if (!l->dx) return l->dx_colsum ? sums_only(dev, l) : NEB_OK;
    return input_gradient(dev, l, product, in_sums);
}
