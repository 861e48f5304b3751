/* conform_loss.c: the losses with their gradients and counts, and the optimizer's passes. */
#include "device/conform.h"
#include "device/conform_targets.h"

#include <math.h>
#include <string.h>

static void case_xent(struct neb_cf *c)
{
    const int64_t rows = neb__cf_dim(c, 40), classes = neb__cf_dim(c, 1000),
                  ld = classes + neb__cf_below(c, 5);
    const int want_grad = neb__cf_below(c, 4) > 0;
    struct neb_cf_targets g = neb__cf_make_targets(c, rows, classes);
    neb__cf_shape(c, "%lld x %lld, ce %g, smoothing %g, kd %g, k %lld, T %g, judged %d, beta %g",
                  (long long)rows, (long long)classes, (double)g.t.ce, (double)g.t.smoothing, (double)g.t.kd,
                  (long long)g.t.teacher_k, (double)g.t.temperature, g.t.judged, (double)g.t.beta);
    struct neb_cf_t x = neb__cf_random(c, rows * ld, c->type, 3);
    double *want = neb__cf_doubles(c, rows * ld), *grad = neb__cf_doubles(c, 2 * classes), loss = 0;
    struct neb_ctl want_ctl = g.host;
    for (int64_t i = 0; i < rows * ld; i++) want[i] = x.v[i];
    for (int64_t r = 0; r < rows; r++) {
        loss += neb__cf_xent_row(&g, r, x.v + r * ld, classes, grad, &want_ctl);
        for (int64_t i = 0; want_grad && i < classes; i++) want[r * ld + i] = grad[i] * 100; /* see below */
    }
    want_ctl.loss[2] += (float)loss;
    struct neb_xent a = {x.p, rows, classes, ld, want_grad, g.t, g.loss, c->type};
    /* Gradients are small beside the untouched padding. Scaling the loss by 100 brings both to one
     * magnitude. */
    a.loss.scale *= want_grad ? 100 : 1;
    want_ctl.loss[2] = (float)(g.host.loss[2] + loss * (want_grad ? 100 : 1));
    if (!neb__cf_ok(c, c->ops->xent(c->dev, &a))) return;
    if (want_grad) neb__cf_near(c, "gradient", &x, want, 1);
    neb__cf_check_ctl(c, g.loss.ctl, &want_ctl);
}

static void case_bce(struct neb_cf *c)
{
    const int64_t rows = neb__cf_dim(c, 250);
    const int acc = neb__cf_below(c, 2), want_dx = neb__cf_below(c, 4) > 0;
    neb__cf_shape(c, "%lld rows, acc %d", (long long)rows, acc);
    struct neb_ctl host = {.loss_scale = 0.1f}, want_ctl = host;
    struct neb_ctl *ctl = neb__cf_ctl(c, &host);
    struct neb_cf_t x = neb__cf_random(c, rows, c->type, 4), dx = neb__cf_target(c, rows, c->type, acc);
    int32_t *target = (int32_t *)neb__cf_doubles(c, rows);
    double *want = neb__cf_doubles(c, rows), loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        target[r] = neb__cf_below(c, 5) - 1 > 0 ? 1 : neb__cf_below(c, 3) - 1;
        want[r] = acc ? dx.v[r] : 0;
        if (target[r] < 0) continue;
        double y = target[r], p = 1 / (1 + exp(-x.v[r]));
        int right = (x.v[r] > 0) == (y > 0);
        loss += 0.1f * 2 * (log1p(exp(-fabs(x.v[r]))) + fmax(x.v[r], 0) - x.v[r] * y);
        want[r] += 0.1f * 2 * (p - y);
        want_ctl.counts[0] += (float)right, want_ctl.counts[1] += 1, want_ctl.counts[2] += (float)y;
        want_ctl.counts[3] += (float)(right && y > 0);
    }
    want_ctl.loss[1] = (float)loss;
    struct neb_bce a = {
        x.p, neb__cf_ints(c, target, rows), want_dx ? dx.p : NULL, rows, acc, {ctl, NULL, 2, 1}, c->type};
    if (!neb__cf_ok(c, c->ops->bce(c->dev, &a))) return;
    if (want_dx) neb__cf_near(c, "dx", &dx, want, 0.1);
    neb__cf_check_ctl(c, ctl, &want_ctl);
}

