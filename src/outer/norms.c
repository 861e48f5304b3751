/* norms.c: see norms.h.
 *
 * The usual length of an update is the middle over the sites of each site's own middle length, in its class (a sparse code
 * says less than a dense one) and with the present record included. One site moves only its own middle, so it cannot move
 * the middle over three or more sites beyond the others'. An update may be `clip` times as long as usual. When all become
 * longer at once, the middle of the present record counts, if it names three updates. Fewer than three sites have no
 * middle that a single one could not move; then only the rule's bound holds.
 *
 * What was cut off is not lost: the site subtracts from its live parameters only what entered theta.
 *
 * All of it is + - * / and square roots of doubles in a fixed order, rounded to nearest, so every site gets the same bits. */
#include "outer/norms.h"
#include "outer/arith.h"

#include <math.h>
#include <string.h>

/* The middle of n values, the lower one of two; sorts them. */
static double middle(double *v, int n)
{
    for (int i = 1; i < n; i++) {
        double x = v[i];
        int j = i;
        for (; j && v[j - 1] > x; j--) v[j] = v[j - 1];
        v[j] = x;
    }
    return v[(n - 1) / 2];
}

/* A site's middle length in a class, with the present record; 0: it has none. */
static double middle_of_site(const struct neb_norms *norms, const struct neb_norm_step *step, unsigned cls,
                             unsigned site)
{
    double v[NEB_NORM_BACK + 1];
    int n = 0;
    for (uint32_t i = 0; i < step->n; i++)
        if (step->site[i] == site && step->cls[i] == cls && step->norm[i] > 0) v[n++] = step->norm[i];
    for (int k = 0; k < NEB_NORM_BACK && n <= NEB_NORM_BACK; k++)
        if (norms->last[cls][site][k] > 0) v[n++] = (double)norms->last[cls][site][k];
    return n ? middle(v, n) : 0;
}

/* The middle length of this record's updates of a class; 0: fewer than three. */
static double middle_now(const struct neb_norm_step *step, unsigned cls)
{
    double v[NEB_NORM_SITES];
    int n = 0;
    for (uint32_t i = 0; i < step->n && n < NEB_NORM_SITES; i++)
        if (step->cls[i] == cls && step->norm[i] > 0) v[n++] = step->norm[i];
    return n < 3 ? 0 : middle(v, n);
}

/* The greatest length in a class; infinite: there is no limit. */
static double limit(const struct neb_norms *norms, const struct neb_norm_rule *rule,
                    const struct neb_norm_step *step, unsigned cls)
{
    double v[NEB_NORM_SITES], of;
    int n = 0;
    for (unsigned s = 0; s < NEB_NORM_SITES; s++)
        if ((of = middle_of_site(norms, step, cls, s)) > 0) v[n++] = of;
    double most = rule->bound > 0 ? (double)rule->bound : INFINITY;
    if (n < 3 || !(rule->clip > 0)) return most;
    double before = middle(v, n), now = middle_now(step, cls);
    double usual = (double)rule->clip * (now > before ? now : before);
    return usual < most ? usual : most;
}

void neb__norms_scales(const struct neb_norms *before, const struct neb_norm_rule *rule,
                       const struct neb_norm_step *step, float *scale)
{
    uint32_t saved;
    neb__arith_enter(&saved);
    for (unsigned cls = 0; cls < NEB_NORM_CLASSES; cls++) {
        double most = limit(before, rule, step, cls);
        for (uint32_t i = 0; i < step->n; i++)
            if (step->cls[i] == cls) scale[i] = step->norm[i] > most ? (float)(most / step->norm[i]) : 1.0f;
    }
    neb__arith_leave(saved);
}

void neb__norms_add(struct neb_norms *norms, const struct neb_norm_step *step, const float *scale)
{
    uint32_t saved;
    neb__arith_enter(&saved);
    for (uint32_t i = 0; i < step->n; i++) {
        if (step->site[i] >= NEB_NORM_SITES || step->cls[i] >= NEB_NORM_CLASSES || !(step->norm[i] > 0))
            continue;
        float *last = norms->last[step->cls[i]][step->site[i]];
        double applied = step->norm[i] * (double)scale[i];
        if (!(applied > 0)) continue; /* it did not enter */
        memmove(last + 1, last, (NEB_NORM_BACK - 1) * sizeof *last);
        last[0] = applied < 3e38 ? (float)applied : 3e38f;
    }
    neb__arith_leave(saved);
}

/* sum and the squares of the values from i on, one after the other. */
static double add_squares(const float *z, size_t i, size_t n, double sum)
{
    for (; i < n; i++) {
        double v = (double)z[i], square = v * v;
        sum = sum + square;
    }
    return sum;
}

double neb__norms_square(const float *z, size_t n)
{
    uint32_t saved;
    neb__arith_enter(&saved);
    double sum = add_squares(z, 0, n, 0);
    neb__arith_leave(saved);
    return sum;
}

/* Each addition waits for the one before it, since their order is fixed. Those of two sums do not wait for each other. */
void neb__norms_squares(const float *a, size_t na, const float *b, size_t nb, double sum[2])
{
    const size_t both = na < nb ? na : nb;
    double one = 0, other = 0;
    uint32_t saved;
    neb__arith_enter(&saved);
    for (size_t i = 0; i < both; i++) {
        double v = (double)a[i], w = (double)b[i], v2 = v * v, w2 = w * w;
        one = one + v2;
        other = other + w2;
    }
    sum[0] = add_squares(a, both, na, one);
    sum[1] = add_squares(b, both, nb, other);
    neb__arith_leave(saved);
}

void neb__norms_shorten(float *z, size_t n, float scale)
{
    uint32_t saved;
    if (scale == 1.0f) return;
    neb__arith_enter(&saved);
    for (size_t i = 0; i < n; i++) z[i] = scale * z[i];
    neb__arith_leave(saved);
}
