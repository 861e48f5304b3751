/* attention.c: variable-length attention. A task is one sequence and one key head, so no other task writes
 * its keys' gradients. Rows that belong to no sequence (padding at the end of a packed batch) become 0, so
 * their old content cannot reach a later product. */
#include "device/cpu/cpu.h"

#include <stdbool.h>
#include <string.h>

static neb_status check_attn(const char *op, const struct neb_attn *a)
{
    NEB_TRY(neb__cpu_check_type(op, a->type));
    NEB_TRY(neb__cpu_check_drop(op, &a->drop));
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads)
        return neb__fail(NEB_ERR_SHAPE, "cpu: %s: %" PRId64 " heads cannot share %" PRId64 " key heads", op,
                         a->heads, a->kv_heads);
    for (int64_t i = 0; i < a->sequences; i++) {
        int64_t q = a->starts_q[i + 1] - (int64_t)a->starts_q[i],
                k = a->starts_k[i + 1] - (int64_t)a->starts_k[i];
        if (q < 0 || k < 0 || k > a->max_k || q > a->max_q || a->starts_q[i] < 0 || a->starts_k[i] < 0 ||
            a->starts_q[i + 1] > a->q_rows || a->starts_k[i + 1] > a->k_rows)
            return neb__fail(NEB_ERR_SHAPE,
                             "cpu: %s: sequence %" PRId64 " has %" PRId64 " queries and %" PRId64
                             " keys; they must lie inside the rows, at most %" PRId64 " and %" PRId64,
                             op, i, q, k, a->max_q, a->max_k);
    }
    return NEB_OK;
}

/* Zeroes the columns of all heads in the rows outside [starts[0], starts[sequences]). */
static void clear_outside(void *x, int64_t ld, int64_t cols, neb_dtype type, const int32_t *starts,
                          int64_t sequences, int64_t rows)
{
    const int64_t size = (int64_t)neb__dtype_size(type);
    const int64_t first = sequences ? starts[0] : 0, end = sequences ? starts[sequences] : 0;
    for (int64_t r = 0; r < rows; r++) {
        if (r == first) r = end;
        if (r < rows) memset((char *)x + r * ld * size, 0, (size_t)(cols * size));
    }
}

static neb_status run(struct neb_cpu *c, neb_kernel fn, const void *args, const struct neb_attn *a,
                      int backward)
{
    struct neb_attn_aux aux = {NULL, c->k->attn_scratch(a, backward)};
    void *p;
    NEB_TRY(neb__cpu_work(c, NEB_WORK_OP,
                          (size_t)(aux.per_worker * neb__pool_threads(c->pool)) * sizeof(float), &p));
    aux.scratch = p;
    neb__cpu_range(c, fn, args, a->sequences * a->kv_heads, 1, &aux);
    return NEB_OK;
}

neb_status neb__cpu_attn(void *dev, const struct neb_attn *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(check_attn("attn", a));
    clear_outside(a->o, a->ldo, a->heads * a->head_dim, a->type, a->starts_q, a->sequences, a->q_rows);
    return run(c, c->k->attn, a, a, 0);
}

neb_status neb__cpu_attn_bwd(void *dev, const struct neb_attn_bwd *g)
{
    struct neb_cpu *c = dev;
    const struct neb_attn *a = &g->f;
    NEB_TRY(check_attn("attn_bwd", a));
    const int64_t q_cols = a->heads * a->head_dim, k_cols = a->kv_heads * a->head_dim;
    clear_outside(g->dq, a->ldq, q_cols, a->type, a->starts_q, a->sequences, a->q_rows);
    clear_outside(g->dk, a->ldk, k_cols, a->type, a->starts_k, a->sequences, a->k_rows);
    clear_outside(g->dv, a->ldv, k_cols, a->type, a->starts_k, a->sequences, a->k_rows);
    return run(c, c->k->attn_bwd, g, a, 1);
}

neb_status neb__cpu_attn_listed(void *dev, const struct neb_attn_listed *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("attn_listed", a->type));
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads)
        return neb__fail(NEB_ERR_SHAPE,
                         "cpu: attn_listed: %" PRId64 " heads cannot share %" PRId64 " key heads", a->heads,
                         a->kv_heads);
    for (int64_t r = 0; r < a->q_rows; r++) {
        bool fits = a->count[r] >= 0 && a->count[r] <= a->max_k;
        for (int64_t j = 0; fits && j < a->count[r]; j++)
            fits = a->key[r * a->max_k + j] >= 0 && a->key[r * a->max_k + j] < a->k_rows;
        if (!fits)
            return neb__fail(NEB_ERR_SHAPE,
                             "cpu: attn_listed: query %" PRId64 " lists keys that do not exist", r);
    }
    struct neb_attn_aux aux = {NULL, (a->max_k + 63) / 64 * 64};
    void *p;
    NEB_TRY(neb__cpu_work(c, NEB_WORK_OP,
                          (size_t)(aux.per_worker * neb__pool_threads(c->pool)) * sizeof(float), &p));
    aux.scratch = p;
    neb__cpu_range(c, c->k->attn_listed, a, a->q_rows * a->heads, a->heads, &aux);
    return NEB_OK;
}

neb_status neb__cpu_attn_softmax(void *dev, const struct neb_attn_softmax *a)
{
    struct neb_cpu *c = dev;
    neb__cpu_range(c, c->k->attn_softmax, a, a->heads * a->q_rows, neb__cpu_rows(a->k_rows), NULL);
    return NEB_OK;
}

neb_status neb__cpu_attn_softmax_bwd(void *dev, const struct neb_attn_softmax *a)
{
    struct neb_cpu *c = dev;
    neb__cpu_range(c, c->k->attn_softmax_bwd, a, a->heads * a->q_rows, neb__cpu_rows(a->k_rows), NULL);
    return NEB_OK;
}

neb_status neb__cpu_attn_dropout(void *dev, const struct neb_attn_dropout *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_drop("attn_dropout", &a->drop));
    if (a->drop.threshold)
        neb__cpu_range(c, c->k->attn_dropout, a, a->heads * a->q_rows, neb__cpu_rows(a->k_rows), NULL);
    return NEB_OK;
}
