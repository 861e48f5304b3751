/* conform_basic.c: products and element-wise primitives against their definitions. */
#include "device/conform.h"

#include <math.h>

/* c (m, n) = alpha op(a) op(b) + beta c0 */
static void naive_gemm(const struct neb_gemm *g, const double *a, const double *b, const double *c0,
                       double *c)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < g->k; k++)
                sum += (g->trans_a ? a[k * g->lda + i] : a[i * g->lda + k]) *
                       (g->trans_b ? b[j * g->ldb + k] : b[k * g->ldb + j]);
            c[i * g->ldc + j] = g->alpha * sum + (g->beta != 0 ? g->beta * c0[i * g->ldc + j] : 0);
        }
}

static void gemm_case(struct neb_cf *c, int64_t m, int64_t n, int64_t k, int64_t batch)
{
    struct neb_gemm g = {.m = m, .n = n, .k = k, .batch = batch, .type = c->type};
    g.trans_a = neb__cf_below(c, 2), g.trans_b = neb__cf_below(c, 2);
    g.alpha = neb__cf_below(c, 2) ? 1.0f : 0.37f;
    g.beta = (float[]){0, 1, 0.5f}[neb__cf_below(c, 3)];
    g.c_type = neb__cf_below(c, 2) ? NEB_F32 : c->type;
    const int pad = neb__cf_below(c, 2) * 3;
    g.lda = (g.trans_a ? m : k) + pad, g.ldb = (g.trans_b ? k : n) + pad, g.ldc = n + pad;
    g.stride_a = (g.trans_a ? k : m) * g.lda, g.stride_b = (g.trans_b ? n : k) * g.ldb,
    g.stride_c = m * g.ldc;
    neb__cf_shape(c, "%lld x %lld x %lld, batch %lld, trans %d %d, beta %g, padding %d", (long long)m,
                  (long long)n, (long long)k, (long long)batch, g.trans_a, g.trans_b, (double)g.beta, pad);
    struct neb_cf_t a = neb__cf_random(c, batch * g.stride_a, g.type, 1),
                    b = neb__cf_random(c, batch * g.stride_b, g.type, 1);
    struct neb_cf_t out =
        neb__cf_random(c, batch * g.stride_c, g.c_type, 1); /* padding must keep its values */
    double *want = neb__cf_doubles(c, out.n);
    for (int64_t i = 0; i < out.n; i++) want[i] = out.v[i];
    for (int64_t i = 0; i < batch; i++)
        naive_gemm(&g, a.v + i * g.stride_a, b.v + i * g.stride_b, out.v + i * g.stride_c,
                   want + i * g.stride_c);
    g.a = a.p, g.b = b.p, g.c = out.p;
    if (neb__cf_ok(c, c->ops->gemm(c->dev, &g))) neb__cf_near(c, "c", &out, want, 1);
}

static void case_gemm(struct neb_cf *c)
{
    gemm_case(c, neb__cf_dim(c, 150), neb__cf_dim(c, 150), neb__cf_dim(c, 200), 1 + neb__cf_below(c, 3));
}

static void case_gemm_deep(struct neb_cf *c) /* several blocks of k */
{
    gemm_case(c, neb__cf_dim(c, 40), neb__cf_dim(c, 70), 900 + neb__cf_below(c, 900), 1);
}

static void case_gemm_poison(struct neb_cf *c) /* beta 0 must not read C */
{
    const int64_t m = neb__cf_dim(c, 40), n = neb__cf_dim(c, 40), k = neb__cf_dim(c, 500);
    neb__cf_shape(c, "%lld x %lld x %lld", (long long)m, (long long)n, (long long)k);
    struct neb_cf_t a = neb__cf_random(c, m * k, c->type, 1), b = neb__cf_random(c, k * n, c->type, 1);
    struct neb_cf_t out = neb__cf_poison(c, m * n, c->type);
    struct neb_gemm g = {a.p, b.p, out.p, m, n, k, k, n, n, 1, 0, 0, 0, 0, 0, 1, 0, c->type, c->type};
    double *want = neb__cf_doubles(c, m * n);
    naive_gemm(&g, a.v, b.v, NULL, want);
    if (neb__cf_ok(c, c->ops->gemm(c->dev, &g))) neb__cf_near(c, "c", &out, want, 1);
}

