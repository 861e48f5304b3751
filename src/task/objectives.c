/* objectives.c: all objectives, in the order in which messages name them. */
#include "task/objectives.h"

#include <stddef.h>

const struct neb_objective *const neb__objectives[] = {
    &neb__objective_mlm,       &neb__objective_causal, &neb__objective_rtd,
    &neb__objective_translate, &neb__objective_nli,    NULL,
};
