/* test_masks.c: the parts of a secure sum: shares, keys, masks, packed codes, messages. */
#include "check.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "outer/scales.h"
#include "privacy/masks.h"
#include "privacy/offer.h"

#include <math.h>
#include <openssl/bn.h>
#include <stdlib.h>
#include <string.h>

static void from_hex(const char *hex, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char b[3] = {hex[2 * i], hex[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(b, NULL, 16);
    }
}

/* The modulus is prime: otherwise fewer shares than t could tell something. */
static void the_modulus_is_prime(void **state)
{
    (void)state;
    BIGNUM *p = BN_new();
    BN_CTX *ctx = BN_CTX_new();
    assert_true(BN_set_bit(p, 256) && BN_add_word(p, 297));
    assert_int_equal(1, BN_check_prime(p, ctx, NULL));
    BN_free(p);
    BN_CTX_free(ctx);
}

static void any_t_shares_give_the_secret(void **state)
{
    (void)state;
    uint8_t secret[NEB_SECRET_SIZE], got[NEB_SECRET_SIZE];
    struct neb_share share[10], some[10];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < NEB_SECRET_SIZE; i++) secret[i] = (uint8_t)(round ? rand() : 255);
        for (int i = 0; i < 10; i++) share[i].x = (uint16_t)(1 + 6 * i);
        assert_ok(neb__shares_deal(secret, 7, 10, share));
        for (int i = 0; i < 7; i++) some[i] = share[(i * 3 + round) % 10];
        assert_ok(neb__shares_join(some, 7, got));
        assert_memory_equal(secret, got, sizeof got);
        /* one share less, or another one, gives something else */
        bool wrong = neb__shares_join(some, 6, got) != NEB_OK || memcmp(secret, got, sizeof got);
        assert_true(wrong);
        some[3].y[20] ^= 1;
        wrong = neb__shares_join(some, 7, got) != NEB_OK || memcmp(secret, got, sizeof got);
        assert_true(wrong);
    }
    some[1] = some[0];
    assert_int_equal(NEB_ERR_CORRUPT, neb__shares_join(some, 7, got));
    some[1].x = 0;
    assert_int_equal(NEB_ERR_CORRUPT, neb__shares_join(some, 7, got));
    assert_int_equal(NEB_ERR_INVALID, neb__shares_deal(secret, 4, 3, share));
}

/* The second pair is that of RFC 7748, section 6.1. */
static void keys_are_those_of_the_standard(void **state)
{
    (void)state;
    uint8_t b[32], none[32] = {0}, pb[32], s1[32], s2[32];
    struct neb_mask_pair alice, bob;
    struct neb_hash id = {{7}}, other = {{8}};
    assert_ok(neb__mask_pair_create(&alice));
    from_hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb", b, 32);
    from_hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f", pb, 32);
    assert_ok(neb__mask_pair_from(b, &bob));
    assert_memory_equal(pb, bob.public, 32);
    assert_ok(neb__mask_agree(alice.secret, bob.public, &id, "test", 1, 2, s1));
    assert_ok(neb__mask_agree(bob.secret, alice.public, &id, "test", 1, 2, s2));
    assert_memory_equal(s1, s2, 32);
    assert_ok(neb__mask_agree(bob.secret, alice.public, &other, "test", 1, 2, s2));
    assert_true(memcmp(s1, s2, 32));
    assert_ok(neb__mask_agree(bob.secret, alice.public, &id, "test", 2, 1, s2));
    assert_true(memcmp(s1, s2, 32));
    assert_ok(neb__mask_agree(bob.secret, alice.public, &id, "tess", 1, 2, s2));
    assert_true(memcmp(s1, s2, 32));
    /* a point of small order */
    assert_int_equal(NEB_ERR_CORRUPT, neb__mask_agree(bob.secret, none, &id, "test", 1, 2, s2));
}

static void a_seal_shows_every_change(void **state)
{
    (void)state;
    uint8_t key[32] = {1}, plain[66], sealed[66 + NEB_SEALED_MORE], again[sizeof sealed], got[66];
    for (size_t i = 0; i < sizeof plain; i++) plain[i] = (uint8_t)i;
    assert_ok(neb__mask_seal(key, plain, sizeof plain, sealed));
    assert_ok(neb__mask_seal(key, plain, sizeof plain, again));
    assert_true(memcmp(sealed, again, sizeof sealed)); /* no two with one nonce */
    assert_ok(neb__mask_unseal(key, sealed, sizeof plain, got));
    assert_memory_equal(plain, got, sizeof got);
    for (size_t i = 0; i < sizeof sealed; i++) {
        sealed[i] ^= 4;
        assert_int_equal(NEB_ERR_AUTH, neb__mask_unseal(key, sealed, sizeof plain, got));
        sealed[i] ^= 4;
    }
    key[0] = 2;
    assert_int_equal(NEB_ERR_AUTH, neb__mask_unseal(key, sealed, sizeof plain, got));
}

