/* rows.c: slots that move rows about: kernels/rows.cl.
 *
 * Rotary positions need frequencies that depend on base, head size and scale. They are computed in double on the host,
 * once for each such choice, and stay on the device as a float and what that float leaves over. */
#include "opencl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct neb_ocl_rope {
    struct neb_ocl_rope *next;
    int64_t half;
    float base;
    struct neb_rope_scale scale;
    cl_mem turns; /* (half, 2) */
};

static neb_status check_embed(struct neb_ocl *dev, const char *op, const struct neb_embed *a)
{
    NEB_TRY(neb__ocl_type(dev, op, a->type));
    if (a->tables >= 1 && a->tables <= 3) return NEB_OK;
    return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: %s: %d tables given; 1 to 3 are possible", op,
                         a->tables);
}

neb_status neb__ocl_embed(void *ctx, const struct neb_embed *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(check_embed(dev, "embed", a));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ROWS, a->type == NEB_BF16, "embed");
    for (int t = 0; t < 3; t++) neb__ocl_ptr(&l, t < a->tables ? a->table[t] : NULL, size);
    for (int t = 0; t < 3; t++) neb__ocl_ptr(&l, t < a->tables ? a->ids[t] : NULL, 4);
    neb__ocl_ptr(&l, a->y, size);
    for (int t = 0; t < 3; t++) neb__ocl_long(&l, a->table_rows[t]);
    for (int t = 0; t < 3; t++) neb__ocl_long(&l, a->first[t]);
    neb__ocl_long(&l, a->d);
    neb__ocl_int(&l, a->tables);
    neb__ocl_float(&l, a->scale);
    return neb__ocl_run_each(&l, a->d, a->rows);
}

static neb_status embed_bwd_block(struct neb_ocl *dev, const struct neb_embed *a, int t, int64_t first,
                                  int64_t rows)
{
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ROWS, a->type == NEB_BF16, "embed_bwd");
    neb__ocl_ptr(&l, a->ids[t], 4);
    neb__ocl_ptr(&l, a->dy, neb__ocl_size(a->type));
    neb__ocl_ptr(&l, a->d_table[t], 4);
    neb__ocl_long(&l, first);
    neb__ocl_long(&l, a->rows);
    neb__ocl_long(&l, a->table_rows[t]);
    neb__ocl_long(&l, a->first[t]);
    neb__ocl_long(&l, a->d);
    neb__ocl_float(&l, a->scale);
    return neb__ocl_run_rows(&l, rows, 1);
}

neb_status neb__ocl_embed_bwd(void *ctx, const struct neb_embed *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const int64_t block = dev->cut.embed_block;
    NEB_TRY(check_embed(dev, "embed_bwd", a));
    for (int t = 0; t < a->tables; t++) {
        if (!a->d_table[t]) continue;
        for (int64_t first = 0; first < a->rows; first += block)
            NEB_TRY(embed_bwd_block(dev, a, t, first, a->rows - first < block ? a->rows - first : block));
    }
    return NEB_OK;
}

neb_status neb__ocl_gather_rows(void *ctx, const struct neb_rows *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if (a->type >= NEB_DTYPES)
        return neb__ocl_fail(dev, NEB_ERR_DTYPE, "opencl: gather_rows: unknown type %d", (int)a->type);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ROWS, 0, "gather");
    neb__ocl_ptr(&l, a->x, 1);
    neb__ocl_ptr(&l, a->y, 1);
    neb__ocl_ptr(&l, a->index, 4);
    neb__ocl_long(&l, a->rows);
    neb__ocl_long(&l, a->d);
    neb__ocl_int(&l, (int)neb__ocl_size(a->type));
    return neb__ocl_run_each(&l, a->d, a->n);
}

neb_status neb__ocl_scatter_rows(void *ctx, const struct neb_rows *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "scatter_rows", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ROWS, a->type == NEB_BF16, "scatter");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_ptr(&l, a->index, 4);
    neb__ocl_long(&l, a->rows);
    neb__ocl_long(&l, a->d);
    neb__ocl_long(&l, a->ldx ? a->ldx : a->d);
    return neb__ocl_run_each(&l, a->d, a->n);
}

