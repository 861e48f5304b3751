/* view.c: the choice of a leader: greeting after a start, elections, and taking over a log.
 *
 * A view's number contains its leader (view mod 64), so two sites can never lead the same view, whatever
 * roster they know. A site that has not heard a leader with quorum contact first ASKs whether others miss
 * it too. Only if a quorum says yes does it raise its view (durably) and send ELECT. A site that joins
 * answers VOTE with the state of its log, and acknowledges nothing of older views any more. The log with
 * the greatest (normal view, length) of a quorum contains everything that was or could have been
 * committed; the new leader takes it and pings. Followers take over the leader's whole log in one write,
 * together with the new normal view.
 *
 * Greeting: a site that starts again asks the others before it votes. If enough sites answer to meet every
 * quorum it may have been part of, it takes a new lapse number and the best log, theirs or its own.
 * Acknowledgements and votes given under an older lapse no longer count, so a forgotten promise is harmless.
 * If too few answer in time, its disk is undamaged, and nobody remembers more of it than it does itself, it
 * trusts its disk. An empty disk is trusted only while nobody has known this site before. */
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
    return r->leader != NEB_NO_SITE && r->now - r->leader_proof < r->cfg.elect_ms * 8 / 10;
}

/* Tells only the lapses on this site's disk. A site that speaks under a number must not be given it
 * again because this site forgot it. */
void neb__lapses_tell(const struct neb_round *r, struct neb_round_frame *f)
{
    memcpy(f->lapses, r->durable.lapse, sizeof f->lapses);
}

void neb__lapses_learn(struct neb_round *r, const struct neb_round_frame *f)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (f->lapses[i] > r->lapse[i] && (i != r->self || r->state != NEB_ROUND_BOOT))
            r->lapse[i] = f->lapses[i];
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

/* ---- greeting ------------------------------------------------------------------------------------------ */

static void greet_send(struct neb_round *r)
{
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_HELLO,
                                .nonce = r->greet_nonce,
                                .phase = (uint8_t)r->greet_phase,
                                .number = r->greet_lapse,
                                .normal = r->normal,
                                .head = r->head,
                                .start = r->incarnation};
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.members & neb__bit(i))) neb__core_send(r, i, &f);
    r->greet_at = r->now + r->cfg.ping_ms / 2;
}

static void greet_phase(struct neb_round *r, int phase)
{
    r->greet_phase = phase;
    r->greeted = 0;
    r->greet_nonce = r->greet_nonce * 64 + 64 + r->self;
    r->best.view = r->best.normal = r->best.head = 0;
    r->best.site = NEB_NO_SITE;
    greet_send(r);
}

void neb__view_greet(struct neb_round *r)
{
    r->state = NEB_ROUND_BOOT;
    r->greet_nonce = r->incarnation;
    r->greet_any = 0;
    r->greet_end = r->now + r->cfg.greet_ms;
    greet_phase(r, 1);
}

/* `lapse`: a number that enough others have stored; or, when the disk is trusted, the
 * highest one that others told of. */
static void greet_done(struct neb_round *r, uint32_t lapse)
{
    uint64_t view = r->best.view > r->view ? r->best.view : r->view;
    if (lapse > r->lapse[r->self]) r->lapse[r->self] = lapse;
    uint64_t k = (uint64_t)r->lapse[r->self] << 48 | (uint64_t)(r->incarnation & 0xffff) << 32 | 1;
    if (NEB_MUTANT(reuse_sequence)) k = 1, r->next_k = 1;
    if (k > r->next_k) r->next_k = k;
    r->damaged = r->forgot = false;
    neb__view_follow(r, view);
    neb__view_campaign(r);
}

/* Whether the sites that answered meet every quorum this site may have been part of: of the roster in effect,
 * and of a change at the head of the log, which may be committed. */
static bool greeted_enough(const struct neb_round *r)
{
    const struct neb_record *last = r->head > r->commit ? r->log[r->head - 1].record : NULL;
    if (!neb__members_remembers(&r->roster, r->self, r->greeted)) return false;
    return !last || last->type != NEB_RECORD_ROSTER || last->roster.epoch <= r->roster.epoch ||
           neb__members_remembers(&last->roster, r->self, r->greeted);
}

