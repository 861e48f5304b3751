/* loss.c: the losses: kernels/loss.cl. Each row leaves a loss and marks in work memory, and one group adds them. */
#include "opencl.h"

#include <stdint.h>

struct parts {
    cl_mem mem;
    int64_t rows;
};

static neb_status prepare(struct neb_ocl *dev, const char *op, const struct neb_loss *l, neb_dtype type,
                          int64_t rows, struct parts *out)
{
    NEB_TRY(neb__ocl_type(dev, op, type));
    if (l->slot < 0 || l->slot >= 8)
        return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: %s: loss slot %d is not between 0 and 7", op,
                             l->slot);
    out->rows = rows;
    return neb__ocl_work(dev, NEB_OCL_WORK_PARTS, (size_t)(rows > 0 ? rows : 1) * 8, &out->mem);
}

/* Losses first, then the marks. */
static void part_args(struct neb_ocl_launch *l, const struct parts *p)
{
    neb__ocl_mem(l, p->mem);
    neb__ocl_mem_at(l, p->mem, p->rows);
}

static neb_status add_up(struct neb_ocl *dev, const struct parts *p, const struct neb_loss *loss)
{
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_LOSS, 0, "loss_sum");
    part_args(&l, p);
    neb__ocl_ptr(&l, loss->ctl, 4);
    neb__ocl_long(&l, p->rows);
    neb__ocl_int(&l, loss->slot);
    return neb__ocl_run_rows(&l, 1, 1);
}

neb_status neb__ocl_xent(void *ctx, const struct neb_xent *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const struct neb_targets *t = &a->t;
    struct parts parts = {NULL, 0};
    if (t->kd != 0 && !(t->temperature > 0))
        return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: xent: temperature %g is not positive",
                             (double)t->temperature);
    if (t->kd != 0 && !t->teacher_logits)
        return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: xent: distillation needs a teacher");
    if (a->rows <= 0) return NEB_OK;
    NEB_TRY(prepare(dev, "xent", &a->loss, a->type, a->rows, &parts));
    const bool kd = t->kd != 0;
    const int has = (t->target ? 1 : 0) | (a->loss.weight ? 2 : 0) | (kd && t->teacher_ids ? 4 : 0) |
                    (a->want_grad ? 8 : 0) | (kd ? 16 : 0);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_LOSS, a->type == NEB_BF16, "xent");
    neb__ocl_ptr(&l, a->logits, neb__ocl_size(a->type));
    neb__ocl_ptr(&l, t->target, 4);
    neb__ocl_ptr(&l, a->loss.weight, 4);
    neb__ocl_ptr(&l, kd ? t->teacher_ids : NULL, 4);
    neb__ocl_ptr(&l, kd ? t->teacher_logits : NULL, 4);
    neb__ocl_ptr(&l, a->loss.ctl, 4);
    part_args(&l, &parts);
    neb__ocl_long(&l, a->classes);
    neb__ocl_long(&l, a->ld);
    neb__ocl_long(&l, t->teacher_k);
    neb__ocl_float(&l, t->ce);
    neb__ocl_float(&l, t->smoothing);
    neb__ocl_float(&l, t->kd);
    neb__ocl_float(&l, t->temperature);
    neb__ocl_float(&l, a->loss.scale);
    neb__ocl_int(&l, has);
    NEB_TRY(neb__ocl_run_rows(&l, a->rows, 1));
    return add_up(dev, &parts, &a->loss);
}

neb_status neb__ocl_bce(void *ctx, const struct neb_bce *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    struct parts parts = {NULL, 0};
    if (a->rows <= 0) return NEB_OK;
    NEB_TRY(prepare(dev, "bce", &a->loss, a->type, a->rows, &parts));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_LOSS, a->type == NEB_BF16, "bce");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->target, 4);
    neb__ocl_ptr(&l, a->loss.weight, 4);
    neb__ocl_ptr(&l, a->dx, size);
    neb__ocl_ptr(&l, a->loss.ctl, 4);
    part_args(&l, &parts);
    neb__ocl_long(&l, a->rows);
    neb__ocl_float(&l, a->loss.scale);
    neb__ocl_int(&l, (a->dx ? 1 : 0) | (a->loss.weight ? 2 : 0) | (a->acc_dx ? 4 : 0));
    NEB_TRY(neb__ocl_run(&l, a->rows, 1, 1));
    return add_up(dev, &parts, &a->loss);
}

static neb_status pair(struct neb_ocl *dev, const struct neb_pair_loss *a, const char *op, int cosine)
{
    const size_t size = neb__ocl_size(a->type);
    struct parts parts = {NULL, 0};
    if (a->rows <= 0) return NEB_OK;
    NEB_TRY(prepare(dev, op, &a->loss, a->type, a->rows, &parts));
    const int has = (a->dx ? 1 : 0) | (a->loss.weight ? 2 : 0) | (a->dy ? 4 : 0) | (a->acc_dx ? 8 : 0) |
                    (a->acc_dy ? 16 : 0);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_LOSS, a->type == NEB_BF16, "pair_loss");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_ptr(&l, a->loss.weight, 4);
    neb__ocl_ptr(&l, a->dx, size);
    neb__ocl_ptr(&l, a->dy, size);
    neb__ocl_ptr(&l, a->loss.ctl, 4);
    part_args(&l, &parts);
    neb__ocl_long(&l, a->d);
    neb__ocl_float(&l, a->loss.scale);
    neb__ocl_int(&l, has);
    neb__ocl_int(&l, cosine);
    NEB_TRY(neb__ocl_run_rows(&l, a->rows, 1));
    return add_up(dev, &parts, &a->loss);
}

neb_status neb__ocl_mse(void *ctx, const struct neb_pair_loss *a)
{
    return pair(neb__ocl(ctx), a, "mse", 0);
}

neb_status neb__ocl_cosine(void *ctx, const struct neb_pair_loss *a)
{
    return pair(neb__ocl(ctx), a, "cosine", 1);
}
