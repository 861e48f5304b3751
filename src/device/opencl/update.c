/* update.c: gradient norm, clipping, parameter update: kernels/update.cl. */
#include "opencl.h"

neb_status neb__ocl_sumsq(void *ctx, const struct neb_sumsq *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const int64_t blocks = neb__ocl_ceil(a->n, NEB_SUMSQ_BLOCK);
    cl_mem part = NULL;
    if (a->blocks)
        return neb__ocl_fail(dev, NEB_ERR_UNSUPPORTED,
                             "opencl: sumsq: sums of blocks are doubles, which OpenCL 1.2 does not promise");
    NEB_TRY(neb__ocl_work(dev, NEB_OCL_WORK_PARTS, (size_t)(blocks > 0 ? blocks : 1) * 4, &part));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_UPDATE, 0, "sumsq");
    neb__ocl_ptr(&l, a->x, 4);
    neb__ocl_mem(&l, part);
    neb__ocl_long(&l, a->n);
    NEB_TRY(neb__ocl_run_rows(&l, blocks, 1));
    l = neb__ocl_begin(dev, NEB_OCL_UPDATE, 0, "sumsq_add");
    neb__ocl_mem(&l, part);
    neb__ocl_ptr(&l, a->ctl, 4);
    neb__ocl_long(&l, blocks);
    return neb__ocl_run_rows(&l, 1, 1);
}

neb_status neb__ocl_clip(void *ctx, const struct neb_clip *a)
{
    struct neb_ocl_launch l = neb__ocl_begin(neb__ocl(ctx), NEB_OCL_UPDATE, 0, "clip");
    neb__ocl_ptr(&l, a->ctl, 4);
    return neb__ocl_run(&l, 1, 1, 1);
}

neb_status neb__ocl_update(void *ctx, const struct neb_update *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if (a->v && !a->m)
        return neb__ocl_fail(dev, NEB_ERR_INVALID,
                             "opencl: update: second moments are given without first moments");
    if (a->n_segments <= 0) return NEB_OK;
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_UPDATE, 0, "update");
    neb__ocl_ptr(&l, a->param, 4);
    neb__ocl_ptr(&l, a->m, 4);
    neb__ocl_ptr(&l, a->v, 4);
    neb__ocl_ptr(&l, a->grad, 4);
    neb__ocl_ptr(&l, a->shadow, 2);
    neb__ocl_ptr(&l, a->segments, 1);
    if (l.status == NEB_OK && l.arg[l.n - 1].v.l % 8)
        return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: update: the segments are not aligned to 8 bytes");
    neb__ocl_ptr(&l, a->ctl, 4);
    neb__ocl_int(&l, (int)a->n_segments);
    neb__ocl_long(&l, a->n);
    neb__ocl_float(&l, a->beta1);
    neb__ocl_float(&l, a->beta2);
    neb__ocl_float(&l, a->eps);
    neb__ocl_int(&l, (a->m ? 1 : 0) | (a->v ? 2 : 0) | (a->shadow ? 4 : 0));
    return neb__ocl_run_each(&l, a->n, 1);
}
