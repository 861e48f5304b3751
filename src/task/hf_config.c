/* hf_config.c: config.json and our options.
 *
 * An option that changes the computation and is not known here is refused: a model that is computed a little
 * differently is worse than none. */
#include "task/hf.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

neb_status neb__hf_activation(const json_t *j, const char *key, struct neb_model_config *m)
{
    static const char *const names[][2] = {{"gelu", "gelu"},          {"gelu_python", "gelu"},
                                           {"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"},
                                           {"relu", "relu"},          {"silu", "silu"},
                                           {"swish", "silu"}};
    const char *text = json_string_value(json_object_get(j, key));
    for (size_t i = 0; text && i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i][0]))
            return neb__opts_set(neb__model_options, m, "activation", names[i][1]);
    return neb__fail(NEB_ERR_UNSUPPORTED, "config.json, '%s': '%.40s' is not supported", key,
                     text ? text : "");
}

/* ---- what may stand there ------------------------------------------------------------------------------------ */

#define BERT_KEYS                                                                                      \
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",                    \
        "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob",         \
        "attention_probs_dropout_prob", "hidden_act", "position_embedding_type", "classifier_dropout", \
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",      \
        "pooler_size_per_head", "pooler_type"

static const char *const bert_keys[] = {BERT_KEYS};
static const char *const electra_keys[] = {BERT_KEYS,          "embedding_size",     "summary_type",
                                           "summary_use_proj", "summary_activation", "summary_last_dropout"};
static const char *const distilbert_keys[] = {"dim",
                                              "n_layers",
                                              "n_heads",
                                              "hidden_dim",
                                              "max_position_embeddings",
                                              "dropout",
                                              "attention_dropout",
                                              "activation",
                                              "qa_dropout",
                                              "seq_classif_dropout",
                                              "sinusoidal_pos_embds", /* the table is in the file */
                                              "tie_weights_"};
static const char *const gpt2_keys[] = {"n_embd",
                                        "n_layer",
                                        "n_head",
                                        "n_inner",
                                        "n_positions",
                                        "n_ctx",
                                        "layer_norm_epsilon",
                                        "resid_pdrop",
                                        "embd_pdrop",
                                        "attn_pdrop",
                                        "activation_function",
                                        "scale_attn_weights",
                                        "reorder_and_upcast_attn", /* the order of the same products */
                                        "summary_type",
                                        "summary_use_proj",
                                        "summary_activation",
                                        "summary_proj_to_labels",
                                        "summary_first_dropout"};

