/* strategy.h: whether the sites of a job should each train the whole model (replica) or some of its layers (pipeline).
 *
 * A site that can hold the model trains as fast in a replica as without the others, and its updates cross the line beside the
 * computing. A pipeline is for a model that some site cannot hold: then every token crosses every cut. So memory decides. */
#ifndef NEB_PLAN_STRATEGY_H
#define NEB_PLAN_STRATEGY_H

#include "plan/plan.h"

struct neb_planner_strategy {
    double
        needs; /* bytes of a process, in the layout of the whole model that needs least of those that the site may have */
    double
        room; /* the least that a site allows: its train.memory, or what this machine has; infinite: not known */
    int site;  /* which allows that; -1: this machine */
    bool fits; /* replica is possible, and faster */
};

/* machine: this machine's memory counts, too. */
neb_status neb__planner_strategy(const struct neb_data *data, const struct neb_planner_place *place,
                                 bool machine, struct neb_planner_strategy *out);
/* Whether the job leaves the choice to its memory: strategy auto, all sites train, and train.memory is given. */
bool neb__planner_strategy_open(const struct neb_job *job);

/* What the stage of each site needs at least, with as many micro-batches in flight as stages follow. bytes: (sites).
 *   NEB_ERR_UNSUPPORTED (quiet)  the layers are given by hand */
neb_status neb__planner_stages(const struct neb_data *data, double *bytes);

#endif
