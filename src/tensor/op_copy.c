/* op_copy.c: a column view made contiguous, for the ops that need their rows one after the other; and rows
 * added to a buffer that lives on.
 *
 * The gradient of a copy goes back into the view's columns. A device copies rectangles by overwriting only.
 * So when the root has a gradient already, the columns are copied into a cleared piece of the root's size,
 * and that piece is added. */
#include "tensor/tape.h"

neb_tensor *neb_op_copy(neb_tape *t, neb_tensor *x)
{
    if (!neb__tape_want_act(t, "copy", "x", x, -1, -1)) return NULL;
    neb_tensor *y = neb__tensor_new(t, x->type, x->ndim, x->shape);
    if (!y) return NULL;
    struct neb_copy2d c = {.src = neb__tensor_data(t, x),
                           .dst = neb__tensor_data(t, y),
                           .rows = neb__tensor_rows(x),
                           .cols = neb__tensor_cols(x),
                           .ld_src = x->ld,
                           .ld_dst = y->ld,
                           .src_type = x->type,
                           .dst_type = y->type};
    if (NEB_CALL(t, copy2d, &c) != NEB_OK) return NULL;
    neb__tape_record(t, NEB_OPCODE_copy, 1, &x, 1, &y);
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_copy(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    int temp;
    void *dx = neb__grad_overwrite(t, x, &temp);
    if (!dx) return t->failed;
    struct neb_copy2d c = {.src = neb__tensor_grad(t, y),
                           .dst = dx,
                           .rows = neb__tensor_rows(y),
                           .cols = neb__tensor_cols(y),
                           .ld_src = y->ld,
                           .ld_dst = x->ld,
                           .src_type = y->type,
                           .dst_type = x->type};
    NEB_TRY(NEB_CALL(t, copy2d, &c));
    return neb__grad_add(t, x, temp);
}

neb_tensor *neb_op_add_rows(neb_tape *t, neb_tensor *x, neb_tensor *index, neb_buffer *b, int64_t rows)
{
    if (!neb__tape_want_act(t, "add_rows", "x", x, -1, -1) ||
        !neb__tape_want(t, "add_rows", "index", index, NEB_I32, neb__tensor_rows(x), 1))
        return NULL;
    neb_tensor *y = neb_input(t, b, x->type, 2, (int64_t[]){rows, neb__tensor_cols(x)});
    if (!y) return NULL;
    struct neb_rows a = {.x = neb__tensor_data(t, x),
                         .y = neb__tensor_data(t, y),
                         .index = neb__tensor_data(t, index),
                         .n = neb__tensor_rows(x),
                         .rows = rows,
                         .d = neb__tensor_cols(x),
                         .type = x->type,
                         .ldx = x->ld};
    neb__tensor_use(x);
    return NEB_CALL(t, scatter_rows, &a) == NEB_OK ? y : NULL;
}
