/* k_optim.h: the gradient's norm and the parameter update: one pass over the slab each, at memory speed. */
#ifndef NEB_CPU_K_OPTIM_H
#define NEB_CPU_K_OPTIM_H

/* The sum of squares of one block, in double: aux[task]. */
static void k_sumsq(const void *args, const struct neb_span *s)
{
    const struct neb_sumsq *a = args;
    double total = 0;
    for (int64_t b = s->lo; b < s->hi; b += LANES * 64) {
        int64_t end = b + LANES * 64 < s->hi ? b + LANES * 64 : s->hi;
        vf sum[4] = {{0}};
        int64_t i = b;
        for (; i + 4 * LANES <= end; i += 4 * LANES)
            for (int j = 0; j < 4; j++) {
                vf x = ld(a->x + i + j * LANES);
                sum[j] = sum[j] + x * x;
            }
        for (; i < end; i += LANES) {
            vf x = load(a->x, i, width(end - i), NEB_F32);
            sum[0] = sum[0] + x * x;
        }
        total += hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    ((double *)s->aux)[s->task] = total;
}

struct neb_step_sizes {
    float clip, lr, decay, beta1, beta2, eps, inv_bias1, inv_bias2;
};

/* m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;
 * p -= lr ( (m / bias1) / (sqrt(v / bias2) + eps) + decay p ) */
INLINE void adamw_range(const struct neb_update *u, int64_t lo, int64_t hi, const struct neb_step_sizes *z)
{
    const vf clip = set1(z->clip), b1 = set1(z->beta1), c1 = set1(1 - z->beta1), b2 = set1(z->beta2),
             c2 = set1(1 - z->beta2), eps = set1(z->eps), lr = set1(z->lr), decay = set1(z->decay),
             i1 = set1(z->inv_bias1), i2 = set1(z->inv_bias2);
    for (int64_t i = lo; i < hi; i += LANES) {
        int w = width(hi - i);
        vf g = clip * load(u->grad, i, w, NEB_F32), p = load(u->param, i, w, NEB_F32);
        vf m = b1 * load(u->m, i, w, NEB_F32) + c1 * g;
        vf v = b2 * load(u->v, i, w, NEB_F32) + c2 * (g * g);
        p = p - lr * (m * i1 / (vsqrt(v * i2) + eps) + decay * p);
        store(u->m, i, m, w, NEB_F32);
        store(u->v, i, v, w, NEB_F32);
        store(u->param, i, p, w, NEB_F32);
        if (u->shadow) store(u->shadow, i, p, w, NEB_BF16);
    }
}

/* m = b1 m + g;  p -= lr (m + decay p) */
INLINE void sgd_range(const struct neb_update *u, int64_t lo, int64_t hi, const struct neb_step_sizes *z)
{
    const vf clip = set1(z->clip), b1 = set1(z->beta1), lr = set1(z->lr), decay = set1(z->decay);
    for (int64_t i = lo; i < hi; i += LANES) {
        int w = width(hi - i);
        vf d = clip * load(u->grad, i, w, NEB_F32), p = load(u->param, i, w, NEB_F32);
        if (u->m) {
            d = b1 * load(u->m, i, w, NEB_F32) + d;
            store(u->m, i, d, w, NEB_F32);
        }
        p = p - lr * (d + decay * p);
        store(u->param, i, p, w, NEB_F32);
        if (u->shadow) store(u->shadow, i, p, w, NEB_BF16);
    }
}

/* Updates the values lo … hi - 1 of the slab that segments cover. */
static void k_update(const void *args, const struct neb_span *s)
{
    const struct neb_update *u = args;
    for (int64_t k = 0; k < u->n_segments; k++) {
        const struct neb_segment *g = &u->segments[k];
        int64_t lo = g->offset > s->lo ? g->offset : s->lo;
        int64_t hi = g->offset + g->n < s->hi ? g->offset + g->n : s->hi;
        if (lo >= hi) continue;
        struct neb_step_sizes z = {
            u->ctl->clip, u->ctl->lr * g->lr_scale, g->decay,         u->beta1, u->beta2,
            u->eps,       1 / u->ctl->bias1,        1 / u->ctl->bias2};
        if (u->v)
            adamw_range(u, lo, hi, &z);
        else
            sgd_range(u, lo, hi, &z);
    }
}

#endif
