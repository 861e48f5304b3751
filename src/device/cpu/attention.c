/* attention.c: variable-length attention. A task is one sequence and one key head, so no other task writes
 * its keys' gradients. A bias of distances is spread out to one number a distance before, and its gradient is summed by sequences
 * and then added up. Rows that belong to no sequence (padding at the end of a packed batch) become 0, so
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

/* Zeroes the columns of all heads in the rows outside [starts[0], starts[sequences]). A rehearsal has no memory there. */
static void clear_outside(const struct neb_cpu *c, void *x, int64_t ld, int64_t cols, neb_dtype type,
                          const int32_t *starts, int64_t sequences, int64_t rows)
{
    const int64_t size = (int64_t)neb__dtype_size(type);
    const int64_t first = sequences ? starts[0] : 0, end = sequences ? starts[sequences] : 0;
    for (int64_t r = 0; r < rows && !c->rehearses; r++) {
        if (r == first) r = end;
        if (r < rows) memset((char *)x + r * ld * size, 0, (size_t)(cols * size));
    }
}

/* ---- the bias of distances ---- */

/* The bucket of distance d, as a row of the table. */
static int64_t bucket_of(const struct neb_attn_bias *x, int64_t d)
{
    const int64_t n = d <= 0 ? -d : x->both_ways ? d : 0;
    int64_t lo = 0, hi = x->buckets;
    while (hi - lo > 1) {
        const int64_t mid = (lo + hi) / 2;
        if (x->from[mid] <= n)
            lo = mid;
        else
            hi = mid;
    }
    return lo + (d > 0 && x->both_ways ? x->buckets : 0);
}

static neb_status check_bias(const char *op, const struct neb_attn_bias *x)
{
    bool fits = x->table && x->buckets >= 1 && x->buckets <= NEB_BIAS_BUCKETS && x->from[0] == 0;
    for (int64_t i = 1; fits && i < x->buckets; i++) fits = x->from[i] >= x->from[i - 1];
    return fits ? NEB_OK
                : neb__fail(NEB_ERR_SHAPE,
                            "cpu: %s: the buckets of distances must begin at 0 and never descend, and there "
                            "must be 1 to %d of them",
                            op, NEB_BIAS_BUCKETS);
}

/* Farther than the last bucket begins, and farther than two rows can be apart, nothing changes. The directions differ from 1 on. */
static int64_t reach_of(const struct neb_attn_bias *x, const struct neb_attn *a)
{
    const int64_t longest = a->max_q > a->max_k ? a->max_q : a->max_k, last = x->from[x->buckets - 1];
    const int64_t reach = last < longest ? last : longest;
    return reach > 1 ? reach : 1;
}

/* The table as a row of numbers a head, one for each distance. */
static void spread_bias(const struct neb_attn_bias *x, int64_t heads, int64_t reach, float *out)
{
    const int64_t wide = 2 * reach + 1;
    for (int64_t d = -reach; d <= reach; d++) {
        const float *row = x->table + bucket_of(x, d) * heads;
        for (int64_t h = 0; h < heads; h++) out[h * wide + reach + d] = row[h];
    }
}

/* Those up to the last one with rows: a batch has room for many, and ends with empty ones. */
static int64_t filled(const struct neb_attn *a)
{
    int64_t n = a->sequences;
    while (n && a->starts_q[n] == a->starts_q[n - 1]) n--;
    return n;
}

/* The sums of `sequences` and all distances of a bucket, always in the same order. */
static void gather_bias(const struct neb_attn_bias *x, const struct neb_attn *a, int64_t reach,
                        int64_t sequences, const float *sums)
{
    const int64_t wide = 2 * reach + 1, rows = (x->both_ways ? 2 : 1) * x->buckets;
    if (!x->acc_dtable) memset(x->dtable, 0, (size_t)(rows * a->heads) * sizeof(float));
    for (int64_t h = 0; h < a->heads; h++)
        for (int64_t d = -reach; d <= reach; d++) {
            float sum = 0;
            for (int64_t s = 0; s < sequences; s++) sum += sums[(s * a->heads + h) * wide + reach + d];
            x->dtable[bucket_of(x, d) * a->heads + h] += sum;
        }
}