/* Of the encoders and GPT-2. */
static neb_status check_keys(const json_t *j, enum neb_hf_kind kind)
{
    static const struct {
        const char *const *list;
        size_t n;
    } keys[] = {[NEB_HF_BERT] = {bert_keys, sizeof bert_keys / sizeof *bert_keys},
                [NEB_HF_XLMR] = {bert_keys, sizeof bert_keys / sizeof *bert_keys},
                [NEB_HF_ELECTRA] = {electra_keys, sizeof electra_keys / sizeof *electra_keys},
                [NEB_HF_DISTILBERT] = {distilbert_keys, sizeof distilbert_keys / sizeof *distilbert_keys},
                [NEB_HF_GPT2] = {gpt2_keys, sizeof gpt2_keys / sizeof *gpt2_keys}};
    static const char *const off[] = {"scale_attn_by_inverse_layer_idx", "add_cross_attention", "is_decoder",
                                      "is_encoder_decoder"};
    const char *positions;
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) NEB_TRY(neb__hf_only(j, off[i], false));
    NEB_TRY(neb__hf_only(j, "scale_attn_weights", true));
    NEB_TRY(neb__hf_text(j, "position_embedding_type", &positions));
    if (positions && strcmp(positions, "absolute"))
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "config.json, 'position_embedding_type': '%.40s' is not supported", positions);
    return neb__hf_known_keys(j, keys[kind].list, keys[kind].n);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static neb_status read_bert(const json_t *j, struct neb_hf_config *c, struct neb_model_config *m)
{
    NEB_TRY(neb__hf_whole(j, "vocab_size", -1, &m->vocab));
    NEB_TRY(neb__hf_whole(j, "hidden_size", -1, &m->hidden));
    NEB_TRY(neb__hf_whole(j, "num_hidden_layers", -1, &m->layers));
    NEB_TRY(neb__hf_whole(j, "num_attention_heads", -1, &m->heads));
    NEB_TRY(neb__hf_whole(j, "intermediate_size", -1, &m->ffn));
    NEB_TRY(neb__hf_whole(j, "max_position_embeddings", -1, &m->max_positions));
    NEB_TRY(neb__hf_whole(j, "type_vocab_size", 2, &m->types));
    NEB_TRY(neb__hf_real(j, "layer_norm_eps", 1e-12, &m->norm_eps));
    NEB_TRY(neb__hf_real(j, "hidden_dropout_prob", 0.1, &m->dropout));
    NEB_TRY(neb__hf_real(j, "attention_probs_dropout_prob", 0.1, &m->attention_dropout));
    NEB_TRY(neb__hf_activation(j, "hidden_act", m));
    if (c->kind == NEB_HF_ELECTRA) NEB_TRY(neb__hf_whole(j, "embedding_size", m->hidden, &m->embedding));
    if (c->kind == NEB_HF_XLMR) {
        c->skip = (c->pad < 0 ? 1 : c->pad) + 1;
        if (m->max_positions <= c->skip)
            return neb__fail(NEB_ERR_CORRUPT, "config.json, 'max_position_embeddings': is too small");
        m->max_positions -= c->skip;
    }
    m->embedding_norm = m->head_bias = true;
    return neb__opts_set(neb__model_options, m, "norm_place", "post");
}

/* A BERT without segments, under other names. Its norms have one eps, which no key says. */
static neb_status read_distilbert(const json_t *j, struct neb_model_config *m)
{
    NEB_TRY(neb__hf_whole(j, "vocab_size", -1, &m->vocab));
    NEB_TRY(neb__hf_whole(j, "dim", -1, &m->hidden));
    NEB_TRY(neb__hf_whole(j, "n_layers", -1, &m->layers));
    NEB_TRY(neb__hf_whole(j, "n_heads", -1, &m->heads));
    NEB_TRY(neb__hf_whole(j, "hidden_dim", -1, &m->ffn));
    NEB_TRY(neb__hf_whole(j, "max_position_embeddings", -1, &m->max_positions));
    NEB_TRY(neb__hf_real(j, "dropout", 0.1, &m->dropout));
    NEB_TRY(neb__hf_real(j, "attention_dropout", 0.1, &m->attention_dropout));
    NEB_TRY(neb__hf_activation(j, "activation", m));
    m->types = 0;
    m->norm_eps = 1e-12;
    m->embedding_norm = m->head_bias = true;
    return neb__opts_set(neb__model_options, m, "norm_place", "post");
}

static neb_status read_gpt2(const json_t *j, struct neb_model_config *m)
{
    NEB_TRY(neb__hf_whole(j, "vocab_size", -1, &m->vocab));
    NEB_TRY(neb__hf_whole(j, "n_embd", -1, &m->hidden));
    NEB_TRY(neb__hf_whole(j, "n_layer", -1, &m->layers));
    NEB_TRY(neb__hf_whole(j, "n_head", -1, &m->heads));
    NEB_TRY(neb__hf_whole(j, "n_inner", 0, &m->ffn));
    if (!m->ffn) m->ffn = 4 * m->hidden;
    NEB_TRY(neb__hf_whole(j, "n_positions", -1, &m->max_positions));
    NEB_TRY(neb__hf_real(j, "layer_norm_epsilon", 1e-5, &m->norm_eps));
    NEB_TRY(neb__hf_real(j, "resid_pdrop", 0.1, &m->dropout));
    NEB_TRY(neb__hf_real(j, "attn_pdrop", 0.1, &m->attention_dropout));
    NEB_TRY(neb__hf_activation(j, "activation_function", m));
    m->residual_init = true;
    return neb__opts_set(neb__model_options, m, "kind", "decoder");
}

