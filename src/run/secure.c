/* secure.c: what a site says before a secure sum.
 *
 * When the core asks for an offer, a site makes two X25519 pairs and the seed of its own mask, all for this attempt alone, and
 * sends the public halves to every member: KEYS. Once it has the others' it deals its two secrets out: a share for each of them, sealed
 * with a key that only the two can compute, and the hashes of secrets and shares: OFFER. The leader's core writes the offers that fit
 * together into OPEN. What follows behind SURVIVORS is in secure_unmask.c.
 *
 * Messages may be lost: they are said again every second as long as they matter; offers, the only large ones, more and more seldom. A message
 * of another attempt is ignored. A site that cannot contribute to the attempt under way (it lost its secrets) sends KEYS for the next one, and so
 * tells that nobody need wait. */
#include "run/secure.h"
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <openssl/crypto.h>
#include <string.h>

static const char keys_purpose[] = "nebula sum keys", offer_purpose[] = "nebula sum offer";
static const int64_t second = 1000000000;

/* ---- life ---------------------------------------------------------------------------------------------- */

neb_status neb__session_set_secure(neb_session *s)
{
    if (s->mirror.outer) return neb__fail(NEB_ERR_STATE, "secure sums belong before the start");
    if (s->fixed || s->config.clip > 0 || s->config.noise > 0)
        return neb__fail(
            NEB_ERR_CONFIG,
            "privacy.aggregate: secure sends 8-bit integers of scales that all sites share: leave out "
            "wan.rung, wan.clip and wan.noise");
    if (!strcmp(s->config.end, "keep"))
        return neb__fail(NEB_ERR_CONFIG,
                         "privacy.aggregate: secure cannot send the last work exactly: leave out wan.end");
    s->secure = true;
    return NEB_OK;
}

neb_status neb__sums_open(neb_session *s)
{
    if (!s->secure) return NEB_OK;
    s->sums = NEB_NEW(struct neb_sums);
    if (s->sums) s->sums->fragment = NEB_NEW_ARRAY(struct neb_sum_attempt, s->fragments);
    if (!s->sums || !s->sums->fragment) return neb__fail(NEB_ERR_NOMEM, "out of memory for secure sums");
    s->sums->fragments = s->fragments;
    for (uint32_t f = 0; f < s->fragments; f++) {
        struct neb_sum_attempt *a = &s->sums->fragment[f];
        a->c0 = (uint32_t)((uint64_t)f * s->mirror.outer->cells / s->fragments);
        a->c1 = (uint32_t)((uint64_t)(f + 1) * s->mirror.outer->cells / s->fragments);
        for (int i = 0; i < NEB_SITES_MAX; i++)
            for (int k = 0; k < 2; k++) neb__buf_init(&a->offer[i][k], NEB_OFFER_MAX);
    }
    return NEB_OK;
}

static void forget_reveals(struct neb_sum_attempt *a)
{
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        neb__free(a->reveal[i]);
        a->reveal[i] = NULL;
    }
    a->joined = false;
}

void neb__sum_attempt_forget(struct neb_sum_attempt *a)
{
    OPENSSL_cleanse(&a->seal, sizeof a->seal);
    OPENSSL_cleanse(&a->mask, sizeof a->mask);
    OPENSSL_cleanse(a->own, sizeof a->own);
    forget_reveals(a);
    memset(a->keys, 0, sizeof a->keys);
    for (int i = 0; i < NEB_SITES_MAX; i++)
        for (int k = 0; k < 2; k++) neb__buf_clear(&a->offer[i][k]);
    a->attempt = 0;
    a->missed_at = 0;
    a->keyed = a->used = false;
    a->dealt = a->revealed = a->revealed_set = 0;
    a->threshold = 0;
}

