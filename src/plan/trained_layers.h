/* trained_layers.h: a model of which some layers are trained, by number (peft.train, peft.freeze). */
#ifndef NEB_PLAN_TRAINED_LAYERS_H
#define NEB_PLAN_TRAINED_LAYERS_H

#include "task/data.h"

enum { NEB_PATTERNS = 2048 };

/* The list for a model of any number of layers. train: a pattern that names layers by number stands for all of them; freeze: it is left
 * out. False: no pattern names one, or the list is too long, and `out` is not set. */
bool neb__patterns_of_any_layer(const char *list, bool train, char out[NEB_PATTERNS]);

/* What the runs of each layer (of both stacks) take of those of a trained one, for `most` layers: 1 if the layer is trained; 2/3 behind
 * a trained one, where gradients go through it; 1/3 before the first. All 1 if no pattern names layers by number: then measuring has
 * seen them as they are. */
neb_status neb__trained_layers(const struct neb_data *data, double *share, int64_t most);

#endif
