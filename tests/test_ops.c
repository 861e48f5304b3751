/* test_ops.c: every op of the engine against finite differences, and every fused slot against its composition from
 * primitives, on shapes that include 1 and non-multiples of the vector width.
 *
 * What an op is given are parameters (through neb_weight), so their gradients can be read. A case ends in a loss; the
 * directional derivative of that loss along a random direction must equal gradient · direction. */
#include "check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/tape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct shape {
    int64_t rows, d, out, heads;
};

static const struct shape shapes[] = {{1, 2, 1, 1}, {7, 10, 5, 1}, {19, 48, 33, 3}, {33, 64, 70, 4}};

enum { MAX_PARAMS = 6, MAX_ROWS = 64 };

struct fixture {
    const struct kase *kase;
    struct shape s;
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_param *p[MAX_PARAMS];
    int n_params;
    neb_buffer *ids, *ids2, *position, *sample, *starts, *starts_k, *seq_sample, *target, *weight, *fixed,
        *logits;
    neb_optimizer *opt;
    int64_t seqs, k_rows;
};

struct kase {
    const char *name;
    void (*params)(struct fixture *f);
    void (*model)(neb_tape *t, struct fixture *f);
};

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

static neb_tensor *ints(neb_tape *t, neb_buffer *b, int64_t n)
{
    return neb_input(t, b, NEB_I32, 1, &n);
}

static struct neb_seqs seqs(neb_tape *t, struct fixture *f, bool keys)
{
    return (struct neb_seqs){.starts = ints(t, keys ? f->starts_k : f->starts, f->seqs + 1),
                             .sample = ints(t, f->seq_sample, f->seqs),
                             .count = f->seqs,
                             .max_len = MAX_ROWS};
}

/* A loss whose gradient is different for every element: the distance to a fixed random tensor. */
static void finish(neb_tape *t, struct fixture *f, neb_tensor *y)
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
    neb_set_rows(t, ints(t, f->sample, f->s.rows), ints(t, f->position, f->s.rows));
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
    neb_tensor *ids[] = {ints(t, f->ids, f->s.rows), ints(t, f->position, f->s.rows),
                         ints(t, f->ids2, f->s.rows)};
    finish(t, f, neb_op_embed(t, 3, f->p, ids, 1.7f));
}

static void p_linear(struct fixture *f)
{
    one(f), add(f, f->s.out, f->s.d), add(f, f->s.out, 0);
}
#define LINEAR(name, activation)                                   \
    static void m_linear_##name(neb_tape *t, struct fixture *f)    \
    {                                                              \
        finish(t, f, neb_op_linear(t, X, P(1), P(2), activation)); \
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
    finish(t, f, h);
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
    finish(t, f, neb_op_linear(t, h, P(3), P(4), NEB_ACT_NONE));
}
static void m_ffn_shared(neb_tape *t, struct fixture *f) /* h has two readers: no short cut */
{
    neb_tensor *h = neb_op_linear(t, X, P(1), P(2), NEB_ACT_SILU);
    neb_tensor *y = neb_op_linear(t, h, P(3), P(4), NEB_ACT_NONE);
    neb_tensor *z = neb_op_linear(t, h, P(3), NULL, NEB_ACT_NONE);
    finish(t, f, neb_op_add(t, y, neb_op_add(t, z, X)));
}

static void m_lora(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X;
    neb_tensor *y = neb_op_linear(t, x, P(1), P(2), NEB_ACT_NONE);
    neb_tensor *low = neb_op_linear(t, x, P(3), NULL, NEB_ACT_NONE);
    finish(t, f, neb_op_act(t, neb_op_linear_onto(t, y, low, P(4), 0.5f), NEB_ACT_GELU));
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
    finish(t, f, neb_op_matmul(t, c, neb_weight(t, P(2)), true));    /* (rows, rows) */
}

