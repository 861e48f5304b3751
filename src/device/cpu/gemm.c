/* gemm.c: matrix products over the pool (after Goto and BLIS).
 *
 * Operands are packed into panels first, by all threads; then the threads take blocks of C. A block is a few
 * panels each way, so that its share of both operands stays in the L2 cache while k runs in steps of KC;
 * every tile goes through the epilogue (bias, activation, …) right after its last step. No element of C is
 * split over threads and k runs in one order, so the bits do not depend on the number of threads.
 *
 * A tall C is cut into bands of rows only; a task then packs its own part of A, which never leaves the L2
 * cache. A wide C is cut into bands of columns, and the task packs its part of B. If there are too few bands
 * for all threads, C is cut both ways, and both operands are packed in advance, in slices of k that fit the
 * caches.
 *
 * A B that was packed before (weights, while text is generated) is read as it is. A product of few rows is
 * then a single pass over B, which multiplies one panel at a time with all of A.
 *
 * Large operands are packed in slices, so that work memory stays below about 2 * SLICE_BYTES: slices of k
 * outermost (C accumulates), then of n, then of m. */
#include "device/cpu/cpu.h"

#include <stdbool.h>
#include <string.h>

enum {
    KC = 384,
    BLOCK_PANELS_M = 8,
    BLOCK_PANELS_N = 8,
    BAND_PANELS_LEAST = 4,
    TASKS_PER_THREAD = 4,
    MAX_TILE = 1024
};
#define SLICE_BYTES ((int64_t)24 << 20)
#define GRID_BYTES  ((int64_t)6 << 20)

enum cut { GRID, ROW_BANDS, COLUMN_BANDS };

struct job {
    const struct neb_product *p;
    const struct neb_cpu_kernels *k;
    float *a, *b;                   /* packed slices; a side cut into bands has a part for each worker */
    int64_t m0, m1, n0, n1, k0, k1; /* the slice */
    int64_t a_panels, b_panels;     /* of the slice */
    int64_t block_m, block_n;       /* panels a block has */
    float *colsums;                 /* (row blocks of all of C, n) */
    int pack_a, pack_b;
    enum cut cut;
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t blocks_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

static void pack_a(const struct job *j, int64_t panel, int64_t k0, int64_t kc, float *to)
{
    const int64_t i = j->m0 + panel * j->k->mr;
    float *sum = j->p->a_sum && j->n0 == 0 ? j->p->a_sum + i : NULL;
    j->k->pack(&j->p->a, i, (int)min64(j->k->mr, j->m1 - i), k0, kc, j->k->mr, to, sum);
}

static void pack_b(const struct job *j, int64_t panel, int64_t k0, int64_t kc, float *to)
{
    const int64_t n = j->n0 + panel * j->k->nr;
    j->k->pack(&j->p->b, n, (int)min64(j->k->nr, j->n1 - n), k0, kc, j->k->nr, to, NULL);
}

static void pack_task(void *arg, int task, int worker)
{
    const struct job *j = arg;
    const int64_t depth = j->k1 - j->k0, panel = j->pack_a && task >= j->a_panels ? task - j->a_panels : task;
    (void)worker;
    if (j->pack_a && task < j->a_panels)
        pack_a(j, panel, j->k0, depth, j->a + panel * j->k->mr * depth);
    else
        pack_b(j, panel, j->k0, depth, j->b + panel * j->k->nr * depth);
}

/* The lines of C that a tile will need are fetched while its sums are computed. */
static void prefetch_c(const struct neb_epilogue *e, int64_t i, int64_t n, int rows, int cols)
{
    if (e->type != NEB_F32) return;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c += 16)
            __builtin_prefetch((const float *)e->c + (i + r) * e->ldc + n + c, 1, 3);
}

/* One panel of A against one of B, kc deep from kb on. */
static void run_tile(const struct job *j, const struct neb_epilogue *e, const float *a, const float *b,
                     int64_t pa, int64_t pb, int64_t kb, int64_t kc)
{
    const int mr = j->k->mr, nr = j->k->nr;
    const int64_t i = j->m0 + pa * mr, n = j->n0 + pb * nr;
    const int rows = (int)min64(mr, j->m1 - i), cols = (int)min64(nr, j->n1 - n);
    float tile[MAX_TILE] __attribute__((aligned(64)));
    const int first = j->k0 + kb == 0, last = j->k0 + kb + kc == j->p->k;
    prefetch_c(e, i, n, rows, cols);
    j->k->micro(kc, a, b, tile, nr);
    j->k->merge(e, tile, i, n, rows, cols, first, last);
}