/* MSE and cosine by differences of the definition: e(x, y) for one row. */
static double pair_value(int cosine, const double *x, const double *y, int64_t d)
{
    double xx = 0, yy = 0, xy = 0, sq = 0;
    for (int64_t i = 0; i < d; i++) {
        xx += x[i] * x[i], yy += y[i] * y[i], xy += x[i] * y[i];
        sq += (x[i] - y[i]) * (x[i] - y[i]);
    }
    if (!cosine) return sq / (double)d;
    return xx == 0 || yy == 0 ? 1 : 1 - xy / sqrt(xx * yy);
}

static void pair_case(struct neb_cf *c, int cosine)
{
    const int64_t rows = neb__cf_dim(c, 30), d = neb__cf_dim(c, 130), n = rows * d;
    const int acc_x = neb__cf_below(c, 2), acc_y = neb__cf_below(c, 2), with_dy = neb__cf_below(c, 2);
    neb__cf_shape(c, "%lld x %lld, acc %d %d", (long long)rows, (long long)d, acc_x, acc_y);
    struct neb_ctl host = {.loss_scale = 1.0f}, want_ctl = host;
    struct neb_ctl *ctl = neb__cf_ctl(c, &host);
    double *zero_row = neb__cf_doubles(c, n), *w = neb__cf_doubles(c, rows);
    for (int64_t i = 0; i < n; i++) zero_row[i] = i < d && rows > 1 ? 0 : neb__rng_normal(&c->rng);
    for (int64_t r = 0; r < rows; r++) w[r] = neb__rng_uniform(&c->rng);
    struct neb_cf_t x = neb__cf_values(c, n, c->type, zero_row), y = neb__cf_random(c, n, c->type, 1);
    struct neb_cf_t dx = neb__cf_target(c, n, c->type, acc_x), dy = neb__cf_target(c, n, c->type, acc_y);
    struct neb_cf_t weight = neb__cf_values(c, rows, NEB_F32, w);
    double *want_x = neb__cf_doubles(c, n), *want_y = neb__cf_doubles(c, n), loss = 0;
    const double h = 1e-6;
    double condition = 0.1; /* cosine: two terms of size 1 / |x| cancel */
    for (int64_t r = 0; r < rows; r++) {
        double *px = x.v + r * d, *py = y.v + r * d;
        const int flat = cosine && rows > 1 && r == 0; /* the zero vector */
        loss += weight.v[r] * pair_value(cosine, px, py, d);
        double xx = 0, yy = 0;
        for (int64_t i = 0; i < d; i++) xx += px[i] * px[i], yy += py[i] * py[i];
        if (cosine && !flat) condition = fmax(condition, weight.v[r] / sqrt(fmin(xx, yy)));
        for (int64_t i = 0; i < d; i++) {
            double keep = px[i], up, gx, gy;
            px[i] = keep + h, up = pair_value(cosine, px, py, d), px[i] = keep - h;
            gx = (up - pair_value(cosine, px, py, d)) / (2 * h), px[i] = keep, keep = py[i];
            py[i] = keep + h, up = pair_value(cosine, px, py, d), py[i] = keep - h;
            gy = (up - pair_value(cosine, px, py, d)) / (2 * h), py[i] = keep;
            want_x[r * d + i] = (acc_x ? dx.v[r * d + i] : 0) + (flat ? 0 : weight.v[r] * gx);
            want_y[r * d + i] = (acc_y ? dy.v[r * d + i] : 0) + (flat ? 0 : weight.v[r] * gy);
        }
    }
    want_ctl.loss[0] = (float)loss;
    struct neb_pair_loss a = {x.p, y.p,   dx.p,  with_dy ? dy.p : NULL, rows,
                              d,   acc_x, acc_y, {ctl, weight.p, 1, 0}, c->type};
    neb_status status = cosine ? c->ops->cosine(c->dev, &a) : c->ops->mse(c->dev, &a);
    if (!neb__cf_ok(c, status)) return;
    neb__cf_near(c, "dx", &dx, want_x, condition);
    if (with_dy) neb__cf_near(c, "dy", &dy, want_y, condition);
    neb__cf_check_ctl(c, ctl, &want_ctl);
}

