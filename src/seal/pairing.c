/* pairing.c: the messages of a pairing.
 *
 *     hello    u8 version, 'c' creator or 'j' joiner, 16 random bytes; CPace's share (32)
 *     proof    'p', CPace's tag (64)
 *     sealed   's', ChaCha20-Poly1305 of the text, with a key for each direction and a counter as nonce
 *     card     text: u8 flags, u8 length, identity, u8 addresses, each u8 length, text; signature of all before it
 *
 * CPace takes the three words as its secret, the first 18 bytes of each hello as the sender's data, and the number and the
 * relay host's key as what both must agree on. So a changed hello, another number or a second relay host in between lead to
 * other keys, and the proof fails. The keys are HKDF-SHA-512 of CPace's. A card's signature also covers the session, so a
 * card from another pairing is worth nothing. */
#include "seal/pairing.h"
#include "base/bytes.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { HEAD = 18, NONCE = 12 };
static const char purpose[] = "nebula-i pair";

neb_status neb__pairing_begin(struct neb_pairing *p, bool creator, const struct neb_pair_code *code,
                              const struct neb_public *relay, uint8_t hello[NEB_PAIRING_HELLO])
{
    char secret[NEB_PAIR_CODE_SIZE];
    uint8_t ci[16 + 8 + NEB_PUBLIC_SIZE];
    memset(p, 0, sizeof *p);
    p->creator = creator;
    hello[0] = NEB_PAIRING_VERSION;
    hello[1] = creator ? 'c' : 'j';
    NEB_TRY(neb__random_bytes(hello + 2, 16));
    int n = snprintf((char *)ci, 24, "nebula-i pair %u", code->number);
    memcpy(ci + n, relay->b, NEB_PUBLIC_SIZE);
    struct neb_bytes words = {secret, neb__pair_code_secret(code, secret)};
    neb_status status =
        neb__cpace_begin(&p->cpace, creator, words, (struct neb_bytes){ci, (size_t)n + NEB_PUBLIC_SIZE},
                         (struct neb_bytes){"", 0}, (struct neb_bytes){hello, HEAD});
    sodium_memzero(secret, sizeof secret);
    memcpy(hello + HEAD, p->cpace.share, NEB_CPACE_SHARE);
    return status;
}

static neb_status derive(struct neb_pairing *p)
{
    uint8_t keys[96];
    char digest[] = "SHA512", info[] = "nebula-i pair keys";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, p->cpace.isk, NEB_CPACE_KEY),
                           OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info - 1),
                           OSSL_PARAM_construct_end()};
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    bool ok = ctx && EVP_KDF_derive(ctx, keys, sizeof keys, params) == 1;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    if (!ok) return neb__fail(NEB_ERR_INTERNAL, "no keys can be derived");
    memcpy(p->creator ? p->send_key : p->take_key, keys, 32);
    memcpy(p->creator ? p->take_key : p->send_key, keys + 32, 32);
    memcpy(p->session, keys + 64, 32);
    sodium_memzero(keys, sizeof keys);
    return NEB_OK;
}

neb_status neb__pairing_hello(struct neb_pairing *p, const uint8_t *theirs, size_t n,
                              uint8_t proof[NEB_PAIRING_PROOF])
{
    if (n >= 1 && theirs[0] != NEB_PAIRING_VERSION)
        return neb__quiet(NEB_ERR_VERSION,
                          "the other site has another version of pairing (%u, here %d): upgrade one",
                          theirs[0], NEB_PAIRING_VERSION);
    if (n != NEB_PAIRING_HELLO || (theirs[1] != 'c' && theirs[1] != 'j'))
        return neb__quiet(NEB_ERR_PROTOCOL, "what came is not the beginning of a pairing");
    if ((theirs[1] == 'c') == p->creator)
        return neb__quiet(NEB_ERR_STATE,
                          p->creator ? "somebody else has made a code with the same number"
                                     : "the other site was given a code, too: one makes it, the other "
                                       "is given it");
    NEB_TRY(neb__cpace_finish(&p->cpace, theirs + HEAD, (struct neb_bytes){theirs, HEAD}));
    NEB_TRY(derive(p));
    proof[0] = 'p';
    neb__cpace_tag(&p->cpace, proof + 1);
    return NEB_OK;
}

neb_status neb__pairing_proof(struct neb_pairing *p, const uint8_t *theirs, size_t n)
{
    if (n == 1 && theirs[0] == NEB_PAIRING_NO && !p->creator)
        return neb__quiet(NEB_ERR_AUTH, "the other has another code, or somebody changed a message");
    if (n != NEB_PAIRING_PROOF || theirs[0] != 'p')
        return neb__quiet(NEB_ERR_PROTOCOL, "what came does not prove that the codes are the same");
    NEB_TRY(neb__cpace_check(&p->cpace, theirs + 1));
    p->proved = true;
    return NEB_OK;
}

/* ---- sealed messages ----------------------------------------------------------------------------------- */

static void nonce_of(uint64_t count, uint8_t out[NONCE])
{
    memset(out, 0, NONCE);
    neb__put64(out + 4, count);
}