static int64_t step_of(const struct neb_product *p, int64_t depth)
{
    /* C itself holds the unfinished sums, unless it would round them or they must not mix with its
     * content. */
    if (p->e.type != NEB_F32 || (p->e.acc && p->e.x_act != NEB_ACT_NONE)) return depth;
    int64_t steps = blocks_of(depth, KC);
    return steps ? blocks_of(depth, steps) : 1;
}

/* A block of C: panels [a0, a1) of A against [b0, b1) of B. */
struct block {
    int64_t a0, a1, b0, b1;
};

static struct block block_at(const struct job *j, int64_t task)
{
    const int64_t across = j->cut == ROW_BANDS ? 1 : blocks_of(j->b_panels, j->block_n);
    const int64_t bm = task / across, bn = task % across;
    struct block b = {bm * j->block_m, min64((bm + 1) * j->block_m, j->a_panels), bn * j->block_n,
                      min64((bn + 1) * j->block_n, j->b_panels)};
    if (j->cut == ROW_BANDS) b.b0 = 0, b.b1 = j->b_panels;
    if (j->cut == COLUMN_BANDS) b.a0 = 0, b.a1 = j->a_panels;
    return b;
}

static int64_t count_blocks(const struct job *j)
{
    const int64_t rows = blocks_of(j->a_panels, j->block_m), columns = blocks_of(j->b_panels, j->block_n);
    if (j->cut == ROW_BANDS) return rows;
    return j->cut == COLUMN_BANDS ? columns : rows * columns;
}

/* One step of k. The panel of the operand that is read less often stays in the L1 cache. */
static void run_step(const struct job *j, const struct neb_epilogue *e, const struct block *c, int64_t kb,
                     int64_t kc, int64_t step, int worker)
{
    const int64_t mr = j->k->mr, nr = j->k->nr, depth = j->k1 - j->k0;
    int64_t b_depth = j->cut == COLUMN_BANDS ? kc : depth;
    if (j->p->b_packed) b_depth = j->p->k;
    const int64_t a_stride = (j->cut == ROW_BANDS ? kc : depth) * mr, b_stride = b_depth * nr;
    float *a = j->a + c->a0 * a_stride + kb * mr, *b = j->b + c->b0 * b_stride + kb * nr;
    if (j->p->b_packed) /* only read */
        b = (float *)(uintptr_t)j->p->b_packed + (j->n0 / nr + c->b0) * b_stride + (j->k0 + kb) * nr;
    if (j->cut == ROW_BANDS) {
        a = j->a + worker * j->block_m * mr * step;
        for (int64_t pa = c->a0; pa < c->a1; pa++) pack_a(j, pa, j->k0 + kb, kc, a + (pa - c->a0) * a_stride);
    } else if (j->cut == COLUMN_BANDS && !j->p->b_packed) {
        b = j->b + worker * j->block_n * nr * step;
        for (int64_t pb = c->b0; pb < c->b1; pb++) pack_b(j, pb, j->k0 + kb, kc, b + (pb - c->b0) * b_stride);
        for (int64_t pa = c->a0; pa < c->a1; pa++)
            for (int64_t pb = c->b0; pb < c->b1; pb++)
                run_tile(j, e, a + (pa - c->a0) * a_stride, b + (pb - c->b0) * b_stride, pa, pb, kb, kc);
        return;
    }
    for (int64_t pb = c->b0; pb < c->b1; pb++)
        for (int64_t pa = c->a0; pa < c->a1; pa++)
            run_tile(j, e, a + (pa - c->a0) * a_stride, b + (pb - c->b0) * b_stride, pa, pb, kb, kc);
}

static void block_task(void *arg, int task, int worker)
{
    const struct job *j = arg;
    const struct block b = block_at(j, task);
    const int64_t depth = j->k1 - j->k0, step = step_of(j->p, depth);
    struct neb_epilogue e = j->p->e;
    if (j->colsums) e.colsum = j->colsums + (j->m0 / j->k->mr + b.a0) / j->block_m * j->p->n;
    int64_t kb = 0;
    do {
        const int64_t kc = min64(step, depth - kb);
        run_step(j, &e, &b, kb, kc, step, worker);
        kb += kc;
    } while (kb < depth);
}

