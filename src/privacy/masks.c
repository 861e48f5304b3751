/* masks.c: keys, masks and codes of a sum that nobody can take apart.
 *
 * Site i sends its codes plus a mask of its own plus, for each other site j, a mask that both can compute: i adds it and j takes it off if
 * i < j. In the sum of all the pairs cancel, and what the members reveal of the rest is one number a site. A mask is a ChaCha20 key
 * stream, two bytes a value, modulo 2^w: under a seed that is used once it is as good as uniform, and so is a masked code.
 *
 * Everything is X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 of OpenSSL. A key stream can be entered at any cell, since the block
 * counter is part of its start value: 32 values fill a block of 64 bytes. */
#include "privacy/masks.h"
#include "privacy/noise.h"
#include "base/bytes.h"

#include <math.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <string.h>

/* ---- keys ---------------------------------------------------------------------------------------------- */

neb_status neb__mask_pair_from(const uint8_t secret[NEB_MASK_KEY], struct neb_mask_pair *out)
{
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, NEB_MASK_KEY);
    size_t n = NEB_MASK_KEY;
    bool ok = key && EVP_PKEY_get_raw_public_key(key, out->public, &n) == 1 && n == NEB_MASK_KEY;
    EVP_PKEY_free(key);
    memcpy(out->secret, secret, NEB_MASK_KEY);
    return ok ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "this OpenSSL makes no X25519 keys");
}

neb_status neb__mask_pair_create(struct neb_mask_pair *out)
{
    uint8_t secret[NEB_MASK_KEY];
    NEB_TRY(neb__secret_random(secret, sizeof secret));
    neb_status status = neb__mask_pair_from(secret, out);
    OPENSSL_cleanse(secret, sizeof secret);
    return status;
}

/* Points of small order give a secret of zeros, which OpenSSL refuses. */
static bool x25519(const uint8_t secret[NEB_MASK_KEY], const uint8_t public[NEB_MASK_KEY],
                   uint8_t out[NEB_MASK_KEY])
{
    EVP_PKEY *own = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, NEB_MASK_KEY);
    EVP_PKEY *other = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, public, NEB_MASK_KEY);
    EVP_PKEY_CTX *ctx = own ? EVP_PKEY_CTX_new(own, NULL) : NULL;
    size_t n = NEB_MASK_KEY;
    bool ok = ctx && other && EVP_PKEY_derive_init(ctx) == 1 && EVP_PKEY_derive_set_peer(ctx, other) == 1 &&
              EVP_PKEY_derive(ctx, out, &n) == 1 && n == NEB_MASK_KEY;
    EVP_PKEY_CTX_free(ctx);
    EVP_PKEY_free(own);
    EVP_PKEY_free(other);
    return ok;
}

static bool hkdf(const uint8_t secret[NEB_MASK_KEY], const struct neb_hash *salt, const uint8_t *info,
                 size_t n, uint8_t out[NEB_MASK_KEY])
{
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char[]){"SHA256"}, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret, NEB_MASK_KEY),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)salt->b, NEB_HASH_SIZE),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)info, n), OSSL_PARAM_construct_end()};
    bool ok = ctx && EVP_KDF_derive(ctx, out, NEB_MASK_KEY, params) == 1;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    return ok;
}

neb_status neb__mask_agree(const uint8_t secret[NEB_MASK_KEY], const uint8_t public[NEB_MASK_KEY],
                           const struct neb_hash *attempt, const char *purpose, uint16_t a, uint16_t b,
                           uint8_t out[NEB_MASK_KEY])
{
    uint8_t shared[NEB_MASK_KEY], info[64];
    size_t n = strlen(purpose);
    if (n + 4 > sizeof info) return neb__fail(NEB_ERR_INVALID, "a purpose that is too long");
    memcpy(info, purpose, n);
    neb__put16(info + n, a);
    neb__put16(info + n + 2, b);
    if (!x25519(secret, public, shared)) return neb__quiet(NEB_ERR_CORRUPT, "not a key that gives a secret");
    bool ok = hkdf(shared, attempt, info, n + 4, out);
    OPENSSL_cleanse(shared, sizeof shared);
    return ok ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "this OpenSSL has no HKDF");
}

/* ---- sealing ------------------------------------------------------------------------------------------- */

neb_status neb__mask_seal(const uint8_t key[NEB_MASK_KEY], const uint8_t *plain, size_t n, uint8_t *out)
{
    int got = 0, end = 0;
    if (n > 256) return neb__fail(NEB_ERR_INVALID, "%zu bytes are too many to seal", n);
    NEB_TRY(neb__secret_random(out, 12));
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    bool ok = c && EVP_EncryptInit_ex(c, EVP_chacha20_poly1305(), NULL, key, out) == 1 &&
              EVP_EncryptUpdate(c, out + 12, &got, plain, (int)n) == 1 &&
              EVP_EncryptFinal_ex(c, out + 12 + got, &end) == 1 &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, 16, out + 12 + n) == 1;
    EVP_CIPHER_CTX_free(c);
    return ok ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "this OpenSSL does not seal");
}