static void p_norm(struct fixture *f)
{
    two(f), add(f, f->s.d, 0), add(f, f->s.d, 0);
}
static void m_layer_norm(neb_tape *t, struct fixture *f)
{
    finish(t, f, neb_op_norm(t, X, P(2), P(3), NEB_NORM_LAYER, 1e-5f));
}
static void m_rms_norm(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X, *y = neb_op_norm(t, x, P(2), NULL, NEB_NORM_RMS, 1e-5f);
    finish(t, f, neb_op_add(t, y, x)); /* x has a gradient already when the norm's comes */
}
static void m_norm_residual(neb_tape *t, struct fixture *f)
{
    neb_tensor *s;
    neb_tensor *y = neb_op_norm_residual(t, X, neb_weight(t, P(1)), P(2), P(3), NEB_NORM_LAYER, 1e-5f, 0, &s);
    finish(t, f, neb_op_mul(t, y, s));
}
static void m_norm_residual_drop(neb_tape *t, struct fixture *f)
{
    rows(t, f);
    neb_tensor *s, *x = X;
    neb_tensor *y =
        neb_op_norm_residual(t, x, neb_weight(t, P(1)), P(2), P(3), NEB_NORM_RMS, 1e-5f, 0.3f, &s);
    finish(t, f, neb_op_add(t, neb_op_residual(t, y, s, 0.2f), x));
}
static void m_post_norm(neb_tape *t, struct fixture *f) /* y is residual and branch at once */
{
    neb_tensor *y =
        neb_op_norm_residual(t, X, neb_weight(t, P(1)), P(2), P(3), NEB_NORM_LAYER, 1e-5f, 0, NULL);
    neb_tensor *branch = neb_op_act(t, y, NEB_ACT_TANH);
    finish(t, f, neb_op_norm_residual(t, branch, y, P(2), P(3), NEB_NORM_LAYER, 1e-5f, 0, NULL));
}
static void m_same_residual(neb_tape *t, struct fixture *f) /* one tensor on both sides of the sum */
{
    neb_tensor *x = neb_op_scale(t, X, 0.5f);
    finish(t, f, neb_op_residual(t, x, x, 0));
}

static void m_dropout(neb_tape *t, struct fixture *f)
{
    rows(t, f);
    finish(t, f, neb_op_dropout(t, X, 0.4f));
}
static void m_mul(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X;
    finish(t, f, neb_op_scale(t, neb_op_mul(t, neb_op_mul(t, x, neb_weight(t, P(1))), x), -1.3f));
}
#define ACT(name, activation)                                         \
    static void m_act_##name(neb_tape *t, struct fixture *f)          \
    {                                                                 \
        neb_tensor *x = X;                                            \
        finish(t, f, neb_op_add(t, neb_op_act(t, x, activation), x)); \
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
    finish(t, f, neb_op_swiglu(t, X));
}

