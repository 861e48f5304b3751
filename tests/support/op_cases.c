/* op_cases.c: the models, one or more for every op. */
#include "op_cases.h"
#include "check.h"

#include <stdio.h>
#include <string.h>

const struct shape op_shapes[OP_SHAPES] = {{1, 2, 1, 1}, {7, 10, 5, 1}, {19, 48, 33, 3}, {33, 64, 70, 4}};

/* ---- building blocks ----------------------------------------------------------------------------------------- */

static neb_param *add(struct fixture *f, int64_t rows, int64_t cols)
{
    char name[16];
    snprintf(name, sizeof name, "p%d", f->n_params);
    struct neb_param_spec s = {
        .name = name, .ndim = cols ? 2 : 1, .shape = {rows, cols}, .init = NEB_INIT_NORMAL, .scale = 0.7f};
    neb_param *p = neb_params_add(f->ps, &s);
    assert_non_null(p);
    f->p[f->n_params++] = p;
    return p;
}

neb_tensor *op_ints(neb_tape *t, neb_buffer *b, int64_t n)
{
    return neb_input(t, b, NEB_I32, 1, &n);
}

static struct neb_seqs seqs(neb_tape *t, struct fixture *f, bool keys)
{
    return (struct neb_seqs){.starts = op_ints(t, keys ? f->starts_k : f->starts, f->seqs + 1),
                             .sample = op_ints(t, f->seq_sample, f->seqs),
                             .count = f->seqs,
                             .max_len = MAX_ROWS};
}

/* A loss whose gradient is different for every element: the distance to a fixed random tensor. */
void op_finish(neb_tape *t, struct fixture *f, neb_tensor *y)
{
    int64_t shape[4];
    int n = neb_tensor_shape(y, shape);
    if (!n) return;
    int64_t cols = n == 1 ? 1 : shape[1];
    neb_tensor *c = neb_input(t, f->fixed, NEB_F32, 2, (int64_t[]){shape[0], cols});
    struct neb_loss_spec loss = {.weight = neb_input(t, f->weight, NEB_F32, 1, shape), .scale = 1.5f};
    neb_loss_mse(t, y, c, &loss);
}

static void rows(neb_tape *t, struct fixture *f)
{
    neb_set_rows(t, op_ints(t, f->sample, f->s.rows), op_ints(t, f->position, f->s.rows));
}

#define X    neb_weight(t, f->p[0])
#define P(n) f->p[n]

/* ---- the cases ----------------------------------------------------------------------------------------------- */

static void one(struct fixture *f)
{
    add(f, f->s.rows, f->s.d);
}
static void two(struct fixture *f)
{
    one(f), one(f);
}

static void p_embed(struct fixture *f)
{
    add(f, 11, f->s.d), add(f, MAX_ROWS, f->s.d), add(f, 3, f->s.d);
}
static void m_embed(neb_tape *t, struct fixture *f)
{
    neb_tensor *ids[] = {op_ints(t, f->ids, f->s.rows), op_ints(t, f->position, f->s.rows),
                         op_ints(t, f->ids2, f->s.rows)};
    op_finish(t, f, neb_op_embed(t, 3, f->p, ids, 1.7f));
}

static void p_linear(struct fixture *f)
{
    one(f), add(f, f->s.out, f->s.d), add(f, f->s.out, 0);
}
#define LINEAR(name, activation)                                      \
    static void m_linear_##name(neb_tape *t, struct fixture *f)       \
    {                                                                 \
        op_finish(t, f, neb_op_linear(t, X, P(1), P(2), activation)); \
    }
LINEAR(none, NEB_ACT_NONE)
LINEAR(gelu, NEB_ACT_GELU)
LINEAR(tanh_gelu, NEB_ACT_GELU_TANH)
LINEAR(silu, NEB_ACT_SILU)
LINEAR(tanh, NEB_ACT_TANH)

static void m_linear_view(neb_tape *t, struct fixture *f)
{
    /* x and a later reader are column views, with rows further apart than wide */
    neb_tensor *h =
        neb_op_linear(t, neb_op_columns(t, neb_weight(t, P(0)), 1, f->s.d), P(1), P(2), NEB_ACT_NONE);
    op_finish(t, f, h);
}
static void p_linear_view(struct fixture *f)
{
    add(f, f->s.rows, f->s.d + 2), add(f, f->s.out, f->s.d), add(f, f->s.out, 0);
}

