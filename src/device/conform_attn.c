/* conform_attn.c: attention: packed sequences of random lengths (also 0), grouped heads, causal and cross,
 * dropout masks bit by bit, a bias for distances; the fused slots and the primitives against one naive version. */
#include "base/clamp.h"
#include "device/conform.h"

#include <math.h>

struct attn_case {
    struct neb_cf_seqs q, k;
    int64_t heads, kv_heads, hd, cols_q, cols_k; /* columns: heads side by side */
    int causal;
    uint32_t threshold, op;
    struct neb_ctl host;
    double scale;
    const struct neb_attn_bias *bias; /* NULL: none; its table is that of struct attn_want */
};

/* Number of keys that row r of sequence i sees, from the first on. */
static int64_t keys_of(const struct attn_case *a, int64_t i, int64_t r)
{
    int64_t tq = a->q.starts[i + 1] - a->q.starts[i], tk = a->k.starts[i + 1] - a->k.starts[i];
    int64_t n = a->causal ? tk - tq + (r - a->q.starts[i]) + 1 : tk;
    return neb__clamp_int(n, 0, tk);
}

static double mask_of(const struct attn_case *a, int64_t i, int64_t head, int64_t r, int64_t j)
{
    return neb__cf_mask(&a->host, a->threshold, a->op, (uint32_t)head << 20 | (uint32_t)(j / 8), (int)(j % 8),
                        (uint32_t)(r - a->q.starts[i]), a->q.sample[a->q.starts[i]]);
}

/* Row of the table for key j of sequence i and query r. */
static int64_t bucket_of(const struct attn_case *a, int64_t i, int64_t r, int64_t j)
{
    const struct neb_attn_bias *b = a->bias;
    const int64_t tq = a->q.starts[i + 1] - a->q.starts[i], tk = a->k.starts[i + 1] - a->k.starts[i],
                  d = j - (tk - tq + r - a->q.starts[i]),
                  n = d <= 0         ? -d
                      : b->both_ways ? d
                                     : 0;
    int64_t bucket = 0;
    for (int64_t x = 0; x < b->buckets; x++)
        if (b->from[x] <= n) bucket = x;
    return bucket + (d > 0 && b->both_ways ? b->buckets : 0);
}

/* p[j] for the keys of one query, before dropout; returns the log-sum-exp. */
static double probs(const double *score, int64_t n, double *p)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) max = fmax(max, score[j]);
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(score[j] - max);
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
    return max + log(sum);
}

/* Longest sequence of a case. Large cases have whole tiles about half of the time. */
static int64_t length_of(struct neb_cf *c, bool large)
{
    if (!large) return 1 + neb__cf_below(c, 90);
    return neb__cf_below(c, 2) ? 64 * (1 + neb__cf_below(c, 3)) : 65 + neb__cf_below(c, 120);
}

static struct attn_case random_case(struct neb_cf *c)
{
    struct attn_case a = {.causal = neb__cf_below(c, 2),
                          .hd = (int64_t[]){8, 16, 32, 64, 64, 80, 128}[neb__cf_below(c, 7)]};
    a.kv_heads = 1 + neb__cf_below(c, 2);
    a.heads = a.kv_heads * (1 + neb__cf_below(c, 2));
    /* Devices work in tiles of 64 or 128 rows, so every third case has several tiles. */
    const bool large = neb__cf_below(c, 3) == 0;
    const int64_t sequences = 1 + neb__cf_below(c, large ? 2 : 4);
    if (large) {
        a.hd = (int64_t[]){32, 64, 64, 128}[neb__cf_below(c, 4)];
        a.kv_heads = 1;
        a.heads = 1 + neb__cf_below(c, 2);
    }
    a.q = neb__cf_seqs(c, sequences, length_of(c, large), neb__cf_below(c, 3));
    a.k = neb__cf_below(c, 2) ? a.q : neb__cf_seqs(c, sequences, length_of(c, large), neb__cf_below(c, 3));
    a.threshold = neb__cf_below(c, 2) ? 6554 + (uint32_t)neb__cf_below(c, 20000) : 0;
    a.op = (uint32_t)neb__cf_below(c, 50);
    a.host =
        (struct neb_ctl){.step = (uint32_t)neb__cf_below(c, 1000), .seed = (uint32_t)neb__rng_next(&c->rng)};
    a.scale = 1 / sqrt((double)a.hd);
    a.cols_q = a.heads * a.hd, a.cols_k = a.kv_heads * a.hd;
    neb__cf_shape(c,
                  "%lld sequences, %lld queries, %lld keys, heads %lld/%lld of %lld, causal %d, threshold %u",
                  (long long)sequences, (long long)a.q.rows, (long long)a.k.rows, (long long)a.heads,
                  (long long)a.kv_heads, (long long)a.hd, a.causal, a.threshold);
    return a;
}

