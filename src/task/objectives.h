/* objectives.h: the rows of job/objective.h; each is defined in a file of its own. */
#ifndef NEB_TASK_OBJECTIVES_H
#define NEB_TASK_OBJECTIVES_H

#include "job/objective.h"

extern const struct neb_objective neb__objective_mlm, neb__objective_causal, neb__objective_rtd,
    neb__objective_translate, neb__objective_nli;

#endif