neb_status neb__mask_unseal(const uint8_t key[NEB_MASK_KEY], const uint8_t *sealed, size_t n, uint8_t *out)
{
    int got = 0, end = 0;
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    bool ok = c && EVP_DecryptInit_ex(c, EVP_chacha20_poly1305(), NULL, key, sealed) == 1 &&
              EVP_DecryptUpdate(c, out, &got, sealed + 12, (int)n) == 1 &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, 16, (void *)(sealed + 12 + n)) == 1 &&
              EVP_DecryptFinal_ex(c, out + got, &end) == 1;
    EVP_CIPHER_CTX_free(c);
    return ok ? NEB_OK : neb__quiet(NEB_ERR_AUTH, "a share that was not sealed for this site");
}

/* ---- masks --------------------------------------------------------------------------------------------- */

/* The loops below are compiled for AVX2, too, and give the same bits. A sanitizer would instrument the function that chooses,
 * which the loader calls before the sanitizer is ready. */
#ifdef __has_feature
#define INSTRUMENTED (__has_feature(thread_sanitizer) || __has_feature(address_sanitizer))
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define INSTRUMENTED 1
#else
#define INSTRUMENTED 0
#endif
#if defined(__x86_64__) && defined(__gnu_linux__) && !INSTRUMENTED
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

int neb__mask_bits(int sites)
{
    int w = 8;
    while ((1 << w) <= 2 * NEB_MASK_LEVELS * sites) w++;
    return w;
}

/* The key stream's pairs of bytes are numbers, least first. */
static inline uint16_t number(uint16_t pair)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint16_t)(pair << 8 | pair >> 8);
#else
    return pair;
#endif
}

WIDE static void add_stream(uint16_t *restrict v, const uint16_t *restrict stream, size_t n, bool minus)
{
    if (minus)
        for (size_t i = 0; i < n; i++) v[i] = (uint16_t)(v[i] - number(stream[i]));
    else
        for (size_t i = 0; i < n; i++) v[i] = (uint16_t)(v[i] + number(stream[i]));
}

neb_status neb__mask_add(const uint8_t seed[NEB_MASK_KEY], size_t first, bool minus, uint16_t *v, size_t n)
{
    enum { CHUNK = 4096 }; /* values */
    static const uint8_t zeros[2 * CHUNK];
    uint16_t stream[CHUNK];
    uint8_t iv[16] = {0};
    neb__put32(iv, (uint32_t)(first / 32));
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    bool ok = c && EVP_EncryptInit_ex(c, EVP_chacha20(), NULL, seed, iv) == 1;
    for (size_t at = 0; ok && at < n; at += CHUNK) {
        size_t k = n - at < CHUNK ? n - at : CHUNK;
        int got = 0;
        ok = EVP_EncryptUpdate(c, (uint8_t *)stream, &got, zeros, (int)(2 * k)) == 1;
        add_stream(v + at, stream, k, minus);
    }
    EVP_CIPHER_CTX_free(c);
    OPENSSL_cleanse(stream, sizeof stream);
    return ok ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "the cipher gives no key stream: nothing is sent");
}

/* ---- packing: eight values fill w bytes ---------------------------------------------------------------- */

size_t neb__packed_size(size_t n, int w)
{
    return (n * (size_t)w + 7) / 8;
}

/* Four values are at most 56 bits. */
static inline uint64_t four(const uint16_t *v, int w)
{
    const uint64_t mask = (1u << w) - 1;
    return (v[0] & mask) | (v[1] & mask) << w | (v[2] & mask) << 2 * w | (v[3] & mask) << 3 * w;
}

static inline void put_eight(const uint16_t *v, int w, uint8_t out[16])
{
    uint64_t low = four(v, w), high = four(v + 4, w);
    neb__put64(out, low | high << 4 * w);
    neb__put64(out + 8, high >> (64 - 4 * w));
}

static inline void get_eight(const uint8_t in[16], int w, uint16_t *v)
{
    const uint64_t mask = (1u << w) - 1, first = neb__get64(in);
    const uint64_t high = first >> 4 * w | neb__get64(in + 8) << (64 - 4 * w);
    for (int i = 0; i < 4; i++) {
        v[i] = (uint16_t)(first >> i * w & mask);
        v[4 + i] = (uint16_t)(high >> i * w & mask);
    }
}

/* 16 bytes are written or read where w count: not at the end. */
static inline void put_all(const uint16_t *v, size_t n, int w, uint8_t *out)
{
    size_t i = 0, step = (size_t)w;
    for (; i + 16 <= n; i += 8, out += step) put_eight(v + i, w, out);
    for (; i < n; i += 8, out += step) {
        uint16_t last[8] = {0};
        uint8_t b[16];
        size_t k = n - i < 8 ? n - i : 8;
        memcpy(last, v + i, k * sizeof *last);
        put_eight(last, w, b);
        memcpy(out, b, neb__packed_size(k, w));
    }
}

