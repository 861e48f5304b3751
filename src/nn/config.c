/* config.c: the model's option table, the families, and how a config becomes an architecture.
 *
 * A family is a list of options with values. The parser of job files applies it over the defaults, so a
 * family can hold only options that a user could write. */
#include "nn/config.h"

#include <nebula/device.h>
#include <stdarg.h>
#include <string.h>

enum { WIDTH = 1 << 20, DEPTH = 4096, HEADS = 4096, MOST = INT32_MAX - 1 };

#define OPT(field, ...) NEB_OPT(struct neb_model_config, field, __VA_ARGS__)

const struct neb_opt neb__model_options[] = {
    OPT(kind, NEB_OPT_TEXT, "encoder", NULL, "what it is made of",
        NEB_OPT_CHOICE("encoder", "decoder", "encoder-decoder")),
    OPT(vocab, NEB_OPT_INT, "0", "tokens", "size of the vocabulary", NEB_OPT_RANGE(0, MOST)),
    OPT(hidden, NEB_OPT_INT, "256", NULL, "width of the model", NEB_OPT_RANGE(1, WIDTH)),
    OPT(layers, NEB_OPT_INT, "4", NULL, "layers (of the encoder, where there are two)",
        NEB_OPT_RANGE(1, DEPTH)),
    OPT(decoder_layers, NEB_OPT_INT, "0", NULL, "encoder-decoder: layers of the decoder; 0: as the encoder",
        NEB_OPT_RANGE(0, DEPTH)),
    OPT(heads, NEB_OPT_INT, "4", NULL, "attention heads", NEB_OPT_RANGE(1, HEADS)),
    OPT(kv_heads, NEB_OPT_INT, "0", NULL, "key and value heads (grouped queries); 0: as heads",
        NEB_OPT_RANGE(0, HEADS)),
    OPT(head_dim, NEB_OPT_INT, "0", NULL, "width of a head; 0: hidden / heads", NEB_OPT_RANGE(0, 4096)),
    OPT(ffn, NEB_OPT_INT, "0", NULL,
        "width of the feed-forward; 0: 4 hidden, with swiglu and geglu 8/3 hidden",
        NEB_OPT_RANGE(0, 4 * WIDTH)),
    OPT(embedding, NEB_OPT_INT, "0", NULL, "encoder: width of the embeddings (ELECTRA); 0: hidden",
        NEB_OPT_RANGE(0, WIDTH)),
    OPT(max_positions, NEB_OPT_INT, "512", "tokens", "longest sequence",
        NEB_OPT_RANGE(1, 1 << 20)), /* dropout counts keys in 20 + 3 bits */
    OPT(types, NEB_OPT_INT, "0", NULL, "encoder: token types (segments); 0: none", NEB_OPT_RANGE(0, 1 << 16)),
    OPT(positions, NEB_OPT_TEXT, "learned", NULL, "how a token knows its place",
        NEB_OPT_CHOICE("none", "learned", "sinusoidal", "rope", "fairseq", "relative")),
    OPT(norm, NEB_OPT_TEXT, "layer", NULL, "kind of normalisation", NEB_OPT_CHOICE("layer", "rms")),
    OPT(norm_place, NEB_OPT_TEXT, "pre", NULL, "before a sublayer, or behind its residual",
        NEB_OPT_CHOICE("pre", "post")),
    OPT(activation, NEB_OPT_TEXT, "gelu", NULL, "of the feed-forward",
        NEB_OPT_CHOICE("gelu", "gelu_tanh", "silu", "relu", "swiglu", "geglu")),
    OPT(head, NEB_OPT_TEXT, "tokens", NULL, "what it puts out; rtd is replaced-token detection",
        NEB_OPT_CHOICE("none", "tokens", "rtd", "class")),
    OPT(pooling, NEB_OPT_TEXT, "first", NULL,
        "head class: which hidden state it reads, the first token's or the mean",
        NEB_OPT_CHOICE("first", "mean")),
    OPT(norm_eps, NEB_OPT_REAL, "1e-5", NULL, "added to the variance", NEB_OPT_RANGE(0, 1)),
    OPT(rope_base, NEB_OPT_REAL, "10000", NULL, "rope: base of the wavelengths", NEB_OPT_RANGE(1, 1e12)),
    OPT(rope_factor, NEB_OPT_REAL, "0", NULL, "rope: long wavelengths are stretched by this; 0: none",
        NEB_OPT_RANGE(0, 1e6)),
    OPT(rope_original, NEB_OPT_INT, "0", "tokens",
        "rope_factor: the length the model was trained on before; 0: all wavelengths are stretched",
        NEB_OPT_RANGE(0, 1 << 24)),
    OPT(rope_low, NEB_OPT_REAL, "1", NULL,
        "rope_original / rope_low: longer wavelengths are stretched in full", NEB_OPT_RANGE(0, 1e6)),
    OPT(rope_high, NEB_OPT_REAL, "4", NULL, "rope_original / rope_high: shorter wavelengths stay",
        NEB_OPT_RANGE(0, 1e6)),
    OPT(relative_buckets, NEB_OPT_INT, "32", NULL,
        "relative: numbers for the distances of two tokens; in an encoder half of them for each direction",
        NEB_OPT_RANGE(4, NEB_BIAS_BUCKETS)),
    OPT(relative_distance, NEB_OPT_INT, "128", "tokens", "relative: farther distances share the last number",
        NEB_OPT_RANGE(2, 1 << 20)),
    OPT(dropout, NEB_OPT_SHARE, "0.1", NULL, "of embeddings and sublayers", NEB_OPT_RANGE(0, 0.99)),
    OPT(attention_dropout, NEB_OPT_SHARE, "0.1", NULL, "of attention probabilities", NEB_OPT_RANGE(0, 0.99)),
    OPT(label_smoothing, NEB_OPT_SHARE, "0", NULL, "of the cross-entropy", NEB_OPT_RANGE(0, 0.99)),
    OPT(init_deviation, NEB_OPT_REAL, "0.02", NULL, "of initial weights", NEB_OPT_RANGE(0, 100)),
    OPT(classes, NEB_OPT_INT, "0", NULL, "head class: how many", NEB_OPT_RANGE(0, MOST)),
    OPT(embedding_norm, NEB_OPT_BOOL, "no", NULL, "normalise the embeddings"),
    OPT(embedding_scale, NEB_OPT_BOOL, "no", NULL, "multiply token embeddings by sqrt(hidden)"),
    OPT(embedding_delta, NEB_OPT_BOOL, "no", NULL,
        "with another model's token table: learn a difference to it and leave the table unchanged"),
    OPT(bias, NEB_OPT_BOOL, "yes", NULL, "biases in linear layers and norms"),
    OPT(qkv_bias, NEB_OPT_BOOL, "no", NULL, "with bias: no: biases of queries, keys and values all the same"),
    OPT(qk_norm, NEB_OPT_BOOL, "no", NULL, "normalise each head's queries and keys"),
    OPT(attention_scale, NEB_OPT_BOOL, "yes", NULL, "divide attention scores by sqrt(head_dim)"),
    OPT(head_scale, NEB_OPT_BOOL, "no", NULL,
        "multiply the last hidden states by 1/sqrt(hidden) before the output"),
    OPT(tied, NEB_OPT_BOOL, "yes", NULL, "the output weight is the token embedding"),
    OPT(head_bias, NEB_OPT_BOOL, "no", NULL, "a bias per token in the output"),
    OPT(residual_init, NEB_OPT_BOOL, "no", NULL,
        "divide the deviation of sublayer outputs by sqrt(2 layers)"),
    OPT(recompute, NEB_OPT_BOOL, "no", NULL, "keep no activations inside a layer; compute them again"),
    NEB_OPT_END,
};

