/* columns.h (internal): factors for the columns of an activation, as IA3 and DoRA train them. */
#ifndef NEB_TENSOR_COLUMNS_H
#define NEB_TENSOR_COLUMNS_H

#include <nebula/engine.h>

enum { NEB_COLUMN_PARTS = 3 };

/* Columns [first, first + n) are multiplied by vector (n), and by `also` F32 (n), through which no gradient goes; NULL:
 * by nothing else. */
struct neb_column_part {
    neb_param *vector;
    neb_tensor *also;
    int64_t first;
};

/* x (rows, cols) times the factors of up to three parts that do not overlap, plus bias (cols); NULL: none. Columns of no
 * part stay as they are. A part whose vector is NULL is none. */
neb_tensor *neb__op_scale_columns(neb_tape *t, neb_tensor *x,
                                  const struct neb_column_part parts[NEB_COLUMN_PARTS], neb_param *bias);

/* 1 / the length of each of the rows [first, first + n) of w + scale * b a, where w is (out, in), b (n, rank) and a
 * (rank, in): F32 (n), without a gradient. */
neb_tensor *neb__op_row_lengths(neb_tape *t, neb_param *w, int64_t first, neb_param *a, neb_param *b,
                                float scale);

#endif
