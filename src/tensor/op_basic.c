/* op_basic.c: embeddings, element-wise ops, views, row selection, pooling, outputs. */
#include "tensor/fallback.h"

#include <math.h>
#include <string.h>

/* ---- embeddings ---------------------------------------------------------------------------------------- */

/* The id of a table's first row: of one that several processes share out, or of one whose ids begin elsewhere. */
static int64_t first_row(const neb_param *p)
{
    return p->split == NEB_SPLIT_ROW && p->parts ? p->part_first[0] : p->first_id;
}

neb_tensor *neb_op_embed(neb_tape *t, int n, neb_param *const *tables, neb_tensor *const *ids, float scale)
{
    if (t->failed != NEB_OK) return NULL;
    if (n < 1 || n > 3) {
        neb__tape_fail(t, NEB_ERR_INVALID, "embed", "%d tables given; 1 to 3 are possible", n);
        return NULL;
    }
    struct neb_embed a = {.tables = n, .scale = scale, .type = neb_compute_type(t)};
    bool trained = false;
    for (int i = 0; i < n; i++) {
        if (!neb__tape_want_param(t, "embed", "table", tables[i], -1, i ? a.d : -1) ||
            !neb__tape_want(t, "embed", "ids", ids[i], NEB_I32, i ? a.rows : -1, 1))
            return NULL;
        a.rows = neb__tensor_rows(ids[i]);
        a.table_rows[i] = tables[i]->shape[0];
        a.first[i] = first_row(tables[i]);
        a.d = tables[i]->values / a.table_rows[i];
        a.table[i] = neb__param_working(t, tables[i]);
        a.ids[i] = neb__tensor_data(t, ids[i]);
        trained |= tables[i]->trainable;
    }
    neb_tensor *y = neb__tensor_new2(t, a.type, a.rows, a.d);
    if (!y) return NULL;
    a.y = neb__tensor_data(t, y);
    if (NEB_CALL(t, embed, &a) != NEB_OK) return NULL;
    y->needs_grad = trained && neb__tape_wants_grad(t);
    struct neb_node *node = neb__tape_record(t, NEB_OPCODE_embed, n, ids, 1, &y);
    if (node) {
        node->f[0] = scale;
        for (int i = 0; i < n; i++) node->param[i] = tables[i];
    }
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_embed(neb_tape *t, struct neb_node *n)
{
    neb_tensor *y = n->out[0];
    struct neb_embed a = {.tables = n->n_in,
                          .rows = neb__tensor_rows(y),
                          .d = neb__tensor_cols(y),
                          .scale = n->f[0],
                          .dy = neb__tensor_grad(t, y),
                          .type = y->type};
    for (int i = 0; i < n->n_in; i++) {
        int acc = 1;
        a.ids[i] = neb__tensor_data(t, n->in[i]);
        a.table_rows[i] = n->param[i]->shape[0];
        a.first[i] = first_row(n->param[i]);
        a.d_table[i] = neb__param_grad(t, n->param[i], &acc);
        if (acc || t->dry) continue;
        size_t bytes = (size_t)n->param[i]->values * sizeof(float);
        NEB_TRY(neb__tape_done(t, t->dev->ops->fill(t->dev->ctx, a.d_table[i], 0, bytes)));
    }
    a.scratch = neb__tape_scratch(t, NEB_SLOT_EMBED_BWD, &a);
    return t->failed == NEB_OK ? NEB_CALL(t, embed_bwd, &a) : t->failed;
}

/* ---- element by element -------------------------------------------------------------------------------- */

static bool flat(neb_tape *t, const char *op, const neb_tensor *x)
{
    if (!neb__tape_want_act(t, op, "x", x, -1, -1)) return false;
    if (neb__tensor_contiguous(x)) return true;
    neb__tape_fail(t, NEB_ERR_SHAPE, op,
                   "the input is a column view; make it contiguous first (neb_op_copy)");
    return false;
}

neb_tensor *neb_op_mul(neb_tape *t, neb_tensor *a, neb_tensor *b)
{
    if (!flat(t, "mul", a) || !flat(t, "mul", b) ||
        !neb__tape_want_act(t, "mul", "b", b, neb__tensor_rows(a), neb__tensor_cols(a)))
        return NULL;
    neb_tensor *c = neb__tensor_new(t, a->type, a->ndim, a->shape);
    if (!c) return NULL;
    struct neb_mul m = {.x = neb__tensor_data(t, a),
                        .y = neb__tensor_data(t, b),
                        .z = neb__tensor_data(t, c),
                        .n = neb__tensor_count(a),
                        .type = a->type};
    if (NEB_CALL(t, mul, &m) != NEB_OK) return NULL;
    neb__tape_record(t, NEB_OPCODE_mul, 2, (neb_tensor *[]){a, b}, 1, &c);
    return t->failed == NEB_OK ? c : NULL;
}

neb_status neb__backward_mul(neb_tape *t, struct neb_node *n)
{
    for (int i = 0; i < 2; i++) {
        struct neb_mul m = {.y = neb__tensor_data(t, n->in[1 - i]),
                            .n = neb__tensor_count(n->out[0]),
                            .type = n->out[0]->type};
        m.z = neb__grad_out(t, n->in[i], &m.acc);
        m.x = neb__tensor_grad(t, n->out[0]);
        if (m.z) NEB_TRY(NEB_CALL(t, mul, &m));
    }
    return t->failed;
}

neb_tensor *neb_op_scale(neb_tape *t, neb_tensor *x, float factor)
{
    if (!flat(t, "scale", x)) return NULL;
    neb_tensor *y = neb__tensor_new(t, x->type, x->ndim, x->shape);
    if (!y) return NULL;
    struct neb_axpby a = {.x = neb__tensor_data(t, x),
                          .y = neb__tensor_data(t, y),
                          .n = neb__tensor_count(x),
                          .a = factor,
                          .type = x->type};
    if (NEB_CALL(t, axpby, &a) != NEB_OK) return NULL;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_scale, 1, &x, 1, &y);
    if (n) n->f[0] = factor;
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_scale(neb_tape *t, struct neb_node *n)
{
    int acc = 0;
    struct neb_axpby a = {.n = neb__tensor_count(n->out[0]), .a = n->f[0], .type = n->out[0]->type};
    a.y = neb__grad_out(t, n->in[0], &acc);
    a.x = neb__tensor_grad(t, n->out[0]);
    a.b = (float)acc;
    return a.y ? NEB_CALL(t, axpby, &a) : t->failed;
}

neb_tensor *neb_op_act(neb_tape *t, neb_tensor *x, neb_act act)
{
    if (!flat(t, "act", x)) return NULL;
    if ((unsigned)act > NEB_ACT_TANH) {
        neb__tape_fail(t, NEB_ERR_INVALID, "act", "unknown activation %d", (int)act);
        return NULL;
    }
    if (act == NEB_ACT_NONE) return x;
    neb_tensor *y = neb__tensor_new(t, x->type, x->ndim, x->shape);
    if (!y) return NULL;
    struct neb_act_args a = {.x = neb__tensor_data(t, x),
                             .y = neb__tensor_data(t, y),
                             .n = neb__tensor_count(x),
                             .act = act,
                             .type = x->type};
    if (NEB_CALL(t, act, &a) != NEB_OK) return NULL;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_act, 1, &x, 1, &y);
    if (n) n->i[0] = act;
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_act(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0];
    struct neb_act_args a = {.n = neb__tensor_count(x), .act = (neb_act)n->i[0], .type = x->type};
    a.dx = neb__grad_out(t, x, &a.acc_dx);
    a.x = neb__tensor_data(t, x);
    a.dy = neb__tensor_grad(t, n->out[0]);
    return a.dx ? NEB_CALL(t, act_bwd, &a) : t->failed;
}

