/* routes.c: who is linked to whom, as the members sign it, and the shortest paths that follow.
 *
 * A link state is
 *
 *     u16 site, u64 life, u64 sequence, u64 links (a bit for each member), signature
 *
 * and the signature covers the run's genesis hash, too. A newer one (life, then sequence) replaces an older one. A site
 * tells its neighbours its own state whenever its links change, and passes on what is new to it; every few seconds it
 * repeats them, because a message may have been dropped. A neighbour that is linked to the author itself is not told: it
 * hears that from the author.
 *
 * A link counts only if both ends say so. So nobody can draw traffic with links that do not exist, except to itself; and
 * a site that died is out of all paths as soon as its neighbours have noticed, whatever it said last. States do not
 * expire: what a part of the graph says that cannot be reached has no effect.
 *
 * Paths are found breadth first, sites with low numbers first. */
#include "round/routes.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/mutant.h"

static const char purpose[] = "nebula link state";

enum { SIGNED = NEB_LINK_STATE_SIZE - NEB_SEAL_SIZE, NEWS_BURST = 32, NEWS_RATE = 8 };

neb_status neb__routes_create(const struct neb_routes_config *c, struct neb_routes **out)
{
    if (c->self >= NEB_SITES_MAX || !c->life || !c->seal.sign || !c->seal.verify)
        return neb__fail(NEB_ERR_INVALID, "routes: site %u needs a number below %d, a life and a key",
                         c->self, NEB_SITES_MAX);
    struct neb_routes *r = NEB_NEW(struct neb_routes);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for the paths between the sites");
    r->cfg = *c;
    if (!r->cfg.refresh_ms) r->cfg.refresh_ms = 5000;
    if (!r->cfg.detour_ms) r->cfg.detour_ms = 6000;
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        r->state[i].news = NEWS_BURST;
        r->peer[i].room = NEB_RELAY_BURST;
        r->peer[i].forged = NEB_FORGED_BURST;
    }
    *out = r;
    return NEB_OK;
}

void neb__routes_destroy(struct neb_routes *r)
{
    neb__free(r);
}

bool neb__routes_room(double *room, int64_t *at, int64_t now, double rate, double burst, double n)
{
    double more = now > *at ? (double)(now - *at) * 1e-3 * rate : 0;
    *room = *room + more < burst ? *room + more : burst;
    *at = now > *at ? now : *at;
    if (*room < n) return false;
    *room -= n;
    return true;
}

/* ---- the graph ----------------------------------------------------------------------------------------- */

static uint64_t says(const struct neb_routes *r, unsigned site)
{
    return site == r->cfg.self ? r->links : r->state[site].links;
}

/* The members that the site is linked to, as both ends say. This site knows its own links by itself. */
static uint64_t edges(const struct neb_routes *r, unsigned site)
{
    uint64_t out = 0, said = says(r, site) & r->members;
    if (site == r->cfg.self || NEB_MUTANT(trust_one_end)) return said;
    for (uint64_t left = said; left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        if (says(r, i) & neb__bit(site)) out |= neb__bit(i);
    }
    return out;
}

/* The tree of shortest paths from `root` over sites that are not in `avoid`: each site's parent. Returns the sites that
 * it reaches. */
static uint64_t tree(const struct neb_routes *r, unsigned root, uint64_t avoid, uint8_t parent[NEB_SITES_MAX])
{
    uint64_t seen = neb__bit(root), layer = seen;
    while (layer) {
        uint64_t next = 0;
        for (uint64_t left = layer; left; left &= left - 1) {
            unsigned i = (unsigned)__builtin_ctzll(left);
            uint64_t more = edges(r, i) & ~seen;
            for (uint64_t m = more; m; m &= m - 1) parent[__builtin_ctzll(m)] = (uint8_t)i;
            seen |= more;
            next |= more & ~avoid; /* a path may end there, but not lead on */
        }
        layer = next;
    }
    return seen;
}

