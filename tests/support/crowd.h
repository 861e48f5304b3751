/* crowd.h: up to seven cores of the round protocol, each with a line to each other that can be cut. */
#ifndef NEB_TEST_CROWD_H
#define NEB_TEST_CROWD_H

#include "solo.h"

struct crowd {
    struct solo s[7];
    int sites;
    bool up[7][7];
};

/* One of them leads when this returns. */
void crowd_start(struct crowd *c, int sites, struct neb_members roster);
void crowd_start_by(struct crowd *c, int sites, struct neb_members roster, enum neb_quorum_rule rule);
void crowd_stop(struct crowd *c);
void crowd_line(struct crowd *c, int a, int b, bool up);
/* All lines between the sites of `side` (bits) and the others. */
void crowd_split(struct crowd *c, uint64_t side, bool up);
/* True: `until` became true, after some core's letters were delivered. */
bool crowd_run(struct crowd *c, int64_t ms, bool (*until)(const struct crowd *c));

/* The leader that this site follows. */
unsigned crowd_leader(const struct crowd *c, int of);
/* The operator's order, given to the leader. */
void crowd_order(struct crowd *c, unsigned leader, struct neb_order o);
/* A record that says nothing of the rest: the share of the line. */
void crowd_budget(struct crowd *c, unsigned leader, uint64_t permille);

#endif
