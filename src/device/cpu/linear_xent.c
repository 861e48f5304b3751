/* linear_xent.c: the output layer with its loss. Rows are taken in chunks whose logits stay below
 * LOGITS_BYTES: logits, loss, and their gradient in place; then dx of these rows and their share of dw and
 * db. The whole (rows, classes) matrix never exists. */
#include "device/cpu/cpu.h"

#define LOGITS_BYTES ((int64_t)128 << 20)

/* One chunk: rows first … first + n - 1. */
struct chunk {
    int64_t first, n;
    float *logits;               /* (n, classes) */
    float *dx;                   /* (n, in): only when dx is not F32 */
    struct neb_class_sums *sums; /* (2 + processes, n) where they share out the classes */
};

static void *row_of(const void *p, int64_t row, int64_t cols, neb_dtype type)
{
    return (char *)(uintptr_t)p + (size_t)(row * cols) * neb__dtype_size(type);
}

static neb_status chunk_loss(struct neb_cpu *c, const struct neb_linear_xent *a, const struct chunk *h)
{
    struct neb_product p = {.a = {row_of(a->x, h->first, a->in, a->type), a->in, 0, a->type},
                            .b = {a->w, a->in, 0, a->type},
                            .m = h->n,
                            .n = a->classes,
                            .k = a->in,
                            .e = {.c = h->logits,
                                  .ldc = a->classes,
                                  .type = NEB_F32,
                                  .alpha = 1,
                                  .bias = a->bias,
                                  .bias_type = a->type}};
    NEB_TRY(neb__cpu_product(c, &p));
    struct neb_xent x = {h->logits, h->n, a->classes, a->classes, a->want_grad, a->t, a->loss, NEB_F32};
    const int64_t k = a->t.teacher_ids ? a->t.teacher_k : a->classes;
    if (x.t.target) x.t.target += h->first;
    if (x.t.teacher_ids) x.t.teacher_ids += h->first * k;
    if (x.t.teacher_logits) x.t.teacher_logits += h->first * k;
    if (x.loss.weight) x.loss.weight += h->first;
    if (!a->share) return neb__cpu_xent(c, &x);
    struct neb_class_rows rows = {x,       a->share->first, a->share->total,
                                  h->sums, h->sums + h->n,  h->sums + 2 * h->n};
    return neb__cpu_class_loss(c, &rows, a->share);
}

static neb_status chunk_dx(struct neb_cpu *c, const struct neb_linear_xent *a, const struct chunk *h)
{
    void *to = row_of(a->dx, h->first, a->in, a->type);
    struct neb_product p = {.a = {h->logits, a->classes, 0, NEB_F32},
                            .b = {a->w, a->in, 1, a->type},
                            .m = h->n,
                            .n = a->in,
                            .k = a->classes,
                            .e = {.c = h->dx ? h->dx : to, .ldc = a->in, .type = NEB_F32, .alpha = 1}};
    NEB_TRY(neb__cpu_product(c, &p));
    struct neb_copy2d convert = {h->dx, to, h->n, a->in, a->in, a->in, NEB_F32, a->type};
    return h->dx ? neb__cpu_copy2d(c, &convert) : NEB_OK;
}

static neb_status chunk_dw(struct neb_cpu *c, const struct neb_linear_xent *a, const struct chunk *h)
{
    if (!a->dw) {
        struct neb_colsum sum = {h->logits, a->db, h->n, a->classes, a->classes, a->acc_db || h->first,
                                 NEB_F32};
        return a->db ? neb__cpu_colsum(c, &sum) : NEB_OK;
    }
    struct neb_product p = {
        .a = {h->logits, a->classes, 1, NEB_F32},
        .b = {row_of(a->x, h->first, a->in, a->type), a->in, 1, a->type},
        .m = a->classes,
        .n = a->in,
        .k = h->n,
        .e = {.c = a->dw, .ldc = a->in, .type = NEB_F32, .alpha = 1, .acc = a->acc_dw || h->first},
        .a_sum = a->db,
        .acc_a_sum = a->acc_db || h->first};
    return neb__cpu_product(c, &p);
}

neb_status neb__cpu_linear_xent(void *dev, const struct neb_linear_xent *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("linear_xent", a->type));
    if (a->classes < 1)
        return neb__fail(NEB_ERR_SHAPE, "cpu: linear_xent: %" PRId64 " classes given; at least 1 is needed",
                         a->classes);
    if (a->share && (a->t.kd != 0 || !a->t.target))
        return neb__fail(NEB_ERR_UNSUPPORTED, "cpu: linear_xent: shared classes have targets and no teacher");
    /* processes that share the classes exchange sums chunk by chunk: all of them cut the rows alike */
    int64_t most = LOGITS_BYTES / 4 / (a->share ? a->share->total : a->classes);
    if (most < 64) most = 64;
    const int64_t chunks = a->rows > most ? (a->rows + most - 1) / most : 1,
                  size = (a->rows + chunks - 1) / chunks;
    const int convert = a->want_grad && a->dx && a->type != NEB_F32;
    const size_t sums =
        a->share ? (size_t)(2 + a->share->ranks) * (size_t)size * sizeof(struct neb_class_sums) : 0;
    void *p;
    NEB_TRY(neb__cpu_work(c, NEB_WORK_OP,
                          sums + (size_t)(size * (a->classes + (convert ? a->in : 0))) * sizeof(float), &p));
    float *logits = (float *)((char *)p + sums);
    struct chunk h = {0, 0, logits, convert ? logits + size * a->classes : NULL, sums ? p : NULL};
    do { /* runs once even without rows, to clear dw and db */
        h.n = a->rows - h.first < size ? a->rows - h.first : size;
        NEB_TRY(chunk_loss(c, a, &h));
        if (a->want_grad && a->dx) NEB_TRY(chunk_dx(c, a, &h));
        if (a->want_grad) NEB_TRY(chunk_dw(c, a, &h));
        h.first += h.n;
    } while (h.first < a->rows);
    return NEB_OK;
}
