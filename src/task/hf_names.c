/* hf_names.c: the names of our parameters in Hugging Face files.
 *
 * A rule pairs the stems of names (without .weight and .bias). In both # is a layer's number; in theirs ~
 * stands for the prefix that a model with a head gives its body, and {a,b,c} for several tensors that are one
 * of ours. Flags: t, stored turned over; r, a vector stored as one row; s, rows of padding in front; p, a
 * norm that multiplies by 1 + weight; h, a vector of ours that is a matrix with a column a head. */
#include "task/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rule {
    const char *ours, *theirs, *flags;
};

#define BERT_BODY                                                                                    \
    {"embed.token", "~embeddings.word_embeddings", ""},                                              \
        {"encoder.embed.position", "~embeddings.position_embeddings", "s"},                          \
        {"encoder.embed.type", "~embeddings.token_type_embeddings", ""},                             \
        {"encoder.embed.norm", "~embeddings.LayerNorm", ""},                                         \
        {"encoder.embed.project", "~embeddings_project", ""},                                        \
        {"encoder.layers.#.attention.qkv", "~encoder.layer.#.attention.self.{query,key,value}", ""}, \
        {"encoder.layers.#.attention.out", "~encoder.layer.#.attention.output.dense", ""},           \
        {"encoder.layers.#.attention.norm", "~encoder.layer.#.attention.output.LayerNorm", ""},      \
        {"encoder.layers.#.ffn.in", "~encoder.layer.#.intermediate.dense", ""},                      \
        {"encoder.layers.#.ffn.out", "~encoder.layer.#.output.dense", ""},                           \
    {                                                                                                \
        "encoder.layers.#.ffn.norm", "~encoder.layer.#.output.LayerNorm", ""                         \
    }

static const struct rule bert[] = {BERT_BODY,
                                   {"head.transform", "cls.predictions.transform.dense", ""},
                                   {"head.norm", "cls.predictions.transform.LayerNorm", ""},
                                   {"head.bias", "cls.predictions.bias", ""},
                                   {"head.weight", "cls.predictions.decoder.weight", ""},
                                   {"head.pool", "~pooler.dense", ""},
                                   {"head.out", "classifier", ""},
                                   {NULL, NULL, NULL}};
static const struct rule xlmr[] = {BERT_BODY,
                                   {"head.transform", "lm_head.dense", ""},
                                   {"head.norm", "lm_head.layer_norm", ""},
                                   {"head.bias", "lm_head.bias", ""},
                                   {"head.weight", "lm_head.decoder.weight", ""},
                                   {"head.pool", "classifier.dense", ""},
                                   {"head.out", "classifier.out_proj", ""},
                                   {NULL, NULL, NULL}};
static const struct rule electra[] = {BERT_BODY,
                                      {"head.transform", "generator_predictions.dense", ""},
                                      {"head.norm", "generator_predictions.LayerNorm", ""},
                                      {"head.bias", "generator_lm_head.bias", ""},
                                      {"head.weight", "generator_lm_head.weight", ""},
                                      {"head.pool", "discriminator_predictions.dense", ""},
                                      {"head.out", "discriminator_predictions.dense_prediction", ""},
                                      {NULL, NULL, NULL}};
static const struct rule distilbert[] = {
    {"embed.token", "~embeddings.word_embeddings", ""},
    {"encoder.embed.position", "~embeddings.position_embeddings", ""},
    {"encoder.embed.norm", "~embeddings.LayerNorm", ""},
    {"encoder.layers.#.attention.qkv", "~transformer.layer.#.attention.{q_lin,k_lin,v_lin}", ""},
    {"encoder.layers.#.attention.out", "~transformer.layer.#.attention.out_lin", ""},
    {"encoder.layers.#.attention.norm", "~transformer.layer.#.sa_layer_norm", ""},
    {"encoder.layers.#.ffn.in", "~transformer.layer.#.ffn.lin1", ""},
    {"encoder.layers.#.ffn.out", "~transformer.layer.#.ffn.lin2", ""},
    {"encoder.layers.#.ffn.norm", "~transformer.layer.#.output_layer_norm", ""},
    {"head.transform", "vocab_transform", ""},
    {"head.norm", "vocab_layer_norm", ""},
    {"head.bias", "vocab_projector.bias", ""},
    {"head.weight", "vocab_projector.weight", ""},
    {NULL, NULL, NULL}};
