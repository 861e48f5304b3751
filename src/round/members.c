/* members.c: membership as bit sets, and the arithmetic of quorums.
 *
 * A quorum is more than half of all votes. Any two quorums of one roster meet; and because an ordinary change
 * adds, removes, promotes or demotes one site with one vote, any quorum of an epoch also meets any quorum of
 * the next one. Giving one site a second vote, or taking it, keeps that too. Safety needs only that, and the
 * rule that nothing is appended behind an uncommitted change. */
#include "round/members.h"

static int count(uint64_t x)
{
    return __builtin_popcountll(x);
}

int neb__members_votes(const struct neb_members *r, uint64_t sites)
{
    sites &= r->voters;
    return count(sites) + (sites & neb__bit(r->heavy) ? 1 : 0);
}

int neb__members_total(const struct neb_members *r)
{
    return neb__members_votes(r, r->voters);
}

int neb__members_quorum(const struct neb_members *r)
{
    return neb__members_total(r) / 2 + 1;
}

bool neb__members_has_quorum(const struct neb_members *r, uint64_t sites)
{
    return neb__members_votes(r, sites) >= neb__members_quorum(r);
}

bool neb__members_remembers(const struct neb_members *r, unsigned self, uint64_t sites)
{
    int heard = neb__members_votes(r, sites & ~neb__bit(self));
    if (!(r->voters & neb__bit(self))) return heard >= neb__members_quorum(r);
    return heard > neb__members_total(r) - neb__members_quorum(r);
}

bool neb__members_valid(const struct neb_members *r)
{
    if (!r->voters || (r->voters & ~r->members) || (r->trains & ~r->members)) return false;
    if (count(r->voters) > NEB_ROUND_VOTERS_MAX) return false;
    return r->heavy == NEB_NO_SITE || (r->heavy < NEB_SITES_MAX && (r->voters & neb__bit(r->heavy)));
}

bool neb__members_follows(const struct neb_members *from, const struct neb_members *to)
{
    if (!neb__members_valid(to) || to->epoch != from->epoch + 1) return false;
    if (from->heavy != NEB_NO_SITE && to->voters != from->voters) return false;
    uint64_t changed =
        (from->members ^ to->members) | (from->voters ^ to->voters) | (from->trains ^ to->trains);
    if (to->heavy != from->heavy) return !changed && (to->heavy == NEB_NO_SITE || from->heavy == NEB_NO_SITE);
    return count(changed) == 1;
}

bool neb__members_renews(const struct neb_members *from, const struct neb_members *to)
{
    struct neb_members next = *from;
    next.epoch++;
    return neb__members_equal(&next, to);
}

bool neb__members_equal(const struct neb_members *a, const struct neb_members *b)
{
    return a->epoch == b->epoch && a->members == b->members && a->voters == b->voters &&
           a->trains == b->trains && a->heavy == b->heavy;
}

void neb__members_bytes(const struct neb_members *r, uint8_t out[NEB_MEMBERS_SIZE])
{
    neb__put32(out, r->epoch);
    neb__put64(out + 4, r->members);
    neb__put64(out + 12, r->voters);
    neb__put64(out + 20, r->trains);
    neb__put16(out + 28, r->heavy);
}

neb_status neb__members_put(const struct neb_members *r, struct neb_buf *out)
{
    uint8_t b[NEB_MEMBERS_SIZE];
    neb__members_bytes(r, b);
    return neb__buf_append(out, b, sizeof b);
}

void neb__members_get(struct neb_reader *in, struct neb_members *r)
{
    r->epoch = neb__read32(in);
    r->members = neb__read64(in);
    r->voters = neb__read64(in);
    r->trains = neb__read64(in);
    r->heavy = neb__read16(in);
}
