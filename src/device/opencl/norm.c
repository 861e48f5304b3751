/* norm.c: LayerNorm and RMSNorm, alone and with residual and dropout: kernels/norm.cl. */
#include "opencl.h"

static void dropout_args(struct neb_ocl_launch *l, const struct neb_dropout *d)
{
    const bool drops = d->threshold > 0;
    neb__ocl_ptr(l, drops ? d->sample : NULL, 4);
    neb__ocl_ptr(l, drops ? d->position : NULL, 4);
    neb__ocl_ptr(l, drops ? d->ctl : NULL, 4);
}

neb_status neb__ocl_norm(void *ctx, const struct neb_norm *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "norm", a->type));
    const int has = (a->residual ? 1 : 0) | (a->y ? 2 : 0) | (a->beta ? 4 : 0) | (a->mean ? 8 : 0);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_NORM, a->type == NEB_BF16, "norm");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->residual, size);
    neb__ocl_ptr(&l, a->gamma, 4);
    neb__ocl_ptr(&l, a->beta, 4);
    neb__ocl_ptr(&l, a->s, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_ptr(&l, a->mean, 4);
    neb__ocl_ptr(&l, a->rstd, 4);
    dropout_args(&l, &a->drop);
    neb__ocl_long(&l, a->d);
    neb__ocl_float(&l, a->eps);
    neb__ocl_int(&l, a->kind == NEB_NORM_LAYER);
    neb__ocl_int(&l, has);
    neb__ocl_uint(&l, a->residual ? a->drop.threshold : 0);
    neb__ocl_uint(&l, a->drop.op);
    return neb__ocl_run_rows(&l, a->rows, 1);
}

static neb_status norm_rows(struct neb_ocl *dev, const struct neb_norm_bwd *a)
{
    const size_t size = neb__ocl_size(a->type);
    const int has = (a->dy ? 1 : 0) | (a->ds_in ? 2 : 0) | (a->dx ? 4 : 0) | (a->acc_dx ? 8 : 0);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_NORM, a->type == NEB_BF16, "norm_bwd");
    neb__ocl_ptr(&l, a->s, size);
    neb__ocl_ptr(&l, a->dy, size);
    neb__ocl_ptr(&l, a->ds_in, size);
    neb__ocl_ptr(&l, a->gamma, 4);
    neb__ocl_ptr(&l, a->kind == NEB_NORM_LAYER ? a->mean : NULL, 4);
    neb__ocl_ptr(&l, a->rstd, 4);
    neb__ocl_ptr(&l, a->ds, size);
    neb__ocl_ptr(&l, a->dx, size);
    dropout_args(&l, &a->drop);
    neb__ocl_long(&l, a->d);
    neb__ocl_int(&l, a->kind == NEB_NORM_LAYER);
    neb__ocl_int(&l, has);
    neb__ocl_uint(&l, a->drop.threshold);
    neb__ocl_uint(&l, a->drop.op);
    return neb__ocl_run_rows(&l, a->rows, 1);
}

static neb_status add_blocks(struct neb_ocl *dev, cl_mem part, int64_t skip, int64_t blocks, int64_t d,
                             float *out, int acc)
{
    if (!out) return NEB_OK;
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ELEMENTWISE, 0, "colsum_add");
    neb__ocl_mem(&l, part);
    if (l.status == NEB_OK) l.arg[l.n - 1].v.l = skip * d;
    neb__ocl_ptr(&l, out, 4);
    neb__ocl_long(&l, blocks);
    neb__ocl_long(&l, d);
    neb__ocl_int(&l, acc);
    return neb__ocl_run(&l, neb__ocl_ceil(d, dev->cut.cols), 1, 1);
}

/* The gradients of gamma and beta read s before a call in place overwrites ds_in; ds never lies over s. */
static neb_status norm_columns(struct neb_ocl *dev, const struct neb_norm_bwd *a)
{
    const size_t size = neb__ocl_size(a->type);
    const int64_t least = neb__ocl_ceil(a->rows, 256), per = least > 64 ? least : 64,
                  blocks = neb__ocl_ceil(a->rows, per);
    cl_mem part = NULL;
    NEB_TRY(neb__ocl_work(dev, NEB_OCL_WORK_PARTS, (size_t)(2 * blocks * a->d) * 4, &part));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_NORM, a->type == NEB_BF16, "norm_cols");
    neb__ocl_ptr(&l, a->s, size);
    neb__ocl_ptr(&l, a->dy, size);
    neb__ocl_ptr(&l, a->kind == NEB_NORM_LAYER ? a->mean : NULL, 4);
    neb__ocl_ptr(&l, a->rstd, 4);
    neb__ocl_mem(&l, part);
    neb__ocl_long(&l, a->rows);
    neb__ocl_long(&l, a->d);
    neb__ocl_long(&l, per);
    neb__ocl_long(&l, blocks);
    neb__ocl_int(&l, a->kind == NEB_NORM_LAYER);
    NEB_TRY(neb__ocl_run(&l, neb__ocl_ceil(a->d, dev->cut.cols), blocks, 1));
    NEB_TRY(add_blocks(dev, part, 0, blocks, a->d, a->dgamma, a->acc_dgamma));
    return add_blocks(dev, part, blocks, blocks, a->d, a->dbeta, a->acc_dbeta);
}

neb_status neb__ocl_norm_bwd(void *ctx, const struct neb_norm_bwd *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_type(dev, "norm_bwd", a->type));
    if (a->rows <= 0) return NEB_OK;
    if (a->dy && (a->dgamma || a->dbeta)) NEB_TRY(norm_columns(dev, a));
    return norm_rows(dev, a);
}