/* Expected results of everything, accumulated query by query. */
struct attn_want {
    const double *q, *k, *v, *d_o;
    int64_t ldq, ldk, ldo;
    double *o, *lse, *dq, *dk, *dv;
    double *size_q,
        *size_k; /* squares of the terms that cancel in dq and dk: p (dp - dot), each with its own rounding */
    const double *table; /* (buckets, heads), with a bias */
    double *dtable, *size_table;
};

static void naive_query(const struct attn_case *a, const struct attn_want *w, int64_t i, int64_t head,
                        int64_t r, double *p)
{
    const int64_t n = keys_of(a, i, r), kh = head * a->kv_heads / a->heads, k0 = a->k.starts[i];
    const double *q = w->q + r * w->ldq + head * a->hd, *d_o = w->d_o + r * w->ldo + head * a->hd;
    double *dp = p + n, dot = 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = 0;
        for (int64_t x = 0; x < a->hd; x++)
            p[j] += a->scale * q[x] * w->k[(k0 + j) * w->ldk + kh * a->hd + x];
        if (a->bias) p[j] += w->table[bucket_of(a, i, r, j) * a->heads + head];
    }
    if (n) w->lse[head * a->q.rows + r] = probs(p, n, p);
    for (int64_t j = 0; j < n; j++) {
        const double m = mask_of(a, i, head, r, j);
        dp[j] = 0;
        for (int64_t x = 0; x < a->hd; x++) {
            const int64_t kv = (k0 + j) * w->ldk + kh * a->hd + x;
            w->o[r * w->ldo + head * a->hd + x] += p[j] * m * w->v[kv];
            w->dv[kv] += p[j] * m * d_o[x];
            dp[j] += m * d_o[x] * w->v[kv];
        }
        dot += p[j] * dp[j];
    }
    for (int64_t j = 0; j < n; j++) {
        const double ds = p[j] * (dp[j] - dot) * a->scale,
                     parts = p[j] * (fabs(dp[j]) + fabs(dot)) * a->scale;
        if (a->bias) {
            const int64_t at = bucket_of(a, i, r, j) * a->heads + head;
            w->dtable[at] += ds / a->scale;
            w->size_table[at] += parts * parts / (a->scale * a->scale);
        }
        for (int64_t x = 0; x < a->hd; x++) {
            const int64_t kv = (k0 + j) * w->ldk + kh * a->hd + x;
            w->dq[r * w->ldq + head * a->hd + x] += ds * w->k[kv];
            w->dk[kv] += ds * q[x];
            w->size_q[r * w->ldq + head * a->hd + x] += parts * parts * w->k[kv] * w->k[kv];
            w->size_k[kv] += parts * parts * q[x] * q[x];
        }
    }
}

/* Compares the log-sum-exp of rows with keys; the others have none. */
static void check_lse(struct neb_cf *c, const struct attn_case *a, const struct neb_cf_t *lse, double *want)
{
    float *got = (float *)c->mirror;
    if (!neb__cf_ok(c, c->ops->download(c->dev, got, lse->p, (size_t)lse->n * 4))) return;
    for (int64_t h = 0; h < a->heads; h++)
        for (int64_t i = 0; i < a->q.sequences; i++)
            for (int64_t r = a->q.starts[i]; r < a->q.starts[i + 1]; r++)
                if (keys_of(a, i, r))
                    neb__cf_near1(c, "lse", got[h * a->q.rows + r], want[h * a->q.rows + r], 1);
}

static double largest_root(const double *squares, int64_t n)
{
    double largest = 1;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, sqrt(squares[i]));
    return largest;
}

/* Distances near by have a bucket each, the others share some; now and then the last ones begin at the same distance. */
static struct neb_attn_bias random_bias(struct neb_cf *c)
{
    struct neb_attn_bias b = {.both_ways = neb__cf_below(c, 2), .buckets = 1 + neb__cf_below(c, 20)};
    for (int64_t i = 1; i < b.buckets; i++)
        b.from[i] = b.from[i - 1] + (i < b.buckets / 2 ? 1 : neb__cf_below(c, 12));
    return b;
}

