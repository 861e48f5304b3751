/* hf_config_t5.c: config.json of T5 and mT5.
 *
 * Version 1.0 has ReLU and one table for tokens and output, before which it divides by the square root of the
 * width. Version 1.1 and mT5 have a gate with tanh-GELU and an output of their own. scale_decoder_outputs says
 * whether the output is divided, in older files tie_word_embeddings (of T5; mT5's never is); whether it is the
 * token table, only the tensors say (hf_import.c). All have one table of distances for the layers of a stack,
 * norms without a mean, no biases, and scores that are not scaled. A key that is not known here is refused, and
 * so is one that contradicts another. No table has a row for each position, so max_positions is only a bound
 * for the batches. */
#include "task/hf.h"

#include <jansson.h>
#include <string.h>

/* Keys that are read below, or that change nothing that is computed here: training, generation, housekeeping. */
static const char *const known[] = {
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "dropout_rate",
    "layer_norm_epsilon",
    "initializer_factor",
    "feed_forward_proj",
    "dense_act_fn",
    "is_gated_act",
    "n_positions",
    "scale_decoder_outputs",
    "classifier_dropout",
};

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* What is written as feed_forward_proj there, the activation that it computes there, and ours. */
static const struct feed {
    const char *theirs, *act, *ours;
    bool gated;
} feeds[] = {{"relu", "relu", "relu", false},
             {"gelu", "gelu", "gelu", false},
             {"gelu_new", "gelu_new", "gelu_tanh", false},
             {"silu", "silu", "silu", false},
             {"gated-gelu", "gelu_new", "geglu", true},
             {"gated-silu", "silu", "swiglu", true}};
enum { FEEDS = sizeof feeds / sizeof *feeds };

/* Files repeat the activation in other words, and there these win. */
static neb_status check_repeated(const json_t *j, const struct feed *f)
{
    const char *act;
    bool gated;
    NEB_TRY(neb__hf_text(j, "dense_act_fn", &act));
    NEB_TRY(neb__hf_flag(j, "is_gated_act", f->gated, &gated));
    if (act && strcmp(act, f->act)) return neb__hf_refuse("dense_act_fn", "contradicts feed_forward_proj");
    if (gated != f->gated) return neb__hf_refuse("is_gated_act", "contradicts feed_forward_proj");
    return NEB_OK;
}

static neb_status read_feed(const json_t *j, struct neb_hf_config *c, struct neb_model_config *m)
{
    const json_t *v = json_object_get(j, "feed_forward_proj");
    const char *text = v ? json_string_value(v) : "relu";
    int i = 0;
    while (text && i < FEEDS && strcmp(feeds[i].theirs, text)) i++;
    if (!text || i == FEEDS)
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "config.json, 'feed_forward_proj': '%.40s' is not relu, gelu, gelu_new, silu, "
                         "gated-gelu or gated-silu",
                         text ? text : "");
    NEB_TRY(check_repeated(j, &feeds[i]));
    c->kind = feeds[i].gated ? NEB_HF_T5_GATED : NEB_HF_T5;
    return neb__opts_set(neb__model_options, m, "activation", feeds[i].ours);
}

static neb_status read_sizes(const json_t *j, struct neb_model_config *m)
{
    NEB_TRY(neb__hf_whole(j, "vocab_size", -1, &m->vocab));
    NEB_TRY(neb__hf_whole(j, "d_model", -1, &m->hidden));
    NEB_TRY(neb__hf_whole(j, "d_kv", -1, &m->head_dim));
    NEB_TRY(neb__hf_whole(j, "d_ff", -1, &m->ffn));
    NEB_TRY(neb__hf_whole(j, "num_layers", -1, &m->layers));
    NEB_TRY(neb__hf_whole(j, "num_decoder_layers", m->layers, &m->decoder_layers));
    NEB_TRY(neb__hf_whole(j, "num_heads", -1, &m->heads));
    NEB_TRY(neb__hf_whole(j, "relative_attention_num_buckets", 32, &m->relative_buckets));
    NEB_TRY(neb__hf_whole(j, "relative_attention_max_distance", 128, &m->relative_distance));
    NEB_TRY(neb__hf_whole(j, "n_positions", 512, &m->max_positions));
    if (!m->head_dim || !m->ffn) return neb__hf_refuse(m->ffn ? "d_kv" : "d_ff", "0 is not supported");
    if (!m->decoder_layers) return neb__hf_refuse("num_decoder_layers", "0 is not supported");
    return NEB_OK;
}

