/* give_order.h (internal): an order is given to a run: `nebula-i order` and the live page do it. */
#ifndef NEB_CLI_GIVE_ORDER_H
#define NEB_CLI_GIVE_ORDER_H

#include "base/status.h"
#include "cli/operator_words.h"
#include "run/orders.h"

/* What is demanded, in words: evict NAME, budget PERCENT … */
struct neb_demand {
    uint8_t op;        /* enum neb_operator */
    bool witness;      /* ADMIT: it does not train */
    bool observer;     /* ADMIT: nor does it ever vote */
    int64_t threshold; /* OPERATORS: how many must agree; 0: more than half */
    const char *to;    /* the file for the other operators, if more than one must sign; or NULL */
    int n;
    char **words;
};

/* Signs it with the keys in the folders `operator_` (DIR[,DIR…]; LEAVE: with the site's own) and leaves it in the site's folder.
 * `path` gets the name of the file. *missing: so many more operators must sign (neb__order_cosign()); 0: none.
 *   NEB_ERR_INVALID, NEB_ERR_NOTFOUND: the words make no sense for this run; NEB_ERR_STATE: too early; NEB_ERR_IO … */
neb_status neb__order_give(const char *folder, const char *operator_, const struct neb_demand *d, char *path,
                           size_t size, unsigned *missing);
/* The operators in the folders `operator_` sign the order in `file`, too. It goes into the site's folder once enough have, else back
 * into the file. What it demands is printed first. NEB_ERR_CORRUPT, NEB_ERR_AUTH, NEB_ERR_STATE, NEB_ERR_EXISTS … */
neb_status neb__order_cosign(const char *folder, const char *operator_, const char *file, char *path,
                             size_t size, unsigned *missing);
/* For these two: signs as one of the set. */
neb_status neb__order_sign_with(const struct neb_operators *set, const struct neb_operator_keys *keys,
                                const struct neb_hash *genesis, struct neb_order *order);

/* LATE: the log went on meanwhile, and the order may be given again. Its file is gone then. */
enum neb_order_fate { NEB_FATE_DONE, NEB_FATE_REFUSED, NEB_FATE_LATE, NEB_FATE_WAITING };
enum neb_order_fate neb__order_fate(const char *path);

#endif