static void m_views(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X, *flat = neb_op_reshape(t, x, 1, (int64_t[]){f->s.rows * f->s.d});
    neb_tensor *back = neb_op_reshape(t, flat, 2, (int64_t[]){f->s.rows, f->s.d});
    neb_tensor *last = neb_op_rows_of(t, back, f->s.rows - 1, 1), *first = neb_op_rows_of(t, x, 0, 1);
    finish(t, f, neb_op_add(t, neb_op_scale(t, last, 2), neb_op_add(t, first, last)));
}
static void m_rows_select(neb_tape *t, struct fixture *f)
{
    int64_t n = f->s.rows;
    neb_tensor *index = ints(t, f->ids2, n); /* distinct or out of range */
    neb_tensor *x = X, *g = neb_op_gather(t, x, index);
    neb_tensor *s = neb_op_scatter(t, g, index, n + 3);
    finish(t, f, neb_op_add(t, neb_op_rows_of(t, s, 0, n), x));
}
static void m_pool(neb_tape *t, struct fixture *f)
{
    struct neb_seqs q = seqs(t, f, false);
    neb_tensor *x = X;
    neb_tensor *y = neb_op_mean_pool(t, x, &q);
    finish(t, f, neb_op_matmul(t, x, y, true));
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
    finish(t, f, neb_op_attention(t, &a));
}
static void m_attention_causal(neb_tape *t, struct fixture *f)
{
    struct neb_attention a = self_attention(t, f, neb_op_scale(t, X, 1.1f));
    a.causal = true;
    finish(t, f, neb_op_attention(t, &a));
}
static void m_attention_drop(neb_tape *t, struct fixture *f)
{
    struct neb_attention a = self_attention(t, f, X);
    a.dropout = 0.25f;
    a.scale = 0.3f;
    finish(t, f, neb_op_attention(t, &a));
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
    finish(t, f, neb_op_add(t, neb_op_attention(t, &a), a.q));
}
static void p_grouped(struct fixture *f)
{
    one(f), add(f, f->s.rows, 2 * (f->s.d / f->s.heads));
}
static void m_grouped_rope(neb_tape *t,
                           struct fixture *f) /* one key head for all, rotary positions, causal */
{
    int64_t hd = f->s.d / f->s.heads;
    neb_tensor *position = ints(t, f->position, f->s.rows), *kv = neb_op_scale(t, neb_weight(t, P(1)), 1);
    struct neb_attention a = {.q = neb_op_rope(t, neb_op_scale(t, X, 1), position, f->s.heads, 10000),
                              .k = neb_op_rope(t, neb_op_columns(t, kv, 0, hd), position, 1, 10000),
                              .v = neb_op_columns(t, kv, hd, hd),
                              .q_seqs = seqs(t, f, false),
                              .k_seqs = seqs(t, f, false),
                              .heads = f->s.heads,
                              .kv_heads = 1,
                              .causal = true};
    finish(t, f, neb_op_attention(t, &a));
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
    finish(t, f, neb_op_recompute(t, block, f, x));
}
static void m_no_recompute(neb_tape *t, struct fixture *f)
{
    rows(t, f);
    finish(t, f, block(t, f, block(t, f, neb_op_scale(t, X, 1))));
}