static const struct rule gpt2[] = {{"embed.token", "~wte", ""},
                                   {"decoder.embed.position", "~wpe", ""},
                                   {"decoder.layers.#.attention.qkv", "~h.#.attn.c_attn", "t"},
                                   {"decoder.layers.#.attention.out", "~h.#.attn.c_proj", "t"},
                                   {"decoder.layers.#.attention.norm", "~h.#.ln_1", ""},
                                   {"decoder.layers.#.ffn.in", "~h.#.mlp.c_fc", "t"},
                                   {"decoder.layers.#.ffn.out", "~h.#.mlp.c_proj", "t"},
                                   {"decoder.layers.#.ffn.norm", "~h.#.ln_2", ""},
                                   {"decoder.norm", "~ln_f", ""},
                                   {"head.weight", "lm_head.weight", ""},
                                   {NULL, NULL, NULL}};

static const struct rule llama[] = {
    {"embed.token", "~embed_tokens", ""},
    {"decoder.layers.#.attention.qkv", "~layers.#.self_attn.{q_proj,k_proj,v_proj}", ""},
    {"decoder.layers.#.attention.out", "~layers.#.self_attn.o_proj", ""},
    {"decoder.layers.#.attention.q_norm", "~layers.#.self_attn.q_norm", ""},
    {"decoder.layers.#.attention.k_norm", "~layers.#.self_attn.k_norm", ""},
    {"decoder.layers.#.attention.norm", "~layers.#.input_layernorm", ""},
    {"decoder.layers.#.ffn.in", "~layers.#.mlp.{gate_proj,up_proj}", ""},
    {"decoder.layers.#.ffn.out", "~layers.#.mlp.down_proj", ""},
    {"decoder.layers.#.ffn.norm", "~layers.#.post_attention_layernorm", ""},
    {"decoder.norm", "~norm", ""},
    {"head.weight", "lm_head.weight", ""},
    {NULL, NULL, NULL}};

/* Norms multiply by 1 + weight. */
static const struct rule gemma[] = {
    {"embed.token", "~embed_tokens", ""},
    {"decoder.layers.#.attention.qkv", "~layers.#.self_attn.{q_proj,k_proj,v_proj}", ""},
    {"decoder.layers.#.attention.out", "~layers.#.self_attn.o_proj", ""},
    {"decoder.layers.#.attention.norm", "~layers.#.input_layernorm", "p"},
    {"decoder.layers.#.ffn.in", "~layers.#.mlp.{gate_proj,up_proj}", ""},
    {"decoder.layers.#.ffn.out", "~layers.#.mlp.down_proj", ""},
    {"decoder.layers.#.ffn.norm", "~layers.#.post_attention_layernorm", "p"},
    {"decoder.norm", "~norm", "p"},
    {"head.weight", "lm_head.weight", ""},
    {NULL, NULL, NULL}};

/* One stack of an encoder-decoder. */
#define SEQ2SEQ_STACK(S)                                                                       \
    {S ".embed.position", "~" S ".embed_positions", "s"},                                      \
        {S ".embed.norm", "~" S ".layernorm_embedding", ""},                                   \
        {S ".layers.#.attention.qkv", "~" S ".layers.#.self_attn.{q_proj,k_proj,v_proj}", ""}, \
        {S ".layers.#.attention.out", "~" S ".layers.#.self_attn.out_proj", ""},               \
        {S ".layers.#.attention.norm", "~" S ".layers.#.self_attn_layer_norm", ""},            \
        {S ".layers.#.ffn.in", "~" S ".layers.#.fc1", ""},                                     \
        {S ".layers.#.ffn.out", "~" S ".layers.#.fc2", ""},                                    \
        {S ".layers.#.ffn.norm", "~" S ".layers.#.final_layer_norm", ""},                      \
    {                                                                                          \
        S ".norm", "~" S ".layer_norm", ""                                                     \
    }

