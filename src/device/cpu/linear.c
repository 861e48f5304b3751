/* linear.c: linear layers as products with a fused end. The forward adds bias and activation. The backward
 * multiplies dx with the slope of the activation that made x and sums it by columns (the bias gradient of the
 * layer below). Packing g for dw yields db. */
#include "device/cpu/cpu.h"

static neb_status check_act(const char *op, neb_act act)
{
    if (act >= NEB_ACT_NONE && act <= NEB_ACT_TANH) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "cpu: %s: unknown activation %d", op, (int)act);
}

neb_status neb__cpu_linear(void *dev, const struct neb_linear *a)
{
    NEB_TRY(neb__cpu_check_type("linear", a->type));
    NEB_TRY(check_act("linear", a->act));
    struct neb_product p = {.a = {a->x, a->ldx, 0, a->type},
                            .b = {a->w, a->in, 0, a->type},
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

static neb_status grad_x(struct neb_cpu *c, const struct neb_linear_bwd *a)
{
    struct neb_product p = {.a = {a->g, a->ldg, 0, a->type},
                            .b = {a->w, a->in, 1, a->type},
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
    return a->dx || a->dx_colsum ? grad_x(dev, a) : NEB_OK;
}
