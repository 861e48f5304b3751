/* orthogonal.c: see orthogonal.h. The reference composition of Newton-Schulz from the primitives of a device.
 *
 * The iteration works on the smaller side s of the matrix: gram = x x^T (or x^T x), polynomial = a I + b gram + c gram^2, x =
 * polynomial x (or x polynomial). The a I inside the polynomial saves a pass over x. A step is three products, of 2 s^2 l, 2
 * s^3 and 2 s^2 l operations.
 *
 * The norm must stay on the device, because the host does not wait. The optimizer's own slots do it: sumsq adds up the
 * squares in a control block of its own; clip makes a factor TINY / norm of it; an update of SGD with the learning rate
 * 1 / TINY then writes x / norm. If the norm is below TINY, the factor is 1: the result of zeros is zeros. If it is not
 * finite, the update is skipped, and the zeros that were there before stay. */
#include "optim/orthogonal.h"
#include "base/mem.h"
#include "base/status.h"

#include <string.h>

static const float tiny = 1e-20f;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static neb_status put(neb_device *d, const void *host, size_t bytes, void **out)
{
    NEB_TRY(d->ops->alloc(d->ctx, bytes, out));
    return d->ops->upload(d->ctx, *out, host, bytes);
}

/* Shapes of one side share their diagonal matrix. */
static neb_status make_diagonal(struct neb_orthogonal *o, int s)
{
    neb_device *d = o->dev;
    const int64_t side = smaller(o->shape[s].rows, o->shape[s].cols);
    for (int i = 0; i < s; i++)
        if (smaller(o->shape[i].rows, o->shape[i].cols) == side) {
            o->shape[s].diagonal = o->shape[i].diagonal;
            return NEB_OK;
        }
    float *host = NEB_NEW_ARRAY(float, (size_t)(side * side));
    if (!host) return neb__fail(NEB_ERR_NOMEM, "out of memory for a matrix of %" PRId64 " rows", side);
    for (int64_t i = 0; i < side; i++) host[i * (side + 1)] = NEB_ORTHOGONAL_A;
    size_t values = (size_t)(side * side);
    neb_status status = d->ops->upload(d->ctx, o->unit, host, values * sizeof *host);
    neb__free(host);
    if (status == NEB_OK)
        status = d->ops->alloc(d->ctx, values * neb_dtype_size(o->type), &o->shape[s].diagonal);
    struct neb_copy2d c = {o->unit, o->shape[s].diagonal, side, side, side, side, NEB_F32, o->type};
    return status == NEB_OK ? d->ops->copy2d(d->ctx, &c) : status;
}

static neb_status make_shape(struct neb_orthogonal *o, int s)
{
    struct neb_orthogonal_shape *x = &o->shape[s];
    struct neb_segment all = {0, x->rows * x->cols, 0, -1};
    NEB_TRY(put(o->dev, &all, sizeof all, (void **)&x->unit));
    return make_diagonal(o, s);
}

static neb_status make_memory(struct neb_orthogonal *o, int64_t most, int64_t side)
{
    neb_device *d = o->dev;
    const size_t size = neb_dtype_size(o->type), values = (size_t)most, square = (size_t)(side * side);
    struct neb_ctl fresh = {.lr = 1 / tiny, .max_norm = tiny, .bias1 = 1, .bias2 = 1};
    NEB_TRY(d->ops->alloc(d->ctx, values * sizeof(float), (void **)&o->unit));
    for (int i = 0; i < 2; i++) NEB_TRY(d->ops->alloc(d->ctx, values * size, &o->x[i]));
    NEB_TRY(d->ops->alloc(d->ctx, square * size, &o->gram));
    NEB_TRY(d->ops->alloc(d->ctx, square * size, &o->polynomial));
    NEB_TRY(d->ops->alloc(d->ctx, 2 * sizeof fresh, (void **)&o->ctl));
    NEB_TRY(d->ops->upload(d->ctx, o->ctl, &fresh, sizeof fresh));
    struct neb_sumsq q = {.x = o->unit, .n = most};
    int64_t scratch = d->ops->scratch_bytes ? d->ops->scratch_bytes(d->ctx, NEB_SLOT_SUMSQ, &q) : 0;
    return scratch > 0 ? d->ops->alloc(d->ctx, (size_t)scratch, &o->scratch) : NEB_OK;
}

neb_status neb__orthogonal_create(neb_device *d, neb_dtype type, const int64_t (*shapes)[2], int n,
                                  struct neb_orthogonal *out)
{
    int64_t most = 1, side = 1;
    *out = (struct neb_orthogonal){.dev = d, .type = type};
    out->shape = NEB_NEW_ARRAY(struct neb_orthogonal_shape, (size_t)n);
    if (!out->shape) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d shapes", n);
    out->shapes = n;
    for (int s = 0; s < n; s++) {
        const int64_t rows = out->shape[s].rows = shapes[s][0], cols = out->shape[s].cols = shapes[s][1];
        most = rows * cols > most ? rows * cols : most;
        side = smaller(rows, cols) > side ? smaller(rows, cols) : side;
    }
    NEB_TRY(make_memory(out, most, side));
    for (int s = 0; s < n; s++) NEB_TRY(make_shape(out, s));
    return NEB_OK;
}

