/* matrices.h (internal): parameters that an optimizer takes as matrices.
 *
 * An optimizer such as Muon needs all values of a matrix at one time. It says so before the parameters are shared out
 * among ranks: a parameter that is taken as a matrix belongs to one range of the slab (partition.h). */
#ifndef NEB_TENSOR_MATRICES_H
#define NEB_TENSOR_MATRICES_H

#include "tensor/params.h"

/* Takes the trainable weights between hidden states, and the trainable matrices whose names match one of the patterns
 * (separated by commas; NULL: none). A second call changes nothing. Where ranks share out gradients or parameters, before
 * neb_params_ready().
 *   NEB_ERR_CONFIG  a pattern matches no trainable matrix
 *   NEB_ERR_STATE   the parameters are shared out already */
neb_status neb__params_take_matrices(neb_params *ps, const char *also);

/* A matrix, or the part of it that is here: rows or columns, one behind the other without gaps. */
struct neb_matrix {
    const neb_param *param;
    int64_t at;         /* in the slab */
    int64_t rows, cols; /* here */
    int64_t whole_rows, whole_cols;
    neb_split cut; /* among the team; NONE: all of it is here */
};

/* Returns how many there are: 0 if nothing of p is here. */
int neb__param_matrices(const neb_param *p, struct neb_matrix out[NEB_PARAM_PARTS]);

#endif
