/* sites.h: a few sites with a common roster in a temporary folder, for tests of the links. */
#ifndef NEB_TEST_SITES_H
#define NEB_TEST_SITES_H

#include "net/net.h"

enum { SITES_MAX = 4 };

struct sites {
    char dir[200];
    int count;
    char path[SITES_MAX][256];
    uint16_t port[SITES_MAX];
};

/* Sites s0, s1…, members 1, 2…, each with an address on `host` (NULL: loopback) and a port that is free now; an operator
 * folder `ops`. */
void sites_make(struct sites *s, int count, const char *host);
/* The same members, with a rule of influence in a new genesis. */
void sites_rule(struct sites *s, const char *rule);
/* Other addresses (with port 7400) for the same sites, in a new genesis. */
void sites_move(struct sites *s, const char *const *hosts);
/* The first `hidden` sites lose their addresses, in a new genesis: they can dial, and nobody can dial them. */
void sites_hide(struct sites *s, int hidden);
/* Any addresses for the same sites, in a new genesis: address[i] are those of site i; "" and NULL: none. */
void sites_address(struct sites *s, const char *const (*address)[2]);
void sites_free(struct sites *s);
/* Makes a new epoch, signed by the operator, of the chain in `from`'s folder: drop one member by name (or NULL), add the site
 * in `add` (or NULL). `out` gets it encoded. */
void sites_epoch(struct sites *s, int from, const char *drop, const char *add, struct neb_buf *out);
/* A new epoch of `chain` with any roster, signed by the operator, encoded. */
void sites_sign(const struct sites *s, const struct neb_chain *chain, const struct neb_roster *r,
                struct neb_buf *out);

/* A node that runs on its own thread. */
struct node {
    struct neb_site *site;
    struct neb_net *net;
};
void node_open(struct node *n, const char *dir, const struct neb_net_events *events, void *arg,
               void (*tune)(struct neb_net_config *c));
void node_close(struct node *n);

/* Runs fn on the node's thread and waits for it. */
void node_call(struct node *n, void (*fn)(void *arg), void *arg);
void sleep_ms(int ms);
uint16_t free_port(void);

#endif
