/* state_root.c: state roots: which sites signed them, and when one is trusted.
 *
 * A site that has applied everything up to an index signs (run, index, root of the state). A root is trusted
 * when voters with a quorum stand behind it. These are the voters whose signatures are here, and those that
 * cannot report a root because they are catching up themselves (otherwise sites that fall behind together
 * could never recover). At least one voter must have signed, with three voters or more also a second member that is
 * no observer, and more than may lie.
 *
 * Hashing the state takes longer than applying a record, so a root is made only where it is useful: at
 * every record whose number is a multiple of cfg.root_every, so that all sites compare the same ones; at
 * the last record; and at every record while a member catches up (the leader's pings say so). The leader
 * collects the signatures from reports. It hands them to the sites that catch up or that reported
 * another root, and these check them.
 *
 * Two different roots at one index mean that a machine computes or stores something wrong, or lies. A site that
 * contradicts a quorum's signatures stops. If no root can get a quorum any more, whoever else reports one, the leader and
 * the other site stop: nobody can tell which of them is right. */
#include "round/core.h"

static const char purpose[] = "nebula round root";

enum {
    SIGNED = NEB_HASH_SIZE + 8 + NEB_HASH_SIZE,
    CERTIFIED = 4 /* this many of the newest roots are sent with their signatures */
};

static void to_sign(const struct neb_round *r, uint64_t index, const struct neb_hash *root,
                    uint8_t out[SIGNED])
{
    memcpy(out, r->cfg.genesis.b, NEB_HASH_SIZE);
    neb__put64(out + NEB_HASH_SIZE, index);
    memcpy(out + NEB_HASH_SIZE + 8, root->b, NEB_HASH_SIZE);
}

static bool genuine(const struct neb_round *r, unsigned site, uint64_t index, const struct neb_hash *root,
                    const uint8_t signature[NEB_SEAL_SIZE])
{
    uint8_t b[SIGNED];
    to_sign(r, index, root, b);
    return r->cfg.seal.verify && r->cfg.seal.verify(r->cfg.seal.arg, site, purpose, b, SIGNED, signature);
}

struct neb_core_root *neb__root_find(struct neb_round *r, uint64_t index, const struct neb_hash *root)
{
    for (size_t i = 0; i < r->roots; i++)
        if (r->root[i].index == index && neb__hash_equal(&r->root[i].root, root)) return &r->root[i];
    return NULL;
}

bool neb__root_trusted(struct neb_round *r, uint64_t index, const struct neb_hash *root, bool *wrong)
{
    const struct neb_hash *known = NULL;
    for (size_t i = 0; i < r->roots; i++)
        if (r->root[i].trusted && r->root[i].index == index) known = &r->root[i].root;
    for (size_t i = 0; !known && i < r->pasts && i < PAST; i++)
        if (r->past[i].index == index) known = &r->past[i].root;
    *wrong = known && !neb__hash_equal(known, root);
    return known && !*wrong;
}

static struct neb_core_root *own_at(struct neb_round *r, uint64_t index)
{
    for (size_t i = 0; i < r->roots; i++)
        if (r->root[i].index == index && (r->root[i].agree & neb__bit(r->self))) return &r->root[i];
    return NULL;
}

/* The place of (index, root), made if necessary. NULL: it is older than all roots that are kept. */
static struct neb_core_root *place(struct neb_round *r, uint64_t index, const struct neb_hash *root)
{
    struct neb_core_root *at = neb__root_find(r, index, root);
    if (at) return at;
    if (r->roots == ROOTS) {
        size_t old = 0;
        for (size_t i = 1; i < r->roots; i++)
            if (r->root[i].index < r->root[old].index) old = i;
        if (r->root[old].index > index) return NULL;
        if (r->root[old].trusted && !r->whole) {
            r->past[r->pasts % PAST].index = r->root[old].index;
            r->past[r->pasts++ % PAST].root = r->root[old].root;
        }
        r->root[old] = r->root[--r->roots];
    }
    at = &r->root[r->roots++];
    memset(at, 0, sizeof *at);
    at->index = index;
    at->root = *root;
    return at;
}

/* A site has one root at an index: the newest. Only a few of the roots that it alone has signed are kept. */
static void make_way(struct neb_round *r, unsigned from, uint64_t index)
{
    size_t alone = 0, old = 0;
    for (size_t i = 0; i < r->roots;) {
        struct neb_core_root *at = &r->root[i];
        if (at->index == index) at->agree &= ~neb__bit(from);
        if (!at->agree && !at->trusted) {
            *at = r->root[--r->roots];
            continue;
        }
        if (at->agree == neb__bit(from) && !at->trusted && (!alone++ || at->index < r->root[old].index))
            old = i;
        i++;
    }
    if (alone >= CERTIFIED) r->root[old] = r->root[--r->roots];
}

