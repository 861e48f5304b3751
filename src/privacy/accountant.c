/* accountant.c: Rényi differential privacy of the Gaussian mechanism, with and without Poisson sampling.
 *
 * Without sampling the divergence of order a is a / (2 z^2), z being the noise as a multiple of the clip. The discrete
 * Gaussian on integers keeps to the same bound (Canonne, Kamath, Steinke 2020, theorem 4). With Poisson sampling at rate q it is
 * log(A) / (a - 1), A being the a-th moment of the ratio of the mixture (1 - q) N(0, z^2) + q N(1, z^2) to N(0, z^2) (Mironov,
 * Talwar, Zhang 2019). For a whole order A is a sum of binomials; for others two infinite sums, split where the two parts
 * of the mixture are equal. All sums are of logarithms, since their terms leave the range of a double. For discrete noise the
 * moments are those of the continuous one up to a factor that vanishes like exp(-2 pi^2 s^2) at a deviation of s units; here s is
 * at least 2^20 / 100.
 *
 * An account becomes (epsilon, delta) by the conversion of Canonne, Kamath, Steinke (2020, proposition 12), which is tighter
 * than the usual one: epsilon = R(a) + log((a - 1) / a) - (log(delta) + log(a)) / (a - 1), the least over all orders. */
#include "privacy/accountant.h"

#include <math.h>
#include <stdbool.h>

/* 1.1, 1.2 … 10.9, 11, 12 … 64, then about six an octave. */
double neb__rdp_order(int i)
{
    static const double far[] = {72,  80,  96,  112, 128, 160, 192, 224, 256,
                                 320, 384, 448, 512, 640, 768, 896, 1024};
    if (i < 99) return 1 + (double)(i + 1) / 10;
    if (i < 153) return i - 99 + 11;
    return far[i - 153];
}

static double log_add(double a, double b)
{
    double high = fmax(a, b), low = fmin(a, b);
    return low == -INFINITY ? high : high + log1p(exp(low - high));
}

/* log(exp(a) - exp(b)); a value that rounding has made negative counts as 0. */
static double log_sub(double a, double b)
{
    if (b == -INFINITY) return a;
    return a > b ? a + log1p(-exp(b - a)) : -INFINITY;
}

static double log_erfc(double x)
{
    if (x < 20) return log(erfc(x));
    double y = 1 / (x * x); /* the first terms of its series at infinity */
    return -x * x - log(x) - 0.57236494292470009 - y / 2 + 0.625 * y * y - 37.0 / 24 * y * y * y;
}

static double log_binomial(double n, double k)
{
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1);
}

static double moment_whole(double q, double z, int order)
{
    double sum = -INFINITY;
    for (int k = 0; k <= order; k++)
        sum = log_add(sum, log_binomial(order, k) + k * log(q) + (order - k) * log1p(-q) +
                               ((double)k * k - k) / (2 * z * z));
    return sum;
}

/* Terms alternate in sign once i exceeds the order. They fall quickly there. */
static double moment_between(double q, double z, double order)
{
    const double cut = z * z * log(1 / q - 1) + 0.5, root = M_SQRT2 * z, half = log(0.5);
    double a = -INFINITY, b = -INFINITY, coefficient = 0; /* log |binomial(order, i)| */
    bool positive = true;
    for (int i = 0; i < 100000; i++) {
        const double j = order - i;
        double left = coefficient + i * log(q) + j * log1p(-q) + ((double)i * i - i) / (2 * z * z) + half +
                      log_erfc((i - cut) / root);
        double right = coefficient + j * log(q) + i * log1p(-q) + (j * j - j) / (2 * z * z) + half +
                       log_erfc((cut - j) / root);
        /* The first sum has the terms q^i (1 - q)^j above the cut taken off, the second the others. */
        a = positive ? log_add(a, left) : log_sub(a, left);
        b = positive ? log_add(b, right) : log_sub(b, right);
        if (i > order && fmax(left, right) < log_add(a, b) - 40) break;
        coefficient += log(fabs(order - i)) - log(i + 1.0);
        if (order < i) positive = !positive;
    }
    return log_add(a, b);
}