static struct neb_target_spec classes(neb_tape *t, struct fixture *f)
{
    return (struct neb_target_spec){.target = ints(t, f->target, f->s.rows), .smoothing = 0.1f};
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
static void m_tied(neb_tape *t, struct fixture *f) /* one table embeds and predicts */
{
    struct neb_target_spec c = classes(t, f);
    struct neb_loss_spec l = {0};
    neb_tensor *ids = ints(t, f->ids, f->s.rows), *x = neb_op_embed(t, 1, &P(1), &ids, 1);
    neb_loss_linear_xent(t, neb_op_add(t, x, X), P(1), NULL, &c, &l);
    finish(t, f, neb_op_mul(t, x, X));
}
static void p_column(struct fixture *f)
{
    add(f, f->s.rows, 1);
}
static void m_bce(neb_tape *t, struct fixture *f)
{
    struct neb_loss_spec l = weighted(t, f);
    neb_tensor *x = X;
    neb_loss_bce(t, x, ints(t, f->target, f->s.rows), &l);
    finish(t, f, x);
}
static void m_cosine(neb_tape *t, struct fixture *f)
{
    struct neb_loss_spec l = weighted(t, f);
    neb_tensor *x = X, *y = neb_weight(t, P(1));
    neb_loss_cosine(t, x, y, &l);
    neb_loss_mse(t, y, x, &l);
}

static const struct kase kases[] = {
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
    {"tied embedding", p_linear, m_tied},
    {"bce", p_column, m_bce},
    {"cosine and mse", two, m_cosine},
};
enum { KASES = sizeof kases / sizeof *kases };

/* ---- fixture ------------------------------------------------------------------------------------------------- */

static void run_model(neb_tape *t, void *arg)
{
    struct fixture *f = arg;
    neb_push(t, "%s", f->kase->name);
    f->kase->model(t, f);
    neb_pop(t);
}

static neb_buffer *upload(struct fixture *f, const void *data, size_t bytes)
{
    neb_buffer *b;
    assert_ok(neb_buffer_create(f->dev, bytes, &b));
    assert_ok(neb_buffer_upload(b, data, bytes));
    return b;
}

static void fill_buffers(struct fixture *f, struct neb_rng *r)
{
    int64_t n = f->s.rows;
    int32_t ids[MAX_ROWS * 4], ids2[MAX_ROWS * 4], position[MAX_ROWS], sample[MAX_ROWS], target[MAX_ROWS];
    int32_t starts[5], starts_k[5], seq_sample[4] = {91, 7, 12, 3};
    float weight[MAX_ROWS];
    static float fixed[MAX_ROWS * 128], logits[MAX_ROWS * 128];
    f->seqs = n >= 3 ? 4 : 1;
    for (int i = 0; i <= f->seqs; i++) starts[i] = (int32_t)(n * i / f->seqs), starts_k[i] = starts[i] * 2;
    if (f->seqs > 1) starts[2] = starts[1], starts_k[f->seqs] = starts_k[f->seqs - 1] + 1; /* an empty one */
    starts[f->seqs] = (int32_t)n;
    f->k_rows = starts_k[f->seqs] ? starts_k[f->seqs] : 1;
    for (int i = 0; i < f->seqs; i++)
        for (int32_t j = starts[i]; j < starts[i + 1]; j++)
            position[j] = j - starts[i], sample[j] = seq_sample[i];
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)neb__rng_below(r, 5) - 1; /* repeats, and one that is not in the table */
        ids2[i] = (int32_t)(i == n / 2 && n > 1 ? -1 : n - 1 - i);
        target[i] = i % 5 == 4 ? -1 : (int32_t)neb__rng_below(r, (uint64_t)(f->s.out > 2 ? f->s.out : 1));
        weight[i] = i % 7 == 3 ? 0 : 0.5f + (float)neb__rng_uniform(r);
    }
    if (!strcmp(f->kase->name, "bce"))
        for (int64_t i = 0; i < n; i++) target[i] = (int32_t)(i % 3) - 1;
    if (strstr(f->kase->name, "distillation")) /* distinct classes in every row */
        for (int64_t i = 0; i < 4 * n; i++) ids2[i] = (int32_t)((i % 4 + i / 4) % f->s.out);
    for (int i = 0; i < MAX_ROWS * 128; i++) fixed[i] = (float)neb__rng_normal(r), logits[i] = 2 * fixed[i];
    f->ids = upload(f, ids, sizeof ids), f->ids2 = upload(f, ids2, sizeof ids2);
    f->position = upload(f, position, sizeof position), f->sample = upload(f, sample, sizeof sample);
    f->starts = upload(f, starts, sizeof starts), f->starts_k = upload(f, starts_k, sizeof starts_k);
    f->seq_sample = upload(f, seq_sample, sizeof seq_sample), f->target = upload(f, target, sizeof target);
    f->weight = upload(f, weight, sizeof weight), f->fixed = upload(f, fixed, sizeof fixed);
    f->logits = upload(f, logits, sizeof logits);
}

static void open_fixture(struct fixture *f, const struct kase *k, struct shape s)
{
    *f = (struct fixture){.kase = k, .s = s};
    struct neb_device_config c = {.threads = 2};
    struct neb_rng r = {77};
    assert_ok(neb_device_open("cpu", &c, &f->dev));
    assert_ok(neb_params_create(&f->ps));
    fill_buffers(f, &r);
    k->params(f);
    assert_ok(neb_params_ready(f->ps, f->dev, 5));
    assert_ok(neb_tape_create(f->dev, f->ps, &f->tape));
}

static void close_fixture(struct fixture *f)
{
    neb_buffer *all[] = {f->ids,        f->ids2,   f->position, f->sample, f->starts, f->starts_k,
                         f->seq_sample, f->target, f->weight,   f->fixed,  f->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) neb_buffer_destroy(all[i]);
    neb_tape_destroy(f->tape);
    neb_params_destroy(f->ps);
    neb_device_close(f->dev);
}

static double loss_of(struct fixture *f, bool grad)
{
    struct neb_ctl c = {.step = 4, .seed = 9, .loss_scale = 0.37f};
    struct neb_run run = {.fn = run_model, .arg = f, .key = 1, .grad = grad, .train = true};
    assert_ok(neb_tape_begin_step(f->tape, &c));
    assert_ok(neb_tape_run(f->tape, &run));
    assert_ok(neb_tape_end_step(f->tape, true, &c));
    double sum = 0;
    for (int i = 0; i < 8; i++) sum += (double)c.loss[i];
    return sum;
}

