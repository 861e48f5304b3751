/* conform_targets.c: random targets, weights and teachers for cross-entropy, and the expected loss. */
#include "device/conform_targets.h"

#include <math.h>
#include <string.h>

/* A class; in one of eight cases a target that does not count. */
static int32_t random_target(struct neb_cf *c, int32_t classes)
{
    if (neb__cf_below(c, 8)) return neb__cf_below(c, classes);
    return neb__cf_below(c, 2) ? -100 : classes;
}

/* Log-probabilities that leave something for the other classes, in some rows nothing. */
static void make_judged(struct neb_cf *c, int64_t rows, struct neb_cf_targets *g)
{
    static const float betas[] = {0, 0.3f, 0.5f, 1};
    const int64_t k = g->t.teacher_k;
    double *v = neb__cf_doubles(c, rows * k);
    for (int64_t r = 0; r < rows; r++) {
        double sum = neb__cf_below(c, 3) ? neb__rng_uniform(&c->rng) * 3 : 0;
        for (int64_t j = 0; j < k; j++) sum += exp(g->teacher.v[r * k + j]);
        for (int64_t j = 0; j < k; j++) v[r * k + j] = g->teacher.v[r * k + j] - log(sum);
    }
    g->teacher = neb__cf_values(c, rows * k, NEB_F32, v);
    g->t.judged = 1;
    g->t.beta = betas[neb__cf_below(c, 4)];
}

struct neb_cf_targets neb__cf_make_targets(struct neb_cf *c, int64_t rows, int64_t classes)
{
    struct neb_cf_targets g = {0};
    const int teacher = neb__cf_below(c, 3); /* none, top-k, dense */
    const int judged = teacher == 1 && (c->ops->flags & NEB_DEVICE_JUDGED) && neb__cf_below(c, 2);
    g.t.ce = judged || (teacher && neb__cf_below(c, 3) == 0) ? 0 : 0.8f;
    g.t.smoothing = neb__cf_below(c, 2) ? 0.1f : 0;
    g.host = (struct neb_ctl){.loss_scale = 0.05f, .loss = {0, 0, 0.25f}, .counts = {3, 5}};
    if (g.t.ce != 0) {
        g.target = (int32_t *)neb__cf_doubles(c, rows);
        for (int64_t r = 0; r < rows; r++) g.target[r] = random_target(c, (int32_t)classes);
        g.t.target = neb__cf_ints(c, g.target, rows);
    }
    if (teacher) {
        g.t.kd = 0.6f;
        g.t.temperature = neb__cf_below(c, 2) ? 1.0f : 2.5f;
        g.t.teacher_k = teacher == 1 ? 1 + neb__cf_below(c, classes < 9 ? (int)classes : 9) : classes;
        g.teacher = neb__cf_random(c, rows * g.t.teacher_k, NEB_F32, 2);
        if (judged) make_judged(c, rows, &g);
        g.t.teacher_logits = g.teacher.p;
    }
    if (teacher == 1) {
        g.ids = (int32_t *)neb__cf_doubles(c, rows * g.t.teacher_k);
        for (int64_t i = 0; i < rows * g.t.teacher_k; i++) /* distinct in a row, sometimes invalid */
            g.ids[i] = neb__cf_below(c, 15) ? (int32_t)((i % g.t.teacher_k) * (classes / g.t.teacher_k) +
                                                        neb__cf_below(c, (int)(classes / g.t.teacher_k)))
                                            : -1;
        g.t.teacher_ids = neb__cf_ints(c, g.ids, rows * g.t.teacher_k);
    }
    g.loss = (struct neb_loss){.scale = 0.5f, .slot = 2, .ctl = neb__cf_ctl(c, &g.host)};
    if (neb__cf_below(c, 2)) {
        double *w = neb__cf_doubles(c, rows);
        for (int64_t r = 0; r < rows; r++) w[r] = neb__cf_below(c, 4) ? neb__rng_uniform(&c->rng) : 0;
        g.weight = neb__cf_values(c, rows, NEB_F32, w);
        g.loss.weight = g.weight.p;
    }
    return g;
}

static double log_sum_exp(const double *x, int64_t n, double scale)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, x[i] * scale);
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] * scale - max);
    return max + log(sum);
}

/* The teacher's distribution over all classes; false when the row has no teacher. */
static int teacher_of(const struct neb_cf_targets *g, int64_t r, int64_t classes, double *q)
{
    const int64_t k = g->t.teacher_k;
    const double *t = g->teacher.v + r * k, inv = 1 / g->t.temperature;
    double max = -INFINITY, sum = 0;
    memset(q, 0, (size_t)classes * sizeof *q);
    for (int64_t j = 0; j < k; j++)
        if (!g->ids || g->ids[r * k + j] >= 0) max = fmax(max, t[j] * inv);
    for (int64_t j = 0; j < k; j++) {
        int64_t id = g->ids ? g->ids[r * k + j] : j;
        if (id >= 0) q[id] = exp(t[j] * inv - max), sum += q[id];
    }
    for (int64_t i = 0; i < classes && sum > 0; i++) q[i] /= sum;
    return sum > 0;
}

