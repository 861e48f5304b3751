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

static neb_status exchange(neb_tape *t, enum neb_team_op op, void *values, int64_t n, const int64_t *edge,
                           neb_dtype type)
{
    const struct neb_team *m = team_of(t);
    if (t->dry || t->failed != NEB_OK) return neb__tape_called(t, t->failed);
    return neb__tape_called(t, m->exchange(m->arg, op, values, n, edge, type));
}

static bool fits(neb_tape *t, const char *op, const neb_tensor *x)
{
    if (!neb__tape_want_act(t, op, "x", x, -1, -1)) return false;
    if (neb__tensor_contiguous(x)) return true;
    neb__tape_fail(t, NEB_ERR_UNSUPPORTED, op, "processes that share a layer exchange contiguous tensors");
    return false;
}

/* ---- shared rows ------------------------------------------------------------------------------------------------ */

bool neb__team_shares_rows(const neb_tape *t)
{
    return team_of(t) && team_of(t)->sequence;
}

int64_t neb__team_rows(neb_tape *t, int64_t rows)
{
    int64_t before = t->team_rows;
    const struct neb_team *m = team_of(t);
    if (m && rows && rows < m->size)
        neb__tape_fail(t, NEB_ERR_SHAPE, "rows",
                       "%" PRId64 " rows cannot be shared by %d processes (parallel.sequence)", rows,
                       m->size);
    t->team_rows = rows;
    return before;
}

/* Where the members' rows begin, in values. */
static void row_edges(const neb_tape *t, int64_t total, int64_t cols, int64_t *edge)
{
    const struct neb_team *m = team_of(t);
    for (int r = 0; r <= m->size; r++) edge[r] = total * r / m->size * cols;
}

static neb_status copy(neb_tape *t, void *to, const void *from, size_t bytes)
{
    if (t->dry || t->failed != NEB_OK) return neb__tape_done(t, t->failed);
    return neb__tape_done(t, t->dev->ops->copy(t->dev->ctx, to, from, bytes));
}

static char *own_rows(const neb_tape *t, void *values, const int64_t *edge, neb_dtype type)
{
    return (char *)values + (size_t)edge[team_of(t)->rank] * neb_dtype_size(type);
}

static size_t bytes_of(const neb_tensor *x)
{
    return (size_t)neb__tensor_count(x) * neb_dtype_size(x->type);
}

/* alike: every member makes the same of the rows, so their gradients are not added up. */
static neb_tensor *gather_rows(neb_tape *t, neb_tensor *x, bool alike)
{
    const int64_t total = t->team_rows, cols = neb__tensor_cols(x);
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    row_edges(t, total, cols, edge);
    if (!neb__tape_want_act(t, "enter", "x", x, neb__team_count(team_of(t), total), cols)) return NULL;
    neb_tensor *y = neb__tensor_new2(t, x->type, total, cols);
    if (!y) return NULL;
    void *to = neb__tensor_data(t, y);
    const void *from = neb__tensor_data(t, x);
    if (copy(t, own_rows(t, to, edge, x->type), from, bytes_of(x)) != NEB_OK) return NULL;
    if (exchange(t, NEB_TEAM_GATHER, to, total * cols, edge, x->type) != NEB_OK) return NULL;
    y->needs_grad = x->root->needs_grad;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_enter, 1, &x, 1, &y);
    if (n) n->i[0] = total, n->flag[0] = alike;
    return t->failed == NEB_OK ? y : NULL;
}

static neb_status backward_gather(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    int temp;
    row_edges(t, n->i[0], neb__tensor_cols(y), edge);
    void *g = neb__grad_own(t, y);
    if (!g) return t->failed;
    if (!n->flag[0]) NEB_TRY(exchange(t, NEB_TEAM_SUM_SCATTER, g, neb__tensor_count(y), edge, y->type));
    g = neb__tensor_grad(t, y);
    void *dx = neb__grad_overwrite(t, x, &temp);
    if (!dx) return t->failed;
    NEB_TRY(neb__tape_called(t, copy(t, dx, own_rows(t, g, edge, y->type), bytes_of(x))));
    return neb__grad_add(t, x, temp);
}

/* sum: y is a part of each sum. */
static neb_tensor *scatter_rows(neb_tape *t, neb_tensor *y, bool sum)
{
    const int64_t total = t->team_rows, cols = neb__tensor_cols(y);
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    row_edges(t, total, cols, edge);
    if (!neb__tape_want_act(t, "leave", "y", y, total, cols)) return NULL;
    if (sum &&
        exchange(t, NEB_TEAM_SUM_SCATTER, neb__tensor_data(t, y), total * cols, edge, y->type) != NEB_OK)
        return NULL;
    neb_tensor *z = neb__tensor_new2(t, y->type, neb__team_count(team_of(t), total), cols);
    if (!z) return NULL;
    void *to = neb__tensor_data(t, z), *from = neb__tensor_data(t, y);
    if (neb__tape_called(t, copy(t, to, own_rows(t, from, edge, y->type), bytes_of(z))) != NEB_OK)
        return NULL;
    z->needs_grad = y->root->needs_grad;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_leave, 1, &y, 1, &z);
    if (n) n->i[0] = total;
    return t->failed == NEB_OK ? z : NULL;
}

