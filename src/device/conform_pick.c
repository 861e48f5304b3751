/* conform_pick.c: picking columns of a row: the best ones, in order, and drawing one at random.
 *
 * A draw is compared column by column with the same race in double precision. Another choice is right only if
 * its score is within rounding of the winner's. A count over many rows with the same logits shows that the
 * race is fair. */
#include "device/conform.h"

#include <math.h>

static bool can(struct neb_cf *c, bool there)
{
    if (!there) c->result->skipped++;
    return there;
}

/* Whether `column` of x comes before `other`. */
static bool precedes(const double *x, int64_t column, int64_t other)
{
    return x[column] > x[other] || (x[column] == x[other] && column < other);
}

static void check_best_row(struct neb_cf *c, const double *x, int64_t cols, int k, const float *value,
                           const int32_t *id)
{
    bool fits = true;
    for (int j = 0; j < k; j++) {
        int64_t before = 0;
        if (j >= cols) {
            fits = fits && id[j] == -1 && value[j] == -INFINITY;
            continue;
        }
        fits = fits && id[j] >= 0 && id[j] < cols;
        if (!fits) break;
        for (int64_t i = 0; i < cols; i++) before += precedes(x, i, id[j]);
        fits = before == j && (double)value[j] == x[id[j]];
    }
    neb__cf_true(c, "the best of a row, in order", fits);
}

/* Calls the slot and compares. */
static void check_best(struct neb_cf *c, int64_t rows, int64_t cols, int k, const double *v, int lse)
{
    double *want = neb__cf_doubles(c, rows);
    struct neb_cf_t x = neb__cf_values(c, rows * cols, c->type, v),
                    value = neb__cf_poison(c, rows * k, NEB_F32), id = neb__cf_poison(c, rows * k, NEB_I32),
                    sum = neb__cf_poison(c, rows, NEB_F32);
    struct neb_best a = {x.p, value.p, id.p, lse ? sum.p : NULL, rows, cols, k, c->type};
    float *got = (float *)neb__cf_doubles(c, rows * k);
    int32_t *got_id = (int32_t *)neb__cf_doubles(c, rows * k);
    if (!neb__cf_ok(c, c->ops->best(c->dev, &a)) ||
        !neb__cf_ok(c, c->ops->download(c->dev, got, value.p, (size_t)(rows * k) * 4)) ||
        !neb__cf_ok(c, c->ops->download(c->dev, got_id, id.p, (size_t)(rows * k) * 4)))
        return;
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        for (int64_t i = 0; i < cols; i++) total += exp(x.v[r * cols + i]);
        want[r] = log(total);
        check_best_row(c, x.v + r * cols, cols, k, got + r * k, got_id + r * k);
    }
    if (lse) neb__cf_near(c, "lse", &sum, want, 1);
}

static void case_best(struct neb_cf *c)
{
    if (!can(c, c->ops->best != NULL)) return;
    const int64_t rows = neb__cf_dim(c, 20), cols = neb__cf_dim(c, 700);
    const int k = 1 + neb__cf_below(c, 24), equal = neb__cf_below(c, 2), lse = neb__cf_below(c, 4) > 0;
    neb__cf_shape(c, "%d of %lld x %lld, equal ones %d", k, (long long)rows, (long long)cols, equal);
    double *v = neb__cf_doubles(c, rows * cols);
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = equal ? neb__cf_below(c, 40) * 0.25 : 4 * neb__rng_normal(&c->rng);
    check_best(c, rows, cols, k, v, lse);
}

/* Rows as long as vocabularies, in the orders that are hardest for a search that discards early: all equal,
 * increasing, decreasing, hardly a value above -inf. */
static void case_best_wide(struct neb_cf *c)
{
    if (!can(c, c->ops->best != NULL)) return;
    static const int most[] = {1, 4, 10, 64, 300, 1500};
    const int kind = neb__cf_below(c, 6), k = most[neb__cf_below(c, 6)];
    const int64_t rows = 1 + neb__cf_below(c, 3), cols = 2000 + neb__cf_below(c, 12000);
    neb__cf_shape(c, "%d of %lld x %lld, kind %d", k, (long long)rows, (long long)cols, kind);
    double *v = neb__cf_doubles(c, rows * cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        const int64_t at = i % cols;
        switch (kind) {
        case 0: v[i] = 1.5; break;
        case 1: v[i] = (double)at / 4096; break;
        case 2: v[i] = (double)-at / 4096; break;
        case 3: v[i] = neb__cf_below(c, 2000) ? -INFINITY : neb__rng_normal(&c->rng); break;
        default: v[i] = 4 * neb__rng_normal(&c->rng);
        }
        if (kind == 3 && at == 0) v[i] = 0; /* one value at least */
    }
    check_best(c, rows, cols, k, v, 1);
}

/* A column's score in the race, in double except for the random number, which is a float by definition. */
static double race_score(const struct neb_sample *a, const double *x, int64_t column, uint32_t sample,
                         int32_t position)
{
    uint32_t word[4];
    neb__philox((uint32_t[4]){(uint32_t)(column / 4), (uint32_t)position, sample, a->step},
                (uint32_t[2]){a->seed, a->op}, word);
    const float d = fminf(((float)word[column % 4] + 0.5f) * 0x1p-32f, 0x1.fffffep-1f);
    return x[column] / (double)a->temperature - log(-log1p(-(double)d));
}

