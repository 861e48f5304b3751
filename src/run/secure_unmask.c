/* secure_unmask.c: what a site says after a secure sum.
 *
 * When SURVIVORS is committed, each member that holds shares says so on its disk and then sends the ones that the record asks
 * for to everybody: REVEAL. Every member puts the seeds together as soon as it can, so that any of them can lead on. A share counts if its
 * hash stands in the offer; if enough shares that do give another secret than was promised, their dealer has lied, and the attempt is void. */
#include "run/secure.h"
#include "base/log.h"
#include "base/mem.h"

#include <openssl/crypto.h>
#include <string.h>

/* ---- putting seeds together ---------------------------------------------------------------------------- */

/* The share that a member revealed of this contributor, if it is one that was dealt. Without the offer (this site does not train, or has
 * started since) the hash of the secret alone must tell. */
static bool revealed_share(const struct neb_sum_attempt *a, const struct neb_sum_offer *o,
                           const struct neb_contributor *c, bool survives, unsigned by, struct neb_share *out)
{
    const struct neb_reveal *r = a->reveal[by];
    struct neb_hash h;
    for (uint32_t i = 0; r && i < r->entries; i++) {
        if (r->entry[i].site != c->site) continue;
        const struct neb_offer_entry *e = o ? neb__offer_entry(o, by) : NULL;
        if (o && (!e || neb__hash(r->entry[i].share, NEB_SHARE_SIZE, &h) != NEB_OK ||
                  !neb__hash_equal(&h, survives ? &e->own : &e->pair)))
            return false;
        out->x = (uint16_t)(by + 1);
        memcpy(out->y, r->entry[i].share, NEB_SHARE_SIZE);
        return true;
    }
    return false;
}

enum joined { JOIN_WAITS, JOIN_DONE, JOIN_BROKEN };

static enum joined join_one(struct neb_sum_attempt *a, const struct neb_record *open,
                            const struct neb_record *who, const struct neb_contributor *c,
                            uint8_t seed[NEB_SEED_SIZE])
{
    struct neb_share share[NEB_SITES_MAX];
    struct neb_sum_offer *o = NEB_NEW(struct neb_sum_offer);
    struct neb_hash h;
    int n = 0, t = open->threshold;
    bool known = o && neb__sums_named_offer(a, c, o), survives = neb__record_of(who, c->site) != NULL;
    for (unsigned by = 0; by < NEB_SITES_MAX; by++)
        n += neb__record_contributor(open, by) &&
             revealed_share(a, known ? o : NULL, c, survives, by, &share[n]);
    neb__free(o);
    if (n < t || t < 1) return JOIN_WAITS;
    for (int first = 0; first + t <= n; first++)
        if (neb__shares_join(share + first, t, seed) == NEB_OK &&
            neb__hash(seed, NEB_SEED_SIZE, &h) == NEB_OK && neb__hash_equal(&h, neb__sum_seed_hash(who, c)))
            return survives || neb__sums_key_fits(c, seed) ? JOIN_DONE : JOIN_BROKEN;
    return known ? JOIN_BROKEN : JOIN_WAITS;
}

/* Puts the seeds together as soon as enough members have revealed their shares, and tells the core. */
void neb__sums_join(neb_session *s, struct neb_sum_attempt *a, uint64_t index)
{
    struct neb_round_attempt now;
    if (a->joined || !neb__round_attempt(s->core, a->c0, &now) || now.survivors != index || !index) return;
    const struct neb_record *open = neb__round_record(s->core, now.open),
                            *who = neb__round_record(s->core, index);
    if (!open || !who) return;
    struct neb_event ev = {.type = NEB_EV_SEEDS,
                           .index = index,
                           .bytes = a->seed[0],
                           .length = open->contributors * (size_t)NEB_SEED_SIZE};
    for (uint32_t i = 0; i < open->contributors && ev.status == NEB_OK; i++) {
        enum joined how = join_one(a, open, who, &open->contributor[i], a->seed[i]);
        if (how == JOIN_WAITS) return;
        if (how == JOIN_DONE) continue;
        /* The next attempts would be void, too, and the work in them lost. */
        neb__sums_avoid(s, a, open->contributor[i].site, NEB_SUM_BAD_S,
                        "dealt shares that do not give its secret, so a sum is void");
        ev.status = NEB_ERR_CORRUPT;
    }
    a->joined = true;
    neb__session_feed(s, &ev);
}

