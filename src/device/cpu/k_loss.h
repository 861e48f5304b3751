/* k_loss.h: the losses, a row at a time; sums over classes run in float over short stretches and in double
 * over the stretches. Each piece of rows leaves one neb_partial. */
#ifndef NEB_CPU_K_LOSS_H
#define NEB_CPU_K_LOSS_H

#define STRETCH (LANES * 64)

INLINE float loss_factor(const struct neb_loss *l, int64_t r)
{
    return (l->weight ? l->weight[r] : 1.0f) * l->scale * l->ctl->loss_scale;
}
INLINE int loss_counts(const struct neb_loss *l, int64_t r)
{
    return !l->weight || l->weight[r] > 0;
}

INLINE float row_max(const void *x, int64_t n, const neb_dtype T)
{
    vf m = set1(-__builtin_inff());
    for (int64_t i = 0; i + LANES <= n; i += LANES) m = vmax(m, load(x, i, LANES, T));
    float best = n >= LANES ? hmax(m) : -__builtin_inff();
    for (int64_t i = n - n % LANES; i < n; i++) best = load1(x, i, T) > best ? load1(x, i, T) : best;
    return best;
}

/* Sum of exp((x - max) * scale); with `keep`, the terms replace x. */
INLINE double row_exp(void *x, int64_t n, float max, float scale, int keep, const neb_dtype T)
{
    double total = 0;
    const vf m = set1(max), f = set1(scale);
    for (int64_t b = 0; b < n; b += STRETCH) {
        int64_t end = b + STRETCH < n ? b + STRETCH : n, i = b;
        vf sum = {0};
        for (; i + LANES <= end; i += LANES) {
            vf e = vexp((load(x, i, LANES, T) - m) * f);
            sum = sum + e;
            if (keep) store(x, i, e, LANES, T);
        }
        if (i < end) {
            int w = width(end - i);
            vf e = vexp((load(x, i, w, T) - m) * f);
            for (int j = w; j < LANES; j++) e[j] = 0;
            sum = sum + e;
            if (keep) store(x, i, e, w, T);
        }
        total += hsum(sum);
    }
    return total;
}

INLINE double row_sum(const void *x, int64_t n, const neb_dtype T)
{
    double total = 0;
    for (int64_t b = 0; b < n; b += STRETCH) {
        int64_t end = b + STRETCH < n ? b + STRETCH : n;
        vf sum = {0};
        for (int64_t i = b; i < end; i += LANES) sum = sum + load(x, i, width(end - i), T);
        total += hsum(sum);
    }
    return total;
}

/* The teacher's distribution of one row: q_j = softmax(logits / T) over the given ids. */
struct neb_loss_teacher {
    const int32_t *ids; /* NULL: dense */
    const float *logits;
    int64_t k, classes;
    float max, inv_t;
    double sum;
};

INLINE int teacher_has(const struct neb_loss_teacher *t, int64_t j)
{
    return !t->ids || (t->ids[j] >= 0 && t->ids[j] < t->classes);
}
INLINE double teacher_prob(const struct neb_loss_teacher *t, int64_t j)
{
    return __builtin_exp((double)(t->logits[j] - t->max) * t->inv_t) / t->sum;
}
INLINE struct neb_loss_teacher teacher_row(const struct neb_xent *a, int64_t r)
{
    const struct neb_targets *g = &a->t;
    int64_t k = g->teacher_ids ? g->teacher_k : a->classes;
    struct neb_loss_teacher t = {g->teacher_ids ? g->teacher_ids + r * k : NULL,
                                 g->teacher_logits + r * k,
                                 k,
                                 a->classes,
                                 -__builtin_inff(),
                                 1.0f / g->temperature,
                                 0};
    for (int64_t j = 0; j < k; j++)
        if (teacher_has(&t, j) && t.logits[j] > t.max) t.max = t.logits[j];
    if (!t.ids)
        t.sum = row_exp((void *)(uintptr_t)t.logits, k, t.max, t.inv_t, 0, NEB_F32);
    else
        for (int64_t j = 0; j < k; j++)
            if (teacher_has(&t, j)) t.sum += __builtin_exp((double)(t.logits[j] - t.max) * t.inv_t);
    return t;
}

