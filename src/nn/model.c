/* model.c: building a model and running its stacks.
 *
 * Names: embed.token.weight belongs to the model. All other parameters of a stack are under encoder. or
 * decoder., and the output is under head. So all kinds of models use the same names, and a pattern such as
 * "decoder.layers.*" matches what it says. */
#include "nn/model.h"
#include "base/mem.h"
#include "tensor/slot.h"
#include "tensor/tape.h"
#include "tensor/team.h"

#include <math.h>
#include <string.h>

/* ---- building ------------------------------------------------------------------------------------------ */

static void build_embedding(struct neb_builder *b, struct neb_stack *s)
{
    const struct neb_arch *a = b->arch;
    size_t mark = neb__builder_enter(b, "embed");
    if (a->positions == NEB_POSITIONS_LEARNED)
        s->position = neb__builder_matrix(b, "position.weight", a->max_positions, a->embedding,
                                          NEB_INIT_NORMAL, a->deviation, NEB_SPLIT_NONE);
    if (neb__positions_computed(a->positions)) /* values: neb__model_ready() */
        s->position = neb__builder_matrix(b, "sinusoid.weight", a->max_positions, a->embedding, NEB_INIT_ZERO,
                                          0, NEB_SPLIT_NONE);
    if (a->positions == NEB_POSITIONS_RELATIVE)
        s->relative_table = neb__builder_vector(b, "relative.weight", a->relative_buckets * a->heads,
                                                NEB_INIT_ZERO, NEB_SPLIT_NONE);
    if (a->types)
        s->type = neb__builder_matrix(b, "type.weight", a->types, a->embedding, NEB_INIT_NORMAL, a->deviation,
                                      NEB_SPLIT_NONE);
    if (a->embedding_norm) s->embed_norm = neb__norm_build(b, "norm", a->embedding);
    if (a->embedding != a->hidden)
        s->project = neb__lin_build(
            b, &(struct neb_lin_spec){
                   "project", a->embedding, a->hidden, a->deviation, a->bias, NEB_SPLIT_NONE, {0}, {0}});
    neb__builder_leave(b, mark);
}

static neb_status make_calls(struct neb_stack *s, int slots)
{
    if (!s->count) return NEB_OK;
    struct neb_layer_call *calls = NEB_NEW_ARRAY(struct neb_layer_call, (size_t)s->count * (size_t)slots);
    if (!calls) return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " layers", s->count);
    neb__free(s->calls);
    s->calls = calls;
    return NEB_OK;
}

neb_status neb__model_set_slots(struct neb_model *m, int slots)
{
    NEB_TRY(make_calls(&m->encoder, slots));
    NEB_TRY(make_calls(&m->decoder, slots));
    m->slots = slots;
    return NEB_OK;
}

/* before: layers of the stacks before this one. */
static neb_status build_stack(struct neb_builder *b, struct neb_model *m, int64_t before, bool cross,
                              struct neb_stack *s)
{
    s->layers = NEB_NEW_ARRAY(struct neb_layer, (size_t)s->count);
    if (!s->layers)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " layers of the %s", s->count, s->name);
    NEB_TRY(make_calls(s, 1));
    size_t mark = neb__builder_enter(b, "%s", s->name);
    b->elsewhere = !neb__stage_has_layer(&m->stage, before);
    if (b->arch->positions == NEB_POSITIONS_RELATIVE)
        neb__relative_buckets(b->arch->relative_buckets, b->arch->relative_distance, s == &m->encoder,
                              &s->relative);
    build_embedding(b, s);
    for (int64_t i = 0; i < s->count; i++) {
        size_t layer = neb__builder_enter(b, "layers.%d", (int)i);
        b->elsewhere = !neb__stage_has_layer(&m->stage, before + i);
        neb__layer_build(b, cross, s == &m->decoder, &s->layers[i]);
        neb__builder_leave(b, layer);
    }
    if (b->arch->pre_norm) s->norm = neb__norm_build(b, "norm", b->arch->hidden);
    neb__builder_leave(b, mark);
    return NEB_OK;
}

/* Deviation of a table's initial values. With a scale of sqrt(hidden) it makes scaled embeddings have
 * deviation 1. */
static float table_deviation(const struct neb_arch *a)
{
    if (a->head_scale) return 1; /* the output divides by sqrt(hidden) */
    return a->embedding_scale ? 1.0f / sqrtf((float)a->embedding) : a->deviation;
}