/* Number of panels in a band: as many as allowed, unless fewer let all threads end at about the same time. */
static int64_t band_of(int64_t panels, int64_t most, int threads)
{
    int64_t best = BAND_PANELS_LEAST, shortest = INT64_MAX;
    for (int64_t size = most; size >= BAND_PANELS_LEAST; size--) {
        const int64_t bands = blocks_of(panels, size), longest = blocks_of(bands, threads) * size;
        if (bands >= TASKS_PER_THREAD * threads && longest < shortest) best = size, shortest = longest;
    }
    return best;
}

/* Block sizes: enough blocks to keep all threads busy to the end, of about equal size. */
static void choose_blocks(struct job *j, int threads)
{
    const int64_t mp = blocks_of(j->p->m, j->k->mr), np = blocks_of(j->p->n, j->k->nr);
    const int64_t enough = TASKS_PER_THREAD * threads;
    int64_t bm = band_of(mp, BLOCK_PANELS_M, threads), bn = band_of(np, BLOCK_PANELS_N, threads);
    const bool rows = blocks_of(mp, bm) >= enough, columns = blocks_of(np, bn) >= enough;
    j->cut = columns ? COLUMN_BANDS : GRID;
    if (rows && (!columns || j->p->m >= j->p->n)) j->cut = ROW_BANDS;
    if (j->cut == GRID) bm = BLOCK_PANELS_M, bn = BLOCK_PANELS_N;
    while (j->cut == GRID && threads > 1 && blocks_of(mp, bm) * blocks_of(np, bn) < enough && bm * bn > 2) {
        if (bn > 1 && bn * j->k->nr >= bm * j->k->mr)
            bn /= 2;
        else if (bm > 1)
            bm /= 2;
        else
            bn /= 2;
    }
    j->block_m = j->cut == ROW_BANDS ? bm : blocks_of(mp, blocks_of(mp, bm));
    j->block_n = j->cut == COLUMN_BANDS ? bn : blocks_of(np, blocks_of(np, bn));
}

struct slices {
    int64_t m, n, k; /* sizes */
};

static struct slices choose_slices(const struct job *j)
{
    const struct neb_product *p = j->p;
    const int64_t unit_m = j->block_m * j->k->mr, unit_n = j->block_n * j->k->nr;
    const int64_t budget = SLICE_BYTES / 4, grid = GRID_BYTES / 4;
    struct slices s = {p->m, p->n, p->k};
    const int64_t small = min64(p->m, p->n) > 64 ? min64(p->m, p->n) : 64;
    if (step_of(p, p->k) < p->k) /* k may be cut */
        s.k = min64(p->k, blocks_of(j->cut == GRID ? grid / (p->m + p->n) : budget / small, KC) * KC);
    const int64_t room = budget / (s.k > 0 ? s.k : 1);
    if (s.m > room && j->cut != ROW_BANDS) s.m = room > unit_m ? room / unit_m * unit_m : unit_m;
    if (s.n > room && j->cut != COLUMN_BANDS) s.n = room > unit_n ? room / unit_n * unit_n : unit_n;
    return s;
}

static void run_slice(struct neb_cpu *c, struct job *j)
{
    j->a_panels = blocks_of(j->m1 - j->m0, j->k->mr);
    j->b_panels = blocks_of(j->n1 - j->n0, j->k->nr);
    int64_t packs = (j->pack_a ? j->a_panels : 0) + (j->pack_b ? j->b_panels : 0);
    neb__pool_run(c->pool, pack_task, j, (int)packs);
    neb__pool_run(c->pool, block_task, j, (int)count_blocks(j));
}

static neb_status reserve(struct neb_cpu *c, struct job *j, const struct slices *s)
{
    const struct neb_product *p = j->p;
    const int64_t depth = s->k > 0 ? s->k : 1, row_blocks = blocks_of(p->m, j->k->mr * j->block_m);
    const int64_t step = step_of(p, depth) < depth ? KC : depth; /* a shorter last slice may step wider */
    const int64_t own = step * neb__pool_threads(c->pool);       /* depth of a panel, all workers together */
    const int64_t a = j->k->mr * (j->cut == ROW_BANDS ? j->block_m * own : blocks_of(s->m, j->k->mr) * depth);
    int64_t b = j->k->nr * (j->cut == COLUMN_BANDS ? j->block_n * own : blocks_of(s->n, j->k->nr) * depth);
    if (p->b_packed) b = 0;
    const int64_t sums = p->e.colsum ? row_blocks * p->n : 0;
    void *w;
    NEB_TRY(neb__cpu_work(c, NEB_WORK_GEMM, (size_t)(a + b + sums + 64) * sizeof(float), &w));
    j->a = w;
    j->b = j->a + (a + 15) / 16 * 16;
    j->colsums = sums ? j->b + (b + 15) / 16 * 16 : NULL;
    if (sums) memset(j->colsums, 0, (size_t)sums * sizeof(float));
    if (p->a_sum && !p->acc_a_sum) memset(p->a_sum, 0, (size_t)p->m * sizeof(float));
    return NEB_OK;
}

