/* guilt.c: statements that convict their author.
 *
 * Three things no honest site does, whatever it forgets or whoever it believes:
 *
 *   two records   it acknowledges two records at one index of one view, under one lapse
 *   two chains    … or to a record that does not lead to another one that it has put its name to in that view
 *   a low vote    it acknowledges a record in a view, and later votes with the log of an older view, under one lapse. (Not
 *                 under `byzantine`, where a vote is for what was prepared, and a later view may have replaced that.)
 *   a wrong start it leads a view with a log that is not the best of the votes that it shows
 *
 * Each is shown by its own signatures, so anybody can check it. A proof is kept and passed on, and its author is named once.
 * Statements of different epochs convict nobody: an operator may have forced a roster in between. */
#include "round/core.h"
#include "base/mutant.h"

static bool same_word(const struct neb_round *r, const struct neb_said *a, const struct neb_said *b)
{
    return a->site == b->site && a->epoch == b->epoch &&
           neb__said_lapse(a, a->site) == neb__said_lapse(b, b->site) &&
           neb__said_genuine(a, &r->cfg.genesis, &r->cfg.seal) &&
           neb__said_genuine(b, &r->cfg.genesis, &r->cfg.seal);
}

static bool is_ack(const struct neb_said *s)
{
    return s->kind == NEB_SAID_HOLDS || s->kind == NEB_SAID_PREPARED;
}

static bool two_records(const struct neb_said *a, const struct neb_said *b)
{
    return a->kind == b->kind && is_ack(a) && a->view == b->view && a->index == b->index &&
           !neb__hash_equal(&a->hash, &b->hash);
}

/* The later of the two is in this site's log, and the earlier one is not before it. */
static bool two_chains(const struct neb_round *r, const struct neb_said *a, const struct neb_said *b)
{
    const struct neb_said *low = a->index < b->index ? a : b, *high = low == a ? b : a;
    return is_ack(a) && is_ack(b) && a->view == b->view && low->index && low->index < high->index &&
           high->index <= r->head && neb__hash_equal(neb__log_hash(r, high->index), &high->hash) &&
           !neb__hash_equal(neb__log_hash(r, low->index), &low->hash);
}

static bool low_vote(const struct neb_round *r, const struct neb_said *ack, const struct neb_said *vote)
{
    return r->cfg.quorum != NEB_QUORUM_BYZANTINE && ack->kind == NEB_SAID_HOLDS &&
           vote->kind == NEB_SAID_VOTES && ack->view < vote->view && vote->normal < ack->view;
}

static bool contradict(const struct neb_round *r, const struct neb_said *a, const struct neb_said *b)
{
    return two_records(a, b) || two_chains(r, a, b) || low_vote(r, a, b);
}

/* The votes are genuine, a quorum, not void, and another log than the leader's is the best of them. */
static bool wrong_start(const struct neb_round *r, const struct neb_said *said, int n)
{
    const struct neb_said *start = &said[0], *vote = &said[1], *best = NULL;
    struct neb_members m;
    struct neb_hash more;
    uint64_t sites = 0;
    n--;
    if (start->kind != NEB_SAID_STARTS || n < 1 || n > NEB_ROUND_VOTERS_MAX || neb__start_may_cut(r, start))
        return false;
    if (!neb__roster_of(r, start->epoch, &m) || !neb__votes_hash(vote, n, &more) ||
        !neb__hash_equal(&more, &start->more))
        return false;
    for (int i = 0; i < n; i++) {
        const struct neb_said *v = &vote[i];
        if (v->kind != NEB_SAID_VOTES || v->view != start->view || v->epoch != start->epoch ||
            !neb__said_genuine(v, &r->cfg.genesis, &r->cfg.seal))
            return false;
        sites |= neb__bit(v->site);
        if (!best || v->normal > best->normal || (v->normal == best->normal && v->index > best->index))
            best = v;
    }
    if (!neb__quorum_has(&m, r->cfg.quorum, sites) || neb__said_void(vote, n)) return false;
    return best->index > start->index && neb__said_genuine(start, &r->cfg.genesis, &r->cfg.seal);
}

