/* op_team.c: where activations go from one process to several that share a layer, and back (team.h). */
#include "tensor/team.h"
#include "tensor/tape.h"

int64_t neb__team_first(const struct neb_team *t, int64_t n)
{
    return t ? n * t->rank / t->size : 0;
}

int64_t neb__team_count(const struct neb_team *t, int64_t n)
{
    return t ? n * (t->rank + 1) / t->size - n * t->rank / t->size : n;
}

static const struct neb_team *team_of(const neb_tape *t)
{
    return t->params ? t->params->team : NULL;
}

static neb_status exchange(neb_tape *t, enum neb_team_op op, void *values, int64_t n, const int64_t *edge)
{
    const struct neb_team *m = team_of(t);
    if (t->dry || t->failed != NEB_OK) return neb__tape_called(t, t->failed);
    neb_status status = t->dev->ops->sync(t->dev->ctx);
    if (status == NEB_OK) status = m->exchange(m->arg, op, values, n, edge);
    return neb__tape_called(t, status);
}

static bool fits(neb_tape *t, const char *op, const neb_tensor *x)
{
    if (!neb__tape_want_act(t, op, "x", x, -1, -1)) return false;
    if (x->type == NEB_F32 && neb__tensor_contiguous(x)) return true;
    neb__tape_fail(t, NEB_ERR_UNSUPPORTED, op,
                   "processes that share a layer exchange contiguous tensors of fp32 (train.dtype: f32)");
    return false;
}

neb_tensor *neb__op_enter(neb_tape *t, neb_tensor *x)
{
    if (!team_of(t) || t->failed != NEB_OK) return x;
    if (!fits(t, "enter", x)) return NULL;
    neb_tensor *y = neb__tensor_alias(t, x);
    if (!y) return NULL;
    y->root = y; /* the same memory, a gradient of its own */
    y->grad = -1;
    y->grad_is_pre = false;
    y->needs_grad = x->root->needs_grad;
    neb__tape_record(t, NEB_OPCODE_enter, 1, &x, 1, &y);
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_enter(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    void *g = neb__grad_own(t, y);
    if (!g) return t->failed;
    NEB_TRY(exchange(t, NEB_TEAM_SUM, g, neb__tensor_count(y), NULL));
    return neb__grad_share(t, x, y);
}

neb_tensor *neb__op_leave(neb_tape *t, neb_tensor *y)
{
    if (!team_of(t) || t->failed != NEB_OK) return y;
    if (!fits(t, "leave", y)) return NULL;
    if (y->uses || y->act != NEB_ACT_NONE) {
        neb__tape_fail(t, NEB_ERR_INVALID, "leave", "y has another reader, or comes from an activation");
        return NULL;
    }
    void *data = neb__tensor_data(t, y);
    return exchange(t, NEB_TEAM_SUM, data, neb__tensor_count(y), NULL) == NEB_OK ? y : NULL;
}

/* The members' columns are gathered one behind the other, (members, rows, columns of each), and then laid side by
 * side. */
neb_tensor *neb__op_gather_columns(neb_tape *t, neb_tensor *x, int64_t total)
{
    const struct neb_team *m = team_of(t);
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    if (!m || t->failed != NEB_OK) return x;
    if (!fits(t, "gather_columns", x)) return NULL;
    if (neb__tape_wants_grad(t) && x->root->needs_grad) {
        neb__tape_fail(t, NEB_ERR_UNSUPPORTED, "gather_columns",
                       "logits that several processes share out have no gradient");
        return NULL;
    }
    const int64_t rows = neb__tensor_rows(x);
    for (int r = 0; r <= m->size; r++) edge[r] = total * r / m->size * rows;
    neb_tensor *y = neb__tensor_new2(t, x->type, rows, total);
    float *all = neb__tape_temp(t, rows * total * (int64_t)sizeof(float));
    if (!y || !all) return NULL;
    float *from = neb__tensor_data(t, x), *to = neb__tensor_data(t, y);
    neb__tensor_use(x);
    t->hold++;
    for (int r = -1; r < m->size && t->failed == NEB_OK; r++) {
        int64_t first = r < 0 ? 0 : total * r / m->size, end = r < 0 ? 0 : total * (r + 1) / m->size;
        struct neb_copy2d c = {.src = r < 0 ? from : all + first * rows,
                               .dst = r < 0 ? all + edge[m->rank] : to + first,
                               .rows = r < 0 ? 1 : rows,
                               .cols = r < 0 ? neb__tensor_count(x) : end - first,
                               .ld_src = r < 0 ? neb__tensor_count(x) : end - first,
                               .ld_dst = r < 0 ? neb__tensor_count(x) : total,
                               .src_type = NEB_F32,
                               .dst_type = NEB_F32};
        if (r == 0) exchange(t, NEB_TEAM_GATHER, all, rows * total, edge);
        if (t->failed == NEB_OK) NEB_CALL(t, copy2d, &c);
    }
    t->hold--;
    return neb__tape_called(t, t->failed) == NEB_OK ? y : NULL;
}