neb_status neb__backward_leave(neb_tape *t, struct neb_node *n)
{
    neb_tensor *y = n->in[0], *z = n->out[0];
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    int temp;
    row_edges(t, n->i[0], neb__tensor_cols(z), edge);
    const void *dz = neb__tensor_grad(t, z);
    void *dy = neb__grad_overwrite(t, y, &temp);
    if (!dz || !dy) return t->failed;
    NEB_TRY(copy(t, own_rows(t, dy, edge, z->type), dz, bytes_of(z)));
    NEB_TRY(exchange(t, NEB_TEAM_GATHER, dy, n->i[0] * neb__tensor_cols(z), edge, z->type));
    return neb__grad_add(t, y, temp);
}

neb_tensor *neb__op_take_rows(neb_tape *t, neb_tensor *x)
{
    if (!t->team_rows || t->failed != NEB_OK) return x;
    return fits(t, "leave", x) ? scatter_rows(t, x, false) : NULL;
}

neb_tensor *neb__op_join_rows(neb_tape *t, neb_tensor *x)
{
    if (!t->team_rows || t->failed != NEB_OK) return x;
    return fits(t, "enter", x) ? gather_rows(t, x, true) : NULL;
}

static neb_tensor *part_of_rows(neb_tape *t, neb_tensor *x)
{
    const struct neb_team *m = team_of(t);
    neb_tensor *y = neb__tensor_alias(t, x);
    if (!y) return NULL;
    y->offset += (size_t)neb__team_first(m, t->team_rows) * neb_dtype_size(x->type);
    y->shape[0] = neb__team_count(m, t->team_rows);
    return y;
}

void neb__team_set_rows(neb_tape *t, neb_tensor *sample, neb_tensor *position)
{
    if (t->team_rows && sample && position) {
        sample = part_of_rows(t, sample);
        position = part_of_rows(t, position);
    }
    neb_set_rows(t, sample, position);
}

/* ---- whole rows ------------------------------------------------------------------------------------------------- */

neb_tensor *neb__op_enter(neb_tape *t, neb_tensor *x)
{
    if (!team_of(t) || t->failed != NEB_OK) return x;
    if (!fits(t, "enter", x)) return NULL;
    if (t->team_rows) return gather_rows(t, x, false);
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
    if (n->i[0]) return backward_gather(t, n);
    void *g = neb__grad_own(t, y);
    if (!g) return t->failed;
    NEB_TRY(exchange(t, NEB_TEAM_SUM, g, neb__tensor_count(y), NULL, y->type));
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
    if (t->team_rows) return scatter_rows(t, y, true);
    void *data = neb__tensor_data(t, y);
    return exchange(t, NEB_TEAM_SUM, data, neb__tensor_count(y), NULL, y->type) == NEB_OK ? y : NULL;
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
    const size_t w = neb_dtype_size(x->type);
    char *all = neb__tape_temp(t, rows * total * (int64_t)w);
    if (!y || !all) return NULL;
    char *from = neb__tensor_data(t, x), *to = neb__tensor_data(t, y);
    neb__tensor_use(x);
    t->hold++;
    for (int r = -1; r < m->size && t->failed == NEB_OK; r++) {
        int64_t first = r < 0 ? 0 : total * r / m->size, end = r < 0 ? 0 : total * (r + 1) / m->size;
        struct neb_copy2d c = {.src = r < 0 ? from : all + (size_t)(first * rows) * w,
                               .dst = r < 0 ? all + (size_t)edge[m->rank] * w : to + (size_t)first * w,
                               .rows = r < 0 ? 1 : rows,
                               .cols = r < 0 ? neb__tensor_count(x) : end - first,
                               .ld_src = r < 0 ? neb__tensor_count(x) : end - first,
                               .ld_dst = r < 0 ? neb__tensor_count(x) : total,
                               .src_type = x->type,
                               .dst_type = x->type};
        if (r == 0) exchange(t, NEB_TEAM_GATHER, all, rows * total, edge, x->type);
        if (t->failed == NEB_OK) NEB_CALL(t, copy2d, &c);
    }
    t->hold--;
    return neb__tape_called(t, t->failed) == NEB_OK ? y : NULL;
}