static float *read_all(struct fixture *f, bool grads, int64_t *n)
{
    int64_t total = neb_params_values(f->ps, false), at = 0;
    float *out = neb__calloc((size_t)total, sizeof *out);
    for (int i = 0; i < f->n_params; i++) {
        assert_ok(grads ? neb_param_read_grad(f->p[i], out + at) : neb_param_read(f->p[i], out + at));
        at += neb_param_values(f->p[i]);
    }
    *n = total;
    return out;
}

static void write_all(struct fixture *f, const float *values)
{
    for (int i = 0; i < f->n_params; i++) {
        assert_ok(neb_param_write(f->p[i], values));
        values += neb_param_values(f->p[i]);
    }
}

/* ---- the tests ----------------------------------------------------------------------------------------------- */

static double slope(struct fixture *f, const float *x, const float *dir, int64_t n, double h)
{
    float *moved = neb__calloc((size_t)n, sizeof *moved);
    double loss[2];
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++) moved[i] = x[i] + (side ? 1 : -1) * (float)h * dir[i];
        write_all(f, moved);
        loss[side] = loss_of(f, false);
    }
    neb__free(moved);
    return (loss[1] - loss[0]) / (2 * h);
}

static void check_gradient(struct fixture *f)
{
    loss_of(f, true);
    int64_t n;
    float *g = read_all(f, true, &n), *x = read_all(f, false, &n);
    float *dir = neb__calloc((size_t)n, sizeof *dir);
    struct neb_rng r = {3};
    for (int round = 0; round < 4; round++) {
        double dot = 0, gnorm = 0, dnorm = 0;
        for (int64_t i = 0; i < n; i++) {
            /* half random, half along the gradient: then the slope is large against rounding */
            dir[i] = (float)neb__rng_normal(&r) * 0.3f + (round ? g[i] : 0);
            dot += (double)dir[i] * (double)g[i];
            gnorm += (double)g[i] * (double)g[i];
            dnorm += (double)dir[i] * (double)dir[i];
        }
        for (int64_t i = 0; i < n; i++) dir[i] /= (float)sqrt(dnorm);
        dot /= sqrt(dnorm);
        double s1 = slope(f, x, dir, n, 2e-2), s2 = slope(f, x, dir, n, 1e-2);
        double s = (4 * s2 - s1) / 3; /* Richardson: the h^2 term cancels */
        double scale = sqrt(gnorm) + 1e-3;
        if (!(fabs(s - dot) <= 4e-3 * scale))
            fail_msg("%s (%d rows, d %d): slope %g, gradient says %g (norm %g)", f->kase->name,
                     (int)f->s.rows, (int)f->s.d, s, dot, sqrt(gnorm));
    }
    write_all(f, x);
    neb__free(g);
    neb__free(x);
    neb__free(dir);
}

static void gradients_match_finite_differences(void **state)
{
    (void)state;
    for (int k = 0; k < KASES; k++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct fixture f;
            open_fixture(&f, &kases[k], shapes[s]);
            check_gradient(&f);
            close_fixture(&f);
        }
}

static double difference(const float *a, const float *b, int64_t n)
{
    double top = 0, bottom = 0;
    for (int64_t i = 0; i < n; i++) {
        top += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        bottom += (double)b[i] * (double)b[i];
    }
    return sqrt(top) / (sqrt(bottom) + 1e-6);
}

static void fused_slots_equal_their_references(void **state)
{
    (void)state;
    for (int k = 0; k < KASES; k++) {
        struct fixture f;
        open_fixture(&f, &kases[k], shapes[k % 3 + 1]);
        double fused = loss_of(&f, true);
        int64_t n;
        float *g = read_all(&f, true, &n);
        neb__tape_force_reference(f.tape, true);
        double reference = loss_of(&f, true);
        float *h = read_all(&f, true, &n);
        if (fabs(fused - reference) > 1e-5 * (1 + fabs(reference)) || difference(g, h, n) > 2e-5)
            fail_msg("%s: loss %.9g, reference %.9g; gradients differ by %g", f.kase->name, fused, reference,
                     difference(g, h, n));
        neb__free(g);
        neb__free(h);
        close_fixture(&f);
    }
}

