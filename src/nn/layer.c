/* layer.c: one transformer layer: self-attention, cross-attention if there is a memory, feed-forward.
 *
 * A sublayer f is joined to the stream x by its residual and its norm:
 *     pre-norm    x + drop(f(norm(x)))          post-norm    norm(x + drop(f(x)))
 * Pre-norm fuses each residual with the norm of the next sublayer, so inside a layer only the last residual
 * stands alone.
 *
 * Adapters (Houlsby et al. 2019) stand between a sublayer and its residual: f + up(gelu(down(f))), up
 * starting at zero. A trained prefix (Li and Liang 2021) gives every sequence further keys and values before
 * its own. A causal query sees all of them, and RoPE does not rotate them. */
#include "nn/layer.h"
#include "tensor/packed.h"
#include "tensor/tape.h"
#include "tensor/team.h"

#include <math.h>
#include <string.h>

/* ---- building ------------------------------------------------------------------------------------------ */

static struct neb_adapter build_adapter(struct neb_builder *b)
{
    struct neb_adapter a = {0};
    int64_t d = b->arch->hidden, n = b->peft->adapter_size;
    size_t mark = neb__builder_enter(b, "adapter");
    a.down = neb__lin_build(
        b, &(struct neb_lin_spec){"down", d, n, 1.0f / sqrtf((float)d), true, NEB_SPLIT_NONE, {0}, {0}});
    a.up = neb__lin_build(b, &(struct neb_lin_spec){"up", n, d, 0, true, NEB_SPLIT_NONE, {0}, {0}});
    neb__builder_leave(b, mark);
    return a;
}

/* Deviation of the weights whose outputs are added to the stream. */
static float out_deviation(const struct neb_arch *a)
{
    int64_t layers = a->kind == NEB_DECODER || a->kind == NEB_ENCODER ? a->layers : a->decoder_layers;
    return a->residual_init ? a->deviation / sqrtf(2.0f * (float)layers) : a->deviation;
}

/* A weight whose inputs and outputs are hidden states. */
static struct neb_lin build_hidden(struct neb_builder *b, const struct neb_lin_spec *spec)
{
    b->hidden = true;
    return neb__lin_build(b, spec);
}

static void build_attention(struct neb_builder *b, const char *name, bool cross, struct neb_attn_layer *out)
{
    const struct neb_arch *a = b->arch;
    int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim, d = a->hidden;
    size_t mark = neb__builder_enter(b, "%s", name);
    if (cross) {
        out->q = build_hidden(
            b, &(struct neb_lin_spec){"q", d, q, a->deviation, a->bias, NEB_SPLIT_ROW, {0}, {0}});
        const bool some_rows = b->some_rows;
        b->some_rows = false; /* it reads all rows of the memory */
        out->kv =
            build_hidden(b, &(struct neb_lin_spec){
                                "kv", d, 2 * kv, a->deviation, a->bias, NEB_SPLIT_ROW, {kv, kv}, {"k", "v"}});
        b->some_rows = some_rows;
    } else {
        out->qkv = build_hidden(b, &(struct neb_lin_spec){"qkv",
                                                          d,
                                                          q + 2 * kv,
                                                          a->deviation,
                                                          a->qkv_bias,
                                                          NEB_SPLIT_ROW,
                                                          {q, kv, kv},
                                                          {"q", "k", "v"}});
        if (a->qk_norm) out->q_norm = neb__norm_build(b, "q_norm", a->head_dim);
        if (a->qk_norm) out->k_norm = neb__norm_build(b, "k_norm", a->head_dim);
    }
    out->out = build_hidden(
        b, &(struct neb_lin_spec){"out", q, d, out_deviation(a), a->bias, NEB_SPLIT_COLUMN, {0}, {0}});
    out->norm = neb__norm_build(b, "norm", d);
    if (b->peft->adapter && b->peft->adapter_after_attention) out->adapter = build_adapter(b);
    if (b->peft->prefix && !cross) {
        int64_t p = b->peft->prefix_length;
        out->prefix_key =
            neb__builder_matrix(b, "prefix.key", p, kv, NEB_INIT_NORMAL, a->deviation, NEB_SPLIT_COLUMN);
        out->prefix_value =
            neb__builder_matrix(b, "prefix.value", p, kv, NEB_INIT_NORMAL, a->deviation, NEB_SPLIT_COLUMN);
    }
    neb__builder_leave(b, mark);
}