/* The site that the statements convict, or NEB_NO_SITE. */
static unsigned convicts(const struct neb_round *r, const struct neb_said *said, int n)
{
    if (n >= 2 && said[0].kind == NEB_SAID_STARTS)
        return wrong_start(r, said, n) ? said[0].site : NEB_NO_SITE;
    if (n != 2 || !contradict(r, &said[0], &said[1])) return NEB_NO_SITE;
    return same_word(r, &said[0], &said[1]) ? said[0].site : NEB_NO_SITE;
}

void neb__guilt_look(struct neb_round *r, const struct neb_said *said, int n)
{
    unsigned site = n >= 2 && n <= NEB_ROUND_FRAME_SAID && !(r->guilty & neb__bit(said[0].site))
                        ? convicts(r, said, n)
                        : NEB_NO_SITE;
    if (site == NEB_NO_SITE || site == r->self || NEB_MUTANT(convict_nobody)) return;
    r->guilty |= neb__bit(site);
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .saids = (uint16_t)n};
    struct neb_buf b;
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    for (int i = 0; i < n; i++) {
        f.said[i] = said[i];
        if (neb__said_put(&said[i], &b) != NEB_OK) r->failed = NEB_ERR_NOMEM;
    }
    struct neb_action *a = neb__core_act(r, NEB_ACT_GUILTY);
    a->site = (uint16_t)site;
    a->bytes = b.data;
    a->length = b.len;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.members & neb__bit(i))) neb__core_send(r, i, &f);
}

static void look_at_two(struct neb_round *r, const struct neb_said *a, const struct neb_said *b)
{
    if (!contradict(r, a, b)) return;
    const struct neb_said both[2] = {*a, *b};
    neb__guilt_look(r, both, 2);
}

/* Checking a proof takes time, so a site may show only a few. An honest one shows each liar once. */
bool neb__guilt_may_look(struct neb_round *r, unsigned from)
{
    enum { PROOFS = 16, PROOFS_MS = 10000 };
    struct neb_core_peer *p = &r->peer[from];
    if (r->now - p->proofs_at >= PROOFS_MS) p->proofs = 0, p->proofs_at = r->now;
    return p->proofs++ < PROOFS;
}

/* The statements of a site that are kept: its acknowledgements, those in the newest certificate, votes of late. kind 0: none. */
static struct neb_said kept(const struct neb_round *r, unsigned site, int i)
{
    struct neb_said s = {.kind = 0};
    const struct neb_said *acks = r->peer[site].acks;
    if (i < 2 * ACKS) return acks ? acks[i] : s;
    i -= 2 * ACKS;
    if (i < VOTES_KEPT) return r->heard_vote[i];
    if (i - VOTES_KEPT < r->newest.n) neb__certificate_said(&r->newest, i - VOTES_KEPT, &s);
    return s;
}

/* A statement came: does it contradict what is kept of its author? What is kept is signed, so the new one is looked at first. */
bool neb__guilt_compare(struct neb_round *r, const struct neb_said *s)
{
    bool checked = false;
    for (int i = 0; i < 2 * ACKS + VOTES_KEPT + NEB_ROUND_VOTERS_MAX; i++) {
        if (r->guilty & neb__bit(s->site)) return true;
        struct neb_said other = kept(r, s->site, i);
        if (!other.kind || other.site != s->site || !(contradict(r, &other, s) || low_vote(r, s, &other)))
            continue;
        if (!checked && !neb__said_genuine(s, &r->cfg.genesis, &r->cfg.seal)) return false;
        checked = true;
        look_at_two(r, &other, s);
        look_at_two(r, s, &other);
    }
    return true;
}