/* Processes that share the model's layers take whole heads and equal parts of the feed-forward layers. */
static neb_status check_team(const struct neb_model *m, const struct neb_model *embeddings)
{
    const struct neb_arch *a = &m->arch;
    const struct neb_team *team = m->params->team;
    const struct {
        const char *name;
        int64_t value;
    } cut[] = {{"heads", a->heads}, {"kv_heads", a->kv_heads}, {"ffn", a->ffn}};
    if (!team) return NEB_OK;
    if (a->positions == NEB_POSITIONS_RELATIVE)
        return neb__fail(
            NEB_ERR_CONFIG,
            "parallel.tensor is %d: a model with positions: relative needs tensor 1; use parallel.data",
            team->size);
    for (int i = 0; i < 3; i++)
        if (cut[i].value % team->size)
            return neb__fail(NEB_ERR_CONFIG,
                             "parallel.tensor is %d, but model.%s is %" PRId64
                             ", which %d processes cannot share equally",
                             team->size, cut[i].name, cut[i].value, team->size);
    if (a->vocab < team->size)
        return neb__fail(NEB_ERR_CONFIG, "parallel.tensor is %d, but model.vocab is %" PRId64, team->size,
                         a->vocab);
    if (embeddings)
        return neb__fail(NEB_ERR_CONFIG, "parallel.tensor is %d: an objective of two models needs tensor 1",
                         team->size);
    if (a->qk_norm) /* every process would have a part of these norms' gradients */
        return neb__fail(NEB_ERR_CONFIG, "parallel.tensor is %d: a model with qk_norm needs tensor 1",
                         team->size);
    if (m->peft.dora || m->peft.ia3 || m->peft.prompt)
        return neb__fail(
            NEB_ERR_CONFIG,
            "parallel.tensor is %d: peft.lora_dora and the methods ia3 and prompt need tensor 1; "
            "use parallel.data",
            team->size);
    if (m->peft.lora && m->peft.lora_dropout > 0)
        return neb__fail(NEB_ERR_CONFIG, "parallel.tensor is %d: peft.lora_dropout must be 0, it is %g",
                         team->size, (double)m->peft.lora_dropout);
    return NEB_OK;
}

static bool is_cut(const struct neb_model *m)
{
    return m->stage.range.first > 0 || m->stage.range.end < neb__stage_layers(&m->arch) ||
           m->stage.hole.end > m->stage.hole.first;
}

/* All layers of a stack read one table, and distances count tokens of the text alone. */
static neb_status check_relative(const struct neb_model *m)
{
    if (m->arch.positions != NEB_POSITIONS_RELATIVE) return NEB_OK;
    if (is_cut(m))
        return neb__fail(
            NEB_ERR_CONFIG,
            "a model with positions: relative cannot be cut into stages, because all layers share a "
            "table of distances: parallel.pipeline must be 1, and the strategy another than pipeline");
    if (m->peft.prefix)
        return neb__fail(
            NEB_ERR_CONFIG,
            "option 'method': prefix has no distances, which a model with positions: relative needs; "
            "take lora, ia3 or adapter");
    return NEB_OK;
}

/* Virtual tokens behind the vocabulary (Lester et al. 2021). */
static neb_status build_prompt(struct neb_model *m, struct neb_builder *b)
{
    const struct neb_arch *a = &m->arch;
    if (a->kind != NEB_DECODER)
        return neb__fail(NEB_ERR_CONFIG,
                         "option 'method': prompt is for decoders; an encoder takes prefix, lora or ia3");
    if (is_cut(m))
        return neb__fail(NEB_ERR_CONFIG,
                         "parallel.pipeline: the method prompt needs pipeline 1; use parallel.data");
    if (m->peft.prompt_length >= a->max_positions)
        return neb__fail(NEB_ERR_CONFIG,
                         "option 'prompt_length': %" PRId64 " leaves no room for text: the model has %" PRId64
                         " positions",
                         m->peft.prompt_length, a->max_positions);
    m->prompt = neb__builder_matrix(b, "embed.prompt.weight", m->peft.prompt_length, a->embedding,
                                    NEB_INIT_NORMAL, table_deviation(a), NEB_SPLIT_NONE);
    if (m->prompt) m->prompt->first_id = a->vocab;
    return NEB_OK;
}

