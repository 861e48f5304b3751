/* conform_narrow.c: weights in few bits: their values to the bit, and products with them.
 *
 * Codes are random bytes, so every level and every place in a block occurs; the naive version reads them as
 * nebula/device_narrow.h says. */
#include "device/conform.h"
#include "tensor/narrow.h"

#include <math.h>
#include <string.h>

/* A random weight on the device, and its values. */
struct weight {
    struct neb_narrow w;
    const double *v; /* (rows, cols) */
};

static uint16_t upper_half(double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static struct weight make(struct neb_cf *c, neb_narrow_kind kind, int64_t rows, int64_t cols)
{
    const size_t n = neb__narrow_code_bytes(kind, rows, cols), s = neb__narrow_scale_bytes(kind, rows, cols);
    double *v = neb__cf_doubles(c, rows * cols);
    /* the code, then the scales, then the values, in memory that the suite owns */
    uint8_t *code = (uint8_t *)neb__cf_doubles(c, (int64_t)(n / 8 + 1));
    uint8_t *scale = (uint8_t *)neb__cf_doubles(c, (int64_t)(s / 8 + 1));
    float *out = (float *)neb__cf_doubles(c, rows * cols / 2 + 1);
    for (size_t i = 0; i < n; i++) code[i] = (uint8_t)neb__cf_below(c, 256);
    for (size_t i = 0; kind == NEB_NARROW_INT8 && i < s / 4; i++) {
        const float x = (float)(1 + neb__cf_below(c, 65535)) * 0x1p-24f;
        memcpy(scale + 4 * i, &x, sizeof x);
    }
    for (size_t i = 0; kind != NEB_NARROW_INT8 && i < (kind == NEB_NARROW_BF16 ? n : s) / 2; i++) {
        const double sign = kind == NEB_NARROW_BF16 && neb__cf_below(c, 2) ? -0.5 : 0.5;
        const uint16_t x = upper_half(sign * (1 + neb__cf_below(c, 255)) / 256.0);
        memcpy((kind == NEB_NARROW_BF16 ? code : scale) + 2 * i, &x, sizeof x);
    }
    neb__narrow_decode(kind, rows, cols, code, scale, out);
    for (int64_t i = 0; i < rows * cols; i++) v[i] = (double)out[i];
    return (struct weight){{neb__cf_raw(c, code, n), s ? neb__cf_raw(c, scale, s) : NULL, kind}, v};
}

static bool have(struct neb_cf *c, bool slot)
{
    if (!slot) c->result->skipped++;
    return slot;
}

static neb_narrow_kind any_kind(struct neb_cf *c)
{
    return (neb_narrow_kind)(1 + neb__cf_below(c, 3));
}

static void case_widen(struct neb_cf *c)
{
    if (!have(c, c->ops->widen)) return;
    const neb_narrow_kind kind = any_kind(c);
    const int64_t rows = neb__cf_dim(c, 130), cols = neb__cf_dim(c, 700);
    neb__cf_shape(c, "kind %d, %lld x %lld", (int)kind, (long long)rows, (long long)cols);
    struct weight w = make(c, kind, rows, cols);
    struct neb_cf_t out = neb__cf_poison(c, rows * cols, c->type);
    struct neb_widen a = {w.w, out.p, rows, cols, c->type};
    if (!neb__cf_ok(c, c->ops->widen(c->dev, &a))) return;
    neb__cf_near(c, "out", &out, w.v, 1e-30);
}

static void case_linear_narrow(struct neb_cf *c)
{
    if (!have(c, c->ops->linear_narrow)) return;
    const neb_narrow_kind kind = any_kind(c);
    const int64_t rows = neb__cf_dim(c, 130), in = neb__cf_dim(c, 500), out = neb__cf_dim(c, 200);
    const int64_t ldx = in + neb__cf_below(c, 2) * 8, ldy = out + neb__cf_below(c, 2) * 8;
    const int acc = neb__cf_below(c, 4) == 0, bias = neb__cf_below(c, 2);
    const neb_act act = acc ? NEB_ACT_NONE : (neb_act)neb__cf_below(c, NEB_ACT_TANH + 1);
    neb__cf_shape(c, "kind %d, %lld x %lld to %lld, act %d, acc %d, bias %d", (int)kind, (long long)rows,
                  (long long)in, (long long)out, (int)act, acc, bias);
    struct weight w = make(c, kind, out, in);
    struct neb_cf_t x = neb__cf_random(c, rows * ldx, c->type, 1), b = neb__cf_random(c, out, c->type, 1),
                    y = neb__cf_random(c, rows * ldy, c->type, 1);
    double *want = neb__cf_doubles(c, y.n);
    for (int64_t i = 0; i < y.n; i++) want[i] = y.v[i];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = 0;
            for (int64_t i = 0; i < in; i++) sum += x.v[r * ldx + i] * w.v[o * in + i];
            sum += (bias ? b.v[o] : 0) + (acc ? y.v[r * ldy + o] : 0);
            want[r * ldy + o] = neb__cf_act(sum, act);
        }
    struct neb_linear_narrow a = {.l = {.x = x.p,
                                        .bias = bias ? b.p : NULL,
                                        .y = y.p,
                                        .rows = rows,
                                        .in = in,
                                        .out = out,
                                        .ldx = ldx,
                                        .ldy = ldy,
                                        .act = act,
                                        .acc_y = acc,
                                        .alpha = 1,
                                        .type = c->type},
                                  .w = w.w};
    a.l.scratch = neb__cf_scratch(c, NEB_SLOT_LINEAR, &a.l);
    if (neb__cf_ok(c, c->ops->linear_narrow(c->dev, &a))) neb__cf_near(c, "y", &y, want, 1);
}

