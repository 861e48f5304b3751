/* peer_updates.c: updates that go to other sites and come from them. */
#include "run/unnamed.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/relaying.h"
#include "run/secure.h"

#include <math.h>

static const double ahead_s = 10;

size_t neb__session_update_max(const neb_session *s)
{
    return NEB_UPDATE_HEADER_SIZE + neb__codec_bound(s->exact, s->mirror.values) + 1024;
}

/* Of the sum that a masked update is for; 0: not known here (yet). */
static int contributors(const neb_session *s, const struct neb_update_header *h)
{
    struct neb_round_attempt now;
    if (!s->core || h->c0 >= s->mirror.outer->cells || !neb__round_attempt(s->core, h->c0, &now)) return 0;
    const struct neb_record *open = now.open ? neb__round_record(s->core, now.open) : NULL;
    return open && open->attempt == h->attempt ? (int)open->contributors : 0;
}

/* The update must name cells of this model, and hold as many values as they have. What stands before its code must be a
 * statement of privacy. */
bool neb__session_update_fits(const neb_session *s, const struct neb_update_header *h, const uint8_t *bytes,
                              size_t n)
{
    struct neb_codec_info info;
    struct neb_privacy_statement stated;
    size_t first;
    if (h->before &&
        neb__privacy_statement_get(bytes + NEB_UPDATE_HEADER_SIZE, 8 * (size_t)h->before, &stated) != NEB_OK)
        return false;
    if (s->secure || h->kind == NEB_UPDATE_MASKED)
        return h->kind == NEB_UPDATE_MASKED && n == NEB_UPDATE_HEADER_SIZE + (size_t)h->length &&
               neb__sums_fits(s, h, bytes + neb__update_code_at(h), neb__update_code_size(h),
                              contributors(s, h));
    return h->c0 < h->c1 && h->c1 <= s->mirror.outer->cells &&
           n == NEB_UPDATE_HEADER_SIZE + (size_t)h->length &&
           neb__codec_peek(bytes + neb__update_code_at(h), neb__update_code_size(h), &info) == NEB_OK &&
           info.n == neb__mirror_range(&s->mirror, h->c0, h->c1, &first);
}

void neb__session_push(neb_session *s, uint16_t peer, const struct neb_hash *hash, bool asked_for)
{
    struct neb_buf b;
    struct neb_update_header h;
    bool room = neb__lines_has_room(&s->lines, peer, asked_for);
    if (!asked_for && !room) { /* it takes nothing in; later it can ask */
        neb__session_refused(s, peer, NEB_QUOTA_QUEUE, 1);
        return;
    }
    if (!asked_for && neb__hash_equal(hash, &s->updates.made_hash)) { /* just made: no need to read it back */
        neb__session_send_update(s, peer, hash, false, s->updates.made.data, s->updates.made.len);
        return;
    }
    /* a slow line: not a second time over it; and a peer that asks for too much at once asks again later */
    if (asked_for && (neb__lines_under_way(&s->lines, peer, hash) || !room)) {
        neb__session_send(s, peer, NEB_CONTROL, NEB_MSG_COMING, hash->b, NEB_HASH_SIZE);
        return;
    }
    neb__buf_init(&b, neb__session_update_max(s));
    if (!neb__updates_load(&s->updates, hash, &b, &h)) {
        bool coming = asked_for && neb__round_asked(s->core, peer, hash);
        neb__session_send(s, peer, NEB_CONTROL, coming ? NEB_MSG_COMING : NEB_MSG_NONE, hash->b,
                          NEB_HASH_SIZE);
    } else
        neb__session_send_update(s, peer, hash, asked_for, b.data, b.len);
    neb__buf_free(&b);
}

static void have(neb_session *s, const struct neb_update_header *h, const struct neb_hash *hash, double norm)
{
    neb__session_feed(s,
                      &(struct neb_event){.type = NEB_EV_UPDATE, .update = h, .hash = *hash, .norm = norm});
}

