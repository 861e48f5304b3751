/* op_columns.c: factors for columns, and the lengths of a weight's rows (columns.h).
 *
 * Both are composed of primitives, on every device alike. A row of factors becomes a matrix by adding it to zeros (bias);
 * parts of the columns are copied out and in, because products of elements want their values one after the other. That
 * is a few passes over an activation beside a product with a weight.
 *
 * DoRA (Liu et al. 2024) trains a weight's rows by direction and length: m * (W + s B A) / |W + s B A|. The length
 * below the line counts as a constant in the backward, as its authors propose. So y = (x W^T + s x A^T B^T) * m / |...|,
 * and what is left is a factor a column. */
#include "tensor/columns.h"
#include "tensor/narrow.h"
#include "tensor/fallback.h"

#include <math.h>

/* The matrices of one part while it is computed. */
struct part {
    int64_t rows, n;
    neb_dtype type;
    void *factor; /* (rows, n) */
};

static neb_status clear(neb_tape *t, void *p, int64_t bytes)
{
    return neb__tape_called(t, t->dry ? NEB_OK : t->dev->ops->fill(t->dev->ctx, p, 0, (size_t)bytes));
}

static void *temp(neb_tape *t, int64_t values, neb_dtype type)
{
    return neb__tape_temp(t, values * (int64_t)neb_dtype_size(type));
}

static void *column(const void *p, int64_t first, neb_dtype type)
{
    return (char *)(uintptr_t)p + (size_t)first * neb_dtype_size(type);
}

static neb_status copy(neb_tape *t, const void *src, int64_t ld_src, void *dst, int64_t ld_dst, int64_t rows,
                       int64_t cols, neb_dtype type)
{
    struct neb_copy2d c = {.src = src,
                           .dst = dst,
                           .rows = rows,
                           .cols = cols,
                           .ld_src = ld_src,
                           .ld_dst = ld_dst,
                           .src_type = type,
                           .dst_type = type};
    return NEB_CALL(t, copy2d, &c);
}

static neb_status multiply(neb_tape *t, const void *x, const void *y, void *z, int64_t n, int acc,
                           neb_dtype type)
{
    struct neb_mul m = {.x = x, .y = y, .z = z, .n = n, .acc = acc, .type = type};
    return NEB_CALL(t, mul, &m);
}

/* A vector as the rows of a matrix. */
static neb_status spread(neb_tape *t, const float *vector, struct part *p)
{
    p->factor = temp(t, p->rows * p->n, p->type);
    NEB_TRY(clear(t, p->factor, p->rows * p->n * (int64_t)neb_dtype_size(p->type)));
    struct neb_bias b = {
        .y = p->factor, .bias = vector, .rows = p->rows, .cols = p->n, .type = p->type, .bias_type = NEB_F32};
    return NEB_CALL(t, bias, &b);
}

/* The factors of part i of a node, F32. */
static neb_status factors(neb_tape *t, const struct neb_node *n, int i, const float **out)
{
    neb_param *v = n->param[i];
    const float *own = neb__param_master(t, v);
    *out = own;
    if (!n->saved[i]) return t->failed;
    float *both = temp(t, v->values, NEB_F32);
    *out = both;
    return multiply(t, own, neb__tensor_data(t, n->saved[i]), both, v->values, 0, NEB_F32);
}

/* Columns of src times the part's factors, into the same columns of dst. */
static neb_status scale_part(neb_tape *t, const struct neb_node *n, int i, const void *src, int64_t ld_src,
                             void *dst, int64_t ld_dst, int64_t rows, neb_dtype type)
{
    const int64_t first = n->i[i], width = n->param[i]->values;
    struct part p = {.rows = rows, .n = width, .type = type};
    const float *f;
    NEB_TRY(factors(t, n, i, &f));
    NEB_TRY(spread(t, f, &p));
    void *x = temp(t, rows * width, type);
    NEB_TRY(copy(t, column(src, first, type), ld_src, x, width, rows, width, type));
    NEB_TRY(multiply(t, x, p.factor, x, rows * width, 0, type));
    return copy(t, x, width, column(dst, first, type), ld_dst, rows, width, type);
}

static neb_status scale_all(neb_tape *t, const struct neb_node *n, const void *src, int64_t ld_src, void *dst,
                            int64_t ld_dst, int64_t rows, int64_t cols, neb_dtype type)
{
    NEB_TRY(copy(t, src, ld_src, dst, ld_dst, rows, cols, type));
    for (int i = 0; i < NEB_COLUMN_PARTS; i++)
        if (n->param[i]) NEB_TRY(scale_part(t, n, i, src, ld_src, dst, ld_dst, rows, type));
    return NEB_OK;
}