void neb__sums_close(neb_session *s)
{
    for (uint32_t f = 0; s->sums && s->sums->fragment && f < s->sums->fragments; f++) {
        struct neb_sum_attempt *a = &s->sums->fragment[f];
        neb__sum_attempt_forget(a);
        for (int i = 0; i < NEB_SITES_MAX; i++)
            for (int k = 0; k < 2; k++) neb__buf_free(&a->offer[i][k]);
    }
    if (s->sums) neb__free(s->sums->fragment);
    neb__free(s->sums);
    s->sums = NULL;
}

struct neb_sum_attempt *neb__sums_of(neb_session *s, uint32_t c0)
{
    for (uint32_t f = 0; s->sums && f < s->sums->fragments; f++)
        if (s->sums->fragment[f].c0 == c0) return &s->sums->fragment[f];
    return NULL;
}

/* ---- saying and hearing -------------------------------------------------------------------------------- */

static struct neb_members roster(const neb_session *s)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    return st.roster;
}

void neb__sums_say(neb_session *s, uint32_t kind, const void *bytes, size_t n)
{
    for (uint64_t left = roster(s).members & ~neb__bit(s->self); left; left &= left - 1)
        neb__session_reach(s, (uint16_t)__builtin_ctzll(left), kind, bytes, n);
}

/* Signatures cover the run, so that nothing can be said again in another. */
static neb_status sign(neb_session *s, const char *purpose, struct neb_buf *b)
{
    const struct neb_seal seal = neb__session_seal(s);
    uint8_t signature[NEB_SEAL_SIZE];
    struct neb_buf all;
    neb__buf_init(&all, NEB_OFFER_MAX + NEB_HASH_SIZE);
    neb_status status = neb__buf_append(&all, s->genesis.b, NEB_HASH_SIZE);
    if (status == NEB_OK) status = neb__buf_append(&all, b->data, b->len);
    if (status == NEB_OK) status = seal.sign(seal.arg, purpose, all.data, all.len, signature);
    neb__buf_free(&all);
    return status == NEB_OK ? neb__buf_append(b, signature, sizeof signature) : status;
}

static bool genuine(neb_session *s, const char *purpose, uint16_t site, const uint8_t *bytes, size_t n)
{
    const struct neb_seal seal = neb__session_seal(s);
    struct neb_buf all;
    neb__buf_init(&all, NEB_OFFER_MAX + NEB_HASH_SIZE);
    size_t body = n - NEB_OFFER_SIGNATURE;
    bool ok = neb__buf_append(&all, s->genesis.b, NEB_HASH_SIZE) == NEB_OK &&
              neb__buf_append(&all, bytes, body) == NEB_OK &&
              seal.verify(seal.arg, site, purpose, all.data, all.len, bytes + body);
    neb__buf_free(&all);
    return ok;
}

static void attempt_id(const neb_session *s, struct neb_sum_attempt *a)
{
    uint8_t b[NEB_HASH_SIZE + 14];
    memcpy(b, s->genesis.b, NEB_HASH_SIZE);
    neb__put32(b + NEB_HASH_SIZE, a->c0);
    neb__put64(b + NEB_HASH_SIZE + 4, a->version);
    neb__put16(b + NEB_HASH_SIZE + 12, a->attempt);
    if (neb__hash(b, sizeof b, &a->id) != NEB_OK) a->attempt = 0;
}

/* The attempt that is prepared or under way by the log, and whether this message belongs to it. */
static bool belongs(neb_session *s, struct neb_sum_attempt *a, uint16_t attempt, uint64_t version)
{
    struct neb_round_attempt now;
    if (!neb__round_attempt(s->core, a->c0, &now)) return false;
    uint16_t present = now.open ? now.attempt : neb__sum_next(now.attempt);
    if (attempt != present || version != neb__round_version(s->core, a->c0)) return false;
    if (a->attempt == attempt && a->version == version) return true;
    if (a->used) neb__sums_remove(s, a);
    neb__sum_attempt_forget(a);
    a->attempt = attempt;
    a->version = version;
    attempt_id(s, a);
    return a->attempt != 0;
}

/* ---- keys ---------------------------------------------------------------------------------------------- */

