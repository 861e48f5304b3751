/* op_linear.c: matrix products with parameters and between activations.
 *
 * The backward of linear(x) knows whether x came out of an activation that no other op reads. It then hands
 * down the gradient of the pre-activation and adds the bias gradient of the layer below. That saves one pass
 * over the widest activations of a transformer. */
#include "tensor/fallback.h"
#include "tensor/narrow.h"
#include "tensor/partition.h"
#include "tensor/team.h"

bool neb__tape_want_param(neb_tape *t, const char *op, const char *what, const neb_param *p, int64_t rows,
                          int64_t cols)
{
    if (!neb__tape_require(t, op, what, p)) return false;
    if (p->set != t->params) {
        neb__tape_fail(t, NEB_ERR_INVALID, op, "%s '%s' belongs to another parameter set", what, p->name);
        return false;
    }
    int64_t r = p->shape[0], c = p->values / p->shape[0];
    if ((rows >= 0 && r != rows) || (cols >= 0 && c != cols)) {
        neb__tape_fail(t, NEB_ERR_SHAPE, op,
                       "%s '%s' is (%" PRId64 ", %" PRId64 "); it must be (%" PRId64 ", %" PRId64
                       "), where -1 means any",
                       what, p->name, r, c, rows, cols);
        return false;
    }
    return true;
}

/* ---- weights in few bits ------------------------------------------------------------------------------- */

/* The values of w in memory of this run, for the present call alone. */
static neb_status widened(neb_tape *t, neb_param *w, const void **out)
{
    const neb_dtype type = neb_compute_type(t);
    struct neb_widen a = {.w = neb__narrow_of(w), .rows = w->shape[0], .cols = w->shape[1], .type = type};
    a.out = neb__tape_temp(t, w->values * (int64_t)neb_dtype_size(type));
    *out = a.out;
    return NEB_CALL(t, widen, &a);
}

static bool widens(const neb_tape *t)
{
    return !t->dev->ops->linear_narrow || t->force_reference;
}

/* The product must decode the weight. */
static bool coded(const neb_tape *t, const neb_param *w)
{
    return w->narrow && !neb__param_direct(t, w);
}

static neb_status widened_linear(neb_tape *t, neb_param *w, struct neb_linear *a)
{
    NEB_TRY(widened(t, w, &a->w));
    a->scratch = neb__tape_scratch(t, NEB_SLOT_LINEAR, a);
    return NEB_FUSED(t, linear, a);
}

static neb_status widened_linear_bwd(neb_tape *t, neb_param *w, struct neb_linear_bwd *a)
{
    NEB_TRY(widened(t, w, &a->w));
    a->scratch = neb__tape_scratch(t, NEB_SLOT_LINEAR_BWD, a);
    return NEB_FUSED(t, linear_bwd, a);
}

/* The product of `a`, whose weight is set here. All calls of a composition belong to one tick. */
static neb_status call_linear(neb_tape *t, neb_param *w, struct neb_linear *a)
{
    if (coded(t, w) && widens(t)) {
        t->hold++;
        neb_status status = widened_linear(t, w, a);
        t->hold--;
        return neb__tape_called(t, status);
    }
    if (coded(t, w)) {
        struct neb_linear_narrow n = {.w = neb__narrow_of(w)};
        a->scratch = neb__tape_scratch(t, NEB_SLOT_LINEAR, a);
        n.l = *a;
        return NEB_CALL(t, linear_narrow, &n);
    }
    a->w = neb__param_working(t, w);
    a->packed = neb__packed_weight(t, w);
    a->scratch = neb__tape_scratch(t, NEB_SLOT_LINEAR, a);
    return NEB_FUSED(t, linear, a);
}

static neb_status call_linear_bwd(neb_tape *t, neb_param *w, struct neb_linear_bwd *a)
{
    if (coded(t, w) && widens(t)) {
        t->hold++;
        neb_status status = widened_linear_bwd(t, w, a);
        t->hold--;
        return neb__tape_called(t, status);
    }
    if (coded(t, w)) {
        struct neb_linear_narrow_bwd n = {.w = neb__narrow_of(w)};
        a->scratch = neb__tape_scratch(t, NEB_SLOT_LINEAR_BWD, a);
        n.l = *a;
        return NEB_CALL(t, linear_narrow_bwd, &n);
    }
    a->w = neb__param_working(t, w);
    a->scratch = neb__tape_scratch(t, NEB_SLOT_LINEAR_BWD, a);
    return NEB_FUSED(t, linear_bwd, a);
}