/* KL(teacher || student) = sum q (log q - x / T) + lse(x / T) */
INLINE double teacher_kl(const struct neb_loss_teacher *t, const void *x, double lse_t, const neb_dtype T)
{
    double kl = 0, any = 0, log_sum = __builtin_log(t->sum);
    for (int64_t j = 0; j < t->k; j++) {
        if (!teacher_has(t, j)) continue;
        double q = teacher_prob(t, j), log_q = (double)(t->logits[j] - t->max) * t->inv_t - log_sum;
        if (q > 0) kl += q * (log_q - (double)load1(x, t->ids ? t->ids[j] : j, T) * t->inv_t);
        any = 1;
    }
    return any ? kl + lse_t : 0;
}

/* grad = ce_w (p - (1 - s) [target] - s / n) + kd_w (p_T - q), written over x. e1 is 1 / sum exp(x - max); x
 * holds the exponentials already when `kept`. */
INLINE void xent_grad(void *x, int64_t n, float max, float ce_e, float ce_shift, float kd_e, float inv_t,
                      int kept, const neb_dtype T)
{
    const vf m = set1(max), f = set1(inv_t), a = set1(ce_e), b = set1(kd_e), c = set1(ce_shift);
    for (int64_t i = 0; i < n; i += LANES) {
        int w = width(n - i);
        vf v = load(x, i, w, T), g;
        if (kept) {
            g = v * a - c;
        } else {
            v = v - m;
            g = vexp(v) * a - c;
            if (kd_e != 0) g = g + vexp(v * f) * b;
        }
        store(x, i, g, w, T);
    }
}

INLINE void add1(void *x, int64_t i, float v, const neb_dtype T)
{
    store1(x, i, load1(x, i, T) + v, T);
}

/* ---- a student's own samples (neb_targets.judged) ---- */

/* The divergence of one part, and its derivative by P. */
INLINE double part_divergence(double p, double q, double beta, double *slope)
{
    const double least = 1e-30;
    if (beta <= 0) {
        *slope = -q / (p > least ? p : least);
        return q > 0 ? q * __builtin_log(q / (p > least ? p : least)) : 0;
    }
    const double m = beta >= 1 ? q : beta * q + (1 - beta) * p, share = beta >= 1 ? 1 : 1 - beta;
    const double log_pm = __builtin_log((p > least ? p : least) / (m > least ? m : least));
    *slope = share * (beta >= 1 ? log_pm + 1 : log_pm);
    const double back = share * p * log_pm;
    return beta >= 1 || !(q > 0) ? back : back + beta * q * __builtin_log(q / m);
}

struct neb_judged_row {
    int64_t k;
    int32_t id[NEB_JUDGED_MAX];
    double p[NEB_JUDGED_MAX], q[NEB_JUDGED_MAX], rest_p, rest_q;
};

/* P and Q over the teacher's tokens and all others. x holds the logits. */
INLINE struct neb_judged_row judge_row(const struct neb_xent *a, int64_t r, const void *x, float max,
                                       double sum, const neb_dtype T)
{
    const struct neb_targets *g = &a->t;
    struct neb_judged_row j = {.rest_p = 1};
    double all = 0;
    for (int64_t i = 0; i < g->teacher_k && j.k < NEB_JUDGED_MAX; i++) {
        const int32_t id = g->teacher_ids[r * g->teacher_k + i];
        if (id < 0 || id >= a->classes) continue;
        const double q = __builtin_exp((double)g->teacher_logits[r * g->teacher_k + i]);
        j.id[j.k] = id;
        j.p[j.k] = __builtin_exp((double)load1(x, id, T) - max) / sum;
        j.q[j.k] = q > 1e-9 ? q : 1e-9;
        j.rest_p -= j.p[j.k];
        all += j.q[j.k++];
    }
    const int has_rest = j.k < a->classes;
    if (has_rest) j.rest_q = 1 - all > 1e-4 ? 1 - all : 1e-4;
    if (!has_rest || j.rest_p < 0) j.rest_p = 0;
    all += j.rest_q;
    j.rest_q /= all;
    for (int64_t i = 0; i < j.k; i++) j.q[i] /= all;
    return j;
}

