/* cpace.c: CPace on libsodium's ristretto255 and SHA-512.
 *
 *     g    = map(SHA-512(lv_cat("CPaceRistretto255", secret, zeros, CI, sid)))    zeros fill SHA-512's first block
 *     Y    = y g                                                                  y: a random scalar
 *     K    = y Y'                                                                 Y': the other's
 *     ISK  = SHA-512(lv_cat("CPaceRistretto255_ISK", sid, K) || lv_cat(Ya, ADa) || lv_cat(Yb, ADb))
 *     tag  = HMAC-SHA-512(SHA-512("CPaceMac" || sid || ISK), lv_cat(Y, AD))       of the own message
 *
 * lv_cat puts its length (LEB128) before each string. A is the initiator. The multiplication refuses what is not an
 * element, and an element that leads to the neutral one, as the draft demands. tests/data/cpace.txt has its test vectors. */
#include "seal/cpace.h"

#include <sodium.h>
#include <string.h>

static const char dsi[] = "CPaceRistretto255", dsi_isk[] = "CPaceRistretto255_ISK";
enum { BLOCK = 128, LONG = 128 }; /* of SHA-512; from this length on LEB128 needs two bytes */

static struct neb_bytes text(const char *s)
{
    return (struct neb_bytes){s, strlen(s)};
}

static size_t length_size(size_t n)
{
    return n < LONG ? 1 : 2;
}

static void add(crypto_hash_sha512_state *h, struct neb_bytes b)
{
    uint8_t length[2] = {(uint8_t)(b.n & 127), (uint8_t)(b.n >> 7)};
    if (b.n >= LONG) length[0] |= 128;
    crypto_hash_sha512_update(h, length, length_size(b.n));
    if (b.n) crypto_hash_sha512_update(h, b.p, b.n);
}

static void generator(struct neb_bytes secret, struct neb_bytes ci, struct neb_bytes sid,
                      uint8_t out[NEB_CPACE_SHARE])
{
    static const uint8_t zeros[BLOCK];
    uint8_t hash[crypto_hash_sha512_BYTES];
    crypto_hash_sha512_state h;
    size_t used = length_size(secret.n) + secret.n + length_size(sizeof dsi - 1) + sizeof dsi - 1 + 1;
    crypto_hash_sha512_init(&h);
    add(&h, text(dsi));
    add(&h, secret);
    add(&h, (struct neb_bytes){zeros, used < BLOCK ? BLOCK - used : 0});
    add(&h, ci);
    add(&h, sid);
    crypto_hash_sha512_final(&h, hash);
    crypto_core_ristretto255_from_hash(out, hash);
    sodium_memzero(hash, sizeof hash);
    sodium_memzero(&h, sizeof h);
}

static neb_status begin(struct neb_cpace *c, bool initiator, struct neb_bytes secret, struct neb_bytes ci,
                        struct neb_bytes sid, struct neb_bytes ad, const uint8_t *scalar)
{
    uint8_t g[NEB_CPACE_SHARE];
    memset(c, 0, sizeof *c);
    if (sodium_init() < 0) return neb__fail(NEB_ERR_INTERNAL, "libsodium cannot be used on this machine");
    if (secret.n > NEB_CPACE_INPUT_MAX || ci.n > NEB_CPACE_INPUT_MAX || sid.n > NEB_CPACE_INPUT_MAX ||
        ad.n > NEB_CPACE_INPUT_MAX)
        return neb__fail(NEB_ERR_INVALID, "an input of the exchange is too long");
    c->initiator = initiator;
    memcpy(c->sid, sid.p, c->sid_n = sid.n);
    memcpy(c->ad, ad.p, c->ad_n = ad.n);
    if (scalar)
        memcpy(c->scalar, scalar, sizeof c->scalar);
    else
        crypto_core_ristretto255_scalar_random(c->scalar);
    generator(secret, ci, sid, g);
    int bad = crypto_scalarmult_ristretto255(c->share, c->scalar, g);
    sodium_memzero(g, sizeof g);
    return bad ? neb__fail(NEB_ERR_INTERNAL, "the exchange has no generator") : NEB_OK;
}

neb_status neb__cpace_begin(struct neb_cpace *c, bool initiator, struct neb_bytes secret, struct neb_bytes ci,
                            struct neb_bytes sid, struct neb_bytes ad)
{
    return begin(c, initiator, secret, ci, sid, ad, NULL);
}