/* ---- linear -------------------------------------------------------------------------------------------- */

/* adds: the bias is added here; else only its gradient is computed here. */
static neb_tensor *linear(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b, neb_act act, bool adds)
{
    if (!neb__tape_want_act(t, "linear", "x", x, -1, -1) ||
        !neb__tape_want_param(t, "linear", "weight", w, -1, neb__tensor_cols(x)))
        return NULL;
    int64_t rows = neb__tensor_rows(x), out = w->shape[0];
    if (b && !neb__tape_want_param(t, "linear", "bias", b, out, 1)) return NULL;
    if ((unsigned)act > NEB_ACT_TANH) {
        neb__tape_fail(t, NEB_ERR_INVALID, "linear", "unknown activation %d", (int)act);
        return NULL;
    }
    bool train = neb__tape_wants_grad(t) && (x->root->needs_grad || w->trainable || (b && b->trainable));
    neb_tensor *y = neb__tensor_new2(t, x->type, rows, out);
    neb_tensor *pre = train && act != NEB_ACT_NONE ? neb__tensor_new2(t, x->type, rows, out) : NULL;
    if (t->failed != NEB_OK) return NULL;
    struct neb_linear a = {.x = neb__tensor_data(t, x),
                           .bias = neb__param_working(t, adds ? b : NULL),
                           .y = neb__tensor_data(t, y),
                           .pre = neb__tensor_data(t, pre),
                           .rows = rows,
                           .in = neb__tensor_cols(x),
                           .out = out,
                           .ldx = x->ld,
                           .ldy = y->ld,
                           .act = act,
                           .alpha = 1,
                           .type = x->type};
    if (!t->unread && call_linear(t, w, &a) != NEB_OK) return NULL;
    y->needs_grad = train;
    y->act = pre ? act : NEB_ACT_NONE;
    y->pre = pre;
    y->bias = pre && b && b->trainable ? b : NULL;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_linear, 1, &x, 1, &y);
    if (n) n->param[0] = w, n->param[1] = b;
    return t->failed == NEB_OK ? y : NULL;
}

neb_tensor *neb_op_linear(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b, neb_act act)
{
    return linear(t, x, w, b, act, true);
}

neb_tensor *neb__op_linear_part(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b)
{
    const struct neb_team *team = t->params ? t->params->team : NULL;
    return linear(t, x, w, b, NEB_ACT_NONE, !team || !team->rank);
}

/* x is act(x_pre) and this op is its only reader, so the op can hand down the gradient of x_pre instead of
 * x's. */
static bool passes_activation(const neb_tensor *x)
{
    return x->root == x && x->pre && x->act != NEB_ACT_NONE && x->uses == 1 && x->grad < 0;
}

static neb_status linear_gradients(neb_tape *t, struct neb_linear_bwd *a, neb_tensor *x, neb_param *w,
                                   neb_param *b)
{
    bool through = passes_activation(x);
    a->dx = neb__grad_out(t, x, &a->acc_dx);
    if (a->dx && through) {
        a->x_act = x->act;
        a->x_pre = neb__tensor_data(t, x->pre);
        a->dx_colsum = neb__param_grad(t, x->bias, &a->acc_dx_colsum);
        x->grad_is_pre = true;
    }
    a->dw = neb__param_grad(t, w, &a->acc_dw);
    a->db = neb__param_grad(t, b, &a->acc_db);
    if (t->failed != NEB_OK) return t->failed;
    if (!a->dx && !a->dw && !a->db) return NEB_OK;
    a->x = neb__tensor_data(t, x);
    a->rows = neb__tensor_rows(x);
    a->in = neb__tensor_cols(x);
    a->out = w->shape[0];
    a->ldx = a->lddx = x->ld;
    a->type = x->type;
    return call_linear_bwd(t, w, a);
}