static void take_path(struct neb_routes *r, unsigned to, uint64_t seen, const uint8_t parent[NEB_SITES_MAX])
{
    struct neb_route_peer *p = &r->peer[to];
    p->hops = 0;
    if (to == r->cfg.self || !(seen & neb__bit(to))) return;
    for (unsigned i = to; i != r->cfg.self; i = parent[i]) p->hops++;
    int at = p->hops;
    for (unsigned i = to; i != r->cfg.self; i = parent[i]) p->path[--at] = (uint8_t)i;
}

void neb__routes_find_path(struct neb_routes *r, unsigned to)
{
    uint8_t parent[NEB_SITES_MAX];
    uint64_t avoid = r->peer[to].avoid;
    uint64_t seen = tree(r, r->cfg.self, avoid, parent);
    if (avoid && !(seen & neb__bit(to))) { /* there is no way around them */
        r->peer[to].avoid = 0;
        seen = tree(r, r->cfg.self, 0, parent);
    }
    take_path(r, to, seen, parent);
}

void neb__routes_find_paths(struct neb_routes *r)
{
    uint8_t parent[NEB_SITES_MAX];
    uint64_t seen = tree(r, r->cfg.self, 0, parent);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        take_path(r, i, seen, parent);
        if (r->peer[i].hops > 1 && r->peer[i].avoid) neb__routes_find_path(r, i);
        if (r->peer[i].hops <= 1) r->peer[i].avoid = 0, r->peer[i].waits_since = 0;
    }
    r->dirty = false;
}

uint64_t neb__routes_children(const struct neb_routes *r, unsigned author, uint64_t holders)
{
    uint8_t parent[NEB_SITES_MAX];
    uint64_t out = 0;
    if (author >= NEB_SITES_MAX) return 0;
    uint64_t seen = tree(r, author, ~holders, parent) & r->links & ~neb__bit(author);
    for (; seen; seen &= seen - 1)
        if (parent[__builtin_ctzll(seen)] == r->cfg.self) out |= seen & -seen;
    return out;
}

bool neb__routes_between(const struct neb_routes *r)
{
    uint8_t parent[NEB_SITES_MAX];
    uint64_t links = r->links & r->members;
    if (!(links & (links - 1))) return false; /* at most one: nothing passes through here */
    uint64_t all = tree(r, r->cfg.self, 0, parent);
    for (uint64_t left = all; left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        if (all & ~(edges(r, i) | neb__bit(i))) return true;
    }
    return false;
}

enum neb_reach neb__routes_reach(const struct neb_routes *r, unsigned site)
{
    if (site >= NEB_SITES_MAX) return NEB_REACH_NONE;
    if (r->links & neb__bit(site)) return NEB_REACH_LINK; /* also of a site that is no member (any more) */
    return r->peer[site].hops > 1 ? NEB_REACH_FAR : NEB_REACH_NONE;
}

unsigned neb__routes_via(const struct neb_routes *r, unsigned site)
{
    return neb__routes_reach(r, site) == NEB_REACH_FAR ? r->peer[site].path[0] : NEB_NO_SITE;
}

/* ---- link states --------------------------------------------------------------------------------------- */

static void to_sign(const struct neb_routes *r, const uint8_t *state, uint8_t out[NEB_HASH_SIZE + SIGNED])
{
    memcpy(out, r->cfg.genesis.b, NEB_HASH_SIZE);
    memcpy(out + NEB_HASH_SIZE, state, SIGNED);
}

/* Neighbours that hear of `site` from this one: not the site itself, nor those that are linked to it. */
static uint64_t audience(const struct neb_routes *r, unsigned site)
{
    uint64_t out = r->links & ~neb__bit(site);
    return site == r->cfg.self ? out : out & ~edges(r, site);
}

