/* serve.h: a run over HTTP: the live page, its numbers as JSON and for Prometheus, and a stream of events.
 *
 * The server reads what the sites write and changes nothing, except that it may pass on orders. It runs in a process of its own, so that nothing
 * of the training waits for it, and is part of the command only, not of the library. A successful start owes
 * a stop. */
#ifndef NEB_SERVE_SERVE_H
#define NEB_SERVE_SERVE_H

#include "watch/history.h"
#include "watch/view.h"

struct neb_serve;

struct json_t;

/* Orders to the run, by whoever knows `order_word`. Both are called by the server's thread. */
struct neb_serve_orders {
    void *arg;
    /* The message of the error says what is wrong with it. */
    neb_status (*give)(void *arg, const char *order, const char *word);
    struct json_t *(*list)(void *arg); /* a new object {"orders": […]}; NULL: out of memory */
};

struct neb_serve_config {
    const char *folder;      /* that the sites write */
    const char *host;        /* address to listen on */
    int port;                /* 0: any that is free */
    const char *token;       /* asked of everybody; NULL: nobody is asked, and only this machine may look */
    const char *certificate; /* PEM, for TLS; NULL: none */
    const char *key;
    double egress;                         /* price of a gigabyte that leaves a site; 0: not shown */
    const struct neb_serve_orders *orders; /* NULL: none are taken */
    const char *order_word;                /* asked of who gives one */
};

enum {
    NEB_SERVE_CONNECTIONS = 4000,
    NEB_SERVE_STREAMS = 500,  /* event streams at one time */
    NEB_SERVE_REQUEST_S = 10, /* a connection that has not asked anything by then is closed */
};

/* Listens, with a thread of its own.
 *   NEB_ERR_INVALID  an address of other machines without a token, or orders over it without TLS; NEB_ERR_NET  cannot listen; NEB_ERR_NOMEM */
neb_status neb__serve_start(const struct neb_serve_config *config, struct neb_serve **out);
int neb__serve_port(const struct neb_serve *s);

/* Looks at the folder and tells everybody what is new. The caller does so every half second or so; the answer
 * says after how many seconds the next look is worth its cost. */
double neb__serve_tick(struct neb_serve *s);

/* What was seen last, for the alerts; valid until the next tick. */
const struct neb_view *neb__serve_view(const struct neb_serve *s);
struct neb_history *neb__serve_history(struct neb_serve *s);

void neb__serve_stop(struct neb_serve *s); /* NULL is fine */

/* True if the address is one of this machine only. */
bool neb__serve_is_local(const char *host);

#endif
