/* routes.h: the paths over which members reach each other, and what they pass on for each other. Like the core it
 * has no I/O: the driver and the simulator bring links, messages and time, and carry out what comes out.
 *
 * A site that has no direct line to another reaches it through members. Each member signs which members it is linked
 * to (its link state) and tells its neighbours, which pass the news on. Everybody computes shortest paths from that.
 * A message to a site without a direct line becomes a relayed message: signed by its author, numbered, with its whole
 * path. A member on the path can drop it, but neither change it nor make one up. docs/links.md has the bytes.
 *
 * Updates and cells are never relayed: a member on the path takes them as it takes any, then gives them to its own
 * neighbours.
 *
 * A successful create owes a destroy. All times are ms of a monotonic clock. */
#ifndef NEB_ROUND_ROUTES_H
#define NEB_ROUND_ROUTES_H

#include "base/buf.h"
#include "round/order.h"

enum {
    NEB_LINK_STATE_SIZE = 90,
    NEB_RELAY_HEAD = 40,           /* and the path */
    NEB_RELAY_PAYLOAD = 256 << 10, /* bytes of a message that may be relayed */
    NEB_RELAY_MAX = NEB_RELAY_HEAD + NEB_SITES_MAX + NEB_RELAY_PAYLOAD + NEB_SEAL_SIZE,
    NEB_RELAY_WINDOW = 1024,    /* a relayed message may be overtaken by so many of its author */
    NEB_RELAY_RATE = 256 << 10, /* bytes/s that this site passes on for one author */
    NEB_RELAY_BURST = 4 << 20,  /* … after a pause */
    NEB_FORGED_BURST = 32, /* signatures that do not hold: so many of a neighbour are looked at at once, */
    NEB_FORGED_RATE = 2,   /* and so many a second */
};

struct neb_routes_config {
    uint16_t self;
    uint64_t life; /* of this process: greater than that of every earlier one of this site */
    struct neb_hash genesis;
    struct neb_seal seal;
    int64_t refresh_ms; /* link states are repeated so often; 0: 5 s */
    int64_t detour_ms;  /* a path over which nothing is confirmed is left after this; 0: 6 s */
};

/* How a member is reached. */
enum neb_reach { NEB_REACH_NONE, NEB_REACH_LINK, NEB_REACH_FAR /* through members */ };

struct neb_route_state {
    uint64_t life, seq, links; /* as its site signed them; life 0: never heard */
    uint8_t bytes[NEB_LINK_STATE_SIZE];
    double news; /* how many more it may tell at once */
    int64_t news_at;
};

struct neb_route_peer {
    /* as an author: which of its relayed messages came here */
    uint64_t life, top, seen[NEB_RELAY_WINDOW / 64];
    double room, forged; /* bytes that may be passed on for it; bad signatures of it that may be looked at */
    int64_t room_at, forged_at;
    uint64_t got; /* the newest of its messages to this site */
    /* as a destination */
    uint8_t path[NEB_SITES_MAX]; /* sites after this one, the last is the destination */
    int hops;                    /* 0: no path */
    uint64_t avoid;              /* members over which nothing was confirmed */
    unsigned detours;            /* so many were tried */
    uint64_t waits;              /* the first message that was not confirmed yet */
    int64_t waits_since;         /* 0: none waits */
    enum neb_reach told;         /* what the driver knows */
    uint64_t told_life;
    int64_t told_at;
};

struct neb_routes {
    struct neb_routes_config cfg;
    int64_t now, refresh_at;
    uint64_t members, links; /* links: of this site */
    uint64_t seq, counter;
    struct neb_route_state state[NEB_SITES_MAX];
    struct neb_route_peer peer[NEB_SITES_MAX];
    uint64_t tell[NEB_SITES_MAX]; /* to each neighbour: the sites whose states it is to be told */
    bool dirty;                   /* paths must be computed again */
    uint64_t passed, dropped;     /* relayed messages, for the status */
};

neb_status neb__routes_create(const struct neb_routes_config *c, struct neb_routes **out);
void neb__routes_destroy(struct neb_routes *r); /* NULL is fine */

/* ---- what happens -------------------------------------------------------------------------------------- */
void neb__routes_members(struct neb_routes *r, uint64_t members); /* bits of those that may take part */
void neb__routes_forget(struct neb_routes *r,
                        unsigned site); /* it has a new key, and counts its lives anew */
void neb__routes_link(struct neb_routes *r, int64_t now, unsigned site, bool up);
/* Link states from a neighbour. False: they are malformed, not signed, or too many. */
bool neb__routes_hear(struct neb_routes *r, int64_t now, unsigned from, const uint8_t *bytes, size_t n);
void neb__routes_tick(struct neb_routes *r, int64_t now);
int64_t neb__routes_wake(const struct neb_routes *r); /* the latest time for the next tick */

/* ---- what follows: after each of the above until there is nothing left ---------------------------------- */
/* The next neighbour that is to be told link states, in `out`. False: nobody. */
bool neb__routes_tell(struct neb_routes *r, unsigned *to, struct neb_buf *out);
/* The next site that is reached in another way than was said before; or a far one that began another life meanwhile
 * (`was` is `how`). False: none. */
bool neb__routes_changed(struct neb_routes *r, unsigned *site, enum neb_reach *was, enum neb_reach *how);

/* ---- relayed messages: relay.c -------------------------------------------------------------------------- */
/* Makes a relayed message for a site that is reached through members. NEB_ERR_PEER: it is not;
 * NEB_ERR_LIMIT: it is too large; NEB_ERR_NOMEM. */
neb_status neb__routes_wrap(struct neb_routes *r, int64_t now, unsigned to, uint32_t kind, const void *bytes,
                            size_t n, struct neb_buf *out, unsigned *next);
enum neb_relay {
    NEB_RELAY_DELIVER, /* for this site: author, kind, bytes, n */
    NEB_RELAY_FORWARD, /* as it is, to `next` */
    NEB_RELAY_IGNORE,  /* it came before, is out of date, or its path has ended */
    NEB_RELAY_FORGED,  /* not what its author signed: the neighbour's doing */
    NEB_RELAY_LIMITED, /* its author has more passed on than it may */
};
struct neb_relayed {
    uint16_t author, next;
    uint32_t kind;
    const uint8_t *bytes; /* into the message */
    size_t n;
};
enum neb_relay neb__routes_take(struct neb_routes *r, int64_t now, unsigned from, const uint8_t *bytes,
                                size_t n, struct neb_relayed *out);

/* ---- looking -------------------------------------------------------------------------------------------- */
enum neb_reach neb__routes_reach(const struct neb_routes *r, unsigned site);
unsigned neb__routes_via(const struct neb_routes *r,
                         unsigned site); /* the neighbour; NEB_NO_SITE: linked or no path */
/* Neighbours that get an author's updates from this site: its children in the tree of shortest paths from the author,
 * which all members compute alike. So each site gets one copy. The paths lead through `holders`, the members by the log: a site
 * that is linked before its admission is committed, or after its removal, is given updates but counted on for nothing. */
uint64_t neb__routes_children(const struct neb_routes *r, unsigned author, uint64_t holders);
/* Some members reach each other only through others, and this site is linked to several: it may be needed. */
bool neb__routes_between(const struct neb_routes *r);

/* for relay.c */
void neb__routes_find_paths(struct neb_routes *r);
void neb__routes_find_path(struct neb_routes *r, unsigned to);
bool neb__routes_room(double *room, int64_t *at, int64_t now, double rate, double burst, double n);

#endif
