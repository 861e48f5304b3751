/* hash.c: SHA-256 through OpenSSL's EVP interface. */
#include "base/hash.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

/* Looking the algorithm up takes longer than hashing a short message: once a process is enough. */
static const EVP_MD *sha256_md;
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;

static void sha256_find(void)
{
    sha256_md = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!sha256_md) sha256_md = EVP_sha256();
}

static const EVP_MD *sha256(void)
{
    pthread_once(&sha256_once, sha256_find);
    return sha256_md;
}

neb_status neb__hasher_init(struct neb_hasher *h)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!ctx || EVP_DigestInit_ex(ctx, sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a SHA-256 state");
    }
    h->state = ctx;
    return NEB_OK;
}

neb_status neb__hasher_update(struct neb_hasher *h, const void *p, size_t n)
{
    if (EVP_DigestUpdate(h->state, p, n) != 1) return neb__fail(NEB_ERR_INTERNAL, "SHA-256 update failed");
    return NEB_OK;
}

neb_status neb__hasher_final(struct neb_hasher *h, struct neb_hash *out)
{
    int ok = !out || EVP_DigestFinal_ex(h->state, out->b, NULL) == 1;
    EVP_MD_CTX_free(h->state);
    h->state = NULL;
    return ok ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "SHA-256 final failed");
}

neb_status neb__hash(const void *p, size_t n, struct neb_hash *out)
{
    if (EVP_Digest(p, n, out->b, NULL, sha256(), NULL) != 1)
        return neb__fail(NEB_ERR_NOMEM, "SHA-256 of %zu bytes failed", n);
    return NEB_OK;
}

int neb__hash_equal(const struct neb_hash *a, const struct neb_hash *b)
{
    return memcmp(a->b, b->b, NEB_HASH_SIZE) == 0;
}

void neb__hash_hex(const struct neb_hash *h, char out[2 * NEB_HASH_SIZE + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < NEB_HASH_SIZE; i++) {
        out[2 * i] = digits[h->b[i] >> 4];
        out[2 * i + 1] = digits[h->b[i] & 15];
    }
    out[2 * NEB_HASH_SIZE] = 0;
}
