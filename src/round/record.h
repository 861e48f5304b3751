/* record.h: the entries of the ledger, and the headers of the updates that they name. */
#ifndef NEB_ROUND_RECORD_H
#define NEB_ROUND_RECORD_H

#include "base/buf.h"
#include "base/hash.h"
#include "base/rung_class.h"
#include "round/order.h"

#define NEB_RECORD_MAX 16384 /* bytes of one record: 64 updates fit */

/* The header of an update. It stands in front of the code, and the update's name is the hash of both. */
struct neb_update_header {
    uint16_t site;
    uint8_t kind;    /* neb_update_kind */
    uint8_t rung;    /* of the codec's ladder; opaque here */
    uint32_t c0, c1; /* cells [c0, c1) */
    uint64_t k;      /* the site's sequence number: grows over crashes, never used twice */
    uint64_t b;      /* version of the cells that the delta was taken against */
    uint32_t tau;    /* inner steps in it */
    uint32_t weight; /* tokens per inner step */
    uint64_t tokens; /* tokens in it */
    uint32_t epoch;
    uint32_t length;  /* bytes of the code, behind the header */
    uint8_t cls;      /* neb_rung_class of the rung */
    uint8_t before;   /* bytes between header and code, in eights: a statement of privacy, or none */
    uint16_t attempt; /* MASKED: of the sum that it is for */
    uint8_t signature[NEB_SEAL_SIZE]; /* the site's signature of the run, the fields above and the code */
};
#define NEB_UPDATE_HEADER_SIZE (56 + NEB_SEAL_SIZE)
enum { NEB_UPDATE_BEFORE_MAX = 8 }; /* eights */
/* Where the code begins, and its bytes; `length` counts what stands before it, too. */
static inline size_t neb__update_code_at(const struct neb_update_header *h)
{
    return NEB_UPDATE_HEADER_SIZE + 8 * (size_t)h->before;
}
static inline size_t neb__update_code_size(const struct neb_update_header *h)
{
    return h->length - 8 * (size_t)h->before;
}

enum neb_update_kind {
    NEB_UPDATE_DELTA = 0,
    NEB_UPDATE_RESULT = 1, /* an owner's mean of updates */
    NEB_UPDATE_MASKED = 2, /* its code is of use in a sum only: secure.c */
};

void neb__update_header_put(const struct neb_update_header *p, uint8_t out[NEB_UPDATE_HEADER_SIZE]);
/* Sites pass on updates that are not their own, so an update is signed by its author.
 * `bytes` is the code: p->length bytes. */
neb_status neb__update_header_sign(struct neb_update_header *p, const void *bytes,
                                   const struct neb_hash *genesis, const struct neb_seal *seal);
bool neb__update_header_genuine(const struct neb_update_header *p, const void *bytes,
                                const struct neb_hash *genesis, const struct neb_seal *seal);
/* Also by a key that the site had before. For an update that a committed record names: its hash proves it already. */
bool neb__update_header_once_genuine(const struct neb_update_header *p, const void *bytes,
                                     const struct neb_hash *genesis, const struct neb_seal *seal);
/* NEB_ERR_CORRUPT when the fields contradict each other. */
neb_status neb__update_header_get(const uint8_t *in, size_t n, struct neb_update_header *out);

enum neb_record_type {
    NEB_RECORD_ROUND = 1,  /* cells go from v to v + 1 */
    NEB_RECORD_ROSTER = 2, /* the next epoch */
    NEB_RECORD_END = 3,    /* the token target is reached: flush */
    NEB_RECORD_FINAL = 4,  /* everything is in; theta is the model */
    NEB_RECORD_FORCED = 5, /* an operator's eviction that the old quorum could not commit */
    NEB_RECORD_ORDER = 6,  /* an operator's budget or norm bound; other operators */
    NEB_RECORD_CLASS = 7,  /* from here on updates are of another class */
    /* Sums that nobody can take apart (secure.c). A ROUND ends such an attempt, too: as RESULT or as VOID. */
    NEB_RECORD_OPEN = 8,      /* who contributes to the next sum of these cells, with which keys */
    NEB_RECORD_SURVIVORS = 9, /* whose masked updates are in it */
    NEB_RECORD_VOID = 10,     /* too few came, and nothing was revealed: the next attempt may begin */
};