/* Whether enough members signed: with three voters or more one liar must not make a root, whoever consents. An observer has no
 * say: a lying leader and an observer are one liar. */
static bool signed_enough(const struct neb_round *r, uint64_t sites)
{
    sites &= ~r->observers;
    int need = neb__quorum_liars(&r->roster) + 1, voters = __builtin_popcountll(r->roster.voters);
    if (voters >= 3 && need < 2) need = 2;
    return (sites & r->roster.voters) &&
           __builtin_popcountll(sites & r->roster.members) >= (voters < 3 ? 1 : need);
}

/* A leader may have been told as a follower that the root is trusted, and not by whom. Who catches up then needs the consent of
 * those who cannot sign it now. */
static void judge(struct neb_round *r, struct neb_core_root *at)
{
    const struct neb_core_root *own = own_at(r, at->index);
    if (!neb__core_leads(r) || !at->agree || (own && own != at)) return;
    uint64_t cannot = 0;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (s == r->self ? !r->whole : r->peer[s].rootless && neb__lead_live(r, s)) cannot |= neb__bit(s);
    if (!signed_enough(r, at->agree) || !neb__core_quorum(r, at->agree | cannot)) return;
    at->consent |= cannot & r->roster.voters;
    at->trusted = true;
}

/* The roots and acknowledgements of these sites do not count until they have started again. */
static void set_aside(struct neb_round *r, uint64_t sites)
{
    for (unsigned s = 0; s < NEB_SITES_MAX; s++) {
        if (!(sites & neb__bit(s)) || r->peer[s].odd) continue;
        r->peer[s].odd = true;
        neb__core_note(r, "a site's state root differs from that of a quorum: its machine computed or stored "
                          "something wrong; it no longer counts; compare `nebula-i status` of all sites");
    }
}

/* Two roots at one index: some machine computed or stored something wrong, or lies. The root that a quorum signed is right. A
 * voter that has not said anything yet may decide it, also one that is down: one false root must not stop a site. */
static void compare(struct neb_round *r, uint64_t index)
{
    const struct neb_core_root *own = own_at(r, index);
    uint64_t others = 0, silent = 0;
    bool wrong = false;
    for (size_t i = 0; own && i < r->roots; i++) {
        const struct neb_core_root *at = &r->root[i];
        if (at->index != index || at == own) continue;
        others |= at->agree;
        wrong |= neb__core_quorum(r, at->agree) || (at->trusted && !neb__core_leads(r)) ||
                 (at->agree & neb__bit(r->self));
    }
    if (!others && !wrong) return;
    if (!wrong && neb__core_quorum(r, own->agree)) {
        set_aside(r, others);
        return;
    }
    if (!wrong && !neb__core_leads(r)) return; /* the leader will find out */
    silent = r->roster.voters & ~(own->agree | others);
    if (!wrong && neb__core_quorum(r, own->agree | silent)) {
        neb__core_note(
            r, "two sites report different state roots, and too few others have reported one to tell which "
               "is right; compare `nebula-i status` of all sites");
        return;
    }
    neb__core_halt(r,
                   "the state root differs from another site's at the same index: this machine or that one "
                   "computed or stored something wrong; compare `nebula-i status` of all sites");
}

void neb__root_own(struct neb_round *r, uint64_t index, const struct neb_hash *root)
{
    struct neb_core_root *at = place(r, index, root);
    uint8_t b[SIGNED];
    if (!at) return;
    if (!(at->agree & neb__bit(r->self)) && r->cfg.seal.sign) {
        to_sign(r, index, root, b);
        if (r->cfg.seal.sign(r->cfg.seal.arg, purpose, b, SIGNED, at->signature[r->self]) != NEB_OK) return;
    }
    at->agree |= neb__bit(r->self);
    judge(r, at);
    compare(r, index);
}

void neb__root_reported(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (f->start > r->commit || r->peer[from].odd) return;
    struct neb_core_root *at = neb__root_find(r, f->start, &f->root);
    if (!at || !(at->agree & neb__bit(from))) {
        if (!genuine(r, from, f->start, &f->root, f->signature)) return;
        make_way(r, from, f->start);
        at = place(r, f->start, &f->root);
        if (!at) return;
        memcpy(at->signature[from], f->signature, NEB_SEAL_SIZE);
        at->agree |= neb__bit(from);
    }
    judge(r, at);
    compare(r, f->start);
}