static inline void get_all(const uint8_t *in, size_t n, int w, bool add, uint16_t *v)
{
    size_t i = 0, step = (size_t)w;
    uint16_t eight[8];
    for (; i + 16 <= n; i += 8, in += step) {
        get_eight(in, w, eight);
        for (int j = 0; j < 8; j++) v[i + (size_t)j] = (uint16_t)(eight[j] + (add ? v[i + (size_t)j] : 0));
    }
    for (; i < n; i += 8, in += step) {
        uint8_t b[16] = {0};
        size_t k = n - i < 8 ? n - i : 8;
        memcpy(b, in, neb__packed_size(k, w));
        get_eight(b, w, eight);
        for (size_t j = 0; j < k; j++) v[i + j] = (uint16_t)(eight[j] + (add ? v[i + j] : 0));
    }
}

/* A width that the compiler knows makes shifts constant. */
void neb__packed_put(const uint16_t *v, size_t n, int w, uint8_t *out)
{
    switch (w) {
    case 10: put_all(v, n, 10, out); break;
    case 11: put_all(v, n, 11, out); break;
    case 12: put_all(v, n, 12, out); break;
    case 13: put_all(v, n, 13, out); break;
    default: put_all(v, n, 14, out); break;
    }
}

static void get_any(const uint8_t *in, size_t n, int w, bool add, uint16_t *v)
{
    switch (w) {
    case 10: get_all(in, n, 10, add, v); break;
    case 11: get_all(in, n, 11, add, v); break;
    case 12: get_all(in, n, 12, add, v); break;
    case 13: get_all(in, n, 13, add, v); break;
    default: get_all(in, n, 14, add, v); break;
    }
}

void neb__packed_get(const uint8_t *in, size_t n, int w, uint16_t *v)
{
    get_any(in, n, w, false, v);
}

void neb__packed_add(const uint8_t *in, size_t n, int w, uint16_t *v)
{
    get_any(in, n, w, true, v);
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/* Magnitudes are ordered as their bits are. Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits of a small number. */
WIDE static void make_block(const float *restrict z, float per, size_t n, uint16_t *restrict v)
{
    const float most = NEB_MASK_LEVELS, magic = 12582912.0f;
    int32_t limit;
    memcpy(&limit, &most, sizeof limit);
    for (size_t i = 0; i < n; i++) {
        float q = z[i] * per;
        int32_t bits, size;
        memcpy(&bits, &q, sizeof bits);
        size = bits & 0x7fffffff;
        size = size < limit ? size : limit;
        bits = (int32_t)(((uint32_t)bits & 0x80000000u) | (uint32_t)size);
        memcpy(&q, &bits, sizeof q);
        q += magic;
        memcpy(&bits, &q, sizeof bits);
        v[i] = (uint16_t)bits;
    }
}

void neb__codes_make(const float *z, const float *scale, float factor, size_t n, uint16_t *v)
{
    for (size_t at = 0; at < n; at += NEB_MASK_BLOCK) {
        size_t k = n - at < NEB_MASK_BLOCK ? n - at : NEB_MASK_BLOCK;
        float s = scale[at / NEB_MASK_BLOCK];
        make_block(z + at, s > 0 ? factor / s : 0, k, v + at);
    }
}

/* The sum in w bits, sign and all. */
static inline int signed_code(uint16_t v, int up)
{
    return (int16_t)(uint16_t)(v << up) >> up;
}

WIDE static void block_values(const uint16_t *restrict v, int up, float scale, size_t n, float *restrict out)
{
    for (size_t i = 0; i < n; i++) out[i] = (float)signed_code(v[i], up) * scale;
}

void neb__codes_values(const uint16_t *v, int w, const float *scale, float factor, size_t n, float *out)
{
    for (size_t at = 0; at < n; at += NEB_MASK_BLOCK) {
        size_t k = n - at < NEB_MASK_BLOCK ? n - at : NEB_MASK_BLOCK;
        block_values(v + at, 16 - w, scale[at / NEB_MASK_BLOCK] * factor, k, out + at);
    }
}

/* At most 256 squares of 13 bits each: 34 bits. */
WIDE static uint64_t block_square(const uint16_t *v, int up, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        int q = signed_code(v[i], up);
        sum += (uint32_t)(q * q);
    }
    return sum;
}

double neb__codes_square(const uint16_t *v, int w, const float *scale, float factor, size_t n)
{
    double sum = 0;
    for (size_t at = 0; at < n; at += NEB_MASK_BLOCK) {
        size_t k = n - at < NEB_MASK_BLOCK ? n - at : NEB_MASK_BLOCK;
        const double s = (double)(scale[at / NEB_MASK_BLOCK] * factor), square = s * s;
        sum += square * (double)block_square(v + at, 16 - w, k);
    }
    return sum;
}
