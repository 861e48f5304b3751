/* members_view.h (internal): the run's members as this site knows them: their names and keys by the chain of
 * rosters, their connections, and their votes and leader by the log.
 *
 * The links' thread learns rosters and connections, the driver's the rest, and all threads ask. So there is a
 * lock; it is a leaf: nothing else is locked while it is held. */
#ifndef NEB_RUN_MEMBERS_VIEW_H
#define NEB_RUN_MEMBERS_VIEW_H

#include "net/net.h"
#include "round/round.h"

#include <pthread.h>

enum { NEB_FORMER_KEYS = 8 };

/* The operators since an epoch of the chain, by which the log names them. */
struct neb_operator_set {
    uint64_t epoch, head; /* head: as the chain gives it; 0: before the log began */
    struct neb_operators set;
};

struct neb_members_view {
    pthread_mutex_t lock;
    char names[NEB_SITES_MAX][NEB_NAME_SIZE];
    uint64_t epoch;                     /* the chain is known up to here */
    struct neb_operator_set *operators; /* every set that the chain has, the newest last */
    size_t operator_sets;
    struct neb_public key[NEB_SITES_MAX];                     /* of the roster */
    bool has_key[NEB_SITES_MAX];                              /* of every site that ever was a member */
    struct neb_public former[NEB_SITES_MAX][NEB_FORMER_KEYS]; /* keys that were replaced: the newest ones */
    uint8_t formers[NEB_SITES_MAX];
    uint64_t present, witnesses, observers; /* bits of the newest roster's members */
    uint64_t linked;                        /* bit of each member that is connected */
    uint64_t far;                           /* … that is reached through another member, */
    uint16_t via[NEB_SITES_MAX];            /* this one */
    struct neb_members roster;              /* as the core sees them */
    uint16_t leader;                        /* or NEB_NO_SITE */
    uint32_t untold[NEB_SITES_MAX]; /* messages on this site's model and job that the member has not taken */
};

void neb__members_init(struct neb_members_view *v);
void neb__members_free(struct neb_members_view *v);

/* Copies the rosters' keys and names; on the links' thread, or before it runs. */
void neb__members_learn(struct neb_members_view *v, const struct neb_chain *chain);

/* "?": a site that never was a member. */
void neb__members_name(struct neb_members_view *v, uint16_t site, char out[NEB_NAME_SIZE]);
/* The n-th set of operators, 0: the newest. False: there are not so many. */
bool neb__members_operators(struct neb_members_view *v, size_t n, struct neb_operator_set *out);
uint64_t neb__members_epoch(struct neb_members_view *v);              /* the newest one of the chain */
bool neb__members_rekeyed(struct neb_members_view *v, unsigned site); /* it has had another key */
/* False: the site never was a member. */
bool neb__members_key(struct neb_members_view *v, unsigned signer, struct neb_public *out);
/* A key of `signer` (a site with NEB_BY_FORMER) that was replaced. False: there are not so many. */
bool neb__members_former_key(struct neb_members_view *v, unsigned signer, int i, struct neb_public *out);
/* The member of the newest roster that has this name; NEB_NO_SITE: there is none but `self`. */
uint16_t neb__members_find(struct neb_members_view *v, uint16_t self, const char *name);

/* Members that do not train, and those of them that never vote either, as bits. */
uint64_t neb__members_witnesses(struct neb_members_view *v);
uint64_t neb__members_observers(struct neb_members_view *v);
/* The members of the newest roster, and those that are connected, as bits. */
uint64_t neb__members_present(struct neb_members_view *v);
uint64_t neb__members_links(struct neb_members_view *v);

void neb__members_link(struct neb_members_view *v, uint16_t site, bool up);
bool neb__members_linked(struct neb_members_view *v, uint16_t site);
/* Through which member a site is reached. NEB_NO_SITE: directly, or not at all. */
void neb__members_set_via(struct neb_members_view *v, uint16_t site, uint16_t via);
uint16_t neb__members_via(struct neb_members_view *v, uint16_t site);
uint64_t neb__members_far(struct neb_members_view *v); /* those that are reached through others, as bits */
uint64_t neb__members_reached(struct neb_members_view *v); /* those that are connected or reached, as bits */

/* A message on this site's model and job begins its way to a member; it arrived there, or is given up. */
void neb__members_tell(struct neb_members_view *v, uint16_t site);
void neb__members_told(struct neb_members_view *v, uint16_t site);
bool neb__members_untold(struct neb_members_view *v); /* such a message is on its way to a connected member */

/* The members by the log, and who leads them (`leader` may be NULL). */
void neb__members_set_roster(struct neb_members_view *v, const struct neb_members *roster, uint16_t leader);
struct neb_members neb__members_roster(struct neb_members_view *v, uint16_t *leader);

#endif
