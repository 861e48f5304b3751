/* masks.h: keys, masks and codes of a sum that nobody can take apart (Bonawitz et al. 2017). docs/privacy.md has the protocol. */
#ifndef NEB_PRIVACY_MASKS_H
#define NEB_PRIVACY_MASKS_H

#include "base/hash.h"
#include "privacy/shares.h"

#include <stdbool.h>

enum {
    NEB_MASK_KEY = 32,
    NEB_SEALED_MORE = 12 + 16, /* bytes that sealing adds */
    NEB_MASK_BLOCK = 256,      /* values that share a scale */
    NEB_MASK_LEVELS = 127,     /* a code is between -127 and 127 */
};

/* A fresh X25519 pair. NEB_ERR_IO, NEB_ERR_INTERNAL */
struct neb_mask_pair {
    uint8_t secret[NEB_MASK_KEY], public[NEB_MASK_KEY];
};
neb_status neb__mask_pair_create(struct neb_mask_pair *out);
neb_status neb__mask_pair_from(const uint8_t secret[NEB_MASK_KEY], struct neb_mask_pair *out);

/* What two sites alone can compute: HKDF-SHA256 of their X25519 secret, salted with the attempt. `purpose` tells uses apart; a and b
 * are the two sites, in an order that both know. NEB_ERR_CORRUPT: not a key of that curve. */
neb_status neb__mask_agree(const uint8_t secret[NEB_MASK_KEY], const uint8_t public[NEB_MASK_KEY],
                           const struct neb_hash *attempt, const char *purpose, uint16_t a, uint16_t b,
                           uint8_t out[NEB_MASK_KEY]);

/* ChaCha20-Poly1305 under a key of the above and a random nonce; n at most 256. out: n + NEB_SEALED_MORE bytes. */
neb_status neb__mask_seal(const uint8_t key[NEB_MASK_KEY], const uint8_t *plain, size_t n, uint8_t *out);
/* n: of the plain text. NEB_ERR_AUTH (quiet): it was not sealed with this key. */
neb_status neb__mask_unseal(const uint8_t key[NEB_MASK_KEY], const uint8_t *sealed, size_t n, uint8_t *out);

/* Bits of a masked code: the least w with 2^w > 254 * sites. 64 sites: 14. */
int neb__mask_bits(int sites);

/* Adds the mask of this seed to values [first, first + n), or takes it off, modulo 2^16. first is a multiple of 32. */
neb_status neb__mask_add(const uint8_t seed[NEB_MASK_KEY], size_t first, bool minus, uint16_t *v, size_t n);

/* w bits a value, least first. */
size_t neb__packed_size(size_t n, int w);
void neb__packed_put(const uint16_t *v, size_t n, int w, uint8_t *out);
void neb__packed_get(const uint8_t *in, size_t n, int w, uint16_t *v);
/* v[i] += the packed values, modulo 2^16. */
void neb__packed_add(const uint8_t *in, size_t n, int w, uint16_t *v);

/* Codes of z * factor: the nearest multiples of the block's scale, at most 127 of them, modulo 2^16. scale: (ceil(n / 256)); 0: all
 * codes of the block are 0. z is finite, 0 < factor <= 1. */
void neb__codes_make(const float *z, const float *scale, float factor, size_t n, uint16_t *v);
/* What codes below 2^(w - 1) in magnitude stand for: code * (scale * factor). */
void neb__codes_values(const uint16_t *v, int w, const float *scale, float factor, size_t n, float *out);
/* The sum of the squares of these values: of integers within a block, so that every machine gets the same bits. */
double neb__codes_square(const uint16_t *v, int w, const float *scale, float factor, size_t n);

#endif
