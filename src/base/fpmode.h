/* fpmode.h: the floating-point mode of the arithmetic contract.
 *
 * Values computed from committed bytes must have the same bits everywhere: round to nearest even, denormals kept.
 * A library built with fast-math may have switched this thread to flush-to-zero, so code under the contract enters
 * the strict mode and leaves it with what it found:
 *
 *     struct neb_fpmode old = neb__fp_strict();
 *     …
 *     neb__fp_restore(old); */
#ifndef NEB_BASE_FPMODE_H
#define NEB_BASE_FPMODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct neb_fpmode {
    uint64_t bits;
};

static inline struct neb_fpmode neb__fp_strict(void)
{
    struct neb_fpmode old = {0};
#if defined(__x86_64__)
    old.bits = _mm_getcsr();
    /* Clears DAZ (bit 6), the rounding mode (13, 14) and FTZ (15). */
    _mm_setcsr((unsigned)old.bits & ~0xE040u);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(old.bits));
    /* Clears FIZ, AH and NEP (0, 1, 2), FZ16 (19), the rounding mode (22, 23) and FZ (24). */
    __asm__ volatile("msr fpcr, %0" : : "r"(old.bits & ~(uint64_t)0x01C80007));
#endif
    return old;
}

static inline void neb__fp_restore(struct neb_fpmode old)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned)old.bits);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(old.bits));
#else
    (void)old;
#endif
}

#endif
