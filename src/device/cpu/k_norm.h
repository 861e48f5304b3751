/* k_norm.h: LayerNorm and RMSNorm with residual and dropout, a row at a time, so the row is still in the L1
 * cache when its statistics are known and it is read again. */
#ifndef NEB_CPU_K_NORM_H
#define NEB_CPU_K_NORM_H

/* s = residual + drop(x) for one row. */
INLINE void residual_row(const struct neb_norm *a, int64_t r, const neb_dtype T)
{
    const int64_t base = r * a->d;
    const uint32_t threshold = a->drop.threshold;
    if (!threshold) {
        for (int64_t i = 0; i < a->d; i += LANES) {
            int w = width(a->d - i);
            store(a->s, base + i, load(a->residual, base + i, w, T) + load(a->x, base + i, w, T), w, T);
        }
        return;
    }
    uint16_t bits[DROP_BLOCK];
    struct neb_drop_key key = drop_row(&a->drop, r);
    const vf keep = set1(drop_keep(threshold));
    for (int64_t b = 0; b < a->d; b += DROP_BLOCK) {
        drop_bits(&key, b, bits);
        int64_t end = b + DROP_BLOCK < a->d ? b + DROP_BLOCK : a->d;
        for (int64_t i = b; i < end; i += LANES) {
            int w = width(end - i);
            vf x = load(a->x, base + i, w, T) * drop_factor(bits + (i - b), threshold, keep);
            store(a->s, base + i, load(a->residual, base + i, w, T) + x, w, T);
        }
    }
}

/* Mean and variance in two passes: no cancellation. */
INLINE void row_stats(const void *s, int64_t base, int64_t d, neb_norm_kind kind, float eps, float *mean,
                      float *rstd, const neb_dtype T)
{
    float m = 0;
    if (kind == NEB_NORM_LAYER) {
        vf sum = {0};
        for (int64_t i = 0; i < d; i += LANES) sum = sum + load(s, base + i, width(d - i), T);
        m = hsum(sum) / (float)d;
    }
    vf sq = {0};
    for (int64_t i = 0; i < d; i += LANES) {
        int w = width(d - i);
        vf x = load(s, base + i, w, T);
        if (kind == NEB_NORM_LAYER) {
            x = x - set1(m);
            if (w < LANES) /* lanes past the end hold 0 - mean */
                for (int j = w; j < LANES; j++) x[j] = 0;
        }
        sq = sq + x * x;
    }
    *mean = m;
    *rstd = 1.0f / __builtin_sqrtf(hsum(sq) / (float)d + eps);
}

INLINE void norm_body(const struct neb_norm *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    const void *in = a->residual ? a->s : a->x;
    for (int64_t r = lo; r < hi; r++) {
        if (a->residual) residual_row(a, r, T);
        if (!a->y) continue;
        float m, rs;
        row_stats(in, r * a->d, a->d, a->kind, a->eps, &m, &rs, T);
        if (a->mean) a->mean[r] = m;
        a->rstd[r] = rs;
        const vf vm = set1(m), vr = set1(rs);
        for (int64_t i = 0; i < a->d; i += LANES) {
            int w = width(a->d - i);
            vf y = (load(in, r * a->d + i, w, T) - vm) * vr * load(a->gamma, i, w, NEB_F32);
            if (a->beta) y = y + load(a->beta, i, w, NEB_F32);
            store(a->y, r * a->d + i, y, w, T);
        }
    }
}
static void k_norm(const void *args, const struct neb_span *s)
{
    const struct neb_norm *a = args;
    BY_TYPE(a->type, norm_body(a, s->lo, s->hi, T));
}

