/* watch_orders.h (internal): orders that come through the live page: signed with the operator's key, left for a site of the run,
 * and followed until they are carried out or refused. */
#ifndef NEB_CLI_WATCH_ORDERS_H
#define NEB_CLI_WATCH_ORDERS_H

#include "serve/serve.h"

struct neb_watch_orders;

/* folder: of a site of the run; operator_: of its operator. Both must have what an order needs. Owes a close.
 *   NEB_ERR_NOTFOUND …; NEB_ERR_NOMEM */
neb_status neb__watch_orders_open(const char *folder, const char *operator_, struct neb_watch_orders **out);
void neb__watch_orders_close(struct neb_watch_orders *w); /* NULL is fine */

const struct neb_serve_orders *neb__watch_orders_table(struct neb_watch_orders *w);

/* Looks at what has become of them. One that came too late is signed again, for a minute. */
void neb__watch_orders_look(struct neb_watch_orders *w); /* NULL is fine */

#endif
