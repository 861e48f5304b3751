/* conform_rows.c: embedding, gather and scatter, pooling, rotary positions, norms, the optimizer's passes. */
#include "device/conform.h"

#include <math.h>

/* A row of the table; in one of twelve cases an id outside it, on either side. */
static int32_t random_id(struct neb_cf *c, int32_t rows)
{
    if (neb__cf_below(c, 12)) return neb__cf_below(c, rows);
    return neb__cf_below(c, 2) ? -1 : rows;
}

static void case_embed(struct neb_cf *c)
{
    const int tables = 1 + neb__cf_below(c, 3);
    const int64_t rows = neb__cf_dim(c, 80), d = neb__cf_dim(c, 200);
    const float scale = neb__cf_below(c, 2) ? 1.0f : 0.5f;
    neb__cf_shape(c, "%d tables, %lld x %lld", tables, (long long)rows, (long long)d);
    struct neb_embed f = {.tables = tables, .rows = rows, .d = d, .scale = scale, .type = c->type}, b;
    double *want = neb__cf_doubles(c, rows * d), *want_d[3] = {0};
    struct neb_cf_t table[3], grad[3];
    struct neb_cf_t y = neb__cf_poison(c, rows * d, c->type), dy = neb__cf_random(c, rows * d, c->type, 1);
    for (int t = 0; t < tables; t++) {
        const int64_t n = neb__cf_dim(c, 40);
        int32_t *ids = (int32_t *)neb__cf_doubles(c, rows);
        table[t] = neb__cf_random(c, n * d, c->type, 1);
        grad[t] = neb__cf_random(c, n * d, NEB_F32, 1);
        want_d[t] = neb__cf_doubles(c, n * d);
        for (int64_t i = 0; i < n * d; i++) want_d[t][i] = grad[t].v[i];
        for (int64_t r = 0; r < rows; r++) {
            ids[r] = random_id(c, (int32_t)n);
            for (int64_t i = 0; ids[r] >= 0 && ids[r] < n && i < d; i++) {
                want[r * d + i] += scale * table[t].v[ids[r] * d + i];
                want_d[t][ids[r] * d + i] += scale * dy.v[r * d + i];
            }
        }
        f.table[t] = table[t].p, f.table_rows[t] = n, f.ids[t] = neb__cf_ints(c, ids, rows);
    }
    b = f;
    f.y = y.p;
    b.dy = dy.p;
    for (int t = 0; t < tables; t++) b.table[t] = NULL, b.d_table[t] = t == 1 ? NULL : grad[t].p;
    if (neb__cf_ok(c, c->ops->embed(c->dev, &f))) neb__cf_near(c, "y", &y, want, 0);
    b.scratch = neb__cf_scratch(c, NEB_SLOT_EMBED_BWD, &b);
    if (!neb__cf_ok(c, c->ops->embed_bwd(c->dev, &b))) return;
    for (int t = 0; t < tables; t++)
        if (t != 1) neb__cf_near(c, "d_table", &grad[t], want_d[t], 0);
}

