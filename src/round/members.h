/* members.h: the members of a run in one epoch, the voters among them, and their quorums. */
#ifndef NEB_ROUND_MEMBERS_H
#define NEB_ROUND_MEMBERS_H

#include "base/bytes.h"
#include "base/buf.h"

#define NEB_SITES_MAX 64 /* sites of a run, over its whole life: ids are never used again */
#define NEB_NO_SITE   0xffffu

/* One bit a site. A witness is a voter that does not train. `heavy` is the survivor: a voter with two
 * votes. */
struct neb_members {
    uint32_t epoch;
    uint64_t members, voters, trains;
    uint16_t heavy; /* or NEB_NO_SITE */
};

static inline uint64_t neb__bit(unsigned site)
{
    return site < NEB_SITES_MAX ? (uint64_t)1 << site : 0;
}

enum { NEB_ROUND_VOTERS_MAX = 7 };

int neb__members_votes(const struct neb_members *r, uint64_t sites); /* the votes of these sites together */
int neb__members_total(const struct neb_members *r);
int neb__members_quorum(const struct neb_members *r); /* votes that commit */
bool neb__members_has_quorum(const struct neb_members *r, uint64_t sites);

/* Whether answers of `sites` let `self` vote again after it has forgotten its promises. They must meet every
 * quorum that `self` may have been part of, and every other such set of sites. A site without a vote needs a
 * quorum, because the two halves of an even number of votes have nobody in common. */
bool neb__members_remembers(const struct neb_members *r, unsigned self, uint64_t sites);

/* Valid on its own: voters are members, there are 1 to 7 of them, and the heavy one is a voter. */
bool neb__members_valid(const struct neb_members *r);

/* Whether `to` may follow `from` as an ordinary change: it is the next epoch, and one site changed, or one
 * site got or lost its second vote. So every quorum of one roster meets every quorum of the other. With a
 * survivor the voters are fixed. */
bool neb__members_follows(const struct neb_members *from, const struct neb_members *to);
/* Whether `to` is the next epoch of the same members: one of them has another key. */
bool neb__members_renews(const struct neb_members *from, const struct neb_members *to);

#define NEB_MEMBERS_SIZE 30
void neb__members_bytes(const struct neb_members *r, uint8_t out[NEB_MEMBERS_SIZE]);
neb_status neb__members_put(const struct neb_members *r, struct neb_buf *out);
bool neb__members_equal(const struct neb_members *a, const struct neb_members *b);
void neb__members_get(struct neb_reader *in, struct neb_members *r);

#endif
