/* record.h: what was foreseen, in OUT/plan, to be compared with what a training then measures. A line for each layout that
 * fits. */
#ifndef NEB_PLAN_RECORD_H
#define NEB_PLAN_RECORD_H

#include "plan/plan.h"

struct neb_planner_figures {
    double step_s, memory; /* memory: bytes of the first rank's device */
    double wan_bytes;      /* that leave the site in the mean of a step */
};

/* A line is that of one strategy: a stage of a pipeline between sites, with so many bits, is another thing than the whole model. */
neb_status neb__planner_record(const char *out, const struct neb_planned *p);
/* What was foreseen for this layout. bits: of a stage's messages; 0: the whole model is here. NEB_ERR_NOTFOUND (quiet): nothing */
neb_status neb__planner_recorded(const char *out, const struct neb_planner_layout *l, int bits,
                                 struct neb_planner_figures *figures);
/* Foreseen beside measured, in words. A figure that is negative was not measured. */
void neb__planner_compare(const struct neb_planner_figures *foreseen,
                          const struct neb_planner_figures *measured, char *text, size_t size);

#endif