static neb_status read_object(const json_t *j, struct neb_model_config *m, struct neb_hf_config *c)
{
    static const struct {
        const char *name;
        enum neb_hf_kind kind;
    } types[] = {{"bert", NEB_HF_BERT},
                 {"xlm-roberta", NEB_HF_XLMR},
                 {"roberta", NEB_HF_XLMR},
                 {"electra", NEB_HF_ELECTRA},
                 {"distilbert", NEB_HF_DISTILBERT},
                 {"gpt2", NEB_HF_GPT2},
                 {"llama", NEB_HF_LLAMA},
                 {"mistral", NEB_HF_MISTRAL},
                 {"qwen2", NEB_HF_QWEN2},
                 {"qwen3", NEB_HF_QWEN3},
                 {"gemma", NEB_HF_GEMMA},
                 {"marian", NEB_HF_MARIAN},
                 {"m2m_100", NEB_HF_M2M100},
                 {"bart", NEB_HF_BART},
                 {"mbart", NEB_HF_MBART},
                 {"t5", NEB_HF_T5},
                 {"mt5", NEB_HF_T5}};
    const size_t n = sizeof types / sizeof *types;
    const char *type = json_string_value(json_object_get(j, "model_type"));
    size_t i = 0;
    while (i < n && strcmp(type ? type : "", types[i].name)) i++;
    if (i == n)
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "config.json, 'model_type': '%.40s' is not bert, roberta, xlm-roberta, electra, "
                         "distilbert, gpt2, "
                         "llama, mistral, qwen2, qwen3, gemma, marian, m2m_100, bart, mbart, t5 or mt5",
                         type ? type : "");
    c->kind = types[i].kind;
    /* the classes of Llama and its relatives, but for Gemma, are untied where the file does not say it */
    NEB_TRY(neb__hf_flag(j, "tie_word_embeddings", !neb__hf_is_llama(c->kind) || c->kind == NEB_HF_GEMMA,
                         &c->tied));
    NEB_TRY(neb__hf_token(j, "pad_token_id", &c->pad));
    NEB_TRY(neb__hf_token(j, "bos_token_id", &c->bos));
    NEB_TRY(neb__hf_token(j, "eos_token_id", &c->eos));
    NEB_TRY(neb__hf_token(j, "decoder_start_token_id", &c->start));
    if (neb__hf_is_t5(c->kind)) return neb__hf_t5_read(j, c, m);
    if (neb__hf_is_seq2seq(c->kind)) return neb__hf_seq2seq_read(j, c, m);
    if (neb__hf_is_llama(c->kind)) return neb__hf_decoder_read(j, c->kind, m);
    NEB_TRY(check_keys(j, c->kind));
    if (c->kind == NEB_HF_DISTILBERT) return read_distilbert(j, m);
    return c->kind == NEB_HF_GPT2 ? read_gpt2(j, m) : read_bert(j, c, m);
}