static void spread(struct neb_routes *r, unsigned site, uint64_t but)
{
    for (uint64_t left = audience(r, site) & ~but; left; left &= left - 1)
        r->tell[__builtin_ctzll(left)] |= neb__bit(site);
}

/* Signs this site's links anew. Without a signature (out of memory) the next refresh tries again. */
static void sign_own(struct neb_routes *r)
{
    struct neb_route_state *s = &r->state[r->cfg.self];
    uint8_t b[NEB_HASH_SIZE + SIGNED], state[NEB_LINK_STATE_SIZE];
    neb__put16(state, r->cfg.self);
    neb__put64(state + 2, r->cfg.life);
    neb__put64(state + 10, r->seq + 1);
    neb__put64(state + 18, r->links);
    to_sign(r, state, b);
    if (r->cfg.seal.sign(r->cfg.seal.arg, purpose, b, sizeof b, state + SIGNED) != NEB_OK) {
        s->life = 0;
        return;
    }
    memcpy(s->bytes, state, sizeof state);
    s->life = r->cfg.life;
    s->seq = ++r->seq;
    s->links = r->links;
    spread(r, r->cfg.self, 0);
}

void neb__routes_members(struct neb_routes *r, uint64_t members)
{
    if (members == r->members) return;
    r->members = members;
    r->dirty = true;
}

void neb__routes_forget(struct neb_routes *r, unsigned site)
{
    if (site >= NEB_SITES_MAX || site == r->cfg.self) return;
    struct neb_route_state *s = &r->state[site];
    struct neb_route_peer *p = &r->peer[site];
    s->life = s->seq = s->links = 0;
    p->life = p->top = p->got = 0;
    memset(p->seen, 0, sizeof p->seen);
    r->dirty = true;
}

void neb__routes_link(struct neb_routes *r, int64_t now, unsigned site, bool up)
{
    uint64_t bit = neb__bit(site);
    if (site >= NEB_SITES_MAX || site == r->cfg.self) return;
    r->now = now > r->now ? now : r->now;
    r->dirty = true;
    if (up == ((r->links & bit) != 0)) return;
    r->links = up ? r->links | bit : r->links & ~bit;
    r->tell[site] = 0;
    for (unsigned i = 0; up && i < NEB_SITES_MAX; i++) /* a new neighbour may know nothing */
        if (r->state[i].life && i != site) r->tell[site] |= neb__bit(i);
    sign_own(r);
}

/* Checking a signature takes time, so a neighbour with too many bad ones is not listened to for a while. */
static bool genuine(struct neb_routes *r, unsigned from, const uint8_t *state, unsigned site)
{
    uint8_t b[NEB_HASH_SIZE + SIGNED];
    struct neb_route_peer *p = &r->peer[from];
    (void)neb__routes_room(&p->forged, &p->forged_at, r->now, NEB_FORGED_RATE, NEB_FORGED_BURST, 0);
    if (p->forged < 1) return false;
    to_sign(r, state, b);
    if (r->cfg.seal.verify(r->cfg.seal.arg, site, purpose, b, sizeof b, state + SIGNED)) return true;
    p->forged -= 1;
    return false;
}

static bool hear_one(struct neb_routes *r, unsigned from, const uint8_t *state)
{
    unsigned site = neb__get16(state);
    uint64_t life = neb__get64(state + 2), seq = neb__get64(state + 10);
    if (site >= NEB_SITES_MAX || !life) return false;
    struct neb_route_state *s = &r->state[site];
    bool newer = life > s->life || (life == s->life && seq > s->seq);
    if (NEB_MUTANT(older_states)) newer = life != s->life || seq != s->seq;
    if (!newer || site == r->cfg.self || !(r->members & neb__bit(site))) return true;
    if (!genuine(r, from, state, site)) return false;
    if (!neb__routes_room(&s->news, &s->news_at, r->now, NEWS_RATE, NEWS_BURST, 1))
        return true; /* later again */
    memcpy(s->bytes, state, NEB_LINK_STATE_SIZE);
    s->life = life;
    s->seq = seq;
    s->links = neb__get64(state + 18);
    r->dirty = true;
    spread(r, site, neb__bit(from));
    return true;
}

