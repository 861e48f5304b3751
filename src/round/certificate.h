/* certificate.h: signed statements of sites about the log, and certificates made of them.
 *
 * A statement is one site's signature of a place in the log. A certificate is a quorum of statements of one kind about one
 * place. It proves to anybody who knows the roster that the record there, and the chain behind it, is committed (or, in its
 * first phase, prepared). */
#ifndef NEB_ROUND_CERTIFICATE_H
#define NEB_ROUND_CERTIFICATE_H

#include "round/order.h"

enum neb_said_kind {
    NEB_SAID_HOLDS = 2, /* an acknowledgement: the log up to here is on my disk, in this view */
    NEB_SAID_PREPARED,  /* byzantine: so is a certificate of HOLDS for it */
    NEB_SAID_VOTES,     /* for the leader of `view`: my log is of view `normal` and ends here */
    NEB_SAID_STARTS, /* a leader: my view begins with this log; `more` is the hash of the votes that say so */
    NEB_SAID_KINDS
};

/* The lapses that a site has on its disk, of the voters that have one; ascending by site. */
struct neb_lapse_table {
    uint8_t n;
    struct {
        uint8_t site;
        uint16_t lapse;
    } of[NEB_ROUND_VOTERS_MAX + 1];
};

struct neb_said {
    uint8_t kind, site;
    uint32_t epoch, life; /* life: the incarnation that says it */
    uint64_t view, normal, index;
    struct neb_hash hash;
    struct neb_hash more; /* STARTS: of the votes; VOTES: a forced epoch (below) */
    struct neb_lapse_table lapses;
    uint8_t signature[NEB_SEAL_SIZE];
};

uint32_t neb__said_lapse(const struct neb_said *s, unsigned of); /* 0: none */
neb_status neb__said_sign(struct neb_said *s, const struct neb_hash *genesis, const struct neb_seal *seal);
bool neb__said_genuine(const struct neb_said *s, const struct neb_hash *genesis, const struct neb_seal *seal);
bool neb__said_same_place(const struct neb_said *a,
                          const struct neb_said *b); /* kind, epoch, view, index, hash */
neb_status neb__said_put(const struct neb_said *s, struct neb_buf *out);
bool neb__said_get(struct neb_reader *in,
                   struct neb_said *out); /* false: not a statement in canonical form */

/* The epoch of the last roster that an operator forced in the log (byzantine: for what was prepared) that a vote is for; 0: none.
 * Views of different rosters say nothing about each other, so it comes before the view. */
void neb__vote_set_forced(struct neb_said *vote, uint32_t epoch);
uint32_t neb__vote_forced(const struct neb_said *vote);
/* Whether the log of vote `a` is to be preferred to that of `b`. */
bool neb__vote_better(const struct neb_said *a, const struct neb_said *b);

/* Whether a statement in the list is void: another one of it shows a newer lapse of its author. */
bool neb__said_void(const struct neb_said *all, int n);

#define NEB_LAPSE_MAX 0xffffu /* 16 bits of an update's number */

/* The highest lapse that a key of the site may sign: its present one, or one that was replaced (former). Each new key has half of
 * the numbers that are left, so nobody can use up those of the keys that follow. */
uint32_t neb__lapse_limit(const struct neb_seal *seal, unsigned site, bool former);

/* A site's own word for its lapse: others pass it on. */
neb_status neb__lapse_sign(const struct neb_hash *genesis, const struct neb_seal *seal, unsigned site,
                           uint32_t lapse, uint8_t out[NEB_SEAL_SIZE]);
bool neb__lapse_genuine(const struct neb_hash *genesis, const struct neb_seal *seal, unsigned site,
                        uint32_t lapse, const uint8_t signature[NEB_SEAL_SIZE]);

enum neb_quorum_rule {
    NEB_QUORUM_OLD,       /* majority, in a run that began before there were certificates */
    NEB_QUORUM_MAJORITY,  /* more than half of the votes */
    NEB_QUORUM_BYZANTINE, /* of 3f + 1 votes 2f + 1, in two phases */
};

/* Votes that decide under the rule, and how many of the voters may lie under `byzantine`. */
int neb__quorum_votes(const struct neb_members *m, enum neb_quorum_rule rule);
bool neb__quorum_has(const struct neb_members *m, enum neb_quorum_rule rule, uint64_t sites);
int neb__quorum_liars(const struct neb_members *m);

struct neb_certificate {
    uint8_t kind; /* HOLDS or PREPARED */
    uint32_t epoch;
    uint64_t view, index;
    struct neb_hash hash;
    uint8_t n; /* 0: no certificate */
    struct {
        uint8_t site;
        uint32_t life;
        struct neb_lapse_table lapses;
        uint8_t signature[NEB_SEAL_SIZE];
    } by[NEB_ROUND_VOTERS_MAX];
};
#define NEB_CERTIFICATE_MAX 1024 /* bytes of an encoded one */

/* Adds one statement; the first determines the place. False: it is of another place, or its site is in already. */
bool neb__certificate_add(struct neb_certificate *c, const struct neb_said *s);
void neb__certificate_said(const struct neb_certificate *c, int i, struct neb_said *out);
uint64_t neb__certificate_sites(const struct neb_certificate *c);
/* Whether voters of `m` with a quorum signed it, and none of their statements is void. */
bool neb__certificate_valid(const struct neb_certificate *c, const struct neb_members *m,
                            enum neb_quorum_rule rule, const struct neb_hash *genesis,
                            const struct neb_seal *seal);
neb_status neb__certificate_put(const struct neb_certificate *c, struct neb_buf *out);
bool neb__certificate_get(struct neb_reader *in, struct neb_certificate *out);
neb_status neb__certificate_hash(const struct neb_certificate *c, struct neb_hash *out); /* n 0: all zero */

#endif
