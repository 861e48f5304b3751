/* linear.c: linear layers: products whose epilogue adds the bias and applies the activation; backward, the products for
 * inputs and weights. The output layer with its loss runs chunk by chunk of rows: logits in F32, their loss and gradient
 * in place, then the gradients of input and weights. A chunk's logits take at most CHUNK_BYTES and are never kept. */
#include "opencl.h"

#define CHUNK_BYTES ((int64_t)512 << 20)

neb_status neb__ocl_linear(void *ctx, const struct neb_linear *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_type(dev, "linear", a->type));
    const struct neb_ocl_product p = {.a = a->x,
                                      .b = a->w,
                                      .c = a->y,
                                      .a_type = a->type,
                                      .b_type = a->type,
                                      .c_type = a->type,
                                      .m = a->rows,
                                      .n = a->out,
                                      .k = a->in,
                                      .lda = a->ldx,
                                      .ldb = a->in,
                                      .ldc = a->ldy,
                                      .trans_b = 1,
                                      .alpha = a->alpha,
                                      .beta = a->acc_y ? 1.0f : 0.0f,
                                      .bias = a->bias,
                                      .bias_type = a->type,
                                      .pre = a->pre,
                                      .act = a->act};
    return neb__ocl_product(dev, &p);
}

/* dx = alpha g w, times the slope of the activation that made x. Without dx, its column sums need a place for it. */
static neb_status grad_x(struct neb_ocl *dev, const struct neb_linear_bwd *a)
{
    void *dx = a->dx ? a->dx : a->scratch;
    const struct neb_ocl_product p = {.a = a->g,
                                      .b = a->w,
                                      .c = dx,
                                      .a_type = a->type,
                                      .b_type = a->type,
                                      .c_type = a->type,
                                      .m = a->rows,
                                      .n = a->in,
                                      .k = a->out,
                                      .lda = a->ldg,
                                      .ldb = a->in,
                                      .ldc = a->lddx,
                                      .alpha = a->alpha,
                                      .beta = a->dx && a->acc_dx ? 1.0f : 0.0f,
                                      .x_pre = a->x_pre,
                                      .slope = a->x_act};
    NEB_TRY(neb__ocl_product(dev, &p));
    if (!a->dx_colsum) return NEB_OK;
    const struct neb_colsum sums = {dx, a->dx_colsum, a->rows, a->in, a->lddx, a->acc_dx_colsum, a->type};
    return neb__ocl_colsum(dev, &sums);
}

static neb_status grad_w(struct neb_ocl *dev, const void *g, neb_dtype g_type, int64_t ldg, const void *x,
                         neb_dtype x_type, int64_t ldx, int64_t rows, int64_t in, int64_t out, float alpha,
                         int acc, float *dw)
{
    const struct neb_ocl_product p = {.a = g,
                                      .b = x,
                                      .c = dw,
                                      .a_type = g_type,
                                      .b_type = x_type,
                                      .c_type = NEB_F32,
                                      .m = out,
                                      .n = in,
                                      .k = rows,
                                      .lda = ldg,
                                      .ldb = ldx,
                                      .ldc = in,
                                      .trans_a = 1,
                                      .alpha = alpha,
                                      .beta = acc ? 1.0f : 0.0f};
    return neb__ocl_product(dev, &p);
}

neb_status neb__ocl_linear_bwd(void *ctx, const struct neb_linear_bwd *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_type(dev, "linear_bwd", a->type));
    if (a->db) {
        const struct neb_colsum sums = {a->g, a->db, a->rows, a->out, a->ldg, a->acc_db, a->type};
        NEB_TRY(neb__ocl_colsum(dev, &sums));
    }
    if (a->dw)
        NEB_TRY(grad_w(dev, a->g, a->type, a->ldg, a->x, a->type, a->ldx, a->rows, a->in, a->out, a->alpha,
                       a->acc_dw, a->dw));
    return a->dx || a->dx_colsum ? grad_x(dev, a) : NEB_OK;
}

/* ---- the output layer with its loss ---- */