static bool fits(neb_tape *t, const neb_tensor *x, const struct neb_column_part *p)
{
    if (!p->vector) return true;
    if (!neb__tape_want_param(t, "scale_columns", "vector", p->vector, -1, 1)) return false;
    if (p->first >= 0 && p->first + p->vector->values <= neb__tensor_cols(x)) return true;
    neb__tape_fail(t, NEB_ERR_SHAPE, "scale_columns",
                   "'%s' has %" PRId64 " values from column %" PRId64 " on", p->vector->name,
                   p->vector->values, p->first);
    return false;
}

static neb_status forward(neb_tape *t, const struct neb_node *n, neb_tensor *x, neb_tensor *y)
{
    const int64_t rows = neb__tensor_rows(x), cols = neb__tensor_cols(x);
    NEB_TRY(
        scale_all(t, n, neb__tensor_data(t, x), x->ld, neb__tensor_data(t, y), y->ld, rows, cols, x->type));
    if (!n->param[NEB_COLUMN_PARTS]) return NEB_OK;
    struct neb_bias b = {.y = neb__tensor_data(t, y),
                         .bias = neb__param_working(t, n->param[NEB_COLUMN_PARTS]),
                         .rows = rows,
                         .cols = cols,
                         .type = x->type,
                         .bias_type = x->type};
    return NEB_CALL(t, bias, &b);
}

neb_tensor *neb__op_scale_columns(neb_tape *t, neb_tensor *x,
                                  const struct neb_column_part parts[NEB_COLUMN_PARTS], neb_param *bias)
{
    if (!neb__tape_want_act(t, "scale_columns", "x", x, -1, -1)) return NULL;
    struct neb_node n = {.param = {[NEB_COLUMN_PARTS] = bias}};
    bool train = x->root->needs_grad || (bias && bias->trainable);
    for (int i = 0; i < NEB_COLUMN_PARTS; i++) {
        if (!fits(t, x, &parts[i])) return NULL;
        n.param[i] = parts[i].vector;
        n.saved[i] = parts[i].also;
        n.i[i] = parts[i].first;
        train |= parts[i].vector && parts[i].vector->trainable;
    }
    neb_tensor *y = neb__tensor_new2(t, x->type, neb__tensor_rows(x), neb__tensor_cols(x));
    if (!y) return NULL;
    t->hold++;
    neb_status status = forward(t, &n, x, y);
    t->hold--;
    if (neb__tape_called(t, status) != NEB_OK) return NULL;
    y->needs_grad = neb__tape_wants_grad(t) && train;
    struct neb_node *node = neb__tape_record(t, NEB_OPCODE_scale_columns, 1, &x, 1, &y);
    for (int i = 0; node && i <= NEB_COLUMN_PARTS; i++) node->param[i] = n.param[i];
    for (int i = 0; node && i < NEB_COLUMN_PARTS; i++) node->saved[i] = n.saved[i], node->i[i] = n.i[i];
    return t->failed == NEB_OK ? y : NULL;
}

/* The vector's gradient: column sums of dy * x, times what else was multiplied. */
static neb_status vector_gradient(neb_tape *t, const struct neb_node *n, int i)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    const int64_t rows = neb__tensor_rows(x), first = n->i[i], width = n->param[i]->values;
    int acc;
    float *to = neb__param_grad(t, n->param[i], &acc);
    if (!to) return t->failed;
    void *a = temp(t, rows * width, x->type), *b = temp(t, rows * width, x->type);
    NEB_TRY(copy(t, column(neb__tensor_data(t, x), first, x->type), x->ld, a, width, rows, width, x->type));
    NEB_TRY(copy(t, column(neb__tensor_grad(t, y), first, x->type), y->ld, b, width, rows, width, x->type));
    NEB_TRY(multiply(t, a, b, a, rows * width, 0, x->type));
    float *sums = n->saved[i] ? temp(t, width, NEB_F32) : to;
    struct neb_colsum c = {.x = a,
                           .out = sums,
                           .rows = rows,
                           .cols = width,
                           .ldx = width,
                           .acc = n->saved[i] ? 0 : acc,
                           .type = x->type};
    NEB_TRY(NEB_CALL(t, colsum, &c));
    if (!n->saved[i]) return NEB_OK;
    return multiply(t, sums, neb__tensor_data(t, n->saved[i]), to, width, acc, NEB_F32);
}

