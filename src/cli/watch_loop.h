/* watch_loop.h (internal): what `nebula-i watch` does until it is ended. */
#ifndef NEB_CLI_WATCH_LOOP_H
#define NEB_CLI_WATCH_LOOP_H

#include "base/status.h"
#include "cli/watch_orders.h"

struct neb_watch_options {
    int64_t port;
    char *host, *token, *tls;
    bool text;
    double egress, stalled;
    int64_t disk;
    char *alert;
    char *orders, *operator_, *order_word;
};

/* Until a signal asks for the end. orders: of this server, or NULL */
neb_status neb__watch_serve(struct neb_serve *s, const struct neb_watch_options *o,
                            struct neb_watch_orders *orders);
/* The same in a terminal, without a server; where there is none, once.
 *   NEB_ERR_NOTFOUND: no site writes there */
neb_status neb__watch_text(const char *folder, const struct neb_watch_options *o);

/* Ends the loops at SIGINT, SIGTERM and SIGHUP; whether one has come. */
void neb__watch_catch_signals(void);
bool neb__watch_ended(void);

#endif
