/* root.c: state roots: who signed which, and when one is trusted.
 *
 * A site that has applied everything up to an index signs (run, index, root of the state). A root is trusted when voters
 * with a quorum stand behind it: those whose signatures are here, and those that cannot report one because they are
 * catching up themselves (otherwise sites that fall behind together could never recover); at least one must have
 * signed. Hashing the state takes longer than applying a record, so a root is made only where it serves: at every
 * record whose number is a multiple of cfg.root_every, so that all sites compare the same ones; at the last record; and
 * at every one while somebody catches up (the leader's pings say so). The leader collects the signatures from reports and hands them to whoever catches up, who checks them. Two
 * different roots at one index mean a machine that computes or stores something wrong: the site stops. */
#include "round/core.h"

static const char purpose[] = "nebula round root";

enum { SIGNED = NEB_HASH_SIZE + 8 + NEB_HASH_SIZE, CERTIFIED = 4 /* the newest roots go with signatures */ };

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

struct root *neb__root_at(struct neb_round *r, uint64_t index)
{
    for (size_t i = 0; i < r->roots; i++)
        if (r->root[i].index == index) return &r->root[i];
    return NULL;
}

/* The place of (index, root), made if need be. NULL: older than all that are kept, or another root is there. `sure`: the
 * own one, or one that a quorum stands behind. */
static struct root *place(struct neb_round *r, uint64_t index, const struct neb_hash *root, bool sure)
{
    struct root *at = neb__root_at(r, index);
    if (at && neb__hash_equal(&at->root, root)) return at;
    if (at) {
        if (at->trusted || sure || (at->agree & neb__bit(r->self)))
            neb__halt(
                r, "the state root differs from another site's at the same index: this machine or that one "
                   "computed or stored something wrong; compare `nebula-i status` of all sites");
        return NULL;
    }
    if (r->roots == ROOTS) {
        size_t old = 0;
        for (size_t i = 1; i < r->roots; i++)
            if (r->root[i].index < r->root[old].index) old = i;
        if (r->root[old].index > index) return NULL;
        r->root[old] = r->root[--r->roots];
    }
    at = &r->root[r->roots++];
    memset(at, 0, sizeof *at);
    at->index = index;
    at->root = *root;
    return at;
}

static void judge(struct neb_round *r, struct root *at)
{
    if (!neb__leads(r) || !at->agree || at->trusted) return;
    uint64_t cannot = 0;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (s == r->self ? !r->whole : r->peer[s].rootless && neb__live(r, s)) cannot |= neb__bit(s);
    if (!neb__members_has_quorum(&r->roster, at->agree | cannot)) return;
    at->consent = cannot & r->roster.voters;
    at->trusted = true;
}

void neb__root_own(struct neb_round *r, uint64_t index, const struct neb_hash *root)
{
    struct root *at = place(r, index, root, true);
    uint8_t b[SIGNED];
    if (!at) return;
    if (!(at->agree & neb__bit(r->self)) && r->cfg.seal.sign) {
        to_sign(r, index, root, b);
        if (r->cfg.seal.sign(r->cfg.seal.arg, purpose, b, SIGNED, at->signature[r->self]) != NEB_OK) return;
    }
    at->agree |= neb__bit(r->self);
    judge(r, at);
}

void neb__root_reported(struct neb_round *r, unsigned from, const struct neb_frame *f)
{
    struct root *at = place(r, f->start, &f->root, false);
    if (!at) return;
    if (!(at->agree & neb__bit(from))) {
        if (!genuine(r, from, f->start, &f->root, f->signature)) return;
        memcpy(at->signature[from], f->signature, NEB_SEAL_SIZE);
        at->agree |= neb__bit(from);
    }
    judge(r, at);
}

/* Whether fewer than CERTIFIED trusted roots are newer. */
static bool among_newest(const struct neb_round *r, uint64_t index)
{
    int newer = 0;
    for (size_t i = 0; i < r->roots; i++) newer += r->root[i].trusted && r->root[i].index > index;
    return newer < CERTIFIED;
}

void neb__root_certify(struct neb_round *r, struct neb_frame *f, bool signatures)
{
    f->roots = f->certs = 0;
    for (size_t i = 0; i < r->roots; i++) {
        const struct root *at = &r->root[i];
        if (!at->trusted) continue;
        bool certify = signatures && among_newest(r, at->index);
        for (unsigned s = 0; certify && s < NEB_SITES_MAX && f->certs < NEB_FRAME_CERTS; s++) {
            if (!(at->agree & r->roster.voters & neb__bit(s))) continue;
            struct neb_frame_cert *t = &f->cert[f->certs++];
            t->root = (uint8_t)f->roots;
            t->site = (uint16_t)s;
            memcpy(t->signature, at->signature[s], NEB_SEAL_SIZE);
        }
        f->trusted[f->roots++] = (struct neb_frame_root){at->index, at->root, at->consent};
    }
}

void neb__roots_pinged(struct neb_round *r, const struct neb_frame *f)
{
    for (int i = 0; i < f->roots; i++) {
        const struct neb_frame_root *t = &f->trusted[i];
        struct root *at = neb__root_at(r, t->index);
        if (at && at->trusted && neb__hash_equal(&at->root, &t->root)) continue;
        uint64_t behind = 0;
        for (int k = 0; k < f->certs; k++)
            if (f->cert[k].root == i && genuine(r, f->cert[k].site, t->index, &t->root, f->cert[k].signature))
                behind |= neb__bit(f->cert[k].site);
        bool trusted =
            (behind & r->roster.voters) && neb__members_has_quorum(&r->roster, behind | t->consent);
        at = place(r, t->index, &t->root, trusted);
        if (at && trusted) at->trusted = true;
    }
}

bool neb__root_needed(const struct neb_round *r)
{
    if (!neb__leads(r)) return r->roots_wanted;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (s == r->self ? !r->whole
                         : (r->roster.members & neb__bit(s)) && neb__live(r, s) && r->peer[s].rootless)
            return true;
    return false;
}

bool neb__root_wanted(const struct neb_round *r)
{
    if (!r->whole || !r->cursor || r->root_at == r->cursor) return false;
    bool last = r->ended && r->cursor >= r->final_index;
    return last || r->cursor % r->cfg.root_every == 0 || neb__root_needed(r);
}

void neb__rooted(struct neb_round *r, const struct neb_event *ev)
{
    bool current = r->rooting && r->whole && ev->index == r->cursor;
    r->rooting = false;
    if (!current) return;
    r->cur_root = ev->root;
    r->root_at = r->cursor;
    neb__root_own(r, r->cursor, &ev->root);
    r->report_due = true;
}