static neb_status build(struct neb_model *m, struct neb_builder *b, const struct neb_model *embeddings)
{
    const struct neb_arch *a = &m->arch;
    NEB_TRY(check_team(m, embeddings));
    if (embeddings && (embeddings->arch.vocab != a->vocab || embeddings->arch.embedding != a->embedding))
        return neb__fail(NEB_ERR_CONFIG,
                         "model options 'vocab' and 'embedding': %" PRId64 " and %" PRId64
                         " must equal the %" PRId64 " and %" PRId64
                         " of the model whose embeddings are shared",
                         a->vocab, a->embedding, embeddings->arch.vocab, embeddings->arch.embedding);
    bool delta = embeddings && a->embedding_delta;
    if (!m->stage.range.end) m->stage.range.end = neb__stage_layers(a); /* the whole model */
    NEB_TRY(check_relative(m));
    if (delta && a->head == NEB_HEAD_TOKENS && a->tied)
        return neb__fail(NEB_ERR_CONFIG,
                         "model option 'embedding_delta': the output of a model with head 'tokens' cannot be "
                         "tied to a difference; set tied: no");
    m->token_base = delta ? embeddings->token : NULL;
    b->elsewhere = !neb__stage_has_table(a, &m->stage.range);
    b->copy = !b->elsewhere && m->stage.range.first > 0; /* the first stage has it as well */
    if (embeddings && !delta)
        m->token = embeddings->token;
    else
        m->token =
            neb__builder_matrix(b, "embed.token.weight", a->vocab, a->embedding,
                                delta ? NEB_INIT_ZERO : NEB_INIT_NORMAL, table_deviation(a), NEB_SPLIT_ROW);
    b->copy = false;
    if (m->peft.prompt) NEB_TRY(build_prompt(m, b));
    if (a->kind != NEB_DECODER) m->encoder = (struct neb_stack){.name = "encoder", .count = a->layers};
    if (a->kind != NEB_ENCODER)
        m->decoder = (struct neb_stack){.name = "decoder",
                                        .count = a->kind == NEB_DECODER ? a->layers : a->decoder_layers};
    if (m->encoder.count) NEB_TRY(build_stack(b, m, 0, false, &m->encoder));
    if (m->decoder.count) NEB_TRY(build_stack(b, m, m->encoder.count, m->encoder.count > 0, &m->decoder));
    b->elsewhere = !neb__stage_is_last(a, &m->stage.range);
    neb__head_build(b, m);
    return neb__peft_apply(m, b);
}

neb_status neb__model_create_table(const struct neb_model_config *config, const char *prefix,
                                   neb_params *params, struct neb_model **out)
{
    struct neb_model *m = NEB_NEW(struct neb_model);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a token table");
    m->params = params;
    m->peft.full = true;
    struct neb_builder b = {.params = params, .arch = &m->arch, .peft = &m->peft, .root = strlen(prefix)};
    snprintf(m->prefix, sizeof m->prefix, "%s", prefix);
    snprintf(b.path, sizeof b.path, "%s", prefix);
    neb_status status = neb__model_config_check(config, &m->arch);
    if (status != NEB_OK) {
        neb__model_destroy(m);
        return status;
    }
    m->token = neb__builder_matrix(&b, "embed.token.weight", m->arch.vocab, m->arch.embedding,
                                   NEB_INIT_NORMAL, table_deviation(&m->arch), NEB_SPLIT_ROW);
    neb_params_trainable(params, neb_param_name(m->token), false);
    *out = m;
    return NEB_OK;
}

static neb_status create(const struct neb_model_config *config, const struct neb_peft_config *peft,
                         const char *prefix, const struct neb_model *embeddings,
                         const struct neb_stage_range *range, const struct neb_stage_range *hole,
                         neb_params *params, struct neb_model **out)
{
    struct neb_model *m = NEB_NEW(struct neb_model);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a model");
    m->params = params;
    m->slots = 1;
    if (range) m->stage.range = *range;
    if (hole) m->stage.hole = *hole;
    m->peft.full = true;
    struct neb_builder b = {.params = params,
                            .arch = &m->arch,
                            .peft = &m->peft,
                            .root = strlen(prefix),
                            .first = neb_params_count(params)};
    neb_status status = NEB_OK;
    if (b.root >= sizeof m->prefix)
        status = neb__fail(NEB_ERR_INVALID, "the model prefix '%s' is longer than %zu bytes", prefix,
                           sizeof m->prefix - 1);
    if (status == NEB_OK) {
        memcpy(m->prefix, prefix, b.root + 1);
        memcpy(b.path, prefix, b.root + 1);
        status = neb__model_config_check(config, &m->arch);
    }
    m->outputs = m->arch.vocab;
    if (status == NEB_OK && peft) status = neb__peft_config_check(peft, &m->peft);
    if (status == NEB_OK) status = build(m, &b, embeddings);
    m->peft.lora_on = m->peft.ia3_on = m->peft.ia3_in = m->peft.train = m->peft.freeze =
        NULL; /* they belong to the config */
    if (status != NEB_OK) {
        neb__model_destroy(m);
        return status;
    }
    *out = m;
    return NEB_OK;
}