/* ---- revealing ----------------------------------------------------------------------------------------- */

static neb_status make_reveal(neb_session *s, struct neb_sum_attempt *a, const struct neb_record *open,
                              const struct neb_record *who, struct neb_reveal *out)
{
    struct neb_sum_offer *o = NEB_NEW(struct neb_sum_offer);
    if (!o) return neb__fail(NEB_ERR_NOMEM, "out of memory for a secure sum");
    *out = (struct neb_reveal){.index = who->index};
    for (uint32_t i = 0; i < open->contributors; i++) {
        const struct neb_contributor *c = &open->contributor[i];
        uint8_t own[NEB_SHARE_SIZE], pair[NEB_SHARE_SIZE];
        if (!neb__sums_named_offer(a, c, o) || !neb__sums_shares(s, a, o, own, pair)) continue;
        out->entry[out->entries].site = c->site;
        memcpy(out->entry[out->entries++].share, neb__record_of(who, c->site) ? own : pair, NEB_SHARE_SIZE);
        OPENSSL_cleanse(own, sizeof own);
        OPENSSL_cleanse(pair, sizeof pair);
    }
    neb__free(o);
    return NEB_OK;
}

void neb__sums_say_reveal(neb_session *s, const struct neb_reveal *r)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_REVEAL_MAX);
    if (r->entries && neb__reveal_put(r, &b) == NEB_OK) neb__sums_say(s, NEB_MSG_SUM_REVEAL, b.data, b.len);
    neb__buf_free(&b);
}

static uint64_t sites_in(const struct neb_record *who)
{
    uint64_t set = 0;
    for (uint32_t i = 0; i < who->updates; i++) set |= neb__bit(who->update[i].site);
    return set;
}

/* For one set of survivors in an attempt, and never for another, whatever becomes of the log (an operator can force one onto the sites
 * that are left): it is on disk before the first share leaves. */
void neb__sums_reveal(neb_session *s, uint64_t index)
{
    const struct neb_record *who = neb__round_record(s->core, index);
    struct neb_sum_attempt *a = who ? neb__sums_of(s, who->c0) : NULL;
    struct neb_round_attempt now;
    if (!a || !neb__round_attempt(s->core, a->c0, &now) || now.survivors != index) return;
    const struct neb_record *open = neb__round_record(s->core, now.open);
    if (!open || !neb__record_contributor(open, s->self)) return;
    bool here = a->attempt == who->attempt && a->used;
    if (!here && !neb__sums_load(s, a, who->attempt)) {
        neb__info("this site has no shares for the secure sum of record %" PRIu64 " (it began after them)",
                  index);
        return;
    }
    if (a->revealed && a->revealed_set != sites_in(who)) return;
    a->revealed = index;
    a->revealed_set = sites_in(who);
    if (neb__sums_keep(s, a, open) != NEB_OK) {
        neb__warn("no shares are revealed, since the disk does not take a note of it: %s", neb_last_error());
        a->revealed = a->revealed_set = 0;
        return;
    }
    struct neb_reveal *r = NEB_NEW(struct neb_reveal);
    if (!r || make_reveal(s, a, open, who, r) != NEB_OK) {
        neb__free(r);
        return;
    }
    neb__free(a->reveal[s->self]);
    a->reveal[s->self] = r;
    neb__sums_say_reveal(s, r);
    neb__sums_join(s, a, index);
}

void neb__sums_heard_reveal(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    struct neb_reveal *r = NEB_NEW(struct neb_reveal);
    if (!r) return;
    if (neb__reveal_get(bytes, n, r) != NEB_OK) {
        neb__session_refused(s, peer, NEB_QUOTA_FOREIGN, 1);
        neb__free(r);
        return;
    }
    const struct neb_record *who = neb__round_record(s->core, r->index);
    struct neb_sum_attempt *a =
        who && who->type == NEB_RECORD_SURVIVORS && peer < NEB_SITES_MAX ? neb__sums_of(s, who->c0) : NULL;
    struct neb_round_attempt now;
    if (!a || !neb__round_attempt(s->core, a->c0, &now) || now.survivors != r->index || a->reveal[peer]) {
        neb__free(r); /* of another record, or a second time */
        return;
    }
    a->reveal[peer] = r;
    neb__sums_join(s, a, r->index);
}