neb_status neb__pairing_seal(struct neb_pairing *p, const void *text, size_t n, uint8_t *out)
{
    uint8_t nonce[NONCE];
    if (!p->proved)
        return neb__fail(NEB_ERR_STATE, "nothing is sealed before the codes are known to be the same");
    nonce_of(p->sent++, nonce);
    out[0] = 's';
    crypto_aead_chacha20poly1305_ietf_encrypt(out + 1, NULL, text, n, NULL, 0, NULL, nonce, p->send_key);
    return NEB_OK;
}

neb_status neb__pairing_open(struct neb_pairing *p, const uint8_t *bytes, size_t n, uint8_t *out)
{
    uint8_t nonce[NONCE];
    if (!p->proved || n < NEB_PAIRING_OVERHEAD || bytes[0] != 's')
        return neb__quiet(NEB_ERR_PROTOCOL, "what came is not a message of this pairing");
    nonce_of(p->taken, nonce);
    if (crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, bytes + 1, n - 1, NULL, 0, nonce,
                                                  p->take_key))
        return neb__quiet(NEB_ERR_AUTH, "a message was changed on its way, left out or repeated");
    p->taken++;
    return NEB_OK;
}

void neb__pairing_wipe(struct neb_pairing *p)
{
    sodium_memzero(p, sizeof *p);
}

/* ---- cards --------------------------------------------------------------------------------------------- */

/* What a card's signature covers: the session, then the card's text. */
static neb_status signed_text(const struct neb_pairing *p, const uint8_t *card, size_t n, struct neb_buf *out)
{
    neb__buf_init(out, NEB_PAIRING_SESSION + NEB_PAIRING_CARD_MAX);
    NEB_TRY(neb__buf_append(out, p->session, NEB_PAIRING_SESSION));
    return neb__buf_append(out, card, n);
}

static neb_status put_text(struct neb_buf *b, const char *text)
{
    uint8_t n = (uint8_t)strlen(text);
    NEB_TRY(neb__buf_append(b, &n, 1));
    return neb__buf_append(b, text, n);
}

neb_status neb__pair_card_make(const struct neb_pairing *p, const struct neb_member *m,
                               const struct neb_key *key, struct neb_buf *out)
{
    char identity[NEB_IDENTITY_SIZE];
    struct neb_signature signature;
    struct neb_buf text;
    neb__identity_format(m->name, &m->key, identity);
    NEB_TRY(neb__buf_append(out, &m->flags, 1));
    NEB_TRY(put_text(out, identity));
    NEB_TRY(neb__buf_append(out, &m->addresses, 1));
    for (int i = 0; i < m->addresses; i++) NEB_TRY(put_text(out, m->address[i]));
    neb_status status = signed_text(p, out->data, out->len, &text);
    if (status == NEB_OK) status = neb__key_sign(key, purpose, text.data, text.len, &signature);
    neb__buf_free(&text);
    NEB_TRY(status);
    return neb__buf_append(out, signature.b, NEB_SIGNATURE_SIZE);
}

/* Reads u8 length, text; printable or not is the roster's to judge. */
static bool get_text(struct neb_reader *r, char *out, size_t size)
{
    uint8_t n = neb__read8(r);
    const uint8_t *p = neb__read(r, n);
    if (!p || n >= size || memchr(p, 0, n)) return false;
    memcpy(out, p, n);
    out[n] = 0;
    return true;
}

static bool read_member(struct neb_reader *r, struct neb_member *m)
{
    char identity[NEB_IDENTITY_SIZE];
    m->votes = 1;
    m->flags = neb__read8(r);
    if (m->flags & ~NEB_MEMBER_WITNESS || !get_text(r, identity, sizeof identity) ||
        neb__identity_parse(identity, strlen(identity), m->name, &m->key) != NEB_OK)
        return false;
    m->addresses = neb__read8(r);
    if (m->addresses > NEB_ADDRESSES_MAX) return false;
    for (int i = 0; i < m->addresses; i++)
        if (!get_text(r, m->address[i], NEB_ADDRESS_SIZE)) return false;
    return true;
}

neb_status neb__pair_card_read(const struct neb_pairing *p, const uint8_t *bytes, size_t n,
                               struct neb_member *out)
{
    struct neb_member m = {0};
    struct neb_signature signature;
    struct neb_buf text;
    if (n <= NEB_SIGNATURE_SIZE || n > NEB_PAIRING_CARD_MAX)
        return neb__quiet(NEB_ERR_PROTOCOL, "the other's card has a wrong length");
    struct neb_reader r = {.p = bytes, .left = n - NEB_SIGNATURE_SIZE};
    if (!read_member(&r, &m) || r.bad || r.left)
        return neb__quiet(NEB_ERR_PROTOCOL, "the other's card is malformed");
    memcpy(signature.b, bytes + n - NEB_SIGNATURE_SIZE, NEB_SIGNATURE_SIZE);
    neb_status status = signed_text(p, bytes, n - NEB_SIGNATURE_SIZE, &text);
    if (status == NEB_OK) status = neb__key_verify(&m.key, purpose, text.data, text.len, &signature);
    neb__buf_free(&text);
    if (status == NEB_ERR_AUTH) return neb__quiet(status, "the other does not hold the key of its card");
    NEB_TRY(status);
    *out = m;
    return NEB_OK;
}
