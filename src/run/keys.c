/* keys.c: the keys with which the round core signs and checks: the site's own, those of the roster's sites,
 * the operator's. */
#include "run/session.h"
#include "run/operator_parts.h"

#include <string.h>

static neb_status sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    const neb_session *s = arg;
    struct neb_signature signature;
    NEB_TRY(neb__key_sign(s->site->key, purpose, p, n, &signature));
    memcpy(out, signature.b, NEB_SEAL_SIZE);
    return NEB_OK;
}

static bool verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    neb_session *s = arg;
    struct neb_public key;
    struct neb_signature given;
    memcpy(given.b, signature, NEB_SEAL_SIZE);
    for (int i = 0; signer & NEB_BY_FORMER && neb__members_former_key(&s->members, signer, i, &key); i++)
        if (neb__key_verify(&key, purpose, p, n, &given) == NEB_OK) return true;
    return neb__members_key(&s->members, signer, &key) &&
           neb__key_verify(&key, purpose, p, n, &given) == NEB_OK;
}

static bool by_operators(void *arg, uint64_t since, const char *purpose, const void *p, size_t n,
                         const struct neb_order *o)
{
    neb_session *s = arg;
    struct neb_operator_set at;
    for (size_t i = 0; neb__members_operators(&s->members, i, &at); i++) {
        if (since == NEB_OPERATORS_NEWEST) since = at.epoch;
        if (at.epoch < since) return false;
        if (neb__operators_signed(&at.set, purpose, p, n, o)) return true;
    }
    return false;
}

static bool has_operators(void *arg, uint64_t set)
{
    neb_session *s = arg;
    struct neb_operator_set at;
    for (size_t i = 0; neb__members_operators(&s->members, i, &at); i++)
        if (at.epoch == set) return true;
    return false;
}

static bool has_epoch(void *arg, uint64_t epoch)
{
    neb_session *s = arg;
    return neb__members_epoch(&s->members) >= epoch;
}

static unsigned former_keys(void *arg, unsigned site)
{
    neb_session *s = arg;
    struct neb_public key;
    unsigned n = 0;
    while (neb__members_former_key(&s->members, site, (int)n, &key)) n++;
    return n;
}

/* The last set that was signed before there was a record to name. */
uint64_t neb__session_first_operators(neb_session *s)
{
    struct neb_operator_set at;
    for (size_t i = 0; neb__members_operators(&s->members, i, &at); i++)
        if (!at.head) return at.epoch;
    return 0;
}

bool neb__session_observes(neb_session *s)
{
    return neb__members_observers(&s->members) & neb__bit(s->self);
}

struct neb_seal neb__session_seal(neb_session *s)
{
    return (struct neb_seal){s, sign, verify, by_operators, has_operators, has_epoch, former_keys};
}
