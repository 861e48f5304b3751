/* gemm.c: matrix products: kernels/gemm.cl.
 *
 * A product packs its factors into work memory and multiplies the panels. Large ones go piece by piece, so that the
 * panels stay below a bound. tiles.c says which tile serves a product, and whether it multiplies in fp16. */
#include "opencl.h"

#define PANEL_BYTES ((int64_t)256 << 20)

/* ---- one product of bounded size ---- */

struct factor {
    const void *p;
    neb_dtype type;
    int64_t rows, ld; /* rows of op(A), columns of op(B) */
    int across;
    int panel;
    bool half;
};

/* Panels in work memory; for fp16 the scales of their chunks follow the values. */
struct packed {
    cl_mem mem;
    int64_t scale; /* the first scale's place, in floats */
};

static int64_t padded_k(const struct neb_ocl_tile *t, int64_t k)
{
    return k < 1 ? t->kt : neb__ocl_ceil(k, t->kt) * t->kt;
}

static neb_status pack(struct neb_ocl *dev, const struct factor *f, int64_t k, int64_t kp, int work,
                       struct packed *out)
{
    const int64_t panels = neb__ocl_ceil(f->rows, f->panel), values = panels * f->panel * kp;
    out->scale = values / 2; /* kp is whole chunks */
    NEB_TRY(neb__ocl_work(dev, work, (size_t)(f->half ? out->scale + values / NEB_OCL_CHUNK : values) * 4,
                          &out->mem));
    struct neb_ocl_launch l = neb__ocl_begin(
        dev, NEB_OCL_GEMM, neb__ocl_tile_variant(dev, f->type, -1, f->half, NEB_ACT_NONE, NEB_ACT_NONE),
        f->half ? "pack_half" : "pack");
    neb__ocl_ptr(&l, f->p, neb__ocl_size(f->type));
    neb__ocl_mem(&l, out->mem);
    if (f->half) neb__ocl_mem_at(&l, out->mem, out->scale);
    neb__ocl_long(&l, f->rows);
    neb__ocl_long(&l, k);
    neb__ocl_long(&l, kp);
    neb__ocl_long(&l, f->ld);
    neb__ocl_int(&l, f->panel);
    neb__ocl_int(&l, f->across);
    if (dev->cpu) return neb__ocl_run_groups(&l, panels, neb__ocl_ceil(kp, 64), 1, 1, 1);
    return neb__ocl_run_groups(&l, panels * f->panel / 32, neb__ocl_ceil(kp, 32), 1, 32, 8);
}

static void factor_args(struct neb_ocl_launch *l, const struct neb_ocl_tile *t, const struct packed *a,
                        const struct packed *b)
{
    neb__ocl_mem(l, a->mem);
    neb__ocl_mem(l, b->mem);
    if (!t->half) return;
    neb__ocl_mem_at(l, a->mem, a->scale);
    neb__ocl_mem_at(l, b->mem, b->scale);
}

static void epilogue_args(struct neb_ocl_launch *l, const struct neb_ocl_product *p)
{
    const size_t size = neb__ocl_size(p->c_type);
    neb__ocl_ptr(l, p->c, size);
    neb__ocl_ptr(l, p->bias, 1);
    neb__ocl_ptr(l, p->pre, size);
    neb__ocl_ptr(l, p->slope != NEB_ACT_NONE ? p->x_pre : NULL, size);
    neb__ocl_long(l, p->m);
    neb__ocl_long(l, p->n);
    neb__ocl_long(l, p->ldc);
    neb__ocl_float(l, p->alpha);
    neb__ocl_float(l, p->beta);
    neb__ocl_int(l, p->act);
    neb__ocl_int(l, p->slope);
    neb__ocl_int(l, (p->bias ? 1 : 0) | (p->pre ? 2 : 0) | (p->bias_type == NEB_BF16 ? 4 : 0));
}