/* Enough sites answered: take the best log if it is better than this site's. */
static void greet_enough(struct neb_round *r)
{
    if (r->greet_phase == 1) {
        r->greet_lapse = (r->greet_known > r->lapse[r->self] ? r->greet_known : r->lapse[r->self]) + 1;
        if (r->greet_lapse > NEB_LAPSE_MAX) {
            neb__core_halt(r, "this site has started 65,535 times, and the numbers of its updates are used "
                              "up: let it leave the run and join it as a new site");
            return;
        }
        if (r->greet_end < r->now + r->cfg.greet_ms) r->greet_end = r->now + r->cfg.greet_ms;
        greet_phase(r, 2); /* a site that can get a new lapse need not trust its disk */
        return;
    }
    bool better = r->best.normal > r->normal || (r->best.normal == r->normal && r->best.head > r->head);
    if (!better || r->best.site == NEB_NO_SITE) {
        greet_done(r, r->greet_lapse);
        return;
    }
    r->greet_phase = 3;
    r->sync_from = r->best.site;
    r->sync_index = r->best.head;
    r->sync_hash = r->best.hash;
    r->sync_normal = r->best.normal;
    r->sync_at = 0;
}

static void hello(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[from];
    struct neb_core_promise mine;
    bool stable = neb__log_acked(r, &mine);
    if (f->phase == 2 && f->number > r->lapse[from]) r->lapse[from] = (uint32_t)f->number;
    if (!stable || (f->phase == 2 && r->durable.lapse[from] < f->number)) {
        p->hello_nonce = f->nonce; /* answered once it is durable */
        p->hello_lapse = f->phase == 2 ? (uint32_t)f->number : 0;
        return;
    }
    struct neb_round_frame a = {.type = NEB_ROUND_FRAME_HELLO_OK, .nonce = f->nonce, .phase = f->phase};
    a.flags = (uint8_t)((r->damaged || r->forgot ? 0 : NEB_FLAG_INTACT) | (p->forgot ? NEB_FLAG_FORGOT : 0));
    a.normal = mine.normal;
    a.head = mine.head;
    a.hash = *neb__log_hash(r, mine.head);
    a.number = r->durable.lapse[from]; /* a number in memory only would be forgotten in a crash */
    neb__lapses_tell(r, &a);
    p->hello_nonce = 0;
    neb__core_send(r, from, &a);
}

/* An empty disk belongs to a first start, or it was lost. It was lost if others know a lapse number of this
 * site although it has asked for none, or if there is a view that cannot exist without this site's vote. */
static bool lost(const struct neb_round *r, const struct neb_round_frame *f)
{
    const struct neb_members *first = &r->cfg.roster;
    bool given = f->number && !r->lapse[r->self];
    bool voted = f->normal && !neb__members_has_quorum(first, first->voters & ~neb__bit(r->self));
    return r->empty && f->phase == 1 && !r->greet_lapse && (given || voted) && !NEB_MUTANT(trust_empty_disk);
}

static void hello_ok(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (r->state != NEB_ROUND_BOOT || f->nonce != r->greet_nonce || f->phase != r->greet_phase) return;
    if ((f->flags & NEB_FLAG_FORGOT) && !NEB_MUTANT(vote_after_rollback)) r->forgot = true;
    if (lost(r, f)) r->forgot = true;
    neb__lapses_learn(r, f); /* a lost disk knew them: they are known again before this site counts */
    if (f->number > r->greet_known && f->phase == 1) r->greet_known = (uint32_t)f->number;
    if (!(f->flags & NEB_FLAG_INTACT)) return;
    r->greeted |= neb__bit(from);
    r->greet_any |= neb__bit(from);
    if (f->view > r->best.view) r->best.view = f->view;
    bool better = r->best.site == NEB_NO_SITE || f->normal > r->best.normal ||
                  (f->normal == r->best.normal && f->head > r->best.head);
    if (better) {
        r->best.normal = f->normal;
        r->best.head = f->head;
        r->best.hash = f->hash;
        r->best.site = (uint16_t)from;
    }
    if (f->commit > r->commit)
        neb__core_send(r, from,
                       &(struct neb_round_frame){.type = NEB_ROUND_FRAME_GETLOG, .number = r->commit + 1});
    if (r->greet_phase < 3 && greeted_enough(r)) greet_enough(r);
}

static void greet_tick(struct neb_round *r)
{
    bool alone = !(r->roster.members & ~neb__bit(r->self));
    bool trust =
        !r->damaged && !r->forgot && (r->now >= r->greet_end || alone || NEB_MUTANT(vote_after_rollback));
    if (trust && neb__members_has_quorum(&r->roster, r->greet_any | neb__bit(r->self))) {
        greet_done(r, r->greet_known);
        return;
    }
    if (r->greet_phase == 3) {
        if (r->now >= r->greet_end + 2 * r->cfg.greet_ms) r->greet_end = r->now, greet_phase(r, 1);
    } else if (r->now >= r->greet_at)
        greet_send(r);
}