/* Factors whose rows (of op(A)) and columns (of op(B)) have scales of their own, up to 2^100 and down to 2^-100, whose
 * steps of k have scales that cancel out, and with an outlier in each row or column. An error is measured by the sum of the magnitudes
 * that were added up for that very value, so nothing small may get lost beside something large elsewhere. */
static void case_gemm_scales(struct neb_cf *c)
{
    const int64_t m = neb__cf_dim(c, 40), n = neb__cf_dim(c, 40), k = neb__cf_dim(c, 200);
    const int ta = neb__cf_below(c, 2), tb = neb__cf_below(c, 2), outliers = neb__cf_below(c, 2);
    const int a_most = (int[]){100, 0, 50}[neb__cf_below(c, 3)], b_most = a_most == 50 ? 50 : 100 - a_most;
    double *a = neb__cf_doubles(c, m * k), *b = neb__cf_doubles(c, n * k), *step = neb__cf_doubles(c, k);
    neb__cf_shape(c, "%lld x %lld x %lld, trans %d %d, scales 2^%d and 2^%d", (long long)m, (long long)n,
                  (long long)k, ta, tb, a_most, b_most);
    for (int64_t i = 0; i < k; i++) step[i] = ldexp(1, neb__cf_below(c, 9) - 4);
    for (int64_t r = 0; r < m + n; r++) {
        const bool in_a = r < m;
        const int64_t row = in_a ? r : r - m, outlier = neb__cf_below(c, (int)k);
        const bool across = in_a ? !ta : tb;
        const double scale = ldexp(1, (neb__cf_below(c, 3) - 1) * (in_a ? a_most : b_most));
        for (int64_t i = 0; i < k; i++) {
            const double v = neb__rng_normal(&c->rng) * scale * (in_a ? step[i] : 1 / step[i]);
            (in_a ? a : b)[across ? row * k + i : i * (in_a ? m : n) + row] =
                i == outlier && in_a == outliers ? 32768 * v : v;
        }
    }
    struct neb_cf_t x = neb__cf_values(c, m * k, c->type, a), y = neb__cf_values(c, n * k, c->type, b);
    struct neb_cf_t out = neb__cf_poison(c, m * n, NEB_F32);
    struct neb_gemm g = {x.p, y.p, out.p, m,  n,  k, ta ? m : k, tb ? k : n, n,      1,
                         0,   0,   0,     ta, tb, 1, 0,          c->type,    NEB_F32};
    double *want = neb__cf_doubles(c, m * n), *size = neb__cf_doubles(c, m * n);
    naive_gemm(&g, x.v, y.v, NULL, want);
    for (int64_t i = 0; i < m * k; i++) x.v[i] = fabs(x.v[i]);
    for (int64_t i = 0; i < n * k; i++) y.v[i] = fabs(y.v[i]);
    naive_gemm(&g, x.v, y.v, NULL, size);
    if (neb__cf_ok(c, c->ops->gemm(c->dev, &g))) neb__cf_near_each(c, "c", &out, want, size);
}