/* RFC 8439, section 2.3.2 has a nonce and a counter of 1; ours are 0: its appendix A.1, vector 1 (a key of zeros). */
static void a_mask_is_the_standard_key_stream(void **state)
{
    (void)state;
    uint8_t key[32] = {0}, stream[64];
    uint16_t v[96] = {0}, part[32] = {0};
    from_hex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
             "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
             stream, 64);
    assert_ok(neb__mask_add(key, 0, false, v, 96));
    for (int i = 0; i < 32; i++) assert_int_equal(neb__get16(stream + 2 * i), v[i]);
    assert_ok(neb__mask_add(key, 64, true, part, 32)); /* from the middle, and taken off */
    for (int i = 0; i < 32; i++) assert_int_equal(0, (uint16_t)(part[i] + v[64 + i]));
}

static void packed_values_come_back(void **state)
{
    (void)state;
    for (int w = 10; w <= 14; w++)
        for (size_t n = 1; n < 60; n++) {
            uint16_t v[64], got[64] = {0};
            for (size_t i = 0; i < n; i++) v[i] = (uint16_t)rand();
            size_t size = neb__packed_size(n, w);
            uint8_t *exact = neb__malloc(size); /* a sanitizer sees a byte too many */
            assert_int_equal((n * (size_t)w + 7) / 8, size);
            neb__packed_put(v, n, w, exact);
            neb__packed_get(exact, n, w, got);
            for (size_t i = 0; i < n; i++) assert_int_equal(v[i] & ((1 << w) - 1), got[i]);
            neb__packed_add(exact, n, w, got);
            for (size_t i = 0; i < n; i++) assert_int_equal((uint16_t)(2 * (v[i] & ((1 << w) - 1))), got[i]);
            neb__free(exact);
        }
    assert_int_equal(10, neb__mask_bits(3));
    assert_int_equal(11, neb__mask_bits(5));
    assert_int_equal(12, neb__mask_bits(10));
    assert_int_equal(14, neb__mask_bits(64));
}

/* The extremes of n sites' codes, with masks on and off again, are the sum of the codes, bit for bit, when they are unmasked. */
static void masked_sums_are_the_sums(void **state)
{
    (void)state;
    enum { N = 1000, SITES = 5, W = 11 };
    uint16_t sum[N] = {0}, plain[N] = {0}, v[N];
    uint8_t own[SITES][32], pair[SITES][SITES][32], packed[N * 2];
    float z[N], scale[4] = {0.5f, 1e-3f, 0, 7}, a[N], b[N];
    for (int i = 0; i < SITES; i++) {
        for (int k = 0; k < 32; k++) own[i][k] = (uint8_t)rand();
        for (int j = i; j < SITES; j++)
            for (int k = 0; k < 32; k++) pair[i][j][k] = pair[j][i][k] = (uint8_t)rand();
    }
    for (int i = 0; i < SITES; i++) {
        for (int k = 0; k < N; k++) z[k] = k % 3 ? 1000.0f : (float)(rand() % 1000 - 500) * 0.01f;
        if (i == 4)
            for (int k = 0; k < N; k++) z[k] = k % 5 ? -1000.0f : z[k];
        neb__codes_make(z, scale, 1.0f / (float)(1 + i), N, v);
        for (int k = 0; k < N; k++) {
            int q = (int16_t)v[k];
            assert_true(q >= -127 && q <= 127 && (k / 256 != 2 || !q));
            plain[k] = (uint16_t)(plain[k] + v[k]);
        }
        assert_ok(neb__mask_add(own[i], 0, false, v, N));
        for (int j = 0; j < SITES; j++)
            if (j != i) assert_ok(neb__mask_add(pair[i][j], 0, j < i, v, N));
        neb__packed_put(v, N, W, packed);
        neb__packed_add(packed, N, W, sum);
    }
    for (int i = 0; i < SITES; i++) assert_ok(neb__mask_add(own[i], 0, true, sum, N));
    neb__codes_values(sum, W, scale, 0.25f, N, a);
    neb__codes_values(plain, W, scale, 0.25f, N, b);
    assert_memory_equal(b, a, sizeof a);
    for (int k = 0; k < N; k++) {
        const float want = (float)(int16_t)plain[k] * (scale[k / 256] * 0.25f);
        assert_memory_equal(&want, &a[k], sizeof want);
    }
}