bool neb__routes_hear(struct neb_routes *r, int64_t now, unsigned from, const uint8_t *bytes, size_t n)
{
    if (from >= NEB_SITES_MAX || n % NEB_LINK_STATE_SIZE || n > NEB_SITES_MAX * NEB_LINK_STATE_SIZE)
        return false;
    r->now = now > r->now ? now : r->now;
    bool good = true;
    for (size_t at = 0; at < n; at += NEB_LINK_STATE_SIZE) good = hear_one(r, from, bytes + at) && good;
    return good;
}

/* Avoids one more member of the present path than `avoid`, if there is another path then. Every time another member is the
 * first to be tried. */
static bool avoid_one(struct neb_routes *r, unsigned to, uint64_t avoid)
{
    uint8_t parent[NEB_SITES_MAX];
    struct neb_route_peer *p = &r->peer[to];
    int middle = p->hops - 1;
    for (int k = 0; k < middle; k++) {
        uint64_t more = avoid | neb__bit(p->path[((int)(p->detours % (unsigned)middle) + k) % middle]);
        if (!(tree(r, r->cfg.self, more, parent) & neb__bit(to))) continue;
        p->avoid = more;
        return true;
    }
    return false;
}

/* Nothing that was sent over this path was confirmed for a while: perhaps a member on it drops everything. Nobody can tell
 * which one, and some members cannot be avoided. So one after the other is, until there is no other path; then the search
 * begins again. */
static void detour(struct neb_routes *r, unsigned to)
{
    struct neb_route_peer *p = &r->peer[to];
    if (p->hops <= 1 || !p->waits_since || r->now < p->waits_since + r->cfg.detour_ms) return;
    p->waits_since = 0;
    if (NEB_MUTANT(no_detour)) return;
    if (!avoid_one(r, to, p->avoid) && !avoid_one(r, to, 0)) p->avoid = 0;
    p->detours++;
    neb__routes_find_path(r, to);
}

void neb__routes_tick(struct neb_routes *r, int64_t now)
{
    r->now = now > r->now ? now : r->now;
    if (r->now < r->refresh_at) return;
    r->refresh_at = r->now + r->cfg.refresh_ms;
    if (!r->state[r->cfg.self].life && r->links) sign_own(r);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        if (r->state[i].life && (r->members & neb__bit(i))) spread(r, i, 0);
        detour(r, i);
    }
}

int64_t neb__routes_wake(const struct neb_routes *r)
{
    return r->refresh_at;
}

bool neb__routes_tell(struct neb_routes *r, unsigned *to, struct neb_buf *out)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        uint64_t sites = r->tell[i];
        r->tell[i] = 0;
        if (!sites || !(r->links & neb__bit(i))) continue;
        neb__buf_clear(out);
        for (; sites; sites &= sites - 1) {
            const struct neb_route_state *s = &r->state[__builtin_ctzll(sites)];
            if (s->life && neb__buf_append(out, s->bytes, NEB_LINK_STATE_SIZE) != NEB_OK)
                break; /* told again later */
        }
        *to = i;
        if (out->len) return true;
    }
    return false;
}

bool neb__routes_changed(struct neb_routes *r, unsigned *site, enum neb_reach *was, enum neb_reach *how)
{
    if (r->dirty) neb__routes_find_paths(r);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_route_peer *p = &r->peer[i];
        enum neb_reach now = neb__routes_reach(r, i);
        if (now == p->told && (now != NEB_REACH_FAR || r->state[i].life == p->told_life)) continue;
        *was = p->told;
        p->told = *how = now;
        p->told_life = r->state[i].life;
        p->told_at = r->now;
        *site = i;
        return true;
    }
    return false;
}