neb_status neb__hf_config_read(const char *json, size_t n, struct neb_model_config *model,
                               struct neb_hf_config *out)
{
    json_error_t error;
    struct neb_hf_config c = {0};
    struct neb_arch arch;
    json_t *j = json_loadb(json, n, 0, &error);
    if (!j) return neb__fail(NEB_ERR_CORRUPT, "config.json: %s", error.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return neb__fail(NEB_ERR_CORRUPT, "config.json is not a JSON object");
    }
    neb_status status = read_object(j, model, &c);
    json_decref(j);
    if (status == NEB_OK && neb__model_config_check(model, &arch) != NEB_OK) /* it said what is impossible */
        status =
            neb__quiet(NEB_ERR_CORRUPT, "config.json describes an impossible model: %s", neb_last_error());
    if (status == NEB_OK) *out = c;
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static const char *class_of(const struct neb_model_yaml *f, enum neb_hf_kind kind)
{
    static const char *const names[][4] = {
        [NEB_HF_BERT] = {"BertModel", "BertForMaskedLM", "", "BertForSequenceClassification"},
        [NEB_HF_XLMR] = {"XLMRobertaModel", "XLMRobertaForMaskedLM", "",
                         "XLMRobertaForSequenceClassification"},
        [NEB_HF_ELECTRA] = {"ElectraModel", "ElectraForMaskedLM", "ElectraForPreTraining", ""},
        [NEB_HF_DISTILBERT] = {"DistilBertModel", "DistilBertForMaskedLM", "", ""},
        [NEB_HF_GPT2] = {"GPT2Model", "GPT2LMHeadModel", "", ""},
        [NEB_HF_LLAMA] = {"LlamaModel", "LlamaForCausalLM", "", ""},
        [NEB_HF_MISTRAL] = {"MistralModel", "MistralForCausalLM", "", ""},
        [NEB_HF_QWEN2] = {"Qwen2Model", "Qwen2ForCausalLM", "", ""},
        [NEB_HF_QWEN3] = {"Qwen3Model", "Qwen3ForCausalLM", "", ""},
        [NEB_HF_GEMMA] = {"GemmaModel", "GemmaForCausalLM", "", ""},
        [NEB_HF_MARIAN] = {"MarianModel", "MarianMTModel", "", ""},
        [NEB_HF_M2M100] = {"M2M100Model", "M2M100ForConditionalGeneration", "", ""},
        [NEB_HF_BART] = {"BartModel", "BartForConditionalGeneration", "", ""},
        [NEB_HF_MBART] = {"MBartModel", "MBartForConditionalGeneration", "", ""},
        [NEB_HF_T5] = {"T5Model", "T5ForConditionalGeneration", "", ""},
        [NEB_HF_T5_GATED] = {"T5Model", "T5ForConditionalGeneration", "", ""}};
    static const char *const heads[] = {"none", "tokens", "rtd", "class"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(f->model.head, heads[i])) return names[kind][i];
    return "";
}

const char *neb__hf_activation_name(const struct neb_model_config *m)
{
    return !strcmp(m->activation, "gelu_tanh") ? "gelu_new" : m->activation;
}

int64_t neb__hf_xlmr_pad(const json_t *numbers)
{
    const json_t *pad = json_object_get(numbers, "pad_token_id");
    return json_is_integer(pad) ? json_integer_value(pad) : 1;
}

static neb_status write_bert(const struct neb_model_yaml *f, enum neb_hf_kind kind, const struct neb_arch *a,
                             json_t *j)
{
    static const char *const types[] = {"bert", "xlm-roberta", "electra"};
    const struct neb_model_config *m = &f->model;
    const int64_t pad = neb__hf_xlmr_pad(j);
    json_t *more = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:s, s:f}", "model_type", types[kind],
        "hidden_size", (json_int_t)a->hidden, "num_hidden_layers", (json_int_t)a->layers,
        "num_attention_heads", (json_int_t)a->heads, "intermediate_size", (json_int_t)a->ffn,
        "max_position_embeddings", (json_int_t)(a->max_positions + (kind == NEB_HF_XLMR ? pad + 1 : 0)),
        "type_vocab_size", (json_int_t)(a->types ? a->types : 1), "layer_norm_eps", m->norm_eps,
        "hidden_dropout_prob", m->dropout, "attention_probs_dropout_prob", m->attention_dropout, "hidden_act",
        neb__hf_activation_name(m), "initializer_range", m->init_deviation);
    bool bad = !more || json_object_update(j, more);
    if (kind == NEB_HF_XLMR) bad |= json_object_set_new(j, "pad_token_id", json_integer(pad)) != 0;
    if (kind == NEB_HF_ELECTRA)
        bad |= json_object_set_new(j, "embedding_size", json_integer(a->embedding)) != 0;
    if (a->head == NEB_HEAD_CLASS) {
        json_t *labels = json_object();
        for (int64_t i = 0; i < a->classes && i < 4096; i++) {
            char key[24], name[32];
            snprintf(key, sizeof key, "%d", (int)i);
            snprintf(name, sizeof name, "LABEL_%d", (int)i);
            bad |= json_object_set_new(labels, key, json_string(name)) != 0;
        }
        bad |= json_object_set_new(j, "id2label", labels) != 0;
    }
    json_decref(more);
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for config.json") : NEB_OK;
}

