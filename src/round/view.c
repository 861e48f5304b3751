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
    if (r->greet_phase == 2) memcpy(f.signature, r->greet_signature, NEB_SEAL_SIZE);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.members & neb__bit(i))) neb__core_send(r, i, &f);
    r->greet_at = r->now + r->cfg.ping_ms / 2;
}

static void greet_phase(struct neb_round *r, int phase)
{
    r->greet_phase = phase;
    r->greeted = 0;
    r->greet_nonce = neb__mix64(r->cfg.seed ^ ++r->greetings); /* no older answer fits */
    r->best.view = r->best.normal = r->best.head = 0;
    r->best.site = NEB_NO_SITE;
    greet_send(r);
}

void neb__view_greet(struct neb_round *r)
{
    r->state = NEB_ROUND_BOOT;
    r->greet_any = 0;
    r->ask_phase = 0;
    r->leader = NEB_NO_SITE;
    r->greet_end = r->now + r->cfg.greet_ms;
    greet_phase(r, 1);
}

/* `lapse`: a number that enough others have stored; or, when the disk is trusted, the
 * highest one that others told of. */
static void greet_done(struct neb_round *r, uint32_t lapse)
{
    uint64_t view = r->best.view > r->view ? r->best.view : r->view;
    if (lapse > r->lapse[r->self]) neb__prepared_forget(r);
    if (lapse > r->lapse[r->self]) r->lapse[r->self] = lapse;
    if (lapse == r->greet_lapse && lapse > r->word[r->self].lapse) {
        r->word[r->self] = (struct neb_round_frame_word){.site = (uint8_t)r->self, .lapse = lapse};
        memcpy(r->word[r->self].signature, r->greet_signature, NEB_SEAL_SIZE);
        r->lapse_unsaved |= neb__bit(r->self);
    }
    uint64_t k = (uint64_t)r->lapse[r->self] << 48 | (uint64_t)(r->incarnation & 0xffff) << 32 | 1;
    if (NEB_MUTANT(reuse_sequence)) k = 1, r->next_k = 1;
    if (k > r->next_k) r->next_k = k;
    r->damaged = r->forgot = false;
    r->spoke = true;
    r->foreign = true; /* until its leader has been heard */
    r->fresh = lapse && lapse == r->greet_lapse;
    r->leader_head = UINT64_MAX;
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
        if (neb__lapse_sign(&r->cfg.genesis, &r->cfg.seal, r->self, r->greet_lapse, r->greet_signature) !=
                NEB_OK &&
            r->cfg.quorum != NEB_QUORUM_OLD)
            return;
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
    if (f->phase == 2 && f->number > r->lapse[from] &&
        !neb__lapse_take(r, from, (uint32_t)f->number, f->signature) && r->cfg.quorum == NEB_QUORUM_OLD)
        r->lapse[from] = (uint32_t)f->number;
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
    if (r->word_durable[from].lapse == a.number)
        memcpy(a.signature, r->word_durable[from].signature, NEB_SEAL_SIZE);
    memset(p->knows, 0, sizeof p->knows);
    neb__lapses_tell(r, from, &a);
    p->hello_nonce = 0;
    neb__core_send(r, from, &a);
}

/* An empty disk belongs to a first start, or it was lost. It was lost if others know a lapse number of this
 * site although it has asked for none, or if there is a view that cannot exist without this site's vote. */
static bool lost(const struct neb_round *r, const struct neb_round_frame *f, bool own)
{
    const struct neb_members *first = &r->cfg.roster;
    bool given = own && f->number && !r->lapse[r->self];
    bool voted = f->normal && !neb__members_has_quorum(first, first->voters & ~neb__bit(r->self));
    return r->empty && f->phase == 1 && !r->greet_lapse && (given || voted) && !NEB_MUTANT(trust_empty_disk);
}

/* Whether this site did give itself the number that a peer says it had. */
static bool own_lapse(const struct neb_round *r, const struct neb_round_frame *f)
{
    uint32_t lapse = (uint32_t)f->number;
    return r->cfg.quorum == NEB_QUORUM_OLD || lapse <= r->lapse[r->self] ||
           (r->greet_lapse && lapse <= r->greet_lapse) ||
           neb__lapse_genuine(&r->cfg.genesis, &r->cfg.seal, r->self, lapse, f->signature);
}

