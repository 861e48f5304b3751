/* k_attn_few.h: attention of a few query rows, as when text is generated token by token. Packing keys and values pays
 * where many queries read them; here they are read once, from where they are, at the speed of the memory: LANES keys
 * at a time against the query, the sums over a key's values being made by transposing; then the values, weighted. */
#ifndef NEB_CPU_K_ATTN_FEW_H
#define NEB_CPU_K_ATTN_FEW_H

enum { FEW_ROWS = 6, FEW_CHUNK = 4 }; /* query rows at most; vectors of an output row in registers */

/* The products of one query with LANES keys. `have` < LANES: the last key stands for those that are not there. */
INLINE vf few_products(const void *q, const void *k, int64_t ldk, int64_t hd, int have, const neb_dtype T)
{
    vf sum[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) sum[i] = (vf){0};
    for (int64_t d = 0; d < hd; d += LANES) {
        const int w = width(hd - d);
        const vf x = load(q, d, w, T);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            __builtin_prefetch(at(k, (i + LANES) * ldk + d, T), 0, 3);
            sum[i] = sum[i] + x * load(k, (i < have ? i : have - 1) * ldk + d, w, T);
        }
    }
    transpose(sum);
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < half; i++) sum[i] = sum[i] + sum[i + half];
    return sum[0];
}

INLINE void few_scores(const void *q, const void *k, int64_t ldk, int64_t hd, int64_t n, float *row,
                       const neb_dtype T)
{
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) st(row + j, few_products(q, at(k, j * ldk, T), ldk, hd, LANES, T));
    if (j < n) st(row + j, few_products(q, at(k, j * ldk, T), ldk, hd, (int)(n - j), T));
}

/* `vectors` vectors of o = scale * sum over j of p[j] v[j]; two sums each, so that they do not wait for one another. */
INLINE void few_values(const float *p, const void *v, int64_t ldv, int64_t n, float scale, void *o,
                       int64_t values, int vectors, const neb_dtype T)
{
    vf even[FEW_CHUNK], odd[FEW_CHUNK];
#pragma GCC unroll 4
    for (int c = 0; c < vectors; c++) even[c] = odd[c] = (vf){0};
    for (int64_t j = 0; j < n; j += 2) {
        const int64_t second = j + 1 < n ? j + 1 : j;
        const vf f = set1(p[j]), g = set1(j + 1 < n ? p[j + 1] : 0);
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++) {
            const int w = width(values - c * LANES);
            __builtin_prefetch(at(v, (j + LANES) * ldv + c * LANES, T), 0, 3);
            __builtin_prefetch(at(v, (j + LANES + 1) * ldv + c * LANES, T), 0, 3);
            even[c] = even[c] + f * load(v, j * ldv + c * LANES, w, T);
            odd[c] = odd[c] + g * load(v, second * ldv + c * LANES, w, T);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < vectors; c++)
        store(o, c * LANES, (even[c] + odd[c]) * set1(scale), width(values - c * LANES), T);
}

INLINE void few_row(const struct neb_attn *a, const struct heads *h, float *row, int64_t seq, int64_t head,
                    int64_t i, const neb_dtype T)
{
    const int64_t hd = h->hd, kh = head * a->kv_heads / a->heads, n = seen(h, a->causal, i), r = h->q0 + i;
    const void *v = at(a->v, h->k0 * a->ldv + kh * hd, T);
    void *o = at(a->o, r * a->ldo + head * hd, T);
    float max;
    few_scores(at(a->q, r * a->ldq + head * hd, T), at(a->k, h->k0 * a->ldk + kh * hd, T), a->ldk, hd, n, row,
               T);
    const float sum = softmax_row(row, n, n, a->scale, &max);
    const float inv = sum > 0 || sum != sum ? 1 / sum : 0;
    a->lse[head * a->q_rows + r] = n ? max * a->scale + __builtin_logf(sum) : -__builtin_inff();
    if (a->drop.threshold) drop_probs(&a->drop, seq, head, i, row, n);
    int64_t d = 0;
    for (; d + FEW_CHUNK * LANES <= hd; d += FEW_CHUNK * LANES) /* the usual case, with constant sizes */
        few_values(row, at(v, d, T), a->ldv, n, inv, at(o, d, T), FEW_CHUNK * LANES, FEW_CHUNK, T);
    for (; d < hd; d += LANES)
        few_values(row, at(v, d, T), a->ldv, n, inv, at(o, d, T), hd - d < LANES ? hd - d : LANES, 1, T);
}

static void attn_few(const struct neb_attn *a, const struct heads *h, float *row, int64_t seq, int64_t head)
{
    for (int64_t i = 0; i < h->tq; i++) BY_TYPE(a->type, few_row(a, h, row, seq, head, i, T));
}

#endif
