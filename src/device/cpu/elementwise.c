/* elementwise.c: passes over all values, cut into pieces of whole cache lines. */
#include "device/cpu/cpu.h"

enum { GRAIN = 16384 };

neb_status neb__cpu_copy2d(void *dev, const struct neb_copy2d *a)
{
    struct neb_cpu *c = dev;
    if (a->src_type != a->dst_type) {
        NEB_TRY(neb__cpu_check_type("copy2d", a->src_type));
        NEB_TRY(neb__cpu_check_type("copy2d", a->dst_type));
    } else if (a->src_type >= NEB_DTYPES) {
        return neb__fail(NEB_ERR_DTYPE, "cpu: copy2d: unknown type %d", (int)a->src_type);
    }
    neb__cpu_range(c, c->k->copy2d, a, a->rows, neb__cpu_rows(a->cols), NULL);
    return NEB_OK;
}

#define OVER_VALUES(op, args)                                 \
    neb_status neb__cpu_##op(void *dev, const struct args *a) \
    {                                                         \
        struct neb_cpu *c = dev;                              \
        NEB_TRY(neb__cpu_check_type(#op, a->type));           \
        neb__cpu_range(c, c->k->op, a, a->n, GRAIN, NULL);    \
        return NEB_OK;                                        \
    }
OVER_VALUES(axpby, neb_axpby)
OVER_VALUES(mul, neb_mul)

static neb_status check_act(const char *op, const struct neb_act_args *a)
{
    NEB_TRY(neb__cpu_check_type(op, a->type));
    if (a->act >= NEB_ACT_NONE && a->act <= NEB_ACT_TANH) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "cpu: %s: unknown activation %d", op, (int)a->act);
}

neb_status neb__cpu_act(void *dev, const struct neb_act_args *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_act("act", a));
    neb__cpu_range(c, c->k->act, a, a->n, GRAIN, NULL);
    return NEB_OK;
}

neb_status neb__cpu_act_bwd(void *dev, const struct neb_act_args *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_act("act_bwd", a));
    neb__cpu_range(c, c->k->act_bwd, a, a->n, GRAIN, NULL);
    return NEB_OK;
}

neb_status neb__cpu_bias(void *dev, const struct neb_bias *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("bias", a->type));
    NEB_TRY(neb__cpu_check_type("bias", a->bias_type));
    neb__cpu_range(c, c->k->bias, a, a->rows, neb__cpu_rows(a->cols), NULL);
    return NEB_OK;
}

neb_status neb__cpu_colsum(void *dev, const struct neb_colsum *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("colsum", a->type));
    neb__cpu_range(c, c->k->colsum, a, a->cols, 64, NULL);
    return NEB_OK;
}

neb_status neb__cpu_swiglu(void *dev, const struct neb_swiglu *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("swiglu", a->type));
    neb__cpu_range(c, c->k->swiglu, a, a->rows, neb__cpu_rows(2 * a->n), NULL);
    return NEB_OK;
}

neb_status neb__cpu_swiglu_bwd(void *dev, const struct neb_swiglu *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("swiglu_bwd", a->type));
    neb__cpu_range(c, c->k->swiglu_bwd, a, a->rows, neb__cpu_rows(2 * a->n), NULL);
    return NEB_OK;
}

neb_status neb__cpu_dropout(void *dev, const struct neb_dropout_args *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("dropout", a->type));
    NEB_TRY(neb__cpu_check_drop("dropout", &a->drop));
    if (a->drop.threshold == 0) {
        struct neb_axpby copy = {a->x, a->y, a->rows * a->cols, 1.0f, a->acc ? 1.0f : 0.0f, a->type};
        return neb__cpu_axpby(dev, &copy);
    }
    neb__cpu_range(c, c->k->dropout, a, a->rows, neb__cpu_rows(a->cols), NULL);
    return NEB_OK;
}
