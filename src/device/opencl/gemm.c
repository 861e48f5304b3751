/* gemm.c: matrix products: kernels/gemm.cl.
 *
 * A product packs its factors into work memory and multiplies the panels. Large ones go piece by piece, so that the
 * panels stay below a bound. Which tile is the fastest depends on the device, so it is measured at the first large product
 * and remembered on disk. With `deterministic` nothing is measured: two processes might choose differently, and another
 * tile adds in another order. */
#include "opencl.h"
#include "sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct neb_ocl_tile cpu_tiles[] = {{8, 32, 16, 8, 2, 0},
                                                {12, 32, 16, 12, 2, 0},
                                                {6, 16, 8, 6, 2, 0},
                                                {8, 24, 8, 8, 3, 0},
                                                {6, 64, 16, 6, 4, 0}};
static const struct neb_ocl_tile gpu_tiles[] = {
    {128, 128, 0, 0, 0, 8}, {128, 128, 0, 0, 0, 16}, {64, 64, 0, 0, 0, 16}, {128, 64, 0, 0, 0, 16}};
enum { CPU_TILES = 5, GPU_TILES = 4, GPU_FIRST_SMALL = 2 };
#define PANEL_BYTES ((int64_t)256 << 20)

static const struct neb_ocl_tile *tile_at(const struct neb_ocl *dev, int i)
{
    return dev->cpu ? &cpu_tiles[i] : &gpu_tiles[i];
}

/* Bits of a variant: 0 type, 1 to 5 tile + 1 (0: packing alone), 6 to 9 activation, 10 to 13 slope (GPU). */
static uint32_t variant_of(const struct neb_ocl *dev, neb_dtype type, int tile, neb_act act, neb_act slope)
{
    uint32_t v = (type == NEB_BF16) | (uint32_t)(tile + 1) << 1;
    return dev->cpu ? v : v | (uint32_t)act << 6 | (uint32_t)slope << 10;
}

neb_status neb__ocl_tile_options(const struct neb_ocl *dev, uint32_t variant, char *out, size_t size)
{
    const int tile = (int)(variant >> 1 & 31) - 1;
    if (tile < 0) return NEB_OK;
    const struct neb_ocl_tile *t = tile_at(dev, tile);
    if (dev->cpu)
        snprintf(out, size, " -DPA=%d -DPB=%d -DGV=%d -DMR=%d -DNV=%d", t->a, t->b, t->lanes, t->mr, t->nv);
    else
        snprintf(out, size, " -DPA=%d -DPB=%d -DKT=%d -DACT=%d -DSLOPE=%d", t->a, t->b, t->kt,
                 (int)(variant >> 6 & 15), (int)(variant >> 10 & 15));
    return NEB_OK;
}

/* ---- one product of bounded size ---- */

struct factor {
    const void *p;
    neb_dtype type;
    int64_t rows, ld; /* rows of op(A), columns of op(B) */
    int across;
    int panel;
};

static int64_t padded_k(const struct neb_ocl *dev, const struct neb_ocl_tile *t, int64_t k)
{
    if (k < 1) k = 1;
    return dev->cpu ? k : neb__ocl_ceil(k, t->kt) * t->kt;
}

static neb_status pack(struct neb_ocl *dev, const struct factor *f, int64_t k, int64_t kp, int work,
                       cl_mem *out)
{
    const int64_t panels = neb__ocl_ceil(f->rows, f->panel);
    NEB_TRY(neb__ocl_work(dev, work, (size_t)(panels * f->panel * kp) * 4, out));
    struct neb_ocl_launch l =
        neb__ocl_begin(dev, NEB_OCL_GEMM, variant_of(dev, f->type, -1, NEB_ACT_NONE, NEB_ACT_NONE), "pack");
    neb__ocl_ptr(&l, f->p, neb__ocl_size(f->type));
    neb__ocl_mem(&l, *out);
    neb__ocl_long(&l, f->rows);
    neb__ocl_long(&l, k);
    neb__ocl_long(&l, kp);
    neb__ocl_long(&l, f->ld);
    neb__ocl_int(&l, f->panel);
    neb__ocl_int(&l, f->across);
    if (dev->cpu) return neb__ocl_run_groups(&l, panels, neb__ocl_ceil(kp, 64), 1, 1, 1);
    return neb__ocl_run_groups(&l, panels * f->panel / 32, neb__ocl_ceil(kp, 32), 1, 32, 8);
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

static neb_status multiply_gpu(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile, cl_mem a,
                               cl_mem b, int64_t kp)
{
    const struct neb_ocl_tile *t = tile_at(dev, tile);
    const int64_t pm = neb__ocl_ceil(p->m, t->a), pn = neb__ocl_ceil(p->n, t->b);
    int splits = splits_of(dev, pm * pn, kp);
    const int64_t per = neb__ocl_ceil(neb__ocl_ceil(kp, splits), t->kt) * t->kt;
    splits = (int)neb__ocl_ceil(kp, per);
    /* the pieces' sums know no epilogue, so any activation's kernel serves */
    const uint32_t variant = variant_of(dev, p->c_type, tile, splits > 1 ? NEB_ACT_NONE : p->act,
                                        splits > 1 ? NEB_ACT_NONE : p->slope);
    cl_mem part = a;
    if (splits > 1)
        NEB_TRY(neb__ocl_work(dev, NEB_OCL_WORK_SPLIT, (size_t)(splits * pm * t->a * pn * t->b) * 4, &part));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_GEMM, variant, "gemm");
    neb__ocl_mem(&l, a);
    neb__ocl_mem(&l, b);
    neb__ocl_mem(&l, part);
    neb__ocl_long(&l, kp);
    neb__ocl_long(&l, per);
    neb__ocl_int(&l, splits);
    epilogue_args(&l, p);
    NEB_TRY(neb__ocl_run_groups(&l, pn, pm, splits, 16, 16));
    return splits > 1 ? reduce(dev, p, variant, part, pm * t->a, pn * t->b, splits) : NEB_OK;
}