static neb_status write_distilbert(const struct neb_model_yaml *f, const struct neb_arch *a, json_t *j)
{
    const struct neb_model_config *m = &f->model;
    json_t *more = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:b, s:f}", "model_type", "distilbert", "dim",
        (json_int_t)a->hidden, "n_layers", (json_int_t)a->layers, "n_heads", (json_int_t)a->heads,
        "hidden_dim", (json_int_t)a->ffn, "max_position_embeddings", (json_int_t)a->max_positions, "dropout",
        m->dropout, "attention_dropout", m->attention_dropout, "activation", neb__hf_activation_name(m),
        "sinusoidal_pos_embds", 0, "initializer_range", m->init_deviation);
    bool bad = !more || json_object_update(j, more);
    json_decref(more);
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for config.json") : NEB_OK;
}

static neb_status write_gpt2(const struct neb_model_yaml *f, const struct neb_arch *a, json_t *j)
{
    const struct neb_model_config *m = &f->model;
    json_t *more = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:f}", "model_type", "gpt2", "n_embd",
        (json_int_t)a->hidden, "n_layer", (json_int_t)a->layers, "n_head", (json_int_t)a->heads, "n_inner",
        (json_int_t)a->ffn, "n_positions", (json_int_t)a->max_positions, "layer_norm_epsilon", m->norm_eps,
        "resid_pdrop", m->dropout, "embd_pdrop", m->dropout, "attn_pdrop", m->attention_dropout,
        "activation_function", neb__hf_activation_name(m), "initializer_range", m->init_deviation);
    bool bad = !more || json_object_update(j, more);
    json_decref(more);
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for config.json") : NEB_OK;
}

static neb_status write_object(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                               const struct neb_tok *tok, json_t *j, struct neb_buf *out)
{
    struct neb_arch a;
    NEB_TRY(neb__model_config_check(&f->model, &a));
    json_t *more = json_pack("{s:[s], s:I, s:b}", "architectures", class_of(f, kind), "vocab_size",
                             (json_int_t)a.vocab, "tie_word_embeddings", a.tied);
    bool bad = !more || json_object_update(j, more);
    json_decref(more);
    if (bad) return neb__fail(NEB_ERR_NOMEM, "out of memory for config.json");
    if (neb__hf_is_t5(kind))
        NEB_TRY(neb__hf_t5_write(f, &a, tok, j));
    else if (neb__hf_is_seq2seq(kind))
        NEB_TRY(neb__hf_seq2seq_write(f, &a, kind, tok, j));
    else if (neb__hf_is_llama(kind))
        NEB_TRY(neb__hf_decoder_write(f, &a, kind, j));
    else if (kind == NEB_HF_DISTILBERT)
        NEB_TRY(write_distilbert(f, &a, j));
    else
        NEB_TRY(kind == NEB_HF_GPT2 ? write_gpt2(f, &a, j) : write_bert(f, kind, &a, j));
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for config.json");
    neb_status status = neb__buf_append(out, text, strlen(text));
    if (status == NEB_OK) status = neb__buf_append(out, "\n", 1);
    free(text); /* jansson's own */
    return status;
}

neb_status neb__hf_config_write(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                                const struct neb_tok *tok, const json_t *numbers, enum neb_st_type type,
                                struct neb_buf *out)
{
    static const char *const types[NEB_ST_TYPE_COUNT] = {
        [NEB_ST_F16] = "float16", [NEB_ST_BF16] = "bfloat16"};
    if (!*class_of(f, kind))
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "transformers has no class for a model of this kind with head '%s'", f->model.head);
    json_t *j = numbers ? json_copy((json_t *)(uintptr_t)numbers) : json_object();
    if (!j) return neb__fail(NEB_ERR_NOMEM, "out of memory for config.json");
    neb_status status = NEB_OK;
    if (json_object_set_new(j, "torch_dtype", json_string(types[type] ? types[type] : "float32")))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for config.json");
    if (status == NEB_OK) status = write_object(f, kind, tok, j, out);
    json_decref(j);
    return status;
}