/* ---- judged -------------------------------------------------------------------------------------------- */

enum { PARTS = 16 };

static double kl(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] > 0 ? a[i] * log(a[i] / b[i]) : 0;
    return sum;
}

/* The divergence of softmax(z) and q over n parts. */
static double divergence(const double *z, const double *q, int n, double beta)
{
    double p[PARTS], m[PARTS], lse = log_sum_exp(z, n, 1);
    for (int i = 0; i < n; i++) p[i] = exp(z[i] - lse), m[i] = beta * q[i] + (1 - beta) * p[i];
    if (beta == 0) return kl(q, p, n);
    if (beta == 1) return kl(p, q, n);
    return beta * kl(q, m, n) + (1 - beta) * kl(p, m, n);
}

/* The loss of a judged row by its definition, over the parts' own logits; its gradient by differences, shared out to the
 * classes of a part by their probabilities in it. */
static double judged_row(const struct neb_cf_targets *g, int64_t r, const double *x, int64_t classes,
                         double w, double *grad)
{
    const int64_t k = g->t.teacher_k;
    double z[PARTS], q[PARTS], all = 0, max = -INFINITY, rest = 0;
    int n = 0;
    int8_t *part = (int8_t *)(grad + classes);
    memset(part, -1, (size_t)classes);
    for (int64_t j = 0; j < k; j++) {
        const int32_t id = g->ids[r * k + j];
        if (id < 0) continue;
        part[id] = (int8_t)n;
        z[n] = x[id];
        q[n] = fmax(exp(g->teacher.v[r * k + j]), 1e-9);
        all += q[n++];
    }
    if (!n) return 0;
    for (int64_t i = 0; i < classes; i++)
        if (part[i] < 0) max = fmax(max, x[i]);
    for (int64_t i = 0; i < classes; i++)
        if (part[i] < 0) rest += exp(x[i] - max);
    const int others = n;
    if (n < classes) z[n] = max + log(rest), q[n] = fmax(1 - all, 1e-4), all += q[n++];
    for (int i = 0; i < n; i++) q[i] /= all;
    const double h = 1e-5, beta = (double)g->t.beta;
    for (int i = 0; i < n; i++) {
        const double keep = z[i];
        z[i] = keep + h;
        double up = divergence(z, q, n, beta);
        z[i] = keep - h;
        const double slope = w * g->t.kd * (up - divergence(z, q, n, beta)) / (2 * h);
        z[i] = keep;
        for (int64_t v = 0; v < classes; v++)
            if (i < others ? part[v] == i : part[v] < 0) grad[v] = slope * exp(x[v] - z[i]);
    }
    return g->t.kd * divergence(z, q, n, beta);
}

double neb__cf_xent_row(const struct neb_cf_targets *g, int64_t r, const double *x, int64_t classes,
                        double *grad, struct neb_ctl *want)
{
    double *q = grad + classes, loss = 0;
    const double weight = g->weight.v ? g->weight.v[r] : 1, w = weight * g->loss.scale * g->host.loss_scale;
    const int64_t target = g->target ? g->target[r] : -1;
    memset(grad, 0, (size_t)classes * sizeof *grad);
    if (g->target && (target < 0 || target >= classes)) return 0;
    const double lse = log_sum_exp(x, classes, 1);
    int64_t best = 0;
    for (int64_t i = 0; i < classes; i++)
        if (x[i] > x[best]) best = i;
    for (int64_t i = 0; g->target && i < classes; i++) {
        double label = (i == target ? 1 - g->t.smoothing : 0) + g->t.smoothing / (double)classes;
        loss += g->t.ce * label * (lse - x[i]);
        grad[i] += w * g->t.ce * (exp(x[i] - lse) - label);
    }
    if (g->t.judged) {
        loss = judged_row(g, r, x, classes, w, grad);
    } else if (g->t.kd != 0 && teacher_of(g, r, classes, q)) {
        const double T = g->t.temperature, lse_t = log_sum_exp(x, classes, 1 / T);
        for (int64_t i = 0; i < classes; i++) {
            if (q[i] > 0) loss += g->t.kd * T * T * q[i] * (log(q[i]) - (x[i] / T - lse_t));
            grad[i] += w * g->t.kd * T * (exp(x[i] / T - lse_t) - q[i]);
        }
    }
    if (weight > 0) want->counts[1] += 1, want->counts[0] += g->target && best == target;
    return w * loss;
}

void neb__cf_check_ctl(struct neb_cf *c, const struct neb_ctl *dev, const struct neb_ctl *want)
{
    struct neb_ctl got = neb__cf_read_ctl(c, dev);
    for (int i = 0; i < 8; i++) neb__cf_near1(c, "loss", got.loss[i], want->loss[i], 0.1);
    for (int i = 0; i < 4; i++)
        neb__cf_near1(c, "count", got.counts[i], want->counts[i], c->type == NEB_F32 ? 0 : 200);
    neb__cf_true(c, "nonfinite stays clear", got.nonfinite == 0);
    neb__cf_true(c, "the input part is untouched",
                 got.loss_scale == want->loss_scale && got.seed == want->seed);
}