static neb_status multiply_cpu(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile, cl_mem a,
                               cl_mem b, int64_t kp)
{
    const struct neb_ocl_tile *t = tile_at(dev, tile);
    const int64_t pm = neb__ocl_ceil(p->m, t->a), pn = neb__ocl_ceil(p->n, t->b);
    int64_t panels = neb__ocl_ceil(128, t->a); /* rows that share a panel of B in the nearest cache */
    while (panels > 1 && pn * neb__ocl_ceil(pm, panels) < 4 * (int64_t)dev->units)
        panels = neb__ocl_ceil(panels, 2);
    struct neb_ocl_launch l = neb__ocl_begin(
        dev, NEB_OCL_GEMM, variant_of(dev, p->c_type, tile, NEB_ACT_NONE, NEB_ACT_NONE), "gemm");
    neb__ocl_mem(&l, a);
    neb__ocl_mem(&l, b);
    neb__ocl_long(&l, kp);
    neb__ocl_long(&l, panels);
    epilogue_args(&l, p);
    return neb__ocl_run_groups(&l, pn, neb__ocl_ceil(pm, panels), 1, 1, 1);
}

static neb_status multiply(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile, cl_mem a, cl_mem b,
                           int64_t kp)
{
    return dev->cpu ? multiply_cpu(dev, p, tile, a, b, kp) : multiply_gpu(dev, p, tile, a, b, kp);
}

/* ---- which tile ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a product of zeros with this tile, the best of three; negative when it does not run. */
static double time_tile(struct neb_ocl *dev, int tile, const struct neb_ocl_product *p)
{
    const struct neb_ocl_tile *t = tile_at(dev, tile);
    const int64_t kp = padded_k(dev, t, p->k);
    const size_t a_bytes = (size_t)(neb__ocl_ceil(p->m, t->a) * t->a * kp) * 4,
                 b_bytes = (size_t)(neb__ocl_ceil(p->n, t->b) * t->b * kp) * 4;
    const float zero = 0;
    cl_mem a = NULL, b = NULL;
    double best = -1;
    if (neb__ocl_work(dev, NEB_OCL_WORK_A, a_bytes, &a) != NEB_OK ||
        neb__ocl_work(dev, NEB_OCL_WORK_B, b_bytes, &b) != NEB_OK)
        return -1;
    clEnqueueFillBuffer(dev->queue, a, &zero, 4, 0, a_bytes, 0, NULL, NULL);
    clEnqueueFillBuffer(dev->queue, b, &zero, 4, 0, b_bytes, 0, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        if (clFinish(dev->queue) != CL_SUCCESS) return -1;
        double start = now();
        if (multiply(dev, p, tile, a, b, kp) != NEB_OK || clFinish(dev->queue) != CL_SUCCESS) return -1;
        double taken = now() - start;
        if (i > 0 && (best < 0 || taken < best)) best = taken; /* the first time compiles */
    }
    return best;
}

static int fastest(struct neb_ocl *dev, int first, int end, int64_t m, int64_t n, int64_t k)
{
    struct neb_ocl_product p = {.m = m,
                                .n = n,
                                .k = k,
                                .ldc = n,
                                .alpha = 1,
                                .a_type = NEB_F32,
                                .b_type = NEB_F32,
                                .c_type = NEB_F32};
    int best = first;
    double least = -1;
    if (neb__ocl_alloc(dev, (size_t)(m * n) * 4, &p.c) != NEB_OK) return first;
    for (int i = first; i < end; i++) {
        double taken = time_tile(dev, i, &p);
        if (taken > 0 && (least < 0 || taken < least)) least = taken, best = i;
    }
    neb__ocl_free(dev, p.c);
    return best;
}