neb_status neb__model_create(const struct neb_model_config *config, const struct neb_peft_config *peft,
                             const char *prefix, const struct neb_model *embeddings, neb_params *params,
                             struct neb_model **out)
{
    return create(config, peft, prefix, embeddings, NULL, NULL, params, out);
}

neb_status neb__model_create_stage(const struct neb_model_config *config, const struct neb_peft_config *peft,
                                   const struct neb_stage_range *range, const struct neb_stage_range *hole,
                                   neb_params *params, struct neb_model **out)
{
    return create(config, peft, "", NULL, range, hole, params, out);
}

void neb__model_destroy(struct neb_model *m)
{
    if (!m) return;
    neb__free(m->encoder.layers);
    neb__free(m->encoder.calls);
    neb__free(m->decoder.layers);
    neb__free(m->decoder.calls);
    neb__free(m);
}

void neb__model_input_fit(const struct neb_model *m, struct neb_model_input_limits *limits)
{
    limits->prefix = (int32_t)m->peft.prefix_length;
    limits->prompt = (int32_t)m->peft.prompt_length;
    limits->prompt_id = (int32_t)m->arch.vocab;
    limits->positions = (int32_t)m->arch.max_positions;
}

void neb__model_set_outputs(struct neb_model *m, int64_t tokens)
{
    if (tokens < m->arch.vocab) m->outputs = tokens;
}

void neb__sinusoid_row(enum neb_positions kind, int64_t row, int64_t d, float *out)
{
    const int64_t half = d / 2;
    const bool fairseq = kind == NEB_POSITIONS_FAIRSEQ;
    const double step = fairseq ? -1.0 / (double)(half - 1) : -2.0 / (double)d;
    for (int64_t j = 0; j < half; j++) {
        double angle = (double)(row + (fairseq ? 2 : 0)) * pow(10000.0, step * (double)j);
        out[j] = (float)sin(angle);
        out[half + j] = (float)cos(angle);
    }
}

static neb_status write_sinusoid(neb_param *p, enum neb_positions kind)
{
    int64_t shape[4];
    neb_param_shape(p, shape);
    int64_t rows = shape[0], d = shape[1];
    float *table = neb__malloc((size_t)(rows * d) * sizeof *table);
    if (!table) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", neb_param_name(p));
    for (int64_t r = 0; r < rows; r++) neb__sinusoid_row(kind, r, d, table + r * d);
    neb_status status = neb_param_write(p, table);
    neb__free(table);
    return status;
}

neb_status neb__model_ready(struct neb_model *m)
{
    NEB_TRY(neb__dora_fill_all(m));
    if (m->arch.positions == NEB_POSITIONS_RELATIVE && !neb__device_has_relative(m->params->dev))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "this device has no attention with relative positions (model.positions: relative); use "
            "train.device: cpu, or the option --device cpu of a command");
    if (!neb__positions_computed(m->arch.positions)) return NEB_OK;
    if (m->encoder.count) NEB_TRY(write_sinusoid(m->encoder.position, m->arch.positions));
    if (m->decoder.count) NEB_TRY(write_sinusoid(m->decoder.position, m->arch.positions));
    return NEB_OK;
}

/* ---- running ------------------------------------------------------------------------------------------- */