neb_status neb__backward_linear(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *y = n->out[0];
    if (y->act != NEB_ACT_NONE && !y->grad_is_pre) {
        struct neb_act_args a = {.x = neb__tensor_data(t, y->pre),
                                 .dy = neb__grad_own(t, y),
                                 .n = neb__tensor_count(y),
                                 .act = y->act,
                                 .type = y->type};
        a.dx = neb__tensor_grad(t, y);
        if (t->failed != NEB_OK) return t->failed;
        NEB_TRY(NEB_CALL(t, act_bwd, &a));
    }
    struct neb_linear_bwd a = {.g = neb__tensor_grad(t, y), .ldg = y->ld, .alpha = 1};
    return linear_gradients(t, &a, x, n->param[0], y->grad_is_pre ? NULL : n->param[1]);
}

neb_tensor *neb_op_linear_onto(neb_tape *t, neb_tensor *y, neb_tensor *x, neb_param *w, float alpha)
{
    if (!neb__tape_want_act(t, "linear_onto", "x", x, -1, -1) ||
        !neb__tape_want_param(t, "linear_onto", "weight", w, -1, neb__tensor_cols(x)) ||
        !neb__tape_want_act(t, "linear_onto", "y", y, neb__tensor_rows(x), w->shape[0]))
        return NULL;
    if (y->uses || y->act != NEB_ACT_NONE) {
        neb__tape_fail(t, NEB_ERR_INVALID, "linear_onto",
                       "y must have no other reader and must not come from an activation");
        return NULL;
    }
    neb_tensor *z = neb__tensor_alias(t, y);
    if (!z) return NULL;
    struct neb_linear a = {.x = neb__tensor_data(t, x),
                           .y = neb__tensor_data(t, y),
                           .rows = neb__tensor_rows(x),
                           .in = neb__tensor_cols(x),
                           .out = w->shape[0],
                           .ldx = x->ld,
                           .ldy = y->ld,
                           .acc_y = 1,
                           .alpha = alpha,
                           .type = x->type};
    if (!t->unread && call_linear(t, w, &a) != NEB_OK) return NULL;
    if (neb__tape_wants_grad(t) && w->trainable) z->root->needs_grad = true;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_linear_onto, 2, (neb_tensor *[]){x, y}, 1, &z);
    if (n) n->param[0] = w, n->f[0] = alpha;
    return t->failed == NEB_OK ? z : NULL;
}

neb_status neb__backward_linear_onto(neb_tape *t, struct neb_node *n)
{
    struct neb_linear_bwd a = {.g = neb__tensor_grad(t, n->out[0]), .ldg = n->out[0]->ld, .alpha = n->f[0]};
    return linear_gradients(t, &a, n->in[0], n->param[0], NULL);
}

/* ---- between activations ------------------------------------------------------------------------------- */

neb_tensor *neb_op_matmul(neb_tape *t, neb_tensor *a, neb_tensor *b, bool trans_b)
{
    if (!neb__tape_want_act(t, "matmul", "a", a, -1, -1) ||
        !neb__tape_want_act(t, "matmul", "b", b, trans_b ? -1 : neb__tensor_cols(a),
                            trans_b ? neb__tensor_cols(a) : -1))
        return NULL;
    int64_t m = neb__tensor_rows(a), k = neb__tensor_cols(a),
            n = trans_b ? neb__tensor_rows(b) : neb__tensor_cols(b);
    neb_tensor *c = neb__tensor_new2(t, a->type, m, n);
    if (!c) return NULL;
    struct neb_gemm g = {.a = neb__tensor_data(t, a),
                         .b = neb__tensor_data(t, b),
                         .c = neb__tensor_data(t, c),
                         .m = m,
                         .n = n,
                         .k = k,
                         .lda = a->ld,
                         .ldb = b->ld,
                         .ldc = c->ld,
                         .batch = 1,
                         .trans_b = trans_b,
                         .alpha = 1,
                         .type = a->type,
                         .c_type = a->type};
    if (NEB_CALL(t, gemm, &g) != NEB_OK) return NULL;
    struct neb_node *node = neb__tape_record(t, NEB_OPCODE_matmul, 2, (neb_tensor *[]){a, b}, 1, &c);
    if (node) node->flag[0] = trans_b;
    return t->failed == NEB_OK ? c : NULL;
}