int64_t neb__ocl_xent_rows(const struct neb_linear_xent *a)
{
    if (a->rows <= 0 || a->classes <= 0) return 0;
    int64_t most = CHUNK_BYTES / (a->classes * 4);
    if (most < 1) most = 1;
    int64_t chunks = neb__ocl_ceil(a->rows, most);
    return neb__ocl_ceil(a->rows, chunks);
}

static neb_status chunk(struct neb_ocl *dev, const struct neb_linear_xent *a, int64_t first, int64_t rows)
{
    const size_t size = neb__ocl_size(a->type);
    const char *x = (const char *)a->x + (size_t)(first * a->in) * size;
    float *logits = a->scratch;
    const struct neb_ocl_product p = {.a = x,
                                      .b = a->w,
                                      .c = logits,
                                      .a_type = a->type,
                                      .b_type = a->type,
                                      .c_type = NEB_F32,
                                      .m = rows,
                                      .n = a->classes,
                                      .k = a->in,
                                      .lda = a->in,
                                      .ldb = a->in,
                                      .ldc = a->classes,
                                      .trans_b = 1,
                                      .alpha = 1,
                                      .bias = a->bias,
                                      .bias_type = a->type};
    NEB_TRY(neb__ocl_product(dev, &p));
    struct neb_xent e = {.logits = logits,
                         .rows = rows,
                         .classes = a->classes,
                         .ld = a->classes,
                         .want_grad = a->want_grad,
                         .t = a->t,
                         .loss = a->loss,
                         .type = NEB_F32};
    if (e.t.target) e.t.target += first;
    if (e.t.teacher_ids) e.t.teacher_ids += first * a->t.teacher_k;
    if (e.t.teacher_logits) e.t.teacher_logits += first * (a->t.teacher_ids ? a->t.teacher_k : a->classes);
    if (e.loss.weight) e.loss.weight += first;
    NEB_TRY(neb__ocl_xent(dev, &e));
    if (!a->want_grad) return NEB_OK;
    if (a->dx) {
        const struct neb_ocl_product d = {.a = logits,
                                          .b = a->w,
                                          .c = (char *)a->dx + (size_t)(first * a->in) * size,
                                          .a_type = NEB_F32,
                                          .b_type = a->type,
                                          .c_type = a->type,
                                          .m = rows,
                                          .n = a->in,
                                          .k = a->classes,
                                          .lda = a->classes,
                                          .ldb = a->in,
                                          .ldc = a->in,
                                          .alpha = 1};
        NEB_TRY(neb__ocl_product(dev, &d));
    }
    if (a->dw)
        NEB_TRY(grad_w(dev, logits, NEB_F32, a->classes, x, a->type, a->in, rows, a->in, a->classes, 1.0f,
                       first > 0 || a->acc_dw, a->dw));
    if (!a->db) return NEB_OK;
    const struct neb_colsum sums = {logits, a->db, rows, a->classes, a->classes, first > 0 || a->acc_db,
                                    NEB_F32};
    return neb__ocl_colsum(dev, &sums);
}

neb_status neb__ocl_linear_xent(void *ctx, const struct neb_linear_xent *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_type(dev, "linear_xent", a->type));
    if (a->share)
        return neb__ocl_fail(dev, NEB_ERR_UNSUPPORTED,
                             "opencl: linear_xent: processes cannot share out the classes");
    if (a->rows <= 0 && a->want_grad) { /* gradients that are sums over no rows */
        if (a->dw && !a->acc_dw) NEB_TRY(neb__ocl_fill(ctx, a->dw, 0, (size_t)(a->classes * a->in) * 4));
        if (a->db && !a->acc_db) NEB_TRY(neb__ocl_fill(ctx, a->db, 0, (size_t)a->classes * 4));
    }
    const int64_t step = neb__ocl_xent_rows(a);
    for (int64_t first = 0; first < a->rows && step > 0; first += step)
        NEB_TRY(chunk(dev, a, first, a->rows - first < step ? a->rows - first : step));
    return NEB_OK;
}