static void a_poisoned_arena_changes_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < KASES; k++) {
        struct fixture f;
        open_fixture(&f, &kases[k], shapes[3]);
        double clean = loss_of(&f, true);
        int64_t n;
        float *g = read_all(&f, true, &n);
        neb_tape_poison(f.tape, true);
        for (int round = 0; round < 2; round++) {
            double loss = loss_of(&f, true);
            float *h = read_all(&f, true, &n);
            if (memcmp(&loss, &clean, sizeof loss) || memcmp(g, h, (size_t)n * sizeof *g))
                fail_msg("%s: another result in a poisoned arena (loss %g, was %g)", f.kase->name, loss,
                         clean);
            neb__free(h);
        }
        neb__free(g);
        close_fixture(&f);
    }
}

static void recomputation_gives_the_same_bits(void **state)
{
    (void)state;
    float *g[2];
    int64_t n = 0;
    double loss[2];
    int at = 0;
    for (int k = 0; k < KASES; k++) {
        if (!strstr(kases[k].name, "recompute")) continue;
        struct fixture f;
        struct kase same = kases[k];
        same.name = "blocks"; /* scopes name the dropout masks */
        open_fixture(&f, &same, shapes[2]);
        loss[at] = loss_of(&f, true);
        g[at++] = read_all(&f, true, &n);
        close_fixture(&f);
    }
    assert_int_equal(at, 2);
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
    assert_memory_equal(g[0], g[1], (size_t)n * sizeof **g);
    neb__free(g[0]);
    neb__free(g[1]);
}

static void later_steps_allocate_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < KASES; k++) {
        struct fixture f;
        open_fixture(&f, &kases[k], shapes[2]);
        loss_of(&f, true);
        neb__mem_fail_at(0);
        loss_of(&f, true);
        if (neb__mem_count())
            fail_msg("%s: %d allocations in the second step", f.kase->name, (int)neb__mem_count());
        close_fixture(&f);
    }
}

static void m_stopped(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = X;
    finish(t, f, neb_op_add(t, neb_op_stop_gradient(t, neb_op_scale(t, x, 3)), x));
}

/* The gradient is that of the other path alone: a third of what the plain sum 3x' + x would give at equal loss. */
static void gradients_stop_where_told(void **state)
{
    (void)state;
    const struct kase stopped = {"stopped", one, m_stopped};
    struct fixture f;
    open_fixture(&f, &stopped, shapes[2]);
    loss_of(&f, true);
    int64_t n;
    float *g = read_all(&f, true, &n), *x = read_all(&f, false, &n),
          *dir = neb__calloc((size_t)n, sizeof *dir);
    double norm = 0, dot = 0;
    for (int64_t i = 0; i < n; i++) norm += (double)g[i] * (double)g[i];
    for (int64_t i = 0; i < n; i++) dir[i] = g[i] / (float)sqrt(norm), dot += (double)dir[i] * (double)g[i];
    double s = slope(&f, x, dir, n, 1e-2); /* moves both paths: four times the gradient */
    assert_true(fabs(s / dot - 4) < 0.02);
    neb__free(g);
    neb__free(x);
    neb__free(dir);
    close_fixture(&f);
}

static void m_wrong_shape(neb_tape *t, struct fixture *f)
{
    finish(t, f, neb_op_linear(t, X, P(1), P(0), NEB_ACT_NONE));
}

static void m_wrong_dtype(neb_tape *t, struct fixture *f)
{
    finish(t, f, neb_op_linear(t, ints(t, f->ids, f->s.rows), P(1), NULL, NEB_ACT_NONE));
}

static void m_unknown_dtype(neb_tape *t, struct fixture *f)
{
    neb_input(t, f->ids, (neb_dtype)17, 1, &f->s.rows);
}