neb_status neb__backward_matmul(neb_tape *t, struct neb_node *node)
{
    neb_tensor *a = node->in[0], *b = node->in[1], *c = node->out[0];
    bool trans_b = node->flag[0];
    int64_t m = neb__tensor_rows(a), k = neb__tensor_cols(a), n = neb__tensor_cols(c);
    int acc;
    void *da = neb__grad_out(t, a, &acc);
    if (da) { /* da = dc b^T */
        struct neb_gemm g = {.a = neb__tensor_grad(t, c),
                             .b = neb__tensor_data(t, b),
                             .c = da,
                             .m = m,
                             .n = k,
                             .k = n,
                             .lda = c->ld,
                             .ldb = b->ld,
                             .ldc = a->ld,
                             .batch = 1,
                             .trans_b = !trans_b,
                             .alpha = 1,
                             .beta = (float)acc,
                             .type = a->type,
                             .c_type = a->type};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    }
    void *db = neb__grad_out(t, b, &acc);
    if (db && trans_b) { /* db (n, k) = dc^T a */
        struct neb_gemm g = {.a = neb__tensor_grad(t, c),
                             .b = neb__tensor_data(t, a),
                             .c = db,
                             .m = n,
                             .n = k,
                             .k = m,
                             .lda = c->ld,
                             .ldb = a->ld,
                             .ldc = b->ld,
                             .batch = 1,
                             .trans_a = 1,
                             .alpha = 1,
                             .beta = (float)acc,
                             .type = a->type,
                             .c_type = a->type};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    } else if (db) { /* db (k, n) = a^T dc */
        struct neb_gemm g = {.a = neb__tensor_data(t, a),
                             .b = neb__tensor_grad(t, c),
                             .c = db,
                             .m = k,
                             .n = n,
                             .k = m,
                             .lda = a->ld,
                             .ldb = c->ld,
                             .ldc = b->ld,
                             .batch = 1,
                             .trans_a = 1,
                             .alpha = 1,
                             .beta = (float)acc,
                             .type = a->type,
                             .c_type = a->type};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    }
    return t->failed;
}

/* ---- parameters as tensors ----------------------------------------------------------------------------- */

neb_tensor *neb_weight(neb_tape *t, neb_param *p)
{
    if (!neb__tape_want_param(t, "weight", "parameter", p, -1, -1)) return NULL;
    neb_tensor *x = neb__tensor_fixed(t, neb_compute_type(t), p->ndim, p->shape, neb__param_working(t, p));
    if (!x) return NULL;
    if (neb__partition_of_values(t->params)) { /* its memory lives as long as this tensor is read */
        int64_t offset;
        x->alloc = neb__partition_gather(t, p, &offset);
        x->offset = (size_t)offset * neb__partition_width(t->params);
    }
    x->needs_grad = neb__tape_wants_grad(t) && p->trainable;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_weight, 0, NULL, 1, &x);
    if (n) n->param[0] = p;
    return t->failed == NEB_OK ? x : NULL;
}

/* The gradient was collected in the arena; the slab gets it once. */
neb_status neb__backward_weight(neb_tape *t, struct neb_node *n)
{
    int acc;
    neb_tensor *x = n->out[0];
    float *to = neb__param_grad(t, n->param[0], &acc);
    const void *from = neb__tensor_grad(t, x);
    int64_t count = neb__tensor_count(x);
    if (x->type != NEB_F32) {
        float *wide = neb__tape_temp(t, count * (int64_t)sizeof(float));
        struct neb_copy2d c = {.src = from,
                               .dst = wide,
                               .rows = 1,
                               .cols = count,
                               .ld_src = count,
                               .ld_dst = count,
                               .src_type = x->type,
                               .dst_type = NEB_F32};
        t->hold++;
        NEB_TRY(NEB_CALL(t, copy2d, &c));
        t->hold--;
        from = wide;
    }
    struct neb_axpby a = {.x = from, .y = to, .n = count, .a = 1, .b = (float)acc, .type = NEB_F32};
    return NEB_CALL(t, axpby, &a);
}
