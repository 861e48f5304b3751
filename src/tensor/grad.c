/* grad.c: gradients of tensors and parameters, recording, and the walk backwards.
 *
 * Invariants: a root's gradient has the root's layout; allocation.refs counts the roots that hold it; an op
 * that adds to a gradient which others hold too takes a copy first. A root's gradient is released once the
 * node that made the root has run backwards: all its readers come earlier in that walk.
 *
 * The helpers here make device calls (clearing, copying) without ending the tick, so all pointers that a
 * backward fetches before its main call belong to one tick. */
#include "tensor/tape.h"
#include "base/mem.h"
#include "tensor/partition.h"

#include <stdio.h>
#include <string.h>

static const struct neb_op_def ops[NEB_OPCODES] = {
#define NEB__X(name) [NEB_OPCODE_##name] = {#name, neb__backward_##name},
    NEB_OPS(NEB__X)
#undef NEB__X
};

bool neb__tape_wants_grad(const neb_tape *t)
{
    return t->recording;
}

void neb__tensor_use(neb_tensor *x)
{
    x->uses++;
    if (x->root != x) x->root->uses++;
}

struct neb_node *neb__tape_record(neb_tape *t, int op, int n_in, neb_tensor *const *in, int n_out,
                                  neb_tensor *const *out)
{
    if (t->failed != NEB_OK) return NULL;
    bool wanted = false;
    for (int i = 0; i < n_in; i++)
        if (in[i]) {
            neb__tensor_use(in[i]);
            wanted |= in[i]->root->needs_grad;
        }
    for (int i = 0; i < n_out; i++) wanted |= out[i] && out[i]->root->needs_grad;
    if (!t->recording || !wanted) return NULL;
    if (t->n_nodes == t->cap_nodes) {
        int cap = t->cap_nodes ? t->cap_nodes * 2 : 256;
        struct neb_node *nodes = neb__realloc(t->nodes, (size_t)cap * sizeof *nodes);
        if (!nodes) {
            neb__tape_fail(t, NEB_ERR_NOMEM, ops[op].name, "out of memory after %d nodes", t->n_nodes);
            return NULL;
        }
        t->nodes = nodes;
        t->cap_nodes = cap;
    }
    struct neb_node *n = &t->nodes[t->n_nodes++];
    memset(n, 0, sizeof *n);
    n->op = (uint8_t)op;
    n->n_in = (uint8_t)n_in;
    n->n_out = (uint8_t)n_out;
    for (int i = 0; i < n_in; i++) n->in[i] = in[i];
    for (int i = 0; i < n_out; i++) {
        n->out[i] = out[i];
        if (out[i]) out[i]->root->needs_grad = true;
    }
    memcpy(n->scope, t->scope, sizeof n->scope);
    return n;
}

/* ---- gradients of tensors ------------------------------------------------------------------------------ */

static size_t span(const neb_tensor *root)
{
    return (size_t)neb__tensor_count(root) * neb_dtype_size(root->type);
}

static char *at(neb_tape *t, const neb_tensor *x)
{
    return neb__tape_address(t, x->root->grad) + (x->offset - x->root->offset);
}

void *neb__tensor_grad(neb_tape *t, neb_tensor *x)
{
    return x && x->root->grad >= 0 ? at(t, x) : NULL;
}

/* A gradient of its own for the root, content undefined. */
static bool fresh(neb_tape *t, neb_tensor *root)
{
    int id = neb__tape_take(t, span(root));
    if (id < 0) return false;
    t->life.list[id].refs = 1;
    root->grad = id;
    return true;
}

/* Called before adding: copies a gradient that others hold too. */
static bool own(neb_tape *t, neb_tensor *root)
{
    int old = root->grad;
    if (t->life.list[old].refs == 1) return true;
    if (!fresh(t, root)) return false;
    t->life.list[old].refs--;
    char *from = neb__tape_address(t, old), *to = neb__tape_address(t, root->grad);
    return neb__tape_done(t, t->dry ? NEB_OK : t->dev->ops->copy(t->dev->ctx, to, from, span(root))) ==
           NEB_OK;
}

void *neb__grad_own(neb_tape *t, neb_tensor *x)
{
    if (x->root->grad < 0 || !own(t, x->root)) return NULL;
    return at(t, x);
}

void *neb__grad_new(neb_tape *t, neb_tensor *x)
{
    return fresh(t, x->root) ? at(t, x) : NULL;
}

void *neb__grad_out(neb_tape *t, neb_tensor *x, int *acc)
{
    if (!x || !x->root->needs_grad || t->failed != NEB_OK) return NULL;
    neb_tensor *root = x->root;
    *acc = 1;
    if (root->grad >= 0) return own(t, root) ? at(t, x) : NULL;
    if (!fresh(t, root)) return NULL;
    if (neb__tensor_is_whole(x)) {
        *acc = 0;
        return at(t, x);
    }
    /* a part of the root: the rest must be 0 */
    char *p = neb__tape_address(t, root->grad);
    neb_status status = t->dry ? NEB_OK : t->dev->ops->fill(t->dev->ctx, p, 0, span(root));
    return neb__tape_done(t, status) == NEB_OK ? at(t, x) : NULL;
}