/* name, then option=value pairs */
static const char *const families[][16] = {
    {"bert", "kind=encoder", "types=2", "norm_place=post", "embedding_norm=yes", "norm_eps=1e-12",
     "head_bias=yes"},
    {"xlm-r", "kind=encoder", "types=1", "norm_place=post", "embedding_norm=yes", "head_bias=yes"},
    {"electra", "kind=encoder", "types=2", "norm_place=post", "embedding_norm=yes", "norm_eps=1e-12",
     "embedding=128", "head=rtd", "head_bias=yes"},
    {"gpt2", "kind=decoder", "activation=gelu_tanh", "residual_init=yes"},
    {"llama", "kind=decoder", "positions=rope", "norm=rms", "activation=swiglu", "bias=no", "tied=no",
     "dropout=0", "attention_dropout=0"},
    {"gemma", "kind=decoder", "positions=rope", "norm=rms", "norm_eps=1e-6", "activation=geglu", "bias=no",
     "embedding_scale=yes", "dropout=0", "attention_dropout=0"},
    {"transformer", "kind=encoder-decoder", "positions=sinusoidal", "norm_place=post", "activation=relu",
     "embedding_scale=yes", "label_smoothing=0.1"},
    {"marian", "kind=encoder-decoder", "positions=sinusoidal", "norm_place=post", "activation=silu",
     "embedding_scale=yes", "head_bias=yes", "label_smoothing=0.1", "attention_dropout=0"},
    {"m2m100", "kind=encoder-decoder", "positions=fairseq", "activation=relu", "embedding_scale=yes",
     "label_smoothing=0.1"},
    {"bart", "kind=encoder-decoder", "norm_place=post", "embedding_norm=yes", "head_bias=yes",
     "label_smoothing=0.1"},
    {"mbart", "kind=encoder-decoder", "embedding_norm=yes", "embedding_scale=yes", "head_bias=yes",
     "label_smoothing=0.1"},
    {"t5", "kind=encoder-decoder", "positions=relative", "norm=rms", "norm_eps=1e-6", "activation=relu",
     "bias=no", "attention_scale=no", "head_scale=yes"},
    {"t5-v1.1", "kind=encoder-decoder", "positions=relative", "norm=rms", "norm_eps=1e-6", "activation=geglu",
     "bias=no", "attention_scale=no", "tied=no"},
};
enum { FAMILIES = sizeof families / sizeof *families };

