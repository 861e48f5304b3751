/* relay.c: messages that members pass on for each other.
 *
 *     u8 format (1), u8 sites on the path, u16 author, u64 life, u64 number, u64 life of the destination,
 *     u64 confirmed, u32 kind, the path (a byte a site; the last is the destination), payload, signature
 *
 * The signature covers the run's genesis hash, everything before the payload, and the payload's hash. The author chooses
 * the whole path, so a message cannot go round in circles, and a member on the path only looks up its own successor.
 *
 * Every message of a process has another number. A member passes on, and the destination takes, each number of a life
 * once; an older life, or one meant for an older process of the destination, is ignored. So nothing that was recorded can
 * be sent a second time. `confirmed` is the newest number that the author has got from the destination. An author that
 * gets no confirmation looks for another path: a member may say that it is linked and pass on nothing. */
#include "round/routes.h"
#include "base/bytes.h"
#include "base/mutant.h"

static const char purpose[] = "nebula relayed message";

enum { FORMAT = 1 };

struct head {
    unsigned hops, author;
    uint64_t life, number, to_life, confirmed;
    uint32_t kind;
    const uint8_t *path;
};

static bool sign_bytes(const struct neb_routes *r, const uint8_t *bytes, size_t head, size_t payload,
                       uint8_t out[2 * NEB_HASH_SIZE + NEB_RELAY_HEAD + NEB_SITES_MAX], size_t *n)
{
    struct neb_hash hash;
    if (neb__hash(bytes + head, payload, &hash) != NEB_OK) return false;
    memcpy(out, r->cfg.genesis.b, NEB_HASH_SIZE);
    memcpy(out + NEB_HASH_SIZE, hash.b, NEB_HASH_SIZE);
    memcpy(out + 2 * NEB_HASH_SIZE, bytes, head);
    *n = 2 * NEB_HASH_SIZE + head;
    return true;
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static void put_head(struct neb_routes *r, unsigned to, uint32_t kind,
                     uint8_t b[NEB_RELAY_HEAD + NEB_SITES_MAX])
{
    const struct neb_route_peer *p = &r->peer[to];
    b[0] = FORMAT;
    b[1] = (uint8_t)p->hops;
    neb__put16(b + 2, r->cfg.self);
    neb__put64(b + 4, r->cfg.life);
    neb__put64(b + 12, ++r->counter);
    neb__put64(b + 20, r->state[to].life);
    neb__put64(b + 28, p->got);
    neb__put32(b + 36, kind);
    memcpy(b + NEB_RELAY_HEAD, p->path, (size_t)p->hops);
}

neb_status neb__routes_wrap(struct neb_routes *r, int64_t now, unsigned to, uint32_t kind, const void *bytes,
                            size_t n, struct neb_buf *out, unsigned *next)
{
    uint8_t head[NEB_RELAY_HEAD + NEB_SITES_MAX], signature[NEB_SEAL_SIZE];
    uint8_t text[2 * NEB_HASH_SIZE + sizeof head];
    size_t length;
    if (n > NEB_RELAY_PAYLOAD)
        return neb__quiet(NEB_ERR_LIMIT, "a message of %zu bytes is too large to be passed on", n);
    if (r->dirty) neb__routes_find_paths(r);
    if (neb__routes_reach(r, to) != NEB_REACH_FAR)
        return neb__quiet(NEB_ERR_PEER, "no members lead to site %u", to);
    struct neb_route_peer *p = &r->peer[to];
    r->now = now > r->now ? now : r->now;
    put_head(r, to, kind, head);
    size_t size = NEB_RELAY_HEAD + (size_t)p->hops;
    neb__buf_clear(out);
    NEB_TRY(neb__buf_append(out, head, size));
    NEB_TRY(neb__buf_append(out, bytes, n));
    if (!sign_bytes(r, out->data, size, n, text, &length)) return NEB_ERR_NOMEM;
    NEB_TRY(r->cfg.seal.sign(r->cfg.seal.arg, purpose, text, length, signature));
    NEB_TRY(neb__buf_append(out, signature, sizeof signature));
    if (!p->waits_since) p->waits_since = r->now, p->waits = r->counter;
    *next = p->path[0];
    return NEB_OK;
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

static bool get_head(const uint8_t *b, size_t n, struct head *h)
{
    if (n < NEB_RELAY_HEAD + NEB_SEAL_SIZE || n > NEB_RELAY_MAX || b[0] != FORMAT) return false;
    *h = (struct head){.hops = b[1],
                       .author = neb__get16(b + 2),
                       .life = neb__get64(b + 4),
                       .number = neb__get64(b + 12),
                       .to_life = neb__get64(b + 20),
                       .confirmed = neb__get64(b + 28),
                       .kind = neb__get32(b + 36),
                       .path = b + NEB_RELAY_HEAD};
    uint64_t seen = neb__bit(h->author);
    if (!seen || h->hops < 2 || h->hops >= NEB_SITES_MAX || n < NEB_RELAY_HEAD + h->hops + NEB_SEAL_SIZE)
        return false;
    for (unsigned i = 0; i < h->hops; i++) {
        uint64_t bit = neb__bit(h->path[i]);
        if (!bit || (seen & bit)) return false;
        seen |= bit;
    }
    return true;
}

/* Whether a message of this number came before, or is too old to tell. */
static bool came_before(const struct neb_route_peer *p, const struct head *h)
{
    if (NEB_MUTANT(relay_again)) return false;
    if (h->life != p->life) return h->life < p->life;
    if (h->number > p->top) return false;
    return p->top - h->number >= NEB_RELAY_WINDOW ||
           (p->seen[h->number / 64 % (NEB_RELAY_WINDOW / 64)] >> (h->number % 64) & 1);
}

static void remember(struct neb_route_peer *p, const struct head *h)
{
    if (h->life > p->life && !NEB_MUTANT(forget_lives)) {
        memset(p->seen, 0, sizeof p->seen);
        p->life = h->life;
        p->top = p->got = 0;
    }
    uint64_t words = NEB_RELAY_WINDOW / 64, from = p->top / 64 + 1, to = h->number / 64;
    if (h->number > p->top) {
        if (to >= from + words) from = to - words + 1;
        for (uint64_t w = from; w <= to; w++) p->seen[w % words] = 0;
        p->top = h->number;
    }
    p->seen[to % words] |= (uint64_t)1 << (h->number % 64);
}

static bool is_signed(struct neb_routes *r, unsigned from, const uint8_t *bytes, size_t n,
                      const struct head *h)
{
    uint8_t text[2 * NEB_HASH_SIZE + NEB_RELAY_HEAD + NEB_SITES_MAX];
    size_t length, size = NEB_RELAY_HEAD + h->hops;
    struct neb_route_peer *p = &r->peer[from];
    if (NEB_MUTANT(trust_relays)) return true;
    (void)neb__routes_room(&p->forged, &p->forged_at, r->now, NEB_FORGED_RATE, NEB_FORGED_BURST, 0);
    if (p->forged < 1 || !sign_bytes(r, bytes, size, n - size - NEB_SEAL_SIZE, text, &length)) return false;
    if (r->cfg.seal.verify(r->cfg.seal.arg, h->author, purpose, text, length, bytes + n - NEB_SEAL_SIZE))
        return true;
    p->forged -= 1;
    return false;
}

static enum neb_relay deliver(struct neb_routes *r, const struct head *h, const uint8_t *bytes, size_t n,
                              struct neb_relayed *out)
{
    struct neb_route_peer *p = &r->peer[h->author];
    if (h->to_life != r->cfg.life) return NEB_RELAY_IGNORE; /* for a process that is gone */
    if (h->number > p->got) p->got = h->number;
    if (p->waits_since && h->confirmed >= p->waits) p->waits_since = 0;
    out->bytes = bytes + NEB_RELAY_HEAD + h->hops;
    out->n = n - NEB_RELAY_HEAD - h->hops - NEB_SEAL_SIZE;
    return NEB_RELAY_DELIVER;
}

enum neb_relay neb__routes_take(struct neb_routes *r, int64_t now, unsigned from, const uint8_t *bytes,
                                size_t n, struct neb_relayed *out)
{
    struct head h;
    r->now = now > r->now ? now : r->now;
    if (from >= NEB_SITES_MAX || !get_head(bytes, n, &h)) return NEB_RELAY_FORGED;
    *out = (struct neb_relayed){.author = (uint16_t)h.author, .next = NEB_NO_SITE, .kind = h.kind};
    struct neb_route_peer *p = &r->peer[h.author];
    if (h.author == r->cfg.self || !(r->members & neb__bit(h.author)) || came_before(p, &h))
        return NEB_RELAY_IGNORE;
    unsigned at = 0;
    while (at < h.hops && h.path[at] != r->cfg.self) at++;
    if (at == h.hops) return NEB_RELAY_FORGED;
    if (!is_signed(r, from, bytes, n, &h)) return NEB_RELAY_FORGED;
    remember(p, &h);
    if (at + 1 == h.hops) return deliver(r, &h, bytes, n, out);
    out->next = h.path[at + 1];
    r->dropped++;
    if (NEB_MUTANT(no_relay) || !(r->links & r->members & neb__bit(out->next))) return NEB_RELAY_IGNORE;
    if (!neb__routes_room(&p->room, &p->room_at, r->now, NEB_RELAY_RATE, NEB_RELAY_BURST, (double)n))
        return NEB_RELAY_LIMITED;
    r->dropped--;
    r->passed++;
    return NEB_RELAY_FORWARD;
}
