/* config.c: the model's option table, the families, and the checks that make a config an architecture.
 *
 * A family is a list of options with values, applied over the defaults through the same parser that a job file uses, so
 * it can hold nothing that a user could not write. */
#include "nn/config.h"

#include <math.h>
#include <string.h>

#define OPT(field, kind, fallback, unit, help) \
    NEB_OPT(struct neb_model_config, field, kind, fallback, unit, help)

const struct neb_opt neb__model_options[] = {
    OPT(kind, NEB_OPT_TEXT, "encoder", NULL, "encoder, decoder or encoder-decoder"),
    OPT(vocab, NEB_OPT_INT, "0", "tokens", "size of the vocabulary"),
    OPT(hidden, NEB_OPT_INT, "256", NULL, "width of the model"),
    OPT(layers, NEB_OPT_INT, "4", NULL, "layers (of the encoder, where there are two)"),
    OPT(decoder_layers, NEB_OPT_INT, "0", NULL, "encoder-decoder: layers of the decoder; 0: as the encoder"),
    OPT(heads, NEB_OPT_INT, "4", NULL, "attention heads"),
    OPT(kv_heads, NEB_OPT_INT, "0", NULL, "key and value heads (grouped queries); 0: as heads"),
    OPT(head_dim, NEB_OPT_INT, "0", NULL, "width of a head; 0: hidden / heads"),
    OPT(ffn, NEB_OPT_INT, "0", NULL, "width of the feed-forward; 0: 4 hidden, with swiglu 8/3 hidden"),
    OPT(embedding, NEB_OPT_INT, "0", NULL, "encoder: width of the embeddings (ELECTRA); 0: hidden"),
    OPT(max_positions, NEB_OPT_INT, "512", "tokens", "longest sequence"),
    OPT(types, NEB_OPT_INT, "0", NULL, "encoder: token types (segments); 0: none"),
    OPT(positions, NEB_OPT_TEXT, "learned", NULL, "learned, sinusoidal, rope or none"),
    OPT(norm, NEB_OPT_TEXT, "layer", NULL, "layer or rms"),
    OPT(norm_place, NEB_OPT_TEXT, "pre", NULL, "pre (before a sublayer) or post (behind its residual)"),
    OPT(activation, NEB_OPT_TEXT, "gelu", NULL, "gelu, gelu_tanh, silu, relu or swiglu"),
    OPT(head, NEB_OPT_TEXT, "tokens", NULL, "tokens, rtd (replaced-token detection), class or none"),
    OPT(pooling, NEB_OPT_TEXT, "first", NULL, "head class: first (token) or mean"),
    OPT(norm_eps, NEB_OPT_REAL, "1e-5", NULL, "added to the variance"),
    OPT(rope_base, NEB_OPT_REAL, "10000", NULL, "rope: base of the wavelengths"),
    OPT(dropout, NEB_OPT_SHARE, "0.1", NULL, "of embeddings and sublayers"),
    OPT(attention_dropout, NEB_OPT_SHARE, "0.1", NULL, "of attention probabilities"),
    OPT(label_smoothing, NEB_OPT_SHARE, "0", NULL, "of the cross-entropy"),
    OPT(init_deviation, NEB_OPT_REAL, "0.02", NULL, "of initial weights"),
    OPT(classes, NEB_OPT_INT, "0", NULL, "head class: how many"),
    OPT(embedding_norm, NEB_OPT_BOOL, "no", NULL, "normalise the embeddings"),
    OPT(embedding_scale, NEB_OPT_BOOL, "no", NULL, "multiply token embeddings by sqrt(hidden)"),
    OPT(embedding_delta, NEB_OPT_BOOL, "no", NULL,
        "where the token table is another model's: learn a difference to it, leave the table alone"),
    OPT(bias, NEB_OPT_BOOL, "yes", NULL, "biases in linear layers and norms"),
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
    {"transformer", "kind=encoder-decoder", "positions=sinusoidal", "norm_place=post", "activation=relu",
     "embedding_scale=yes", "label_smoothing=0.1"},
    {"marian", "kind=encoder-decoder", "positions=sinusoidal", "norm_place=post", "activation=silu",
     "embedding_scale=yes", "head_bias=yes", "label_smoothing=0.1", "attention_dropout=0"},
    {"bart", "kind=encoder-decoder", "norm_place=post", "embedding_norm=yes", "head_bias=yes",
     "label_smoothing=0.1"},
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

neb_status neb__model_config_init(const char *family, struct neb_model_config *out)
{
    NEB_TRY(neb__opts_init(neb__model_options, out));
    if (!family || !*family) return NEB_OK;
    neb_status s = NEB_ERR_CONFIG;
    int i = 0;
    while (i < FAMILIES && strcmp(families[i][0], family)) i++;
    if (i < FAMILIES)
        s = apply_family(families[i] + 1, out);
    else
        neb__fail(
            s, "model family '%s' is not one of bert, xlm-r, electra, gpt2, llama, transformer, marian, bart",
            family);
    if (s != NEB_OK) neb__model_config_free(out);
    return s;
}

void neb__model_config_free(struct neb_model_config *c)
{
    neb__opts_free(neb__model_options, c);
}

/* ---- checks --------------------------------------------------------------------------------------------------- */

static neb_status one_of(const char *option, const char *value, const char *const *names, int *out)
{
    char list[160] = "";
    for (int i = 0; names[i]; i++) {
        if (value && !strcmp(names[i], value)) {
            *out = i;
            return NEB_OK;
        }
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", names[i]);
    }
    return neb__fail(NEB_ERR_CONFIG, "model option '%s': '%s' is not one of %s", option, value ? value : "",
                     list);
}

static neb_status within(const char *option, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG, "model option '%s': %" PRId64 " is not between %" PRId64 " and %" PRId64,
                     option, value, low, high);
}