static neb_status run_forward(struct neb_cf *c, struct neb_attn *f, const struct neb_attn_bias *bias)
{
    struct neb_attn_biased x = {*f, bias ? *bias : (struct neb_attn_bias){0}};
    f->scratch = bias ? neb__cf_scratch(c, NEB_SLOT_ATTN_BIASED, &x) : neb__cf_scratch(c, NEB_SLOT_ATTN, f);
    x.a.scratch = f->scratch;
    return bias ? c->ops->attn_biased(c->dev, &x) : c->ops->attn(c->dev, f);
}

static neb_status run_backward(struct neb_cf *c, struct neb_attn_bwd *b, const struct neb_attn_bias *bias)
{
    struct neb_attn_biased_bwd x = {*b, bias ? *bias : (struct neb_attn_bias){0}};
    b->scratch =
        bias ? neb__cf_scratch(c, NEB_SLOT_ATTN_BIASED_BWD, &x) : neb__cf_scratch(c, NEB_SLOT_ATTN_BWD, b);
    x.b.scratch = b->scratch;
    return bias ? c->ops->attn_biased_bwd(c->dev, &x) : c->ops->attn_bwd(c->dev, b);
}

static void check_attn(struct neb_cf *c, struct neb_attn_bias *bias)
{
    struct attn_case a = random_case(c);
    a.bias = bias;
    const int64_t ldq = a.cols_q + neb__cf_below(c, 2) * 24, ldk = a.cols_k + neb__cf_below(c, 2) * 8,
                  ldo = a.cols_q;
    struct neb_ctl *ctl = neb__cf_ctl(c, &a.host);
    struct neb_cf_t q = neb__cf_random(c, a.q.rows * ldq, c->type, 1),
                    k = neb__cf_random(c, a.k.rows * ldk, c->type, 1);
    struct neb_cf_t v = neb__cf_random(c, a.k.rows * ldk, c->type, 1),
                    o = neb__cf_poison(c, a.q.rows * ldo, c->type);
    struct neb_cf_t d_o = neb__cf_random(c, a.q.rows * ldo, c->type, 1),
                    lse = neb__cf_poison(c, a.heads * a.q.rows, NEB_F32);
    struct neb_cf_t dq = neb__cf_random(c, q.n, c->type, 1), dk = neb__cf_random(c, k.n, c->type, 1),
                    dv = neb__cf_random(c, v.n, c->type, 1);
    const int64_t entries = bias ? (bias->both_ways ? 2 : 1) * bias->buckets * a.heads : 0;
    const int acc = bias ? neb__cf_below(c, 2) : 0;
    struct neb_cf_t table = {0}, dtable = {0};
    if (bias) {
        table = neb__cf_random(c, entries, NEB_F32, 1);
        dtable = neb__cf_target(c, entries, NEB_F32, acc);
        bias->table = table.p, bias->dtable = dtable.p, bias->acc_dtable = acc;
    }
    struct attn_want w = {.q = q.v,
                          .k = k.v,
                          .v = v.v,
                          .d_o = d_o.v,
                          .ldq = ldq,
                          .ldk = ldk,
                          .ldo = ldo,
                          .o = neb__cf_doubles(c, o.n),
                          .lse = neb__cf_doubles(c, lse.n),
                          .dq = neb__cf_doubles(c, q.n),
                          .dk = neb__cf_doubles(c, k.n),
                          .dv = neb__cf_doubles(c, v.n),
                          .size_q = neb__cf_doubles(c, q.n),
                          .size_k = neb__cf_doubles(c, k.n),
                          .table = table.v,
                          .dtable = neb__cf_doubles(c, entries),
                          .size_table = neb__cf_doubles(c, entries)};
    for (int64_t i = 0; acc && i < entries; i++) w.dtable[i] = dtable.v[i];
    for (int64_t i = 0; i < q.n; i++) w.dq[i] = i % ldq < a.cols_q ? 0 : dq.v[i]; /* other columns stay */
    for (int64_t i = 0; i < k.n; i++) w.dk[i] = i % ldk < a.cols_k ? 0 : dk.v[i];
    for (int64_t i = 0; i < v.n; i++) w.dv[i] = i % ldk < a.cols_k ? 0 : dv.v[i];
    double *p = neb__cf_doubles(c, 2 * a.k.rows);
    for (int64_t h = 0; h < a.heads; h++)
        for (int64_t i = 0; i < a.q.sequences; i++)
            for (int64_t r = a.q.starts[i]; r < a.q.starts[i + 1]; r++) naive_query(&a, &w, i, h, r, p);
    struct neb_attn f = {.q = q.p,
                         .k = k.p,
                         .v = v.p,
                         .o = o.p,
                         .lse = lse.p,
                         .starts_q = a.q.d_starts,
                         .starts_k = a.k.d_starts,
                         .sequences = a.q.sequences,
                         .q_rows = a.q.rows,
                         .k_rows = a.k.rows,
                         .max_q = a.q.longest,
                         .max_k = a.k.longest,
                         .heads = a.heads,
                         .kv_heads = a.kv_heads,
                         .head_dim = a.hd,
                         .ldq = ldq,
                         .ldk = ldk,
                         .ldv = ldk,
                         .ldo = ldo,
                         .scale = (float)a.scale,
                         .causal = a.causal,
                         .drop = {a.threshold, a.op, a.q.d_seq_sample, NULL, ctl, 0},
                         .type = c->type};
    if (!neb__cf_ok(c, run_forward(c, &f, bias))) return;
    neb__cf_near(c, "o", &o, w.o, 1);
    check_lse(c, &a, &lse, w.lse);
    struct neb_attn_bwd b = {f, d_o.p, dq.p, dk.p, dv.p, NULL};
    if (!neb__cf_ok(c, run_backward(c, &b, bias))) return;
    neb__cf_near(c, "dq", &dq, w.dq, largest_root(w.size_q, q.n));
    neb__cf_near(c, "dk", &dk, w.dk, largest_root(w.size_k, k.n));
    neb__cf_near(c, "dv", &dv, w.dv, 1);
    if (bias) neb__cf_near(c, "dtable", &dtable, w.dtable, largest_root(w.size_table, entries));
}

