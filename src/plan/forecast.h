/* forecast.h: one layout: what it needs and how long its steps take. */
#ifndef NEB_PLAN_FORECAST_H
#define NEB_PLAN_FORECAST_H

#include "plan/plan.h"

/* Fills memory and time of row->layout. A layout that does not work, does not fit or was not measured has row->why.
 *   NEB_ERR_NOMEM */
neb_status neb__planner_forecast(const struct neb_planner_order *o, struct neb_planner_row *row,
                                 double *tokens, int64_t *values);

#endif
