/* math.h: exp, log, tanh and erf on vectors, and the activations made of them. They are polynomials of our
 * own, because no vector form of libm is available on every system, and every machine should give the same
 * values.
 *
 * Errors against the exact functions over all floats of the range, in units of the last place: exp 2, tanh 4;
 * erf 2e-7 absolute (the conformance suite holds the activations to that). NaN gives NaN. */
#ifndef NEB_CPU_MATH_H
#define NEB_CPU_MATH_H

#include "device/cpu/vec.h"

/* 2^n · e^r with |r| <= log(2)/2 (Cephes). Saturates at 2.4e38 and 1.2e-38 instead of reaching inf and 0. */
INLINE vf vexp(vf x)
{
    const vf magic = set1(12582912.0f); /* 1.5 · 2^23: adding it rounds to an integer, in the low bits */
    x = vmin(set1(88.37626f), vmax(set1(-87.33654f), x));
    vf t = x * set1(1.44269504f) + magic;
    vf n = t - magic;
    vf r = x - n * set1(0.693359375f);
    r = r - n * set1(-2.12194440e-4f);
    vf p = set1(1.9875691500e-4f);
    p = p * r + set1(1.3981999507e-3f);
    p = p * r + set1(8.3334519073e-3f);
    p = p * r + set1(4.1665795894e-2f);
    p = p * r + set1(1.6666665459e-1f);
    p = p * r + set1(5.0000001201e-1f);
    vf y = p * (r * r) + (r + set1(1.0f));
    return y * (vf)(((vu)t + (127u - 0x4B400000u)) << 23);
}

/* x = 2^n · m with m in [sqrt(1/2), sqrt(2)), and a polynomial for log m (Cephes). x must be a normal number
 * above 0. */
INLINE vf vlog(vf x)
{
    vu u = (vu)x + (0x3f800000u - 0x3f3504f3u);
    vf n = __builtin_convertvector((vi)(u >> 23) - 127, vf);
    vf f = (vf)((u & 0x007fffffu) + 0x3f3504f3u) - set1(1.0f), s = f * f;
    vf p = set1(7.0376836292e-2f);
    p = p * f + set1(-1.1514610310e-1f);
    p = p * f + set1(1.1676998740e-1f);
    p = p * f + set1(-1.2420140846e-1f);
    p = p * f + set1(1.4249322787e-1f);
    p = p * f + set1(-1.6668057665e-1f);
    p = p * f + set1(2.0000714765e-1f);
    p = p * f + set1(-2.4999993993e-1f);
    p = p * f + set1(3.3333331174e-1f);
    vf y = p * f * s + n * set1(-2.12194440e-4f) - set1(0.5f) * s;
    return f + y + n * set1(0.693359375f);
}

/* Rational minimax approximations, odd over even. */
INLINE vf vtanh(vf x)
{
    x = vmin(set1(7.90531110763549805f), vmax(set1(-7.90531110763549805f), x));
    vf s = x * x;
    vf p = set1(-2.76076847742355e-16f);
    p = p * s + set1(2.00018790482477e-13f);
    p = p * s + set1(-8.60467152213735e-11f);
    p = p * s + set1(5.12229709037114e-08f);
    p = p * s + set1(1.48572235717979e-05f);
    p = p * s + set1(6.37261928875436e-04f);
    p = p * s + set1(4.89352455891786e-03f);
    vf q = set1(1.19825839466702e-06f);
    q = q * s + set1(1.18534705686654e-04f);
    q = q * s + set1(2.26843463243900e-03f);
    q = q * s + set1(4.89352518554385e-03f);
    return x * p / q;
}

INLINE vf verf(vf x)
{
    x = vmin(set1(4.0f), vmax(set1(-4.0f), x));
    vf s = x * x;
    vf p = set1(-2.72614225801306e-10f);
    p = p * s + set1(2.77068142495902e-08f);
    p = p * s + set1(-2.10102402082508e-06f);
    p = p * s + set1(-5.69250639462346e-05f);
    p = p * s + set1(-7.34990630326855e-04f);
    p = p * s + set1(-2.95459980854025e-03f);
    p = p * s + set1(-1.60960333262415e-02f);
    vf q = set1(-1.45660718464996e-05f);
    q = q * s + set1(-2.13374055278905e-04f);
    q = q * s + set1(-1.68282697438203e-03f);
    q = q * s + set1(-7.37332916720468e-03f);
    q = q * s + set1(-1.42647390514189e-02f);
    return x * p / q;
}

INLINE vf vsigmoid(vf x)
{
    return set1(1.0f) / (set1(1.0f) + vexp(-x));
}

#define GELU_C  0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_K  0.044715f
#define RSQRT_2 0.7071067811865476f

/* (1 + tanh(u)) / 2 is computed as sigmoid(2 u), which has no cancellation in the tails. */
INLINE vf act_forward(vf x, neb_act act)
{
    switch (act) {
    case NEB_ACT_GELU: return set1(0.5f) * x * (set1(1.0f) + verf(x * set1(RSQRT_2)));
    case NEB_ACT_GELU_TANH: return x * vsigmoid(set1(2 * GELU_C) * (x + set1(GELU_K) * (x * x * x)));
    case NEB_ACT_SILU: return x * vsigmoid(x);
    case NEB_ACT_RELU: return pick(x < 0, (vf){0}, x);
    case NEB_ACT_TANH: return vtanh(x);
    case NEB_ACT_NONE: break;
    }
    return x;
}

/* act'(x) */
INLINE vf act_slope(vf x, neb_act act)
{
    const vf one = set1(1.0f), half = set1(0.5f);
    switch (act) {
    case NEB_ACT_GELU: {
        vf cdf = half * (one + verf(x * set1(RSQRT_2)));
        return cdf + x * (set1(0.3989422804014327f) * vexp(-half * x * x));
    }
    case NEB_ACT_GELU_TANH: {
        vf s = vsigmoid(set1(2 * GELU_C) * (x + set1(GELU_K) * (x * x * x)));
        vf inner = set1(2 * GELU_C) * (one + set1(3 * GELU_K) * (x * x));
        return s + x * s * (one - s) * inner;
    }
    case NEB_ACT_SILU: {
        vf s = vsigmoid(x);
        return s * (one + x * (one - s));
    }
    case NEB_ACT_RELU: return pick(x < 0, (vf){0}, pick(x == 0, (vf){0}, one));
    case NEB_ACT_TANH: {
        vf t = vtanh(x);
        return one - t * t;
    }
    case NEB_ACT_NONE: break;
    }
    return one;
}

#endif