/* An infinity or a NaN reaches its row of the result, and no other one. */
static void case_gemm_infinite(struct neb_cf *c)
{
    const int64_t m = 1 + neb__cf_dim(c, 40), n = neb__cf_dim(c, 40), k = neb__cf_dim(c, 200);
    const int64_t row = neb__cf_below(c, (int)m), step = neb__cf_below(c, (int)k);
    const double bad = (double[]){INFINITY, -INFINITY, NAN}[neb__cf_below(c, 3)];
    double *a = neb__cf_doubles(c, m * k), *want = neb__cf_doubles(c, m * n);
    neb__cf_shape(c, "%lld x %lld x %lld, %g in row %lld", (long long)m, (long long)n, (long long)k, bad,
                  (long long)row);
    for (int64_t i = 0; i < m * k; i++) a[i] = i == row * k + step ? bad : neb__rng_normal(&c->rng);
    struct neb_cf_t x = neb__cf_values(c, m * k, c->type, a), y = neb__cf_random(c, k * n, c->type, 1),
                    out = neb__cf_poison(c, m * n, NEB_F32);
    struct neb_gemm g = {x.p, y.p, out.p, m, n, k, k, n, n, 1, 0, 0, 0, 0, 0, 1, 0, c->type, NEB_F32};
    naive_gemm(&g, x.v, y.v, NULL, want);
    if (!neb__cf_ok(c, c->ops->gemm(c->dev, &g))) return;
    float *got = (float *)neb__cf_doubles(c, m * n);
    if (!neb__cf_ok(c, c->ops->download(c->dev, got, out.p, (size_t)(m * n) * 4))) return;
    bool right = true;
    for (int64_t i = 0; i < m * n; i++) right &= !isfinite(want[i]) == !isfinite(got[i]);
    neb__cf_true(c, "one row is not finite", right);
}

static void case_copy2d(struct neb_cf *c)
{
    const int64_t rows = neb__cf_dim(c, 60), cols = neb__cf_dim(c, 300), ld = cols + neb__cf_below(c, 5);
    const neb_dtype from = neb__cf_below(c, 2) ? NEB_F32 : NEB_BF16,
                    to = neb__cf_below(c, 2) ? NEB_F32 : NEB_BF16;
    neb__cf_shape(c, "%lld x %lld, type %d to %d", (long long)rows, (long long)cols, from, to);
    struct neb_cf_t x = neb__cf_random(c, rows * ld, from, 1), y = neb__cf_poison(c, rows * cols, to);
    struct neb_copy2d a = {x.p, y.p, rows, cols, ld, cols, from, to};
    double *want = neb__cf_doubles(c, rows * cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) want[r * cols + i] = x.v[r * ld + i];
    const neb_dtype keep = c->type;
    if (to == NEB_BF16) c->type = NEB_BF16; /* the tolerance of the narrower type */
    if (neb__cf_ok(c, c->ops->copy2d(c->dev, &a))) neb__cf_near(c, "dst", &y, want, 0);
    c->type = keep;
}

static void case_axpby(struct neb_cf *c)
{
    const int64_t n = neb__cf_dim(c, 300) * neb__cf_dim(c, 100);
    const float fa = 0.7f, fb = (float[]){0, 1, -0.5f}[neb__cf_below(c, 3)];
    neb__cf_shape(c, "n %lld, b %g", (long long)n, (double)fb);
    struct neb_cf_t x = neb__cf_random(c, n, c->type, 1), y = neb__cf_target(c, n, c->type, fb != 0);
    double *want = neb__cf_doubles(c, n);
    for (int64_t i = 0; i < n; i++) want[i] = fa * x.v[i] + (fb != 0 ? fb * y.v[i] : 0);
    struct neb_axpby a = {x.p, y.p, n, fa, fb, c->type};
    if (neb__cf_ok(c, c->ops->axpby(c->dev, &a))) neb__cf_near(c, "y", &y, want, 0);
}

