/* give_order.h (internal): an order is given to a run: `nebula-i order` and the live page do it. */
#ifndef NEB_CLI_GIVE_ORDER_H
#define NEB_CLI_GIVE_ORDER_H

#include "base/status.h"
#include "run/orders.h"

/* What is demanded, in words: evict NAME, budget PERCENT … */
struct neb_demand {
    uint8_t op;   /* enum neb_operator */
    bool witness; /* ADMIT: it does not train */
    int n;
    char **words;
};

/* Signs it with the key in the folder `operator_` (LEAVE: with the site's own) and leaves it in the site's folder. `path` gets
 * the name of the file.
 *   NEB_ERR_INVALID, NEB_ERR_NOTFOUND: the words make no sense for this run; NEB_ERR_STATE: too early; NEB_ERR_IO … */
neb_status neb__order_give(const char *folder, const char *operator_, const struct neb_demand *d, char *path,
                           size_t size);

/* LATE: the log went on meanwhile, and the order may be given again. Its file is gone then. */
enum neb_order_fate { NEB_FATE_DONE, NEB_FATE_REFUSED, NEB_FATE_LATE, NEB_FATE_WAITING };
enum neb_order_fate neb__order_fate(const char *path);

#endif