static void p_ffn(struct fixture *f)
{
    one(f), add(f, f->s.out, f->s.d), add(f, f->s.out, 0), add(f, f->s.d, f->s.out), add(f, f->s.d, 0);
}
static void m_ffn(neb_tape *t,
                  struct fixture *f) /* the second layer's backward passes the first's activation */
{
    neb_tensor *h = neb_op_linear(t, X, P(1), P(2), NEB_ACT_GELU);
    op_finish(t, f, neb_op_linear(t, h, P(3), P(4), NEB_ACT_NONE));
}
static void m_ffn_shared(neb_tape *t, struct fixture *f) /* h has two readers: no short cut */
{
    neb_tensor *h = neb_op_linear(t, X, P(1), P(2), NEB_ACT_SILU);
    neb_tensor *y = neb_op_linear(t, h, P(3), P(4), NEB_ACT_NONE);
    neb_tensor *z = neb_op_linear(t, h, P(3), NULL, NEB_ACT_NONE);
    op_finish(t, f, neb_op_add(t, y, neb_op_add(t, z, X)));
}

static void m_lora(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X;
    neb_tensor *y = neb_op_linear(t, x, P(1), P(2), NEB_ACT_NONE);
    neb_tensor *low = neb_op_linear(t, x, P(3), NULL, NEB_ACT_NONE);
    op_finish(t, f, neb_op_act(t, neb_op_linear_onto(t, y, low, P(4), 0.5f), NEB_ACT_GELU));
}
static void p_lora(struct fixture *f)
{
    p_linear(f), add(f, 3, f->s.d), add(f, f->s.out, 3);
}

static void p_matmul(struct fixture *f)
{
    one(f), add(f, f->s.d, f->s.out), add(f, f->s.rows, f->s.out);
}
static void m_matmul(neb_tape *t, struct fixture *f)
{
    neb_tensor *c = neb_op_matmul(t, X, neb_weight(t, P(1)), false); /* (rows, out) */
    op_finish(t, f, neb_op_matmul(t, c, neb_weight(t, P(2)), true)); /* (rows, rows) */
}

static void p_norm(struct fixture *f)
{
    two(f), add(f, f->s.d, 0), add(f, f->s.d, 0);
}
static void m_layer_norm(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_norm(t, X, P(2), P(3), NEB_NORM_LAYER, 1e-5f));
}
static void m_rms_norm(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X, *y = neb_op_norm(t, x, P(2), NULL, NEB_NORM_RMS, 1e-5f);
    op_finish(t, f, neb_op_add(t, y, x)); /* x has a gradient already when the norm's comes */
}
static void m_norm_residual(neb_tape *t, struct fixture *f)
{
    neb_tensor *s;
    neb_tensor *y = neb_op_norm_residual(t, X, neb_weight(t, P(1)), P(2), P(3), NEB_NORM_LAYER, 1e-5f, 0, &s);
    op_finish(t, f, neb_op_mul(t, y, s));
}
static void m_norm_residual_drop(neb_tape *t, struct fixture *f)
{
    rows(t, f);
    neb_tensor *s, *x = X;
    neb_tensor *y =
        neb_op_norm_residual(t, x, neb_weight(t, P(1)), P(2), P(3), NEB_NORM_RMS, 1e-5f, 0.3f, &s);
    op_finish(t, f, neb_op_add(t, neb_op_residual(t, y, s, 0.2f), x));
}
static void m_post_norm(neb_tape *t, struct fixture *f) /* y is residual and branch at once */
{
    neb_tensor *y =
        neb_op_norm_residual(t, X, neb_weight(t, P(1)), P(2), P(3), NEB_NORM_LAYER, 1e-5f, 0, NULL);
    neb_tensor *branch = neb_op_act(t, y, NEB_ACT_TANH);
    op_finish(t, f, neb_op_norm_residual(t, branch, y, P(2), P(3), NEB_NORM_LAYER, 1e-5f, 0, NULL));
}
static void m_same_residual(neb_tape *t, struct fixture *f) /* one tensor on both sides of the sum */
{
    neb_tensor *x = neb_op_scale(t, X, 0.5f);
    op_finish(t, f, neb_op_residual(t, x, x, 0));
}