static void case_mul(struct neb_cf *c)
{
    const int64_t n = neb__cf_dim(c, 300) * neb__cf_dim(c, 100);
    const int acc = neb__cf_below(c, 2);
    neb__cf_shape(c, "n %lld, acc %d", (long long)n, acc);
    struct neb_cf_t x = neb__cf_random(c, n, c->type, 1), y = neb__cf_random(c, n, c->type, 1);
    struct neb_cf_t z = neb__cf_target(c, n, c->type, acc);
    double *want = neb__cf_doubles(c, n);
    for (int64_t i = 0; i < n; i++) want[i] = x.v[i] * y.v[i] + (acc ? z.v[i] : 0);
    struct neb_mul a = {x.p, y.p, z.p, n, acc, c->type};
    if (neb__cf_ok(c, c->ops->mul(c->dev, &a))) neb__cf_near(c, "z", &z, want, 0);
}

static void case_act(struct neb_cf *c)
{
    const int64_t n = neb__cf_dim(c, 300) * 7;
    const neb_act act = (neb_act)neb__cf_below(c, NEB_ACT_TANH + 1);
    const int acc = neb__cf_below(c, 2), in_place = !acc && neb__cf_below(c, 2);
    neb__cf_shape(c, "n %lld, act %d, acc %d, in place %d", (long long)n, (int)act, acc, in_place);
    struct neb_cf_t x = neb__cf_random(c, n, c->type, 3), y = neb__cf_poison(c, n, c->type);
    struct neb_cf_t dy = neb__cf_random(c, n, c->type, 1),
                    dx = in_place ? dy : neb__cf_target(c, n, c->type, acc);
    double *want = neb__cf_doubles(c, n), *want_dx = neb__cf_doubles(c, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = neb__cf_act(x.v[i], act);
        want_dx[i] = dy.v[i] * neb__cf_slope(x.v[i], act) + (acc ? dx.v[i] : 0);
    }
    struct neb_act_args a = {x.p, y.p, NULL, NULL, n, act, 0, c->type};
    if (neb__cf_ok(c, c->ops->act(c->dev, &a))) neb__cf_near(c, "y", &y, want, 0);
    struct neb_act_args b = {x.p, NULL, dy.p, dx.p, n, act, acc, c->type};
    if (neb__cf_ok(c, c->ops->act_bwd(c->dev, &b))) neb__cf_near(c, "dx", &dx, want_dx, 0);
}

static void case_bias_colsum(struct neb_cf *c)
{
    const int64_t rows = neb__cf_dim(c, 300), cols = neb__cf_dim(c, 300), ld = cols + neb__cf_below(c, 9);
    const int acc = neb__cf_below(c, 2);
    neb__cf_shape(c, "%lld x %lld, ld %lld, acc %d", (long long)rows, (long long)cols, (long long)ld, acc);
    struct neb_cf_t y = neb__cf_random(c, rows * cols, c->type, 1), b = neb__cf_random(c, cols, c->type, 1);
    struct neb_cf_t x = neb__cf_random(c, rows * ld, c->type, 1), out = neb__cf_target(c, cols, NEB_F32, acc);
    double *want = neb__cf_doubles(c, rows * cols), *sum = neb__cf_doubles(c, cols);
    for (int64_t i = 0; i < cols; i++) sum[i] = acc ? out.v[i] : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            want[r * cols + i] = y.v[r * cols + i] + b.v[i];
            sum[i] += x.v[r * ld + i];
        }
    struct neb_bias a = {y.p, b.p, rows, cols, c->type, c->type};
    if (neb__cf_ok(c, c->ops->bias(c->dev, &a))) neb__cf_near(c, "y", &y, want, 0);
    struct neb_colsum s = {x.p, out.p, rows, cols, ld, acc, c->type};
    if (neb__cf_ok(c, c->ops->colsum(c->dev, &s))) neb__cf_near(c, "sum", &out, sum, sqrt((double)rows));
}

