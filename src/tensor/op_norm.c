/* op_norm.c: norms, residual sums and dropout.
 *
 * One node covers s = residual + dropout(x), y = norm(s) and every variant that leaves parts out. Its
 * backward overwrites the gradient that reached s another way with the whole gradient of s. It hands that one
 * allocation to the residual and, without dropout, to x as well. */
#include "tensor/fallback.h"

#include <math.h>

struct neb_dropout neb__dropout_spec(neb_tape *t, float p, uint32_t op, neb_tensor *sample,
                                     neb_tensor *position)
{
    struct neb_dropout d = {0};
    if (p <= 0 || !neb_is_training(t)) return d;
    d.threshold = (uint32_t)lrintf(p * 65536.0f);
    if (!d.threshold) return d;
    d.op = op;
    d.sample = neb__tensor_data(t, sample);
    d.position = neb__tensor_data(t, position);
    d.ctl = t->ctl;
    return d;
}

static bool dropout_possible(neb_tape *t, const char *op, float p, int64_t rows)
{
    if (!(p >= 0) || p > 0.99f) {
        neb__tape_fail(t, NEB_ERR_RANGE, op, "dropout %g is not between 0 and 0.99", (double)p);
        return false;
    }
    if (p == 0 || !neb_is_training(t)) return true;
    if (!t->row_sample || neb__tensor_rows(t->row_sample) != rows) {
        neb__tape_fail(t, NEB_ERR_STATE, op,
                       "dropout over %" PRId64
                       " rows needs neb_set_rows() with as many rows (it was given %" PRId64 ")",
                       rows, t->row_sample ? neb__tensor_rows(t->row_sample) : 0);
        return false;
    }
    return true;
}

enum { IN_X, IN_RESIDUAL, IN_SAMPLE, IN_POSITION, INS };
enum { OUT_Y, OUT_S, OUTS };

static bool norm_args_fit(neb_tape *t, const char *op, neb_tensor *x, neb_tensor *residual, neb_param *gamma,
                          neb_param *beta, bool norm)
{
    if (!neb__tape_want_act(t, op, "x", x, -1, -1)) return false;
    if (residual &&
        !neb__tape_want_act(t, op, "residual", residual, neb__tensor_rows(x), neb__tensor_cols(x)))
        return false;
    if (norm && !neb__tape_want_param(t, op, "gamma", gamma, neb__tensor_cols(x), 1)) return false;
    if (beta && !neb__tape_want_param(t, op, "beta", beta, neb__tensor_cols(x), 1)) return false;
    if (!neb__tensor_contiguous(x) || (residual && !neb__tensor_contiguous(residual))) {
        neb__tape_fail(t, NEB_ERR_SHAPE, op,
                       "an input is a column view; make it contiguous first (neb_op_copy)");
        return false;
    }
    return true;
}

struct norm_spec {
    const char *op;
    neb_tensor *x, *residual;
    neb_param *gamma, *beta;
    neb_norm_kind kind;
    float eps, p;
    bool norm;
};