static void m_dropout(neb_tape *t, struct fixture *f)
{
    rows(t, f);
    op_finish(t, f, neb_op_dropout(t, X, 0.4f));
}
static void m_mul(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X;
    op_finish(t, f, neb_op_scale(t, neb_op_mul(t, neb_op_mul(t, x, neb_weight(t, P(1))), x), -1.3f));
}
#define ACT(name, activation)                                            \
    static void m_act_##name(neb_tape *t, struct fixture *f)             \
    {                                                                    \
        neb_tensor *x = X;                                               \
        op_finish(t, f, neb_op_add(t, neb_op_act(t, x, activation), x)); \
    }
ACT(gelu, NEB_ACT_GELU)
ACT(gelu_tanh, NEB_ACT_GELU_TANH)
ACT(silu, NEB_ACT_SILU)
ACT(tanh, NEB_ACT_TANH)

static void p_swiglu(struct fixture *f)
{
    add(f, f->s.rows, 2 * f->s.d);
}
static void m_swiglu(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_swiglu(t, X));
}

static void m_views(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X, *flat = neb_op_reshape(t, x, 1, (int64_t[]){f->s.rows * f->s.d});
    neb_tensor *back = neb_op_reshape(t, flat, 2, (int64_t[]){f->s.rows, f->s.d});
    neb_tensor *last = neb_op_rows_of(t, back, f->s.rows - 1, 1), *first = neb_op_rows_of(t, x, 0, 1);
    op_finish(t, f, neb_op_add(t, neb_op_scale(t, last, 2), neb_op_add(t, first, last)));
}
static void m_rows_select(neb_tape *t, struct fixture *f)
{
    int64_t n = f->s.rows;
    neb_tensor *index = op_ints(t, f->ids2, n); /* distinct or out of range */
    neb_tensor *x = X, *g = neb_op_gather(t, x, index);
    neb_tensor *s = neb_op_scatter(t, g, index, n + 3);
    op_finish(t, f, neb_op_add(t, neb_op_rows_of(t, s, 0, n), x));
}
static void m_pool(neb_tape *t, struct fixture *f)
{
    struct neb_seqs q = seqs(t, f, false);
    neb_tensor *x = X;
    neb_tensor *y = neb_op_mean_pool(t, x, &q);
    op_finish(t, f, neb_op_matmul(t, x, y, true));
}

static void p_attention(struct fixture *f)
{
    add(f, f->s.rows, 3 * f->s.d);
}
static struct neb_attention self_attention(neb_tape *t, struct fixture *f, neb_tensor *qkv)
{
    int64_t d = f->s.d;
    return (struct neb_attention){.q = neb_op_columns(t, qkv, 0, d),
                                  .k = neb_op_columns(t, qkv, d, d),
                                  .v = neb_op_columns(t, qkv, 2 * d, d),
                                  .q_seqs = seqs(t, f, false),
                                  .k_seqs = seqs(t, f, false),
                                  .heads = f->s.heads};
}
static void m_attention(neb_tape *t, struct fixture *f)
{
    struct neb_attention a = self_attention(t, f, X);
    op_finish(t, f, neb_op_attention(t, &a));
}
static void m_attention_causal(neb_tape *t, struct fixture *f)
{
    struct neb_attention a = self_attention(t, f, neb_op_scale(t, X, 1.1f));
    a.causal = true;
    op_finish(t, f, neb_op_attention(t, &a));
}
static void m_attention_drop(neb_tape *t, struct fixture *f)
{
    struct neb_attention a = self_attention(t, f, X);
    a.dropout = 0.25f;
    a.scale = 0.3f;
    op_finish(t, f, neb_op_attention(t, &a));
}
static void p_cross(struct fixture *f)
{
    one(f), add(f, f->k_rows, f->s.d), add(f, f->k_rows, f->s.d);
}
static void m_cross(neb_tape *t, struct fixture *f)
{
    struct neb_attention a = {.q = X,
                              .k = neb_weight(t, P(1)),
                              .v = neb_weight(t, P(2)),
                              .q_seqs = seqs(t, f, false),
                              .k_seqs = seqs(t, f, true),
                              .heads = f->s.heads};
    op_finish(t, f, neb_op_add(t, neb_op_attention(t, &a), a.q));
}
static void p_grouped(struct fixture *f)
{
    one(f), add(f, f->s.rows, 2 * (f->s.d / f->s.heads));
}
static void m_grouped_rope(neb_tape *t,
                           struct fixture *f) /* one key head for all, rotary positions, causal */
{
    int64_t hd = f->s.d / f->s.heads;
    neb_tensor *position = op_ints(t, f->position, f->s.rows), *kv = neb_op_scale(t, neb_weight(t, P(1)), 1);
    struct neb_attention a = {.q = neb_op_rope(t, neb_op_scale(t, X, 1), position, f->s.heads, 10000),
                              .k = neb_op_rope(t, neb_op_columns(t, kv, 0, hd), position, 1, 10000),
                              .v = neb_op_columns(t, kv, hd, hd),
                              .q_seqs = seqs(t, f, false),
                              .k_seqs = seqs(t, f, false),
                              .heads = f->s.heads,
                              .kv_heads = 1,
                              .causal = true};
    op_finish(t, f, neb_op_attention(t, &a));
}

