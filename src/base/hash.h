/* hash.h: SHA-256, the one hash of the project (OpenSSL underneath). */
#ifndef NEB_BASE_HASH_H
#define NEB_BASE_HASH_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define NEB_HASH_SIZE 32

struct neb_hash {
    uint8_t b[NEB_HASH_SIZE];
};

/* Hashes one range of bytes. NEB_ERR_NOMEM is the only failure. */
neb_status neb__hash(const void *p, size_t n, struct neb_hash *out);

/* Hashes several pieces: init (owes a final), update…, final. `final` releases the state in every case. */
struct neb_hasher {
    void *state;
};
neb_status neb__hasher_init(struct neb_hasher *h);
neb_status neb__hasher_update(struct neb_hasher *h, const void *p, size_t n);
neb_status neb__hasher_final(struct neb_hasher *h, struct neb_hash *out); /* out NULL: only releases */

int neb__hash_equal(const struct neb_hash *a, const struct neb_hash *b);
void neb__hash_hex(const struct neb_hash *h, char out[2 * NEB_HASH_SIZE + 1]);

#endif
