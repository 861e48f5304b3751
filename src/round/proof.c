/* proof.c: the rules by which statements convict their author.
 *
 * Four things no honest site does, whatever it forgets or whoever it believes:
 *
 *   two records   it puts its name to two records at one index of one view, under one lapse; or leads one view with two logs
 *   two chains    … or to a record that does not lead to another one that it has put its name to in that view
 *   a low vote    it acknowledges a record in a view, and later votes with the log of an older view, or with a part of what it
 *                 acknowledged, under one lapse. (Not under `byzantine`, where a vote is for what was prepared, and a later view may have replaced that.)
 *   a wrong start it leads a view with a log that is not the best of the votes that it shows
 *
 * Each is shown by its own signatures, so anybody with the log can check it, also after the run. Statements of different epochs
 * convict nobody: an operator may have forced a roster in between. */
#include "round/proof.h"
#include "round/round.h"

bool neb__said_is_ack(const struct neb_said *s)
{
    return s->kind == NEB_SAID_HOLDS || s->kind == NEB_SAID_PREPARED;
}

/* It says what its author's log of a view is: an acknowledgement, or a leader's start. */
static bool of_log(const struct neb_said *s)
{
    return neb__said_is_ack(s) || s->kind == NEB_SAID_STARTS;
}

/* A leader speaks of the log of its view in one life only: after a start it never leads that view again, whatever it forgot. So
 * there the lapse does not matter. */
static bool same_word(const struct neb_court *c, const struct neb_said *a, const struct neb_said *b)
{
    bool leads = of_log(a) && of_log(b) && a->view == b->view && a->view % NEB_SITES_MAX == a->site;
    return a->site == b->site && a->epoch == b->epoch &&
           (leads || neb__said_lapse(a, a->site) == neb__said_lapse(b, b->site)) &&
           neb__said_genuine(a, c->genesis, c->seal) && neb__said_genuine(b, c->genesis, c->seal);
}

static bool two_records(const struct neb_said *a, const struct neb_said *b)
{
    return of_log(a) && of_log(b) && a->view == b->view && a->index == b->index &&
           !neb__hash_equal(&a->hash, &b->hash);
}

static bool two_starts(const struct neb_said *a, const struct neb_said *b)
{
    return a->kind == NEB_SAID_STARTS && b->kind == NEB_SAID_STARTS && a->view == b->view &&
           (a->index != b->index || !neb__hash_equal(&a->hash, &b->hash));
}

/* The later of the two is in this site's log, and the earlier one is not before it. */
static bool two_chains(const struct neb_court *c, const struct neb_said *a, const struct neb_said *b)
{
    const struct neb_said *low = a->index < b->index ? a : b, *high = low == a ? b : a;
    return of_log(a) && of_log(b) && a->view == b->view && low->index && low->index < high->index &&
           high->index <= c->head && neb__hash_equal(c->hash(c->log, high->index), &high->hash) &&
           !neb__hash_equal(c->hash(c->log, low->index), &low->hash);
}

/* The vote is for a part of the very log that was acknowledged, as the court has it. (With another record in its place a
 * certificate may have displaced what was acknowledged.) */
static bool short_vote(const struct neb_court *c, const struct neb_said *ack, const struct neb_said *vote)
{
    return vote->normal == ack->view && vote->index < ack->index && ack->index <= c->head &&
           neb__hash_equal(c->hash(c->log, ack->index), &ack->hash) &&
           (!vote->index || neb__hash_equal(c->hash(c->log, vote->index), &vote->hash));
}

static bool in_log(const struct neb_court *c, const struct neb_said *s)
{
    return s->index <= c->head && neb__hash_equal(c->hash(c->log, s->index), &s->hash);
}

/* The vote is for the log of an older view. That log may have a roster that an operator forced, which makes it the better one: unless
 * what was acknowledged is known to have it, too, or the log of the vote not to have it. */
static bool older_view(const struct neb_court *c, const struct neb_said *ack, const struct neb_said *vote)
{
    const uint32_t forced = neb__vote_forced(vote);
    bool both = in_log(c, ack) && c->forced(c->log, ack->index) >= forced;
    bool untrue = in_log(c, vote) && c->forced(c->log, vote->index) < forced;
    return vote->normal < ack->view && (!forced || both || untrue);
}

bool neb__said_low_vote(const struct neb_court *c, const struct neb_said *ack, const struct neb_said *vote)
{
    return c->quorum != NEB_QUORUM_BYZANTINE && ack->kind == NEB_SAID_HOLDS && vote->kind == NEB_SAID_VOTES &&
           ack->view < vote->view && (older_view(c, ack, vote) || short_vote(c, ack, vote));
}

bool neb__said_contradict(const struct neb_court *c, const struct neb_said *a, const struct neb_said *b)
{
    return two_records(a, b) || two_starts(a, b) || two_chains(c, a, b) || neb__said_low_vote(c, a, b);
}

/* The votes are genuine, a quorum, not void, and another log than the leader's is the best of them. */
static bool wrong_start(const struct neb_court *c, const struct neb_said *said, int n)
{
    const struct neb_said *start = &said[0], *vote = &said[1], *best = NULL;
    struct neb_members m;
    struct neb_hash more;
    uint64_t sites = 0;
    n--;
    if (start->kind != NEB_SAID_STARTS || n < 1 || n > NEB_ROUND_VOTERS_MAX) return false;
    if (!c->roster(c->log, start->epoch, &m) || !neb__votes_hash(vote, n, &more) ||
        !neb__hash_equal(&more, &start->more))
        return false;
    for (int i = 0; i < n; i++) {
        const struct neb_said *v = &vote[i];
        if (v->kind != NEB_SAID_VOTES || v->view != start->view || v->epoch != start->epoch ||
            !neb__said_genuine(v, c->genesis, c->seal))
            return false;
        sites |= neb__bit(v->site);
        if (!best || neb__vote_better(v, best)) best = v;
    }
    if (!neb__quorum_has(&m, c->quorum, sites) || neb__said_void(vote, n)) return false;
    if (c->may_cut(c->log, start, neb__vote_forced(best))) return false;
    return best->index > start->index && neb__said_genuine(start, c->genesis, c->seal);
}

unsigned neb__proof_convicts(const struct neb_court *c, const struct neb_said *said, int n)
{
    if (n >= 2 && said[0].kind == NEB_SAID_STARTS && said[1].kind == NEB_SAID_VOTES)
        return wrong_start(c, said, n) ? said[0].site : NEB_NO_SITE;
    if (n != 2 || !neb__said_contradict(c, &said[0], &said[1])) return NEB_NO_SITE;
    return same_word(c, &said[0], &said[1]) ? said[0].site : NEB_NO_SITE;
}