static void hello_ok(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (r->state != NEB_ROUND_BOOT || f->nonce != r->greet_nonce || f->phase != r->greet_phase) return;
    /* Nobody signs this flag, so it counts only for an empty disk, which has no promise to stand by. */
    bool word_counts = (r->empty && !NEB_MUTANT(trust_empty_disk)) || r->cfg.quorum == NEB_QUORUM_OLD;
    if ((f->flags & NEB_FLAG_FORGOT) && word_counts && !NEB_MUTANT(vote_after_rollback)) r->forgot = true;
    bool own = own_lapse(r, f);
    if (lost(r, f, own)) r->forgot = true;
    neb__lapses_learn(r, from, f); /* a lost disk knew them: they are known again before this site counts */
    if (own && f->number > r->greet_known && f->phase == 1) r->greet_known = (uint32_t)f->number;
    if (!(f->flags & NEB_FLAG_INTACT) || r->now < r->peer[from].unbacked_until) return;
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
    if (f->commit > r->commit) neb__log_ask(r, from, r->commit + 1, false);
    if (r->greet_phase < 3 && greeted_enough(r)) greet_enough(r);
}

/* The site did not give the log that it said it has: for a while its word for it does not count. An honest site may have started
 * again since, or follow another leader; a liar does it every time. */
static void not_backed(struct neb_round *r, unsigned site)
{
    if (site >= NEB_SITES_MAX || site == r->self) return;
    struct neb_core_peer *p = &r->peer[site];
    p->unbacked_until = r->now + (r->cfg.elect_ms << (p->unbacked < 3 ? p->unbacked : 3));
    p->unbacked++;
}

static void greet_tick(struct neb_round *r)
{
    bool alone = !(r->roster.members & ~neb__bit(r->self));
    bool trust =
        !r->damaged && !r->forgot && (r->now >= r->greet_end || alone || NEB_MUTANT(vote_after_rollback));
    if (trust && neb__core_quorum(r, r->greet_any | neb__bit(r->self))) {
        greet_done(r, r->greet_known);
        return;
    }
    if (r->greet_phase == 3) {
        if (r->now >= r->greet_end + 2 * r->cfg.greet_ms) {
            not_backed(r, r->sync_from);
            r->greet_end = r->now, greet_phase(r, 1);
        }
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

static bool byzantine(const struct neb_round *r)
{
    return r->cfg.quorum == NEB_QUORUM_BYZANTINE;
}

/* Whether the vote is one for `view` by a voter of this roster, and signed. */
static bool vote_counts(const struct neb_round *r, const struct neb_said *v, uint64_t view,
                        const struct neb_members *m)
{
    return v->kind == NEB_SAID_VOTES && v->view == view && v->epoch == m->epoch &&
           (m->voters & neb__bit(v->site)) && v->normal < view &&
           (NEB_MUTANT(trust_votes) || neb__said_genuine(v, &r->cfg.genesis, &r->cfg.seal));
}

/* Under `byzantine` a vote is for the newest prepared record, and shows its certificate. */
static bool vote_backed(const struct neb_round *r, const struct neb_said *v, const struct neb_certificate *c)
{
    if (!byzantine(r) || (!v->index && !v->normal)) return true;
    return c->n && c->view == v->normal && c->index == v->index && neb__hash_equal(&c->hash, &v->hash) &&
           neb__prepared_valid(r, c);
}

static bool better_vote(const struct neb_said *a, const struct neb_said *b)
{
    return a->normal > b->normal || (a->normal == b->normal && a->index > b->index);
}

/* The newest lapse of a voter that is proven here, or shown by another vote. */
static bool vote_void(const struct neb_round *r, const struct neb_said *v)
{
    uint32_t lapse = neb__said_lapse(v, v->site);
    if (lapse < r->lapse[v->site]) return true;
    for (int i = 0; i < r->votes; i++)
        if (neb__said_lapse(&r->vote[i], v->site) > lapse) return true;
    return false;
}

static void drop_void_votes(struct neb_round *r)
{
    for (int i = 0; i < r->votes; i++)
        if (vote_void(r, &r->vote[i])) {
            r->voted &= ~neb__bit(r->vote[i].site);
            r->vote[i] = r->vote[--r->votes];
            r->vote_prepared[i] = r->vote_prepared[r->votes];
            i = -1;
        }
}

static void count_vote(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    const struct neb_said *v = &f->said[0];
    if (f->saids != 1 || v->site != from || r->now < r->peer[from].unbacked_until ||
        r->votes == NEB_ROUND_VOTERS_MAX)
        return;
    if (!vote_counts(r, v, r->view, &r->roster) || !vote_backed(r, v, &f->prepared) || vote_void(r, v))
        return;
    for (int i = 0; i < v->lapses.n; i++) /* its site must first show the words for them */
        if (v->lapses.of[i].site != from && v->lapses.of[i].lapse > r->lapse[v->lapses.of[i].site]) return;
    (void)neb__guilt_compare(r, v);
    if (r->guilty & neb__bit(from)) return;
    neb__guilt_vote(r, v);
    r->voted |= neb__bit(from);
    r->vote_prepared[r->votes] = f->prepared;
    r->vote[r->votes++] = *v;
    if (f->proof.n && f->proof.index > r->best.view) {
        struct neb_members m;
        if (neb__roster_of(r, f->proof.epoch, &m) && neb__cert_valid_under(r, &f->proof, &m))
            r->best.view = f->proof.index; /* here: the greatest commit index that was proven */
    }
}

/* The best of the votes; byzantine: its certificate is shown to everybody. */
static void choose_best(struct neb_round *r)
{
    const struct neb_said *best = NULL;
    drop_void_votes(r);
    for (int i = 0; i < r->votes; i++)
        if (!best || better_vote(&r->vote[i], best) ||
            (!better_vote(best, &r->vote[i]) && r->vote[i].site == r->self))
            best = &r->vote[i];
    r->best.site = best ? best->site : NEB_NO_SITE;
    if (!best) return;
    r->best.normal = best->normal;
    r->best.head = best->index;
    r->best.hash = best->hash;
    r->best_prepared = r->vote_prepared[best - r->vote];
}

bool neb__votes_hash(const struct neb_said *vote, int n, struct neb_hash *out)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_ROUND_VOTERS_MAX * 512);
    bool ok = true;
    for (int i = 0; i < n; i++) ok = ok && neb__said_put(&vote[i], &b) == NEB_OK;
    ok = ok && neb__hash(b.data, b.len, out) == NEB_OK;
    neb__buf_free(&b);
    return ok;
}