static neb_tensor *norm_forward(neb_tape *t, const struct norm_spec *c, neb_tensor **s_out)
{
    if (!norm_args_fit(t, c->op, c->x, c->residual, c->gamma, c->beta, c->norm)) return NULL;
    int64_t rows = neb__tensor_rows(c->x), d = neb__tensor_cols(c->x);
    if (c->residual && !dropout_possible(t, c->op, c->p, rows)) return NULL;
    uint32_t drop_op = c->residual && c->p > 0 ? neb__tape_drop_op(t) : 0;
    neb_tensor *y = c->norm ? neb__tensor_new2(t, c->x->type, rows, d) : NULL;
    neb_tensor *s = c->residual ? neb__tensor_new2(t, c->x->type, rows, d) : NULL;
    neb_tensor *mean = c->norm && c->kind == NEB_NORM_LAYER ? neb__tensor_new1(t, NEB_F32, rows) : NULL;
    neb_tensor *rstd = c->norm ? neb__tensor_new1(t, NEB_F32, rows) : NULL;
    if (t->failed != NEB_OK) return NULL;
    struct neb_norm a = {.kind = c->kind,
                         .x = neb__tensor_data(t, c->x),
                         .residual = neb__tensor_data(t, c->residual),
                         .gamma = neb__param_master(t, c->gamma),
                         .beta = neb__param_master(t, c->beta),
                         .s = neb__tensor_data(t, s),
                         .y = neb__tensor_data(t, y),
                         .mean = neb__tensor_data(t, mean),
                         .rstd = neb__tensor_data(t, rstd),
                         .rows = rows,
                         .d = d,
                         .eps = c->eps,
                         .type = c->x->type};
    if (c->residual) a.drop = neb__dropout_spec(t, c->p, drop_op, t->row_sample, t->row_position);
    neb_status status = NEB_OK;
    if (!t->unread || c->norm) status = c->residual ? NEB_FUSED(t, norm_residual, &a) : NEB_CALL(t, norm, &a);
    if (status != NEB_OK) return NULL;

    bool trained = (c->gamma && c->gamma->trainable) || (c->beta && c->beta->trainable);
    if (neb__tape_wants_grad(t) && trained && y) y->needs_grad = true;
    bool drops = a.drop.threshold != 0;
    neb_tensor *in[INS] = {c->x, c->residual, drops ? t->row_sample : NULL, drops ? t->row_position : NULL};
    neb_tensor *out[OUTS] = {y, s};
    struct neb_node *n =
        neb__tape_record(t, c->norm ? NEB_OPCODE_norm : NEB_OPCODE_residual, INS, in, OUTS, out);
    if (n) {
        n->saved[0] = mean, n->saved[1] = rstd;
        n->param[0] = c->gamma, n->param[1] = c->beta;
        n->i[0] = c->kind, n->f[0] = c->p, n->drop_op = drop_op;
    }
    if (t->failed != NEB_OK) return NULL;
    if (s_out) *s_out = s;
    return c->norm ? y : s;
}

neb_tensor *neb_op_norm(neb_tape *t, neb_tensor *x, neb_param *gamma, neb_param *beta, neb_norm_kind kind,
                        float eps)
{
    struct norm_spec c = {"norm", x, NULL, gamma, beta, kind, eps, 0, true};
    return norm_forward(t, &c, NULL);
}

neb_tensor *neb_op_norm_residual(neb_tape *t, neb_tensor *x, neb_tensor *residual, neb_param *gamma,
                                 neb_param *beta, neb_norm_kind kind, float eps, float p, neb_tensor **s_out)
{
    struct norm_spec c = {"norm_residual", x, residual, gamma, beta, kind, eps, p, true};
    if (s_out) *s_out = NULL;
    return neb__tape_require(t, c.op, "residual", residual) ? norm_forward(t, &c, s_out) : NULL;
}

neb_tensor *neb_op_residual(neb_tape *t, neb_tensor *x, neb_tensor *residual, float p)
{
    struct norm_spec c = {"residual", x, residual, NULL, NULL, NEB_NORM_LAYER, 0, p, false};
    return neb__tape_require(t, c.op, "residual", residual) ? norm_forward(t, &c, NULL) : NULL;
}

neb_tensor *neb_op_add(neb_tape *t, neb_tensor *a, neb_tensor *b)
{
    return neb_op_residual(t, a, b, 0);
}

/* The part of the backward that a plain norm and a residual norm share. */
static struct neb_norm_bwd norm_bwd_args(neb_tape *t, struct neb_node *n, neb_tensor *s)
{
    struct neb_norm_bwd a = {.kind = (neb_norm_kind)n->i[0],
                             .s = neb__tensor_data(t, s),
                             .dy = neb__tensor_grad(t, n->out[OUT_Y]),
                             .gamma = neb__param_master(t, n->param[0]),
                             .mean = neb__tensor_data(t, n->saved[0]),
                             .rstd = neb__tensor_data(t, n->saved[1]),
                             .rows = neb__tensor_rows(s),
                             .d = neb__tensor_cols(s),
                             .type = s->type};
    if (a.dy) {
        a.dgamma = neb__param_grad(t, n->param[0], &a.acc_dgamma);
        a.dbeta = neb__param_grad(t, n->param[1], &a.acc_dbeta);
    }
    return a;
}