static void release(neb_device *d, void *p)
{
    if (p) d->ops->free(d->ctx, p);
}

void neb__orthogonal_free(struct neb_orthogonal *o)
{
    for (int s = 0; s < o->shapes; s++) {
        release(o->dev, o->shape[s].unit);
        for (int i = s + 1; i < o->shapes; i++)
            if (o->shape[i].diagonal == o->shape[s].diagonal) o->shape[i].diagonal = NULL;
        release(o->dev, o->shape[s].diagonal);
    }
    void *memory[] = {o->unit, o->x[0], o->x[1], o->gram, o->polynomial, o->ctl, o->scratch};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) release(o->dev, memory[i]);
    neb__free(o->shape);
    *o = (struct neb_orthogonal){0};
}

/* x of norm 1, in the type of the products. */
static neb_status normalise(struct neb_orthogonal *o, const struct neb_orthogonal_shape *s, const float *x)
{
    neb_device *d = o->dev;
    const int64_t n = s->rows * s->cols;
    struct neb_ctl *norm = o->ctl + 1;
    float *to = o->type == NEB_F32 ? o->x[0] : o->unit;
    NEB_TRY(d->ops->copy(d->ctx, norm, o->ctl, sizeof *norm));
    NEB_TRY(d->ops->sumsq(d->ctx, &(struct neb_sumsq){.x = x, .n = n, .ctl = norm, .scratch = o->scratch}));
    NEB_TRY(d->ops->clip(d->ctx, &(struct neb_clip){.ctl = norm}));
    NEB_TRY(d->ops->fill(d->ctx, to, 0, (size_t)n * sizeof *to));
    NEB_TRY(d->ops->update(
        d->ctx, &(struct neb_update){
                    .param = to, .grad = x, .segments = s->unit, .n_segments = 1, .n = n, .ctl = norm}));
    if (o->type == NEB_F32) return NEB_OK;
    return d->ops->copy2d(
        d->ctx, &(struct neb_copy2d){to, o->x[0], s->rows, s->cols, s->cols, s->cols, NEB_F32, o->type});
}

/* The polynomial of x x^T, or of x^T x if x is tall. */
static neb_status polynomial(struct neb_orthogonal *o, const struct neb_orthogonal_shape *s, const void *x)
{
    neb_device *d = o->dev;
    const bool tall = s->rows > s->cols;
    const int64_t side = tall ? s->cols : s->rows;
    struct neb_gemm gram = {.a = x,
                            .b = x,
                            .c = o->gram,
                            .m = side,
                            .n = side,
                            .k = tall ? s->rows : s->cols,
                            .lda = s->cols,
                            .ldb = s->cols,
                            .ldc = side,
                            .batch = 1,
                            .trans_a = tall,
                            .trans_b = !tall,
                            .alpha = 1,
                            .type = o->type,
                            .c_type = o->type};
    struct neb_gemm square = {.a = o->gram,
                              .b = o->gram,
                              .c = o->polynomial,
                              .m = side,
                              .n = side,
                              .k = side,
                              .lda = side,
                              .ldb = side,
                              .ldc = side,
                              .batch = 1,
                              .alpha = NEB_ORTHOGONAL_C,
                              .beta = 1,
                              .type = o->type,
                              .c_type = o->type};
    NEB_TRY(d->ops->gemm(d->ctx, &gram));
    NEB_TRY(
        d->ops->copy(d->ctx, o->polynomial, s->diagonal, (size_t)(side * side) * neb_dtype_size(o->type)));
    NEB_TRY(d->ops->axpby(
        d->ctx, &(struct neb_axpby){o->gram, o->polynomial, side * side, NEB_ORTHOGONAL_B, 1, o->type}));
    return d->ops->gemm(d->ctx, &square);
}

/* to = scale * polynomial x, or scale * x polynomial. */
static neb_status apply(struct neb_orthogonal *o, const struct neb_orthogonal_shape *s, const void *x,
                        float scale, void *to, neb_dtype type)
{
    const bool tall = s->rows > s->cols;
    const int64_t side = tall ? s->cols : s->rows;
    struct neb_gemm g = {.a = tall ? x : o->polynomial,
                         .b = tall ? o->polynomial : x,
                         .c = to,
                         .m = s->rows,
                         .n = s->cols,
                         .k = side,
                         .lda = side,
                         .ldb = s->cols,
                         .ldc = s->cols,
                         .batch = 1,
                         .alpha = scale,
                         .type = o->type,
                         .c_type = type};
    return o->dev->ops->gemm(o->dev->ctx, &g);
}

neb_status neb__orthogonal_run(struct neb_orthogonal *o, int s, const float *x, float scale, float *out)
{
    const struct neb_orthogonal_shape *shape = &o->shape[s];
    NEB_TRY(normalise(o, shape, x));
    for (int i = 0; i < NEB_ORTHOGONAL_STEPS; i++) {
        const bool last = i == NEB_ORTHOGONAL_STEPS - 1;
        NEB_TRY(polynomial(o, shape, o->x[i % 2]));
        NEB_TRY(apply(o, shape, o->x[i % 2], last ? scale : 1, last ? (void *)out : o->x[(i + 1) % 2],
                      last ? NEB_F32 : o->type));
    }
    return NEB_OK;
}