/* ---- running ---- */

struct attn_call {
    neb_kernel fn;
    const void *args;
    const struct neb_attn *a;
    int backward;
    const struct neb_attn_bias *bias; /* NULL: none */
};

static neb_status run(struct neb_cpu *c, const struct attn_call *x)
{
    const struct neb_attn *a = x->a;
    struct neb_attn_aux aux = {.per_worker = c->k->attn_scratch(a, x->backward)};
    const int64_t workers = aux.per_worker * neb__pool_threads(c->pool);
    const int64_t sequences = filled(a);
    int64_t row = 0, sums = 0;
    void *p;
    if (x->bias) {
        aux.reach = reach_of(x->bias, a);
        row = a->heads * (2 * aux.reach + 1);
        sums = x->backward && x->bias->dtable ? sequences * row : 0;
    }
    NEB_TRY(neb__cpu_work(c, NEB_WORK_OP, (size_t)(workers + row + sums) * sizeof(float), &p));
    aux.scratch = p;
    float *spread = aux.scratch + workers;
    if (x->bias) {
        spread_bias(x->bias, a->heads, aux.reach, spread);
        aux.bias = spread;
    }
    if (sums) {
        aux.dbias = spread + row;
        memset(aux.dbias, 0, (size_t)sums * sizeof(float));
    }
    neb__cpu_range(c, x->fn, x->args, a->sequences * a->kv_heads, 1, &aux);
    if (x->bias && x->backward && x->bias->dtable) gather_bias(x->bias, a, aux.reach, sequences, aux.dbias);
    return NEB_OK;
}

static neb_status forward(struct neb_cpu *c, const struct neb_attn *a, const struct neb_attn_bias *bias)
{
    clear_outside(c, a->o, a->ldo, a->heads * a->head_dim, a->type, a->starts_q, a->sequences, a->q_rows);
    return run(c, &(struct attn_call){c->k->attn, a, a, 0, bias});
}

neb_status neb__cpu_attn(void *dev, const struct neb_attn *a)
{
    NEB_TRY(check_attn("attn", a));
    return forward(dev, a, NULL);
}

neb_status neb__cpu_attn_biased(void *dev, const struct neb_attn_biased *x)
{
    NEB_TRY(check_attn("attn_biased", &x->a));
    NEB_TRY(check_bias("attn_biased", &x->bias));
    return forward(dev, &x->a, &x->bias);
}

static neb_status backward(struct neb_cpu *c, const struct neb_attn_bwd *g, const struct neb_attn_bias *bias)
{
    const struct neb_attn *a = &g->f;
    const int64_t q_cols = a->heads * a->head_dim, k_cols = a->kv_heads * a->head_dim;
    clear_outside(c, g->dq, a->ldq, q_cols, a->type, a->starts_q, a->sequences, a->q_rows);
    clear_outside(c, g->dk, a->ldk, k_cols, a->type, a->starts_k, a->sequences, a->k_rows);
    clear_outside(c, g->dv, a->ldv, k_cols, a->type, a->starts_k, a->sequences, a->k_rows);
    return run(c, &(struct attn_call){c->k->attn_bwd, g, a, 1, bias});
}

neb_status neb__cpu_attn_bwd(void *dev, const struct neb_attn_bwd *g)
{
    NEB_TRY(check_attn("attn_bwd", &g->f));
    return backward(dev, g, NULL);
}

neb_status neb__cpu_attn_biased_bwd(void *dev, const struct neb_attn_biased_bwd *x)
{
    NEB_TRY(check_attn("attn_biased_bwd", &x->b.f));
    NEB_TRY(check_bias("attn_biased_bwd", &x->bias));
    return backward(dev, &x->b, &x->bias);
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
    struct neb_attn_aux aux = {.per_worker = (a->max_k + 63) / 64 * 64};
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