neb_tensor *neb_op_swiglu(neb_tape *t, neb_tensor *x)
{
    if (!flat(t, "swiglu", x)) return NULL;
    if (neb__tensor_cols(x) % 2) {
        neb__tape_fail(t, NEB_ERR_SHAPE, "swiglu", "x has %" PRId64 " columns; their number must be even",
                       neb__tensor_cols(x));
        return NULL;
    }
    neb_tensor *y = neb__tensor_new2(t, x->type, neb__tensor_rows(x), neb__tensor_cols(x) / 2);
    if (!y) return NULL;
    struct neb_swiglu a = {.x = neb__tensor_data(t, x),
                           .y = neb__tensor_data(t, y),
                           .rows = neb__tensor_rows(x),
                           .n = neb__tensor_cols(y),
                           .type = x->type};
    if (NEB_CALL(t, swiglu, &a) != NEB_OK) return NULL;
    neb__tape_record(t, NEB_OPCODE_swiglu, 1, &x, 1, &y);
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_swiglu(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    int temp;
    struct neb_swiglu a = {.rows = neb__tensor_rows(x), .n = neb__tensor_cols(y), .type = x->type};
    a.dx = neb__grad_overwrite(t, x, &temp);
    a.x = neb__tensor_data(t, x);
    a.dy = neb__tensor_grad(t, y);
    if (!a.dx) return t->failed;
    NEB_TRY(NEB_CALL(t, swiglu_bwd, &a));
    return neb__grad_add(t, x, temp);
}

/* ---- views --------------------------------------------------------------------------------------------- */

static neb_tensor *range_fails(neb_tape *t, const char *op, int64_t first, int64_t count, int64_t of)
{
    neb__tape_fail(t, NEB_ERR_SHAPE, op, "range [%" PRId64 ", +%" PRId64 ") does not fit into %" PRId64,
                   first, count, of);
    return NULL;
}

neb_tensor *neb_op_columns(neb_tape *t, neb_tensor *x, int64_t first, int64_t count)
{
    if (!neb__tape_require(t, "columns", "x", x)) return NULL;
    if (x->ndim != 2 || first < 0 || count < 1 || first > x->shape[1] - count)
        return range_fails(t, "columns", first, count, neb__tensor_cols(x));
    neb_tensor *y = neb__tensor_alias(t, x);
    if (!y) return NULL;
    y->shape[1] = count;
    y->offset += (size_t)first * neb_dtype_size(x->type);
    return y;
}

neb_tensor *neb_op_rows_of(neb_tape *t, neb_tensor *x, int64_t first, int64_t count)
{
    if (!neb__tape_require(t, "rows_of", "x", x)) return NULL;
    if (first < 0 || count < 1 || first > x->shape[0] - count)
        return range_fails(t, "rows_of", first, count, x->shape[0]);
    neb_tensor *y = neb__tensor_alias(t, x);
    if (!y) return NULL;
    y->shape[0] = count;
    y->offset += (size_t)(first * x->ld) * neb_dtype_size(x->type);
    return y;
}

neb_tensor *neb_op_reshape(neb_tape *t, neb_tensor *x, int ndim, const int64_t *shape)
{
    if (!neb__tape_require(t, "reshape", "x", x)) return NULL;
    int64_t n = ndim >= 1 && ndim <= 4 ? 1 : 0;
    for (int i = 0; n > 0 && i < ndim; i++) n = shape[i] < 1 || n > neb__tensor_count(x) ? 0 : n * shape[i];
    if (n != neb__tensor_count(x) || !neb__tensor_contiguous(x)) {
        neb__tape_fail(t, NEB_ERR_SHAPE, "reshape", "cannot reshape %" PRId64 " values%s into %" PRId64,
                       neb__tensor_count(x), neb__tensor_contiguous(x) ? "" : " (not contiguous)", n);
        return NULL;
    }
    neb_tensor *y = neb__tensor_alias(t, x);
    if (!y) return NULL;
    y->ndim = ndim;
    memcpy(y->shape, shape, (size_t)ndim * sizeof *shape);
    y->ld = neb__tensor_cols(y);
    return y;
}

/* The same memory under a root of its own: gradients end here. */
neb_tensor *neb_op_stop_gradient(neb_tape *t, neb_tensor *x)
{
    if (!neb__tape_require(t, "stop_gradient", "x", x)) return NULL;
    neb_tensor *y = neb__tensor_alias(t, x);
    if (!y) return NULL;
    y->root = y;
    y->needs_grad = false;
    y->grad = -1;
    neb__tensor_use(x);
    return y;
}

/* ---- rows and sequences -------------------------------------------------------------------------------- */

neb_tensor *neb_op_gather(neb_tape *t, neb_tensor *x, neb_tensor *index)
{
    if (!flat(t, "gather", x) || !neb__tape_want(t, "gather", "index", index, NEB_I32, -1, 1)) return NULL;
    neb_tensor *y = neb__tensor_new2(t, x->type, neb__tensor_rows(index), neb__tensor_cols(x));
    if (!y) return NULL;
    struct neb_rows a = {.x = neb__tensor_data(t, x),
                         .y = neb__tensor_data(t, y),
                         .index = neb__tensor_data(t, index),
                         .n = neb__tensor_rows(index),
                         .rows = neb__tensor_rows(x),
                         .d = neb__tensor_cols(x),
                         .type = x->type};
    if (NEB_CALL(t, gather_rows, &a) != NEB_OK) return NULL;
    neb__tape_record(t, NEB_OPCODE_gather, 2, (neb_tensor *[]){x, index}, 1, &y);
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_gather(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    int acc = 1;
    struct neb_rows a = {
        .n = neb__tensor_rows(y), .rows = neb__tensor_rows(x), .d = neb__tensor_cols(x), .type = x->type};
    a.y = neb__grad_out(t, x, &acc);
    a.x = neb__tensor_grad(t, y);
    a.index = neb__tensor_data(t, n->in[1]);
    if (!a.y) return t->failed;
    if (!acc && !t->dry) {
        size_t bytes = (size_t)neb__tensor_count(x) * neb_dtype_size(x->type);
        NEB_TRY(neb__tape_done(t, t->dev->ops->fill(t->dev->ctx, a.y, 0, bytes)));
    }
    return NEB_CALL(t, scatter_rows, &a);
}

neb_tensor *neb_op_scatter(neb_tape *t, neb_tensor *x, neb_tensor *index, int64_t rows)
{
    if (!flat(t, "scatter", x) ||
        !neb__tape_want(t, "scatter", "index", index, NEB_I32, neb__tensor_rows(x), 1))
        return NULL;
    if (rows < 1) return range_fails(t, "scatter", 0, neb__tensor_rows(x), rows);
    neb_tensor *y = neb__tensor_new2(t, x->type, rows, neb__tensor_cols(x));
    if (!y) return NULL;
    struct neb_rows a = {.x = neb__tensor_data(t, x),
                         .y = neb__tensor_data(t, y),
                         .index = neb__tensor_data(t, index),
                         .n = neb__tensor_rows(x),
                         .rows = rows,
                         .d = neb__tensor_cols(x),
                         .type = x->type};
    size_t bytes = (size_t)neb__tensor_count(y) * neb_dtype_size(x->type);
    if (neb__tape_done(t, t->dry ? NEB_OK : t->dev->ops->fill(t->dev->ctx, a.y, 0, bytes)) != NEB_OK)
        return NULL;
    if (NEB_CALL(t, scatter_rows, &a) != NEB_OK) return NULL;
    neb__tape_record(t, NEB_OPCODE_scatter, 2, (neb_tensor *[]){x, index}, 1, &y);
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_scatter(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    int temp;
    struct neb_rows a = {
        .n = neb__tensor_rows(x), .rows = neb__tensor_rows(y), .d = neb__tensor_cols(x), .type = x->type};
    a.y = neb__grad_overwrite(t, x, &temp);
    a.x = neb__tensor_grad(t, y);
    a.index = neb__tensor_data(t, n->in[1]);
    if (!a.y) return t->failed;
    NEB_TRY(NEB_CALL(t, gather_rows, &a));
    return neb__grad_add(t, x, temp);
}

neb_tensor *neb_op_mean_pool(neb_tape *t, neb_tensor *x, const struct neb_seqs *seqs)
{
    if (!flat(t, "mean_pool", x) ||
        !neb__tape_want(t, "mean_pool", "starts", seqs->starts, NEB_I32, seqs->count + 1, 1))
        return NULL;
    neb_tensor *y = neb__tensor_new2(t, x->type, seqs->count, neb__tensor_cols(x));
    if (!y) return NULL;
    struct neb_pool_args a = {.x = neb__tensor_data(t, x),
                              .y = neb__tensor_data(t, y),
                              .starts = neb__tensor_data(t, seqs->starts),
                              .sequences = seqs->count,
                              .rows = neb__tensor_rows(x),
                              .d = neb__tensor_cols(x),
                              .type = x->type};
    if (NEB_CALL(t, pool, &a) != NEB_OK) return NULL;
    neb__tape_record(t, NEB_OPCODE_pool, 2, (neb_tensor *[]){x, seqs->starts}, 1, &y);
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_pool(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    struct neb_pool_args a = {.sequences = neb__tensor_rows(y),
                              .rows = neb__tensor_rows(x),
                              .d = neb__tensor_cols(x),
                              .type = x->type};
    a.dx = neb__grad_out(t, x, &a.acc_dx);
    a.dy = neb__tensor_grad(t, y);
    a.starts = neb__tensor_data(t, n->in[1]);
    return a.dx ? NEB_CALL(t, pool_bwd, &a) : t->failed;
}

neb_tensor *neb_op_convert(neb_tape *t, neb_tensor *x)
{
    if (!neb__tape_require(t, "convert", "x", x)) return NULL;
    if (x->type == neb_compute_type(t)) return x;
    if (!neb__tape_want(t, "convert", "x", x, NEB_F32, -1, -1)) return NULL;
    neb_tensor *y = neb__tensor_new(t, neb_compute_type(t), x->ndim, x->shape);
    if (!y) return NULL;
    struct neb_copy2d c = {.src = neb__tensor_data(t, x),
                           .dst = neb__tensor_data(t, y),
                           .rows = neb__tensor_rows(x),
                           .cols = neb__tensor_cols(x),
                           .ld_src = x->ld,
                           .ld_dst = y->ld,
                           .src_type = x->type,
                           .dst_type = y->type};
    return NEB_CALL(t, copy2d, &c) == NEB_OK ? y : NULL;
}

/* ---- out ----------------------------------------------------------------------------------------------- */

void neb_output(neb_tape *t, neb_tensor *x, neb_buffer *b, neb_dtype type)
{
    if (!neb__tape_require(t, "output", "x", x)) return;
    size_t bytes = (size_t)neb__tensor_count(x) * neb_dtype_size(type);
    if (!b || b->bytes < bytes || (type != NEB_F32 && type != x->type)) {
        neb__tape_fail(
            t, NEB_ERR_SHAPE, "output", "%" PRId64 " values of %s as %s need %zu bytes, the buffer has %zu",
            neb__tensor_count(x), neb_dtype_name(x->type), neb_dtype_name(type), bytes, b ? b->bytes : 0);
        return;
    }
    neb__tensor_use(x);
    struct neb_copy2d c = {.src = neb__tensor_data(t, x),
                           .dst = b->data,
                           .rows = neb__tensor_rows(x),
                           .cols = neb__tensor_cols(x),
                           .ld_src = x->ld,
                           .ld_dst = neb__tensor_cols(x),
                           .src_type = x->type,
                           .dst_type = type};
    NEB_CALL(t, copy2d, &c);
}