static void case_swiglu(struct neb_cf *c)
{
    const int64_t rows = neb__cf_dim(c, 60), n = neb__cf_dim(c, 200);
    neb__cf_shape(c, "%lld x %lld", (long long)rows, (long long)n);
    struct neb_cf_t x = neb__cf_random(c, rows * 2 * n, c->type, 2), y = neb__cf_poison(c, rows * n, c->type);
    struct neb_cf_t dy = neb__cf_random(c, rows * n, c->type, 1),
                    dx = neb__cf_poison(c, rows * 2 * n, c->type);
    double *want = neb__cf_doubles(c, rows * n), *want_dx = neb__cf_doubles(c, rows * 2 * n);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            double gate = x.v[r * 2 * n + i], up = x.v[r * 2 * n + n + i], d = dy.v[r * n + i];
            want[r * n + i] = neb__cf_act(gate, NEB_ACT_SILU) * up;
            want_dx[r * 2 * n + i] = d * up * neb__cf_slope(gate, NEB_ACT_SILU);
            want_dx[r * 2 * n + n + i] = d * neb__cf_act(gate, NEB_ACT_SILU);
        }
    struct neb_swiglu f = {x.p, y.p, NULL, NULL, rows, n, c->type},
                      b = {x.p, NULL, dy.p, dx.p, rows, n, c->type};
    if (neb__cf_ok(c, c->ops->swiglu(c->dev, &f))) neb__cf_near(c, "y", &y, want, 0);
    if (neb__cf_ok(c, c->ops->swiglu_bwd(c->dev, &b))) neb__cf_near(c, "dx", &dx, want_dx, 0);
}

/* Checks every mask bit exactly: ones go in, zeros and the factor come out. */
static void case_dropout(struct neb_cf *c)
{
    struct neb_cf_seqs s = neb__cf_seqs(c, 1 + neb__cf_below(c, 4), 30, neb__cf_below(c, 3));
    const int64_t cols = neb__cf_dim(c, 300), n = s.rows * cols;
    const uint32_t threshold = (uint32_t)neb__cf_below(c, 60000), op = (uint32_t)neb__cf_below(c, 1000);
    const int acc = neb__cf_below(c, 2), in_place = !acc && neb__cf_below(c, 2);
    neb__cf_shape(c, "%lld x %lld, threshold %u, acc %d", (long long)s.rows, (long long)cols, threshold, acc);
    struct neb_ctl host = {.step = (uint32_t)neb__cf_below(c, 1 << 20),
                           .seed = (uint32_t)neb__rng_next(&c->rng)};
    struct neb_ctl *ctl = neb__cf_ctl(c, &host);
    double *ones = neb__cf_doubles(c, n), *want = neb__cf_doubles(c, n);
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    struct neb_cf_t x = neb__cf_values(c, n, c->type, ones),
                    y = in_place ? x : neb__cf_target(c, n, c->type, acc);
    for (int64_t i = 0; i < n; i++) {
        int64_t r = i / cols, col = i % cols;
        want[i] = neb__cf_mask(&host, threshold, op, (uint32_t)(col / 8), (int)(col % 8),
                               (uint32_t)s.position[r], s.sample[r]) +
                  (acc ? y.v[i] : 0);
    }
    struct neb_dropout_args a = {
        x.p, y.p, s.rows, cols, acc, {threshold, op, s.d_sample, s.d_position, ctl, 0}, c->type};
    if (neb__cf_ok(c, c->ops->dropout(c->dev, &a))) neb__cf_near(c, "y", &y, want, 0);
}

const struct neb_cf_case neb__cf_basic[] = {
    {"gemm", case_gemm, 40},
    {"gemm_deep", case_gemm_deep, 8},
    {"gemm_poison", case_gemm_poison, 8},
    {"gemm_scales", case_gemm_scales, 12},
    {"gemm_infinite", case_gemm_infinite, 6},
    {"copy2d", case_copy2d, 10},
    {"axpby", case_axpby, 10},
    {"mul", case_mul, 8},
    {"act", case_act, 24},
    {"bias_colsum", case_bias_colsum, 12},
    {"swiglu", case_swiglu, 8},
    {"dropout", case_dropout, 12},
    {0},
};
