/* guilt.c: statements that convict their author, by the rules of proof.c. A proof is kept and passed on, and its author is
 * named once. */
#include "round/core.h"
#include "round/proof.h"
#include "base/mutant.h"

static const struct neb_hash *hash_of(const void *r, uint64_t index)
{
    return neb__log_hash(r, index);
}

static bool roster_of(const void *r, uint32_t epoch, struct neb_members *out)
{
    return neb__roster_of(r, epoch, out);
}

static uint32_t forced(const void *r, uint64_t index)
{
    return neb__log_forced(r, index);
}

static bool may_cut(const void *r, const struct neb_said *start, uint32_t best_forced)
{
    return neb__start_may_cut(r, start, best_forced);
}

static struct neb_court court(const struct neb_round *r)
{
    return (struct neb_court){.genesis = &r->cfg.genesis,
                              .seal = &r->cfg.seal,
                              .quorum = r->cfg.quorum,
                              .head = r->head,
                              .hash = hash_of,
                              .roster = roster_of,
                              .forced = forced,
                              .may_cut = may_cut,
                              .log = r};
}

void neb__guilt_look(struct neb_round *r, const struct neb_said *said, int n)
{
    const struct neb_court c = court(r);
    unsigned site = n >= 2 && n <= NEB_ROUND_FRAME_SAID && !(r->guilty & neb__bit(said[0].site))
                        ? neb__proof_convicts(&c, said, n)
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
    const struct neb_court c = court(r);
    if (!neb__said_contradict(&c, a, b)) return;
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

enum { KEPT = 2 * ACKS + VOTES_KEPT + AUTOGRAPHS + NEB_ROUND_VOTERS_MAX };

/* The statements of a site that are kept: its acknowledgements, votes of late, autographs, those in the newest certificate.
 * kind 0: none. */
static struct neb_said kept(const struct neb_round *r, unsigned site, int i)
{
    struct neb_said s = {.kind = 0};
    const struct neb_said *acks = r->peer[site].acks;
    if (i < 2 * ACKS) return acks ? acks[i] : s;
    i -= 2 * ACKS;
    if (i < VOTES_KEPT) return r->heard_vote[i];
    i -= VOTES_KEPT;
    if (i < AUTOGRAPHS) return r->autograph[i];
    i -= AUTOGRAPHS;
    if (i < r->newest.n) neb__certificate_said(&r->newest, i, &s);
    return s;
}

/* A statement came: does it contradict what is kept of its author? What is kept is signed, so the new one is looked at first. */
bool neb__guilt_compare(struct neb_round *r, const struct neb_said *s)
{
    const struct neb_court c = court(r);
    bool checked = false;
    for (int i = 0; i < KEPT; i++) {
        if (r->guilty & neb__bit(s->site)) return true;
        struct neb_said other = kept(r, s->site, i);
        if (!other.kind || other.site != s->site ||
            !(neb__said_contradict(&c, &other, s) || neb__said_low_vote(&c, s, &other)))
            continue;
        if (!checked && !neb__said_genuine(s, &r->cfg.genesis, &r->cfg.seal)) return false;
        checked = true;
        look_at_two(r, &other, s);
        look_at_two(r, s, &other);
    }
    return true;
}

/* ---- reminding ----------------------------------------------------------------------------------------- */

/* What a greeting says: the site's lapse, its roster, the number of its life, and the promises on its disk. */
struct greeting {
    uint32_t lapse, epoch;
    uint64_t life, view, normal, head;
};

/* A site whose disk went back in time is reminded by its own signature. Nobody else's word counts: one liar could keep a site
 * waiting for answers that nobody is there to give. An older roster's acknowledgements do not count: the record
 * that made the newer one stands behind all of them that were committed, and an operator's order voids the rest. */
static bool shows_more(const struct neb_said *s, const struct greeting *g)
{
    uint32_t lapse = neb__said_lapse(s, s->site);
    if (lapse != g->lapse) return lapse > g->lapse;
    bool counts = neb__said_is_ack(s) && s->epoch >= g->epoch;
    return s->life >= g->life || s->view > g->view ||
           (counts && (s->view > g->normal || (s->view == g->normal && s->index > g->head)));
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
    const struct greeting g = {hello->lapse, hello->epoch,  hello->start,
                               hello->view,  hello->normal, hello->head};
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .saids = 1};
    if (NEB_MUTANT(vote_after_rollback)) return;
    for (int i = 0; i < KEPT; i++) {
        struct neb_said s = kept(r, to, i);
        if (s.kind && s.site == to && shows_more(&s, &g) && newer(&s, &f.said[0])) f.said[0] = s;
    }
    if (f.said[0].kind) neb__core_send(r, to, &f);
}