static neb_status apply_family(const char *const *pairs, struct neb_model_config *c)
{
    for (; *pairs; pairs++) {
        char name[64];
        const char *eq = strchr(*pairs, '=');
        snprintf(name, sizeof name, "%.*s", (int)(eq - *pairs), *pairs);
        NEB_TRY(neb__opts_set(neb__model_options, c, name, eq + 1));
    }
    return NEB_OK;
}

bool neb__model_family(const char *name, char hint[NEB_HINT])
{
    struct neb_nearest n = {.word = name, .within = 4};
    for (int i = 0; i < FAMILIES; i++) {
        if (!strcmp(families[i][0], name)) return true;
        neb__nearest_try(&n, families[i][0]);
    }
    neb__nearest_hint(&n, hint);
    return false;
}

neb_status neb__model_config_init(const char *family, struct neb_model_config *out)
{
    NEB_TRY(neb__opts_init(neb__model_options, out));
    if (!family || !*family) return NEB_OK;
    neb_status status = NEB_ERR_CONFIG;
    char hint[NEB_HINT];
    int i = 0;
    while (i < FAMILIES && strcmp(families[i][0], family)) i++;
    if (i < FAMILIES)
        status = apply_family(families[i] + 1, out);
    else if (!neb__model_family(family, hint))
        neb__fail(status, "model family '%s' is not one of %s%s", family, NEB_MODEL_FAMILIES, hint);
    if (status != NEB_OK) neb__model_config_free(out);
    return status;
}

void neb__model_config_free(struct neb_model_config *c)
{
    neb__opts_free(neb__model_options, c);
}

/* ---- checks -------------------------------------------------------------------------------------------- */

/* The order of the choices is that of the enums. */
static void read_words(const struct neb_model_config *c, struct neb_arch *a)
{
    static const neb_act acts[] = {NEB_ACT_GELU, NEB_ACT_GELU_TANH, NEB_ACT_SILU,
                                   NEB_ACT_RELU, NEB_ACT_NONE,      NEB_ACT_NONE};
    a->kind = (enum neb_model_kind)neb__opts_choice(neb__model_options, c, "kind");
    a->positions = (enum neb_positions)neb__opts_choice(neb__model_options, c, "positions");
    a->head = (enum neb_head)neb__opts_choice(neb__model_options, c, "head");
    a->norm = strcmp(c->norm, "rms") ? NEB_NORM_LAYER : NEB_NORM_RMS;
    a->pre_norm = !strcmp(c->norm_place, "pre");
    a->mean_pooling = !strcmp(c->pooling, "mean");
    a->act = acts[neb__opts_choice(neb__model_options, c, "activation")];
    a->gelu_gate = !strcmp(c->activation, "geglu");
    a->swiglu = a->gelu_gate || !strcmp(c->activation, "swiglu");
}

static int64_t ffn_width(const struct neb_model_config *c, bool swiglu)
{
    if (c->ffn) return c->ffn;
    return swiglu ? (c->hidden * 8 / 3 + 63) / 64 * 64 : 4 * c->hidden;
}

/* True, and the option with a sentence about it, so that `if (wrong) return misfit(…)` reads as it is. */
__attribute__((format(printf, 3, 4))) static bool misfit(struct neb_model_misfit *out, const char *option,
                                                         const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->why, sizeof out->why, fmt, ap);
    va_end(ap);
    out->option = option;
    return true;
}

static void read_sizes(const struct neb_model_config *c, struct neb_arch *a)
{
    a->vocab = c->vocab;
    a->hidden = c->hidden;
    a->layers = c->layers;
    a->decoder_layers = c->decoder_layers ? c->decoder_layers : c->layers;
    a->heads = c->heads;
    a->kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    a->head_dim = c->head_dim ? c->head_dim : c->hidden / c->heads;
    a->ffn = ffn_width(c, a->swiglu);
    a->embedding = c->embedding ? c->embedding : c->hidden;
    a->max_positions = c->max_positions;
    a->types = c->types;
    a->relative_buckets = c->relative_buckets;
    a->relative_distance = c->relative_distance;
}

