/* view.c: the choice of a leader: elections, and following the one that was chosen.
 *
 * A view's number contains its leader (view mod 64), so two sites can never lead the same view, whatever
 * roster they know. A site that has not heard a leader with quorum contact first ASKs whether others miss
 * it too. Only if a quorum says yes does it raise its view (durably) and send ELECT. A site that joins
 * answers VOTE with the state of its log, and acknowledges nothing of older views any more. The log with
 * the greatest (normal view, length) of a quorum contains everything that was or could have been
 * committed; the new leader takes it and pings (votes.c judges votes). Followers take over the leader's whole log
 * in one write, together with the new normal view. */
#include "round/core.h"
#include "base/mutant.h"
#include "base/rng.h"

unsigned neb__view_leader_of(uint64_t view)
{
    return view ? (unsigned)(view % NEB_SITES_MAX) : NEB_NO_SITE;
}

static int64_t jitter(struct neb_round *r, int64_t span)
{
    struct neb_rng g = {r->cfg.seed};
    r->cfg.seed = neb__rng_next(&g);
    return (int64_t)neb__rng_below(&g, (uint64_t)span + 1);
}

static void to_voters(struct neb_round *r, const struct neb_round_frame *f)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.voters & neb__bit(i))) neb__core_send(r, i, f);
}

static bool is_voter(const struct neb_round *r)
{
    return r->roster.voters & neb__bit(r->self);
}

/* Whether a leader that proves quorum contact was heard lately: then there is no reason to leave it. */
static bool content(const struct neb_round *r)
{
    if (r->state == NEB_ROUND_LEAD) return r->now - r->contact < r->cfg.elect_ms * 8 / 10;
    return r->leader != NEB_NO_SITE && !neb__idle_leader(r, r->leader) &&
           r->now - r->leader_proof < r->cfg.elect_ms * 8 / 10;
}

bool neb__view_joined(const struct neb_round *r)
{
    return r->normal == r->view && !r->foreign;
}

/* Follows in `view`, without a leader until one is heard. */
void neb__view_follow(struct neb_round *r, uint64_t view)
{
    if (r->state == NEB_ROUND_HALTED) return;
    r->state = NEB_ROUND_FOLLOW;
    if (view > r->view) r->view = view;
    r->leader = NEB_NO_SITE;
    r->leader_has_all = r->all_have = false;
    r->ask_phase = 0;
    r->sync_from = NEB_NO_SITE;
    r->elect_at = r->now + r->cfg.elect_ms / 2 + jitter(r, r->cfg.elect_ms);
}

/* Nobody seems to lead: the first of the voters in reach tries at once, the next a little later. This is
 * harmless if there is a leader, because its followers will not join. */
void neb__view_campaign(struct neb_round *r)
{
    int rank = 0;
    for (unsigned i = 0; i < r->self; i++)
        rank += (r->roster.voters & neb__bit(i)) && r->peer[i].up && !r->peer[i].gone;
    r->hurry = r->now + 2 * r->cfg.greet_ms;
    r->elect_at = r->now + rank * r->cfg.ping_ms / 2;
}

/* ---- elections ----------------------------------------------------------------------------------------- */

static void elect(struct neb_round *r)
{
    neb__view_follow(r, r->want_view);
    r->state = NEB_ROUND_ELECT;
    r->ask_above = 0;
    r->ask_phase = 2;
    r->voted = 0;
    r->votes = 0;
    r->best_prepared.n = 0;
    r->ask_end = r->now + r->cfg.elect_ms;
    r->best.site = NEB_NO_SITE;
    r->best.view = 0;
    r->sync_normal = UINT64_MAX;
    r->sync_at = r->now + r->cfg.ping_ms / 2;
}

static void ask(struct neb_round *r, uint64_t above)
{
    if (above > r->view + NEB_VIEW_LEAP / 2) above = r->view + NEB_VIEW_LEAP / 2; /* or nobody would listen */
    uint64_t top = above > r->view ? above : r->view;
    uint64_t want = (top / NEB_SITES_MAX + 1) * NEB_SITES_MAX + r->self;
    if (want != r->want_view || r->ask_phase != 1) r->asked = 0;
    r->want_view = want;
    r->asked |= neb__bit(r->self);
    r->ask_phase = 1;
    r->ask_end = r->now + r->cfg.ping_ms;
    bool hurry = r->now < r->hurry;
    int64_t wait = hurry ? r->cfg.ping_ms / 4 : r->cfg.elect_ms / 2;
    r->elect_at = r->now + wait + jitter(r, hurry ? wait : r->cfg.elect_ms);
    if (neb__core_quorum(r, r->asked)) {
        elect(r);
        return;
    }
    to_voters(r, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_ASK, .number = r->want_view});
}

