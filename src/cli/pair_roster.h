/* pair_roster.h: the roster that a pairing makes or takes. */
#ifndef NEB_CLI_PAIR_ROSTER_H
#define NEB_CLI_PAIR_ROSTER_H

#include "seal/roster.h"

/* The creator's folder: without a roster it gets one with the two sites, of which this one is the operator; else the other
 * site is added to the roster, which this site must be the operator of. `out` is on disk; owes a neb__chain_free(). Not
 * logged.
 *   NEB_ERR_AUTH     somebody else is the operator, or several are
 *   NEB_ERR_STATE    a run with this roster has begun          NEB_ERR_EXISTS   the name belongs to another key */
neb_status neb__pair_roster_make(const char *dir, const struct neb_member *self,
                                 const struct neb_member *other, struct neb_chain **out);
/* Whether neb__pair_roster_make() could work, before anybody is asked for anything. */
neb_status neb__pair_roster_may(const char *dir, const struct neb_member *self);

/* The joiner's folder takes the chain, if it names this site with this key and the creator is its operator. A roster that is
 * there is given up only if `replace`, and kept as roster.before. NEB_ERR_EXISTS, NEB_ERR_AUTH, NEB_ERR_NOTFOUND */
neb_status neb__pair_roster_take(const char *dir, const struct neb_member *self,
                                 const struct neb_member *creator, const struct neb_chain *chain,
                                 bool replace);

#endif
