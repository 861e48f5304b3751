/* votes.c: votes that count, the best of them, and leaders that show theirs.
 *
 * A vote is signed, for one view and one epoch, and void under a lapse that is not its author's newest. A candidate starts with
 * the best log of a quorum. It shows the votes, so that followers come to the same choice. */
#include "round/core.h"
#include "base/mutant.h"

/* Whether the vote is one for `view` by a voter of this roster, and signed. */
static bool vote_counts(const struct neb_round *r, const struct neb_said *v, uint64_t view,
                        const struct neb_members *m)
{
    return v->kind == NEB_SAID_VOTES && v->view == view && v->epoch == m->epoch &&
           (m->voters & neb__bit(v->site)) && v->normal < view &&
           (neb__vote_forced(v) <= r->forced_epoch || NEB_MUTANT(trust_claims)) &&
           (NEB_MUTANT(trust_votes) || neb__said_genuine(v, &r->cfg.genesis, &r->cfg.seal));
}

/* Under `byzantine` a vote is for the newest prepared record, and shows its certificate. */
static bool vote_backed(const struct neb_round *r, const struct neb_said *v, const struct neb_certificate *c)
{
    if (!neb__core_byzantine(r)) return true;
    if (!v->index && !v->normal) return !neb__vote_forced(v);
    if (neb__vote_forced(v) > neb__order_forced_until(r, c->epoch)) return false;
    return c->n && c->view == v->normal && c->index == v->index && neb__hash_equal(&c->hash, &v->hash) &&
           neb__prepared_valid(r, c);
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

void neb__votes_count(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    const struct neb_said *v = &f->said[0];
    if (f->saids < 1 || f->saids > 2 || v->site != from || r->now < r->peer[from].unbacked_until ||
        r->votes == NEB_ROUND_VOTERS_MAX)
        return;
    if (!vote_counts(r, v, r->view, &r->roster) || !vote_backed(r, v, &f->prepared)) return;
    if (vote_void(r, v)) {
        /* It asked for a newer lapse once, got no answer in time, and trusted its disk. A report tells it. */
        if (from != r->self && !NEB_MUTANT(void_in_silence)) neb__core_report(r, from);
        return;
    }
    for (int i = 0; i < v->lapses.n; i++) /* its site must first show the words for them */
        if (v->lapses.of[i].site != from && v->lapses.of[i].lapse > r->lapse[v->lapses.of[i].site]) return;
    (void)neb__guilt_compare(r, v);
    if (r->guilty & neb__bit(from)) return;
    neb__guilt_vote(r, v, false);
    if (f->saids == 2) neb__autograph_heard(r, &f->said[1], f->said[1].site == from);
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
void neb__votes_choose(struct neb_round *r)
{
    const struct neb_said *best = NULL;
    drop_void_votes(r);
    for (int i = 0; i < r->votes; i++)
        if (!best || neb__vote_better(&r->vote[i], best) ||
            (!neb__vote_better(best, &r->vote[i]) && r->vote[i].site == r->self))
            best = &r->vote[i];
    r->best.site = best ? best->site : NEB_NO_SITE;
    if (!best) return;
    r->best.normal = best->normal;
    r->best.head = best->index;
    r->best.hash = best->hash;
    r->best.forced = neb__vote_forced(best);
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
bool neb__votes_for_leader(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
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
        if (!best || neb__vote_better(&vote[i], best)) best = &vote[i];
    }
    if (!neb__quorum_has(&m, r->cfg.quorum, sites) || neb__said_void(vote, n)) return false;
    if (!neb__said_genuine(start, &r->cfg.genesis, &r->cfg.seal)) return false;
    if (neb__start_may_cut(r, start, neb__vote_forced(best))) return true;
    for (int i = 0; i < n; i++)
        if (!neb__vote_better(best, &vote[i]) && vote[i].index == start->index &&
            neb__hash_equal(&vote[i].hash, &start->hash))
            return vote_backed(r, &vote[i], &f->prepared);
    return false;
}