static void case_gather_scatter(struct neb_cf *c)
{
    const int64_t rows = neb__cf_dim(c, 100), d = neb__cf_dim(c, 200), n = 1 + neb__cf_below(c, (int)rows);
    const int64_t ld = d + (neb__cf_below(c, 2) ? 1 + neb__cf_below(c, 40) : 0);
    neb__cf_shape(c, "%lld of %lld rows, d %lld, scattered from %lld", (long long)n, (long long)rows,
                  (long long)d, (long long)ld);
    int32_t *index = (int32_t *)neb__cf_doubles(c, rows);
    for (int64_t i = 0; i < rows; i++) index[i] = (int32_t)i;
    for (int64_t i = rows - 1; i > 0; i--) { /* distinct indices: the beginning of a shuffle */
        int64_t j = neb__cf_below(c, (int)i + 1);
        int32_t t = index[i];
        index[i] = index[j], index[j] = t;
    }
    if (n > 1) index[n - 1] = neb__cf_below(c, 2) ? -1 : (int32_t)rows;
    const int32_t *d_index = neb__cf_ints(c, index, n);
    struct neb_cf_t x = neb__cf_random(c, rows * d, c->type, 1), y = neb__cf_poison(c, n * d, c->type);
    struct neb_cf_t dy = neb__cf_random(c, n * ld, c->type, 1), dx = neb__cf_random(c, rows * d, c->type, 1);
    double *want = neb__cf_doubles(c, n * d), *want_dx = neb__cf_doubles(c, rows * d);
    for (int64_t i = 0; i < rows * d; i++) want_dx[i] = dx.v[i];
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; index[r] >= 0 && index[r] < rows && i < d; i++) {
            want[r * d + i] = x.v[index[r] * d + i];
            want_dx[index[r] * d + i] += dy.v[r * ld + i];
        }
    struct neb_rows g = {x.p, y.p, d_index, n, rows, d, c->type, 0},
                    s = {dy.p, dx.p, d_index, n, rows, d, c->type, ld > d ? ld : 0};
    if (neb__cf_ok(c, c->ops->gather_rows(c->dev, &g))) neb__cf_near(c, "gathered", &y, want, 0);
    if (neb__cf_ok(c, c->ops->scatter_rows(c->dev, &s))) neb__cf_near(c, "scattered", &dx, want_dx, 0);
}

static void case_pool(struct neb_cf *c)
{
    struct neb_cf_seqs s = neb__cf_seqs(c, 1 + neb__cf_below(c, 6), 40, neb__cf_below(c, 4));
    const int64_t d = neb__cf_dim(c, 200);
    const int acc = neb__cf_below(c, 2);
    neb__cf_shape(c, "%lld sequences, %lld rows, d %lld, acc %d", (long long)s.sequences, (long long)s.rows,
                  (long long)d, acc);
    struct neb_cf_t x = neb__cf_random(c, s.rows * d, c->type, 1),
                    y = neb__cf_poison(c, s.sequences * d, c->type);
    struct neb_cf_t dy = neb__cf_random(c, s.sequences * d, c->type, 1),
                    dx = neb__cf_target(c, s.rows * d, c->type, acc);
    double *want = neb__cf_doubles(c, y.n), *want_dx = neb__cf_doubles(c, dx.n);
    for (int64_t i = 0; i < dx.n; i++) want_dx[i] = acc ? dx.v[i] : 0;
    for (int64_t q = 0; q < s.sequences; q++)
        for (int64_t r = s.starts[q]; r < s.starts[q + 1]; r++)
            for (int64_t i = 0; i < d; i++) {
                double part = 1.0 / (s.starts[q + 1] - s.starts[q]);
                want[q * d + i] += part * x.v[r * d + i];
                want_dx[r * d + i] += part * dy.v[q * d + i];
            }
    struct neb_pool_args f = {x.p, y.p, NULL, NULL, s.d_starts, s.sequences, s.rows, d, 0, c->type}, b = f;
    b.dy = dy.p, b.dx = dx.p, b.acc_dx = acc;
    if (neb__cf_ok(c, c->ops->pool(c->dev, &f))) neb__cf_near(c, "y", &y, want, 0.1);
    if (neb__cf_ok(c, c->ops->pool_bwd(c->dev, &b))) neb__cf_near(c, "dx", &dx, want_dx, 0);
}