enum neb_round_mode { NEB_MODE_NESTEROV = 0, NEB_MODE_AVERAGE = 1 };
enum neb_reject {
    NEB_REJECT_NONE = 0,
    NEB_REJECT_NONFINITE = 1,
    NEB_REJECT_NORM = 2,
    NEB_REJECT_SIZE = 3,
    NEB_REJECT_VOID = 4 /* it is in a sum that could not be unmasked */
};

/* An update as a record names it. */
struct neb_named {
    uint16_t site;
    uint8_t reject; /* neb_reject: the update is consumed, but its code is not used */
    uint64_t k, b;
    uint32_t weight, tau, length;
    uint64_t tokens;
    struct neb_hash hash;
};

#define NEB_SEED_SIZE 32
/* A site that contributes to a sum. `own` and `pair` are hashes of the two seeds that can be revealed: of the mask of its own if
 * its update is in the sum, else of the secret key from which it makes its masks with the others. */
struct neb_contributor {
    uint16_t site;
    uint32_t weight;
    uint8_t key[NEB_SEED_SIZE];       /* the public half of that secret key */
    struct neb_hash own, pair, offer; /* offer: of the message in which it said so, with its shares */
};

struct neb_record {
    uint8_t type, mode;
    uint32_t epoch;
    uint64_t view, index;
    struct neb_hash prev;
    /* ROUND */
    uint32_t c0, c1;
    uint64_t v;
    uint8_t cls;      /* sparse when one of the updates is */
    uint32_t eta, mu; /* bits of the fp32 numbers */
    uint16_t owner;   /* NEB_NO_SITE: direct exchange; else `result` is the owner's mean of the updates */
    uint32_t result_length;
    struct neb_hash result;
    /* OPEN, SURVIVORS, VOID, and a ROUND that ends an attempt; else 0 */
    uint16_t attempt;
    uint16_t threshold;                  /* OPEN: members that must reveal their shares */
    uint32_t contributors;               /* OPEN */
    struct neb_contributor *contributor; /* ascending by site; part of the record's block */
    uint32_t seeds;                      /* ROUND: one for each contributor of its OPEN, in the same order */
    uint8_t (*seed)[NEB_SEED_SIZE];      /* likewise */
    /* ROSTER, FORCED */
    struct neb_members roster;
    /* END, FINAL: tokens; CLASS: the new one */
    uint64_t tokens;
    bool ordered;            /* ROSTER, FORCED, END, ORDER: `order` is the reason */
    struct neb_order *order; /* in the same block; NULL: a ROUND, which has none */
    uint32_t updates;
    struct neb_named update[]; /* ascending by site */
};

/* One block, zeroed, with room for `updates`; release with neb__free. NULL: out of memory. */
struct neb_record *neb__record_new(uint32_t updates);
/* The same with room for so many contributors and seeds. */
struct neb_record *neb__record_new_sum(uint32_t updates, uint32_t contributors, uint32_t seeds);
/* The record is about cells [c0, c1) and waits for those before it that are about them, too. */
static inline bool neb__record_has_cells(const struct neb_record *r)
{
    return r->type == NEB_RECORD_ROUND || r->type >= NEB_RECORD_OPEN;
}
/* A ROUND that ends an attempt without a sum: its updates count as consumed, and nothing of them enters. */
static inline bool neb__record_is_void(const struct neb_record *r)
{
    return r->type == NEB_RECORD_ROUND && r->attempt && !r->seeds;
}
/* The contributor of this site, or NULL. */
const struct neb_contributor *neb__record_contributor(const struct neb_record *open, unsigned site);
neb_status neb__record_encode(const struct neb_record *r, struct neb_buf *out);
/* The bytes must be exactly one record in canonical form. NEB_ERR_CORRUPT, NEB_ERR_NOMEM. */
neb_status neb__record_decode(const uint8_t *bytes, size_t n, struct neb_record **out);

bool neb__record_is_change(const struct neb_record *rec); /* of the roster */
/* The update of `site`, or NULL. */
const struct neb_named *neb__record_of(const struct neb_record *r, unsigned site);

#endif
