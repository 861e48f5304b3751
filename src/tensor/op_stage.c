/* op_stage.c: the two ends of a stage, which is a part of a model between two cuts.
 *
 * A tensor that crosses a cut is written once, by the stage before, and read where it lies. Its gradient goes
 * the other way. Both ops copy bytes and compute nothing, so a model that is cut has the bits of a whole one.
 * Their backward runs in any case: a gradient that nothing reached goes out as zeros. */
#include "tensor/slot.h"

static bool room(neb_tape *t, const char *op, const neb_buffer *b, size_t at, size_t bytes)
{
    if (b && b->dev == t->dev && at <= b->bytes && bytes <= b->bytes - at) return true;
    neb__tape_fail(t, NEB_ERR_RANGE, op, "%zu bytes at %zu do not fit into the buffer between two stages",
                   bytes, at);
    return false;
}

static size_t bytes_of(const neb_tensor *x)
{
    return (size_t)neb__tensor_count(x) * neb_dtype_size(x->type);
}

static neb_status copy(neb_tape *t, void *to, const void *from, size_t bytes)
{
    return neb__tape_called(t, t->dry ? NEB_OK : t->dev->ops->copy(t->dev->ctx, to, from, bytes));
}

neb_tensor *neb__op_stage_in(neb_tape *t, neb_buffer *value, neb_buffer *grad, size_t at, int64_t rows,
                             int64_t cols)
{
    neb_tensor *x = neb_input_at(t, value, at, neb_compute_type(t), 2, (int64_t[]){rows, cols});
    if (!x || !grad || !neb__tape_wants_grad(t)) return x;
    if (!room(t, "stage_in", grad, at, bytes_of(x))) return NULL;
    x->needs_grad = true;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_stage_in, 0, NULL, 1, &x);
    if (n) n->arg = (char *)grad->data + at;
    return t->failed == NEB_OK ? x : NULL;
}

neb_status neb__backward_stage_in(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->out[0];
    const void *dx = neb__tensor_grad(t, x);
    if (dx) return copy(t, n->arg, dx, bytes_of(x));
    return neb__tape_called(t, t->dry ? NEB_OK : t->dev->ops->fill(t->dev->ctx, n->arg, 0, bytes_of(x)));
}

void neb__op_stage_out(neb_tape *t, neb_tensor *x, neb_buffer *value, neb_buffer *grad, size_t at)
{
    if (!neb__tape_want_act(t, "stage_out", "x", x, -1, -1)) return;
    if (!neb__tensor_contiguous(x)) {
        neb__tape_fail(t, NEB_ERR_SHAPE, "stage_out", "a column view cannot leave a stage; copy it first");
        return;
    }
    if (!room(t, "stage_out", value, at, bytes_of(x)) ||
        copy(t, (char *)value->data + at, neb__tensor_data(t, x), bytes_of(x)) != NEB_OK)
        return;
    if (!neb__tape_wants_grad(t)) {
        neb__tensor_use(x);
        return;
    }
    if (!room(t, "stage_out", grad, at, bytes_of(x))) return;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_stage_out, 1, &x, 0, NULL);
    if (n) n->arg = (char *)grad->data + at;
}

neb_status neb__backward_stage_out(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0];
    int temp;
    void *dx = neb__grad_overwrite(t, x, &temp);
    if (!dx) return t->failed;
    NEB_TRY(copy(t, dx, n->arg, bytes_of(x)));
    return neb__grad_add(t, x, temp);
}