static const struct rule seq2seq[] = {
    {"embed.token", "~shared", ""},
    SEQ2SEQ_STACK("encoder"),
    SEQ2SEQ_STACK("decoder"),
    {"decoder.layers.#.cross.q", "~decoder.layers.#.encoder_attn.q_proj", ""},
    {"decoder.layers.#.cross.kv", "~decoder.layers.#.encoder_attn.{k_proj,v_proj}", ""},
    {"decoder.layers.#.cross.out", "~decoder.layers.#.encoder_attn.out_proj", ""},
    {"decoder.layers.#.cross.norm", "~decoder.layers.#.encoder_attn_layer_norm", ""},
    {"head.bias", "final_logits_bias", "r"},
    {"head.weight", "lm_head.weight", ""},
    {NULL, NULL, NULL}};

/* One stack of T5: the self-attention is sublayer 0, the feed-forward sublayer LAST. */
#define T5_STACK(S, LAST, IN)                                                               \
    {S ".embed.relative", S ".block.0.layer.0.SelfAttention.relative_attention_bias", "h"}, \
        {S ".layers.#.attention.qkv", S ".block.#.layer.0.SelfAttention.{q,k,v}", ""},      \
        {S ".layers.#.attention.out", S ".block.#.layer.0.SelfAttention.o", ""},            \
        {S ".layers.#.attention.norm", S ".block.#.layer.0.layer_norm", ""},                \
        {S ".layers.#.ffn.in", S ".block.#.layer." LAST ".DenseReluDense." IN, ""},         \
        {S ".layers.#.ffn.out", S ".block.#.layer." LAST ".DenseReluDense.wo", ""},         \
        {S ".layers.#.ffn.norm", S ".block.#.layer." LAST ".layer_norm", ""},               \
    {                                                                                       \
        S ".norm", S ".final_layer_norm", ""                                                \
    }
#define T5_RULES(IN)                                                                           \
    {"embed.token", "shared", ""}, T5_STACK("encoder", "1", IN), T5_STACK("decoder", "2", IN), \
        {"decoder.layers.#.cross.q", "decoder.block.#.layer.1.EncDecAttention.q", ""},         \
        {"decoder.layers.#.cross.kv", "decoder.block.#.layer.1.EncDecAttention.{k,v}", ""},    \
        {"decoder.layers.#.cross.out", "decoder.block.#.layer.1.EncDecAttention.o", ""},       \
        {"decoder.layers.#.cross.norm", "decoder.block.#.layer.1.layer_norm", ""},             \
        {"head.weight", "lm_head.weight", ""},                                                 \
    {                                                                                          \
        NULL, NULL, NULL                                                                       \
    }

static const struct rule t5[] = {T5_RULES("wi")};
static const struct rule t5_gated[] = {T5_RULES("{wi_0,wi_1}")};

static const struct rule *const rules[] = {[NEB_HF_BERT] = bert,       [NEB_HF_XLMR] = xlmr,
                                           [NEB_HF_ELECTRA] = electra, [NEB_HF_DISTILBERT] = distilbert,
                                           [NEB_HF_GPT2] = gpt2,       [NEB_HF_LLAMA] = llama,
                                           [NEB_HF_MISTRAL] = llama,   [NEB_HF_QWEN2] = llama,
                                           [NEB_HF_QWEN3] = llama,     [NEB_HF_GEMMA] = gemma,
                                           [NEB_HF_MARIAN] = seq2seq,  [NEB_HF_M2M100] = seq2seq,
                                           [NEB_HF_BART] = seq2seq,    [NEB_HF_MBART] = seq2seq,
                                           [NEB_HF_T5] = t5,           [NEB_HF_T5_GATED] = t5_gated};