static neb_status between(const char *option, double value, double low, double high)
{
    if (value >= low && value <= high) return NEB_OK; /* false for NaN */
    return neb__fail(NEB_ERR_CONFIG, "model option '%s': %g is not between %g and %g", option, value, low,
                     high);
}

static neb_status check_words(const struct neb_model_config *c, struct neb_arch *a)
{
    static const char *const kinds[] = {"encoder", "decoder", "encoder-decoder", NULL};
    static const char *const positions[] = {"none", "learned", "sinusoidal", "rope", NULL};
    static const char *const heads[] = {"none", "tokens", "rtd", "class", NULL};
    static const char *const norms[] = {"layer", "rms", NULL};
    static const char *const places[] = {"post", "pre", NULL};
    static const char *const poolings[] = {"first", "mean", NULL};
    static const char *const acts[] = {"gelu", "gelu_tanh", "silu", "relu", "swiglu", NULL};
    static const neb_act act_of[] = {NEB_ACT_GELU, NEB_ACT_GELU_TANH, NEB_ACT_SILU, NEB_ACT_RELU,
                                     NEB_ACT_NONE};
    int i;
    NEB_TRY(one_of("kind", c->kind, kinds, &i));
    a->kind = (enum neb_model_kind)i;
    NEB_TRY(one_of("positions", c->positions, positions, &i));
    a->positions = (enum neb_positions)i;
    NEB_TRY(one_of("head", c->head, heads, &i));
    a->head = (enum neb_head)i;
    NEB_TRY(one_of("norm", c->norm, norms, &i));
    a->norm = i ? NEB_NORM_RMS : NEB_NORM_LAYER;
    NEB_TRY(one_of("norm_place", c->norm_place, places, &i));
    a->pre_norm = i;
    NEB_TRY(one_of("pooling", c->pooling, poolings, &i));
    a->mean_pooling = i;
    NEB_TRY(one_of("activation", c->activation, acts, &i));
    a->act = act_of[i];
    a->swiglu = i == 4;
    return NEB_OK;
}

