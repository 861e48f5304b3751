/* key.h: an Ed25519 key pair, signatures, and a site's printable identity.
 *
 * An identity is one line that a person can paste into a chat or read out:
 *
 *     frankfurt:ed25519:<64 hex digits of the public key>:<8 hex digits of a checksum>
 *
 * The checksum catches typing errors. It protects against nothing else. */
#ifndef NEB_SEAL_KEY_H
#define NEB_SEAL_KEY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NEB_PUBLIC_SIZE = 32,
    NEB_SIGNATURE_SIZE = 64,
    NEB_NAME_SIZE = 32,      /* a site's name with its terminating 0 */
    NEB_IDENTITY_SIZE = 160, /* an identity with its terminating 0 */
};

struct neb_public {
    uint8_t b[NEB_PUBLIC_SIZE];
};

struct neb_signature {
    uint8_t b[NEB_SIGNATURE_SIZE];
};

struct neb_key; /* holds the private half; released (and wiped) by neb__key_free() */

/* NEB_ERR_NOMEM, NEB_ERR_INTERNAL (no randomness). */
neb_status neb__key_create(struct neb_key **out);
void neb__key_free(struct neb_key *key); /* NULL is fine */

/* The file is PKCS #8 PEM. `save` refuses to overwrite (NEB_ERR_EXISTS) and makes the file 0600 and durable.
 * `load` refuses a file that others may read (NEB_ERR_AUTH) and a file without an Ed25519 key
 * (NEB_ERR_CORRUPT). */
neb_status neb__key_save(const struct neb_key *key, const char *path);
neb_status neb__key_load(const char *path, struct neb_key **out);
/* Like load, from the bytes of a key file in memory. */
neb_status neb__key_parse(const uint8_t *pem, size_t n, struct neb_key **out);

void neb__key_public(const struct neb_key *key, struct neb_public *out);
void *neb__key_evp(const struct neb_key *key); /* the EVP_PKEY, still owned by key */

/* Signs the message behind `purpose` and a 0 byte. So a signature made for one purpose is not valid for
 * another. */
neb_status neb__key_sign(const struct neb_key *key, const char *purpose, const void *p, size_t n,
                         struct neb_signature *out);
/* NEB_ERR_AUTH (not logged) when the signature is not valid. */
neb_status neb__key_verify(const struct neb_public *key, const char *purpose, const void *p, size_t n,
                           const struct neb_signature *signature);

bool neb__public_equal(const struct neb_public *a, const struct neb_public *b);
/* Writes the first eight hex digits, for log lines. */
void neb__public_short(const struct neb_public *key, char out[9]);

/* A valid name has 1 to 31 characters of a-z, 0-9 and -, and begins with a letter or a digit. */
bool neb__name_valid(const char *name, size_t n);

void neb__identity_format(const char *name, const struct neb_public *key, char out[NEB_IDENTITY_SIZE]);
/* The n bytes of text are hostile. NEB_ERR_INVALID: neb_last_error() says what is wrong with them. */
neb_status neb__identity_parse(const char *text, size_t n, char name[NEB_NAME_SIZE], struct neb_public *key);

/* Fills p with random bytes, for identifiers. NEB_ERR_INTERNAL. */
neb_status neb__random_bytes(void *p, size_t n);

#endif