/* How many pieces k is cut into when there are too few tiles for all units. */
static int splits_of(const struct neb_ocl *dev, int64_t tiles, int64_t kp)
{
    int64_t most = kp / 256, wanted = 2 * (int64_t)dev->units / (tiles > 0 ? tiles : 1);
    if (wanted > most) wanted = most;
    if (wanted > 32) wanted = 32;
    return wanted > 1 ? (int)wanted : 1;
}

static neb_status reduce(struct neb_ocl *dev, const struct neb_ocl_product *p, uint32_t variant, cl_mem part,
                         int64_t pm, int64_t pn, int splits)
{
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_GEMM, variant, "gemm_reduce");
    neb__ocl_mem(&l, part);
    neb__ocl_long(&l, pm);
    neb__ocl_long(&l, pn);
    neb__ocl_int(&l, splits);
    epilogue_args(&l, p);
    return neb__ocl_run_groups(&l, neb__ocl_ceil(p->n, 64), neb__ocl_ceil(p->m, 4), 1, 64, 4);
}

static neb_status multiply_gpu(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile,
                               const struct packed *a, const struct packed *b, int64_t kp)
{
    const struct neb_ocl_tile *t = neb__ocl_tile(dev, tile);
    const int64_t pm = neb__ocl_ceil(p->m, t->a), pn = neb__ocl_ceil(p->n, t->b);
    int splits = splits_of(dev, pm * pn, kp);
    const int64_t per = neb__ocl_ceil(neb__ocl_ceil(kp, splits), t->kt) * t->kt;
    splits = (int)neb__ocl_ceil(kp, per);
    /* the pieces' sums know no epilogue, so any activation's kernel serves */
    const uint32_t variant =
        neb__ocl_tile_variant(dev, p->c_type, tile, t->half, splits > 1 ? NEB_ACT_NONE : p->act,
                              splits > 1 ? NEB_ACT_NONE : p->slope);
    cl_mem part = a->mem;
    if (splits > 1)
        NEB_TRY(neb__ocl_work(dev, NEB_OCL_WORK_SPLIT, (size_t)(splits * pm * t->a * pn * t->b) * 4, &part));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_GEMM, variant, "gemm");
    factor_args(&l, t, a, b);
    neb__ocl_mem(&l, part);
    neb__ocl_long(&l, kp);
    neb__ocl_long(&l, per);
    neb__ocl_int(&l, splits);
    epilogue_args(&l, p);
    NEB_TRY(neb__ocl_run_groups(&l, pn, pm, splits, 16, 16));
    return splits > 1 ? reduce(dev, p, variant, part, pm * t->a, pn * t->b, splits) : NEB_OK;
}

static neb_status multiply_cpu(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile,
                               const struct packed *a, const struct packed *b, int64_t kp)
{
    const struct neb_ocl_tile *t = neb__ocl_tile(dev, tile);
    const int64_t pm = neb__ocl_ceil(p->m, t->a), pn = neb__ocl_ceil(p->n, t->b);
    int64_t panels = neb__ocl_ceil(128, t->a); /* rows that share a panel of B in the nearest cache */
    while (panels > 1 && pn * neb__ocl_ceil(pm, panels) < 4 * (int64_t)dev->units)
        panels = neb__ocl_ceil(panels, 2);
    struct neb_ocl_launch l = neb__ocl_begin(
        dev, NEB_OCL_GEMM, neb__ocl_tile_variant(dev, p->c_type, tile, t->half, NEB_ACT_NONE, NEB_ACT_NONE),
        "gemm");
    factor_args(&l, t, a, b);
    neb__ocl_long(&l, kp);
    neb__ocl_long(&l, panels);
    epilogue_args(&l, p);
    return neb__ocl_run_groups(&l, pn, neb__ocl_ceil(pm, panels), 1, 1, 1);
}

static neb_status multiply(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile,
                           const struct packed *a, const struct packed *b, int64_t kp)
{
    return dev->cpu ? multiply_cpu(dev, p, tile, a, b, kp) : multiply_gpu(dev, p, tile, a, b, kp);
}

