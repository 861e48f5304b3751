/* estimator.h: the part of a COMET metric behind its encoder (Rei et al. 2020, RegressionMetric): sentence vectors of source,
 * translation and reference in, a score out.
 *
 * tools/comet_folder.py takes it out of a checkpoint of the unbabel-comet package:
 *
 *     estimator.safetensors   mix (layers + 1): weight of each layer in a sentence vector, the embedding first;
 *                             N.weight, N.bias, N = 0, 1, …: linear layers with tanh between them; the last gives one number
 *
 * The first layer reads 6 widths (translation, reference, their product, their absolute difference, product and difference with the
 * source) or, for a metric without references, 4 (translation, source, product, difference). Owes a close. */
#ifndef NEB_TASK_ESTIMATOR_H
#define NEB_TASK_ESTIMATOR_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_estimator;

/* layers, width: of the encoder.
 *   NEB_ERR_SHAPE: it was made for another encoder; NEB_ERR_CONFIG: not an estimator; NEB_ERR_NOTFOUND … */
neb_status neb__estimator_open(const char *path, int64_t layers, int64_t width, struct neb_estimator **out);
void neb__estimator_close(struct neb_estimator *e); /* NULL is fine */

const float *neb__estimator_mix(const struct neb_estimator *e); /* (layers + 1) */
bool neb__estimator_wants_reference(const struct neb_estimator *e);

/* Vectors (width): means over the tokens of the mixed layers, not scaled. */
double neb__estimator_score(struct neb_estimator *e, const float *source, const float *translation,
                            const float *reference);

#endif