/* A single masked code is as good as random: chi square of its top four bits, whatever the codes are. */
static void a_masked_code_tells_nothing(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    uint16_t *v = NEB_NEW_ARRAY(uint16_t, N);
    uint8_t seed[32] = {3, 1, 4, 1, 5};
    int count[16] = {0};
    double chi = 0;
    for (int i = 0; i < N; i++) v[i] = 42;
    assert_ok(neb__mask_add(seed, 0, false, v, N));
    for (int i = 0; i < N; i++) count[(v[i] & 1023) >> 6]++;
    for (int i = 0; i < 16; i++) chi += pow(count[i] - N / 16.0, 2) / (N / 16.0);
    assert_true(chi < 45); /* 15 degrees: 1 in 10,000 is 44.3; the seed is fixed */
    neb__free(v);
}

static void scales_follow_the_momentum(void **state)
{
    (void)state;
    float theta[600], scale[3];
    struct neb_outer *o;
    for (int i = 0; i < 600; i++) theta[i] = i < 256 ? 0.5f : 0.01f;
    assert_ok(neb__outer_create(600, theta, 600, &o));
    neb__outer_scales(o, 0, 0.9f, scale);
    assert_true(scale[0] == 0.25f / 127 && scale[1] == 0.0625f / 127 && scale[2] == scale[1]);
    o->m[300] = -2;
    neb__outer_scales(o, 0, 0.5f, scale);
    assert_true(scale[1] == 4.0f / 127 && scale[0] == 0.125f / 127);
    for (int i = 0; i < 600; i++) o->theta[i] = o->m[i] = 0;
    neb__outer_scales(o, 0, 0.5f, scale);
    assert_true(scale[0] > 0 && scale[0] < 1);
    neb__outer_destroy(o);
}

static void messages_come_back(void **state)
{
    (void)state;
    struct neb_sum_offer *o = NEB_NEW(struct neb_sum_offer), *got = NEB_NEW(struct neb_sum_offer);
    struct neb_reveal r = {.index = 9, .entries = 2, .entry = {{1, {5}}, {4, {6}}}}, back;
    uint8_t signature[NEB_OFFER_SIGNATURE] = {0};
    struct neb_buf b;
    o->keys = (struct neb_sum_keys){.site = 3, .attempt = 7, .c0 = 2, .weight = 5, .version = 11};
    o->entries = 3;
    for (uint16_t i = 0; i < 3; i++) o->entry[i].site = (uint16_t)(2 * i), o->entry[i].sealed[1] = (uint8_t)i;
    neb__buf_init(&b, NEB_OFFER_MAX);
    assert_ok(neb__offer_put(o, &b));
    assert_ok(neb__buf_append(&b, signature, sizeof signature));
    assert_ok(neb__offer_get(b.data, b.len, got));
    assert_memory_equal(o, got, sizeof *o);
    assert_ptr_equal(&got->entry[2], neb__offer_entry(got, 4));
    assert_null(neb__offer_entry(got, 3));
    for (size_t n = 0; n < b.len; n++) assert_int_equal(NEB_ERR_CORRUPT, neb__offer_get(b.data, n, got));
    neb__put16(b.data + NEB_KEYS_BODY + 2 * NEB_HASH_SIZE + 2, 2); /* two entries of one site */
    assert_int_equal(NEB_ERR_CORRUPT, neb__offer_get(b.data, b.len, got));
    neb__buf_clear(&b);
    assert_ok(neb__reveal_put(&r, &b));
    assert_ok(neb__reveal_get(b.data, b.len, &back));
    assert_int_equal(4, back.entry[1].site);
    for (size_t n = 0; n < b.len; n++) assert_int_equal(NEB_ERR_CORRUPT, neb__reveal_get(b.data, n, &back));
    neb__buf_free(&b);
    neb__free(o);
    neb__free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_modulus_is_prime),
        cmocka_unit_test(any_t_shares_give_the_secret),
        cmocka_unit_test(keys_are_those_of_the_standard),
        cmocka_unit_test(a_seal_shows_every_change),
        cmocka_unit_test(a_mask_is_the_standard_key_stream),
        cmocka_unit_test(packed_values_come_back),
        cmocka_unit_test(masked_sums_are_the_sums),
        cmocka_unit_test(a_masked_code_tells_nothing),
        cmocka_unit_test(scales_follow_the_momentum),
        cmocka_unit_test(messages_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