/* ---- elections ----------------------------------------------------------------------------------------- */

static void elect(struct neb_round *r)
{
    neb__view_follow(r, r->want_view);
    r->state = NEB_ROUND_ELECT;
    r->ask_phase = 2;
    r->voted = 0;
    r->ask_end = r->now + r->cfg.elect_ms;
    r->best.site = NEB_NO_SITE;
    r->best.view = 0;
    r->sync_normal = UINT64_MAX;
    r->sync_at = r->now + r->cfg.ping_ms / 2;
}

static void ask(struct neb_round *r, uint64_t above)
{
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
    if (neb__members_has_quorum(&r->roster, r->asked)) {
        elect(r);
        return;
    }
    to_voters(r, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_ASK, .number = r->want_view});
}

static void count_vote(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    r->voted |= neb__bit(from);
    r->peer[from].ack_lapse = f->lapse;
    bool better = f->normal > r->best.normal || (f->normal == r->best.normal && f->head > r->best.head);
    if (r->best.site == NEB_NO_SITE || better) {
        r->best.normal = f->normal;
        r->best.head = f->head;
        r->best.hash = f->hash;
        r->best.site = (uint16_t)from;
    }
    if (f->commit > r->best.view) r->best.view = f->commit; /* here: the greatest commit index heard of */
}

static uint64_t valid_votes(const struct neb_round *r)
{
    uint64_t votes = r->voted;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if ((votes & neb__bit(i)) && r->peer[i].ack_lapse < r->lapse[i]) votes &= ~neb__bit(i);
    return votes;
}

/* The roster may change while the committed part is fetched, so everything is judged anew each time. */
static void try_lead(struct neb_round *r)
{
    if (r->state != NEB_ROUND_ELECT || r->durable.view != r->view || !(r->voted & neb__bit(r->self))) return;
    if (!neb__members_has_quorum(&r->roster, valid_votes(r))) return;
    bool complete =
        r->commit >= r->best.view &&
        (r->best.site == r->self || (r->best.head <= r->head && r->sync_normal == r->best.normal &&
                                     neb__hash_equal(neb__log_hash(r, r->best.head), &r->best.hash)));
    if (complete) {
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
                neb__core_send(
                    r, i, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_GETLOG, .number = r->commit + 1});
    }
}

static void send_vote(struct neb_round *r)
{
    struct neb_core_promise mine;
    unsigned to = neb__view_leader_of(r->view);
    if (!neb__log_acked(r, &mine) || r->normal == r->view) return;
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_VOTE,
                                .number = r->view,
                                .normal = mine.normal,
                                .head = mine.head,
                                .hash = *neb__log_hash(r, mine.head),
                                .lapse = mine.lapse[r->self],
                                .commit = r->commit};
    neb__lapses_tell(r, &f);
    if (to != r->self) {
        neb__core_send(r, to, &f);
        return;
    }
    if (r->state == NEB_ROUND_ELECT && !(r->voted & neb__bit(r->self))) count_vote(r, r->self, &f);
}

static void asked_or_elected(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (r->state == NEB_ROUND_BOOT || !is_voter(r) || neb__view_leader_of(f->number) != from) return;
    bool again = f->type == NEB_ROUND_FRAME_ELECT && f->number == r->view && r->state == NEB_ROUND_FOLLOW;
    if (!again && f->number <= r->view) return;
    if (!again && content(r) && !(from == r->leader && r->state != NEB_ROUND_LEAD)) return;
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
    r->normal = r->view;
    r->state = NEB_ROUND_FOLLOW;
    r->sync_from = NEB_NO_SITE;
    r->report_due = true;
}

