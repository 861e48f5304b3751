/* conform_muon.c: the fused slot of Muon.
 *
 * In fp32 its result is that of the same iteration in double precision. In bf16 the iteration rounds at every product, and no
 * value of its result is close to that. What Muon needs of it is what is compared: the result has the singular values of the
 * exact iteration and its direction, and a gradient of zero moves nothing but by the decay. */
#include "device/conform.h"

#include <math.h>
#include <string.h>

/* x -> c0 x + c1 (x x^T) x + c2 (x x^T)^2 x, in place. */
static void iterate(struct neb_cf *c, double *x, int64_t rows, int64_t cols, const float coefficient[3])
{
    double *gram = neb__cf_doubles(c, rows * rows), *square = neb__cf_doubles(c, rows * rows);
    double *out = neb__cf_doubles(c, rows * cols);
    for (int64_t i = 0; i < rows * rows; i++)
        for (int64_t k = 0; k < cols; k++) gram[i] += x[i / rows * cols + k] * x[i % rows * cols + k];
    for (int64_t i = 0; i < rows * rows; i++)
        for (int64_t k = 0; k < rows; k++) square[i] += gram[i / rows * rows + k] * gram[k * rows + i % rows];
    for (int64_t i = 0; i < rows * cols; i++) {
        out[i] = (double)coefficient[0] * x[i];
        for (int64_t k = 0; k < rows; k++) {
            const int64_t at = i / cols * rows + k;
            out[i] += ((double)coefficient[1] * gram[at] + (double)coefficient[2] * square[at]) *
                      x[k * cols + i % cols];
        }
    }
    memcpy(x, out, (size_t)(rows * cols) * sizeof *x);
}

/* Several matrices in one slab, one of them without a gradient. */
static void case_muon(struct neb_cf *c)
{
    enum { BATCH = 3 };
    if (!c->ops->muon) return;
    const int64_t rows = neb__cf_dim(c, 40), cols = neb__cf_dim(c, 40), n = rows * cols, gap = 24;
    const int steps = 1 + neb__cf_below(c, 2), finite = neb__cf_below(c, 4) > 0;
    neb__cf_shape(c, "rows %d cols %d steps %d finite %d", (int)rows, (int)cols, steps, finite);
    struct neb_cf_t p = neb__cf_random(c, BATCH * (n + gap), NEB_F32, 1),
                    m = neb__cf_random(c, p.n, NEB_F32, 0.1);
    struct neb_cf_t g = neb__cf_random(c, p.n, NEB_F32, 1), shadow = neb__cf_random(c, p.n, NEB_BF16, 1);
    int64_t at[BATCH];
    for (int b = 0; b < BATCH; b++) at[b] = b * (n + gap) + gap;
    for (int64_t i = 0; i < n; i++) m.v[at[1] + i] = g.v[at[1] + i] = 0;
    m = neb__cf_values(c, m.n, NEB_F32, m.v);
    g = neb__cf_values(c, g.n, NEB_F32, g.v);
    struct neb_ctl host = {.step = 3, .lr = 0.01f, .clip = 0.5f, .nonfinite = !finite};
    struct neb_muon_args a = {.param = p.p,
                              .m = m.p,
                              .grad = g.p,
                              .shadow = shadow.p,
                              .at = neb__cf_raw(c, at, sizeof at),
                              .batch = BATCH,
                              .rows = rows,
                              .cols = cols,
                              .momentum = 0.9f,
                              .scale = 1.5f,
                              .decay = 0.1f,
                              .coefficient = {3.4445f, -4.775f, 2.0315f},
                              .steps = steps,
                              .type = NEB_F32,
                              .ctl = neb__cf_ctl(c, &host)};
    a.scratch = neb__cf_scratch(c, NEB_SLOT_MUON, &a);
    for (int b = 0; b < BATCH && finite; b++) {
        double *x = neb__cf_doubles(c, n), norm = 0;
        for (int64_t i = 0; i < n; i++) {
            const int64_t k = at[b] + i;
            const double d = 0.5 * g.v[k];
            m.v[k] = (double)0.9f * m.v[k] + d;
            x[i] = d + (double)0.9f * m.v[k];
            norm += x[i] * x[i];
        }
        for (int64_t i = 0; i < n && norm > 0; i++) x[i] /= sqrt(norm);
        for (int s = 0; s < steps; s++) iterate(c, x, rows, cols, a.coefficient);
        for (int64_t i = 0; i < n; i++) {
            const int64_t k = at[b] + i;
            p.v[k] -= (double)0.01f * (1.5 * x[i] + (double)0.1f * p.v[k]);
            shadow.v[k] = p.v[k];
        }
    }
    if (!neb__cf_ok(c, c->ops->muon(c->dev, &a))) return;
    neb__cf_near(c, "param", &p, p.v, 0);
    neb__cf_near(c, "m", &m, m.v, 0);
    const neb_dtype keep = c->type;
    c->type = NEB_BF16;
    neb__cf_near(c, "shadow", &shadow, shadow.v, 0);
    c->type = keep;
}

/* ---- bf16 ---------------------------------------------------------------------------------------------------- */

