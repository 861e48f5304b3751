/* step_noise.c: keys that follow from a step's key.
 *
 *     draw        SHA-256("nebula-i draw" | key)
 *     root        SHA-256("nebula-i sum" | key | SHA-256 of block 0 | SHA-256 of block 1 | …)
 *     block i     SHA-256("nebula-i noise" | root | i u64)
 *     mark        SHA-256("nebula-i mark" | key | the same of the noisy sum)
 *
 * The names are padded with zeros to 16 bytes, so that what is hashed has a fixed length (given the number of values) and none is a
 * beginning of another. To everybody without the step's key all of them look random and unrelated: the noise does not depend on the data in any way
 * that could be seen. */
#include "privacy/step_noise.h"
#include "base/bytes.h"

#include <openssl/crypto.h>
#include <string.h>

neb_status neb__step_key_new(struct neb_step_key *out)
{
    return neb__secret_random(out->b, sizeof out->b);
}

void neb__step_key_wipe(struct neb_step_key *k)
{
    OPENSSL_cleanse(k, sizeof *k);
}

static neb_status derive(const char *name, const uint8_t secret[32], const void *rest, size_t n,
                         struct neb_hash *out)
{
    char padded[16] = {0};
    struct neb_hasher h;
    memcpy(padded, name, strlen(name));
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = neb__hasher_update(&h, padded, sizeof padded);
    if (status == NEB_OK) status = neb__hasher_update(&h, secret, 32);
    if (status == NEB_OK && n) status = neb__hasher_update(&h, rest, n);
    neb_status ended = neb__hasher_final(&h, status == NEB_OK ? out : NULL);
    return status != NEB_OK ? status : ended;
}

neb_status neb__step_key_of(const struct neb_step_key *secret, const struct neb_step_key *salt,
                            struct neb_step_key *out)
{
    struct neb_hash h;
    NEB_TRY(derive("nebula-i step", secret->b, salt->b, sizeof salt->b, &h));
    memcpy(out->b, h.b, sizeof out->b);
    OPENSSL_cleanse(&h, sizeof h);
    return NEB_OK;
}

neb_status neb__step_draw(const struct neb_step_key *k, struct neb_secret_bits *out)
{
    struct neb_hash h;
    NEB_TRY(derive("nebula-i draw", k->b, NULL, 0, &h));
    neb_status status = neb__secret_bits_under(out, h.b);
    OPENSSL_cleanse(&h, sizeof h);
    return status;
}

size_t neb__step_blocks(size_t values)
{
    return (values + NEB_STEP_BLOCK - 1) / NEB_STEP_BLOCK;
}

neb_status neb__step_digest(const int64_t *v, size_t n, struct neb_hash *out)
{
    return neb__hash(v, n * sizeof *v, out);
}

neb_status neb__step_root(const struct neb_step_key *k, const struct neb_hash *digest, size_t blocks,
                          struct neb_hash *out)
{
    return derive("nebula-i sum", k->b, digest, blocks * sizeof *digest, out);
}

neb_status neb__step_mark(const struct neb_step_key *k, const struct neb_hash *digest, size_t blocks,
                          struct neb_hash *out)
{
    return derive("nebula-i mark", k->b, digest, blocks * sizeof *digest, out);
}

neb_status neb__step_noise(struct neb_noise *noise, const struct neb_hash *root, size_t block, int64_t *v,
                           size_t n)
{
    uint8_t at[8];
    struct neb_hash key;
    neb__put64(at, block);
    NEB_TRY(derive("nebula-i noise", root->b, at, sizeof at, &key));
    neb_status status = neb__noise_add_under(noise, key.b, v, n);
    OPENSSL_cleanse(&key, sizeof key);
    return status;
}
