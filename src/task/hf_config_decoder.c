/* hf_config_decoder.c: config.json of Llama, Mistral, Qwen 2, Qwen 3 and Gemma.
 *
 * They are one architecture (rotary positions, RMS norms, SwiGLU, grouped queries). Qwen 2 adds biases to queries,
 * keys and values, Qwen 3 norms to queries and keys. Gemma's gate has tanh-GELU, its norms multiply by 1 + weight
 * (hf_names.c) and its embeddings by the square root of the width. Newer files have the rotary numbers in rope_parameters, older
 * ones in rope_theta and rope_scaling. A key that is not known here may change a number: it is refused by its name,
 * unless it is known to be harmless. */
#include "task/hf.h"
#include "base/log.h"

#include <jansson.h>
#include <string.h>

enum { MISTRAL_WINDOW = 4096 };

/* ---- what may stand there ------------------------------------------------------------------------------- */

/* Keys that are read below, or that change nothing here: training, generation, how transformers works. */
static const char *const known[] = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "hidden_act",
    "hidden_activation",
    "attention_bias",
    "mlp_bias",
    "attention_dropout",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "partial_rotary_factor",
    "pretraining_tp",
};

/* An activation under either of its keys. */
static neb_status check_activation(const json_t *j, enum neb_hf_kind kind)
{
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    for (int i = 0; i < 2; i++) {
        const char *act;
        NEB_TRY(neb__hf_text(j, keys[i], &act));
        if (!act) continue;
        if (kind == NEB_HF_GEMMA && strcmp(act, "gelu_pytorch_tanh"))
            return neb__hf_refuse(keys[i], "only gelu_pytorch_tanh is supported for gemma");
        if (kind != NEB_HF_GEMMA && strcmp(act, "silu") && strcmp(act, "swish"))
            return neb__hf_refuse(keys[i], "only silu is supported");
    }
    return NEB_OK;
}

static neb_status check_keys(const json_t *j, enum neb_hf_kind kind)
{
    static const char *const off[] = {"mlp_bias", "attention_bias", "use_sliding_window",
                                      "is_encoder_decoder"};
    double partial;
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) NEB_TRY(neb__hf_only(j, off[i], false));
    NEB_TRY(neb__hf_real(j, "partial_rotary_factor", 1, &partial));
    if (partial < 1 || partial > 1) return neb__hf_refuse("partial_rotary_factor", "only 1 is supported");
    NEB_TRY(check_activation(j, kind));
    return neb__hf_known_keys(j, known, sizeof known / sizeof *known);
}

/* ---- rotary positions ------------------------------------------------------------------------------------ */

/* The type under its newer or its older key. */
static neb_status read_type(const json_t *r, const char **type)
{
    const char *old;
    NEB_TRY(neb__hf_text(r, "rope_type", type));
    NEB_TRY(neb__hf_text(r, "type", &old));
    if (*type && old && strcmp(*type, old)) return neb__hf_refuse("rope_type", "differs from 'type'");
    if (!*type) *type = old;
    if (!*type && json_object_get(r, "factor"))
        return neb__hf_refuse("factor", "stands there without a rope_type");
    return NEB_OK;
}

static neb_status read_scaling(const json_t *r, struct neb_model_config *m)
{
    const char *type;
    NEB_TRY(read_type(r, &type));
    m->rope_factor = 0, m->rope_low = 1, m->rope_high = 4;
    m->rope_original = 0;
    if (!type || !strcmp(type, "default")) return NEB_OK;
    bool llama3 = !strcmp(type, "llama3");
    if (!llama3 && strcmp(type, "linear"))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "config.json: rotary positions of type '%.40s' are not supported, only default, linear and "
            "llama3",
            type);
    NEB_TRY(neb__hf_real(r, "factor", 0, &m->rope_factor));
    if (!(m->rope_factor > 0)) return neb__hf_refuse("factor", "is missing or not above 0");
    if (!llama3) return NEB_OK;
    NEB_TRY(neb__hf_real(r, "low_freq_factor", 1, &m->rope_low));
    NEB_TRY(neb__hf_real(r, "high_freq_factor", 4, &m->rope_high));
    NEB_TRY(neb__hf_whole(r, "original_max_position_embeddings", 8192, &m->rope_original));
    return m->rope_original ? NEB_OK : neb__hf_refuse("original_max_position_embeddings", "is not possible");
}

/* Newer files have partial_rotary_factor here too. */
static neb_status check_rope(const json_t *r, const char *where)
{
    static const char *const fine[] = {"rope_theta",
                                       "rope_type",
                                       "type",
                                       "factor",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "original_max_position_embeddings"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r, key, value)
    {
        size_t i = 0;
        while (i < sizeof fine / sizeof *fine && strcmp(key, fine[i])) i++;
        bool one = !strcmp(key, "partial_rotary_factor") && json_number_value(value) == 1;
        if (i == sizeof fine / sizeof *fine && !one && !json_is_null(value) && !json_is_false(value))
            return neb__fail(NEB_ERR_UNSUPPORTED,
                             "config.json, '%s': '%.60s' is not known here and may change "
                             "what is computed",
                             where, key);
    }
    return NEB_OK;
}

