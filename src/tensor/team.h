/* team.h (internal): processes that share the layers of one model (tensor parallelism).
 *
 * A team cuts the matrices of each layer among its members. A weight that is cut by rows makes a part of the
 * outputs from the whole input; one that is cut by columns makes a part of each sum from a part of the inputs. So
 * a pair of them needs one sum forwards, behind the second (leave), and one sum backwards, before the first (enter).
 * Everything between leave and enter (norms, residuals, biases, losses) is computed by every member alike, with the
 * same bits.
 *
 * A team may also share the rows between leave and enter (sequence parallelism): then each member has some of the
 * rows there. leave adds up and keeps the own rows, enter gathers the rows of all, and on the way back enter adds
 * up and leave gathers. That moves as many bytes and saves memory. The gradients of parameters that work on some of the
 * rows (norms) are parts of a sum, which the optimizer adds up (partial).
 *
 * All communication of activations goes through exchange(), which takes pointers to the device's memory. */
#ifndef NEB_TENSOR_TEAM_H
#define NEB_TENSOR_TEAM_H

#include "tensor/params.h"

enum { NEB_TEAM_MEMBERS = 64 };

enum neb_team_op {
    NEB_TEAM_SUM,         /* every member gets the sum */
    NEB_TEAM_GATHER,      /* member r has [edge[r], edge[r + 1]); every member gets all */
    NEB_TEAM_SUM_SCATTER, /* member r gets the sum of [edge[r], edge[r + 1]) */
};

struct neb_team {
    int rank, size;
    bool sequence; /* they share rows, too */
    void *arg;
    /* values: n of the device; in place, in the order of its stream. edge: (size + 1), in values; NULL for a sum. */
    neb_status (*exchange)(void *arg, enum neb_team_op op, void *values, int64_t n, const int64_t *edge,
                           neb_dtype type);
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
/* ---- shared rows ------------------------------------------------------------------------------------------------ */

/* Whether this tape's team shares rows. */
bool neb__team_shares_rows(const neb_tape *t);
/* From now on tensors between leave and enter hold this member's part of `rows` rows; 0: all rows. Returns what was. */
int64_t neb__team_rows(neb_tape *t, int64_t rows);
/* x (rows, …), the same at every member: this member's rows of it. */
neb_tensor *neb__op_take_rows(neb_tape *t, neb_tensor *x);
/* The rows of all members, of which every member makes the same. */
neb_tensor *neb__op_join_rows(neb_tape *t, neb_tensor *x);
/* neb_set_rows() with this member's part of both. */
void neb__team_set_rows(neb_tape *t, neb_tensor *sample, neb_tensor *position);

/* linear() with a weight that is cut by columns: the first member adds the bias, and every member gets its
 * gradient. */
neb_tensor *neb__op_linear_part(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b);

#endif