/* An update that no record names must be one that a record can name: of one fragment, with a base that the log has
 * reached. Its author may not have too many. The log here may be behind for a moment, so an author is named as one that
 * sends updates ahead of it only when the log has not come there for a while. */
static bool is_wanted(neb_session *s, const struct neb_update_header *h)
{
    struct neb_ahead *a = &s->updates.ahead[h->site % NEB_SITES_MAX];
    if (neb__members_witnesses(&s->members) & neb__bit(h->site)) { /* by the roster it makes none */
        neb__session_refused(s, h->site, NEB_QUOTA_UPDATES, 1);
        return false;
    }
    if (!neb__round_is_fragment(s->core, h->c0, h->c1)) {
        neb__session_refused(s, h->site, NEB_QUOTA_FRAGMENT, 1);
        return false;
    }
    if (neb__unnamed_is_ahead(s, h)) {
        bool still = a->since && a->c0 < s->mirror.outer->cells && a->b > neb__round_version(s->core, a->c0);
        if (!still) *a = (struct neb_ahead){neb__now_ns(), h->c0, h->b};
        if (neb__seconds_since(a->since) > ahead_s) neb__session_refused(s, h->site, NEB_QUOTA_AHEAD, 1);
        return false;
    }
    if (neb__unnamed_has_room(s, h)) return true;
    neb__session_refused(s, h->site, NEB_QUOTA_UPDATES, 1);
    return false;
}

void neb__session_update(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    struct neb_update_header h;
    struct neb_hash hash;
    if (neb__update_header_get(bytes, n, &h) != NEB_OK || !neb__session_update_fits(s, &h, bytes, n)) {
        neb__session_refused(s, peer, NEB_QUOTA_FOREIGN, 1);
        return;
    }
    const struct neb_seal seal = neb__session_seal(s);
    if (neb__hash(bytes, n, &hash) != NEB_OK) return;
    const uint8_t *body = bytes + NEB_UPDATE_HEADER_SIZE;
    bool needed = neb__round_needs(s->core, &hash);
    bool genuine = needed ? neb__update_header_once_genuine(&h, body, &s->genesis, &seal)
                          : neb__update_header_genuine(&h, body, &s->genesis, &seal);
    if (!genuine) {
        neb__session_refused(s, peer, NEB_QUOTA_FOREIGN, 1);
        return;
    }
    bool here = neb__update_exists(&s->updates.files, &hash);
    if (!needed && !here && !is_wanted(s, &h)) {
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_UNWANTED, .site = h.site, .hash = hash});
        return;
    }
    /* Once in a record it would have to be applied, by everybody. */
    double norm = neb__session_norm(s, &h, bytes);
    if (!isfinite(norm)) {
        neb__session_refused(s, h.site, NEB_QUOTA_FOREIGN, 1);
        return;
    }
    neb_status status = here ? NEB_OK : neb__session_keep(s, &hash, bytes, n);
    neb__updates_set_norm(&s->updates, &hash, norm);
    if (status == NEB_OK && !here && !needed) status = neb__unnamed_add(s, &h, &hash);
    if (status == NEB_OK && !here && !needed) neb__relaying_pass_on(s, peer, h.site, &hash, bytes, n);
    if (status == NEB_OK && !here && !needed) neb__session_tempo_hear(s, &h); /* not one of an old record */
    if (status == NEB_OK)
        have(s, &h, &hash, norm);
    else if (status != NEB_ERR_NOSPACE)
        neb__warn("an update of site %u was not kept: %s", h.site, neb_last_error());
}

void neb__session_look_for(neb_session *s, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct neb_update_header h;
    neb__buf_init(&b, neb__session_update_max(s));
    bool found =
        neb__updates_load(&s->updates, hash, &b, &h) && neb__session_update_fits(s, &h, b.data, b.len);
    if (found) have(s, &h, hash, neb__session_norm(s, &h, b.data));
    neb__buf_free(&b);
    if (!found)
        neb__session_feed(s,
                          &(struct neb_event){.type = NEB_EV_NO_UPDATE, .site = NEB_NO_SITE, .hash = *hash});
}
