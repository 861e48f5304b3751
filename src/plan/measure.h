/* measure.h: the costs of this machine, measured.
 *
 * A rank runs the job's model with one layer and with a few of them, in turns, and takes the difference: the time of a
 * layer, of the ends and of the update. The ranks of its tensor group are pretended, so that it computes its part alone; other
 * real ranks measure at the same time, because ranks of one machine slow each other down. Then the real ranks time their exchanges. */
#ifndef NEB_PLAN_MEASURE_H
#define NEB_PLAN_MEASURE_H

#include "plan/costs.h"
#include "plan/layout.h"

/* All ranks of `world` make this call (NULL: this process alone): they compute at the same time. */
neb_status neb__planner_measure_layers(const struct neb_data *data, struct neb_group *world, int tensor,
                                       int threads, struct neb_layer_cost *out);
/* On the memory of this device, as if they were next to each other. A collective call. */
neb_status neb__planner_measure_group(struct neb_group *g, neb_device *dev, struct neb_group_cost *out);

/* Everything that layouts of these ranks need. Adds to `costs`, at every rank. */
neb_status neb__planner_measure(const struct neb_data *data, struct neb_group *world,
                                struct neb_planner_costs *costs);

/* Threads that each of `ranks` on this machine has. */
int neb__planner_threads(const struct neb_job *job, int ranks);

#endif
