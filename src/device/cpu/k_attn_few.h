/* k_attn_few.h: attention of a few query rows, as when text is generated token by token. Packing keys and
 * values pays when many queries read them. Here they are read once, in place, at the speed of the memory:
 * first LANES keys at a time against the query, with a transposition to sum over a key's values; then the
 * weighted values. A list may give the rows (`key`; NULL: one after the other); it also tells early which
 * rows to prefetch. */
#ifndef NEB_CPU_K_ATTN_FEW_H
#define NEB_CPU_K_ATTN_FEW_H

enum { FEW_ROWS = 6, FEW_CHUNK = 4 }; /* query rows at most; vectors of an output row in registers */

/* The keys or values of one head. */
struct neb_few_side {
    const void *data;
    int64_t ld, n; /* n rows */
    const int32_t *key;
};

INLINE int64_t few_offset(const struct neb_few_side *s, int64_t j)
{
    j = j < s->n ? j : s->n - 1; /* the last row stands in for rows past the end */
    return (s->key ? s->key[j] : j) * s->ld;
}

/* The products of one query with LANES keys from j on. */
INLINE vf few_products(const void *q, const struct neb_few_side *k, int64_t hd, int64_t j, const neb_dtype T)
{
    vf sum[LANES];
    int64_t from[LANES], next[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        sum[i] = (vf){0};
        from[i] = few_offset(k, j + i);
        next[i] = few_offset(k, j + LANES + i);
    }
    for (int64_t d = 0; d < hd; d += LANES) {
        const int w = width(hd - d);
        const vf x = load(q, d, w, T);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            __builtin_prefetch(at(k->data, next[i] + d, T), 0, 3);
            sum[i] = sum[i] + x * load(k->data, from[i] + d, w, T);
        }
    }
    transpose(sum);
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < half; i++) sum[i] = sum[i] + sum[i + half];
    return sum[0];
}

/* `vectors` vectors of o = scale * sum over j of p[j] v[j], from column d on; two sums each, so that they do
 * not wait for each other. */
INLINE void few_values(const float *p, const struct neb_few_side *v, int64_t d, float scale, void *o,
                       int64_t values, int vectors, const neb_dtype T)
{
    vf even[FEW_CHUNK], odd[FEW_CHUNK];
#pragma GCC unroll 4
    for (int c = 0; c < vectors; c++) even[c] = odd[c] = (vf){0};
    for (int64_t j = 0; j < v->n; j += 2) {
        const int64_t first = few_offset(v, j) + d, second = few_offset(v, j + 1) + d,
                      third = few_offset(v, j + LANES) + d, fourth = few_offset(v, j + LANES + 1) + d;
        const vf f = set1(p[j]), g = set1(j + 1 < v->n ? p[j + 1] : 0);
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++) {
            const int w = width(values - c * LANES);
            __builtin_prefetch(at(v->data, third + c * LANES, T), 0, 3);
            __builtin_prefetch(at(v->data, fourth + c * LANES, T), 0, 3);
            even[c] = even[c] + f * load(v->data, first + c * LANES, w, T);
            odd[c] = odd[c] + g * load(v->data, second + c * LANES, w, T);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < vectors; c++)
        store(o, d + c * LANES, (even[c] + odd[c]) * set1(scale), width(values - c * LANES), T);
}

INLINE void few_output(const float *row, const struct neb_few_side *v, int64_t hd, float inv, void *o,
                       const neb_dtype T)
{
    int64_t d = 0;
    for (; d + FEW_CHUNK * LANES <= hd; d += FEW_CHUNK * LANES) /* the usual case, with constant sizes */
        few_values(row, v, d, inv, o, FEW_CHUNK * LANES, FEW_CHUNK, T);
    for (; d < hd; d += LANES) few_values(row, v, d, inv, o, hd - d < LANES ? hd - d : LANES, 1, T);
}

/* The products of one query with all keys, into row, which has room for n rounded up to LANES. */
INLINE void few_scores(const void *q, const struct neb_few_side *k, int64_t hd, float *row, const neb_dtype T)
{
    for (int64_t j = 0; j < k->n; j += LANES) st(row + j, few_products(q, k, hd, j, T));
}

INLINE void few_row(const struct neb_attn *a, const struct neb_attn_heads *h, const struct neb_row_bias *bias,
                    float *row, int64_t seq, int64_t head, int64_t i, const neb_dtype T)
{
    const float scale = bias->bias ? 1 : a->scale;
    const int64_t hd = h->hd, kh = head * a->kv_heads / a->heads, n = seen(h, a->causal, i), r = h->q0 + i;
    const struct neb_few_side k = {at(a->k, h->k0 * a->ldk + kh * hd, T), a->ldk, n, NULL},
                              v = {at(a->v, h->k0 * a->ldv + kh * hd, T), a->ldv, n, NULL};
    float max;
    few_scores(at(a->q, r * a->ldq + head * hd, T), &k, hd, row, T);
    if (bias->bias) add_bias(bias, h->offset + i, row, n, a->scale);
    const float sum = softmax_row(row, n, n, scale, &max);
    a->lse[head * a->q_rows + r] = n ? max * scale + __builtin_logf(sum) : -__builtin_inff();
    if (a->drop.threshold) drop_probs(&a->drop, seq, head, i, row, n);
    few_output(row, &v, hd, sum > 0 || sum != sum ? 1 / sum : 0, at(a->o, r * a->ldo + head * hd, T), T);
}

static void attn_few(const struct neb_attn *a, const struct neb_attn_heads *h,
                     const struct neb_row_bias *bias, float *row, int64_t seq, int64_t head)
{
    for (int64_t i = 0; i < h->tq; i++) BY_TYPE(a->type, few_row(a, h, bias, row, seq, head, i, T));
}

INLINE void listed_body(const struct neb_attn_listed *a, float *row, int64_t r, int64_t head,
                        const neb_dtype T)
{
    const int64_t hd = a->head_dim, kh = head * a->kv_heads / a->heads, n = a->count[r];
    const int32_t *key = a->key + r * a->max_k;
    const struct neb_few_side k = {at(a->k, kh * hd, T), a->ldk, n, key},
                              v = {at(a->v, kh * hd, T), a->ldv, n, key};
    float max;
    few_scores(at(a->q, r * a->ldq + head * hd, T), &k, hd, row, T);
    const float sum = softmax_row(row, n, n, a->scale, &max);
    few_output(row, &v, hd, sum > 0 || sum != sum ? 1 / sum : 0, at(a->o, r * a->ldo + head * hd, T), T);
}

/* A task is a query row with all its heads. */
static void k_attn_listed(const void *args, const struct neb_span *s)
{
    const struct neb_attn_listed *a = args;
    const struct neb_attn_aux *x = s->aux;
    float *row = x->scratch + s->worker * x->per_worker;
    for (int64_t t = s->lo; t < s->hi; t++)
        BY_TYPE(a->type, listed_body(a, row, t / a->heads, t % a->heads, T));
}

#endif
