/* order.h: the signed orders that an operator gives to a run, and the seal with
 * which the core signs and checks.
 *
 * The core holds no keys: the driver lends it a seal. An order names the run, the epoch and a record of
 * the log (index and hash) that its author had seen committed. So an order has one meaning in one
 * history and cannot be used twice. */
#ifndef NEB_ROUND_ORDER_H
#define NEB_ROUND_ORDER_H

#include "base/hash.h"
#include "round/members.h"

#define NEB_SEAL_SIZE   64
#define NEB_BY_OPERATOR 0xfffeu  /* as a signer: the run's operator, not a site */
#define NEB_BY_FORMER   0x10000u /* … with a site: by a key that the operator has replaced since */
#define NEB_ORDER_SIZE  156      /* without parts */

enum {
    NEB_PARTS_MAX = 7, /* operators */
    NEB_PART_SIZE = 1 + NEB_SEAL_SIZE,
    NEB_ORDER_MAX = NEB_ORDER_SIZE + NEB_PARTS_MAX * NEB_PART_SIZE,
};
#define NEB_OPERATORS_NEWEST UINT64_MAX

/* The signature of one of several operators. */
struct neb_order_part {
    uint8_t who; /* its place in the set */
    uint8_t signature[NEB_SEAL_SIZE];
};

struct neb_order;

/* Signs with this site's key; checks signatures of sites and of the operator. `sign` and `verify` are pure: the
 * same input gives the same answer. A missing `verify` trusts nobody, a missing `sign` signs nothing.
 *
 * A run may change its operators. Their sets have ascending numbers, which the driver gives. */
struct neb_seal {
    void *arg;
    neb_status (*sign)(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE]);
    bool (*verify)(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE]);
    /* Whether operators signed the order: those of the set `since` or of a later one, as many as must agree.
     * NEB_OPERATORS_NEWEST: of the newest set. A missing one: there is one operator, NEB_BY_OPERATOR, for ever. */
    bool (*by_operators)(void *arg, uint64_t since, const char *purpose, const void *p, size_t n,
                         const struct neb_order *o);
    bool (*has_operators)(void *arg, uint64_t set); /* whether the set is known */
    bool (*has_epoch)(void *arg, uint64_t epoch); /* whether the chain of rosters is known up to this epoch */
    unsigned (*former_keys)(void *arg, unsigned site); /* how many keys it had before; a missing one: none */
};

enum neb_operator {
    NEB_OP_ADMIT = 1, /* site; flags 1: it trains */
    NEB_OP_EVICT,     /* site */
    NEB_OP_LEAVE,     /* site: signed by that site itself */
    NEB_OP_FORCE,     /* roster: the old quorum is gone for good; takes effect at once */
    NEB_OP_ADOPT,     /* roster: chooses the history that contains the named record */
    NEB_OP_SURVIVOR,  /* site gets a second vote; NEB_NO_SITE: nobody has one */
    NEB_OP_END,       /* the run ends now */
    NEB_OP_BUDGET,    /* value: permille of the line's bytes that rounds may use */
    NEB_OP_BOUND,     /* value: bits of the fp32 norm above which an update is rejected; 0: none */
    NEB_OP_OPERATORS, /* value: from here on that set of operators gives orders */
    NEB_OP_REKEY,     /* site has another key since the chain's epoch `value`: its updates are counted anew */
    NEB_OP_ORDERS,
    /* Not orders, but requests of the driver to its own core. */
    NEB_OP_GOODBYE = 32, /* this process stops now and may come back later */
    NEB_OP_DONE,         /* this site's time is up: when it leads, it ends the run */
    NEB_OP_CLASS,        /* count: the class of rungs that the leader's rate control wants (neb_rung_class) */
};

struct neb_order {
    uint8_t op;
    uint16_t signer; /* NEB_BY_OPERATOR, the survivor, or the leaving site */
    uint16_t site;
    uint32_t flags;
    uint64_t value;
    uint32_t epoch; /* the epoch in which it holds; FORCE, ADOPT: the epoch that it creates */
    uint64_t index; /* a committed record, 0: the genesis */
    struct neb_hash head;
    struct neb_members roster;                 /* FORCE, ADOPT */
    uint8_t signature[NEB_SEAL_SIZE];          /* zeros where there are parts */
    uint8_t parts;                             /* signatures of several operators */
    struct neb_order_part part[NEB_PARTS_MAX]; /* `who` ascending */
};

size_t neb__order_put(const struct neb_order *o, uint8_t out[NEB_ORDER_MAX]); /* the size of its bytes */
/* False: not an order in canonical form. */
bool neb__order_get(struct neb_reader *in, struct neb_order *out);
neb_status neb__order_sign(struct neb_order *o, const struct neb_hash *genesis, const struct neb_seal *seal);
/* Adds the signature of operator `who` of several. NEB_ERR_EXISTS: it has signed already; NEB_ERR_LIMIT. */
neb_status neb__order_sign_part(struct neb_order *o, uint8_t who, const struct neb_hash *genesis,
                                const struct neb_seal *seal);
/* Whether two orders demand the same of the same place in the log, whoever signed them. */
bool neb__order_same(const struct neb_order *a, const struct neb_order *b);
/* Whether the order is well formed and its signer signed it; an operator's: the set `since` or a later one. neb__order_may() says
 * whether that signer may give it. */
bool neb__order_genuine(const struct neb_order *o, const struct neb_hash *genesis,
                        const struct neb_seal *seal, uint64_t since);
bool neb__order_may(const struct neb_order *o, const struct neb_members *roster);
/* The roster that an ADMIT, EVICT, LEAVE, SURVIVOR or REKEY makes of `from`: the next
 * epoch. False: another kind of order. */
bool neb__order_roster(const struct neb_order *o, const struct neb_members *from, struct neb_members *out);

#endif
