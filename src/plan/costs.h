/* costs.h: what a rank's work costs in time: one layer for each tensor width, the ends of a model, the update of a value, and
 * the exchanges of a group. Measured on this machine (measure.h), or stated for hardware that is not here (hardware.h). */
#ifndef NEB_PLAN_COSTS_H
#define NEB_PLAN_COSTS_H

#include "base/buf.h"
#include "group/pretend.h"

enum { NEB_PLAN_COSTS = 24, NEB_PLAN_GROUPS = 128, NEB_STACKS = 2 };

/* At one rank of `ranks` that compute at the same time, with so many threads each. Seconds. */
struct neb_layer_cost {
    int tensor, threads, ranks;
    double layer
        [NEB_STACKS]; /* forward and backward of a layer, for one micro-batch; the second: of a decoder behind an encoder */
    double ends;   /* embeddings, head and loss, the same */
    double update; /* of one trained value: norm, clip, update */
};

/* An exchange of a group takes call + byte * bytes seconds. Its ranks are `stride` apart: those that share a machine are next to each
 * other, so a group of few ranks far apart may well go over the network. */
struct neb_group_cost {
    int size, stride;
    bool beside; /* sums of gradients go on beside the backward pass (optim/beside.c) */
    double call[NEB_TRAFFIC_KINDS], byte[NEB_TRAFFIC_KINDS];
};

struct neb_planner_costs {
    bool stated;      /* not measured */
    char device[128]; /* what was measured, or is stated */
    struct neb_layer_cost layer[NEB_PLAN_COSTS];
    int layers;
    struct neb_group_cost group[NEB_PLAN_GROUPS];
    int groups;
    double bus;    /* seconds of a byte between host and device; 0: they are one */
    double memory; /* stated: bytes of a device; 0: the device's own */
};

/* NULL: there is none. */
const struct neb_layer_cost *neb__costs_layer(const struct neb_planner_costs *c, int tensor, int threads,
                                              int ranks);
/* Of the largest known stride up to this one. */
const struct neb_group_cost *neb__costs_group(const struct neb_planner_costs *c, int size, int stride);
double neb__costs_exchange(const struct neb_group_cost *c, const struct neb_rank_traffic *t);

/* Adds, or replaces what is for the same. */
void neb__costs_add_layer(struct neb_planner_costs *c, const struct neb_layer_cost *l);
void neb__costs_add_group(struct neb_planner_costs *c, const struct neb_group_cost *g);

/* As lines of text, and back. NEB_ERR_CORRUPT: not such a text */
neb_status neb__costs_write(const struct neb_planner_costs *c, struct neb_buf *out);
neb_status neb__costs_read(const char *text, struct neb_planner_costs *out);

#endif