static void case_attn(struct neb_cf *c)
{
    if (!c->ops->attn || !c->ops->attn_bwd)
        c->result->skipped++;
    else
        check_attn(c, NULL);
}

static void case_attn_biased(struct neb_cf *c)
{
    if (!c->ops->attn_biased) {
        c->result->skipped++;
        return;
    }
    struct neb_attn_bias bias = random_bias(c);
    check_attn(c, &bias);
}

static void case_attn_primitives(struct neb_cf *c)
{
    struct attn_case a = random_case(c);
    const int64_t rows = a.q.rows, cols = a.k.rows, n = a.heads * rows * cols;
    if (n > 200000) return;
    struct neb_ctl *ctl = neb__cf_ctl(c, &a.host);
    struct neb_cf_t s = neb__cf_random(c, n, NEB_F32, 2), d = neb__cf_random(c, n, NEB_F32, 1),
                    lse = neb__cf_poison(c, a.heads * rows, NEB_F32);
    double *wp = neb__cf_doubles(c, n), *wd = neb__cf_doubles(c, n), *wm = neb__cf_doubles(c, n),
           *wl = neb__cf_doubles(c, lse.n);
    for (int64_t h = 0; h < a.heads; h++)
        for (int64_t i = 0; i < a.q.sequences; i++)
            for (int64_t r = a.q.starts[i]; r < a.q.starts[i + 1]; r++) {
                const int64_t at = (h * rows + r) * cols + a.k.starts[i], count = keys_of(&a, i, r);
                double dot = 0;
                if (count) wl[h * rows + r] = probs(s.v + at, count, wp + at);
                for (int64_t j = 0; j < count; j++) dot += wp[at + j] * d.v[at + j];
                for (int64_t j = 0; j < count; j++) {
                    wd[at + j] = wp[at + j] * (d.v[at + j] - dot);
                    wm[at + j] = wp[at + j] * mask_of(&a, i, h, r, j);
                }
            }
    struct neb_attn_softmax f = {s.p,           NULL,    NULL, lse.p, a.q.d_starts, a.k.d_starts,
                                 a.q.sequences, a.heads, rows, cols,  a.causal};
    if (!neb__cf_ok(c, c->ops->attn_softmax(c->dev, &f))) return;
    neb__cf_near(c, "prob", &s, wp, 1);
    check_lse(c, &a, &lse, wl);
    struct neb_attn_softmax b = {NULL,          s.p,     d.p,  NULL, a.q.d_starts, a.k.d_starts,
                                 a.q.sequences, a.heads, rows, cols, a.causal};
    if (!neb__cf_ok(c, c->ops->attn_softmax_bwd(c->dev, &b))) return;
    neb__cf_near(c, "dscore", &d, wd, 1);
    struct neb_attn_dropout m = {
        s.p,     a.q.d_starts, a.k.d_starts, a.q.sequences,
        a.heads, rows,         cols,         {a.threshold, a.op, a.q.d_seq_sample, NULL, ctl, 0}};
    if (neb__cf_ok(c, c->ops->attn_dropout(c->dev, &m))) neb__cf_near(c, "dropped", &s, wm, 1);
}

