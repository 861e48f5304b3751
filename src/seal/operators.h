/* operators.h: the people who may order something of a run, and how many of them must agree.
 *
 * A run has one operator, or up to seven of whom `threshold` sign each order and each change of the roster. The keys stand
 * in ascending order, so that a set has one encoding. */
#ifndef NEB_SEAL_OPERATORS_H
#define NEB_SEAL_OPERATORS_H

#include "base/buf.h"
#include "base/bytes.h"
#include "seal/key.h"

enum { NEB_OPERATORS_MAX = 7 };

struct neb_operators {
    uint8_t threshold, count;
    struct neb_public key[NEB_OPERATORS_MAX];
};

/* Sorts the keys. NEB_ERR_INVALID names what is wrong: no key, too many, one twice, a threshold beyond them. */
neb_status neb__operators_make(struct neb_operators *set);
void neb__operators_one(const struct neb_public *key, struct neb_operators *out);
bool neb__operators_equal(const struct neb_operators *a, const struct neb_operators *b);
int neb__operators_find(const struct neb_operators *set, const struct neb_public *key); /* -1: nobody's */

/* u8 threshold, u8 count, keys. `get` is false if that is not a set in its one encoding. */
neb_status neb__operators_put(const struct neb_operators *set, struct neb_buf *out);
bool neb__operators_get(struct neb_reader *in, struct neb_operators *out);

/* The operator key of a genesis with this set: the operator's own, or for several the hash of the set, for which nobody has a
 * private key. So a version that knows of one operator only takes nobody for it. */
neb_status neb__operators_name(const struct neb_operators *set, struct neb_public *out);

#endif