static neb_status plain_norm_bwd(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[IN_X];
    struct neb_norm_bwd a = norm_bwd_args(t, n, x);
    int acc = 0;
    a.ds = neb__grad_out(t, x, &acc);
    if (!a.ds)
        a.ds = neb__tape_temp(t, neb__tensor_count(x) *
                                     (int64_t)neb_dtype_size(x->type)); /* only gamma, beta train */
    if (acc) a.ds_in = a.ds;
    a.scratch = neb__tape_scratch(t, NEB_SLOT_NORM_BWD, &a);
    if (t->failed != NEB_OK) return t->failed;
    return a.ds_in ? NEB_FUSED(t, norm_residual_bwd, &a) : NEB_CALL(t, norm_bwd, &a);
}

neb_status neb__backward_norm(neb_tape *t, struct neb_node *n)
{
    if (!n->in[IN_RESIDUAL]) return plain_norm_bwd(t, n);
    neb_tensor *x = n->in[IN_X], *residual = n->in[IN_RESIDUAL], *s = n->out[OUT_S];
    bool drops = n->in[IN_SAMPLE] != NULL;
    struct neb_norm_bwd a = norm_bwd_args(t, n, s);
    if (s->grad >= 0) {
        a.ds_in = a.ds = a.dy || drops ? neb__grad_own(t, s) : neb__tensor_grad(t, s);
    } else {
        a.ds = neb__grad_new(t, s);
    }
    if (drops) {
        a.drop = neb__dropout_spec(t, n->f[0], n->drop_op, n->in[IN_SAMPLE], n->in[IN_POSITION]);
        a.dx = neb__grad_out(t, x, &a.acc_dx);
    }
    if (a.dy || a.dx) {
        a.scratch = neb__tape_scratch(t, NEB_SLOT_NORM_BWD, &a);
        if (t->failed != NEB_OK) return t->failed;
        NEB_TRY(NEB_FUSED(t, norm_residual_bwd, &a));
    }
    if (!drops) NEB_TRY(neb__grad_share(t, x, s));
    return neb__grad_share(t, residual, s);
}

neb_status neb__backward_residual(neb_tape *t, struct neb_node *n)
{
    return neb__backward_norm(t, n);
}

/* ---- dropout alone ------------------------------------------------------------------------------------- */

neb_tensor *neb_op_dropout(neb_tape *t, neb_tensor *x, float p)
{
    if (!neb__tape_want_act(t, "dropout", "x", x, -1, -1) ||
        !dropout_possible(t, "dropout", p, neb__tensor_rows(x)))
        return NULL;
    uint32_t op = p > 0 ? neb__tape_drop_op(t) : 0;
    if (p == 0 || !neb_is_training(t)) return x;
    neb_tensor *y = neb__tensor_new2(t, x->type, neb__tensor_rows(x), neb__tensor_cols(x));
    if (!y) return NULL;
    struct neb_dropout_args a = {.x = neb__tensor_data(t, x),
                                 .y = neb__tensor_data(t, y),
                                 .rows = neb__tensor_rows(x),
                                 .cols = neb__tensor_cols(x),
                                 .type = x->type,
                                 .drop = neb__dropout_spec(t, p, op, t->row_sample, t->row_position)};
    if (NEB_CALL(t, dropout, &a) != NEB_OK) return NULL;
    neb_tensor *in[] = {x, t->row_sample, t->row_position};
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_dropout, 3, in, 1, &y);
    if (n) n->f[0] = p, n->drop_op = op;
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_dropout(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0];
    struct neb_dropout_args a = {.x = neb__tensor_grad(t, n->out[0]),
                                 .rows = neb__tensor_rows(x),
                                 .cols = neb__tensor_cols(x),
                                 .type = x->type,
                                 .drop = neb__dropout_spec(t, n->f[0], n->drop_op, n->in[1], n->in[2])};
    a.y = neb__grad_out(t, x, &a.acc);
    return a.y ? NEB_CALL(t, dropout, &a) : t->failed;
}