static neb_tensor *block(neb_tape *t, void *arg, neb_tensor *x)
{
    struct fixture *f = arg;
    neb_push(t, "block");
    neb_tensor *h = neb_op_linear(t, x, P(1), P(2), NEB_ACT_GELU);
    neb_tensor *y = neb_op_residual(t, neb_op_linear(t, h, P(3), P(4), NEB_ACT_NONE), x, 0.1f);
    neb_pop(t);
    return y;
}
static void m_recompute(neb_tape *t, struct fixture *f)
{
    rows(t, f);
    neb_tensor *x = neb_op_recompute(t, block, f, neb_op_scale(t, X, 1));
    op_finish(t, f, neb_op_recompute(t, block, f, x));
}
static void m_no_recompute(neb_tape *t, struct fixture *f)
{
    rows(t, f);
    op_finish(t, f, block(t, f, block(t, f, neb_op_scale(t, X, 1))));
}

static struct neb_target_spec classes(neb_tape *t, struct fixture *f)
{
    return (struct neb_target_spec){.target = op_ints(t, f->target, f->s.rows), .smoothing = 0.1f};
}
static struct neb_loss_spec weighted(neb_tape *t, struct fixture *f)
{
    return (struct neb_loss_spec){
        .weight = neb_input(t, f->weight, NEB_F32, 1, &f->s.rows), .scale = 0.7f, .slot = 3};
}
static void m_linear_xent(neb_tape *t, struct fixture *f)
{
    struct neb_target_spec c = classes(t, f);
    struct neb_loss_spec l = weighted(t, f);
    neb_loss_linear_xent(t, X, P(1), P(2), &c, &l);
}
static void m_linear_xent_kd(neb_tape *t, struct fixture *f)
{
    struct neb_target_spec c = classes(t, f);
    int64_t k = f->s.out < 4 ? f->s.out : 4, n = f->s.rows;
    c.ce = 0.5f, c.kd = 0.8f, c.temperature = 2;
    c.teacher_ids = neb_input(t, f->ids2, NEB_I32, 2, (int64_t[]){n, k});
    c.teacher_logits = neb_input(t, f->logits, NEB_F32, 2, (int64_t[]){n, k});
    struct neb_loss_spec l = weighted(t, f);
    neb_loss_linear_xent(t, neb_op_scale(t, X, 2), P(1), P(2), &c, &l);
}
static void m_xent_dense_kd(neb_tape *t, struct fixture *f)
{
    struct neb_target_spec c = classes(t, f);
    c.kd = 0.8f, c.temperature = 1.5f;
    c.teacher_logits = neb_input(t, f->logits, NEB_F32, 2, (int64_t[]){f->s.rows, f->s.out});
    struct neb_loss_spec l = weighted(t, f);
    neb_loss_xent(t, neb_op_linear(t, X, P(1), P(2), NEB_ACT_NONE), &c, &l);
}
/* Only a device that knows it is asked (test_ops: the CPU). */
static void judged(neb_tape *t, struct fixture *f, float beta)
{
    struct neb_target_spec c = classes(t, f);
    int64_t k = f->s.out < 4 ? f->s.out : 4, n = f->s.rows;
    c.kd = 0.8f, c.judged = true, c.beta = beta;
    c.teacher_ids = neb_input(t, f->ids2, NEB_I32, 2, (int64_t[]){n, k});
    c.teacher_logits = neb_input(t, f->logits, NEB_F32, 2, (int64_t[]){n, k});
    struct neb_loss_spec l = weighted(t, f);
    neb_loss_linear_xent(t, neb_op_scale(t, X, 2), P(1), P(2), &c, &l);
}
static void m_judged_forward(neb_tape *t, struct fixture *f)
{
    judged(t, f, 0);
}
static void m_judged_half(neb_tape *t, struct fixture *f)
{
    judged(t, f, 0.5f);
}
static void m_judged_reverse(neb_tape *t, struct fixture *f)
{
    judged(t, f, 1);
}
static void m_tied(neb_tape *t, struct fixture *f) /* one table embeds and predicts */
{
    struct neb_target_spec c = classes(t, f);
    struct neb_loss_spec l = {0};
    neb_tensor *ids = op_ints(t, f->ids, f->s.rows), *x = neb_op_embed(t, 1, &P(1), &ids, 1);
    neb_loss_linear_xent(t, neb_op_add(t, x, X), P(1), NULL, &c, &l);
    op_finish(t, f, neb_op_mul(t, x, X));
}
static void p_column(struct fixture *f)
{
    add(f, f->s.rows, 1);
}
static void m_bce(neb_tape *t, struct fixture *f)
{
    struct neb_loss_spec l = weighted(t, f);
    neb_tensor *x = X;
    neb_loss_bce(t, x, op_ints(t, f->target, f->s.rows), &l);
    op_finish(t, f, x);
}
static void m_cosine(neb_tape *t, struct fixture *f)
{
    struct neb_loss_spec l = weighted(t, f);
    neb_tensor *x = X, *y = neb_weight(t, P(1));
    neb_loss_cosine(t, x, y, &l);
    neb_loss_mse(t, y, x, &l);
}

