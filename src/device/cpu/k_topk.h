/* k_topk.h: the k largest values of a row. Nearly all values are smaller than the k-th best so far. So four
 * vectors at a time are compared with it, and only larger values are sorted in. */
#ifndef NEB_DEVICE_CPU_K_TOPK_H
#define NEB_DEVICE_CPU_K_TOPK_H

#include "base/topk.h"

/* Whether any lane of a is larger than the same lane of b. */
INLINE int any_above(vf a, vf b)
{
#if LANES == 16
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif LANES == 8
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)) != 0;
#else
    vi m = a > b;
    return (m[0] | m[1] | m[2] | m[3]) != 0;
#endif
}

INLINE void best_row(const void *x, int64_t cols, int k, float *value, int32_t *id, const neb_dtype T)
{
    int32_t n = 0;
    int64_t i = 0;
    for (; i < cols && n < k; i++) neb__topk_list_offer(value, id, k, &n, load1(x, i, T), (int32_t)i);
    for (; i + 4 * LANES <= cols; i += 4 * LANES) {
        vf a = vmax(load(x, i, LANES, T), load(x, i + LANES, LANES, T));
        vf b = vmax(load(x, i + 2 * LANES, LANES, T), load(x, i + 3 * LANES, LANES, T));
        if (__builtin_expect(any_above(vmax(a, b), set1(value[k - 1])), 0))
            for (int j = 0; j < 4 * LANES; j++)
                neb__topk_list_offer(value, id, k, &n, load1(x, i + j, T), (int32_t)(i + j));
    }
    for (; i < cols; i++) neb__topk_list_offer(value, id, k, &n, load1(x, i, T), (int32_t)i);
    for (; n < k; n++) value[n] = -__builtin_inff(), id[n] = -1;
}

INLINE void best_body(const struct neb_best *a, int64_t r, const neb_dtype T)
{
    void *x = at(a->x, r * a->cols, T);
    best_row(x, a->cols, a->k, a->value + r * a->k, a->id + r * a->k, T);
    const float max = a->value[r * a->k];
    if (a->lse) a->lse[r] = max + (float)__builtin_log(row_exp(x, a->cols, max, 1, 0, T));
}

static void k_best(const void *args, const struct neb_span *s)
{
    const struct neb_best *a = args;
    for (int64_t r = s->lo; r < s->hi; r++) BY_TYPE(a->type, best_body(a, r, T));
}

#endif