static const char *const prefixes[] = {[NEB_HF_BERT] = "bert.",
                                       [NEB_HF_XLMR] = "roberta.",
                                       [NEB_HF_ELECTRA] = "electra.",
                                       [NEB_HF_DISTILBERT] = "distilbert.",
                                       [NEB_HF_GPT2] = "transformer.",
                                       [NEB_HF_LLAMA] = "model.",
                                       [NEB_HF_MISTRAL] = "model.",
                                       [NEB_HF_QWEN2] = "model.",
                                       [NEB_HF_QWEN3] = "model.",
                                       [NEB_HF_GEMMA] = "model.",
                                       [NEB_HF_MARIAN] = "model.",
                                       [NEB_HF_M2M100] = "model.",
                                       [NEB_HF_BART] = "model.",
                                       [NEB_HF_MBART] = "model.",
                                       [NEB_HF_T5] = "",
                                       [NEB_HF_T5_GATED] = ""};

/* Whether the name is the stem with some number for #; the number, or -1. */
static bool matches(const char *stem, const char *name, size_t n, long *number)
{
    const char *hash = strchr(stem, '#');
    *number = -1;
    if (!hash) return strlen(stem) == n && !strncmp(stem, name, n);
    size_t before = (size_t)(hash - stem);
    if (n <= before || strncmp(stem, name, before)) return false;
    char *end;
    *number = strtol(name + before, &end, 10);
    size_t rest = n - (size_t)(end - name);
    return end != name + before && strlen(hash + 1) == rest && !strncmp(hash + 1, end, rest);
}

/* How many words stand between the braces of theirs; 1: there are none. */
static int count_parts(const char *theirs)
{
    int n = 1;
    const char *p = strchr(theirs, '{');
    for (; p && *p != '}'; p++) n += *p == ',';
    return n;
}

/* theirs with everything filled in; of the words in braces the one number `part`. */
static void spell(const char *theirs, const char *prefix, long number, int part, const char *suffix,
                  char out[192])
{
    size_t at = 0;
    int word = -1; /* inside braces: which */
    for (const char *c = theirs; *c && at < 150; c++) {
        if (*c == '{')
            word = 0;
        else if (*c == '}')
            word = -1;
        else if (*c == ',' && word >= 0)
            word++;
        else if (word >= 0 && word != part)
            continue;
        else if (*c == '~')
            at += (size_t)snprintf(out + at, 192 - at, "%s", prefix);
        else if (*c == '#')
            at += (size_t)snprintf(out + at, 192 - at, "%ld", number);
        else
            out[at++] = *c;
    }
    snprintf(out + at, 192 - at, "%s", suffix);
}

neb_status neb__hf_source(enum neb_hf_kind kind, const char *ours, bool prefix, struct neb_hf_source *out)
{
    const char *dot = strrchr(ours, '.');
    size_t all = strlen(ours), stem = dot ? (size_t)(dot - ours) : all;
    long number;
    for (const struct rule *r = rules[kind]; r->ours; r++) {
        bool whole = matches(r->ours, ours, all, &number);
        if (!whole && !matches(r->ours, ours, stem, &number)) continue;
        *out = (struct neb_hf_source){.parts = count_parts(r->theirs),
                                      .turned = strchr(r->flags, 'r') ||
                                                (strchr(r->flags, 't') && !strcmp(dot, ".weight")),
                                      .skips = strchr(r->flags, 's') != NULL,
                                      .plus = strchr(r->flags, 'p') != NULL,
                                      .by_heads = strchr(r->flags, 'h') != NULL};
        for (int i = 0; i < out->parts; i++)
            spell(r->theirs, prefix ? prefixes[kind] : "", number, i, whole ? "" : dot, out->name[i]);
        return NEB_OK;
    }
    return neb__quiet(NEB_ERR_NOTFOUND, "'%s' has no counterpart", ours);
}

const char *neb__hf_decoder_bias(enum neb_hf_kind kind)
{
    return kind == NEB_HF_BERT ? "cls.predictions.decoder.bias" : "lm_head.decoder.bias";
}

int64_t neb__hf_part_rows(const struct neb_arch *a, const struct neb_hf_source *s, int64_t rows, int i)
{
    if (s->parts != 3) return rows / s->parts;
    return (i ? a->kv_heads : a->heads) * a->head_dim; /* queries, keys, values */
}