static void case_linear_narrow_bwd(struct neb_cf *c)
{
    if (!have(c, c->ops->linear_narrow_bwd)) return;
    const neb_narrow_kind kind = any_kind(c);
    const int64_t rows = neb__cf_dim(c, 130), in = neb__cf_dim(c, 300), out = neb__cf_dim(c, 500);
    const int64_t ldg = out + neb__cf_below(c, 2) * 8, lddx = in + neb__cf_below(c, 2) * 4;
    const int want = 1 + neb__cf_below(c, 7), acc = neb__cf_below(c, 2); /* bits: dx, dx_colsum, db */
    const neb_act act = neb__cf_below(c, 2) ? NEB_ACT_NONE : (neb_act)(1 + neb__cf_below(c, NEB_ACT_TANH));
    neb__cf_shape(c, "kind %d, %lld x %lld from %lld, wanted %d, x_act %d, acc %d", (int)kind,
                  (long long)rows, (long long)in, (long long)out, want, (int)act, acc);
    struct weight w = make(c, kind, out, in);
    struct neb_cf_t g = neb__cf_random(c, rows * ldg, c->type, 1),
                    pre = neb__cf_random(c, rows * lddx, c->type, 1),
                    dx = neb__cf_random(c, rows * lddx, c->type, 1), sum = neb__cf_poison(c, in, NEB_F32),
                    db = neb__cf_poison(c, out, NEB_F32);
    double *wdx = neb__cf_doubles(c, dx.n), *wsum = neb__cf_doubles(c, in), *wdb = neb__cf_doubles(c, out);
    for (int64_t i = 0; i < dx.n; i++) wdx[i] = dx.v[i];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < in; i++) {
            double d = 0;
            for (int64_t o = 0; o < out; o++) d += g.v[r * ldg + o] * w.v[o * in + i];
            if (act != NEB_ACT_NONE) d *= neb__cf_slope(pre.v[r * lddx + i], act);
            wdx[r * lddx + i] = d + (acc && (want & 1) ? dx.v[r * lddx + i] : 0);
            wsum[i] += wdx[r * lddx + i];
        }
        for (int64_t o = 0; o < out; o++) wdb[o] += g.v[r * ldg + o];
    }
    struct neb_linear_narrow_bwd a = {.l = {.g = g.p,
                                            .dx = want & 1 ? dx.p : NULL,
                                            .x_pre = pre.p,
                                            .x_act = act,
                                            .dx_colsum = want & 2 ? sum.p : NULL,
                                            .db = want & 4 ? db.p : NULL,
                                            .rows = rows,
                                            .in = in,
                                            .out = out,
                                            .ldg = ldg,
                                            .ldx = in,
                                            .lddx = lddx,
                                            .acc_dx = acc,
                                            .alpha = 1,
                                            .type = c->type},
                                      .w = w.w};
    a.l.scratch = neb__cf_scratch(c, NEB_SLOT_LINEAR_BWD, &a.l);
    if (!neb__cf_ok(c, c->ops->linear_narrow_bwd(c->dev, &a))) return;
    if (want & 1) neb__cf_near(c, "dx", &dx, wdx, 1);
    if (want & 2) neb__cf_near(c, "dx_colsum", &sum, wsum, sqrt((double)rows));
    if (want & 4) neb__cf_near(c, "db", &db, wdb, sqrt((double)rows));
}

const struct neb_cf_case neb__cf_narrow[] = {
    {"widen", case_widen, 24},
    {"linear_narrow", case_linear_narrow, 24},
    {"linear_narrow_bwd", case_linear_narrow_bwd, 24},
    {0},
};
