/* pieces.h (internal): which values of the whole slab are here, and where.
 *
 * The whole slab is the slab that one process alone would have: every value of every parameter has one place
 * in it under every layout. A piece is a part of a parameter that this process holds: `rows` runs of `count`
 * values each. A parameter that is not cut is one run; a weight cut by rows is one run for each of its parts; a
 * weight cut by columns has a run for each row. */
#ifndef NEB_TENSOR_PIECES_H
#define NEB_TENSOR_PIECES_H

#include "tensor/params.h"

struct neb_piece {
    int64_t whole, here;           /* where the first run begins: in the whole slab, in this process's */
    int64_t count, rows;           /* values in a run, runs */
    int64_t whole_step, here_step; /* from one run to the next */
};

/* The pieces of p that are here: at most NEB_PARAM_PARTS. Returns how many; a narrow weight has none. */
int neb__param_pieces(const neb_param *p, struct neb_piece *out);

/* Calls fn for each run of p that is here, in the order of the local slab, until one fails. */
neb_status neb__param_runs(const neb_param *p,
                           neb_status (*fn)(void *arg, int64_t whole, int64_t here, int64_t n), void *arg);

#endif