/* ---- a product of any size ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The largest multiple of the panel whose packed form stays below the bound. */
static int64_t piece_of(int64_t rows, int panel, int64_t kp)
{
    int64_t most = PANEL_BYTES / (kp * 4) / panel * panel;
    return least(rows, most > panel ? most : panel);
}

static const void *further(const void *p, int64_t values, neb_dtype type)
{
    return p ? (const char *)p + values * (int64_t)neb__ocl_size(type) : NULL;
}

static neb_status columns(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile,
                          const struct packed *a, int64_t kp)
{
    const struct neb_ocl_tile *t = neb__ocl_tile(dev, tile);
    const int64_t step = piece_of(p->n, t->b, kp);
    for (int64_t j = 0; j < p->n; j += step) {
        struct neb_ocl_product q = *p;
        struct packed b = {NULL, 0};
        q.n = least(step, p->n - j);
        q.c = (void *)(uintptr_t)further(p->c, j, p->c_type);
        q.pre = (void *)(uintptr_t)further(p->pre, j, p->c_type);
        q.x_pre = further(p->x_pre, j, p->c_type);
        q.bias = further(p->bias, j, p->bias_type);
        const struct factor f = {further(p->b, p->trans_b ? j * p->ldb : j, p->b_type),
                                 p->b_type,
                                 q.n,
                                 p->ldb,
                                 p->trans_b,
                                 t->b,
                                 t->half};
        NEB_TRY(pack(dev, &f, p->k, kp, NEB_OCL_WORK_B, &b));
        NEB_TRY(multiply(dev, &q, tile, a, &b, kp));
    }
    return NEB_OK;
}

neb_status neb__ocl_product_by(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile)
{
    const struct neb_ocl_tile *t = neb__ocl_tile(dev, tile);
    const int64_t kp = padded_k(t, p->k), step = piece_of(p->m, t->a, kp);
    for (int64_t i = 0; i < p->m; i += step) {
        struct neb_ocl_product q = *p;
        struct packed a = {NULL, 0};
        q.m = least(step, p->m - i);
        q.c = (void *)(uintptr_t)further(p->c, i * p->ldc, p->c_type);
        q.pre = (void *)(uintptr_t)further(p->pre, i * p->ldc, p->c_type);
        q.x_pre = further(p->x_pre, i * p->ldc, p->c_type);
        const struct factor f = {further(p->a, p->trans_a ? i : i * p->lda, p->a_type),
                                 p->a_type,
                                 q.m,
                                 p->lda,
                                 !p->trans_a,
                                 t->a,
                                 t->half};
        NEB_TRY(pack(dev, &f, p->k, kp, NEB_OCL_WORK_A, &a));
        NEB_TRY(columns(dev, &q, tile, &a, kp));
    }
    return NEB_OK;
}

neb_status neb__ocl_product(struct neb_ocl *dev, const struct neb_ocl_product *p)
{
    if (p->m <= 0 || p->n <= 0) return NEB_OK;
    return neb__ocl_product_by(dev, p, neb__ocl_tile_of(dev, p));
}

neb_status neb__ocl_gemm(void *ctx, const struct neb_gemm *g)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_type(dev, "gemm", g->type));
    NEB_TRY(neb__ocl_type(dev, "gemm", g->c_type));
    for (int64_t i = 0; i < g->batch; i++) {
        const struct neb_ocl_product p = {.a = further(g->a, i * g->stride_a, g->type),
                                          .b = further(g->b, i * g->stride_b, g->type),
                                          .c = (void *)(uintptr_t)further(g->c, i * g->stride_c, g->c_type),
                                          .a_type = g->type,
                                          .b_type = g->type,
                                          .c_type = g->c_type,
                                          .m = g->m,
                                          .n = g->n,
                                          .k = g->k,
                                          .lda = g->lda,
                                          .ldb = g->ldb,
                                          .ldc = g->ldc,
                                          .trans_a = g->trans_a,
                                          .trans_b = g->trans_b,
                                          .alpha = g->alpha,
                                          .beta = g->beta};
        NEB_TRY(neb__ocl_product(dev, &p));
    }
    return NEB_OK;
}
