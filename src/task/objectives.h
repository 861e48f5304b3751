/* objectives.h: the rows of job/objective.h. Each is defined in a file of its own, src/task/objective_NAME.c, and named in the
 * list below, from which objectives.c makes the table. Messages name them in this order. */
#ifndef NEB_TASK_OBJECTIVES_H
#define NEB_TASK_OBJECTIVES_H

#include "job/objective.h"

/* clang-format off */
#define NEB_OBJECTIVES(X) \
    X(mlm)                \
    X(causal)             \
    X(rtd)                \
    X(translate)          \
    X(nli)
/* clang-format on */

#define NEB__X(name) extern const struct neb_objective neb__objective_##name;
NEB_OBJECTIVES(NEB__X)
#undef NEB__X

#endif