neb_status neb__cpu_product(struct neb_cpu *c, const struct neb_product *p)
{
    struct job j = {.p = p, .k = c->k};
    if (p->m <= 0 || p->n <= 0) return NEB_OK;
    choose_blocks(&j, neb__pool_threads(c->pool));
    const struct slices s = choose_slices(&j);
    NEB_TRY(reserve(c, &j, &s));
    do {
        j.k1 = min64(j.k0 + s.k, p->k);
        for (j.n0 = 0; j.n0 < p->n; j.n0 = j.n1) {
            j.n1 = min64(j.n0 + s.n, p->n);
            for (j.m0 = 0; j.m0 < p->m; j.m0 = j.m1) {
                j.m1 = min64(j.m0 + s.m, p->m);
                j.pack_a = j.cut != ROW_BANDS && (s.m < p->m || j.n0 == 0);
                j.pack_b = j.cut != COLUMN_BANDS && j.m0 == 0 && !p->b_packed;
                run_slice(c, &j);
            }
        }
        j.k0 = j.k1;
    } while (j.k0 < p->k);
    if (!j.colsums) return NEB_OK;
    const int64_t blocks = blocks_of(p->m, c->k->mr * j.block_m);
    struct neb_colsum sum = {j.colsums, p->e.colsum, blocks, p->n, p->n, p->acc_colsum, NEB_F32};
    return neb__cpu_colsum(c, &sum);
}

int64_t neb__cpu_packed_bytes(void *dev, int64_t out, int64_t in, neb_dtype type)
{
    const struct neb_cpu *c = dev;
    (void)type; /* panels are F32 */
    return blocks_of(out, c->k->nr) * c->k->nr * in * (int64_t)sizeof(float);
}

static void pack_weight_task(void *arg, int task, int worker)
{
    const struct job *j = arg;
    (void)worker;
    pack_b(j, task, 0, j->p->k, j->b + task * j->k->nr * j->p->k);
}

neb_status neb__cpu_pack_linear(void *dev, const struct neb_pack_linear *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("pack_linear", a->type));
    const struct neb_product p = {.b = {a->w, a->in, 0, a->type}, .n = a->out, .k = a->in};
    struct job j = {.p = &p, .k = c->k, .b = a->packed, .n1 = a->out};
    neb__pool_run(c->pool, pack_weight_task, &j, (int)blocks_of(a->out, c->k->nr));
    return NEB_OK;
}

/* C *= beta, for a beta that is neither 0 nor 1. */
static neb_status scale_c(void *dev, const struct neb_gemm *a, void *c)
{
    for (int64_t r = 0; r < a->m; r++) {
        char *row = (char *)c + (size_t)(r * a->ldc) * neb__dtype_size(a->c_type);
        struct neb_axpby scale = {row, row, a->n, a->beta, 0, a->c_type};
        NEB_TRY(neb__cpu_axpby(dev, &scale));
    }
    return NEB_OK;
}

neb_status neb__cpu_gemm(void *dev, const struct neb_gemm *a)
{
    NEB_TRY(neb__cpu_check_type("gemm", a->type));
    NEB_TRY(neb__cpu_check_type("gemm", a->c_type));
    for (int64_t i = 0; i < a->batch; i++) {
        const size_t size = neb__dtype_size(a->type);
        const char *pa = (const char *)a->a + (size_t)(i * a->stride_a) * size;
        const char *pb = (const char *)a->b + (size_t)(i * a->stride_b) * size;
        char *pc = (char *)a->c + (size_t)(i * a->stride_c) * neb__dtype_size(a->c_type);
        if (a->beta != 0 && a->beta != 1) NEB_TRY(scale_c(dev, a, pc));
        struct neb_product p = {
            .a = {pa, a->lda, a->trans_a, a->type},
            .b = {pb, a->ldb, !a->trans_b, a->type},
            .m = a->m,
            .n = a->n,
            .k = a->k,
            .e = {.c = pc, .ldc = a->ldc, .type = a->c_type, .alpha = a->alpha, .acc = a->beta != 0}};
        NEB_TRY(neb__cpu_product(dev, &p));
    }
    return NEB_OK;
}