void *neb__grad_overwrite(neb_tape *t, neb_tensor *x, int *temp)
{
    *temp = -1;
    if (!x || !x->root->needs_grad || t->failed != NEB_OK) return NULL;
    if (x->root->grad < 0) {
        int acc;
        return neb__grad_out(t, x, &acc); /* new or cleared: overwriting is adding */
    }
    *temp = neb__tape_take(t, span(x->root));
    if (*temp < 0) return NULL;
    char *p = neb__tape_address(t, *temp);
    if (!neb__tensor_is_whole(x)) {
        neb_status status = t->dry ? NEB_OK : t->dev->ops->fill(t->dev->ctx, p, 0, span(x->root));
        if (neb__tape_done(t, status) != NEB_OK) return NULL;
    }
    return p + (x->offset - x->root->offset);
}

neb_status neb__grad_add(neb_tape *t, neb_tensor *x, int temp)
{
    if (temp < 0 || t->failed != NEB_OK) return t->failed;
    if (!own(t, x->root)) return t->failed;
    struct neb_axpby a = {.x = neb__tape_address(t, temp),
                          .y = neb__tape_address(t, x->root->grad),
                          .n = neb__tensor_count(x->root),
                          .a = 1,
                          .b = 1,
                          .type = x->root->type};
    return NEB_CALL(t, axpby, &a);
}

neb_status neb__grad_share(neb_tape *t, neb_tensor *x, neb_tensor *from)
{
    if (!x || !x->root->needs_grad || t->failed != NEB_OK) return t->failed;
    neb_tensor *root = x->root;
    if (root == from->root) return NEB_OK;
    if (root->grad < 0 && neb__tensor_is_whole(x)) {
        root->grad = from->root->grad;
        t->life.list[root->grad].refs++;
        return NEB_OK;
    }
    int acc;
    char *to = neb__grad_out(t, x, &acc);
    if (!to) return t->failed;
    if (neb__tensor_contiguous(x)) {
        struct neb_axpby a = {.x = neb__tensor_grad(t, from),
                              .y = to,
                              .n = neb__tensor_count(x),
                              .a = 1,
                              .b = (float)acc,
                              .type = x->type};
        return NEB_CALL(t, axpby, &a);
    }
    return neb__tape_fail(
        t, NEB_ERR_UNSUPPORTED, "gradient",
        "the residual is a column view, which cannot share a gradient; copy it first (neb_op_copy)");
}

/* ---- gradients of parameters --------------------------------------------------------------------------- */

float *neb__param_grad(neb_tape *t, neb_param *p, int *acc)
{
    if (!p || !p->trainable) return NULL;
    *acc = p->written;
    p->written = true;
    if (t->dry)
        p->contributions++;
    else if (--p->contributions == 0)
        p->complete = t->some_complete = true;
    if (!neb__partition_of_grads(t->params)) return t->params->grad + p->offset;
    if (p->complete) t->params->partition->unit[p->unit].left--;
    return neb__partition_grad(t, p);
}

void neb__tape_announce_one(neb_tape *t, neb_param *p)
{
    if (!t->grad_ready && !t->sums) return;
    t->announced = true;
    if (t->grad_ready) t->grad_ready(t->grad_ready_arg, p);
    if (t->sums) t->sums->ready(t->sums->arg, p);
}

void neb__tape_announce(neb_tape *t)
{
    if (!t->some_complete) return;
    t->some_complete = false;
    for (int i = 0; i < t->params->count; i++) {
        neb_param *p = t->params->list[i];
        if (p->complete && t->run->last) neb__tape_announce_one(t, p);
        p->complete = false;
    }
}

/* ---- backwards ----------------------------------------------------------------------------------------- */

static bool reached(const struct neb_node *n)
{
    if (n->op == NEB_OPCODE_stage_in || n->op == NEB_OPCODE_stage_out) return true; /* the ends of a stage */
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] && n->out[i]->root->grad >= 0) return true;
    return false;
}

static bool is_input(const struct neb_node *n, const neb_tensor *root)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->root == root) return true;
    return false;
}

static void release_outputs(neb_tape *t, const struct neb_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        neb_tensor *root = n->out[i] ? n->out[i]->root : NULL;
        if (!root || root->grad < 0 || is_input(n, root))
            continue; /* computed in place: this gradient is the input's, too */
        t->life.list[root->grad].refs--;
        root->grad = -1;
    }
}

neb_status neb__tape_backward(neb_tape *t, int first)
{
    for (int i = t->n_nodes - 1; i >= first; i--) {
        struct neb_node n = t->nodes[i]; /* a copy, because recomputation appends nodes */
        t->n_nodes = i;
        if (!reached(&n)) continue;
        t->scope_length = (int)strlen(n.scope);
        memcpy(t->scope, n.scope, sizeof t->scope);
        neb_status status = ops[n.op].backward(t, &n);
        if (status != NEB_OK && t->failed == NEB_OK) t->failed = status;
        if (t->failed != NEB_OK) return t->failed;
        release_outputs(t, &n);
        NEB_TRY(neb__partition_announce(t));
        if (!t->dry) neb__tape_announce(t);
    }
    return NEB_OK;
}