/* Tokens per step; 0: no step was made yet. */
static uint32_t weight_now(neb_session *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t steps = s->mirror.steps_taken + s->mirror.steps_now;
    int64_t tokens = s->mirror.tokens_taken + s->mirror.tokens_now;
    pthread_mutex_unlock(&s->lock);
    if (steps < 1) return 0;
    return tokens / steps > 0 ? (uint32_t)(tokens / steps) : 1;
}

static void say_keys(neb_session *s, const struct neb_sum_keys *k, uint16_t to)
{
    uint8_t body[NEB_KEYS_BODY];
    struct neb_buf b;
    neb__keys_put(k, body);
    neb__buf_init(&b, NEB_KEYS_SIZE);
    if (neb__buf_append(&b, body, sizeof body) == NEB_OK && sign(s, keys_purpose, &b) == NEB_OK) {
        if (to == NEB_NO_SITE)
            neb__sums_say(s, NEB_MSG_SUM_KEYS, b.data, b.len);
        else
            neb__session_reach(s, to, NEB_MSG_SUM_KEYS, b.data, b.len);
    }
    neb__buf_free(&b);
}

enum { REST_S = 20 }; /* between two changes of a site's keys */
enum taken { KEYS_REFUSED, KEYS_KNOWN, KEYS_NEW };

/* A site that starts again within an attempt has other keys, and everybody deals anew. A member that has other keys all the time would have
 * everybody deal and send without end, and the offers that the leader writes into OPEN would be gone before OPEN is there. */
static bool may_change(struct neb_sum_attempt *a, unsigned site)
{
    const int64_t now = neb__now_ns();
    if (a->rekeyed[site] && now - a->rekeyed[site] < REST_S * second) return false;
    a->rekeyed[site] = now;
    return true;
}

static enum taken take_keys(struct neb_sum_attempt *a, const struct neb_sum_keys *k)
{
    uint8_t body[NEB_KEYS_BODY];
    struct neb_hash h;
    const bool known = a->keys[k->site].attempt;
    neb__keys_put(k, body);
    if (neb__hash(body, sizeof body, &h) != NEB_OK) return KEYS_REFUSED;
    if (known && !memcmp(a->keys_id[k->site], h.b, NEB_KEYS_ID)) return KEYS_KNOWN;
    if (known && !may_change(a, k->site)) return KEYS_REFUSED;
    a->keys[k->site] = *k;
    memcpy(a->keys_id[k->site], h.b, NEB_KEYS_ID);
    a->dealt &= ~neb__bit(k->site);
    return KEYS_NEW;
}

static neb_status make_keys(neb_session *s, struct neb_sum_attempt *a, uint32_t weight)
{
    NEB_TRY(neb__mask_pair_create(&a->seal));
    NEB_TRY(neb__mask_pair_create(&a->mask));
    NEB_TRY(neb__secret_random(a->own, sizeof a->own));
    struct neb_sum_keys k = {
        .site = s->self, .attempt = a->attempt, .c0 = a->c0, .version = a->version, .weight = weight};
    memcpy(k.seal, a->seal.public, NEB_MASK_KEY);
    memcpy(k.mask, a->mask.public, NEB_MASK_KEY);
    (void)take_keys(a, &k);
    a->keyed = true;
    a->keyed_at = neb__now_ns();
    a->threshold = neb__sum_threshold(__builtin_popcountll(roster(s).trains));
    return NEB_OK;
}

/* ---- offers -------------------------------------------------------------------------------------------- */

