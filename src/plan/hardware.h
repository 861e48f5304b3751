/* hardware.h: costs of hardware that is not here, from stated constants. */
#ifndef NEB_PLAN_HARDWARE_H
#define NEB_PLAN_HARDWARE_H

#include "plan/plan.h"

/* "1024xh200": 1024 devices of this kind. Fills place and costs for the job's model. NEB_ERR_CONFIG names the kinds. */
neb_status neb__hardware_scale(const char *text, const struct neb_data *data, struct neb_planner_place *place,
                               struct neb_planner_costs *costs);

#endif
