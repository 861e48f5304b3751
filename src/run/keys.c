/* keys.c: the keys with which the round core signs and checks: the site's own, those of the roster's sites, the
 * operator's.
 *
 * The roster belongs to the links' thread, the core to the driver's. So the public keys and names are copied, under
 * the session's lock, at the start, with every new epoch, and whenever a peer appears. */
#include "run/session.h"

#include <stdio.h>
#include <string.h>

/* A site that has left the roster keeps its key here: its updates in the log are still asked for and checked. Whether it may
 * say anything new is the links' and the core's affair. */
static void learn(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *r)
{
    neb_session *s = arg;
    (void)epoch;
    (void)head;
    s->present = s->witnesses = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct neb_member *m = &r->members[i];
        if (m->id >= NEB_SITES_MAX) continue;
        s->present |= neb__bit(m->id);
        if (m->flags & NEB_MEMBER_WITNESS) s->witnesses |= neb__bit(m->id);
        s->key[m->id] = m->key;
        s->has_key[m->id] = true;
        snprintf(s->names[m->id], sizeof *s->names, "%s", m->name);
    }
}

void neb__session_keys(neb_session *s)
{
    const struct neb_chain *chain = neb__net_roster(s->net);
    pthread_mutex_lock(&s->lock);
    s->operator_key = chain->operator_key;
    if (neb__chain_walk(chain, learn, s) != NEB_OK) learn(s, chain->epoch, 0, &chain->now);
    pthread_mutex_unlock(&s->lock);
}

void neb__session_name(neb_session *s, uint16_t site, char out[NEB_NAME_SIZE])
{
    pthread_mutex_lock(&s->lock);
    snprintf(out, NEB_NAME_SIZE, "%s", site < NEB_SITES_MAX && s->has_key[site] ? s->names[site] : "?");
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