/* It acknowledged a part of this log that ends before a forced roster. That record may have come from a lower view, and the log's view
 * with it: nothing is forgotten. */
static bool before_forced(const struct neb_round *r, const struct neb_said *own)
{
    return neb__said_is_ack(own) && own->index < r->forced_index &&
           neb__hash_equal(neb__log_hash(r, own->index), &own->hash);
}

void neb__guilt_reminded(struct neb_round *r, const struct neb_said *own)
{
    const struct greeting g = {r->lapse[r->self], r->roster.epoch, r->spoke ? UINT64_MAX : r->incarnation,
                               r->boot_view,      r->boot_normal,  r->boot_head};
    if (r->state != NEB_ROUND_BOOT || own->site != r->self || r->proven || !shows_more(own, &g)) return;
    const bool older =
        neb__said_lapse(own, own->site) == g.lapse && own->life < g.life && own->view <= g.view;
    if (older && before_forced(r, own)) return;
    r->proven = neb__said_genuine(own, &r->cfg.genesis, &r->cfg.seal);
    r->forgot = r->forgot || r->proven;
}

/* Where the statement is kept: in a free place; in that of the oldest one of its author, who has its share; or of whoever has the
 * most. So nobody drives out what is kept of others. VOTES_KEPT: nowhere. */
static unsigned place_for(const struct neb_round *r, unsigned author, bool shown)
{
    unsigned voters = (unsigned)__builtin_popcountll(r->roster.voters),
             share = VOTES_KEPT / (voters ? voters : 1);
    unsigned kept_of[NEB_SITES_MAX] = {0}, at = VOTES_KEPT;
    for (unsigned i = 0; i < VOTES_KEPT; i++)
        if (r->heard_vote[i].kind) kept_of[r->heard_vote[i].site]++;
    bool full = kept_of[author] >= share;
    if (full && shown) return VOTES_KEPT;
    unsigned most = kept_of[author];
    for (unsigned i = 0; i < NEB_SITES_MAX && !full; i++) most = kept_of[i] > most ? kept_of[i] : most;
    for (unsigned i = 0; i < VOTES_KEPT; i++) {
        const struct neb_said *v = &r->heard_vote[i];
        if (!v->kind && !full) return i;
        if (!v->kind || (full ? v->site != author : kept_of[v->site] < most)) continue;
        if (at == VOTES_KEPT || r->heard_order[i] < r->heard_order[at]) at = i;
    }
    return at;
}

/* shown: somebody shows it unasked. It was compared with everything, and takes no other's place. */
void neb__guilt_vote(struct neb_round *r, const struct neb_said *vote, bool shown)
{
    for (int i = 0; i < VOTES_KEPT; i++) {
        const struct neb_said *v = &r->heard_vote[i];
        if (v->kind == vote->kind && v->site == vote->site && v->view == vote->view &&
            v->normal == vote->normal && (v->kind != NEB_SAID_HOLDS || v->index == vote->index) &&
            neb__hash_equal(&v->hash, &vote->hash))
            return;
    }
    unsigned at = place_for(r, vote->site, shown);
    if (at == VOTES_KEPT) return;
    r->heard_vote[at] = *vote;
    r->heard_order[at] = ++r->heard_votes;
    if (r->booted) r->vote_unsaved |= (uint32_t)1 << at; /* it goes to the disk with the next batch */
}

/* Somebody shows a vote: has its author acknowledged more, in a certificate here? */
void neb__guilt_vote_shown(struct neb_round *r, const struct neb_said *vote)
{
    (void)neb__guilt_compare(r, vote);
    for (size_t i = 0; i <= r->kepts; i++) {
        const struct neb_certificate *c = i < r->kepts ? &r->kept[i] : &r->newest;
        for (int k = 0; k < c->n; k++) {
            struct neb_said ack;
            if (c->by[k].site != vote->site || (r->guilty & neb__bit(vote->site))) continue;
            neb__certificate_said(c, k, &ack);
            look_at_two(r, &ack, vote);
        }
    }
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
    neb__autograph_show(r, &f);
    for (unsigned i = 0; c->n && i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.members & neb__bit(i))) neb__core_send(r, i, &f);
}

void neb__guilt_shown(struct neb_round *r, const struct neb_certificate *c)
{
    struct neb_members m;
    if (!c->n || !neb__roster_of(r, c->epoch, &m) || !neb__cert_valid_under(r, c, &m)) return;
    neb__view_greet_begun(r);
    for (int i = 0; i < c->n; i++) {
        struct neb_said s;
        neb__certificate_said(c, i, &s);
        (void)neb__guilt_compare(r, &s);
    }
    (void)neb__cert_take(r, c); /* it may contradict what this site has committed */
}
