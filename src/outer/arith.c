/* arith.c: elementwise fp32 with every rounding in its place.
 *
 * The contract allows only + - * / on floats, in the order written. It forbids contraction to fma, fast-math
 * and excess precision. It asks for round to nearest, denormals and little-endian bytes. The build says
 * -ffp-contract=off, and each product goes through a named variable. Vectorising such loops changes nothing,
 * because each element has its own chain of roundings. A library built with fast-math may have switched
 * denormals off for the whole thread, so the functions set the environment on entry. NaN and infinities are
 * not applied: the functions report them, and the caller keeps the old state. */
#include "outer/arith.h"
#include "base/bytes.h"

#include <float.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "the outer arithmetic must not be compiled with fast-math"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "floats must be evaluated as floats");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the state's bytes are little-endian");

#if defined(__x86_64__)
#include <xmmintrin.h>
void neb__arith_enter(uint32_t *saved)
{
    *saved = _mm_getcsr();
    _mm_setcsr(0x1f80); /* all exceptions masked, round to nearest, no FTZ, no DAZ */
}
void neb__arith_leave(uint32_t saved)
{
    _mm_setcsr(saved);
}
#elif defined(__aarch64__)
void neb__arith_enter(uint32_t *saved)
{
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    *saved = (uint32_t)fpcr;
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
}
void neb__arith_leave(uint32_t saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved));
}
#else
#error "tell arith.c how to set the floating-point environment of this processor"
#endif

float neb__arith_share(uint32_t weight, uint64_t sum)
{
    return (float)((double)weight / (double)sum);
}

void neb__arith_add(float *restrict g, const float *restrict z, float w, size_t n, bool first)
{
    if (first)
        for (size_t i = 0; i < n; i++) g[i] = w * z[i];
    else
        for (size_t i = 0; i < n; i++) {
            float p = w * z[i];
            g[i] = g[i] + p;
        }
}

static bool finite_all(const float *x, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        bad |= (u & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

bool neb__arith_nesterov(const float *restrict theta, const float *restrict m, const float *restrict g,
                         float eta, float mu, size_t n, float *restrict next_theta, float *restrict next_m)
{
    for (size_t i = 0; i < n; i++) {
        float a = mu * m[i];
        float m1 = a + g[i];
        float b = mu * m1;
        float c = g[i] + b;
        float d = eta * c;
        next_theta[i] = theta[i] + d;
        next_m[i] = m1;
    }
    return finite_all(next_theta, n) && finite_all(next_m, n);
}

bool neb__arith_average(const float *restrict theta, const float *restrict g, size_t n,
                        float *restrict next_theta, float *restrict next_m)
{
    for (size_t i = 0; i < n; i++) {
        next_theta[i] = theta[i] + g[i];
        next_m[i] = 0.0f;
    }
    return finite_all(next_theta, n);
}

/* These bit patterns change the result when something is wrong: denormals, -0, ties to even, near overflow,
 * 1/3. */
static const uint32_t golden_in[16] = {0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x80000000, 0x00000000,
                                       0x3f800001, 0x33800000, 0x4b800001, 0x4b800003, 0x7e7fffff, 0xfe7fffff,
                                       0x3eaaaaab, 0xbf19999a, 0x3a83126f, 0x41200000};

neb_status neb__arith_golden(struct neb_hash *out)
{
    float in[16], g[16], m[16], theta[16], t2[16], m2[16], third = neb__arith_share(1, 3);
    uint32_t saved;
    memcpy(in, golden_in, sizeof in);
    neb__arith_enter(&saved);
    for (int i = 0; i < 16; i++) {
        theta[i] = in[(i + 5) % 16] * 0.5f;
        m[i] = in[(i + 11) % 16] * 0.25f;
    }
    neb__arith_add(g, in, third, 16, true);
    neb__arith_add(g, theta, neb__arith_share(5, 7), 16, false);
    bool ok = neb__arith_nesterov(theta, m, g, 0.7f, 0.9f, 16, t2, m2);
    uint8_t bytes[4 * 16 * 3 + 1];
    memcpy(bytes, t2, 64);
    memcpy(bytes + 64, m2, 64);
    ok &= neb__arith_average(t2, g, 16, theta, m);
    memcpy(bytes + 128, theta, 64);
    bytes[192] = ok;
    neb__arith_leave(saved);
    return neb__hash(bytes, sizeof bytes, out);
}

neb_status neb__arith_self_test(void)
{
    static const char want[] = "25ef485a355ddf5ca54f4dc5e8efd60a762dc00423f2c81985e1a48399857437";
    struct neb_hash h;
    char hex[2 * NEB_HASH_SIZE + 1];
    NEB_TRY(neb__arith_golden(&h));
    neb__hash_hex(&h, hex);
    if (strcmp(hex, want))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "this machine computes the outer state differently (golden vector %.16s…, expected %.16s…): "
            "it must not join a run; was the program built with fast-math?",
            hex, want);
    return NEB_OK;
}