static double divergence(const struct neb_privacy_step *s, double order)
{
    if (s->rate >= 1) return order / (2 * s->noise * s->noise);
    bool whole = order == floor(order);
    double moment =
        whole ? moment_whole(s->rate, s->noise, (int)order) : moment_between(s->rate, s->noise, order);
    return fmax(0, moment / (order - 1));
}

neb_status neb__rdp_of(const struct neb_privacy_step *step, struct neb_rdp *out)
{
    if (!(step->noise >= 0.01 && step->noise <= 1e9))
        return neb__fail(NEB_ERR_RANGE, "the noise is %g times the clip; it must be between 0.01 and 1e9",
                         step->noise);
    if (!(step->rate > 0 && step->rate <= 1))
        return neb__fail(NEB_ERR_RANGE, "the sample rate is %g; it must be above 0 and at most 1",
                         step->rate);
    for (int i = 0; i < NEB_RDP_ORDERS; i++) out->at[i] = divergence(step, neb__rdp_order(i));
    return NEB_OK;
}

void neb__rdp_add(struct neb_rdp *a, const struct neb_rdp *b, double count)
{
    for (int i = 0; i < NEB_RDP_ORDERS; i++) a->at[i] += count * b->at[i];
}

double neb__rdp_epsilon(const struct neb_rdp *a, double delta)
{
    double best = INFINITY;
    bool any = false;
    for (int i = 0; i < NEB_RDP_ORDERS; i++) {
        const double o = neb__rdp_order(i);
        any |= a->at[i] > 0;
        double e = a->at[i] + log1p(-1 / o) - (log(delta) + log(o)) / (o - 1);
        if (e < best) best = e; /* a divergence that is not a number bounds nothing */
    }
    return any ? fmax(0, best) : 0;
}

static neb_status check(double count, double delta)
{
    if (!(count >= 0 && count <= 1e15))
        return neb__fail(NEB_ERR_RANGE, "%g rounds: the number must be between 0 and 1e15", count);
    if (!(delta > 0 && delta < 1))
        return neb__fail(NEB_ERR_RANGE, "delta is %g; it must be above 0 and below 1", delta);
    return NEB_OK;
}

neb_status neb__privacy_epsilon(const struct neb_privacy_step *step, double count, double delta, double *out)
{
    struct neb_rdp one, sum = {{0}};
    NEB_TRY(check(count, delta));
    NEB_TRY(neb__rdp_of(step, &one));
    neb__rdp_add(&sum, &one, count);
    *out = neb__rdp_epsilon(&sum, delta);
    return NEB_OK;
}

neb_status neb__privacy_noise(double epsilon, double rate, double count, double delta, double *out)
{
    double low = 0.01, high = 0.5, cost;
    if (!(epsilon > 0 && epsilon <= 1e6))
        return neb__fail(NEB_ERR_RANGE, "epsilon is %g; it must be above 0 and at most 1e6", epsilon);
    for (;; low = high, high *= 2) {
        struct neb_privacy_step step = {high, rate};
        if (high > 1e6)
            return neb__fail(NEB_ERR_RANGE, "no noise below 1e6 times the clip gives epsilon %g", epsilon);
        NEB_TRY(neb__privacy_epsilon(&step, count, delta, &cost));
        if (cost <= epsilon) break;
    }
    while (high / low > 1 + 1e-7) {
        struct neb_privacy_step step = {(low + high) / 2, rate};
        NEB_TRY(neb__privacy_epsilon(&step, count, delta, &cost));
        if (cost <= epsilon)
            high = step.noise;
        else
            low = step.noise;
    }
    *out = high;
    return NEB_OK;
}