/* d/dx of sum f(P) is p (f' of its part - sum P f'). Returns the divergence; w times its gradient is written over x. */
INLINE double judged_loss(const struct neb_xent *a, int64_t r, void *x, float max, double sum, float w,
                          const neb_dtype T)
{
    struct neb_judged_row j = judge_row(a, r, x, max, sum, T);
    double slope[NEB_JUDGED_MAX], rest_slope = 0, mean = 0, loss = 0;
    if (!j.k) {
        if (a->want_grad) memset(x, 0, (size_t)a->classes * (T == NEB_F32 ? 4 : 2));
        return 0;
    }
    for (int64_t i = 0; i < j.k; i++) {
        loss += part_divergence(j.p[i], j.q[i], a->t.beta, &slope[i]);
        mean += j.p[i] * slope[i];
    }
    /* rest_p is a difference, of which the last 1e-7 is noise; the slope at beta 0 divides by it */
    const double rest_p = a->t.beta <= 0 && j.rest_p < 1e-6 ? 1e-6 : j.rest_p;
    if (j.rest_q > 0) loss += part_divergence(rest_p, j.rest_q, a->t.beta, &rest_slope);
    mean += j.rest_p * rest_slope;
    if (!a->want_grad) return loss;
    xent_grad(x, a->classes, max, (float)(w * (rest_slope - mean) / sum), 0, 0, 1, 0, T);
    for (int64_t i = 0; i < j.k; i++) store1(x, j.id[i], (float)(w * j.p[i] * (slope[i] - mean)), T);
    return loss;
}

INLINE void xent_row(const struct neb_xent *a, int64_t r, struct neb_partial *out, const neb_dtype T)
{
    const struct neb_targets *g = &a->t;
    void *x = at(a->logits, r * a->ld, T);
    const int64_t n = a->classes, target = g->target ? g->target[r] : -1;
    const float w = loss_factor(&a->loss, r);
    if (g->target && (target < 0 || target >= n)) {
        if (a->want_grad) memset(x, 0, (size_t)n * (T == NEB_F32 ? 4 : 2));
        return;
    }
    const int judged = g->judged && g->kd != 0, has_ce = g->target != NULL && g->ce != 0 && !judged,
              has_kd = g->kd != 0 && !judged;
    const float max = row_max(x, n, T), inv_t = has_kd ? 1.0f / g->temperature : 1.0f;
    const float xt = target >= 0 ? load1(x, target, T) : 0;
    const double sum_x = has_ce && g->smoothing != 0 ? row_sum(x, n, T) : 0;
    /* One exponential serves both passes unless a teacher needs the logits, or bf16 would round it. */
    const int keep = a->want_grad && !has_kd && !judged && T == NEB_F32;
    const double sum1 = row_exp(x, n, max, 1.0f, keep, T);
    double loss = 0;
    if (has_ce)
        loss +=
            g->ce * (__builtin_log(sum1) + max - (1 - g->smoothing) * xt - g->smoothing * sum_x / (double)n);
    double sum_t = 1;
    struct neb_loss_teacher teach = {0};
    if (has_kd) {
        sum_t = inv_t == 1.0f ? sum1 : row_exp(x, n, max, inv_t, 0, T);
        teach = teacher_row(a, r);
        loss += g->kd * g->temperature * g->temperature *
                teacher_kl(&teach, x, __builtin_log(sum_t) + (double)max * inv_t, T);
    }
    if (judged) loss = g->kd * judged_loss(a, r, x, max, sum1, w * g->kd, T);
    out->loss += (double)w * loss;
    if (loss_counts(&a->loss, r)) {
        out->count[1] += 1;
        if (target >= 0 && xt >= max) out->count[0] += 1;
    }
    if (!a->want_grad || judged) return;
    const float ce_w = has_ce ? w * g->ce : 0, kd_w = teach.sum > 0 ? w * g->kd * g->temperature : 0;
    xent_grad(x, n, max, (float)(ce_w / sum1), ce_w * g->smoothing / (float)n, (float)(kd_w / sum_t), inv_t,
              keep, T);
    if (has_ce) add1(x, target, -ce_w * (1 - g->smoothing), T);
    for (int64_t j = 0; kd_w != 0 && j < teach.k; j++)
        if (teacher_has(&teach, j))
            add1(x, teach.ids ? teach.ids[j] : j, (float)(-kd_w * teacher_prob(&teach, j)), T);
}