/* Tells the core of a site's newest offer: which sites can use their shares in it. */
static void offered(neb_session *s, struct neb_sum_attempt *a, const struct neb_sum_offer *o,
                    const struct neb_buf *b)
{
    struct neb_contributor *c = &a->entry[o->keys.site];
    struct neb_event ev = {.type = NEB_EV_OFFER,
                           .site = o->keys.site,
                           .cell = a->c0,
                           .version = a->version,
                           .attempt = a->attempt,
                           .offer = c};
    *c = (struct neb_contributor){
        .site = o->keys.site, .weight = o->keys.weight, .own = o->own, .pair = o->pair};
    memcpy(c->key, o->keys.mask, NEB_SEED_SIZE);
    if (neb__hash(b->data, b->len, &c->offer) != NEB_OK) return;
    for (uint32_t i = 0; i < o->entries; i++) {
        const struct neb_offer_entry *e = &o->entry[i];
        if (a->keys[e->site].attempt && !memcmp(a->keys_id[e->site], e->keys, NEB_KEYS_ID))
            ev.count |= neb__bit(e->site);
    }
    neb__session_feed(s, &ev);
}

static bool same_bytes(const struct neb_buf *b, const uint8_t *bytes, size_t n)
{
    return b->len == n && !memcmp(b->data, bytes, n);
}

static void take_offer(neb_session *s, struct neb_sum_attempt *a, const struct neb_sum_offer *o,
                       const uint8_t *bytes, size_t n)
{
    struct neb_buf *list = a->offer[o->keys.site], older = list[1];
    if (take_keys(a, &o->keys) == KEYS_REFUSED) return; /* it is said again */
    if (!same_bytes(&list[0], bytes, n)) {
        list[1] = list[0];
        list[0] = older;
        neb__buf_clear(&list[0]);
        if (neb__buf_append(&list[0], bytes, n) != NEB_OK) return;
    }
    offered(s, a, o, &list[0]);
}

/* One member's part of this site's offer. */
static neb_status seal_for(neb_session *s, const struct neb_sum_attempt *a, const struct neb_share *own,
                           const struct neb_share *pair, uint16_t site, struct neb_offer_entry *e)
{
    uint8_t key[NEB_MASK_KEY], both[2 * NEB_SHARE_SIZE];
    e->site = site;
    memcpy(e->keys, a->keys_id[site], NEB_KEYS_ID);
    NEB_TRY(neb__hash(own->y, NEB_SHARE_SIZE, &e->own));
    NEB_TRY(neb__hash(pair->y, NEB_SHARE_SIZE, &e->pair));
    memcpy(both, own->y, NEB_SHARE_SIZE);
    memcpy(both + NEB_SHARE_SIZE, pair->y, NEB_SHARE_SIZE);
    neb_status status =
        neb__mask_agree(a->seal.secret, a->keys[site].seal, &a->id, "nebula sum share", s->self, site, key);
    if (status == NEB_OK) status = neb__mask_seal(key, both, sizeof both, e->sealed);
    OPENSSL_cleanse(key, sizeof key);
    OPENSSL_cleanse(both, sizeof both);
    return status;
}

static neb_status deal(neb_session *s, struct neb_sum_attempt *a, uint64_t set, int threshold,
                       struct neb_sum_offer *o)
{
    struct neb_share own[NEB_SITES_MAX], pair[NEB_SITES_MAX];
    int n = 0;
    *o = (struct neb_sum_offer){.keys = a->keys[s->self]};
    for (uint64_t left = set; left; left &= left - 1, n++)
        own[n].x = pair[n].x = (uint16_t)(1 + __builtin_ctzll(left));
    neb_status status = neb__hash(a->own, sizeof a->own, &o->own);
    if (status == NEB_OK) status = neb__hash(a->mask.secret, NEB_MASK_KEY, &o->pair);
    if (status == NEB_OK) status = neb__shares_deal(a->own, threshold, n, own);
    if (status == NEB_OK) status = neb__shares_deal(a->mask.secret, threshold, n, pair);
    for (int i = 0; status == NEB_OK && i < n; i++, o->entries++)
        status = seal_for(s, a, &own[i], &pair[i], (uint16_t)(own[i].x - 1), &o->entry[i]);
    OPENSSL_cleanse(own, sizeof own);
    OPENSSL_cleanse(pair, sizeof pair);
    return status;
}