static void ping(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (neb__view_leader_of(f->view) != from || f->view < r->view || r->state == NEB_ROUND_BOOT ||
        from == r->self) {
        if (f->view < r->view && r->state != NEB_ROUND_BOOT) neb__core_report(r, from);
        return;
    }
    if (f->view > r->view || (r->leader != from && r->state != NEB_ROUND_SYNC)) neb__view_follow(r, f->view);
    if (r->state == NEB_ROUND_LEAD) return;
    r->leader = (uint16_t)from;
    r->leader_heard = r->now;
    r->leader_has_all = f->flags & NEB_FLAG_HAS_ALL;
    r->all_have = f->flags & NEB_FLAG_ALL_HAVE;
    r->floor = f->applied;
    if (f->number && f->number <= 1000) neb__lead_budget(r, (uint32_t)f->number);
    if (f->flags & NEB_FLAG_PROOF) {
        r->leader_proof = r->now;
        r->elect_at = r->now + r->cfg.elect_ms + jitter(r, r->cfg.elect_ms / 2);
        r->ask_phase = 0;
    }
    r->roots_wanted = f->flags & NEB_FLAG_ROOTS;
    neb__roots_pinged(r, f);
    if (r->normal < r->view) {
        r->state = NEB_ROUND_SYNC;
        r->start_index = r->sync_index = f->start;
        r->start_hash = r->sync_hash = f->hash;
        r->sync_from = (uint16_t)from;
        if (f->start <= r->head && neb__hash_equal(neb__log_hash(r, f->start), &f->hash) &&
            f->start >= r->commit) {
            neb__log_cut(r, f->start);
            synced(r);
        }
    }
    if (r->normal == r->view) neb__log_commit_to(r, f->commit);
    if (r->normal < r->view || f->head > r->head)
        neb__core_send(r, from,
                       &(struct neb_round_frame){.type = NEB_ROUND_FRAME_GETLOG,
                                                 .number = (r->normal < r->view ? r->commit : r->head) + 1});
    uint64_t refused = 0;
    for (int i = 0; i < f->items; i++) {
        struct neb_core_update *p = neb__core_update_heard(r, from, &f->item[i].hash, &refused);
        if (p && !p->held && !p->used) p->have |= f->item[i].holders;
    }
    neb__core_refused(r, from, refused);
    neb__core_report(r, from);
}

/* The part of a LOG frame behind the committed records, while this site is taking over a log. */
void neb__view_tail(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (from != r->sync_from) return;
    if (r->state == NEB_ROUND_SYNC && f->view == r->view) {
        if (neb__log_install(r, f, r->sync_index, &r->sync_hash)) {
            synced(r);
            neb__log_commit_to(r, f->commit);
        }
    } else if (r->state == NEB_ROUND_BOOT && r->greet_phase == 3) {
        if (neb__log_install(r, f, r->sync_index, &r->sync_hash)) {
            if (r->sync_normal > r->normal) r->normal = r->sync_normal;
            if (greeted_enough(r)) {
                greet_done(r, r->greet_lapse);
                return;
            }
            /* The log told of another roster, and the answers are not enough for that one. */
            r->greet_end = r->now + r->cfg.greet_ms;
            greet_phase(r, 1);
        }
    } else if (r->state == NEB_ROUND_ELECT && r->ask_phase == 3 && f->view == r->view) {
        if (neb__log_install(r, f, r->sync_index, &r->sync_hash)) r->normal = r->sync_normal = r->best.normal;
        try_lead(r);
    }
}

/* The peer lives under a newer lapse. It may have begun with an empty disk, whose lives count from one, and
 * its older promises are void. */
static void new_lapse(struct neb_core_peer *p, uint32_t lapse, uint64_t life)
{
    p->lapse_seen = lapse;
    p->life = life;
    p->view_seen = p->head_seen = 0;
}

/* Whether a greeting shows that the sender's disk went back in time. Either it has promised more than it
 * says, or it begins a life that was heard of before under the same lapse (each start counts up on disk
 * before it says anything). A greeting names the lapse on the sender's disk. */
static bool went_back(struct neb_core_peer *p, const struct neb_round_frame *f)
{
    p->greeted = f->start;
    if (f->lapse > p->lapse_seen) {
        new_lapse(p, f->lapse, f->start);
        p->spoke = false;
        return false;
    }
    bool again = f->lapse < p->lapse_seen || f->start < p->life || (f->start == p->life && p->spoke);
    if (f->start > p->life) p->life = f->start, p->spoke = false;
    return again || p->view_seen > f->view || (p->view_seen == f->view && p->head_seen > f->head);
}

/* Whether a record here names an update of the site. If it greets without any record or lapse, its disk was lost. */
static bool took_part(const struct neb_round *r, unsigned site)
{
    for (uint32_t c = 0; c < r->cfg.cells; c++)
        if (r->lastk[c * NEB_SITES_MAX + site]) return true;
    for (uint64_t i = r->commit; i < r->head; i++)
        if (r->log[i].record->type == NEB_RECORD_ROUND && neb__record_of(r->log[i].record, site)) return true;
    return false;
}

/* Remembers the promises that a peer's frame shows. A leader's view is on its disk before it leads, a
 * voter's before it votes. A report acknowledges something only with its flag: without it, the view
 * it names may be in memory only. */
