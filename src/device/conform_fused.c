/* conform_fused.c: linear layers, also over packed weights, the output layer with its loss. */
#include "device/conform.h"
#include "device/conform_targets.h"

#include <math.h>

static bool have(struct neb_cf *c, bool slot)
{
    if (!slot) c->result->skipped++;
    return slot;
}

/* w as the device packs it. */
static const void *packed_weight(struct neb_cf *c, const struct neb_cf_t *w, int64_t out, int64_t in)
{
    const int64_t bytes = c->ops->packed_bytes(c->dev, out, in, c->type);
    struct neb_cf_t to = neb__cf_poison(c, (bytes + 3) / 4, NEB_F32);
    struct neb_pack_linear a = {w->p, to.p, out, in, c->type};
    neb__cf_true(c, "packed_bytes() is positive", bytes > 0);
    return neb__cf_ok(c, c->ops->pack_linear(c->dev, &a)) ? to.p : NULL;
}

static void try_linear(struct neb_cf *c, int64_t rows, int64_t in, int64_t out)
{
    const int64_t ldx = in + neb__cf_below(c, 2) * 8, ldy = out + neb__cf_below(c, 2) * 8;
    const int acc = neb__cf_below(c, 4) == 0, bias = neb__cf_below(c, 2), pre = neb__cf_below(c, 2);
    const neb_act act = acc ? NEB_ACT_NONE : (neb_act)neb__cf_below(c, NEB_ACT_TANH + 1);
    const float alpha = neb__cf_below(c, 3) ? 1.0f : 0.25f;
    neb__cf_shape(c, "%lld x %lld to %lld, act %d, acc %d, bias %d, pre %d, alpha %g", (long long)rows,
                  (long long)in, (long long)out, (int)act, acc, bias, pre, (double)alpha);
    struct neb_cf_t x = neb__cf_random(c, rows * ldx, c->type, 1),
                    w = neb__cf_random(c, out * in, c->type, 0.3);
    struct neb_cf_t b = neb__cf_random(c, out, c->type, 1), y = neb__cf_random(c, rows * ldy, c->type, 1);
    struct neb_cf_t p = neb__cf_random(c, rows * ldy, c->type, 1);
    double *wy = neb__cf_doubles(c, y.n), *wp = neb__cf_doubles(c, p.n);
    for (int64_t i = 0; i < y.n; i++) wy[i] = y.v[i], wp[i] = p.v[i];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = 0;
            for (int64_t i = 0; i < in; i++) sum += x.v[r * ldx + i] * w.v[o * in + i];
            sum = alpha * sum + (bias ? b.v[o] : 0) + (acc ? y.v[r * ldy + o] : 0);
            wp[r * ldy + o] = sum;
            wy[r * ldy + o] = neb__cf_act(sum, act);
        }
    struct neb_linear a = {
        x.p,   w.p,  bias ? b.p : NULL, y.p, pre ? p.p : NULL, rows, in, out, ldx, ldy, act, acc,
        alpha, NULL, c->type,           NULL};
    if (c->ops->pack_linear && neb__cf_below(c, 2)) {
        a.packed = packed_weight(c, &w, out, in);
        a.w = NULL; /* must not be read */
    }
    a.scratch = neb__cf_scratch(c, NEB_SLOT_LINEAR, &a);
    if (!neb__cf_ok(c, c->ops->linear(c->dev, &a))) return;
    neb__cf_near(c, "y", &y, wy, 1);
    if (pre) neb__cf_near(c, "pre", &p, wp, 1);
}

static void case_linear(struct neb_cf *c)
{
    if (!have(c, c->ops->linear)) return;
    const int64_t rows = neb__cf_dim(c, 130), in = neb__cf_dim(c, 257), out = neb__cf_dim(c, 200);
    try_linear(c, rows, in, out);
}

/* As a decoder has them for one token: few rows, and long rows of weights that begin at 16 bytes. */
static void case_linear_few_rows(struct neb_cf *c)
{
    if (!have(c, c->ops->linear)) return;
    const int64_t rows = 1 + neb__cf_below(c, 5), in = 8 * neb__cf_dim(c, c->tiny ? 6 : 400),
                  out = neb__cf_dim(c, c->tiny ? 9 : 70);
    try_linear(c, rows, in, out);
}