/* Whether the ping's votes make its sender the leader of its view, with the log that it names. */
static bool leads_rightly(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    const struct neb_said *start = &f->said[0], *vote = &f->said[1], *best = NULL;
    int n = f->saids - 1;
    uint64_t sites = 0;
    struct neb_members m;
    struct neb_hash more;
    if (NEB_MUTANT(trust_leaders)) return true;
    if (n < 1 || n > NEB_ROUND_VOTERS_MAX || start->kind != NEB_SAID_STARTS || start->site != from)
        return false;
    if (start->view != f->view || start->index != f->start || !neb__hash_equal(&start->hash, &f->hash))
        return false;
    if (!neb__roster_of(r, start->epoch, &m) || !neb__votes_hash(vote, n, &more) ||
        !neb__hash_equal(&more, &start->more))
        return false;
    for (int i = 0; i < n; i++) {
        if (!vote_counts(r, &vote[i], f->view, &m) || (sites & neb__bit(vote[i].site))) return false;
        sites |= neb__bit(vote[i].site);
        if (!best || better_vote(&vote[i], best)) best = &vote[i];
    }
    if (!neb__quorum_has(&m, r->cfg.quorum, sites) || neb__said_void(vote, n)) return false;
    if (!neb__said_genuine(start, &r->cfg.genesis, &r->cfg.seal)) return false;
    if (neb__start_may_cut(r, start)) return true;
    for (int i = 0; i < n; i++)
        if (!better_vote(best, &vote[i]) && vote[i].index == start->index &&
            neb__hash_equal(&vote[i].hash, &start->hash))
            return vote_backed(r, &vote[i], &f->prepared);
    return false;
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

/* Everything is judged anew each time. */
static void try_lead(struct neb_round *r)
{
    if (r->state != NEB_ROUND_ELECT || r->durable.view != r->view) return;
    drop_old_votes(r);
    if (!(r->voted & neb__bit(r->self))) return;
    choose_best(r);
    if (!neb__core_quorum(r, r->voted) || !(r->voted & neb__bit(r->self))) return;
    bool complete =
        r->commit >= r->best.view && r->best.head <= r->head &&
        (r->sync_normal == r->best.normal || r->best.site == r->self) &&
        neb__hash_equal(neb__log_hash(r, r->best.head),
                        &r->best.hash); /* also its own: certified records may have taken its place */
    if (complete) {
        if (byzantine(r)) neb__log_cut(r, r->best.head > r->commit ? r->best.head : r->commit);
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
    if (byzantine(r)) {
        f.prepared = r->prepared_durable;
        v->normal = f.prepared.n ? f.prepared.view : 0;
        v->index = f.prepared.n ? f.prepared.index : 0;
        v->hash = f.prepared.n ? f.prepared.hash : r->cfg.genesis;
    }
    f.normal = mine.normal;
    f.head = mine.head;
    f.hash = *neb__log_hash(r, mine.head);
    f.proof = r->newest;
    if (!neb__cert_say(r, v)) return;
    neb__lapses_tell(r, to, &f);
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
    if (!again && (f->number <= r->view || neb__idle_shuns(r, from))) return;
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
    neb__prepared_replace(r, &r->start_prepared);
    r->foreign = false;
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
    bool known = f->view == r->view && (neb__view_joined(r) || r->leader == from);
    if (!known && !leads_rightly(r, from, f)) {
        neb__guilt_look(r, f->said, f->saids);
        neb__core_doubt(r, from);
        return;
    }
    if (!known) {
        r->start_prepared = f->prepared;
        neb__guilt_vote(r, &f->said[0]);
        for (int i = 1; i < f->saids; i++) {
            (void)neb__guilt_compare(r, &f->said[i]);
            neb__guilt_vote(r, &f->said[i]);
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
        if (neb__log_install(r, f, r->sync_index, &r->sync_hash, false)) {
            r->peer[from].unbacked = 0;
            if (r->sync_normal > r->normal) r->normal = r->sync_normal;
            if (r->normal > r->view) r->view = r->normal; /* a greeting that says less would be absurd */
            if (greeted_enough(r)) {
                greet_done(r, r->greet_lapse);
                return;
            }
            /* The log told of another roster, and the answers are not enough for that one. */
            r->greet_end = r->now + r->cfg.greet_ms;
            greet_phase(r, 1);
        }
    } else if (r->state == NEB_ROUND_ELECT && r->ask_phase == 3 && f->view == r->view) {
        if (neb__log_install(r, f, r->sync_index, &r->sync_hash, false)) {
            r->normal = r->sync_normal = r->best.normal;
            neb__prepared_replace(r, &r->best_prepared);
        }
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

/* Whether the site may have taken part: a record here names an update of it, or there are records, which it may have acknowledged
 * as a voter. If it greets without any record or lapse, its disk may have been lost. (At a first start it then needs as many
 * answers as after a loss. Sites that began without a lapse and were restarted since have nothing else to tell by.) */
static bool took_part(const struct neb_round *r, unsigned site)
{
    if (r->commit && (r->roster.voters & neb__bit(site))) return true;
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

/* A site that names higher and higher views would keep the leader busy with elections. */
static bool may_raise(const struct neb_round *r, struct neb_core_peer *p)
{
    if (r->now < p->raise_at) return false;
    if (r->now > p->raise_at + 60000) p->raises = 0;
    p->raise_at = r->now + (p->raises > 2 ? r->cfg.elect_ms << (p->raises < 8 ? p->raises - 2 : 6) : 0);
    p->raises++;
    return true;
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
        p->odd = p->in_view = false;
        for (size_t i = 0; i < r->updates; i++) /* it will report the updates it has now */
            r->update[i].have &= ~neb__bit(from);
        neb__guilt_remind(r, from, f);
        hello(r, from, f);
        break;
    case NEB_ROUND_FRAME_HELLO_OK: hello_ok(r, from, f); break;
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
        if (!(r->voted & neb__bit(from))) count_vote(r, from, f);
        try_lead(r);
        break;
    case NEB_ROUND_FRAME_PING:
        neb__lapses_learn(r, from, f);
        ping(r, from, f);
        break;
    default: break;
    }
    /* A member in a higher view will not listen to this leader again: lead a view above it. */
    if (r->state == NEB_ROUND_LEAD && f->view > r->view && f->type == NEB_ROUND_FRAME_REPORT &&
        may_raise(r, p)) {
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
        neb__log_ask(r, r->sync_from, r->commit + 1, true);
        for (unsigned i = 0; r->state == NEB_ROUND_BOOT && i < NEB_SITES_MAX; i++)
            if (i != r->sync_from && (r->roster.members & neb__bit(i)))
                neb__log_ask(r, i, r->commit + 1, false);
    }
    if (r->state == NEB_ROUND_ELECT) {
        if (r->now >= r->ask_end) {
            if (r->ask_phase == 3) not_backed(r, r->sync_from);
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
    if (idle && is_voter(r) && r->now >= r->elect_at) ask(r, 0);
}