static bool sizes_misfit(const struct neb_model_config *c, const struct neb_arch *a,
                         struct neb_model_misfit *m)
{
    if (c->kv_heads > c->heads)
        return misfit(m, "kv_heads", "%" PRId64 " is more than heads (%" PRId64 ")", c->kv_heads, c->heads);
    if (!c->head_dim && c->hidden % c->heads)
        return misfit(m, "heads",
                      "%" PRId64 " does not divide hidden (%" PRId64 "); choose a divisor or set head_dim",
                      c->heads, c->hidden);
    if (c->heads % a->kv_heads)
        return misfit(m, "kv_heads", "%" PRId64 " does not divide heads (%" PRId64 "); choose a divisor",
                      a->kv_heads, c->heads);
    if (a->positions == NEB_POSITIONS_ROPE && a->head_dim % 2)
        return misfit(m, "positions", "rope needs an even width of heads, not %" PRId64, a->head_dim);
    if (c->rope_factor > 0 && c->rope_original && !(c->rope_high > c->rope_low))
        return misfit(m, "rope_high", "%g must be above rope_low (%g)", c->rope_high, c->rope_low);
    if (a->positions == NEB_POSITIONS_RELATIVE && a->kind != NEB_DECODER && c->relative_buckets % 2)
        return misfit(m, "relative_buckets",
                      "%" PRId64 " cannot be halved for the two directions of an encoder",
                      c->relative_buckets);
    if (a->positions == NEB_POSITIONS_RELATIVE && c->relative_distance <= c->relative_buckets / 2)
        return misfit(m, "relative_distance",
                      "%" PRId64 " must be above half of relative_buckets (%" PRId64 ")",
                      c->relative_distance, c->relative_buckets);
    if (neb__positions_computed(a->positions) && (a->embedding % 2 || a->embedding < 4))
        return misfit(m, "positions", "%s needs an even width of at least 4, not %" PRId64, c->positions,
                      a->embedding);
    return false;
}

static bool kind_misfit(const struct neb_model_config *c, const struct neb_arch *a,
                        struct neb_model_misfit *m)
{
    if (a->kind == NEB_ENCODER) {
        if (a->head == NEB_HEAD_CLASS && c->classes < 1)
            return misfit(m, "classes", "0; head class needs at least one");
        return false;
    }
    if (a->embedding != a->hidden)
        return misfit(m, "embedding", "%" PRId64 " must equal hidden (%" PRId64 ") in a %s", a->embedding,
                      a->hidden, c->kind);
    if (a->types)
        return misfit(m, "types", "%" PRId64 " is not possible, a %s has no token types; set 0", a->types,
                      c->kind);
    if (a->head != NEB_HEAD_TOKENS && a->head != NEB_HEAD_NONE)
        return misfit(m, "head", "'%s' is for encoders; set 'tokens' or 'none' for a %s", c->head, c->kind);
    return false;
}

bool neb__model_config_misfit(const struct neb_model_config *c, struct neb_model_misfit *out)
{
    struct neb_arch a = {0};
    read_words(c, &a);
    read_sizes(c, &a);
    return sizes_misfit(c, &a, out) || kind_misfit(c, &a, out);
}

neb_status neb__model_config_check(const struct neb_model_config *c, struct neb_arch *out)
{
    struct neb_arch a = {0};
    struct neb_model_misfit m;
    neb_status status = neb__opts_check(neb__model_options, c); /* of fields that an import has set */
    if (status != NEB_OK) {
        neb__error_prefix("model");
        return status;
    }
    if (c->vocab < 1)
        return neb__fail(NEB_ERR_CONFIG, "model option 'vocab': 0; a model needs at least one token");
    if (neb__model_config_misfit(c, &m))
        return neb__fail(NEB_ERR_CONFIG, "model option '%s': %s", m.option, m.why);
    read_words(c, &a);
    read_sizes(c, &a);
    a.classes = c->classes;
    a.eps = (float)c->norm_eps;
    a.rope_base = (float)c->rope_base;
    a.rope_scale = (struct neb_rope_scale){(float)c->rope_factor, (float)c->rope_low, (float)c->rope_high,
                                           (float)c->rope_original};
    a.qkv_bias = c->bias || c->qkv_bias;
    a.qk_norm = c->qk_norm;
    a.attention_scale = c->attention_scale;
    a.head_scale = c->head_scale;
    a.dropout = (float)c->dropout;
    a.attention_dropout = (float)c->attention_dropout;
    a.smoothing = (float)c->label_smoothing;
    a.deviation = (float)c->init_deviation;
    a.embedding_norm = c->embedding_norm;
    a.embedding_scale = c->embedding_scale;
    a.embedding_delta = c->embedding_delta;
    a.bias = c->bias;
    a.tied = c->tied;
    a.head_bias = c->head_bias;
    a.residual_init = c->residual_init;
    a.recompute = c->recompute;
    *out = a;
    return NEB_OK;
}