static void case_rope(struct neb_cf *c)
{
    struct neb_cf_seqs s = neb__cf_seqs(c, 1 + neb__cf_below(c, 4), 60, 0);
    const int64_t heads = 1 + neb__cf_below(c, 4), hd = 2 * (1 + neb__cf_below(c, 40)),
                  ld = heads * hd + neb__cf_below(c, 4);
    const float base = neb__cf_below(c, 2) ? 10000.0f : 500000.0f;
    const int inverse = neb__cf_below(c, 2);
    static const struct neb_rope_scale scales[] = {{0, 0, 0, 0}, {4, 0, 0, 0}, {8, 1, 4, 64}};
    const int how = (int)neb__cf_below(c, 3);
    neb__cf_shape(c, "%lld rows, %lld heads of %lld, inverse %d, scale %d", (long long)s.rows,
                  (long long)heads, (long long)hd, inverse, how);
    struct neb_cf_t x = neb__cf_random(c, s.rows * ld, c->type, 1);
    double *want = neb__cf_doubles(c, x.n);
    for (int64_t i = 0; i < x.n; i++) want[i] = x.v[i];
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t j = 0; j < hd / 2; j++) {
                double f = pow(base, -2.0 * (double)j / (double)hd), wave = 2 * 3.14159265358979323846 / f;
                double mix = (64 / wave - 1) / 3; /* of the third scale */
                if (how == 1 || (how == 2 && wave > 64))
                    f /= how == 1 ? 4 : 8;
                else if (how == 2 && wave >= 16)
                    f = mix * f + (1 - mix) * f / 8;
                double angle = s.position[r] * f * (inverse ? -1 : 1);
                int64_t at = r * ld + h * hd + j;
                want[at] = x.v[at] * cos(angle) - x.v[at + hd / 2] * sin(angle);
                want[at + hd / 2] = x.v[at + hd / 2] * cos(angle) + x.v[at] * sin(angle);
            }
    struct neb_rope a = {x.p, s.d_position, s.rows, heads, hd, ld, base, inverse, c->type, scales[how]};
    if (neb__cf_ok(c, c->ops->rope(c->dev, &a))) neb__cf_near(c, "x", &x, want, 0);
}

/* One norm with all its options: the same case runs through the primitive and through the fused slot. */
struct norm_case {
    neb_norm_kind kind;
    struct neb_cf_seqs s;
    int64_t d;
    uint32_t threshold, op;
    int residual, with_y, with_beta;
    struct neb_ctl host;
};

static double norm_mask(const struct norm_case *n, int64_t r, int64_t i)
{
    return neb__cf_mask(&n->host, n->threshold, n->op, (uint32_t)(i / 8), (int)(i % 8),
                        (uint32_t)n->s.position[r], n->s.sample[r]);
}

static void run_norm(struct neb_cf *c, const struct norm_case *n)
{
    const int64_t rows = n->s.rows, d = n->d, size = rows * d;
    const double eps = 1e-5;
    const int layer = n->kind == NEB_NORM_LAYER;
    struct neb_ctl *ctl = neb__cf_ctl(c, &n->host);
    struct neb_dropout drop = {n->threshold, n->op, n->s.d_sample, n->s.d_position, ctl, 0};
    struct neb_cf_t x = neb__cf_random(c, size, c->type, 2), res = neb__cf_random(c, size, c->type, 1);
    struct neb_cf_t gamma = neb__cf_random(c, d, NEB_F32, 1), beta = neb__cf_random(c, d, NEB_F32, 1);
    struct neb_cf_t s = neb__cf_poison(c, size, c->type), y = neb__cf_poison(c, size, c->type);
    struct neb_cf_t mean = neb__cf_poison(c, rows, NEB_F32), rstd = neb__cf_poison(c, rows, NEB_F32);
    double *ws = neb__cf_doubles(c, size), *wy = neb__cf_doubles(c, size), *wm = neb__cf_doubles(c, rows),
           *wr = neb__cf_doubles(c, rows);
    for (int64_t i = 0; i < size; i++)
        ws[i] = n->residual ? res.v[i] + norm_mask(n, i / d, i % d) * x.v[i] : x.v[i];
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, sq = 0;
        for (int64_t i = 0; layer && i < d; i++) sum += ws[r * d + i] / (double)d;
        for (int64_t i = 0; i < d; i++) sq += (ws[r * d + i] - sum) * (ws[r * d + i] - sum) / (double)d;
        wm[r] = sum, wr[r] = 1 / sqrt(sq + eps);
        for (int64_t i = 0; i < d; i++)
            wy[r * d + i] = (ws[r * d + i] - sum) * wr[r] * gamma.v[i] + (n->with_beta ? beta.v[i] : 0);
    }
    struct neb_norm f = {n->kind,
                         x.p,
                         n->residual ? res.p : NULL,
                         gamma.p,
                         n->with_beta ? beta.p : NULL,
                         n->residual ? s.p : NULL,
                         n->with_y ? y.p : NULL,
                         layer ? mean.p : NULL,
                         rstd.p,
                         rows,
                         d,
                         (float)eps,
                         n->residual ? drop : (struct neb_dropout){0},
                         c->type};
    neb_status status = n->residual ? c->ops->norm_residual(c->dev, &f) : c->ops->norm(c->dev, &f);
    if (!neb__cf_ok(c, status)) return;
    if (n->residual) neb__cf_near(c, "s", &s, ws, 0);
    if (!n->with_y) return;
    /* s - mean cancels when a row's values lie close together. The error is then that of s, times rstd. */
    double condition = 1;
    for (int64_t i = 0; i < size; i++) condition = fmax(condition, fabs(ws[i]) * wr[i / d]);
    neb__cf_near(c, "y", &y, wy, condition);
    if (layer) neb__cf_near(c, "mean", &mean, wm, 1);
    if (c->type == NEB_F32 || d > 8) neb__cf_near(c, "rstd", &rstd, wr, condition);
}