static void build_ffn(struct neb_builder *b, struct neb_ffn_layer *out)
{
    const struct neb_arch *a = b->arch;
    int64_t wide = a->swiglu ? 2 * a->ffn : a->ffn;
    size_t mark = neb__builder_enter(b, "ffn");
    struct neb_lin_spec in = {
        "in", a->hidden, wide, a->deviation, a->bias, NEB_SPLIT_ROW, {a->ffn, wide - a->ffn}, {0}};
    if (a->swiglu) in.names[0] = "gate", in.names[1] = "up";
    out->in = build_hidden(b, &in);
    out->out =
        build_hidden(b, &(struct neb_lin_spec){
                            "out", a->ffn, a->hidden, out_deviation(a), a->bias, NEB_SPLIT_COLUMN, {0}, {0}});
    out->norm = neb__norm_build(b, "norm", a->hidden);
    if (b->peft->adapter) out->adapter = build_adapter(b);
    neb__builder_leave(b, mark);
}

void neb__layer_build(struct neb_builder *b, bool has_cross, bool causal, struct neb_layer *out)
{
    const struct neb_arch *a = b->arch;
    *out = (struct neb_layer){.arch = a,
                              .has_cross = has_cross,
                              .causal = causal,
                              .heads = neb__builder_share(b, a->heads),
                              .kv_heads = neb__builder_share(b, a->kv_heads),
                              .first_head = neb__team_first(b->params->team, a->heads)};
    b->some_rows = b->params->team && b->params->team->sequence;
    build_attention(b, "attention", false, &out->attention);
    if (has_cross) build_attention(b, "cross", true, &out->cross);
    build_ffn(b, &out->ffn);
    b->some_rows = false;
}

int neb__weight_parts(const struct neb_arch *a, const char *stem, struct neb_weight_part out[3])
{
    const int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    const char *dot = strrchr(stem, '.'), *name = dot ? dot + 1 : stem;
    const struct neb_weight_part three[] = {{"q", q}, {"k", kv}, {"v", kv}},
                                 two[] = {{"gate", a->ffn}, {"up", a->ffn}};
    const bool qkv = !strcmp(name, "qkv"), both = !strcmp(name, "kv"), in = a->swiglu && !strcmp(name, "in");
    for (int i = 0; i < 3; i++) out[i] = in && i < 2 ? two[i] : three[both && i < 2 ? i + 1 : i];
    if (qkv) return 3;
    return both || in ? 2 : 0;
}

/* ---- running ------------------------------------------------------------------------------------------- */

static neb_tensor *run_adapter(neb_tape *t, const struct neb_adapter *a, neb_tensor *x)
{
    if (!a->down.weight) return x;
    neb_push(t, "adapter");
    neb_tensor *h = neb__lin_run(t, &a->down, x, NEB_ACT_GELU);
    x = neb_op_add(t, x, neb__lin_run(t, &a->up, h, NEB_ACT_NONE));
    neb_pop(t);
    return x;
}

/* Keys (or values) with the tokens' rows in their places and the prefix's rows in theirs. */
static neb_tensor *with_prefix(neb_tape *t, neb_param *prefix, const struct neb_input_side *s, neb_tensor *x)
{
    neb_tensor *id = s->prefix_id;
    return neb_op_add(t, neb_op_scatter(t, neb_op_copy(t, x), s->prefix_row, s->prefix_rows),
                      neb_op_embed(t, 1, &prefix, &id, 1));
}

/* The new keys and values join those of earlier runs. */
static void use_cache(neb_tape *t, const struct neb_layer_call *c, struct neb_attention *n)
{
    const struct neb_cache_input *at = c->at;
    n->k = neb_op_add_rows(t, n->k, at->index, c->cache->key, at->rows);
    n->v = neb_op_add_rows(t, n->v, at->index, c->cache->value, at->rows);
    n->q_seqs = at->q_seqs;
    n->k_seqs = at->k_seqs;
}

/* Normalises each head of a column view: (rows, heads * head_dim). */
static neb_tensor *norm_heads(neb_tape *t, const struct neb_norm_layer *n, neb_tensor *x, int64_t heads)
{
    int64_t shape[4] = {0};
    x = neb_op_copy(t, x);
    neb_tensor_shape(x, shape);
    x = neb_op_reshape(t, x, 2, (int64_t[]){shape[0] * heads, shape[1] / heads});
    return neb_op_reshape(t, neb__norm_run(t, n, x), 2, shape);
}

static neb_tensor *rotate(neb_tape *t, const struct neb_layer_call *c, neb_tensor *x, int64_t heads)
{
    const struct neb_arch *a = c->layer->arch;
    if (a->positions != NEB_POSITIONS_ROPE) return x;
    return neb_op_rope_scaled(t, x, c->side->position, heads, a->rope_base, &a->rope_scale);
}

