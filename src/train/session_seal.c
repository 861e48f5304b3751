/* session_seal.c: the keys with which the round core signs and checks: the site's own, those of the roster's sites, the
 * operator's.
 *
 * The roster belongs to the links' thread, the core to the driver's. So the public keys are copied, under the session's
 * lock, at the start and whenever a peer appears (a site that was admitted meanwhile appears with its key). */
#include "train/session.h"

#include <string.h>

void neb__session_keys(neb_session *s)
{
    const struct neb_chain *chain = neb__net_roster(s->net);
    pthread_mutex_lock(&s->lock);
    s->operator_key = chain->operator_key;
    memset(s->has_key, 0, sizeof s->has_key);
    for (uint32_t i = 0; i < chain->now.count; i++) {
        const struct neb_member *m = &chain->now.members[i];
        if (m->id >= NEB_SITES_MAX) continue;
        s->key[m->id] = m->key;
        s->has_key[m->id] = true;
    }
    pthread_mutex_unlock(&s->lock);
}

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
    pthread_mutex_lock(&s->lock);
    bool known = signer == NEB_BY_OPERATOR || (signer < NEB_SITES_MAX && s->has_key[signer]);
    if (known) key = signer == NEB_BY_OPERATOR ? s->operator_key : s->key[signer];
    pthread_mutex_unlock(&s->lock);
    memcpy(given.b, signature, NEB_SEAL_SIZE);
    return known && neb__key_verify(&key, purpose, p, n, &given) == NEB_OK;
}

struct neb_seal neb__session_seal(neb_session *s)
{
    return (struct neb_seal){s, sign, verify};
}
