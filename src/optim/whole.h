/* whole.h: values of the whole slab, from and to the ranks that hold parts of it (tensor/pieces.h). */
#ifndef NEB_OPTIM_WHOLE_H
#define NEB_OPTIM_WHOLE_H

#include "group/layout.h"
#include "tensor/pieces.h"

/* All ranks of the layout make these calls together. `here`: host memory in the layout of this rank's slab;
 * `whole`: in that of the whole slab, at the first rank; NULL at the others. trainable: the trainable part of
 * both only.
 *
 * Collects what the ranks of the first copy of the model hold. Values that several of them hold come from the
 * one that counts them. */
neb_status neb__pieces_collect(const struct neb_layout *l, const neb_params *ps, bool trainable,
                               const float *here, float *whole);
/* Gives every rank its parts. */
neb_status neb__pieces_distribute(const struct neb_layout *l, const neb_params *ps, bool trainable,
                                  const float *whole, float *here);
/* The same for the ranks of the first copy of the model alone. */
neb_status neb__pieces_distribute_first(const struct neb_layout *l, const neb_params *ps, bool trainable,
                                        const float *whole, float *here);
/* The same without the others: every rank has the whole slab. */
neb_status neb__pieces_take(const neb_params *ps, bool trainable, const float *whole, float *here);

#endif