static void remember(struct neb_core_peer *p, const struct neb_round_frame *f)
{
    bool vote = f->type == NEB_ROUND_FRAME_VOTE,
         ack = f->type == NEB_ROUND_FRAME_REPORT && (f->flags & NEB_FLAG_NORMAL);
    uint64_t view = vote ? f->number : f->view;
    if (!vote && !ack && f->type != NEB_ROUND_FRAME_PING) return;
    p->spoke = true;
    if (f->lapse > p->lapse_seen) new_lapse(p, f->lapse, p->greeted < p->life ? p->greeted : p->life);
    if (view > p->view_seen) p->view_seen = view, p->head_seen = 0;
    if (ack && view == p->view_seen && f->head > p->head_seen) p->head_seen = f->head;
}

/* ---- entry points -------------------------------------------------------------------------------------- */

void neb__view_durable(struct neb_round *r)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_core_peer *p = &r->peer[i];
        struct neb_round_frame f = {
            .nonce = p->hello_nonce, .number = p->hello_lapse, .phase = p->hello_lapse ? 2 : 1};
        if (p->hello_nonce) hello(r, i, &f);
    }
    if (r->state == NEB_ROUND_ELECT && r->ask_phase == 2 && r->durable.view == r->view) {
        to_voters(r, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_ELECT, .number = r->view});
        send_vote(r);
        try_lead(r);
    } else if (r->state == NEB_ROUND_FOLLOW && r->leader == NEB_NO_SITE && is_voter(r))
        send_vote(r);
    r->report_due = true;
}

void neb__view_frame(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[from];
    remember(p, f);
    switch (f->type) {
    case NEB_ROUND_FRAME_HELLO:
        p->forgot = went_back(p, f) || (!f->lapse && !f->normal && !f->head && took_part(r, from));
        p->odd = false;
        for (size_t i = 0; i < r->updates; i++) /* it will report the updates it has now */
            r->update[i].have &= ~neb__bit(from);
        hello(r, from, f);
        break;
    case NEB_ROUND_FRAME_HELLO_OK: hello_ok(r, from, f); break;
    case NEB_ROUND_FRAME_ASK:
    case NEB_ROUND_FRAME_ELECT: asked_or_elected(r, from, f); break;
    case NEB_ROUND_FRAME_ASK_OK:
        if (r->ask_phase != 1 || f->number != r->want_view || r->want_view <= r->view) break;
        r->asked |= neb__bit(from);
        if (neb__members_has_quorum(&r->roster, r->asked)) elect(r);
        break;
    case NEB_ROUND_FRAME_VOTE:
        if (r->state != NEB_ROUND_ELECT || f->number != r->view) break;
        neb__lapses_learn(r, f);
        if (!(r->voted & neb__bit(from))) count_vote(r, from, f);
        try_lead(r);
        break;
    case NEB_ROUND_FRAME_PING:
        neb__lapses_learn(r, f);
        ping(r, from, f);
        break;
    default: break;
    }
    /* A member in a higher view will not listen to this leader again: lead a view above it. */
    if (r->state == NEB_ROUND_LEAD && f->view > r->view && f->type == NEB_ROUND_FRAME_REPORT) {
        ask(r, f->view);
        elect(r);
    }
}

void neb__view_tick(struct neb_round *r)
{
    if (r->state == NEB_ROUND_BOOT) {
        greet_tick(r);
        if (r->state != NEB_ROUND_BOOT || r->greet_phase != 3) return;
    }
    bool syncing = r->state == NEB_ROUND_SYNC || r->state == NEB_ROUND_BOOT;
    if (syncing && r->now >= r->sync_at) {
        r->sync_at = r->now + r->cfg.ping_ms / 2;
        neb__core_send(r, r->sync_from,
                       &(struct neb_round_frame){.type = NEB_ROUND_FRAME_GETLOG, .number = r->commit + 1});
    }
    if (r->state == NEB_ROUND_ELECT) {
        if (r->now >= r->ask_end)
            neb__view_follow(r, r->view);
        else if (r->ask_phase == 3)
            try_lead(r);
        else if (r->now >= r->sync_at && r->durable.view == r->view) {
            r->sync_at = r->now + r->cfg.ping_ms / 2;
            to_voters(r, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_ELECT, .number = r->view});
        }
        return;
    }
    if (r->ask_phase == 1 && r->now >= r->ask_end) r->ask_phase = 0;
    bool idle = r->state == NEB_ROUND_FOLLOW || r->state == NEB_ROUND_SYNC;
    if (idle && is_voter(r) && r->now >= r->elect_at) ask(r, 0);
}