static void tune_key(const struct neb_ocl *dev, char *key, size_t size)
{
    unsigned char digest[32];
    char hex[65];
    neb__ocl_sha256(neb__ocl_sources[NEB_OCL_GEMM].text, neb__ocl_sources[NEB_OCL_GEMM].size, digest);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    snprintf(key, size, "tiles\n%s\n%s\n%s\n", dev->kernels.key, dev->cpu ? "cpu" : "gpu", hex);
}

static bool remembered(struct neb_ocl *dev, const char *key)
{
    unsigned char *bytes;
    size_t n;
    const int end = dev->cpu ? CPU_TILES : GPU_TILES;
    if (!neb__ocl_cache_read(dev, key, &bytes, &n)) return false;
    bool ok = n == 2 && bytes[0] < end && bytes[1] < end;
    if (ok) dev->tuning.large = bytes[0], dev->tuning.small = bytes[1];
    free(bytes);
    return ok;
}

void neb__ocl_tune(struct neb_ocl *dev)
{
    char key[1000];
    struct neb_ocl_tuning *t = &dev->tuning;
    if (t->done || dev->recording) return;
    t->done = true;
    t->large = 0;
    t->small = dev->cpu ? 0 : GPU_FIRST_SMALL;
    if (dev->config.deterministic) return;
    tune_key(dev, key, sizeof key);
    if (remembered(dev, key)) return;
    if (dev->cpu) {
        t->large = t->small = fastest(dev, 0, CPU_TILES, 256, 768, 512);
    } else {
        t->large = fastest(dev, 0, GPU_TILES, 4096, 4096, 1024);
        t->small = fastest(dev, GPU_FIRST_SMALL, GPU_TILES, 512, 512, 1024);
    }
    const unsigned char chosen[2] = {(unsigned char)t->large, (unsigned char)t->small};
    neb__ocl_cache_write(dev, key, chosen, 2);
    neb__ocl_log(dev, 1, "opencl %d: measured: products use tiles of %d x %d, small ones %d x %d",
                 dev->config.index, tile_at(dev, t->large)->a, tile_at(dev, t->large)->b,
                 tile_at(dev, t->small)->a, tile_at(dev, t->small)->b);
}

static int tile_of(struct neb_ocl *dev, const struct neb_ocl_product *p)
{
    const struct neb_ocl_tuning *t = &dev->tuning;
    if (!t->done && p->m * p->n * p->k >= (int64_t)1 << 25) neb__ocl_tune(dev);
    if (!t->done) return dev->cpu ? 0 : GPU_FIRST_SMALL;
    const struct neb_ocl_tile *large = tile_at(dev, t->large);
    const int64_t tiles = neb__ocl_ceil(p->m, large->a) * neb__ocl_ceil(p->n, large->b);
    return tiles >= (int64_t)dev->units || dev->cpu ? t->large : t->small;
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

static neb_status columns(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile, cl_mem a,
                          int64_t kp)
{
    const struct neb_ocl_tile *t = tile_at(dev, tile);
    const int64_t step = piece_of(p->n, t->b, kp);
    for (int64_t j = 0; j < p->n; j += step) {
        struct neb_ocl_product q = *p;
        cl_mem b = NULL;
        q.n = least(step, p->n - j);
        q.c = (void *)(uintptr_t)further(p->c, j, p->c_type);
        q.pre = (void *)(uintptr_t)further(p->pre, j, p->c_type);
        q.x_pre = further(p->x_pre, j, p->c_type);
        q.bias = further(p->bias, j, p->bias_type);
        const struct factor f = {
            further(p->b, p->trans_b ? j * p->ldb : j, p->b_type), p->b_type, q.n, p->ldb, p->trans_b, t->b};
        NEB_TRY(pack(dev, &f, p->k, kp, NEB_OCL_WORK_B, &b));
        NEB_TRY(multiply(dev, &q, tile, a, b, kp));
    }
    return NEB_OK;
}

neb_status neb__ocl_product(struct neb_ocl *dev, const struct neb_ocl_product *p)
{
    if (p->m <= 0 || p->n <= 0) return NEB_OK;
    const int tile = tile_of(dev, p);
    const struct neb_ocl_tile *t = tile_at(dev, tile);
    const int64_t kp = padded_k(dev, t, p->k), step = piece_of(p->m, t->a, kp);
    for (int64_t i = 0; i < p->m; i += step) {
        struct neb_ocl_product q = *p;
        cl_mem a = NULL;
        q.m = least(step, p->m - i);
        q.c = (void *)(uintptr_t)further(p->c, i * p->ldc, p->c_type);
        q.pre = (void *)(uintptr_t)further(p->pre, i * p->ldc, p->c_type);
        q.x_pre = further(p->x_pre, i * p->ldc, p->c_type);
        const struct factor f = {
            further(p->a, p->trans_a ? i : i * p->lda, p->a_type), p->a_type, q.m, p->lda, !p->trans_a, t->a};
        NEB_TRY(pack(dev, &f, p->k, kp, NEB_OCL_WORK_A, &a));
        NEB_TRY(columns(dev, &q, tile, a, kp));
    }
    return NEB_OK;
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
