/* plan_here.h: the planner at work on this machine: what there is, and its costs, measured and kept.
 *
 * Layouts of several processes are measured by several processes: this one starts them as a training would, each runs this very
 * command, notices NEB_PROBE_VARIABLE, measures and ends. The costs stay beside the job's text, under a name that changes with
 * the model, the device and the machine. */
#ifndef NEB_TRAIN_PLAN_HERE_H
#define NEB_TRAIN_PLAN_HERE_H

#include "plan/plan.h"

/* This process is to measure; and it does: neb__planner_probe() after the job was read. */
bool neb__planner_is_probe(void);
neb_status neb__planner_probe(const struct neb_job *job);

/* again: measures also what is kept. */
neb_status neb__planner_find_costs(const struct neb_data *data, const struct neb_planner_place *place,
                                   bool again, struct neb_planner_costs *out);

/* `parallel: auto`: sets the job's layout to the fastest that fits, says why, and leaves the forecast in OUT/plan.
 *   NEB_ERR_CONFIG  nothing fits; the message has the numbers */
neb_status neb__planner_choose(struct neb_job *job);

/* `strategy: auto` of sites that all train: whether some site cannot hold the whole model. The limits are those of the job; without any,
 * this machine's memory. A run that has begun in OUT goes on as it is. The job is then to be read again with strategy=pipeline. */
neb_status neb__planner_wants_pipeline(const struct neb_job *job, bool *wants);
/* Warns where a pipeline between sites was asked for and replica would be faster. */
void neb__planner_question_pipeline(const struct neb_job *job);

#endif
