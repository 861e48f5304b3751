/* loss.c: the losses, and the best of each row. Pieces are fixed blocks of rows. Each leaves a partial sum in
 * double, and the partial sums are added in order, so the bits are the same for every thread count. */
#include "device/cpu/cpu.h"

#include <math.h>

enum { ROWS = 8 };

static neb_status check_loss(const char *op, const struct neb_loss *l, neb_dtype type)
{
    NEB_TRY(neb__cpu_check_type(op, type));
    if (l->slot >= 0 && l->slot < 8) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "cpu: %s: loss slot %d is not between 0 and 7", op, l->slot);
}

static neb_status run_loss(struct neb_cpu *c, neb_kernel fn, const void *args, int64_t rows,
                           const struct neb_loss *l)
{
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    void *p;
    NEB_TRY(neb__cpu_work(c, NEB_WORK_GEMM, (size_t)blocks * sizeof(struct neb_partial), &p));
    const struct neb_partial *part = p;
    neb__cpu_range(c, fn, args, rows, ROWS, p);
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++) {
        sum += part[b].loss;
        for (int i = 0; i < 4; i++) l->ctl->counts[i] += (float)part[b].count[i];
    }
    l->ctl->loss[l->slot] += (float)sum;
    if (!isfinite(sum)) l->ctl->nonfinite = 1;
    return NEB_OK;
}

neb_status neb__cpu_xent(void *dev, const struct neb_xent *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_loss("xent", &a->loss, a->type));
    if (a->t.kd != 0 && !(a->t.temperature > 0))
        return neb__fail(NEB_ERR_INVALID, "cpu: xent: temperature %g is not positive",
                         (double)a->t.temperature);
    if (a->t.kd != 0 && !a->t.teacher_logits)
        return neb__fail(NEB_ERR_INVALID, "cpu: xent: distillation needs a teacher");
    if (a->t.judged && (!a->t.teacher_ids || a->t.teacher_k > NEB_JUDGED_MAX))
        return neb__fail(NEB_ERR_INVALID,
                         "cpu: xent: samples are judged by the ids of at most %d tokens a row",
                         NEB_JUDGED_MAX);
    return run_loss(c, c->k->xent, a, a->rows, &a->loss);
}

/* Softmax over the classes of all processes, from each one's sums: scaled to the largest logit and added in their
 * order, so every process gets the same bits. */
static struct neb_class_sums combined(const struct neb_class_sums *every, int64_t rows, int ranks)
{
    struct neb_class_sums s = {.max = every->max};
    for (int r = 1; r < ranks; r++) s.max = fmax(s.max, every[rows * r].max);
    for (int r = 0; r < ranks; r++) {
        const struct neb_class_sums *part = &every[rows * r];
        s.sum += part->sum * exp(part->max - s.max);
        s.target += part->target;
        s.all += part->all;
    }
    return s;
}

neb_status neb__cpu_class_loss(struct neb_cpu *c, struct neb_class_rows *a,
                               const struct neb_class_share *share)
{
    NEB_TRY(check_loss("linear_xent", &a->x.loss, a->x.type));
    neb__cpu_range(c, c->k->class_sums, a, a->x.rows, ROWS, NULL);
    const int64_t rows = a->x.rows;
    for (int64_t r = 0; r < rows; r++) a->every[rows * share->rank + r] = a->own[r];
    NEB_TRY(share->gather(share->arg, a->every, rows));
    for (int64_t r = 0; r < rows; r++) a->all[r] = combined(a->every + r, rows, share->ranks);
    return run_loss(c, c->k->class_loss, a, a->x.rows, &a->x.loss);
}

neb_status neb__cpu_bce(void *dev, const struct neb_bce *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_loss("bce", &a->loss, a->type));
    return run_loss(c, c->k->bce, a, a->rows, &a->loss);
}

neb_status neb__cpu_mse(void *dev, const struct neb_pair_loss *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_loss("mse", &a->loss, a->type));
    return run_loss(c, c->k->mse, a, a->rows, &a->loss);
}

neb_status neb__cpu_cosine(void *dev, const struct neb_pair_loss *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_loss("cosine", &a->loss, a->type));
    return run_loss(c, c->k->cosine, a, a->rows, &a->loss);
}

neb_status neb__cpu_best(void *dev, const struct neb_best *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("best", a->type));
    if (a->k < 1) return neb__fail(NEB_ERR_INVALID, "cpu: best: k is %d; it must be at least 1", a->k);
    neb__cpu_range(c, c->k->best, a, a->rows, 1, NULL);
    return NEB_OK;
}

neb_status neb__cpu_sample(void *dev, const struct neb_sample *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("sample", a->type));
    if (!(a->temperature > 0) || a->cols < 1)
        return neb__fail(NEB_ERR_INVALID,
                         "cpu: sample: cannot draw from %" PRId64
                         " columns at temperature %g; both must be positive",
                         a->cols, (double)a->temperature);
    neb__cpu_range(c, c->k->sample, a, a->rows, 1, NULL);
    return NEB_OK;
}