/* Whether fewer than CERTIFIED trusted roots are newer. */
static bool among_newest(const struct neb_round *r, uint64_t index)
{
    int newer = 0;
    for (size_t i = 0; i < r->roots; i++) newer += r->root[i].trusted && r->root[i].index > index;
    return newer < CERTIFIED;
}

void neb__root_certify(struct neb_round *r, struct neb_round_frame *f, bool signatures)
{
    f->roots = f->certs = 0;
    for (size_t i = 0; i < r->roots; i++) {
        const struct neb_core_root *at = &r->root[i];
        if (!at->trusted) continue;
        bool certify = signatures && among_newest(r, at->index);
        for (unsigned s = 0; certify && s < NEB_SITES_MAX && f->certs < NEB_ROUND_FRAME_CERTS; s++) {
            if (!(at->agree & r->roster.members & neb__bit(s))) continue;
            struct neb_round_frame_cert *t = &f->cert[f->certs++];
            t->root = (uint8_t)f->roots;
            t->site = (uint16_t)s;
            memcpy(t->signature, at->signature[s], NEB_SEAL_SIZE);
        }
        f->trusted[f->roots++] = (struct neb_round_frame_root){at->index, at->root, at->consent};
    }
}

void neb__roots_pinged(struct neb_round *r, const struct neb_round_frame *f)
{
    for (int i = 0; i < f->roots; i++) {
        const struct neb_round_frame_root *t = &f->trusted[i];
        struct neb_core_root *at = neb__root_find(r, t->index, &t->root);
        if (at && at->trusted) continue;
        uint64_t behind = 0;
        for (int k = 0; k < f->certs; k++)
            if (f->cert[k].root == i && genuine(r, f->cert[k].site, t->index, &t->root, f->cert[k].signature))
                behind |= neb__bit(f->cert[k].site);
        bool trusted = signed_enough(r, behind) && neb__core_quorum(r, behind | t->consent);
        at = trusted ? place(r, t->index, &t->root) : NULL;
        if (!at) continue;
        at->trusted = true;
        compare(r, t->index);
    }
}

/* Whether enough sites have signed the root of this record: who catches up can then do without them. */
bool neb__root_signed(const struct neb_round *r, uint64_t index)
{
    for (size_t i = 0; i < r->roots; i++)
        if (r->root[i].index == index && signed_enough(r, r->root[i].agree)) return true;
    return false;
}

enum { ROOTS_FOR = 512, ROOTS_PAUSE = 4, ROOTS_IN_A_ROW = 16 };

/* A member says whether it catches up. While it does each record costs all sites the hash of a fragment, so these are counted. */
void neb__root_lacks(struct neb_round *r, unsigned site, bool lacks)
{
    struct neb_core_peer *p = &r->peer[site];
    uint64_t more = r->commit > p->roots_at ? r->commit - p->roots_at : 0;
    if (more < ROOTS_PAUSE && lacks == p->rootless) return;
    p->roots_at = r->commit;
    if (p->rootless)
        p->roots_for = p->roots_for + more < 2 * ROOTS_FOR ? p->roots_for + more : 2 * ROOTS_FOR;
    else
        p->roots_for -= more / ROOTS_PAUSE < p->roots_for ? more / ROOTS_PAUSE : p->roots_for;
    p->rootless = lacks;
}

/* Who has been catching up for very long, or says so, gets a root of one record in four, several in a row: cells come with
 * the root of the moment at which they are sent. */
static bool gets_roots(const struct neb_round *r, const struct neb_core_peer *p)
{
    return p->rootless && (p->roots_for < ROOTS_FOR || r->commit / ROOTS_IN_A_ROW % ROOTS_PAUSE == 0);
}

bool neb__root_needed(const struct neb_round *r)
{
    if (!neb__core_leads(r)) return r->roots_wanted;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (s == r->self
                ? !r->whole
                : (r->roster.members & neb__bit(s)) && neb__lead_live(r, s) && gets_roots(r, &r->peer[s]))
            return true;
    return false;
}

bool neb__root_wanted(const struct neb_round *r)
{
    if (!r->whole || !r->cursor || r->root_at == r->cursor) return false;
    bool last = r->ended && r->cursor >= r->final_index;
    return last || r->cursor % r->cfg.root_every == 0 || neb__root_needed(r);
}

void neb__root_computed(struct neb_round *r, const struct neb_event *ev)
{
    bool current = r->rooting && r->whole && ev->index == r->cursor;
    r->rooting = false;
    if (!current) return;
    r->cur_root = ev->root;
    r->root_at = r->cursor;
    neb__root_own(r, r->cursor, &ev->root);
    r->report_due = true;
}
