/* team.h (internal): processes that share the layers of one model (tensor parallelism).
 *
 * A team cuts the matrices of each layer among its members. A weight that is cut by rows makes a part of the
 * outputs from the whole input; one that is cut by columns makes a part of each sum from a part of the inputs. So
 * a pair of them needs one sum forwards, behind the second (leave), and one sum backwards, before the first (enter).
 * Everything between leave and enter (norms, residuals, biases, losses) is computed by every member alike, with the
 * same bits.
 *
 * All communication of activations goes through exchange(), which takes pointers to the device's memory. */
#ifndef NEB_TENSOR_TEAM_H
#define NEB_TENSOR_TEAM_H

#include "tensor/params.h"

enum { NEB_TEAM_MEMBERS = 64 };

enum neb_team_op {
    NEB_TEAM_SUM,            /* floats: every member gets the sum */
    NEB_TEAM_GATHER,         /* floats: member r has [edge[r], edge[r + 1]); every member gets all */
    NEB_TEAM_GATHER_DOUBLES, /* the same with doubles */
    NEB_TEAM_SUM_SCATTER,    /* floats: member r gets the sum of [edge[r], edge[r + 1]) */
};

struct neb_team {
    int rank, size;
    void *arg;
    /* values: n floats or doubles of the device; in place. edge: (size + 1), in values; NULL for a sum. */
    neb_status (*exchange)(void *arg, enum neb_team_op op, void *values, int64_t n, const int64_t *edge);
};

/* The team's member `rank` holds these of n things that are cut: [first, first + count). */
int64_t neb__team_first(const struct neb_team *t, int64_t n);
int64_t neb__team_count(const struct neb_team *t, int64_t n);

/* ---- ops (op_team.c): without a team they give x back ---------------------------------------------------------- */

/* x goes into weights that are cut by rows: the gradients that come back from the members are added up. */
neb_tensor *neb__op_enter(neb_tape *t, neb_tensor *x);
/* y is a part of each sum: afterwards it is the sum. It comes out of an op without an activation, and nothing has read
 * it. */
neb_tensor *neb__op_leave(neb_tape *t, neb_tensor *y);
/* The columns of all members side by side, without a gradient. total: how many there are. */
neb_tensor *neb__op_gather_columns(neb_tape *t, neb_tensor *x, int64_t total);
/* linear() with a weight that is cut by columns: the first member adds the bias, and every member gets its
 * gradient. */
neb_tensor *neb__op_linear_part(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b);

#endif
