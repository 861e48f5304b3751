/* philox.h: random bits of dropout and draws, LANES Philox counters at a time (nebula/device.h states the
 * rules).
 *
 * One counter gives the 16-bit lanes of 8 neighbouring columns. `drop_bits` fills a block of DROP_BLOCK
 * columns beginning at a multiple of it; kernels walk a row in such blocks, so no mask is ever stored. */
#ifndef NEB_CPU_PHILOX_H
#define NEB_CPU_PHILOX_H

#include "device/cpu/vec.h"

#define DROP_BLOCK (LANES * 8)

struct neb_drop_key {
    uint32_t key[2];
    uint32_t high, position, sample, step; /* `high` is added to the first counter word: head << 20 */
};

typedef uint64_t vd __attribute__((vector_size(LANES * 8)));

INLINE void mul_wide(uint32_t a, vu b, vu *hi, vu *lo)
{
    vd p = __builtin_convertvector(b, vd) * (uint64_t)a;
    *hi = __builtin_convertvector(p >> 32, vu);
    *lo = b * a;
}

/* The four words of each of the counters first … first + LANES - 1. */
INLINE void philox_words(const struct neb_drop_key *d, uint32_t first, uint32_t words[LANES * 4])
{
    vu c0, c1 = set1u(d->position), c2 = set1u(d->sample), c3 = set1u(d->step);
    uint32_t k0 = d->key[0], k1 = d->key[1];
    for (int i = 0; i < LANES; i++) c0[i] = first + (uint32_t)i;
    for (int round = 0; round < 10; round++) {
        vu h0, l0, h1, l1;
        mul_wide(0xD2511F53u, c0, &h0, &l0);
        mul_wide(0xCD9E8D57u, c2, &h1, &l1);
        c0 = h1 ^ c1 ^ k0;
        c2 = h0 ^ c3 ^ k1;
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < LANES; i++) {
        words[4 * i] = c0[i], words[4 * i + 1] = c1[i];
        words[4 * i + 2] = c2[i], words[4 * i + 3] = c3[i];
    }
}

/* bits[c] for columns first … first + DROP_BLOCK - 1. */
INLINE void drop_bits(const struct neb_drop_key *d, int64_t first, uint16_t bits[DROP_BLOCK])
{
    uint32_t words[LANES * 4];
    philox_words(d, d->high | (uint32_t)(first / 8), words);
    memcpy(bits, words, sizeof words);
}

/* 0 where dropped, `keep` = 65536 / (65536 - threshold) where kept. */
INLINE vf drop_factor(const uint16_t *bits, uint32_t threshold, vf keep)
{
    vi b = __builtin_convertvector(*(const vh_mem *)bits, vi);
    return pick(b >= (vi)set1u(threshold), keep, (vf){0});
}

INLINE struct neb_drop_key drop_row(const struct neb_dropout *d, int64_t row)
{
    return (struct neb_drop_key){
        {d->ctl->seed, d->op}, 0, (uint32_t)d->position[row], d->sample[row], d->ctl->step};
}
INLINE float drop_keep(uint32_t threshold)
{
    return 65536.0f / (float)(65536u - threshold);
}

#endif
