/* objective_nli.c: natural language inference. An encoder says of two sentences whether one follows from the
 * other, contradicts it, or neither. The model is a job's or an imported one; `nebula-i eval nli` tunes it
 * (nli.c), so no job has steps of this. */
#include "task/objectives.h"

#include <stddef.h>

static const char *const options[][2] = {{"classes", "3"}, {"label_smoothing", "0"}, {NULL, NULL}};

const struct neb_objective neb__objective_nli = {
    .name = "class",
    .about = "an encoder puts a pair of sentences into one of three classes",
    .kind = "encoder",
    .head = "class",
    .families = "bert, xlm-r, electra",
    .options = options,
    .sides = 1,
    .needs_pairs = true,
    .joins_pairs = true,
};
