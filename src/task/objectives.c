/* objectives.c: the table of all objectives. */
#include "task/objectives.h"

#include <stddef.h>

const struct neb_objective *const neb__objectives[] = {
#define NEB__X(name) &neb__objective_##name,
    NEB_OBJECTIVES(NEB__X)
#undef NEB__X
        NULL,
};