static void m_unknown_act(neb_tape *t, struct fixture *f)
{
    finish(t, f, neb_op_act(t, X, (neb_act)99));
}

static void m_no_pop(neb_tape *t, struct fixture *f)
{
    neb_push(t, "left open");
    finish(t, f, X);
}

static void m_too_large(neb_tape *t, struct fixture *f)
{
    neb_input(t, f->ids, NEB_I32, 2, (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40});
}

static void m_dropout_without_rows(neb_tape *t, struct fixture *f)
{
    finish(t, f, neb_op_dropout(t, X, 0.5f));
}

/* Wrong models get a status and a message with the scope, the op and the numbers; the tape stays usable. */
static void wrong_models_are_refused(void **state)
{
    (void)state;
    static const struct {
        void (*model)(neb_tape *, struct fixture *);
        neb_status want;
        const char *says;
    } wrong[] = {
        {m_wrong_shape, NEB_ERR_SHAPE, "wrong: linear: bias 'p0' is (19, 48)"},
        {m_wrong_dtype, NEB_ERR_DTYPE, "x is i32, f32 is needed"},
        {m_unknown_dtype, NEB_ERR_DTYPE, "dtype 17"},
        {m_unknown_act, NEB_ERR_INVALID, "unknown activation 99"},
        {m_no_pop, NEB_ERR_STATE, "a push without a pop"},
        {m_too_large, NEB_ERR_SHAPE, "dimension 0"},
        {m_dropout_without_rows, NEB_ERR_STATE, "neb_set_rows"},
    };
    struct kase k = {"wrong", p_linear, m_linear_none};
    struct fixture f;
    open_fixture(&f, &k, shapes[2]);
    double right = loss_of(&f, true);
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        k.model = wrong[i].model;
        struct neb_run run = {.fn = run_model, .arg = &f, .key = 100 + i, .grad = true, .train = true};
        assert_status(neb_tape_run(f.tape, &run), wrong[i].want);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("message: %s; expected: %s", neb_last_error(), wrong[i].says);
    }
    check_log_restore();
    k.model = m_linear_none;
    assert_true(loss_of(&f, true) == right);
    close_fixture(&f);
}

static int64_t swing_rows;

static void m_swing(neb_tape *t, struct fixture *f)
{
    finish(t, f, neb_op_scale(t, neb_op_rows_of(t, X, 0, swing_rows), 2));
}

/* Another shape under the same key is planned anew, and its loss counted once. */
static void a_mismatch_plans_again(void **state)
{
    (void)state;
    const struct kase k = {"swing", one, m_swing};
    struct fixture f;
    open_fixture(&f, &k, shapes[2]);
    double loss[2][2];
    for (int i = 0; i < 4; i++) {
        swing_rows = i % 2 ? 5 : 17;
        loss[i / 2][i % 2] = loss_of(&f, true);
    }
    assert_true(loss[0][0] != loss[0][1]);
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    close_fixture(&f);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    check_log_quiet();
    for (int k = 0; k < KASES; k += 3) {
        struct fixture f;
        open_fixture(&f, &kases[k], shapes[2]);
        struct neb_run run = {.fn = run_model, .arg = &f, .key = 1, .grad = true, .train = true};
        neb_status s = NEB_ERR_NOMEM;
        int64_t failures = 0;
        for (int64_t i = 1; s != NEB_OK; i++) {
            neb__mem_fail_at(i);
            s = neb_tape_run(f.tape, &run);
            if (s != NEB_OK) assert_int_equal(s, NEB_ERR_NOMEM), failures++;
        }
        neb__mem_fail_at(0);
        assert_true(failures > 0);
        close_fixture(&f);
    }
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(fused_slots_equal_their_references),
        cmocka_unit_test(a_poisoned_arena_changes_nothing),
        cmocka_unit_test(recomputation_gives_the_same_bits),
        cmocka_unit_test(later_steps_allocate_nothing),
        cmocka_unit_test(gradients_stop_where_told),
        cmocka_unit_test(wrong_models_are_refused),
        cmocka_unit_test(a_mismatch_plans_again),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