static bool same(double a, double b)
{
    return !(a < b) && !(a > b);
}

/* One of the two objects that say it; null says nothing. */
static neb_status read_rope_object(const json_t *j, const char *key, struct neb_model_config *m, bool *there)
{
    const json_t *r = json_object_get(j, key);
    *there = r && !json_is_null(r);
    if (!*there) return NEB_OK;
    if (!json_is_object(r)) return neb__fail(NEB_ERR_CORRUPT, "config.json, '%s': is not an object", key);
    NEB_TRY(read_scaling(r, m)); /* first: it names a type that is not supported */
    const double outside = m->rope_base;
    NEB_TRY(neb__hf_real(r, "rope_theta", outside, &m->rope_base));
    if (json_is_number(json_object_get(j, "rope_theta")) && !same(m->rope_base, outside))
        return neb__hf_refuse("rope_theta", "is another number there than beside it");
    return check_rope(r, key);
}

static bool same_rope(const struct neb_model_config *a, const struct neb_model_config *b)
{
    return same(a->rope_base, b->rope_base) && same(a->rope_factor, b->rope_factor) &&
           same(a->rope_low, b->rope_low) && same(a->rope_high, b->rope_high) &&
           a->rope_original == b->rope_original;
}

/* transformers 4 reads rope_theta and rope_scaling, 5 prefers rope_scaling to rope_parameters. All that are there must say
 * the same. */
static neb_status read_rope(const json_t *j, struct neb_model_config *m)
{
    struct neb_model_config now = *m;
    bool is_new, is_old;
    NEB_TRY(neb__hf_real(j, "rope_theta", 10000, &m->rope_base));
    now.rope_base = m->rope_base;
    NEB_TRY(read_rope_object(j, "rope_parameters", &now, &is_new));
    m->rope_base = now.rope_base;
    NEB_TRY(read_rope_object(j, "rope_scaling", m, &is_old));
    if (is_new && is_old && !same_rope(m, &now))
        return neb__hf_refuse("rope_scaling", "differs from rope_parameters; only one of both can be meant");
    if (!is_new) return NEB_OK;
    m->rope_factor = now.rope_factor;
    m->rope_low = now.rope_low;
    m->rope_high = now.rope_high;
    m->rope_original = now.rope_original;
    return NEB_OK;
}

/* A model that looks back through a window computes the same as ours on texts that fit into the window. */
static neb_status read_window(const json_t *j, struct neb_model_config *m)
{
    const json_t *kinds = json_object_get(j, "layer_types");
    bool slides = false;
    int64_t window = 0;
    if (kinds && !json_is_null(kinds) && !json_is_array(kinds))
        return neb__fail(NEB_ERR_CORRUPT, "config.json, 'layer_types': is not a list");
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        if (!kind || (strcmp(kind, "full_attention") && strcmp(kind, "sliding_attention")))
            return neb__hf_refuse("layer_types", "has a kind of layer that is not supported");
        slides |= !strcmp(kind, "sliding_attention");
    }
    /* only Mistral's window is in use without another key that says so; its class has one where the file does not say it */
    const bool mistral = !strcmp(json_string_value(json_object_get(j, "model_type")), "mistral");
    if (!json_is_array(kinds)) slides = mistral;
    const json_t *v = json_object_get(j, "sliding_window");
    const bool given = v && !json_is_null(v);
    if (given) NEB_TRY(neb__hf_whole(j, "sliding_window", -1, &window));
    if (given && slides && window < 1) return neb__hf_refuse("sliding_window", "is not possible");
    if (!v && mistral) window = MISTRAL_WINDOW;
    if (!slides || !window || window >= m->max_positions) return NEB_OK;
    m->max_positions = window;
    neb__warn("config.json, 'sliding_window': this model is used for texts of up to %" PRId64
              " tokens, where its window changes nothing",
              m->max_positions);
    return NEB_OK;
}

/* What head_dim is where the file does not say it; 0: hidden / heads. */
static int64_t default_head(enum neb_hf_kind kind)
{
    if (kind == NEB_HF_GEMMA) return 256;
    return kind == NEB_HF_QWEN3 ? 128 : 0;
}