static void case_mse(struct neb_cf *c)
{
    pair_case(c, 0);
}

static void case_cosine(struct neb_cf *c)
{
    pair_case(c, 1);
}

/* A NaN anywhere must be detected and must stop the update. */
static void case_nonfinite(struct neb_cf *c)
{
    const int64_t rows = 1 + neb__cf_below(c, 20), classes = 1 + neb__cf_below(c, 300);
    neb__cf_shape(c, "%lld x %lld", (long long)rows, (long long)classes);
    double *v = neb__cf_doubles(c, rows * classes);
    v[neb__cf_below(c, (int)(rows * classes))] = neb__cf_below(c, 2) ? NAN : INFINITY;
    int32_t *target = (int32_t *)neb__cf_doubles(c, rows);
    struct neb_ctl host = {.loss_scale = 1, .max_norm = 1, .lr = 0.1f, .bias1 = 1, .bias2 = 1};
    struct neb_ctl *ctl = neb__cf_ctl(c, &host);
    struct neb_cf_t x = neb__cf_values(c, rows * classes, c->type, v);
    struct neb_xent a = {.logits = x.p,
                         .rows = rows,
                         .classes = classes,
                         .ld = classes,
                         .want_grad = 1,
                         .t = {.target = neb__cf_ints(c, target, rows), .ce = 1},
                         .loss = {ctl, NULL, 1, 0},
                         .type = c->type};
    struct neb_cf_t p = neb__cf_random(c, 10, NEB_F32, 1), m = neb__cf_random(c, 10, NEB_F32, 1);
    struct neb_cf_t vv = neb__cf_random(c, 10, NEB_F32, 1), g = neb__cf_random(c, 10, NEB_F32, 1);
    struct neb_segment seg = {0, 10, 0.1f, 1};
    struct neb_update u = {p.p, m.p, vv.p, g.p,   NULL,  neb__cf_raw(c, &seg, sizeof seg),
                           1,   10,  0.9f, 0.99f, 1e-8f, ctl};
    if (!neb__cf_ok(c, c->ops->xent(c->dev, &a))) return;
    neb__cf_true(c, "xent detects a value that is not finite", neb__cf_read_ctl(c, ctl).nonfinite != 0);
    if (!neb__cf_ok(c, c->ops->clip(c->dev, &(struct neb_clip){ctl}))) return;
    neb__cf_true(c, "clip is 0 then", neb__cf_read_ctl(c, ctl).clip == 0);
    if (!neb__cf_ok(c, c->ops->update(c->dev, &u))) return;
    neb__cf_near(c, "param", &p, p.v, 0);
    neb__cf_near(c, "m", &m, m.v, 0);
    neb__cf_near(c, "v", &vv, vv.v, 0);
}

