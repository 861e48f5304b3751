/* rng.h: random numbers that are functions of a key and a counter, so that every device, thread count and packing
 * draws the same ones. Not for cryptography. */
#ifndef NEB_BASE_RNG_H
#define NEB_BASE_RNG_H

#include <stdint.h>

/* Philox4x32-10 (Salmon et al., SC'11): 128 bits from a 128-bit counter and a 64-bit key. */
static inline void neb__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* SplitMix64: a good 64-bit mix, and a small sequential generator. */
static inline uint64_t neb__mix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

struct neb_rng {
    uint64_t state;
};

static inline uint64_t neb__rng_next(struct neb_rng *r)
{
    uint64_t x = neb__mix64(r->state);
    r->state += 0x9E3779B97F4A7C15u;
    return x;
}

/* Uniform in [0, n), n > 0, without modulo bias worth naming (n is far below 2^64). */
static inline uint64_t neb__rng_below(struct neb_rng *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)neb__rng_next(r) * n) >> 64);
}

static inline double neb__rng_uniform(struct neb_rng *r) /* [0, 1) */
{
    return (double)(neb__rng_next(r) >> 11) * 0x1p-53;
}

double neb__rng_normal(struct neb_rng *r); /* mean 0, deviation 1 */

#endif