static void run_norm_bwd(struct neb_cf *c, const struct norm_case *n)
{
    const int64_t rows = n->s.rows, d = n->d, size = rows * d;
    const int layer = n->kind == NEB_NORM_LAYER, with_in = neb__cf_below(c, 2) || !n->with_y;
    const int in_place = with_in && neb__cf_below(c, 2), acc = neb__cf_below(c, 2),
              acc_dx = neb__cf_below(c, 2);
    struct neb_ctl *ctl = neb__cf_ctl(c, &n->host);
    struct neb_cf_t s = neb__cf_random(c, size, c->type, 2), dy = neb__cf_random(c, size, c->type, 1);
    struct neb_cf_t in = neb__cf_random(c, size, c->type, 1),
                    ds = in_place ? in : neb__cf_poison(c, size, c->type);
    struct neb_cf_t gamma = neb__cf_random(c, d, NEB_F32, 1), dx = neb__cf_target(c, size, c->type, acc_dx);
    struct neb_cf_t dgamma = neb__cf_target(c, d, NEB_F32, acc), dbeta = neb__cf_target(c, d, NEB_F32, acc);
    double *mean = neb__cf_doubles(c, rows), *rstd = neb__cf_doubles(c, rows),
           *wds = neb__cf_doubles(c, size), *wdx = neb__cf_doubles(c, size), *wg = neb__cf_doubles(c, d),
           *wb = neb__cf_doubles(c, d);
    for (int64_t i = 0; i < d; i++) wg[i] = acc ? dgamma.v[i] : 0, wb[i] = acc ? dbeta.v[i] : 0;
    for (int64_t r = 0; r < rows; r++) {
        double m = 0, sq = 0, g1 = 0, g2 = 0;
        for (int64_t i = 0; layer && i < d; i++) m += s.v[r * d + i] / (double)d;
        for (int64_t i = 0; i < d; i++) sq += (s.v[r * d + i] - m) * (s.v[r * d + i] - m) / (double)d;
        double k = 1 / sqrt(sq + 0.1); /* a large eps: the case is about the formula */
        mean[r] = m, rstd[r] = k;
        for (int64_t i = 0; i < d; i++) {
            double xh = (s.v[r * d + i] - m) * k, g = dy.v[r * d + i] * gamma.v[i];
            g1 += g / (double)d, g2 += g * xh / (double)d;
            wg[i] += dy.v[r * d + i] * xh, wb[i] += dy.v[r * d + i];
        }
        for (int64_t i = 0; i < d; i++) {
            int64_t e = r * d + i;
            double xh = (s.v[e] - m) * k, through = k * (dy.v[e] * gamma.v[i] - (layer ? g1 : 0) - xh * g2);
            wds[e] = (with_in ? in.v[e] : 0) + (n->with_y ? through : 0);
            wdx[e] = wds[e] * norm_mask(n, r, i) + (acc_dx ? dx.v[e] : 0);
        }
    }
    struct neb_cf_t d_mean = neb__cf_values(c, rows, NEB_F32, mean),
                    d_rstd = neb__cf_values(c, rows, NEB_F32, rstd);
    const int dropped = n->residual && n->threshold;
    struct neb_norm_bwd b = {.kind = n->kind,
                             .s = s.p,
                             .dy = n->with_y ? dy.p : NULL,
                             .ds_in = with_in ? in.p : NULL,
                             .gamma = gamma.p,
                             .mean = layer ? d_mean.p : NULL,
                             .rstd = d_rstd.p,
                             .ds = ds.p,
                             .dx = dropped ? dx.p : NULL,
                             .dgamma = dgamma.p,
                             .dbeta = n->with_beta ? dbeta.p : NULL,
                             .acc_dgamma = acc,
                             .acc_dbeta = acc,
                             .acc_dx = acc_dx,
                             .rows = rows,
                             .d = d,
                             .type = c->type};
    if (dropped) b.drop = (struct neb_dropout){n->threshold, n->op, n->s.d_sample, n->s.d_position, ctl, 0};
    if (!n->residual && with_in) b.ds_in = NULL;
    for (int64_t e = 0; !n->residual && with_in && e < size; e++) wds[e] -= in.v[e];
    b.scratch = neb__cf_scratch(c, NEB_SLOT_NORM_BWD, &b);
    neb_status status = n->residual ? c->ops->norm_residual_bwd(c->dev, &b) : c->ops->norm_bwd(c->dev, &b);
    if (!neb__cf_ok(c, status)) return;
    neb__cf_near(c, "ds", &ds, wds, 1);
    if (dropped) neb__cf_near(c, "dx", &dx, wdx, 1);
    if (n->with_y) neb__cf_near(c, "dgamma", &dgamma, wg, sqrt((double)rows));
    if (n->with_y && n->with_beta) neb__cf_near(c, "dbeta", &dbeta, wb, sqrt((double)rows));
}