void neb__sums_avoid(neb_session *s, struct neb_sum_attempt *a, unsigned site, int seconds, const char *why)
{
    char name[NEB_NAME_SIZE];
    if (site >= NEB_SITES_MAX || site == s->self) return;
    neb__members_name(&s->members, (uint16_t)site, name);
    neb__warn("site '%s' %s: secure sums go on without one of the two for %d seconds", name, why, seconds);
    neb__news_add(s, "named", "%s %s", name, why);
    a->avoided[site] = neb__now_ns() + seconds * second;
}

/* The sites that this one deals to. If too few are left without those it avoids, nothing is gained by avoiding them. */
static uint64_t partners(const struct neb_sum_attempt *a, uint64_t trains)
{
    const int64_t now = neb__now_ns();
    uint64_t set = trains;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (now < a->avoided[i]) set &= ~neb__bit(i);
    return __builtin_popcountll(set) < neb__sum_least(__builtin_popcountll(trains)) ? trains : set;
}

/* Deals when everybody's keys are here, or those of enough sites for a while; anew when there are more. Two dealings of one secret hide
 * it as well as one does, as long as both need the same number of shares: for another roster the secrets are made anew. */
static void deal_if_due(neb_session *s, struct neb_sum_attempt *a)
{
    const uint64_t trains = roster(s).trains;
    const uint64_t may = partners(a, trains);
    uint64_t set = 0;
    struct neb_round_attempt now;
    if (!a->keyed || !neb__round_attempt(s->core, a->c0, &now) || now.open) return;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if ((may & neb__bit(i)) && a->keys[i].attempt) set |= neb__bit(i);
    int sites = __builtin_popcountll(trains);
    bool all = set == may, late = neb__now_ns() - a->keyed_at > 3 * second;
    if (a->threshold != neb__sum_threshold(sites)) return;
    if (set == a->dealt || __builtin_popcountll(set) < neb__sum_least(sites) || !(all || late)) return;
    struct neb_sum_offer *o = NEB_NEW(struct neb_sum_offer);
    struct neb_buf b;
    neb__buf_init(&b, NEB_OFFER_MAX);
    neb_status status = o ? deal(s, a, set, neb__sum_threshold(sites), o) : NEB_ERR_NOMEM;
    if (status == NEB_OK) status = neb__offer_put(o, &b);
    if (status == NEB_OK) status = sign(s, offer_purpose, &b);
    if (status == NEB_OK) {
        a->dealt = set;
        neb__sums_say(s, NEB_MSG_SUM_OFFER, b.data, b.len);
        take_offer(s, a, o, b.data, b.len);
    } else
        neb__warn("this site cannot offer to contribute to a secure sum: %s", neb_last_error());
    neb__buf_free(&b);
    neb__free(o);
}

static void begin(neb_session *s, struct neb_sum_attempt *a)
{
    uint32_t weight = weight_now(s);
    int threshold = neb__sum_threshold(__builtin_popcountll(roster(s).trains));
    if (a->keyed && !a->used && a->attempt == a->asked && a->threshold != threshold)
        neb__sum_attempt_forget(a);
    if (a->keyed && a->attempt == a->asked && a->version == a->asked_version) return;
    if (!weight || !belongs(s, a, a->asked, a->asked_version))
        return; /* later: before the first step nobody knows */
    if (make_keys(s, a, weight) != NEB_OK) {
        neb__warn("this site cannot take part in a secure sum: %s", neb_last_error());
        return;
    }
    say_keys(s, &a->keys[s->self], NEB_NO_SITE);
    deal_if_due(s, a);
}

void neb__sums_offer(neb_session *s, const struct neb_action *act)
{
    struct neb_sum_attempt *a = neb__sums_of(s, act->c0);
    if (!a) return;
    a->asked = act->attempt;
    a->asked_version = act->version;
    begin(s, a);
}

/* ---- the offers that OPEN names ------------------------------------------------------------------------ */