static void send_vote(struct neb_round *r);

/* The roster may change while the committed part is fetched. Votes of the epoch before would convince nobody: the voters are
 * asked again. */
static void drop_old_votes(struct neb_round *r)
{
    int before = r->votes;
    for (int i = r->votes - 1; i >= 0; i--) {
        if (r->vote[i].epoch == r->roster.epoch) continue;
        r->voted &= ~neb__bit(r->vote[i].site);
        r->vote[i] = r->vote[--r->votes];
        r->vote_prepared[i] = r->vote_prepared[r->votes];
    }
    if (r->votes == before) return;
    r->ask_phase = 2;
    r->sync_at = r->now;
    send_vote(r);
}

/* Whether the votes of a quorum, this site's own among them, say which log is the best. Everything is judged anew each time. */
static bool chosen(struct neb_round *r)
{
    if (r->durable.view != r->view) return false;
    drop_old_votes(r);
    if (!(r->voted & neb__bit(r->self))) return false;
    neb__votes_choose(r);
    return neb__core_quorum(r, r->voted) && (r->voted & neb__bit(r->self));
}

static void try_lead(struct neb_round *r)
{
    if (r->state != NEB_ROUND_ELECT || !chosen(r)) return;
    bool complete =
        r->commit >= r->best.view && r->best.head <= r->head &&
        (r->sync_normal == r->best.normal || r->best.site == r->self) &&
        neb__hash_equal(neb__log_hash(r, r->best.head),
                        &r->best.hash); /* also its own: certified records may have taken its place */
    const bool backed = neb__core_byzantine(r) || NEB_MUTANT(trust_claims) ||
                        neb__log_forced(r, r->best.head) >= r->best.forced;
    if (complete && !backed) { /* when the time is up its author is not listened to for a while */
        r->ask_phase = 3;
        r->sync_from = r->best.site;
        return;
    }
    if (complete) {
        if (neb__core_byzantine(r)) neb__log_cut(r, r->best.head > r->commit ? r->best.head : r->commit);
        neb__lead_start(r);
        return;
    }
    unsigned from = r->best.site;
    if (r->ask_phase == 2 || r->now >= r->sync_at) {
        r->ask_phase = 3;
        r->sync_from = (uint16_t)from;
        r->sync_index = r->best.head;
        r->sync_hash = r->best.hash;
        r->sync_at = r->now + r->cfg.ping_ms / 2;
        for (unsigned i = 0; i < NEB_SITES_MAX; i++) /* sites that know more commits, or have the log */
            if (i != r->self && (i == from || (r->voted & neb__bit(i))))
                neb__log_ask(r, i, r->commit + 1, true);
    }
}

static void send_vote(struct neb_round *r)
{
    struct neb_core_promise mine;
    unsigned to = neb__view_leader_of(r->view);
    if (!neb__log_acked(r, &mine) || r->normal == r->view) return;
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_VOTE, .number = r->view};
    struct neb_said *v = &f.said[f.saids++];
    *v = (struct neb_said){.kind = NEB_SAID_VOTES,
                           .view = r->view,
                           .normal = mine.normal,
                           .index = mine.head,
                           .hash = *neb__log_hash(r, mine.head)};
    if (neb__core_byzantine(r)) {
        f.prepared = r->prepared_durable;
        v->normal = f.prepared.n ? f.prepared.view : 0;
        v->index = f.prepared.n ? f.prepared.index : 0;
        v->hash = f.prepared.n ? f.prepared.hash : r->cfg.genesis;
    }
    neb__vote_set_forced(v, neb__core_byzantine(r)
                                ? neb__order_forced_until(r, f.prepared.n ? f.prepared.epoch : 0)
                                : neb__log_forced(r, mine.head));
    f.normal = mine.normal;
    f.head = mine.head;
    f.hash = *neb__log_hash(r, mine.head);
    f.proof = r->newest;
    if (!neb__cert_say(r, v)) return;
    neb__autograph_vote(r, mine.normal, &f);
    neb__lapses_tell(r, to, &f);
    if (to != r->self) {
        neb__core_send(r, to, &f);
        return;
    }
    if (r->state == NEB_ROUND_ELECT && !(r->voted & neb__bit(r->self))) neb__votes_count(r, r->self, &f);
}

