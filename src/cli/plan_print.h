/* plan_print.h: a plan for people and for programs. */
#ifndef NEB_CLI_PLAN_PRINT_H
#define NEB_CLI_PLAN_PRINT_H

#include "plan/plan.h"
#include "plan/privacy.h"
#include "plan/strategy.h"

struct neb_planner_words {
    const struct neb_planned *plan;
    const struct neb_planner_order *order;
    struct neb_planner_privacy privacy;
    struct neb_planner_strategy strategy; /* of several sites that train */
    int shown;                            /* layouts */
    bool json;
};

void neb__planner_print(const struct neb_planner_words *w);

#endif