neb_status neb__hf_decoder_read(const struct json_t *j, enum neb_hf_kind kind, struct neb_model_config *m)
{
    NEB_TRY(check_keys(j, kind));
    NEB_TRY(neb__hf_whole(j, "vocab_size", -1, &m->vocab));
    NEB_TRY(neb__hf_whole(j, "hidden_size", -1, &m->hidden));
    NEB_TRY(neb__hf_whole(j, "intermediate_size", -1, &m->ffn));
    NEB_TRY(neb__hf_whole(j, "num_hidden_layers", -1, &m->layers));
    NEB_TRY(neb__hf_whole(j, "num_attention_heads", -1, &m->heads));
    NEB_TRY(neb__hf_whole(j, "num_key_value_heads", m->heads, &m->kv_heads));
    NEB_TRY(neb__hf_whole(j, "head_dim", default_head(kind), &m->head_dim));
    if (!m->head_dim && m->heads) m->head_dim = m->hidden / m->heads;
    NEB_TRY(neb__hf_whole(j, "max_position_embeddings", 2048, &m->max_positions));
    NEB_TRY(neb__hf_real(j, "rms_norm_eps", 1e-6, &m->norm_eps));
    NEB_TRY(neb__hf_real(j, "attention_dropout", 0, &m->attention_dropout));
    NEB_TRY(read_rope(j, m));
    NEB_TRY(read_window(j, m));
    m->dropout = 0;
    m->bias = m->head_bias = m->embedding_norm = false;
    m->qkv_bias = kind == NEB_HF_QWEN2;
    m->qk_norm = kind == NEB_HF_QWEN3;
    m->embedding_scale = kind == NEB_HF_GEMMA;
    const char *const set[][2] = {{"kind", "decoder"},
                                  {"positions", "rope"},
                                  {"norm", "rms"},
                                  {"norm_place", "pre"},
                                  {"activation", kind == NEB_HF_GEMMA ? "geglu" : "swiglu"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        NEB_TRY(neb__opts_set(neb__model_options, m, set[i][0], set[i][1]));
    return NEB_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

static json_t *rope_of(const struct neb_model_config *m)
{
    json_t *r = json_pack("{s:f, s:s}", "rope_theta", m->rope_base, "rope_type", "default");
    if (!r || !(m->rope_factor > 0)) return r;
    json_t *more =
        m->rope_original
            ? json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", m->rope_factor,
                        "low_freq_factor", m->rope_low, "high_freq_factor", m->rope_high,
                        "original_max_position_embeddings", (json_int_t)m->rope_original)
            : json_pack("{s:s, s:f}", "rope_type", "linear", "factor", m->rope_factor);
    bool bad = !more || json_object_update(r, more);
    json_decref(more);
    if (!bad) return r;
    json_decref(r);
    return NULL;
}

/* rope_theta and rope_scaling are for transformers before 5, which does not know rope_parameters. */
static bool add_rope(const struct neb_model_config *m, json_t *j)
{
    json_t *now = rope_of(m), *old = m->rope_factor > 0 ? rope_of(m) : NULL;
    bool bad = !now || json_object_set(j, "rope_parameters", now) ||
               json_object_set_new(j, "rope_theta", json_real(m->rope_base));
    if (old) bad |= json_object_set(j, "rope_scaling", old) != 0;
    json_decref(now);
    json_decref(old);
    return bad;
}

neb_status neb__hf_decoder_write(const struct neb_model_yaml *f, const struct neb_arch *a,
                                 enum neb_hf_kind kind, struct json_t *j)
{
    static const char *const types[] = {[NEB_HF_LLAMA] = "llama",
                                        [NEB_HF_MISTRAL] = "mistral",
                                        [NEB_HF_QWEN2] = "qwen2",
                                        [NEB_HF_QWEN3] = "qwen3",
                                        [NEB_HF_GEMMA] = "gemma"};
    const struct neb_model_config *m = &f->model;
    json_t *more =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:f}", "model_type", types[kind],
                  "hidden_size", (json_int_t)a->hidden, "num_hidden_layers", (json_int_t)a->layers,
                  "num_attention_heads", (json_int_t)a->heads, "num_key_value_heads", (json_int_t)a->kv_heads,
                  "head_dim", (json_int_t)a->head_dim, "intermediate_size", (json_int_t)a->ffn,
                  "max_position_embeddings", (json_int_t)a->max_positions, "rms_norm_eps", m->norm_eps,
                  "attention_dropout", m->attention_dropout, "hidden_act",
                  a->gelu_gate ? "gelu_pytorch_tanh" : "silu", "initializer_range", m->init_deviation);
    bool bad = !more || json_object_update(j, more) || add_rope(m, j);
    json_decref(more);
    if (kind == NEB_HF_MISTRAL) bad |= json_object_set_new(j, "sliding_window", json_null()) != 0;
    if (kind == NEB_HF_GEMMA)
        bad |= json_object_set_new(j, "hidden_activation", json_string("gelu_pytorch_tanh")) != 0;
    if (kind == NEB_HF_LLAMA || kind == NEB_HF_QWEN3 || kind == NEB_HF_GEMMA)
        bad |= json_object_set_new(j, "attention_bias", json_false()) != 0;
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for config.json") : NEB_OK;
}