/* Turns rows p and q of the symmetric a (n, n) by an angle that makes a[p][q] zero. */
static void turn(double *a, int64_t n, int64_t p, int64_t q)
{
    const double angle = 0.5 * atan2(2 * a[p * n + q], a[p * n + p] - a[q * n + q]);
    const double c = cos(angle), s = sin(angle);
    for (int64_t k = 0; k < n; k++) {
        const double u = a[k * n + p], v = a[k * n + q];
        a[k * n + p] = c * u + s * v, a[k * n + q] = c * v - s * u;
    }
    for (int64_t k = 0; k < n; k++) {
        const double u = a[p * n + k], v = a[q * n + k];
        a[p * n + k] = c * u + s * v, a[q * n + k] = c * v - s * u;
    }
}

/* The least and the greatest singular value of x (rows, cols), rows <= cols: roots of the eigenvalues of x x^T. */
static void singular_values(struct neb_cf *c, const double *x, int64_t rows, int64_t cols, double *least,
                            double *most)
{
    double *a = neb__cf_doubles(c, rows * rows);
    for (int64_t i = 0; i < rows * rows; i++)
        for (int64_t k = 0; k < cols; k++) a[i] += x[i / rows * cols + k] * x[i % rows * cols + k];
    for (int sweep = 0; sweep < 12; sweep++)
        for (int64_t p = 0; p < rows; p++)
            for (int64_t q = p + 1; q < rows; q++)
                if (fabs(a[p * rows + q]) > 1e-12) turn(a, rows, p, q);
    *least = INFINITY, *most = 0;
    for (int64_t i = 0; i < rows; i++) {
        *least = fmin(*least, sqrt(fabs(a[i * rows + i])));
        *most = fmax(*most, sqrt(fabs(a[i * rows + i])));
    }
}

/* The cosine between two matrices. */
static double alike(const double *x, const double *y, int64_t n)
{
    double xx = 0, yy = 0, xy = 0;
    for (int64_t i = 0; i < n; i++) xx += x[i] * x[i], yy += y[i] * y[i], xy += x[i] * y[i];
    return xy / sqrt(xx * yy);
}

/* Two matrices, the second without a gradient. wide: rows <= cols; else the other way round. */
static void case_muon_bf16(struct neb_cf *c)
{
    enum { BATCH = 2, STEPS = 5 };
    if (!c->ops->muon) return;
    const int64_t small = neb__cf_dim(c, 24), large = 3 * small + neb__cf_below(c, 20), n = small * large;
    const bool wide = neb__cf_below(c, 2);
    const float lr = 0.02f, scale = 1.5f, decay = 0.1f;
    neb__cf_shape(c, "rows %d cols %d", (int)(wide ? small : large), (int)(wide ? large : small));
    struct neb_cf_t p = neb__cf_random(c, BATCH * n, NEB_F32, 0.1), g = neb__cf_random(c, p.n, NEB_F32, 1);
    double *zero = neb__cf_doubles(c, p.n);
    memcpy(zero, g.v, (size_t)n * sizeof *zero);
    g = neb__cf_values(c, p.n, NEB_F32, zero);
    memset(zero, 0, (size_t)n * sizeof *zero);
    struct neb_cf_t m = neb__cf_values(c, p.n, NEB_F32, zero);
    const int64_t at[BATCH] = {0, n};
    struct neb_ctl host = {.step = 1, .lr = lr, .clip = 1};
    struct neb_muon_args a = {.param = p.p,
                              .m = m.p,
                              .grad = g.p,
                              .at = neb__cf_raw(c, at, sizeof at),
                              .batch = BATCH,
                              .rows = wide ? small : large,
                              .cols = wide ? large : small,
                              .momentum = 0.95f,
                              .scale = scale,
                              .decay = decay,
                              .coefficient = {3.4445f, -4.775f, 2.0315f},
                              .steps = STEPS,
                              .type = NEB_BF16,
                              .ctl = neb__cf_ctl(c, &host)};
    a.scratch = neb__cf_scratch(c, NEB_SLOT_MUON, &a);
    if (!neb__cf_ok(c, c->ops->muon(c->dev, &a))) return;
    float *now = (float *)(void *)c->mirror;
    if (!neb__cf_ok(c, c->ops->download(c->dev, now, p.p, (size_t)p.n * sizeof *now))) return;
    double *want = neb__cf_doubles(c, n), *got = neb__cf_doubles(c, n), norm = 0, low, high, least, most;
    for (int64_t i = 0; i < n; i++) norm += g.v[i] * g.v[i];
    for (int64_t i = 0; i < n; i++) { /* as wide matrices */
        const int64_t k = wide ? i : i % large * small + i / large;
        want[i] = g.v[k] / sqrt(norm);
        got[i] = (p.v[k] * (1 - (double)lr * (double)decay) - (double)now[k]) / ((double)lr * (double)scale);
    }
    for (int s = 0; s < STEPS; s++) iterate(c, want, small, large, a.coefficient);
    singular_values(c, want, small, large, &low, &high);
    singular_values(c, got, small, large, &least, &most);
    neb__cf_true(c, "the singular values are those of the exact iteration, to 0.05",
                 least >= low - 0.05 && most <= high + 0.05);
    neb__cf_true(c, "the direction is that of the exact iteration", alike(want, got, n) > 0.995);
    bool still = true;
    for (int64_t i = n; i < 2 * n; i++)
        still &= fabs((double)now[i] - p.v[i] * (1 - (double)lr * (double)decay)) < 1e-6;
    neb__cf_true(c, "a gradient of zero moves nothing", still);
}

const struct neb_cf_case neb__cf_muon[] = {
    {"muon", case_muon, 12},
    {"muon bf16", case_muon_bf16, 8},
    {0},
};