/* Where processes share out the classes: first each row's sums over the classes here … */
static void k_class_sums(const void *args, const struct neb_span *s)
{
    const struct neb_class_rows *a = args;
    const struct neb_targets *g = &a->x.t;
    const int64_t n = a->x.classes;
    for (int64_t r = s->lo; r < s->hi; r++) {
        float *x = (float *)a->x.logits + r * a->x.ld;
        const int64_t target = g->target[r] - a->first;
        struct neb_class_sums *out = &a->own[r];
        out->max = (double)row_max(x, n, NEB_F32);
        out->target = target >= 0 && target < n ? (double)x[target] : 0;
        out->all = g->smoothing != 0 ? row_sum(x, n, NEB_F32) : 0;
        out->sum = row_exp(x, n, (float)out->max, 1.0f, a->x.want_grad, NEB_F32);
    }
}

/* … then, with the sums over all of them, the loss, and the gradient here. x holds exp(logit - own max). */
INLINE void class_loss_row(const struct neb_class_rows *a, int64_t r, struct neb_partial *out)
{
    const struct neb_targets *g = &a->x.t;
    const int64_t n = a->x.classes, target = g->target[r];
    const struct neb_class_sums *all = &a->all[r], *own = &a->own[r];
    float *x = (float *)a->x.logits + r * a->x.ld;
    if (target < 0 || target >= a->total) {
        if (a->x.want_grad) memset(x, 0, (size_t)n * sizeof *x);
        return;
    }
    const float w = loss_factor(&a->x.loss, r), ce_w = w * g->ce;
    out->loss += (double)w * g->ce *
                 (__builtin_log(all->sum) + all->max - (1 - g->smoothing) * all->target -
                  g->smoothing * all->all / (double)a->total);
    if (loss_counts(&a->x.loss, r)) {
        out->count[1] += 1;
        if (all->target >= all->max) out->count[0] += 1;
    }
    if (!a->x.want_grad) return;
    const double share = __builtin_exp(own->max - all->max) / all->sum;
    xent_grad(x, n, 0, (float)((double)ce_w * share), ce_w * g->smoothing / (float)a->total, 0, 1, 1,
              NEB_F32);
    if (target >= a->first && target < a->first + n) x[target - a->first] -= ce_w * (1 - g->smoothing);
}

static void k_class_loss(const void *args, const struct neb_span *s)
{
    const struct neb_class_rows *a = args;
    struct neb_partial *out = (struct neb_partial *)s->aux + s->task;
    *out = (struct neb_partial){0};
    for (int64_t r = s->lo; r < s->hi; r++) class_loss_row(a, r, out);
}

static void k_xent(const void *args, const struct neb_span *s)
{
    const struct neb_xent *a = args;
    struct neb_partial *out = (struct neb_partial *)s->aux + s->task;
    *out = (struct neb_partial){0};
    for (int64_t r = s->lo; r < s->hi; r++) BY_TYPE(a->type, xent_row(a, r, out, T));
}