/* Norm, clipping and three updates over segments with gaps; the gaps must not change. */
static void case_update(struct neb_cf *c)
{
    enum { SEGMENTS = 4 };
    const int kind = neb__cf_below(c, 3), shadowed = neb__cf_below(c, 2); /* AdamW, momentum, plain */
    struct neb_segment seg[SEGMENTS];
    int64_t end = neb__cf_below(c, 2) * 16;
    for (int i = 0; i < SEGMENTS; i++) {
        seg[i] = (struct neb_segment){end, neb__cf_dim(c, 257) * neb__cf_dim(c, 60), i % 2 ? 0.1f : 0,
                                      i == 2 ? 0.5f : 1};
        end = seg[i].offset + seg[i].n + neb__cf_below(c, 2) * 16;
    }
    const int64_t n = end;
    neb__cf_shape(c, "kind %d, %lld values, shadow %d", kind, (long long)n, shadowed);
    struct neb_cf_t p = neb__cf_random(c, n, NEB_F32, 1), m = neb__cf_random(c, n, NEB_F32, 0.1),
                    v = neb__cf_random(c, n, NEB_F32, 0.1), g = neb__cf_random(c, n, NEB_F32, 1);
    for (int64_t i = 0; i < n; i++) v.v[i] = fabs(v.v[i]);
    v = neb__cf_values(c, n, NEB_F32, v.v);
    struct neb_cf_t shadow = neb__cf_random(c, n, NEB_BF16, 1);
    double norm2 = 1.5, *wp = p.v, *wm = m.v, *wv = v.v, *ws = shadow.v;
    for (int64_t i = 0; i < n; i++) norm2 += g.v[i] * g.v[i];
    const double max_norm = neb__cf_below(c, 2) ? 2.0 : 0,
                 clip = max_norm > 0 && sqrt(norm2) > max_norm ? max_norm / sqrt(norm2) : 1;
    struct neb_ctl host = {.step = 3,
                           .lr = 0.01f,
                           .max_norm = (float)max_norm,
                           .bias1 = 0.271f,
                           .bias2 = 0.0297f,
                           .norm2 = 1.5f};
    struct neb_ctl *ctl = neb__cf_ctl(c, &host);
    struct neb_sumsq q = {.x = g.p, .n = n, .ctl = ctl};
    q.scratch = neb__cf_scratch(c, NEB_SLOT_SUMSQ, &q);
    if (!neb__cf_ok(c, c->ops->sumsq(c->dev, &q)) ||
        !neb__cf_ok(c, c->ops->clip(c->dev, &(struct neb_clip){ctl})))
        return;
    struct neb_ctl got = neb__cf_read_ctl(c, ctl);
    neb__cf_near1(c, "norm2", got.norm2, norm2, 0);
    neb__cf_near1(c, "clip", got.clip, clip, 0);
    const double b1 = 0.9f, b2 = 0.99f, eps = 1e-6f, bias1 = 0.271f, bias2 = 0.0297f;
    struct neb_update u = {p.p,
                           kind < 2 ? m.p : NULL,
                           kind == 0 ? v.p : NULL,
                           g.p,
                           shadowed ? shadow.p : NULL,
                           neb__cf_raw(c, seg, sizeof seg),
                           SEGMENTS,
                           seg[SEGMENTS - 1].offset + seg[SEGMENTS - 1].n - seg[0].offset,
                           0.9f,
                           0.99f,
                           1e-6f,
                           ctl};
    for (int s = 0; s < SEGMENTS; s++)
        for (int64_t i = seg[s].offset; i < seg[s].offset + seg[s].n; i++) {
            double r = 0.01f * seg[s].lr_scale, d = clip * g.v[i];
            if (kind == 0) {
                wm[i] = b1 * wm[i] + (1 - b1) * d, wv[i] = b2 * wv[i] + (1 - b2) * d * d;
                d = wm[i] / bias1 / (sqrt(wv[i] / bias2) + eps);
            } else if (kind == 1) {
                d = wm[i] = b1 * wm[i] + d;
            }
            wp[i] -= r * (d + seg[s].decay * wp[i]);
            if (shadowed) ws[i] = wp[i];
        }
    if (!neb__cf_ok(c, c->ops->update(c->dev, &u))) return;
    neb__cf_near(c, "param", &p, wp, 0);
    neb__cf_near(c, "m", &m, wm, 0);
    neb__cf_near(c, "v", &v, wv, 0);
    const neb_dtype keep = c->type;
    c->type = NEB_BF16;
    neb__cf_near(c, "shadow", &shadow, ws, 0);
    c->type = keep;
}

const struct neb_cf_case neb__cf_loss[] = {
    {"xent", case_xent, 30},
    {"bce", case_bce, 8},
    {"mse", case_mse, 8},
    {"cosine", case_cosine, 8},
    {"nonfinite", case_nonfinite, 6},
    {"update", case_update, 12},
    {0},
};