static void case_linear_bwd(struct neb_cf *c)
{
    if (!have(c, c->ops->linear_bwd)) return;
    const int64_t rows = neb__cf_dim(c, 300), in = neb__cf_dim(c, 130), out = neb__cf_dim(c, 300);
    const int64_t ldg = out + neb__cf_below(c, 2) * 8, ldx = in + neb__cf_below(c, 2) * 8,
                  lddx = in + neb__cf_below(c, 2) * 4;
    const int want = 1 + neb__cf_below(c, 15); /* bits: dx, dx_colsum, dw, db */
    const int acc_dx = neb__cf_below(c, 2), acc_sum = neb__cf_below(c, 2), acc_dw = neb__cf_below(c, 2),
              acc_db = neb__cf_below(c, 2);
    const neb_act act = neb__cf_below(c, 2) ? NEB_ACT_NONE : (neb_act)(1 + neb__cf_below(c, NEB_ACT_TANH));
    const float alpha = neb__cf_below(c, 3) ? 1.0f : 0.25f;
    neb__cf_shape(c, "%lld x %lld from %lld, wanted %d, x_act %d, acc %d%d%d%d", (long long)rows,
                  (long long)in, (long long)out, want, (int)act, acc_dx, acc_sum, acc_dw, acc_db);
    struct neb_cf_t g = neb__cf_random(c, rows * ldg, c->type, 1),
                    x = neb__cf_random(c, rows * ldx, c->type, 1);
    struct neb_cf_t w = neb__cf_random(c, out * in, c->type, 0.3),
                    pre = neb__cf_random(c, rows * lddx, c->type, 1);
    struct neb_cf_t dx = neb__cf_random(c, rows * lddx, c->type, 1),
                    sum = neb__cf_target(c, in, NEB_F32, acc_sum);
    struct neb_cf_t dw = neb__cf_target(c, out * in, NEB_F32, acc_dw),
                    db = neb__cf_target(c, out, NEB_F32, acc_db);
    double *wdx = neb__cf_doubles(c, dx.n), *wsum = neb__cf_doubles(c, in), *wdw = neb__cf_doubles(c, dw.n),
           *wdb = neb__cf_doubles(c, out);
    for (int64_t i = 0; i < dx.n; i++) wdx[i] = dx.v[i];
    for (int64_t i = 0; i < in; i++) wsum[i] = acc_sum ? sum.v[i] : 0;
    for (int64_t i = 0; i < out; i++) wdb[i] = acc_db ? db.v[i] : 0;
    for (int64_t i = 0; i < dw.n; i++) wdw[i] = acc_dw ? dw.v[i] : 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < in; i++) {
            double d = 0;
            for (int64_t o = 0; o < out; o++) {
                d += g.v[r * ldg + o] * w.v[o * in + i];
                wdw[o * in + i] += alpha * g.v[r * ldg + o] * x.v[r * ldx + i];
            }
            d *= alpha;
            if (act != NEB_ACT_NONE) d *= neb__cf_slope(pre.v[r * lddx + i], act);
            wdx[r * lddx + i] = d + (acc_dx && (want & 1) ? dx.v[r * lddx + i] : 0);
            /* the sums are those of the final dx */
            wsum[i] += wdx[r * lddx + i];
        }
        for (int64_t o = 0; o < out; o++) wdb[o] += g.v[r * ldg + o];
    }
    struct neb_linear_bwd a = {g.p,
                               x.p,
                               w.p,
                               want & 1 ? dx.p : NULL,
                               pre.p,
                               act,
                               want & 2 ? sum.p : NULL,
                               want & 4 ? dw.p : NULL,
                               want & 8 ? db.p : NULL,
                               rows,
                               in,
                               out,
                               ldg,
                               ldx,
                               lddx,
                               acc_dx,
                               acc_sum,
                               acc_dw,
                               acc_db,
                               alpha,
                               NULL,
                               c->type};
    a.scratch = neb__cf_scratch(c, NEB_SLOT_LINEAR_BWD, &a);
    if (!neb__cf_ok(c, c->ops->linear_bwd(c->dev, &a))) return;
    if (want & 1) neb__cf_near(c, "dx", &dx, wdx, 1);
    if (want & 2) neb__cf_near(c, "dx_colsum", &sum, wsum, sqrt((double)rows));
    if (want & 4) neb__cf_near(c, "dw", &dw, wdw, 1);
    if (want & 8) neb__cf_near(c, "db", &db, wdb, sqrt((double)rows));
}