static neb_status check_sizes(const struct neb_model_config *c, struct neb_arch *a)
{
    enum { WIDTH = 1 << 20, DEPTH = 4096 };
    NEB_TRY(within("vocab", c->vocab, 1, INT32_MAX - 1));
    NEB_TRY(within("hidden", c->hidden, 1, WIDTH));
    NEB_TRY(within("layers", c->layers, 1, DEPTH));
    NEB_TRY(within("decoder_layers", c->decoder_layers, 0, DEPTH));
    NEB_TRY(within("heads", c->heads, 1, 4096));
    NEB_TRY(within("kv_heads", c->kv_heads, 0, c->heads));
    NEB_TRY(within("head_dim", c->head_dim, 0, 4096));
    NEB_TRY(within("ffn", c->ffn, 0, 4 * WIDTH));
    NEB_TRY(within("embedding", c->embedding, 0, WIDTH));
    NEB_TRY(within("max_positions", c->max_positions, 1, 1 << 20)); /* dropout counts keys in 20 + 3 bits */
    NEB_TRY(within("types", c->types, 0, 1 << 16));
    a->vocab = c->vocab;
    a->hidden = c->hidden;
    a->layers = c->layers;
    a->decoder_layers = c->decoder_layers ? c->decoder_layers : c->layers;
    a->heads = c->heads;
    a->kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    a->head_dim = c->head_dim ? c->head_dim : c->hidden / c->heads;
    a->ffn = c->ffn ? c->ffn : a->swiglu ? (c->hidden * 8 / 3 + 63) / 64 * 64 : 4 * c->hidden;
    a->embedding = c->embedding ? c->embedding : c->hidden;
    a->max_positions = c->max_positions;
    a->types = c->types;
    if (!c->head_dim && c->hidden % c->heads)
        return neb__fail(NEB_ERR_CONFIG,
                         "model option 'heads': %" PRId64 " does not divide hidden (%" PRId64
                         "); choose a divisor or set head_dim",
                         c->heads, c->hidden);
    if (c->heads % a->kv_heads)
        return neb__fail(NEB_ERR_CONFIG,
                         "model option 'kv_heads': %" PRId64 " does not divide heads (%" PRId64 ")",
                         a->kv_heads, c->heads);
    if (a->positions == NEB_POSITIONS_ROPE && a->head_dim % 2)
        return neb__fail(NEB_ERR_CONFIG,
                         "model option 'positions': rope needs an even width of heads, not %" PRId64,
                         a->head_dim);
    if (a->positions == NEB_POSITIONS_SINUSOIDAL && a->embedding % 2)
        return neb__fail(NEB_ERR_CONFIG,
                         "model option 'positions': sinusoidal needs an even width, not %" PRId64,
                         a->embedding);
    return NEB_OK;
}

static neb_status check_kind(const struct neb_model_config *c, const struct neb_arch *a)
{
    if (a->kind == NEB_ENCODER) {
        if (a->head == NEB_HEAD_CLASS) return within("classes", c->classes, 1, INT32_MAX - 1);
        return NEB_OK;
    }
    if (a->embedding != a->hidden)
        return neb__fail(NEB_ERR_CONFIG,
                         "model option 'embedding': %" PRId64 " must be hidden (%" PRId64 ") in a %s",
                         a->embedding, a->hidden, c->kind);
    if (a->types)
        return neb__fail(NEB_ERR_CONFIG, "model option 'types': %" PRId64 "; a %s has none, set 0", a->types,
                         c->kind);
    if (a->head != NEB_HEAD_TOKENS && a->head != NEB_HEAD_NONE)
        return neb__fail(NEB_ERR_CONFIG, "model option 'head': '%s' is for encoders; a %s has tokens or none",
                         c->head, c->kind);
    return NEB_OK;
}

neb_status neb__model_config_check(const struct neb_model_config *c, struct neb_arch *out)
{
    struct neb_arch a = {0};
    NEB_TRY(check_words(c, &a));
    NEB_TRY(check_sizes(c, &a));
    NEB_TRY(check_kind(c, &a));
    NEB_TRY(between("norm_eps", c->norm_eps, 0, 1));
    NEB_TRY(between("rope_base", c->rope_base, 1, 1e12));
    NEB_TRY(between("dropout", c->dropout, 0, 0.99));
    NEB_TRY(between("attention_dropout", c->attention_dropout, 0, 0.99));
    NEB_TRY(between("label_smoothing", c->label_smoothing, 0, 0.99));
    NEB_TRY(between("init_deviation", c->init_deviation, 0, 100));
    a.classes = c->classes;
    a.eps = (float)c->norm_eps;
    a.rope_base = (float)c->rope_base;
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