const struct kase op_cases[OP_CASES] = {
    {"embed", p_embed, m_embed},
    {"linear", p_linear, m_linear_none},
    {"linear gelu", p_linear, m_linear_gelu},
    {"linear gelu tanh", p_linear, m_linear_tanh_gelu},
    {"linear silu", p_linear, m_linear_silu},
    {"linear tanh", p_linear, m_linear_tanh},
    {"linear of a view", p_linear_view, m_linear_view},
    {"feed forward", p_ffn, m_ffn},
    {"feed forward, shared", p_ffn, m_ffn_shared},
    {"lora", p_lora, m_lora},
    {"matmul", p_matmul, m_matmul},
    {"layer norm", p_norm, m_layer_norm},
    {"rms norm", p_norm, m_rms_norm},
    {"norm residual", p_norm, m_norm_residual},
    {"norm residual dropout", p_norm, m_norm_residual_drop},
    {"post norm", p_norm, m_post_norm},
    {"same residual", one, m_same_residual},
    {"dropout", one, m_dropout},
    {"mul scale", two, m_mul},
    {"gelu", one, m_act_gelu},
    {"gelu tanh", one, m_act_gelu_tanh},
    {"silu", one, m_act_silu},
    {"tanh", one, m_act_tanh},
    {"swiglu", p_swiglu, m_swiglu},
    {"views", one, m_views},
    {"gather scatter", one, m_rows_select},
    {"mean pool", one, m_pool},
    {"attention", p_attention, m_attention},
    {"attention causal", p_attention, m_attention_causal},
    {"attention dropout", p_attention, m_attention_drop},
    {"cross attention", p_cross, m_cross},
    {"grouped attention with rope", p_grouped, m_grouped_rope},
    {"recompute", p_ffn, m_recompute},
    {"no recompute", p_ffn, m_no_recompute},
    {"linear xent", p_linear, m_linear_xent},
    {"linear xent distillation", p_linear, m_linear_xent_kd},
    {"xent dense distillation", p_linear, m_xent_dense_kd},
    {"judged distillation, beta 0", p_linear, m_judged_forward},
    {"judged distillation, beta 0.5", p_linear, m_judged_half},
    {"judged distillation, beta 1", p_linear, m_judged_reverse},
    {"tied embedding", p_linear, m_tied},
    {"bce", p_column, m_bce},
    {"cosine and mse", two, m_cosine},
};

const struct kase *op_case(const char *name)
{
    for (int i = 0; i < OP_CASES; i++)
        if (!strcmp(op_cases[i].name, name)) return &op_cases[i];
    fail_msg("no case '%s'", name);
    return NULL;
}