static void case_linear_xent(struct neb_cf *c)
{
    if (!have(c, c->ops->linear_xent)) return;
    const int64_t rows = neb__cf_dim(c, 150), in = neb__cf_dim(c, 65), classes = neb__cf_dim(c, 700);
    const int bias = neb__cf_below(c, 2), acc_dw = neb__cf_below(c, 2), acc_db = neb__cf_below(c, 2);
    const int want_grad = neb__cf_below(c, 5) > 0,
              want = neb__cf_below(c, 3) ? 7 : neb__cf_below(c, 8); /* dx, dw, db */
    struct neb_cf_targets g = neb__cf_make_targets(c, rows, classes);
    neb__cf_shape(c, "%lld x %lld to %lld, wanted %d, ce %g, smoothing %g, kd %g, k %lld, T %g",
                  (long long)rows, (long long)in, (long long)classes, want_grad ? want : 0, (double)g.t.ce,
                  (double)g.t.smoothing, (double)g.t.kd, (long long)g.t.teacher_k, (double)g.t.temperature);
    struct neb_cf_t x = neb__cf_random(c, rows * in, c->type, 1),
                    w = neb__cf_random(c, classes * in, c->type, 0.3);
    struct neb_cf_t b = neb__cf_random(c, classes, c->type, 1), dx = neb__cf_poison(c, rows * in, c->type);
    struct neb_cf_t dw = neb__cf_target(c, classes * in, NEB_F32, acc_dw),
                    db = neb__cf_target(c, classes, NEB_F32, acc_db);
    double *wdx = neb__cf_doubles(c, rows * in), *wdw = neb__cf_doubles(c, dw.n),
           *wdb = neb__cf_doubles(c, classes);
    double *logits = neb__cf_doubles(c, classes), *grad = neb__cf_doubles(c, 2 * classes), loss = 0;
    struct neb_ctl want_ctl = g.host;
    for (int64_t i = 0; i < dw.n; i++) wdw[i] = acc_dw ? dw.v[i] : 0;
    for (int64_t i = 0; i < classes; i++) wdb[i] = acc_db ? db.v[i] : 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < classes; o++) {
            logits[o] = bias ? b.v[o] : 0;
            for (int64_t i = 0; i < in; i++) logits[o] += x.v[r * in + i] * w.v[o * in + i];
        }
        loss += neb__cf_xent_row(&g, r, logits, classes, grad, &want_ctl);
        for (int64_t o = 0; o < classes; o++) {
            wdb[o] += grad[o];
            for (int64_t i = 0; i < in; i++) {
                wdx[r * in + i] += grad[o] * w.v[o * in + i];
                wdw[o * in + i] += grad[o] * x.v[r * in + i];
            }
        }
    }
    want_ctl.loss[2] += (float)loss;
    struct neb_linear_xent a = {x.p,
                                w.p,
                                bias ? b.p : NULL,
                                want & 1 ? dx.p : NULL,
                                want & 2 ? dw.p : NULL,
                                want & 4 ? db.p : NULL,
                                rows,
                                in,
                                classes,
                                want_grad,
                                acc_dw,
                                acc_db,
                                g.t,
                                g.loss,
                                NULL,
                                c->type,
                                NULL};
    a.scratch = neb__cf_scratch(c, NEB_SLOT_LINEAR_XENT, &a);
    if (!neb__cf_ok(c, c->ops->linear_xent(c->dev, &a))) return;
    neb__cf_check_ctl(c, g.loss.ctl, &want_ctl);
    if (!want_grad) return;
    if (want & 1) neb__cf_near(c, "dx", &dx, wdx, 1e-3);
    if (want & 2) neb__cf_near(c, "dw", &dw, wdw, 1e-3);
    if (want & 4) neb__cf_near(c, "db", &db, wdb, 1e-3);
}

const struct neb_cf_case neb__cf_fused[] = {
    {"linear", case_linear, 24},
    {"linear_few_rows", case_linear_few_rows, 24},
    {"linear_bwd", case_linear_bwd, 30},
    {"linear_xent", case_linear_xent, 24},
    {0},
};