/* dx (+)= drop(ds) for one row. */
INLINE void drop_grad_row(const struct neb_norm_bwd *a, int64_t r, const neb_dtype T)
{
    const int64_t base = r * a->d;
    uint16_t bits[DROP_BLOCK] = {0};
    const uint32_t threshold = a->drop.threshold;
    struct neb_drop_key key = {0};
    if (threshold) key = drop_row(&a->drop, r);
    const vf keep = set1(drop_keep(threshold));
    for (int64_t b = 0; b < a->d; b += DROP_BLOCK) {
        if (threshold) drop_bits(&key, b, bits);
        int64_t end = b + DROP_BLOCK < a->d ? b + DROP_BLOCK : a->d;
        for (int64_t i = b; i < end; i += LANES) {
            int w = width(end - i);
            vf d = load(a->ds, base + i, w, T) * drop_factor(bits + (i - b), threshold, keep);
            if (a->acc_dx) d = d + load(a->dx, base + i, w, T);
            store(a->dx, base + i, d, w, T);
        }
    }
}

/* With xh = (s - mean) rstd and g = dy gamma:
 *   ds = rstd (g - mean(g) - xh mean(g xh)); RMS without mean(g). */
INLINE void norm_grad_row(const struct neb_norm_bwd *a, int64_t r, float *dgamma, float *dbeta,
                          const neb_dtype T)
{
    const int64_t base = r * a->d;
    const int layer = a->kind == NEB_NORM_LAYER;
    const vf mean = set1(layer ? a->mean[r] : 0.0f), rstd = set1(a->rstd[r]);
    vf sum_g = {0}, sum_gx = {0};
    for (int64_t i = 0; i < a->d; i += LANES) {
        int w = width(a->d - i);
        vf dy = load(a->dy, base + i, w, T), xh = (load(a->s, base + i, w, T) - mean) * rstd;
        vf g = dy * load(a->gamma, i, w, NEB_F32); /* 0 past the end */
        sum_g = sum_g + g;
        sum_gx = sum_gx + g * xh;
        if (dgamma) store(dgamma, i, load(dgamma, i, w, NEB_F32) + dy * xh, w, NEB_F32);
        if (dbeta) store(dbeta, i, load(dbeta, i, w, NEB_F32) + dy, w, NEB_F32);
    }
    const vf mean_g = set1(layer ? hsum(sum_g) / (float)a->d : 0.0f),
             mean_gx = set1(hsum(sum_gx) / (float)a->d);
    for (int64_t i = 0; i < a->d; i += LANES) {
        int w = width(a->d - i);
        vf xh = (load(a->s, base + i, w, T) - mean) * rstd;
        vf g = load(a->dy, base + i, w, T) * load(a->gamma, i, w, NEB_F32);
        vf d = rstd * (g - mean_g - xh * mean_gx);
        if (a->ds_in) d = d + load(a->ds_in, base + i, w, T);
        store(a->ds, base + i, d, w, T);
    }
}

INLINE void norm_bwd_body(const struct neb_norm_bwd *a, const struct neb_span *s, const neb_dtype T)
{
    const struct neb_norm_sums *sums = s->aux;
    float *dgamma = sums->dgamma ? sums->dgamma + s->task * a->d : NULL;
    float *dbeta = sums->dbeta ? sums->dbeta + s->task * a->d : NULL;
    if (dgamma) memset(dgamma, 0, (size_t)a->d * 4);
    if (dbeta) memset(dbeta, 0, (size_t)a->d * 4);
    for (int64_t r = s->lo; r < s->hi; r++) {
        if (a->dy)
            norm_grad_row(a, r, dgamma, dbeta, T);
        else if (a->ds_in && a->ds_in != a->ds)
            memcpy(at(a->ds, r * a->d, T), at(a->ds_in, r * a->d, T), (size_t)a->d * (T == NEB_F32 ? 4 : 2));
        if (a->dx) drop_grad_row(a, r, T);
    }
}
static void k_norm_bwd(const void *args, const struct neb_span *s)
{
    const struct neb_norm_bwd *a = args;
    BY_TYPE(a->type, norm_bwd_body(a, s, T));
}

#endif