/* Calls the slot; returns the choices, or NULL. */
static int32_t *draw(struct neb_cf *c, struct neb_sample *a, const struct neb_cf_t *x, const uint32_t *sample,
                     const int32_t *position)
{
    struct neb_cf_t id = neb__cf_poison(c, a->rows, NEB_I32);
    int32_t *got = (int32_t *)neb__cf_doubles(c, a->rows);
    a->x = x->p, a->id = id.p, a->type = c->type;
    a->sample = neb__cf_raw(c, sample, (size_t)a->rows * 4);
    a->position = neb__cf_ints(c, position, a->rows);
    if (!neb__cf_ok(c, c->ops->sample(c->dev, a)) ||
        !neb__cf_ok(c, c->ops->download(c->dev, got, id.p, (size_t)a->rows * 4)))
        return NULL;
    bool inside = true;
    for (int64_t r = 0; r < a->rows; r++) inside = inside && got[r] >= 0 && got[r] < a->cols;
    neb__cf_true(c, "every choice is a column", inside);
    return inside ? got : NULL;
}

static void case_sample(struct neb_cf *c)
{
    if (!can(c, c->ops->sample != NULL)) return;
    const int64_t rows = neb__cf_dim(c, 20),
                  cols = neb__cf_below(c, 4) ? neb__cf_dim(c, 700) : 4000 + neb__cf_below(c, 5000);
    const int gaps = cols > 1 && neb__cf_below(c, 2);
    struct neb_sample a = {.rows = rows,
                           .cols = cols,
                           .temperature = 0.5f + (float)neb__cf_below(c, 4) * 0.5f,
                           .seed = (uint32_t)neb__rng_next(&c->rng),
                           .op = (uint32_t)neb__cf_below(c, 1000),
                           .step = (uint32_t)neb__cf_below(c, 1000)};
    neb__cf_shape(c, "%lld x %lld, temperature %g, columns left out %d", (long long)rows, (long long)cols,
                  (double)a.temperature, gaps);
    double *v = neb__cf_doubles(c, rows * cols);
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = gaps && i % cols && neb__cf_below(c, 2) ? -INFINITY : 3 * neb__rng_normal(&c->rng);
    uint32_t *sample = (uint32_t *)neb__cf_doubles(c, rows);
    int32_t *position = (int32_t *)neb__cf_doubles(c, rows);
    for (int64_t r = 0; r < rows; r++)
        sample[r] = (uint32_t)neb__rng_next(&c->rng), position[r] = neb__cf_below(c, 500);
    struct neb_cf_t x = neb__cf_values(c, rows * cols, c->type, v);
    const int32_t *got = draw(c, &a, &x, sample, position);
    for (int64_t r = 0; got && r < rows; r++) {
        double top = -INFINITY;
        for (int64_t i = 0; i < cols; i++)
            top = fmax(top, race_score(&a, x.v + r * cols, i, sample[r], position[r]));
        neb__cf_true(c, "the winner of the race is drawn",
                     race_score(&a, x.v + r * cols, got[r], sample[r], position[r]) > top - 1e-4);
    }
}

/* The same logits in every row: each column must come up as often as softmax says, by the chi-square
 * statistic. */
static void case_sample_share(struct neb_cf *c)
{
    if (!can(c, c->ops->sample != NULL)) return;
    const int64_t rows = 6000, cols = 2 + neb__cf_below(c, 12);
    struct neb_sample a = {
        .rows = rows, .cols = cols, .temperature = 0.8f, .seed = (uint32_t)neb__rng_next(&c->rng), .op = 7};
    neb__cf_shape(c, "%lld rows of %lld columns", (long long)rows, (long long)cols);
    double logit[16], share[16], total = 0, off = 0, count[16] = {0};
    double *v = neb__cf_doubles(c, rows * cols);
    for (int64_t i = 0; i < cols; i++) logit[i] = neb__cf_below(c, 9) * 0.25; /* exact in bf16 */
    for (int64_t i = 0; i < rows * cols; i++) v[i] = logit[i % cols];
    for (int64_t i = 0; i < cols; i++) total += share[i] = exp(logit[i] / (double)a.temperature);
    uint32_t *sample = (uint32_t *)neb__cf_doubles(c, rows);
    int32_t *position = (int32_t *)neb__cf_doubles(c, rows);
    for (int64_t r = 0; r < rows; r++) sample[r] = (uint32_t)(r / 60), position[r] = (int32_t)(r % 60);
    struct neb_cf_t x = neb__cf_values(c, rows * cols, c->type, v);
    const int32_t *got = draw(c, &a, &x, sample, position);
    if (!got) return;
    for (int64_t r = 0; r < rows; r++) count[got[r]]++;
    for (int64_t i = 0; i < cols; i++) {
        const double want = (double)rows * share[i] / total;
        off += (count[i] - want) * (count[i] - want) / want;
    }
    /* A fair race exceeds this once in ten million draws, for any number of columns. */
    const double freedom = (double)(cols - 1);
    neb__cf_true(c, "columns come up as often as they should", off < freedom + 6 * sqrt(2 * freedom) + 20);
}

const struct neb_cf_case neb__cf_pick[] = {
    {"best", case_best, 24},
    {"best_wide", case_best_wide, 10},
    {"sample", case_sample, 24},
    {"sample_share", case_sample_share, 4},
    {0},
};