/* One head of one listed query. */
static void naive_listed(const struct neb_attn_listed *a, const double *q, const double *k, const double *v,
                         const int32_t *key, int64_t n, int64_t head, double *out)
{
    const int64_t hd = a->head_dim, kh = head * a->kv_heads / a->heads;
    double top = -INFINITY, sum = 0, p[512];
    for (int64_t j = 0; j < n; j++) {
        p[j] = 0;
        for (int64_t d = 0; d < hd; d++) p[j] += q[head * hd + d] * k[key[j] * a->ldk + kh * hd + d];
        top = fmax(top, p[j] *= a->scale);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < hd; d++) out[head * hd + d] += p[j] / sum * v[key[j] * a->ldv + kh * hd + d];
}

static void case_attn_listed(struct neb_cf *c)
{
    if (!c->ops->attn_listed) {
        c->result->skipped++;
        return;
    }
    const int64_t group = 1 + neb__cf_below(c, 3), kv = 1 + neb__cf_below(c, 3), heads = group * kv,
                  hd = neb__cf_dim(c, 80), rows = neb__cf_dim(c, 12), k_rows = neb__cf_dim(c, 90),
                  most = neb__cf_dim(c, c->tiny || neb__cf_below(c, 3) ? 70 : 500);
    const int64_t ldq = heads * hd + 8, ldk = kv * hd + 4 * neb__cf_below(c, 2), ldo = heads * hd;
    neb__cf_shape(c, "%lld queries over up to %lld of %lld rows, %lld heads (%lld) of %lld", (long long)rows,
                  (long long)most, (long long)k_rows, (long long)heads, (long long)kv, (long long)hd);
    int32_t *key = (int32_t *)neb__cf_doubles(c, rows * most), *count = (int32_t *)neb__cf_doubles(c, rows);
    struct neb_cf_t q = neb__cf_random(c, rows * ldq, c->type, 1),
                    k = neb__cf_random(c, k_rows * ldk, c->type, 1),
                    v = neb__cf_random(c, k_rows * ldk, c->type, 1),
                    o = neb__cf_poison(c, rows * ldo, c->type);
    double *want = neb__cf_doubles(c, o.n);
    struct neb_attn_listed a = {.q_rows = rows,
                                .k_rows = k_rows,
                                .max_k = most,
                                .heads = heads,
                                .kv_heads = kv,
                                .head_dim = hd,
                                .ldq = ldq,
                                .ldk = ldk,
                                .ldv = ldk,
                                .ldo = ldo,
                                .scale = 1 / sqrtf((float)hd),
                                .type = c->type};
    for (int64_t r = 0; r < rows; r++) {
        count[r] = neb__cf_below(c, (int)most + 1);
        for (int64_t j = 0; j < count[r]; j++) key[r * most + j] = neb__cf_below(c, (int)k_rows);
        for (int64_t h = 0; h < heads && count[r]; h++)
            naive_listed(&a, q.v + r * ldq, k.v, v.v, key + r * most, count[r], h, want + r * ldo);
    }
    a.q = q.p, a.k = k.p, a.v = v.p, a.o = o.p;
    a.key = neb__cf_ints(c, key, rows * most), a.count = neb__cf_ints(c, count, rows);
    if (neb__cf_ok(c, c->ops->attn_listed(c->dev, &a))) neb__cf_near(c, "o", &o, want, 1);
}

const struct neb_cf_case neb__cf_attn[] = {
    {"attn", case_attn, 40},
    {"attn_primitives", case_attn_primitives, 16},
    {"attn_listed", case_attn_listed, 24},
    {"attn_biased", case_attn_biased, 40},
    {0},
};