/* Queries and keys of the tokens: side by side in one product, turned together unless they are normalised. */
static void queries_and_keys(neb_tape *t, const struct neb_layer_call *c, neb_tensor *qkv,
                             struct neb_attention *n)
{
    const struct neb_arch *a = c->layer->arch;
    const struct neb_layer *l = c->layer;
    const struct neb_attn_layer *at = &l->attention;
    int64_t q = l->heads * a->head_dim, kv = l->kv_heads * a->head_dim;
    if (at->q_norm.gamma) {
        n->q = rotate(t, c, norm_heads(t, &at->q_norm, neb_op_columns(t, qkv, 0, q), l->heads), l->heads);
        n->k =
            rotate(t, c, norm_heads(t, &at->k_norm, neb_op_columns(t, qkv, q, kv), l->kv_heads), l->kv_heads);
        return;
    }
    neb_tensor *qk = rotate(t, c, neb_op_columns(t, qkv, 0, q + kv), l->heads + l->kv_heads);
    n->q = neb_op_columns(t, qk, 0, q);
    n->k = neb_op_columns(t, qk, q, kv);
}

/* Of the products of queries and keys; 0: the usual one. */
static float score_scale(const struct neb_arch *a)
{
    return a->attention_scale ? 0 : 1;
}

static neb_tensor *attend(neb_tape *t, const struct neb_layer_call *c, const struct neb_attention *n)
{
    if (c->relative) return neb__op_attention_relative(t, n, c->relative, c->relative_table);
    if (c->cache && c->at->key) return neb__op_attention_listed(t, n, c->at->key, c->at->count);
    return neb_op_attention(t, n);
}

static neb_tensor *self_attention(neb_tape *t, const struct neb_layer_call *c, neb_tensor *x)
{
    const struct neb_layer *l = c->layer;
    const struct neb_input_side *s = c->side;
    const struct neb_arch *a = l->arch;
    const struct neb_attn_layer *at = &l->attention;
    int64_t q = l->heads * a->head_dim, kv = l->kv_heads * a->head_dim;
    neb_push(t, "attention");
    neb_tensor *qkv = neb__lin_run(t, &at->qkv, x, NEB_ACT_NONE);
    struct neb_attention n = {.v = neb_op_columns(t, qkv, q + kv, kv),
                              .q_seqs = s->seqs,
                              .k_seqs = s->seqs,
                              .heads = l->heads,
                              .kv_heads = l->kv_heads,
                              .causal = l->causal,
                              .scale = score_scale(a),
                              .dropout = a->attention_dropout,
                              .first_head = l->first_head};
    queries_and_keys(t, c, qkv, &n);
    if (at->prefix_key && !c->cache) { /* a cache holds the prefix already */
        n.k = with_prefix(t, at->prefix_key, s, n.k);
        n.v = with_prefix(t, at->prefix_value, s, n.v);
        n.k_seqs = s->with_prefix;
    }
    if (c->cache) use_cache(t, c, &n);
    neb_tensor *y = neb__lin_run(t, &at->out, attend(t, c, &n), NEB_ACT_NONE);
    y = run_adapter(t, &at->adapter, y);
    neb_pop(t);
    return y;
}

static neb_tensor *cross_attention(neb_tape *t, const struct neb_layer_call *c, neb_tensor *x)
{
    const struct neb_arch *a = c->layer->arch;
    const struct neb_attn_layer *at = &c->layer->cross;
    int64_t kv = c->layer->kv_heads * a->head_dim;
    neb_push(t, "cross");
    const int64_t shared = neb__team_rows(t, 0); /* every member has the whole memory */
    neb_tensor *both = c->cache ? neb_input(t, c->cache->cross, neb_compute_type(t), 2,
                                            (int64_t[]){c->at->source_rows, 2 * kv})
                                : neb__lin_run(t, &at->kv, c->memory, NEB_ACT_NONE);
    neb__team_rows(t, shared);
    struct neb_attention n = {.q = neb__lin_run(t, &at->q, x, NEB_ACT_NONE),
                              .k = neb_op_columns(t, both, 0, kv),
                              .v = neb_op_columns(t, both, kv, kv),
                              .q_seqs = c->cache ? c->at->cross_q : c->side->seqs,
                              .k_seqs = c->cache ? c->at->cross_k : c->memory_side->seqs,
                              .heads = c->layer->heads,
                              .kv_heads = c->layer->kv_heads,
                              .scale = score_scale(a),
                              .dropout = a->attention_dropout,
                              .first_head = c->layer->first_head};
    neb_tensor *y = neb__lin_run(t, &at->out, neb_op_attention(t, &n), NEB_ACT_NONE);
    y = run_adapter(t, &at->adapter, y);
    neb_pop(t);
    return y;
}

