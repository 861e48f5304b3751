/* strategy.h: whether the sites of a job should each train the whole model (replica) or some of its layers (pipeline).
 *
 * A site that can hold the model trains as fast in a replica as without the others, and its updates cross the line beside the
 * computing. A pipeline is for a model that some site cannot hold: then every token crosses every cut. So memory decides. */
#ifndef NEB_PLAN_STRATEGY_H
#define NEB_PLAN_STRATEGY_H

#include "plan/plan.h"

struct neb_planner_strategy {
    double needs; /* bytes of a process with the whole model, or its part of it, at that site */
    double room;  /* what it has: its train.memory, or what this machine has; infinite: not known */
    int site;     /* the one that has least of what it needs; -1: this machine */
    bool fits;    /* replica is possible, and faster, as far as is known */
    bool known; /* false: no site has a limit, and no whole model could be looked at; there are no figures */
};

/* From the job alone: every site comes to the same. Each site with a limit (sites[].train.memory, train.memory) is rehearsed in the
 * layout that the job gives it, on the CPU with one thread, whatever it has; `parallel: auto` counts as one process. Where sites have texts
 * of their own the batches may differ, and only the state of the training counts. */
neb_status neb__planner_strategy(const struct neb_data *data, struct neb_planner_strategy *out);
/* The same, and beside it what there is here (`place`) for the layout of its own that needs least. made: a plan of these layouts;
 * NULL: they are rehearsed. */
neb_status neb__planner_strategy_here(const struct neb_data *data, const struct neb_planner_place *place,
                                      const struct neb_planned *made, struct neb_planner_strategy *out);

/* Whether the job leaves the choice to memory: strategy auto, and all sites train. */
bool neb__planner_strategy_open(const struct neb_job *job);
/* … and whether it says how much memory some site has. */
bool neb__planner_strategy_limited(const struct neb_job *job);
/* The model is one that can be cut between sites. */
bool neb__planner_can_be_cut(const struct neb_job *job);

#endif