neb_status neb__ocl_pool(void *ctx, const struct neb_pool_args *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "pool", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ROWS, a->type == NEB_BF16, "pool");
    neb__ocl_ptr(&l, a->x, size);
    neb__ocl_ptr(&l, a->y, size);
    neb__ocl_ptr(&l, a->starts, 4);
    neb__ocl_long(&l, a->d);
    return neb__ocl_run_each(&l, a->d, a->sequences);
}

neb_status neb__ocl_pool_bwd(void *ctx, const struct neb_pool_args *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(neb__ocl_type(dev, "pool_bwd", a->type));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ROWS, a->type == NEB_BF16, "pool_bwd");
    neb__ocl_ptr(&l, a->dy, size);
    neb__ocl_ptr(&l, a->dx, size);
    neb__ocl_ptr(&l, a->starts, 4);
    neb__ocl_int(&l, (int)a->sequences);
    neb__ocl_long(&l, a->d);
    neb__ocl_int(&l, a->acc_dx);
    return neb__ocl_run_each(&l, a->d, a->rows);
}

static double stretched(double f, const struct neb_rope_scale *s)
{
    const double pi = 3.14159265358979323846, turns = (double)s->original * f / (2 * pi);
    if (!(s->factor > 0) || (s->original > 0 && turns > (double)s->high)) return f;
    if (!(s->original > 0) || turns < (double)s->low) return f / (double)s->factor;
    double mix = (turns - (double)s->low) / ((double)s->high - (double)s->low);
    return mix * f + (1 - mix) * f / (double)s->factor;
}

static neb_status rope_table(struct neb_ocl *dev, const struct neb_rope *a, cl_mem *out)
{
    const int64_t half = a->head_dim / 2;
    for (const struct neb_ocl_rope *r = dev->rope; r; r = r->next)
        if (r->half == half && !memcmp(&r->base, &a->base, sizeof r->base) &&
            !memcmp(&r->scale, &a->scale, sizeof r->scale))
            return *out = r->turns, NEB_OK;
    struct neb_ocl_rope *r = calloc(1, sizeof *r);
    float *turns = malloc((size_t)half * 2 * sizeof *turns);
    cl_int e = CL_SUCCESS;
    if (r && turns) {
        for (int64_t j = 0; j < half; j++) {
            double f =
                stretched(pow((double)a->base, -(double)j / (double)half), &a->scale) / 6.283185307179586477;
            turns[2 * j] = (float)f;
            turns[2 * j + 1] = (float)(f - (double)turns[2 * j]);
        }
        r->turns = clCreateBuffer(dev->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, (size_t)half * 8,
                                  turns, &e);
    }
    free(turns);
    if (!r || !turns || e != CL_SUCCESS) {
        free(r);
        return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: rope: out of memory for the table of frequencies");
    }
    r->half = half, r->base = a->base, r->scale = a->scale;
    r->next = dev->rope;
    dev->rope = r;
    *out = r->turns;
    return NEB_OK;
}

void neb__ocl_rope_close(struct neb_ocl *dev)
{
    while (dev->rope) {
        struct neb_ocl_rope *r = dev->rope;
        dev->rope = r->next;
        clReleaseMemObject(r->turns);
        free(r);
    }
}

neb_status neb__ocl_rope(void *ctx, const struct neb_rope *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    cl_mem turns = NULL;
    NEB_TRY(neb__ocl_type(dev, "rope", a->type));
    if (a->head_dim < 2 || a->head_dim % 2)
        return neb__ocl_fail(dev, NEB_ERR_SHAPE, "opencl: rope: head size %lld is not even",
                             (long long)a->head_dim);
    NEB_TRY(rope_table(dev, a, &turns));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ROWS, a->type == NEB_BF16, "rope");
    neb__ocl_ptr(&l, a->x, neb__ocl_size(a->type));
    neb__ocl_ptr(&l, a->position, 4);
    neb__ocl_mem(&l, turns);
    neb__ocl_long(&l, a->head_dim / 2);
    neb__ocl_long(&l, a->heads);
    neb__ocl_long(&l, a->ldx);
    neb__ocl_float(&l, a->inverse ? -1.0f : 1.0f);
    return neb__ocl_run(&l, a->head_dim / 2, a->rows, 1);
}