static neb_tensor *run_embedding(const struct neb_model *m, const struct neb_stack *s, neb_tape *t,
                                 const struct neb_input_side *side)
{
    const struct neb_arch *a = &m->arch;
    neb_param *table[3] = {m->token}, *base = m->token_base, *prompt = m->prompt;
    neb_tensor *id[3] = {side->ids};
    float scale = sqrtf((float)a->embedding);
    int n = 1;
    neb_push(t, "embed");
    if (s->position) table[n] = s->position, id[n++] = side->position;
    if (s->type) table[n] = s->type, id[n++] = side->type;
    neb_tensor *x;
    if (n > 1 && (a->embedding_scale || m->params->team)) { /* positions are not scaled, and not cut */
        x = neb__op_leave(t, neb_op_embed(t, 1, table, id, a->embedding_scale ? scale : 1));
        x = neb_op_add(t, x, neb_op_embed(t, n - 1, table + 1, id + 1, 1));
    } else if (m->params->team) {
        x = neb__op_leave(t, neb_op_embed(t, 1, table, id, a->embedding_scale ? scale : 1));
    } else
        x = neb_op_embed(t, n, table, id, a->embedding_scale ? scale : 1);
    if (m->token_base) /* disentangled: this model reads the other model's table and never changes it */
        x = neb_op_add(
            t, x,
            neb_op_stop_gradient(t, neb_op_embed(t, 1, &base, &side->ids, a->embedding_scale ? scale : 1)));
    if (prompt) x = neb_op_add(t, x, neb_op_embed(t, 1, &prompt, &id[0], 1));
    if (s->embed_norm.gamma) x = neb__norm_run(t, &s->embed_norm, x);
    if (a->dropout > 0) x = neb_op_dropout(t, x, a->dropout);
    if (s->project.weight) x = neb__lin_run(t, &s->project, x, NEB_ACT_NONE);
    neb_pop(t);
    return x;
}

neb_tensor *neb__stack_run(struct neb_model *m, struct neb_stack *s, neb_tape *t,
                           const struct neb_stack_run *r)
{
    struct neb_layer_call *calls = s->calls + neb__tape_slot(t) % m->slots * s->count;
    neb_push(t, "%s%s", m->prefix, s->name);
    neb_set_rows(t, r->side->sample, r->side->at);
    neb_tensor *x = r->first ? r->x : run_embedding(m, s, t, r->side);
    const int64_t shared = x && !r->caches && neb__team_shares_rows(t) ? neb__tensor_rows(x) : 0;
    if (shared) {
        neb__team_rows(t, shared);
        x = neb__op_take_rows(t, x);
    }
    for (int64_t i = r->first; i < r->end; i++) {
        calls[i] = (struct neb_layer_call){.layer = &s->layers[i],
                                           .side = r->side,
                                           .memory_side = r->memory_side,
                                           .memory = r->memory,
                                           .relative = s->relative_table ? &s->relative : NULL,
                                           .relative_table = s->relative_table,
                                           .number = (int)i,
                                           .shared_rows = shared,
                                           .cache = r->caches ? &r->caches[i] : NULL,
                                           .at = r->at};
        x = m->arch.recompute && !r->caches ? neb_op_recompute(t, neb__layer_run, &calls[i], x)
                                            : neb__layer_run(t, &calls[i], x);
    }
    if (shared) {
        x = neb__op_join_rows(t, x);
        neb__team_rows(t, 0);
        neb_set_rows(t, r->side->sample, r->side->at);
    }
    if (s->norm.gamma && r->end == s->count) x = neb__norm_run(t, &s->norm, x);
    neb_pop(t);
    return x;
}

neb_tensor *neb__model_encode(struct neb_model *m, neb_tape *t, const struct neb_input_side *side)
{
    return neb__stack_run(m, &m->encoder, t, &(struct neb_stack_run){.side = side, .end = m->encoder.count});
}

neb_tensor *neb__model_decode(struct neb_model *m, neb_tape *t, const struct neb_input_side *side,
                              neb_tensor *memory, const struct neb_input_side *memory_side)
{
    return neb__stack_run(
        m, &m->decoder, t,
        &(struct neb_stack_run){
            .side = side, .memory_side = memory_side, .memory = memory, .end = m->decoder.count});
}

neb_tensor *neb__model_decode_cached(struct neb_model *m, neb_tape *t, const struct neb_input_side *side,
                                     const struct neb_layer_cache *caches, const struct neb_cache_input *at)
{
    return neb__stack_run(
        m, &m->decoder, t,
        &(struct neb_stack_run){.side = side, .caches = caches, .at = at, .end = m->decoder.count});
}

neb_tensor *neb__model_run(struct neb_model *m, neb_tape *t, const struct neb_input *in)
{
    if (m->stage.range.first || !neb__stage_is_last(&m->arch, &m->stage.range))
        return neb__stage_run(m, t, in);
    if (m->arch.kind == NEB_DECODER) return neb__model_decode(m, t, &in->side[0], NULL, NULL);
    neb_tensor *x = neb__model_encode(m, t, &in->side[0]);
    if (m->arch.kind == NEB_ENCODER) return x;
    return neb__model_decode(m, t, &in->side[1], x, &in->side[0]);
}