/* ---- reminding ----------------------------------------------------------------------------------------- */

/* What a site says that greets: the lapse, the number of its life, and the promises on its disk. */
struct greeting {
    uint32_t lapse;
    uint64_t life, view, normal, head;
};

/* A site whose disk went back in time is reminded by its own signature. Nobody else's word counts: one liar could keep a site
 * waiting for answers that nobody is there to give. */
static bool shows_more(const struct neb_said *s, const struct greeting *g)
{
    uint32_t lapse = neb__said_lapse(s, s->site);
    if (lapse != g->lapse) return lapse > g->lapse;
    return s->life >= g->life || s->view > g->view ||
           (is_ack(s) && (s->view > g->normal || (s->view == g->normal && s->index > g->head)));
}

static bool newer(const struct neb_said *a, const struct neb_said *b)
{
    uint32_t x = neb__said_lapse(a, a->site), y = neb__said_lapse(b, b->site);
    if (!b->kind || x != y) return !b->kind || x > y;
    if (a->life != b->life) return a->life > b->life;
    return a->view > b->view || (a->view == b->view && a->index > b->index);
}

void neb__guilt_remind(struct neb_round *r, unsigned to, const struct neb_round_frame *hello)
{
    const struct greeting g = {hello->lapse, hello->start, hello->view, hello->normal, hello->head};
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .saids = 1};
    if (NEB_MUTANT(vote_after_rollback)) return;
    for (int i = 0; i < 2 * ACKS + VOTES_KEPT + NEB_ROUND_VOTERS_MAX; i++) {
        struct neb_said s = kept(r, to, i);
        if (s.kind && s.site == to && shows_more(&s, &g) && newer(&s, &f.said[0])) f.said[0] = s;
    }
    if (f.said[0].kind) neb__core_send(r, to, &f);
}

void neb__guilt_reminded(struct neb_round *r, const struct neb_said *own)
{
    const struct greeting g = {r->lapse[r->self], r->spoke ? UINT64_MAX : r->incarnation, r->boot_view,
                               r->boot_normal, r->boot_head};
    if (r->state != NEB_ROUND_BOOT || own->site != r->self || r->forgot || !shows_more(own, &g)) return;
    r->forgot = neb__said_genuine(own, &r->cfg.genesis, &r->cfg.seal);
}

void neb__guilt_vote(struct neb_round *r, const struct neb_said *vote)
{
    for (int i = 0; i < VOTES_KEPT; i++) {
        const struct neb_said *v = &r->heard_vote[i];
        if (v->kind && v->site == vote->site && v->view == vote->view && v->normal == vote->normal) return;
    }
    r->heard_vote[r->heard_votes++ % VOTES_KEPT] = *vote;
}

/* Two valid certificates contradict each other: those who signed both, in one view, are guilty. */
void neb__guilt_certificates(struct neb_round *r, const struct neb_certificate *a,
                             const struct neb_certificate *b)
{
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++) {
            struct neb_said x, y;
            if (a->by[i].site != b->by[k].site) continue;
            neb__certificate_said(a, i, &x);
            neb__certificate_said(b, k, &y);
            look_at_two(r, &x, &y);
        }
}

void neb__guilt_show(struct neb_round *r, const struct neb_certificate *c)
{
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .prepared = *c};
    for (unsigned i = 0; c->n && i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.members & neb__bit(i))) neb__core_send(r, i, &f);
}

void neb__guilt_shown(struct neb_round *r, const struct neb_certificate *c)
{
    struct neb_members m;
    if (!c->n || !neb__roster_of(r, c->epoch, &m) || !neb__cert_valid_under(r, c, &m)) return;
    for (int i = 0; i < c->n; i++) {
        struct neb_said s;
        neb__certificate_said(c, i, &s);
        (void)neb__guilt_compare(r, &s);
    }
    (void)neb__cert_take(r, c); /* it may contradict what this site has committed */
}
