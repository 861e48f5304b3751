/* linear.c: linear layers as products with a fused end. The forward adds bias and activation. The backward
 * multiplies dx with the slope of the activation that made x and sums it by columns (the bias gradient of the
 * layer below). Packing g for dw yields db. A narrow weight is widened while it is packed. */
#include "device/cpu/cpu.h"

static neb_status check_narrow(const char *op, const struct neb_narrow *w)
{
    if (w->kind >= NEB_NARROW_BF16 && w->kind <= NEB_NARROW_NF4) return NEB_OK;
    return neb__fail(NEB_ERR_DTYPE, "cpu: %s: unknown kind %d of a narrow weight", op, (int)w->kind);
}

static neb_status check_act(const char *op, neb_act act)
{
    if (act >= NEB_ACT_NONE && act <= NEB_ACT_TANH) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "cpu: %s: unknown activation %d", op, (int)act);
}

static neb_status forward(void *dev, const struct neb_linear *a, struct neb_operand w)
{
    NEB_TRY(neb__cpu_check_type("linear", a->type));
    NEB_TRY(check_act("linear", a->act));
    struct neb_product p = {.a = {a->x, a->ldx, 0, a->type},
                            .b = w,
                            .m = a->rows,
                            .n = a->out,
                            .k = a->in,
                            .e = {.c = a->y,
                                  .ldc = a->ldy,
                                  .type = a->type,
                                  .alpha = a->alpha,
                                  .acc = a->acc_y,
                                  .bias = a->bias,
                                  .bias_type = a->type,
                                  .act = a->act,
                                  .pre = a->pre},
                            .b_packed = a->packed};
    return neb__cpu_product(dev, &p);
}

neb_status neb__cpu_linear(void *dev, const struct neb_linear *a)
{
    return forward(dev, a, (struct neb_operand){a->w, a->in, 0, a->type});
}

neb_status neb__cpu_linear_narrow(void *dev, const struct neb_linear_narrow *a)
{
    NEB_TRY(check_narrow("linear_narrow", &a->w));
    return forward(dev, &a->l, (struct neb_operand){&a->w, a->l.in, 0, NEB_I8});
}

static neb_status grad_x(struct neb_cpu *c, const struct neb_linear_bwd *a, struct neb_operand w)
{
    struct neb_product p = {.a = {a->g, a->ldg, 0, a->type},
                            .b = w,
                            .m = a->rows,
                            .n = a->in,
                            .k = a->out,
                            .e = {.c = a->dx,
                                  .ldc = a->lddx,
                                  .type = a->type,
                                  .alpha = a->alpha,
                                  .acc = a->acc_dx,
                                  .x_pre = a->x_pre,
                                  .x_act = a->x_act,
                                  .colsum = a->dx_colsum},
                            .acc_colsum = a->acc_dx_colsum};
    if (!a->dx) { /* only its column sums are wanted */
        p.e.acc = 0;
        NEB_TRY(
            neb__cpu_work(c, NEB_WORK_OP, (size_t)(a->rows * a->lddx) * neb__dtype_size(a->type), &p.e.c));
    }
    return neb__cpu_product(c, &p);
}

static neb_status grad_w(struct neb_cpu *c, const struct neb_linear_bwd *a)
{
    struct neb_product p = {
        .a = {a->g, a->ldg, 1, a->type},
        .b = {a->x, a->ldx, 1, a->type},
        .m = a->out,
        .n = a->in,
        .k = a->rows,
        .e = {.c = a->dw, .ldc = a->in, .type = NEB_F32, .alpha = a->alpha, .acc = a->acc_dw},
        .a_sum = a->db,
        .acc_a_sum = a->acc_db};
    return neb__cpu_product(c, &p);
}

neb_status neb__cpu_linear_bwd(void *dev, const struct neb_linear_bwd *a)
{
    NEB_TRY(neb__cpu_check_type("linear_bwd", a->type));
    NEB_TRY(check_act("linear_bwd", a->x_act));
    if (a->dw)
        NEB_TRY(grad_w(dev, a));
    else if (a->db)
        NEB_TRY(neb__cpu_colsum(
            dev, &(struct neb_colsum){a->g, a->db, a->rows, a->out, a->ldg, a->acc_db, a->type}));
    return a->dx || a->dx_colsum ? grad_x(dev, a, (struct neb_operand){a->w, a->in, 1, a->type}) : NEB_OK;
}

neb_status neb__cpu_linear_narrow_bwd(void *dev, const struct neb_linear_narrow_bwd *a)
{
    struct neb_linear_bwd rest = a->l;
    NEB_TRY(check_narrow("linear_narrow_bwd", &a->w));
    rest.dx = NULL;
    rest.dx_colsum = NULL;
    NEB_TRY(neb__cpu_linear_bwd(dev, &rest));
    if (!a->l.dx && !a->l.dx_colsum) return NEB_OK;
    return grad_x(dev, &a->l, (struct neb_operand){&a->w, a->l.in, 1, NEB_I8});
}

neb_status neb__cpu_widen(void *dev, const struct neb_widen *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("widen", a->type));
    NEB_TRY(check_narrow("widen", &a->w));
    neb__cpu_range(c, c->k->widen, a, a->rows, neb__cpu_rows(a->cols), NULL);
    return NEB_OK;
}
