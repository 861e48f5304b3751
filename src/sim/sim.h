/* sim.h: the simulator: the production core, store and arithmetic on simulated machines and lines. */
#ifndef NEB_SIM_SIM_H
#define NEB_SIM_SIM_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_sim_fault {
    uint64_t seed;
    int sites;         /* 0: drawn from the seed */
    bool trace;        /* every event to stdout */
    bool happy;        /* no faults */
    bool lasting_cuts; /* some lines are cut for good; members pass on what others say */
    int liars;         /* sites that lie */
    bool secure;       /* updates are masked, and records name sums of them */
    bool observer;     /* one more site follows; of liars it is the one that lies */
    bool byzantine;    /* quorums of 2f + 1 of 3f + 1, in two phases */
};

struct neb_sim_result {
    char violation[400];  /* "": none */
    uint64_t sums, voids; /* secure ones that were unmasked; attempts that were not */
    uint64_t relayed;     /* messages that a member passed on */
    uint64_t events, records, crashes, views, cells_fetched, settled, epochs, damaged, convicted;
    uint64_t unbegun;           /* histories in which too few honest sites had begun to promise anything */
    int64_t virtual_ms, led_ms; /* led_ms: when a site led for the first time */
};

/* One history. NEB_ERR_INTERNAL: an invariant was violated, and the result says which; NEB_ERR_NOMEM. */
neb_status neb__sim_fault(const struct neb_sim_fault *options, struct neb_sim_result *out);

/* The what-if mode knows sizes and rates only, no bytes; up to 10,000 sites. */
struct neb_sim_whatif {
    int64_t sites, voters, rounds, steps; /* steps: between two captures */
    double params, bits;                  /* trainable parameters, bits sent for each */
    double up, down;                      /* bits/s of a site's line, all its traffic together */
    double rtt, step;                     /* seconds; of the line, and of one inner step */
    double slow, slow_share; /* this share of the sites has lines and steps `slow` times slower */
    double work;     /* seconds that a site's own thread needs for a round: coding, applying, the disk */
    double deadline; /* seconds after the first complete update; 0: 1.5 times the nominal round */
    bool owners;     /* updates go to owners, which send one mean */
    uint64_t seed;
};

struct neb_sim_forecast {
    double seconds, round_s, limit_s; /* in all; per round; the line's limit for the bytes of a round */
    double up_use, down_use;          /* of the median site's line */
    double bytes_out, bytes_in;       /* per round, median site */
    double updates, late, discarded;  /* named per round; share named one version late; share given up */
    double lag;                       /* seconds from the commit until the median site has all its bytes */
};

/* NEB_ERR_INVALID names the option that is out of range; NEB_ERR_NOMEM. */
neb_status neb__sim_whatif(const struct neb_sim_whatif *options, struct neb_sim_forecast *out);

#endif
