/* receive.c: frames from peers: which are looked at, in which order, and by whom.
 *
 * A peer may know another roster than this site, and may lie about everything. So the roster comes first, and what only a member may say
 * comes last. */
#include "round/core.h"

/* The peer stops on purpose: nobody waits for it, and if it led, the next leader need not wait for a
 * timeout. */
static void goodbye(struct neb_round *r, unsigned from)
{
    r->peer[from].gone = true;
    if (from != r->leader || (r->state != NEB_ROUND_FOLLOW && r->state != NEB_ROUND_SYNC)) return;
    r->leader_left = true;
    neb__view_follow(r, r->view);
    neb__view_campaign(r);
}

/* Whether the frame has numbers that no run reaches. Taken at face value, one of them would use up the
 * views, or the lapses, for everybody. */
static bool absurd(const struct neb_round *r, const struct neb_round_frame *f)
{
    const uint64_t top = r->view + NEB_VIEW_LEAP;
    bool view = f->type == NEB_ROUND_FRAME_ASK || f->type == NEB_ROUND_FRAME_ASK_OK ||
                f->type == NEB_ROUND_FRAME_ELECT || f->type == NEB_ROUND_FRAME_VOTE;
    bool lapse = f->type == NEB_ROUND_FRAME_HELLO || f->type == NEB_ROUND_FRAME_HELLO_OK;
    if (f->view > top || f->normal > f->view || (view && f->number > top)) return true;
    if (f->lapse > NEB_LAPSE_MAX || (lapse && f->number > NEB_LAPSE_MAX)) return true;
    for (int i = 0; i < NEB_SITES_MAX; i++)
        if (f->lapses[i] > NEB_LAPSE_MAX) return true;
    for (int i = 0; i < f->saids; i++)
        if (f->said[i].view > top || f->said[i].normal > top) return true;
    return f->proof.view > top || f->prepared.view > top;
}

/* The peer knows an older roster: first it learns of this one, then of everything else. */
static void tell_roster(struct neb_round *r, unsigned to, const struct neb_round_frame *f)
{
    if (r->now - r->peer[to].chain < r->cfg.ping_ms / 2) return;
    r->peer[to].chain = r->now;
    neb__log_give(r, to, f->commit + 1, r->commit);
    neb__order_pass_on(r, to, f);
}

void neb__core_frame(struct neb_round *r, unsigned from, const uint8_t *bytes, size_t n)
{
    struct neb_round_frame f;
    if (from >= NEB_SITES_MAX || neb__round_frame_decode(bytes, n, r->items, r->certs, &f) != NEB_OK ||
        f.from != from)
        return;
    bool member = r->roster.members & neb__bit(from);
    if (absurd(r, &f)) {
        bool far = f.view > r->view + NEB_VIEW_LEAP && f.view < NEB_VIEW_MAX && f.number < NEB_VIEW_MAX;
        if (member && far && f.epoch == r->roster.epoch && !r->conflict) neb__view_far_above(r, from, &f);
        if (far && f.epoch < r->roster.epoch && !r->conflict) tell_roster(r, from, &f);
        return;
    }
    r->peer[from].owed = 0;
    /* The sender's roster may lack this site, or this site's roster may lack the sender. A
     * stranger's roster contradicts nothing. */
    bool known = r->ever & neb__bit(from);
    if (known && f.epoch == r->roster.epoch && f.roster_id != neb__core_roster_id(&r->roster)) {
        neb__core_doubt(r, from);
        neb__order_show(r, from); /* a contradiction is proven by two orders, not by a number */
        if (f.type != NEB_ROUND_FRAME_FORCE && f.type != NEB_ROUND_FRAME_GETLOG &&
            f.type != NEB_ROUND_FRAME_LOG)
            return;
    }
    if (f.type == NEB_ROUND_FRAME_GUILT) {
        if (!neb__guilt_may_look(r, from)) return;
        if (f.saids == 1) neb__guilt_reminded(r, &f.said[0]);
        if (f.prepared.n) neb__autograph_shown(r, &f);
        neb__guilt_shown(r, &f.prepared);
        if (!f.prepared.n) neb__guilt_look(r, f.said, f.saids);
        return;
    }
    if (f.type == NEB_ROUND_FRAME_FORCE) {
        neb__order_force(r, &f.order, from);
        return;
    }
    if (f.type == NEB_ROUND_FRAME_LOG) neb__order_log(r, &f);
    if (r->conflict && f.type != NEB_ROUND_FRAME_GETLOG) return;
    if (f.epoch < r->roster.epoch) tell_roster(r, from, &f);
    if (f.type == NEB_ROUND_FRAME_LOG) {
        /* A site may have been admitted in an epoch that this site has not heard
         * of; then it is the one to tell. */
        if (member || f.epoch > r->roster.epoch) neb__log_frame(r, from, &f);
        return;
    }
    /* It may know the newer roster by an order that is in no record, as at the end of a run: being asked, it tells. */
    if (f.epoch > r->roster.epoch && f.commit >= r->commit) neb__log_ask(r, from, r->commit + 1, false);
    if (f.type == NEB_ROUND_FRAME_GETLOG) {
        if (r->damaged || r->forgot || !f.number) return;
        neb__log_give(r, from, f.number, member ? r->head : r->commit);
        return;
    }
    if (!member) return; /* fenced: evicted, or not admitted yet */
    if (f.type == NEB_ROUND_FRAME_REPORT) {
        neb__lapses_learn(r, from, &f);
        neb__lead_report(r, from, &f);
    }
    if (f.type == NEB_ROUND_FRAME_REQUEST && neb__core_leads(r)) neb__lead_request(r, &f.order);
    if (f.type == NEB_ROUND_FRAME_GOODBYE) goodbye(r, from);
    neb__view_frame(r, from, &f);
}
