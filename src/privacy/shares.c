/* shares.c: Shamir's secret sharing over the integers modulo p = 2^256 + 297, the least prime above 2^256.
 *
 * The secret is the value at 0 of a random polynomial of degree t - 1; a share is its value at x. Every 32-byte secret is below p, so
 * nothing of it is cut off or made even, and a share has 33 bytes. OpenSSL's big numbers do the arithmetic: GF(256) would need tables or
 * products of our own, libsodium's scalars hold 252 bits. Coefficients are uniform below p: 40 bytes of the system's generator, taken
 * modulo p, miss that by less than 2^-60. */
#include "privacy/shares.h"
#include "privacy/noise.h"

#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <string.h>

struct field {
    BN_CTX *ctx;
    BIGNUM *p, *sum, *term, *x;
};

static void field_close(struct field *f)
{
    BN_free(f->p);
    BN_clear_free(f->sum);
    BN_clear_free(f->term);
    BN_free(f->x);
    BN_CTX_free(f->ctx);
}

static neb_status field_open(struct field *f)
{
    *f = (struct field){BN_CTX_new(), BN_new(), BN_new(), BN_new(), BN_new()};
    if (f->ctx && f->p && f->sum && f->term && f->x && BN_set_bit(f->p, 256) && BN_add_word(f->p, 297))
        return NEB_OK;
    field_close(f);
    return neb__fail(NEB_ERR_NOMEM, "out of memory for shares of a secret");
}

static bool random_below_p(struct field *f, BIGNUM *out)
{
    uint8_t b[40];
    bool ok = neb__secret_random(b, sizeof b) == NEB_OK && BN_bin2bn(b, sizeof b, f->term) &&
              BN_mod(out, f->term, f->p, f->ctx);
    OPENSSL_cleanse(b, sizeof b);
    return ok;
}

/* Horner's rule. */
static bool value_at(struct field *f, BIGNUM *const *coefficient, int t, uint16_t x,
                     uint8_t y[NEB_SHARE_SIZE])
{
    bool ok = BN_set_word(f->x, x) && BN_set_word(f->sum, 0);
    for (int i = t - 1; ok && i >= 0; i--)
        ok = BN_mod_mul(f->term, f->sum, f->x, f->p, f->ctx) &&
             BN_mod_add(f->sum, f->term, coefficient[i], f->p, f->ctx);
    return ok && BN_bn2binpad(f->sum, y, NEB_SHARE_SIZE) == NEB_SHARE_SIZE;
}

neb_status neb__shares_deal(const uint8_t secret[NEB_SECRET_SIZE], int t, int n, struct neb_share *share)
{
    BIGNUM *coefficient[NEB_SHARES_MAX] = {0};
    struct field f;
    if (t < 1 || t > n || n > NEB_SHARES_MAX)
        return neb__fail(NEB_ERR_INVALID, "%d of %d shares: not possible", t, n);
    NEB_TRY(field_open(&f));
    bool ok = true;
    for (int i = 0; ok && i < t; i++) {
        ok = (coefficient[i] = BN_new()) != NULL;
        if (ok)
            ok = i ? random_below_p(&f, coefficient[i])
                   : BN_bin2bn(secret, NEB_SECRET_SIZE, coefficient[0]) != NULL;
    }
    for (int i = 0; ok && i < n; i++) ok = share[i].x && value_at(&f, coefficient, t, share[i].x, share[i].y);
    for (int i = 0; i < t; i++) BN_clear_free(coefficient[i]);
    field_close(&f);
    return ok ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "the shares of a secret could not be made");
}

/* The weight of share i in the value at 0: the product of x_j / (x_j - x_i) over the others. */
static bool weight_of(struct field *f, const struct neb_share *share, int t, int i, BIGNUM *out)
{
    bool ok = BN_one(out);
    for (int j = 0; ok && j < t; j++) {
        if (j == i) continue;
        ok = BN_set_word(f->x, share[j].x) && BN_mod_mul(out, out, f->x, f->p, f->ctx) &&
             BN_set_word(f->term, share[i].x) && BN_mod_sub(f->x, f->x, f->term, f->p, f->ctx) &&
             BN_mod_inverse(f->term, f->x, f->p, f->ctx) && BN_mod_mul(out, out, f->term, f->p, f->ctx);
    }
    return ok;
}

static bool are_apart(const struct neb_share *share, int t)
{
    for (int i = 0; i < t; i++) {
        if (!share[i].x) return false;
        for (int j = 0; j < i; j++)
            if (share[i].x == share[j].x) return false;
    }
    return true;
}

neb_status neb__shares_join(const struct neb_share *share, int t, uint8_t secret[NEB_SECRET_SIZE])
{
    struct field f;
    if (t < 1 || t > NEB_SHARES_MAX || !are_apart(share, t))
        return neb__quiet(NEB_ERR_CORRUPT, "shares of one place, or none");
    NEB_TRY(field_open(&f));
    BIGNUM *weight = BN_new(), *y = BN_new();
    bool ok = weight && y && BN_set_word(f.sum, 0);
    for (int i = 0; ok && i < t; i++)
        ok = weight_of(&f, share, t, i, weight) && BN_bin2bn(share[i].y, NEB_SHARE_SIZE, y) &&
             BN_mod_mul(f.term, y, weight, f.p, f.ctx) && BN_mod_add(f.sum, f.sum, f.term, f.p, f.ctx);
    bool fits = ok && BN_num_bytes(f.sum) <= NEB_SECRET_SIZE;
    if (fits) ok = BN_bn2binpad(f.sum, secret, NEB_SECRET_SIZE) == NEB_SECRET_SIZE;
    BN_clear_free(weight);
    BN_clear_free(y);
    field_close(&f);
    if (!ok) return neb__fail(NEB_ERR_NOMEM, "out of memory for shares of a secret");
    return fits ? NEB_OK : neb__quiet(NEB_ERR_CORRUPT, "these shares give no secret");
}