neb_status neb__hf_t5_read(const struct json_t *j, struct neb_hf_config *c, struct neb_model_config *m)
{
    NEB_TRY(neb__hf_known_keys(j, known, sizeof known / sizeof *known));
    NEB_TRY(neb__hf_only(j, "is_encoder_decoder", true));
    NEB_TRY(read_sizes(j, m));
    NEB_TRY(read_feed(j, c, m));
    NEB_TRY(neb__hf_real(j, "layer_norm_epsilon", 1e-6, &m->norm_eps));
    NEB_TRY(neb__hf_real(j, "dropout_rate", 0.1, &m->dropout));
    if (c->pad < 0) c->pad = 0;
    if (c->start < 0) c->start = c->pad;
    m->attention_dropout = m->dropout;
    const bool t5 = !strcmp(json_string_value(json_object_get(j, "model_type")), "t5");
    m->tied = c->tied;
    NEB_TRY(neb__hf_flag(j, "scale_decoder_outputs", t5 && c->tied, &m->head_scale));
    m->bias = m->attention_scale = false;
    NEB_TRY(neb__opts_set(neb__model_options, m, "kind", "encoder-decoder"));
    NEB_TRY(neb__opts_set(neb__model_options, m, "positions", "relative"));
    NEB_TRY(neb__opts_set(neb__model_options, m, "norm", "rms"));
    return neb__opts_set(neb__model_options, m, "norm_place", "pre");
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

static const struct feed *feed_of(const struct neb_model_config *m)
{
    for (int i = 0; i < FEEDS; i++)
        if (!strcmp(feeds[i].ours, m->activation)) return &feeds[i];
    return NULL;
}

const char *neb__hf_t5_misfit(const struct neb_model_config *m, const struct neb_arch *a, const char **value)
{
    const struct {
        bool is;
        const char *option, *value;
    } wrong[] = {{a->norm != NEB_NORM_RMS, "norm", m->norm},
                 {!a->pre_norm, "norm_place", m->norm_place},
                 {a->bias || a->qkv_bias, a->bias ? "bias" : "qkv_bias", "yes"},
                 {a->attention_scale, "attention_scale", "yes"},
                 {!feed_of(m), "activation", m->activation},
                 {a->kv_heads != a->heads, "kv_heads", "fewer than heads"},
                 {a->qk_norm, "qk_norm", "yes"},
                 {a->embedding_norm || a->embedding_scale, "embedding_norm or embedding_scale", "yes"},
                 {a->head_bias, "head_bias", "yes"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (wrong[i].is) {
            *value = wrong[i].value;
            return wrong[i].option;
        }
    return NULL;
}

neb_status neb__hf_t5_write(const struct neb_model_yaml *f, const struct neb_arch *a,
                            const struct neb_tok *tok, struct json_t *j)
{
    const struct neb_model_config *m = &f->model;
    const struct feed *feed = feed_of(m);
    json_t *more = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:s, s:b, s:b, s:b}", "model_type",
        "t5", "d_model", (json_int_t)a->hidden, "d_kv", (json_int_t)a->head_dim, "d_ff", (json_int_t)a->ffn,
        "num_layers", (json_int_t)a->layers, "num_decoder_layers", (json_int_t)a->decoder_layers, "num_heads",
        (json_int_t)a->heads, "relative_attention_num_buckets", (json_int_t)a->relative_buckets,
        "relative_attention_max_distance", (json_int_t)a->relative_distance, "n_positions",
        (json_int_t)a->max_positions, "layer_norm_epsilon", m->norm_eps, "dropout_rate", m->dropout,
        "feed_forward_proj", feed->theirs, "dense_act_fn", feed->act, "is_gated_act", feed->gated,
        "scale_decoder_outputs", a->head_scale, "is_encoder_decoder", 1);
    bool bad = !more || json_object_update(j, more);
    json_decref(more);
    if (json_is_null(json_object_get(j, "bos_token_id"))) bad |= json_object_del(j, "bos_token_id") != 0;
    const int64_t start = neb__hf_start_of(f, tok);
    if (!json_object_get(j, "decoder_start_token_id"))
        bad |= json_object_set_new(j, "decoder_start_token_id", json_integer(start >= 0 ? start : 0)) != 0;
    if (json_is_null(json_object_get(j, "pad_token_id")))
        bad |= json_object_set_new(j, "pad_token_id", json_integer(0)) != 0;
    if (!tok && json_is_null(json_object_get(j, "eos_token_id")))
        bad |= json_object_set_new(j, "eos_token_id", json_integer(1)) != 0;
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for config.json") : NEB_OK;
}