static void norm_any(struct neb_cf *c, int residual)
{
    struct norm_case n = {.kind = neb__cf_below(c, 2) ? NEB_NORM_LAYER : NEB_NORM_RMS,
                          .d = neb__cf_dim(c, 300),
                          .residual = residual,
                          .with_y = !residual || neb__cf_below(c, 4) > 0,
                          .with_beta = neb__cf_below(c, 2)};
    n.s = neb__cf_seqs(c, 1 + neb__cf_below(c, 4), 30, neb__cf_below(c, 3));
    n.threshold = residual && neb__cf_below(c, 2) ? 6554 + (uint32_t)neb__cf_below(c, 30000) : 0;
    n.op = (uint32_t)neb__cf_below(c, 100);
    n.host =
        (struct neb_ctl){.step = (uint32_t)neb__cf_below(c, 1000), .seed = (uint32_t)neb__rng_next(&c->rng)};
    neb__cf_shape(c, "%lld x %lld, kind %d, y %d, beta %d, threshold %u", (long long)n.s.rows, (long long)n.d,
                  (int)n.kind, n.with_y, n.with_beta, n.threshold);
    run_norm(c, &n);
    run_norm_bwd(c, &n);
}

static void case_norm(struct neb_cf *c)
{
    norm_any(c, 0);
}

static void case_norm_residual(struct neb_cf *c)
{
    if (!c->ops->norm_residual || !c->ops->norm_residual_bwd) {
        c->result->skipped++;
        return;
    }
    norm_any(c, 1);
}

const struct neb_cf_case neb__cf_rows[] = {
    {"embed", case_embed, 12},
    {"gather_scatter", case_gather_scatter, 8},
    {"pool", case_pool, 8},
    {"rope", case_rope, 8},
    {"norm", case_norm, 16},
    {"norm_residual", case_norm_residual, 24},
    {0},
};