const struct neb_buf *neb__sums_offer_of(const struct neb_sum_attempt *a, const struct neb_contributor *c)
{
    struct neb_hash h;
    for (int k = 0; k < 2; k++) {
        const struct neb_buf *b = &a->offer[c->site][k];
        if (b->len && neb__hash(b->data, b->len, &h) == NEB_OK && neb__hash_equal(&h, &c->offer)) return b;
    }
    return NULL;
}

bool neb__sums_named_offer(const struct neb_sum_attempt *a, const struct neb_contributor *c,
                           struct neb_sum_offer *out)
{
    const struct neb_buf *b = neb__sums_offer_of(a, c);
    return b && neb__offer_get(b->data, b->len, out) == NEB_OK && out->keys.weight == c->weight &&
           !memcmp(out->keys.mask, c->key, NEB_SEED_SIZE) && neb__hash_equal(&out->own, &c->own) &&
           neb__hash_equal(&out->pair, &c->pair);
}

bool neb__sums_shares(const neb_session *s, const struct neb_sum_attempt *a, const struct neb_sum_offer *o,
                      uint8_t own[NEB_SHARE_SIZE], uint8_t pair[NEB_SHARE_SIZE])
{
    const struct neb_offer_entry *e = neb__offer_entry(o, s->self);
    uint8_t key[NEB_MASK_KEY], both[2 * NEB_SHARE_SIZE];
    struct neb_hash h[2];
    if (!e || neb__mask_agree(a->seal.secret, o->keys.seal, &a->id, "nebula sum share", o->keys.site, s->self,
                              key) != NEB_OK)
        return false;
    bool ok = neb__mask_unseal(key, e->sealed, sizeof both, both) == NEB_OK &&
              neb__hash(both, NEB_SHARE_SIZE, &h[0]) == NEB_OK &&
              neb__hash(both + NEB_SHARE_SIZE, NEB_SHARE_SIZE, &h[1]) == NEB_OK &&
              neb__hash_equal(&h[0], &e->own) && neb__hash_equal(&h[1], &e->pair);
    if (ok) memcpy(own, both, NEB_SHARE_SIZE);
    if (ok) memcpy(pair, both + NEB_SHARE_SIZE, NEB_SHARE_SIZE);
    OPENSSL_cleanse(key, sizeof key);
    OPENSSL_cleanse(both, sizeof both);
    return ok;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* Keys without a key: their site is out of the attempt before this one, and has not heard that it is over. */
static bool says_out(const struct neb_sum_keys *k)
{
    static const uint8_t none[NEB_MASK_KEY];
    return !memcmp(k->seal, none, sizeof none) || !memcmp(k->mask, none, sizeof none);
}

static void heard_keys(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    struct neb_sum_keys k;
    struct neb_round_attempt now;
    if (neb__keys_get(bytes, n, &k) != NEB_OK || k.site != peer ||
        !genuine(s, keys_purpose, peer, bytes, n)) {
        neb__session_refused(s, peer, NEB_QUOTA_FOREIGN, 1);
        return;
    }
    struct neb_sum_attempt *a = neb__sums_of(s, k.c0);
    if (!a || !neb__round_attempt(s->core, a->c0, &now)) return;
    if (now.open && k.attempt == neb__sum_next(now.attempt) &&
        k.version == neb__round_version(s->core, a->c0)) {
        static const struct neb_contributor nothing; /* it is out of the present one */
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_OFFER,
                                                 .site = peer,
                                                 .cell = a->c0,
                                                 .version = k.version,
                                                 .attempt = k.attempt,
                                                 .offer = &nothing});
        return;
    }
    if (now.open || says_out(&k) || !belongs(s, a, k.attempt, k.version)) return;
    if (take_keys(a, &k) != KEYS_NEW) return;
    if (a->keyed) say_keys(s, &a->keys[s->self], peer);
    deal_if_due(s, a);
}