/* A site that names higher and higher views would keep the leader busy with elections. */
static bool may_raise(const struct neb_round *r, struct neb_core_peer *p)
{
    if (r->now < p->raise_at) return false;
    if (r->now > p->raise_at + 60000) p->raises = 0;
    p->raise_at = r->now + (p->raises > 2 ? r->cfg.elect_ms << (p->raises < 8 ? p->raises - 2 : 6) : 0);
    p->raises++;
    return true;
}

/* A judged leader may be in a view of its own, which it began in vain. It can join only what is above that, and its vote may be needed. */
static void look_above(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    bool above = neb__idle_leader(r, from) && f->view > r->view && f->view > r->ask_above;
    if (above && may_raise(r, &r->peer[from]) && !NEB_MUTANT(ask_below)) r->ask_above = f->view;
}

/* A candidate may have been pushed far up by a liar. It cannot come down, and its vote may be needed, so this site comes towards it,
 * no further at a time than a liar could push it. */
static void come_towards(struct neb_round *r, unsigned from)
{
    if (may_raise(r, &r->peer[from]))
        neb__view_follow(r, (r->view + NEB_VIEW_PUSH) / NEB_SITES_MAX * NEB_SITES_MAX + from);
}

static void asked_or_elected(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (r->state == NEB_ROUND_BOOT || !is_voter(r) || neb__view_leader_of(f->number) != from) return;
    look_above(r, from, f);
    bool again = f->type == NEB_ROUND_FRAME_ELECT && f->number == r->view && r->state == NEB_ROUND_FOLLOW;
    if (!again && (f->number <= r->view || neb__idle_leader(r, from))) return;
    if (!again && content(r) && !(from == r->leader && r->state != NEB_ROUND_LEAD)) {
        if (f->commit > r->commit && !NEB_MUTANT(ask_leader_only))
            neb__log_ask(r, from, r->commit + 1, true); /* this leader may keep it back */
        return;
    }
    if (f->number > r->view + NEB_VIEW_PUSH && from != r->leader) {
        come_towards(r, from);
        return;
    }
    if (f->type == NEB_ROUND_FRAME_ASK) {
        neb__core_send(r, from,
                       &(struct neb_round_frame){.type = NEB_ROUND_FRAME_ASK_OK, .number = f->number});
        return;
    }
    if (!again) {
        neb__view_follow(r, f->number);
        r->elect_at += r->cfg.elect_ms / 2; /* time for the candidate */
    }
    if (again || NEB_MUTANT(view_not_durable))
        send_vote(r); /* the first vote leaves when the view is durable */
}

/* ---- taking over a log --------------------------------------------------------------------------------- */

static void synced(struct neb_round *r)
{
    const struct neb_said *newest = &r->autograph[(r->autographs + AUTOGRAPHS - 1) % AUTOGRAPHS];
    if (r->start_said.kind && r->start_said.view == r->view && (!r->autographs || newest->view < r->view))
        neb__autograph_keep(r, &r->start_said);
    neb__prepared_replace(r, &r->start_prepared);
    r->foreign = false;
    r->normal = r->view;
    r->state = NEB_ROUND_FOLLOW;
    r->sync_from = NEB_NO_SITE;
    r->report_due = true;
}

/* A leader that the roster before a forced one has elected. Its view may be higher than those in which the new roster commits, and its
 * log lacks what that committed. It is told of the order. */
static bool of_old_roster(const struct neb_round *r, const struct neb_round_frame *f)
{
    bool old = f->epoch < r->forced_epoch || (f->saids && f->said[0].epoch < r->forced_epoch);
    return old && !NEB_MUTANT(views_over_force);
}