neb_status neb__cpace_begin_with(struct neb_cpace *c, bool initiator, struct neb_bytes secret,
                                 struct neb_bytes ci, struct neb_bytes sid, struct neb_bytes ad,
                                 const uint8_t scalar[32])
{
    return begin(c, initiator, secret, ci, sid, ad, scalar);
}

static struct neb_bytes share_of(const struct neb_cpace *c, bool own)
{
    return (struct neb_bytes){own ? c->share : c->their_share, NEB_CPACE_SHARE};
}

static struct neb_bytes ad_of(const struct neb_cpace *c, bool own)
{
    return own ? (struct neb_bytes){c->ad, c->ad_n} : (struct neb_bytes){c->their_ad, c->their_ad_n};
}

neb_status neb__cpace_finish(struct neb_cpace *c, const uint8_t their_share[NEB_CPACE_SHARE],
                             struct neb_bytes their_ad)
{
    uint8_t k[NEB_CPACE_SHARE];
    crypto_hash_sha512_state h;
    if (their_ad.n > NEB_CPACE_INPUT_MAX) return neb__quiet(NEB_ERR_AUTH, "the other's message is too long");
    memcpy(c->their_share, their_share, NEB_CPACE_SHARE);
    memcpy(c->their_ad, their_ad.p, c->their_ad_n = their_ad.n);
    if (crypto_scalarmult_ristretto255(k, c->scalar, their_share))
        return neb__quiet(NEB_ERR_AUTH, "the other's share is not valid");
    crypto_hash_sha512_init(&h);
    add(&h, text(dsi_isk));
    add(&h, (struct neb_bytes){c->sid, c->sid_n});
    add(&h, (struct neb_bytes){k, sizeof k});
    for (int i = 0; i < 2; i++) { /* the initiator's message first */
        bool own = c->initiator == (i == 0);
        add(&h, share_of(c, own));
        add(&h, ad_of(c, own));
    }
    crypto_hash_sha512_final(&h, c->isk);
    sodium_memzero(k, sizeof k);
    sodium_memzero(&h, sizeof h);
    sodium_memzero(c->scalar, sizeof c->scalar);
    return NEB_OK;
}

/* Of the own message, or of the other's. */
static void make_tag(const struct neb_cpace *c, bool own, uint8_t out[NEB_CPACE_TAG])
{
    uint8_t key[crypto_hash_sha512_BYTES], message[2 * (2 + NEB_CPACE_INPUT_MAX)];
    crypto_hash_sha512_state h;
    crypto_auth_hmacsha512_state m;
    struct neb_bytes part[2] = {share_of(c, own), ad_of(c, own)};
    size_t n = 0;
    crypto_hash_sha512_init(&h);
    crypto_hash_sha512_update(&h, (const uint8_t *)"CPaceMac", 8);
    crypto_hash_sha512_update(&h, c->sid, c->sid_n);
    crypto_hash_sha512_update(&h, c->isk, sizeof c->isk);
    crypto_hash_sha512_final(&h, key);
    for (int i = 0; i < 2; i++) {
        message[n++] = (uint8_t)((part[i].n & 127) | (part[i].n >= LONG ? 128 : 0));
        if (part[i].n >= LONG) message[n++] = (uint8_t)(part[i].n >> 7);
        memcpy(message + n, part[i].p, part[i].n);
        n += part[i].n;
    }
    crypto_auth_hmacsha512_init(&m, key, sizeof key);
    crypto_auth_hmacsha512_update(&m, message, n);
    crypto_auth_hmacsha512_final(&m, out);
    sodium_memzero(key, sizeof key);
    sodium_memzero(&m, sizeof m);
}

void neb__cpace_tag(const struct neb_cpace *c, uint8_t out[NEB_CPACE_TAG])
{
    make_tag(c, true, out);
}

neb_status neb__cpace_check(const struct neb_cpace *c, const uint8_t their_tag[NEB_CPACE_TAG])
{
    uint8_t want[NEB_CPACE_TAG];
    make_tag(c, false, want);
    bool equal = !sodium_memcmp(want, their_tag, sizeof want);
    sodium_memzero(want, sizeof want);
    return equal ? NEB_OK
                 : neb__quiet(NEB_ERR_AUTH, "the other has another code, or somebody changed a message");
}

void neb__cpace_wipe(struct neb_cpace *c)
{
    sodium_memzero(c, sizeof *c);
}
