/* step_noise.h: draw and noise of one private step, as a function of the step's key and of the sum of its gradients.
 *
 * Whoever has both makes the same bits: one process, each of several ranks for its part, and ranks that repeat the step. Whoever
 * comes to another sum makes other noise, so no two sums are ever blurred by one key stream. */
#ifndef NEB_PRIVACY_STEP_NOISE_H
#define NEB_PRIVACY_STEP_NOISE_H

#include "base/hash.h"
#include "privacy/noise.h"

struct neb_step_key {
    uint8_t b[32]; /* of the system's generator, for one step */
};

enum { NEB_STEP_BLOCK = 1 << 16 }; /* values that have a key stream of their own */

neb_status neb__step_key_new(struct neb_step_key *out);
/* The key that belongs to `salt`, for those who have the secret. */
neb_status neb__step_key_of(const struct neb_step_key *secret, const struct neb_step_key *salt,
                            struct neb_step_key *out);
void neb__step_key_wipe(struct neb_step_key *k);

/* The bits that say which samples take part. Owes neb__secret_bits_close(). */
neb_status neb__step_draw(const struct neb_step_key *k, struct neb_secret_bits *out);

size_t neb__step_blocks(size_t values);
/* Of the values of one block. */
neb_status neb__step_digest(const int64_t *v, size_t n, struct neb_hash *out);
/* From the digests of all blocks of a sum: the root of its noise; of the noisy sum: a mark that tells two results apart, and nothing else. */
neb_status neb__step_root(const struct neb_step_key *k, const struct neb_hash *digest, size_t blocks,
                          struct neb_hash *out);
neb_status neb__step_mark(const struct neb_step_key *k, const struct neb_hash *digest, size_t blocks,
                          struct neb_hash *out);
/* Adds noise to the n values of a block. As neb__noise_add(). */
neb_status neb__step_noise(struct neb_noise *noise, const struct neb_hash *root, size_t block, int64_t *v,
                           size_t n);

#endif