static void k_bce(const void *args, const struct neb_span *s)
{
    const struct neb_bce *a = args;
    struct neb_partial *out = (struct neb_partial *)s->aux + s->task;
    *out = (struct neb_partial){0};
    for (int64_t r = s->lo; r < s->hi; r++) {
        double d = 0;
        if (a->target[r] >= 0) {
            double x = load1(a->x, r, a->type), y = a->target[r] > 0, w = loss_factor(&a->loss, r);
            double e = __builtin_exp(x > 0 ? -x : x), p = x > 0 ? 1 / (1 + e) : e / (1 + e);
            out->loss += w * ((x > 0 ? x : 0) - x * y + __builtin_log1p(e));
            d = w * (p - y);
            if (loss_counts(&a->loss, r)) {
                int right = (x > 0) == (y > 0);
                out->count[0] += right, out->count[1] += 1, out->count[2] += y,
                    out->count[3] += right && y > 0;
            }
        }
        if (a->dx) store1(a->dx, r, (float)d + (a->acc_dx ? load1(a->dx, r, a->type) : 0), a->type);
    }
}

/* z (+)= f x + g y */
INLINE void pair_grad(const struct neb_pair_loss *a, void *z, int acc, int64_t base, const void *x, float f,
                      const void *y, float g, const neb_dtype T)
{
    const vf vx = set1(f), vy = set1(g);
    if (!z) return;
    for (int64_t i = 0; i < a->d; i += LANES) {
        int w = width(a->d - i);
        vf d = vx * load(x, base + i, w, T) + vy * load(y, base + i, w, T);
        if (acc) d = d + load(z, base + i, w, T);
        store(z, base + i, d, w, T);
    }
}

INLINE void mse_row(const struct neb_pair_loss *a, int64_t r, struct neb_partial *out, const neb_dtype T)
{
    const int64_t base = r * a->d;
    const float w = loss_factor(&a->loss, r);
    vf sum = {0};
    for (int64_t i = 0; i < a->d; i += LANES) {
        int n = width(a->d - i);
        vf e = load(a->x, base + i, n, T) - load(a->y, base + i, n, T);
        sum = sum + e * e;
    }
    out->loss += (double)w * hsum(sum) / (double)a->d;
    const float f = 2 * w / (float)a->d;
    pair_grad(a, a->dx, a->acc_dx, base, a->x, f, a->y, -f, T);
    pair_grad(a, a->dy, a->acc_dy, base, a->y, f, a->x, -f, T);
}
static void k_mse(const void *args, const struct neb_span *s)
{
    const struct neb_pair_loss *a = args;
    struct neb_partial *out = (struct neb_partial *)s->aux + s->task;
    *out = (struct neb_partial){0};
    for (int64_t r = s->lo; r < s->hi; r++) BY_TYPE(a->type, mse_row(a, r, out, T));
}

/* With c = x·y / (|x| |y|):  d(1 - c)/dx = -(y / (|x| |y|) - c x / |x|^2).
 * A zero vector gives loss 1, gradient 0. */
INLINE void cosine_row(const struct neb_pair_loss *a, int64_t r, struct neb_partial *out, const neb_dtype T)
{
    const int64_t base = r * a->d;
    const float w = loss_factor(&a->loss, r);
    vf xx = {0}, yy = {0}, xy = {0};
    for (int64_t i = 0; i < a->d; i += LANES) {
        int n = width(a->d - i);
        vf x = load(a->x, base + i, n, T), y = load(a->y, base + i, n, T);
        xx = xx + x * x, yy = yy + y * y, xy = xy + x * y;
    }
    const float nx = hsum(xx), ny = hsum(yy), norm = __builtin_sqrtf(nx) * __builtin_sqrtf(ny);
    const float inv = norm == 0 ? 0 : 1 / norm, c = hsum(xy) * inv;
    out->loss += (double)w * (1.0 - c);
    pair_grad(a, a->dx, a->acc_dx, base, a->x, nx > 0 ? w * c / nx : 0, a->y, -w * inv, T);
    pair_grad(a, a->dy, a->acc_dy, base, a->y, ny > 0 ? w * c / ny : 0, a->x, -w * inv, T);
}
static void k_cosine(const void *args, const struct neb_span *s)
{
    const struct neb_pair_loss *a = args;
    struct neb_partial *out = (struct neb_partial *)s->aux + s->task;
    *out = (struct neb_partial){0};
    for (int64_t r = s->lo; r < s->hi; r++) BY_TYPE(a->type, cosine_row(a, r, out, T));
}

#endif
