/* rows.c: embedding, gather and scatter, mean pooling, rotary positions.
 *
 * Rotary positions need cos and sin of position * base^(-2j/d). They are computed once per (base, head size)
 * in double, for all positions seen so far, and kept: the table grows when a longer sequence comes. */
#include "device/cpu/cpu.h"
#include "tensor/rope_step.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static neb_status check_embed(const char *op, const struct neb_embed *a)
{
    NEB_TRY(neb__cpu_check_type(op, a->type));
    if (a->tables >= 1 && a->tables <= 3) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "cpu: %s: %d tables given; 1 to 3 are possible", op, a->tables);
}

neb_status neb__cpu_embed(void *dev, const struct neb_embed *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_embed("embed", a));
    neb__cpu_range(c, c->k->embed, a, a->rows, neb__cpu_rows(a->d), NULL);
    return NEB_OK;
}

/* Pieces are columns, and every piece walks the rows in order, so the sums have one order. */
neb_status neb__cpu_embed_bwd(void *dev, const struct neb_embed *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_embed("embed_bwd", a));
    neb__cpu_range(c, c->k->embed_bwd, a, a->d, a->d > 512 ? 128 : 64, NULL);
    return NEB_OK;
}

neb_status neb__cpu_gather_rows(void *dev, const struct neb_rows *a)
{
    struct neb_cpu *c = dev;
    if (a->type >= NEB_DTYPES)
        return neb__fail(NEB_ERR_DTYPE, "cpu: gather_rows: unknown type %d", (int)a->type);
    neb__cpu_range(c, c->k->gather, a, a->n, neb__cpu_rows(a->d), NULL);
    return NEB_OK;
}

/* Two threads, here or on a GPU, would add two rows to one place at the same time. */
static neb_status check_distinct(struct neb_cpu *c, const struct neb_rows *a)
{
    void *work;
    NEB_TRY(neb__cpu_work(c, NEB_WORK_OP, (size_t)a->rows, &work));
    uint8_t *seen = work;
    memset(seen, 0, (size_t)a->rows);
    for (int64_t r = 0; r < a->n; r++) {
        int64_t to = a->index[r];
        if (to < 0 || to >= a->rows) continue;
        if (seen[to])
            return neb__fail(NEB_ERR_INVALID,
                             "cpu: scatter_rows: two rows go to row %" PRId64
                             "; indices of a scatter, and of a gather with a gradient, must be distinct",
                             to);
        seen[to] = 1;
    }
    return NEB_OK;
}

neb_status neb__cpu_scatter_rows(void *dev, const struct neb_rows *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("scatter_rows", a->type));
    NEB_TRY(check_distinct(c, a));
    neb__cpu_range(c, c->k->scatter, a, a->n, neb__cpu_rows(a->d), NULL);
    return NEB_OK;
}

static neb_status check_pool(const char *op, const struct neb_pool_args *a)
{
    NEB_TRY(neb__cpu_check_type(op, a->type));
    for (int64_t i = 0; i < a->sequences; i++)
        if (a->starts[i] < 0 || a->starts[i + 1] < a->starts[i] || a->starts[i + 1] > a->rows)
            return neb__fail(NEB_ERR_SHAPE, "cpu: %s: sequence %" PRId64 " is [%d, %d) of %" PRId64 " rows",
                             op, i, a->starts[i], a->starts[i + 1], a->rows);
    return NEB_OK;
}

neb_status neb__cpu_pool(void *dev, const struct neb_pool_args *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_pool("pool", a));
    neb__cpu_range(c, c->k->pool, a, a->sequences, 1, NULL);
    return NEB_OK;
}

neb_status neb__cpu_pool_bwd(void *dev, const struct neb_pool_args *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_pool("pool_bwd", a));
    if (!a->acc_dx) { /* rows outside all sequences */
        size_t row = (size_t)a->d * neb__dtype_size(a->type);
        int64_t first = a->sequences ? a->starts[0] : 0, end = a->sequences ? a->starts[a->sequences] : 0;
        memset(a->dx, 0, (size_t)first * row);
        memset((char *)a->dx + (size_t)end * row, 0, (size_t)(a->rows - end) * row);
    }
    neb__cpu_range(c, c->k->pool_bwd, a, a->sequences, 1, NULL);
    return NEB_OK;
}

static bool table_serves(const struct neb_cpu *c, const struct neb_rope *a, int64_t positions)
{
    return c->rope.cosine && c->rope.positions >= positions && c->rope.half == a->head_dim / 2 &&
           c->rope.base == a->base && !memcmp(&c->rope.scale, &a->scale, sizeof a->scale);
}

static neb_status rope_table(struct neb_cpu *c, const struct neb_rope *a, int64_t positions)
{
    const int64_t half = a->head_dim / 2;
    if (table_serves(c, a, positions)) return NEB_OK;
    positions = (positions + 511) / 512 * 512;
    neb__cpu_free(c, c->rope.cosine);
    c->rope.cosine = NULL;
    void *p;
    NEB_TRY(neb__cpu_alloc(c, (size_t)(2 * positions * half) * sizeof(float), &p));
    c->rope.cosine = p;
    c->rope.sine = c->rope.cosine + positions * half;
    c->rope.positions = positions, c->rope.half = half, c->rope.base = a->base, c->rope.scale = a->scale;
    for (int64_t j = 0; j < half; j++) {
        const double step = neb__rope_step(j, half, (double)a->base, &a->scale);
        for (int64_t t = 0; t < positions; t++) {
            c->rope.cosine[t * half + j] = (float)cos((double)t * step);
            c->rope.sine[t * half + j] = (float)sin((double)t * step);
        }
    }
    return NEB_OK;
}

neb_status neb__cpu_rope(void *dev, const struct neb_rope *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("rope", a->type));
    if (a->head_dim < 2 || a->head_dim % 2)
        return neb__fail(NEB_ERR_SHAPE, "cpu: rope: head size %" PRId64 " is not even", a->head_dim);
    int32_t last = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->position[r] < 0 || a->position[r] >= 1 << 24)
            return neb__fail(NEB_ERR_RANGE,
                             "cpu: rope: position %d of row %" PRId64 " is not between 0 and 2^24 - 1",
                             a->position[r], r);
        if (a->position[r] > last) last = a->position[r];
    }
    NEB_TRY(rope_table(c, a, (int64_t)last + 1));
    struct neb_rope_table table = {c->rope.cosine, c->rope.sine};
    neb__cpu_range(c, c->k->rope, a, a->rows, neb__cpu_rows(a->heads * a->head_dim), &table);
    return NEB_OK;
}