static void heard_offer(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    struct neb_sum_offer *o = NEB_NEW(struct neb_sum_offer);
    if (!o) return;
    bool ok = neb__offer_get(bytes, n, o) == NEB_OK && o->keys.site == peer &&
              genuine(s, offer_purpose, peer, bytes, n);
    if (!ok) neb__session_refused(s, peer, NEB_QUOTA_FOREIGN, 1);
    struct neb_sum_attempt *a = ok ? neb__sums_of(s, o->keys.c0) : NULL;
    if (a && belongs(s, a, o->keys.attempt, o->keys.version) && !a->used) {
        take_offer(s, a, o, bytes, n);
        deal_if_due(s, a);
    }
    neb__free(o);
}

void neb__sums_message(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n)
{
    if (!s->sums || peer >= NEB_SITES_MAX || !(roster(s).members & neb__bit(peer))) return;
    if (kind == NEB_MSG_SUM_KEYS) heard_keys(s, peer, bytes, n);
    if (kind == NEB_MSG_SUM_OFFER) heard_offer(s, peer, bytes, n);
    if (kind == NEB_MSG_SUM_REVEAL) neb__sums_heard_reveal(s, peer, bytes, n);
}

/* ---- time ---------------------------------------------------------------------------------------------- */

/* This site cannot contribute to the attempt under way: its keys for the next one say so, and are made anew when it begins. */
static void say_out(neb_session *s, const struct neb_sum_attempt *a)
{
    struct neb_sum_keys k = {
        .site = s->self, .attempt = a->asked, .c0 = a->c0, .version = a->asked_version, .weight = 1};
    say_keys(s, &k, NEB_NO_SITE);
}

/* Whether an offer is to be said again: a second after something changed, then after two, four, …, at most every half minute. */
static bool offer_due(struct neb_sum_attempt *a, uint64_t what)
{
    const int64_t now = neb__now_ns();
    bool same = a->said_for == what;
    if (same && now - a->said_at < a->said_gap) return false;
    a->said_gap = same ? neb__clamp_int(2 * a->said_gap, second, 32 * second) : second;
    a->said_for = what, a->said_at = now;
    return true;
}

/* OPEN may have come to a site before the offers that it names. */
static void say_named(neb_session *s, const struct neb_sum_attempt *a, const struct neb_record *open)
{
    const struct neb_contributor *own = open ? neb__record_contributor(open, s->self) : NULL;
    const struct neb_buf *b = own ? neb__sums_offer_of(a, own) : NULL;
    if (b) neb__sums_say(s, NEB_MSG_SUM_OFFER, b->data, b->len);
}

static void turn(neb_session *s, struct neb_sum_attempt *a)
{
    struct neb_round_attempt now;
    if (!neb__round_attempt(s->core, a->c0, &now)) return;
    bool over = a->attempt && a->attempt == now.attempt && !now.open;
    if (over) {
        neb__sums_remove(s, a);
        neb__sum_attempt_forget(a);
    }
    if (!now.survivors) forget_reveals(a);
    if (now.open && a->asked == neb__sum_next(now.attempt)) say_out(s, a);
    if (now.open && !now.survivors && a->attempt == now.attempt && offer_due(a, now.open))
        say_named(s, a, neb__round_record(s->core, now.open));
    if (now.survivors && a->reveal[s->self]) neb__sums_say_reveal(s, a->reveal[s->self]);
    if (now.survivors) neb__sums_join(s, a, now.survivors);
    if (now.open || !a->asked) return;
    begin(s, a);
    if (!a->keyed) return;
    say_keys(s, &a->keys[s->self], NEB_NO_SITE);
    deal_if_due(s, a);
    const struct neb_buf *own = &a->offer[s->self][0];
    if (own->len && offer_due(a, ~a->dealt)) neb__sums_say(s, NEB_MSG_SUM_OFFER, own->data, own->len);
}

void neb__sums_turn(neb_session *s)
{
    if (!s->sums || !s->core || neb__now_ns() - s->sums->looked_at < second) return;
    s->sums->looked_at = neb__now_ns();
    for (uint32_t f = 0; f < s->sums->fragments && !s->halted; f++) turn(s, &s->sums->fragment[f]);
}
