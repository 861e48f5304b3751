/* elementwise.c: element-wise slots and column sums: kernels/elementwise.cl. */
#include "opencl.h"

static uint32_t bf16(neb_dtype t)
{
    return t == NEB_BF16;
}

neb_status neb__ocl_copy2d(void *ctx, const struct neb_copy2d *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if ((a->src_type != a->dst_type && (a->src_type > NEB_BF16 || a->dst_type > NEB_BF16)) ||
        a->src_type >= NEB_DTYPES)
        return neb__ocl_fail(dev, NEB_ERR_DTYPE, "opencl: copy2d: cannot convert type %d to type %d",
                             (int)a->src_type, (int)a->dst_type);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, 0, "convert");
    neb__ocl_ptr(&l, a->src, 1);
    neb__ocl_ptr(&l, a->dst, 1);
    neb__ocl_long(&l, a->rows);
    neb__ocl_long(&l, a->cols);
    neb__ocl_long(&l, a->ld_src);
    neb__ocl_long(&l, a->ld_dst);
    neb__ocl_int(&l, a->src_type);
    neb__ocl_int(&l, a->dst_type);
    return neb__ocl_run_each(&l, a->cols, a->rows);
}

neb_status neb__ocl_widen(void *ctx, const struct neb_widen *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_type(dev, "widen", a->type));
    if (a->w.kind < NEB_NARROW_BF16 || a->w.kind > NEB_NARROW_NF4)
        return neb__ocl_fail(dev, NEB_ERR_DTYPE, "opencl: widen: unknown kind %d of a narrow weight",
                             (int)a->w.kind);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, 0, "widen");
    neb__ocl_ptr(&l, a->w.code, 1);
    neb__ocl_ptr(&l, a->w.scale ? a->w.scale : a->w.code, 1); /* BF16 has no scales */
    neb__ocl_ptr(&l, a->out, 1);
    neb__ocl_long(&l, a->rows);
    neb__ocl_long(&l, a->cols);
    neb__ocl_int(&l, (int)a->w.kind);
    neb__ocl_int(&l, a->type);
    return neb__ocl_run_each(&l, a->cols, a->rows);
}

neb_status neb__ocl_axpby(void *ctx, const struct neb_axpby *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "axpby", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "axpby");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_long(&l, a->n);
    neb__ocl_float(&l, a->a);
    neb__ocl_float(&l, a->b);
    return neb__ocl_run_each(&l, a->n, 1);
}

neb_status neb__ocl_mul(void *ctx, const struct neb_mul *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "mul", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "mul");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_ptr(&l, a->z, size);
    neb__ocl_long(&l, a->n);
    neb__ocl_int(&l, a->acc);
    return neb__ocl_run_each(&l, a->n, 1);
}

neb_status neb__ocl_act(void *ctx, const struct neb_act_args *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "act", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "act");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_long(&l, a->n);
    neb__ocl_int(&l, a->act);
    return neb__ocl_run_each(&l, a->n, 1);
}

neb_status neb__ocl_act_bwd(void *ctx, const struct neb_act_args *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "act_bwd", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "act_bwd");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->dy, size);
    neb__ocl_ptr(&l, a->dx, size);
    neb__ocl_long(&l, a->n);
    neb__ocl_int(&l, a->act);
    neb__ocl_int(&l, a->acc_dx);
    return neb__ocl_run_each(&l, a->n, 1);
}

neb_status neb__ocl_bias(void *ctx, const struct neb_bias *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_type(dev, "bias", a->type));
    NEB_TRY(neb__ocl_type(dev, "bias", a->bias_type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "bias");
    neb__ocl_ptr(&l, a->y, neb__ocl_size(a->type));
    neb__ocl_ptr(&l, a->bias, 1);
    neb__ocl_long(&l, a->cols);
    neb__ocl_int(&l, a->bias_type == NEB_BF16);
    return neb__ocl_run_each(&l, a->cols, a->rows);
}

/* Blocks of at least 64 rows, at most 256 blocks: the cut depends on the number of rows alone. */
neb_status neb__ocl_colsum(void *ctx, const struct neb_colsum *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    cl_mem part = NULL;
    NEB_TRY(neb__ocl_type(dev, "colsum", a->type));
    const int64_t least = neb__ocl_ceil(a->rows, 256), per = least > 64 ? least : 64;
    const int64_t blocks = neb__ocl_ceil(a->rows, per), items = neb__ocl_ceil(a->cols, dev->cut.cols);
    if (a->cols <= 0) return NEB_OK;
    NEB_TRY(neb__ocl_work(dev, NEB_OCL_WORK_PARTS, (size_t)(blocks > 0 ? blocks : 1) * (size_t)a->cols * 4,
                          &part));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "colsum_part");
    neb__ocl_ptr(&l, a->x, neb__ocl_size(a->type));
    neb__ocl_mem(&l, part);
    neb__ocl_long(&l, a->rows);
    neb__ocl_long(&l, a->cols);
    neb__ocl_long(&l, a->ldx);
    neb__ocl_long(&l, per);
    NEB_TRY(neb__ocl_run(&l, items, blocks, 1));
    l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, 0, "colsum_add");
    neb__ocl_mem(&l, part);
    neb__ocl_ptr(&l, a->out, 4);
    neb__ocl_long(&l, blocks);
    neb__ocl_long(&l, a->cols);
    neb__ocl_int(&l, a->acc);
    return neb__ocl_run(&l, items, 1, 1);
}

neb_status neb__ocl_swiglu(void *ctx, const struct neb_swiglu *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "swiglu", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "swiglu");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_long(&l, a->n);
    return neb__ocl_run_each(&l, a->n, a->rows);
}

neb_status neb__ocl_swiglu_bwd(void *ctx, const struct neb_swiglu *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "swiglu_bwd", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "swiglu_bwd");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->dy, size);
    neb__ocl_ptr(&l, a->dx, size);
    neb__ocl_long(&l, a->n);
    return neb__ocl_run_each(&l, a->n, a->rows);
}

neb_status neb__ocl_dropout(void *ctx, const struct neb_dropout_args *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    const bool drops = a->drop.threshold > 0;
    NEB_TRY(neb__ocl_type(dev, "dropout", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, bf16(a->type), "dropout");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_ptr(&l, drops ? a->drop.sample : NULL, 4);
    neb__ocl_ptr(&l, drops ? a->drop.position : NULL, 4);
    neb__ocl_ptr(&l, drops ? a->drop.ctl : NULL, 4);
    neb__ocl_long(&l, a->cols);
    neb__ocl_uint(&l, a->drop.threshold);
    neb__ocl_uint(&l, a->drop.op);
    neb__ocl_int(&l, a->acc);
    return neb__ocl_run_each(&l, a->cols, a->rows);
}