static void ping(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (neb__view_leader_of(f->view) != from || f->view < r->view || r->state == NEB_ROUND_BOOT ||
        from == r->self) {
        if (f->view < r->view && r->state != NEB_ROUND_BOOT) neb__core_report(r, from);
        return;
    }
    if (of_old_roster(r, f)) return;
    bool known = f->view == r->view && (neb__view_joined(r) || r->leader == from);
    if (!known && !neb__votes_for_leader(r, from, f)) {
        neb__guilt_look(r, f->said, f->saids);
        neb__core_doubt(r, from);
        return;
    }
    if (!known) {
        r->start_prepared = f->prepared;
        r->start_said = f->said[0];
        (void)neb__guilt_compare(r, &f->said[0]);
        neb__guilt_vote(r, &f->said[0], false);
        for (int i = 1; i < f->saids; i++) {
            (void)neb__guilt_compare(r, &f->said[i]);
            neb__guilt_vote(r, &f->said[i], false);
        }
    }
    if (f->view > r->view || (r->leader != from && r->state != NEB_ROUND_SYNC)) neb__view_follow(r, f->view);
    if (r->state == NEB_ROUND_LEAD) return;
    r->leader = (uint16_t)from;
    r->leader_heard = r->now;
    r->leader_commit = f->commit;
    r->leader_begun = f->flags & NEB_FLAG_BEGUN;
    r->leader_has_all = f->flags & NEB_FLAG_HAS_ALL;
    r->all_have = f->flags & NEB_FLAG_ALL_HAVE;
    r->floor = f->applied < r->commit ? f->applied : r->commit; /* what is not committed may be replaced */
    if (f->number && f->number <= 1000) neb__lead_budget(r, (uint32_t)f->number);
    if ((f->flags & NEB_FLAG_PROOF) && !neb__idle_leader(r, from)) {
        r->leader_proof = r->now;
        r->elect_at = r->now + r->cfg.elect_ms + jitter(r, r->cfg.elect_ms / 2);
        r->ask_phase = 0;
    }
    r->roots_wanted = f->flags & NEB_FLAG_ROOTS;
    neb__roots_pinged(r, f);
    if (!neb__view_joined(r)) {
        r->state = NEB_ROUND_SYNC;
        r->start_index = r->sync_index = f->start;
        r->start_hash = r->sync_hash = f->hash;
        r->sync_from = (uint16_t)from;
        if (r->leader_head == UINT64_MAX && f->lapses[r->self] >= r->lapse[r->self]) r->leader_head = f->head;
        if (r->normal < r->view && f->start <= r->head &&
            neb__hash_equal(neb__log_hash(r, f->start), &f->hash) && f->start >= r->commit) {
            neb__log_cut(r, f->start);
            synced(r);
        }
    }
    if (neb__view_joined(r) && !r->start_index) r->start_index = f->start, r->start_hash = f->hash;
    (void)neb__cert_take(r, &f->proof);
    neb__prepared_take(r, &f->prepared);
    if (r->state == NEB_ROUND_HALTED) return;
    bool other = f->proof.n && f->proof.index > r->commit; /* this log goes on from another record */
    if (!neb__view_joined(r) || other)
        neb__log_ask(r, from, r->commit + 1, true);
    else if (f->head > r->head)
        neb__log_ask(r, from, r->head + 1, true);
    uint64_t refused = 0;
    for (int i = 0; i < f->items; i++) {
        struct neb_core_update *p = neb__core_update_heard(r, from, &f->item[i].hash, &refused);
        if (p && !p->held && !p->used) p->have |= f->item[i].holders;
    }
    neb__core_refused(r, from, refused);
    neb__core_report(r, from);
}

/* Under `byzantine` the best of the votes is what was prepared. This site's log may be of a later view, in which it acknowledged
 * more. That log goes only in the step in which this site begins to lead, so that the disk never has less than was acknowledged:
 * after a start its own signatures would show that it forgot. */
static bool may_take_best(struct neb_round *r)
{
    bool less = r->best.normal < r->normal || (r->best.normal == r->normal && r->best.head < r->head);
    if (!neb__core_byzantine(r) || !less || NEB_MUTANT(forget_early)) return true;
    if (!chosen(r) || r->commit < r->best.view || r->best.head != r->sync_index) return false;
    if (r->best.head <= r->commit && !neb__hash_equal(neb__log_hash(r, r->best.head), &r->best.hash))
        return false;
    return neb__hash_equal(&r->best.hash, &r->sync_hash);
}

/* A candidate's way to the log with which its view begins. That log must be the one that was asked for, since a better vote may have
 * come, and must have the forced roster that the vote names. */
static void take_best(struct neb_round *r, const struct neb_round_frame *f)
{
    const bool asked = r->best.head == r->sync_index && neb__hash_equal(&r->best.hash, &r->sync_hash);
    const bool backed = neb__core_byzantine(r) || NEB_MUTANT(trust_claims) ||
                        neb__log_frame_forced(r, f, r->sync_index) >= r->best.forced;
    if (!asked || !backed || !may_take_best(r) ||
        !neb__log_install(r, f, r->sync_index, &r->sync_hash, false))
        return;
    r->normal = r->sync_normal = r->best.normal;
    neb__prepared_replace(r, &r->best_prepared);
}

/* The part of a LOG frame behind the committed records, while this site is taking over a log. */
void neb__view_tail(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    /* A log that leads to a certain record may come from anybody: who said it has it may not give it. */
    bool anybody = r->state == NEB_ROUND_BOOT || r->state == NEB_ROUND_ELECT;
    if (from != r->sync_from && !anybody) return;
    if (r->state == NEB_ROUND_SYNC && f->view == r->view) {
        bool reconciles = r->normal == r->view;
        if (reconciles ? neb__log_reconcile(r, f)
                       : neb__log_install(r, f, r->sync_index, &r->sync_hash, true)) {
            synced(r);
            (void)neb__cert_take(r, &f->proof);
        }
    } else if (r->state == NEB_ROUND_BOOT && r->greet_phase == 3) {
        neb__view_greet_tail(r, from, f);
    } else if (r->state == NEB_ROUND_ELECT && r->ask_phase == 3 && f->view == r->view) {
        take_best(r, f);
        try_lead(r);
    }
}

