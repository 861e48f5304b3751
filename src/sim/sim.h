/* sim.h: the simulator: the production core, store and arithmetic on simulated machines and lines. */
#ifndef NEB_SIM_SIM_H
#define NEB_SIM_SIM_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_sim_fault {
    uint64_t seed;
    int sites;  /* 0: drawn from the seed */
    bool trace; /* every event to stdout */
    bool happy; /* no faults */
};

struct neb_sim_result {
    char violation[400]; /* "" : none */
    uint64_t events, records, crashes, views, cells_fetched, settled, epochs, damaged;
    int64_t virtual_ms;
};

/* One history. NEB_ERR_INTERNAL: an invariant was violated, and the result says which; NEB_ERR_NOMEM. */
neb_status neb__sim_fault(const struct neb_sim_fault *options, struct neb_sim_result *out);

#endif
