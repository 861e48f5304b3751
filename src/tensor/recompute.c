/* recompute.c: trading time for memory, block by block.
 *
 * In the forward the block runs without recording. Nothing in it is read again, so the plan gives its memory
 * to the next block. In the backward the block runs once more from the same input, this time recording, and
 * the new nodes are walked back at once. Dropout gives the same bits again because its counter does not
 * depend on the time of the call. The second time nobody reads the block's result, so a block may say which of its
 * last ops make nothing else (neb__tape_unread). */
#include "tensor/tape.h"

void neb__tape_unread(neb_tape *t, bool on)
{
    t->unread = on && t->replaying;
}

enum { IN_X, IN_SAMPLE, IN_POSITION, INS };

neb_tensor *neb_op_recompute(neb_tape *t, neb_block_fn fn, void *arg, neb_tensor *x)
{
    if (!neb__tape_require(t, "recompute", "x", x)) return NULL;
    if (!neb__tape_wants_grad(t)) return fn(t, arg, x);
    uint32_t drops = t->drops;
    neb_tensor *in[INS] = {x, t->row_sample, t->row_position};
    t->recording = false;
    t->in_recompute = true;
    neb_tensor *y = fn(t, arg, x);
    t->recording = true;
    t->in_recompute = false;
    if (!neb__tape_require(t, "recompute", "the block's result", y)) return NULL;
    if (y->root == x->root || !neb__tensor_is_whole(y)) {
        neb__tape_fail(t, NEB_ERR_INVALID, "recompute",
                       "the block must return a tensor of its own, not a view");
        return NULL;
    }
    y->root->needs_grad = true;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_recompute, INS, in, 1, &y);
    if (n) {
        n->fn = (void (*)(void))fn;
        n->arg = arg;
        n->i[0] = drops;
    }
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_recompute(neb_tape *t, struct neb_node *n)
{
    int first = t->n_nodes;
    t->n_frames = 0;
    t->drops = (uint32_t)n->i[0];
    t->row_sample = n->in[IN_SAMPLE];
    t->row_position = n->in[IN_POSITION];
    t->replaying = true;
    neb_tensor *y = ((neb_block_fn)n->fn)(t, n->arg, n->in[IN_X]);
    t->replaying = t->unread = false;
    if (!y || t->failed != NEB_OK) return t->failed;
    if (!y->root->needs_grad) return NEB_OK; /* nothing in the block trains */
    y->root->grad = n->out[0]->root->grad;
    t->life.list[y->root->grad].refs++;
    return neb__tape_backward(t, first);
}