/* ---- entry points -------------------------------------------------------------------------------------- */

void neb__view_durable(struct neb_round *r)
{
    neb__view_greet_durable(r);
    if (r->state == NEB_ROUND_ELECT && r->ask_phase == 2 && r->durable.view == r->view) {
        to_voters(r, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_ELECT, .number = r->view});
        send_vote(r);
        try_lead(r);
    } else if (r->state == NEB_ROUND_FOLLOW && r->leader == NEB_NO_SITE && is_voter(r))
        send_vote(r);
    r->report_due = true;
}

/* A member in a higher view will not listen to this leader again: lead a view above it, or as far towards it as followers accept. */
static void lead_above(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (r->state != NEB_ROUND_LEAD || f->view <= r->view || f->type != NEB_ROUND_FRAME_REPORT) return;
    if (!may_raise(r, &r->peer[from])) return;
    ask(r, f->view);
    elect(r);
}

void neb__view_far_above(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    bool candidate = f->type == NEB_ROUND_FRAME_ASK || f->type == NEB_ROUND_FRAME_ELECT;
    if (candidate && f->number > r->view) asked_or_elected(r, from, f);
    lead_above(r, from, f);
}

void neb__view_frame(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[from];
    neb__view_greet_remember(p, f);
    neb__view_greet_blank(r, from, f);
    switch (f->type) {
    case NEB_ROUND_FRAME_HELLO: neb__view_greet_asked(r, from, f); break;
    case NEB_ROUND_FRAME_HELLO_OK: neb__view_greet_answered(r, from, f); break;
    case NEB_ROUND_FRAME_ASK:
    case NEB_ROUND_FRAME_ELECT: asked_or_elected(r, from, f); break;
    case NEB_ROUND_FRAME_ASK_OK:
        if (r->ask_phase != 1 || f->number != r->want_view || r->want_view <= r->view) break;
        r->asked |= neb__bit(from);
        if (neb__core_quorum(r, r->asked)) elect(r);
        break;
    case NEB_ROUND_FRAME_VOTE:
        if (r->state != NEB_ROUND_ELECT || f->number != r->view) break;
        neb__lapses_learn(r, from, f);
        if (!(r->voted & neb__bit(from))) neb__votes_count(r, from, f);
        try_lead(r);
        break;
    case NEB_ROUND_FRAME_PING:
        neb__lapses_learn(r, from, f);
        ping(r, from, f);
        break;
    default: break;
    }
    lead_above(r, from, f);
}

void neb__view_tick(struct neb_round *r)
{
    if (r->state == NEB_ROUND_BOOT) {
        neb__view_greet_tick(r);
        if (r->state != NEB_ROUND_BOOT || r->greet_phase != 3) return;
    }
    bool syncing = r->state == NEB_ROUND_SYNC || r->state == NEB_ROUND_BOOT;
    if (syncing && r->now >= r->sync_at) {
        r->sync_at = r->now + r->cfg.ping_ms / 2;
        neb__log_ask(r, r->sync_from, r->commit + 1, true);
        for (unsigned i = 0; r->state == NEB_ROUND_BOOT && i < NEB_SITES_MAX; i++)
            if (i != r->sync_from && (r->roster.members & neb__bit(i)))
                neb__log_ask(r, i, r->commit + 1, false);
    }
    if (r->state == NEB_ROUND_ELECT) {
        if (r->now >= r->ask_end) {
            if (r->ask_phase == 3) neb__view_greet_not_backed(r, r->sync_from);
            neb__view_follow(r, r->view);
        } else if (r->ask_phase == 3)
            try_lead(r);
        else if (r->now >= r->sync_at && r->durable.view == r->view) {
            r->sync_at = r->now + r->cfg.ping_ms / 2;
            to_voters(r, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_ELECT, .number = r->view});
        }
        return;
    }
    if (r->ask_phase == 1 && r->now >= r->ask_end) r->ask_phase = 0;
    bool idle = r->state == NEB_ROUND_FOLLOW || r->state == NEB_ROUND_SYNC;
    if (idle && is_voter(r) && r->now >= r->elect_at) ask(r, r->ask_above);
}
