/* muon.h (internal): Muon, the optimizer of the matrices between hidden states (Jordan et al. 2024).
 *
 *     m = momentum m + g                                the optimizer's first moment
 *     o = the orthogonal matrix of g + momentum m       orthogonal.h
 *     p = p - lr (0.2 sqrt(max(rows, cols)) o + decay p)
 *
 * The factor gives a step the size that a step of AdamW usually has (Liu et al. 2025), so one learning rate serves both. All
 * other parameters take AdamW's update. A matrix is taken whole: q, k and v are three. Its scale does not matter, so neither
 * does clipping, except that a clipped gradient weighs less in the momentum.
 *
 * Ranks. Each matrix is orthogonalised once among the ranks that have its momentum. With zero 1 to 3 that is the rank whose
 * range it lies in. Otherwise the copies of the model deal out the matrices and gather the results. Members of a team have a
 * part of each matrix: they gather the parts, deal out whole matrices, gather the results, and each steps its own part. The
 * bits are those of one process. */
#ifndef NEB_OPTIM_MUON_H
#define NEB_OPTIM_MUON_H

#include "optim/optimizer.h"

/* After the ranges are known. Without matrices in this rank's range o->muon stays NULL. */
neb_status neb__muon_create(neb_optimizer *o);
void neb__muon_destroy(neb_optimizer *o);
/* Momentum, orthogonal matrices and the step of all matrices, after clip(). */
neb_status neb__muon_update(neb_optimizer *o, neb_tape *t);

#endif