/* Composed from ops that every device has; SwiGLU has one of its own. */
static neb_tensor *run_geglu(neb_tape *t, neb_tensor *h)
{
    if (!h) return NULL; /* an op before it failed */
    const int64_t n = neb__tensor_cols(h) / 2;
    neb_tensor *gate = neb_op_act(t, neb_op_copy(t, neb_op_columns(t, h, 0, n)), NEB_ACT_GELU_TANH);
    return neb_op_mul(t, gate, neb_op_copy(t, neb_op_columns(t, h, n, n)));
}

static neb_tensor *feed_inwards(neb_tape *t, const struct neb_layer *l, neb_tensor *x)
{
    neb_tensor *h = neb__lin_run(t, &l->ffn.in, x, l->arch->act);
    if (!l->arch->swiglu) return h;
    return l->arch->gelu_gate ? run_geglu(t, h) : neb_op_swiglu(t, h);
}

static neb_tensor *feed_forward(neb_tape *t, const struct neb_layer *l, neb_tensor *x)
{
    const struct neb_ffn_layer *f = &l->ffn;
    neb_push(t, "ffn");
    neb_tensor *y = neb__lin_run(t, &f->out, feed_inwards(t, l, x), NEB_ACT_NONE);
    y = run_adapter(t, &f->adapter, y);
    neb_pop(t);
    return y;
}

/* s = residual + drop(y), kept in *s when the stream continues from it; returns norm(s). */
static neb_tensor *join(neb_tape *t, const struct neb_arch *a, const struct neb_norm_layer *n, neb_tensor *y,
                        neb_tensor *residual, neb_tensor **s)
{
    return neb_op_norm_residual(t, y, residual, n->gamma, n->beta, n->kind, n->eps, a->dropout, s);
}

/* While text is generated nobody reads the stream once more, so the last product may add to it where it lies. */
static neb_tensor *feed_onto(neb_tape *t, const struct neb_layer *l, neb_tensor *x, neb_tensor *stream)
{
    neb_push(t, "ffn");
    stream = neb_op_linear_onto(t, stream, feed_inwards(t, l, x), l->ffn.out.weight, 1);
    neb_pop(t);
    return stream;
}

/* The end of a recomputed layer: the second time the last product and its sum are left out. */
static neb_tensor *feed_last(neb_tape *t, const struct neb_layer *l, neb_tensor *x, neb_tensor *stream)
{
    neb_push(t, "ffn");
    neb_tensor *y = neb__lin_run_unread(t, &l->ffn.out, feed_inwards(t, l, x));
    neb_pop(t);
    neb__tape_unread(t, true);
    stream = neb_op_residual(t, y, stream, 0);
    neb__tape_unread(t, false);
    return stream;
}

static neb_tensor *run_pre(neb_tape *t, const struct neb_layer_call *c, neb_tensor *x)
{
    const struct neb_layer *l = c->layer;
    const struct neb_arch *a = l->arch;
    neb_tensor *y = self_attention(t, c, neb__norm_run(t, &l->attention.norm, x)), *s = NULL;
    if (l->has_cross) {
        neb_tensor *n = join(t, a, &l->cross.norm, y, x, &x);
        y = cross_attention(t, c, n);
    }
    y = join(t, a, &l->ffn.norm, y, x, &s);
    if (c->cache && neb__lin_is_product(&l->ffn.out) && !l->ffn.adapter.down.weight && !t->params->team)
        return feed_onto(t, l, y, s);
    if (t->replaying && a->dropout == 0 && neb__lin_may_be_unread(&l->ffn.out) &&
        !l->ffn.adapter.down.weight && !t->params->team)
        return feed_last(t, l, y, s);
    y = feed_forward(t, l, y);
    return neb_op_residual(t, y, s, a->dropout);
}

static neb_tensor *run_post(neb_tape *t, const struct neb_layer_call *c, neb_tensor *x)
{
    const struct neb_layer *l = c->layer;
    x = join(t, l->arch, &l->attention.norm, self_attention(t, c, x), x, NULL);
    if (l->has_cross) x = join(t, l->arch, &l->cross.norm, cross_attention(t, c, x), x, NULL);
    return join(t, l->arch, &l->ffn.norm, feed_forward(t, l, x), x, NULL);
}

neb_tensor *neb__layer_run(neb_tape *t, void *call, neb_tensor *x)
{
    const struct neb_layer_call *c = call;
    neb_push(t, "layers.%d", c->number);
    const int64_t shared = neb__team_rows(t, c->shared_rows);
    /* a recomputed layer may run after one of the other side */
    neb__team_set_rows(t, c->side->sample, c->side->at);
    x = c->layer->arch->pre_norm ? run_pre(t, c, x) : run_post(t, c, x);
    neb__team_rows(t, shared);
    neb_pop(t);
    return x;
}