static neb_status backward(neb_tape *t, const struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    const int64_t rows = neb__tensor_rows(x), cols = neb__tensor_cols(x);
    int acc, piece;
    for (int i = 0; i < NEB_COLUMN_PARTS; i++)
        if (n->param[i]) NEB_TRY(vector_gradient(t, n, i));
    float *db = neb__param_grad(t, n->param[NEB_COLUMN_PARTS], &acc);
    if (db) {
        struct neb_colsum c = {.x = neb__tensor_grad(t, y),
                               .out = db,
                               .rows = rows,
                               .cols = cols,
                               .ldx = y->ld,
                               .acc = acc,
                               .type = y->type};
        NEB_TRY(NEB_CALL(t, colsum, &c));
    }
    void *dx = neb__grad_overwrite(t, x, &piece);
    if (!dx) return t->failed;
    NEB_TRY(scale_all(t, n, neb__tensor_grad(t, y), y->ld, dx, x->ld, rows, cols, x->type));
    return neb__grad_add(t, x, piece);
}

neb_status neb__backward_scale_columns(neb_tape *t, struct neb_node *n)
{
    t->hold++;
    neb_status status = backward(t, n);
    t->hold--;
    return neb__tape_called(t, status);
}

/* ---- lengths of rows ------------------------------------------------------------------------------------------- */

/* The values of the rows, in memory that may be changed. */
static neb_status rows_of(neb_tape *t, neb_param *w, int64_t first, int64_t n, void **out)
{
    const int64_t in = w->shape[1];
    const neb_dtype type = neb_compute_type(t);
    if (w->narrow && !neb__param_direct(t, w)) {
        struct neb_widen a = {.w = neb__narrow_of(w), .rows = w->shape[0], .cols = in, .type = type};
        a.out = temp(t, w->values, type);
        *out = column(a.out, first * in, type);
        return NEB_CALL(t, widen, &a);
    }
    const void *from = column(neb__param_working(t, w), first * in, type);
    *out = temp(t, n * in, type);
    return copy(t, from, in, *out, in, n, in, type);
}

static neb_status lengths(neb_tape *t, neb_param *w, int64_t first, neb_param *a, neb_param *b, float scale,
                          float *out)
{
    const int64_t n = b->shape[0], in = w->shape[1], rank = a->shape[0];
    const neb_dtype type = neb_compute_type(t);
    void *v;
    NEB_TRY(rows_of(t, w, first, n, &v));
    struct neb_gemm g = {.a = neb__param_working(t, b),
                         .b = neb__param_working(t, a),
                         .c = v,
                         .m = n,
                         .n = in,
                         .k = rank,
                         .lda = rank,
                         .ldb = in,
                         .ldc = in,
                         .batch = 1,
                         .alpha = scale,
                         .beta = 1,
                         .type = type,
                         .c_type = type};
    NEB_TRY(NEB_CALL(t, gemm, &g));
    float *gamma = temp(t, in, NEB_F32), *rstd = temp(t, n, NEB_F32);
    NEB_TRY(clear(t, gamma, in * (int64_t)sizeof(float)));
    /* only the statistics of the norm are wanted: 1 / sqrt(mean of squares) */
    struct neb_norm norm = {.kind = NEB_NORM_RMS,
                            .x = v,
                            .gamma = gamma,
                            .y = temp(t, n * in, type),
                            .mean = temp(t, n, NEB_F32),
                            .rstd = rstd,
                            .rows = n,
                            .d = in,
                            .eps = 1e-30f,
                            .type = type};
    NEB_TRY(NEB_CALL(t, norm, &norm));
    struct neb_axpby s = {.x = rstd, .y = out, .n = n, .a = 1.0f / sqrtf((float)in), .type = NEB_F32};
    return NEB_CALL(t, axpby, &s);
}

neb_tensor *neb__op_row_lengths(neb_tape *t, neb_param *w, int64_t first, neb_param *a, neb_param *b,
                                float scale)
{
    if (!neb__tape_want_param(t, "row_lengths", "weight", w, -1, -1) ||
        !neb__tape_want_param(t, "row_lengths", "a", a, -1, w->shape[1]) ||
        !neb__tape_want_param(t, "row_lengths", "b", b, -1, a->shape[0]))
        return NULL;
    neb_tensor *out = neb__tensor_new1(t, NEB_F32, b->shape[0]);
    if (!out) return NULL;
    t->hold++;
    neb_status status = lengths(t, w, first, a, b, scale, neb__tensor_data(t, out));
    t->hold--;
    return neb__tape_called(t, status) == NEB_OK ? out : NULL;
}
