/* watch_loop.h (internal): what `nebula-i watch` does until it is ended. */
#ifndef NEB_CLI_WATCH_LOOP_H
#define NEB_CLI_WATCH_LOOP_H

#include "base/status.h"
#include "serve/serve.h"

struct neb_watch_options {
    int64_t port;
    char *host, *token, *tls;
    double egress;
};

/* Until a signal asks for the end. */
neb_status neb__watch_serve(struct neb_serve *s, const struct neb_watch_options *o);

#endif
