/* hf_export.c: a folder of ours becomes one that from_pretrained() loads.
 *
 * An encoder goes out as ELECTRA where its embeddings are narrower or it detects replacements, as XLM-R where
 * its tokens are numbered so, as DistilBERT where it has no segments, else as BERT: the four compute the same and
 * differ in names. A decoder with
 * rotary positions goes out as Qwen 3 (norms of queries and keys), Qwen 2 (biases there) or Llama. An
 * encoder-decoder's positions decide: computed ones are Marian's or M2M100's, relative ones T5's, learned ones BART's (norms behind a
 * sublayer) or mBART's. A model with something that those lack (adapters, another kind of position or norm) is refused. */
#include "task/hf.h"
#include "task/sentence.h"
#include "base/file.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* transformers cuts there, too. */
static const uint64_t FILE_LIMIT = 5000000000;

struct export
{
    const char *to;
    struct neb_model_yaml folder;
    enum neb_hf_kind kind;
    struct neb_tok *tok;
    json_t *numbers; /* of tokens */
};

struct wrong {
    bool is;
    const char *option, *value;
};

static const char *first_wrong(const struct wrong *list, size_t n, const char **value)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].is) {
            *value = list[i].value;
            return list[i].option;
        }
    return NULL;
}

static bool like_llama(const struct neb_arch *a)
{
    return a->kind == NEB_DECODER && a->positions == NEB_POSITIONS_ROPE;
}

/* It has no class for pairs of texts, and one eps. */
static bool like_distilbert(const struct neb_model_config *m, const struct neb_arch *a)
{
    return a->kind == NEB_ENCODER && !a->types && a->head != NEB_HEAD_CLASS && m->norm_eps > 0.999e-12 &&
           m->norm_eps < 1.001e-12;
}

/* The option whose value has no counterpart among their models, and that value; NULL: all have one. */
static const char *misfit(const struct neb_model_config *m, const struct neb_arch *a,
                          const struct neb_peft *p, const char *method, const char **value)
{
    const struct wrong all[] = {{p->adapter || p->prefix || p->prompt, "peft.method", method}};
    const bool marian = a->positions == NEB_POSITIONS_SINUSOIDAL,
               m2m100 = a->positions == NEB_POSITIONS_FAIRSEQ;
    const struct wrong seq2seq[] = {
        {a->positions == NEB_POSITIONS_ROPE || a->positions == NEB_POSITIONS_NONE, "positions", m->positions},
        {a->norm != NEB_NORM_LAYER || !a->bias || a->qk_norm, "norm", "rms, no bias, or qk_norm"},
        {a->swiglu || a->kv_heads != a->heads || a->head_dim * a->heads != a->hidden,
         "activation or kv_heads", m->activation},
        {(marian && a->pre_norm) || (m2m100 && !a->pre_norm), "norm_place", m->norm_place},
        {a->embedding_norm == (marian || m2m100), "embedding_norm", a->embedding_norm ? "yes" : "no"},
        {m2m100 && a->head_bias, "head_bias", "yes"},
        {m->norm_eps > 1.001e-5 || m->norm_eps < 0.999e-5, "norm_eps", "another than 1e-5"},
    };
    const struct wrong llama[] = {
        {a->norm != NEB_NORM_RMS, "norm", m->norm},
        {a->bias, "bias", "yes"},
        {!a->swiglu, "activation", m->activation},
        {!a->pre_norm, "norm_place", m->norm_place},
        {a->embedding_norm || a->embedding_scale != a->gelu_gate || a->head_bias,
         "embedding_norm, embedding_scale (without geglu) or head_bias", "yes"},
        {a->gelu_gate && (a->qkv_bias || a->qk_norm || !a->tied),
         "activation geglu with qkv_bias, qk_norm or untied", "yes"},
        {a->qkv_bias && a->qk_norm, "qk_norm and qkv_bias", "yes"},
        {a->qkv_bias && a->head_dim * a->heads != a->hidden, "head_dim with qkv_bias",
         "another than hidden / heads"},
    };
    const struct wrong others[] = {
        {a->positions != NEB_POSITIONS_LEARNED, "positions", m->positions},
        {a->norm != NEB_NORM_LAYER || !a->bias || a->qk_norm, "norm", "rms, no bias, or qk_norm"},
        {a->swiglu || a->kv_heads != a->heads || a->head_dim * a->heads != a->hidden,
         "activation or kv_heads", m->activation},
        {a->pre_norm != (a->kind == NEB_DECODER), "norm_place", m->norm_place},
        {a->embedding_norm != (a->kind == NEB_ENCODER) || a->embedding_scale, "embedding_norm", "that"},
    };
    const char *option = first_wrong(all, sizeof all / sizeof *all, value);
    if (option) return option;
    if (a->kind == NEB_ENCODER_DECODER && a->positions == NEB_POSITIONS_RELATIVE)
        return neb__hf_t5_misfit(m, a, value);
    if (!a->attention_scale || a->head_scale) {
        *value = a->head_scale ? "yes" : "no";
        return a->head_scale ? "head_scale" : "attention_scale";
    }
    if (a->kind == NEB_ENCODER_DECODER) return first_wrong(seq2seq, sizeof seq2seq / sizeof *seq2seq, value);
    return like_llama(a) ? first_wrong(llama, sizeof llama / sizeof *llama, value)
                         : first_wrong(others, sizeof others / sizeof *others, value);
}

bool neb__hf_exports(const struct neb_model_config *m, const struct neb_peft_config *peft)
{
    struct neb_arch a;
    struct neb_peft p;
    const char *value;
    return neb__model_config_check(m, &a) == NEB_OK && neb__peft_config_check(peft, &p) == NEB_OK &&
           !misfit(m, &a, &p, peft->method, &value);
}

static neb_status kind_of(const struct neb_model_yaml *f, bool base, enum neb_hf_kind *out)
{
    const struct neb_model_config *m = &f->model;
    struct neb_arch a;
    struct neb_peft p;
    NEB_TRY(neb__model_config_check(m, &a));
    NEB_TRY(neb__peft_config_check(&f->peft, &p));
    if (base) p = (struct neb_peft){.full = true};
    const char *value, *option = misfit(m, &a, &p, f->peft.method, &value);
    if (option)
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "a model with %s: %s has no counterpart among BERT, XLM-R, ELECTRA, DistilBERT, GPT-2, Llama, "
            "Qwen, Gemma, Marian, M2M100, BART, "
            "mBART and T5, so it cannot be exported; %s itself can be used with nebula-i",
            option, value, f->path);
    enum neb_hf_kind kind = NEB_HF_BERT;
    if (!strcmp(f->numbering, "xlm-r")) kind = NEB_HF_XLMR;
    if (a.embedding != a.hidden || a.head == NEB_HEAD_RTD) kind = NEB_HF_ELECTRA;
    if (kind == NEB_HF_BERT && like_distilbert(m, &a)) kind = NEB_HF_DISTILBERT;
    if (a.kind == NEB_DECODER) kind = NEB_HF_GPT2;
    if (like_llama(&a)) kind = NEB_HF_LLAMA;
    if (like_llama(&a) && a.qkv_bias) kind = NEB_HF_QWEN2;
    if (like_llama(&a) && a.qk_norm) kind = NEB_HF_QWEN3;
    if (like_llama(&a) && a.gelu_gate) kind = NEB_HF_GEMMA;
    if (a.kind == NEB_ENCODER_DECODER) kind = a.pre_norm ? NEB_HF_MBART : NEB_HF_BART;
    if (a.kind == NEB_ENCODER_DECODER && a.positions == NEB_POSITIONS_SINUSOIDAL) kind = NEB_HF_MARIAN;
    if (a.kind == NEB_ENCODER_DECODER && a.positions == NEB_POSITIONS_FAIRSEQ) kind = NEB_HF_M2M100;
    if (a.kind == NEB_ENCODER_DECODER && a.positions == NEB_POSITIONS_RELATIVE)
        kind = a.swiglu ? NEB_HF_T5_GATED : NEB_HF_T5;
    *out = kind;
    return NEB_OK;
}

neb_status neb__hf_kind_of(const struct neb_model_yaml *f, enum neb_hf_kind *out)
{
    return kind_of(f, false, out);
}

neb_status neb__hf_kind_of_base(const struct neb_model_yaml *f, enum neb_hf_kind *out)
{
    return kind_of(f, true, out);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static neb_status write_config(const struct export *e, enum neb_st_type type)
{
    char path[NEB_MODEL_PATH + 64];
    struct neb_buf text;
    neb__buf_init(&text, 1 << 20);
    neb_status status = neb__hf_config_write(&e->folder, e->kind, e->tok, e->numbers, type, &text);
    snprintf(path, sizeof path, "%s/config.json", e->to);
    if (status == NEB_OK) status = neb__file_replace(path, text.data, text.len, 0644);
    neb__buf_free(&text);
    return status;
}

/* Rows in front of the position table. */
static int64_t padding_of(const struct export *e)
{
    if (e->kind == NEB_HF_XLMR) return neb__hf_xlmr_pad(e->numbers) + 1;
    return e->kind == NEB_HF_BART || e->kind == NEB_HF_MBART ? 2 : 0;
}

static neb_status export(struct export *e, uint64_t limit)
{
    struct neb_arch a;
    enum neb_st_type type;
    NEB_TRY(neb__hf_kind_of(&e->folder, &e->kind));
    NEB_TRY(neb__model_config_check(&e->folder.model, &a));
    if (e->folder.tokenizer) NEB_TRY(neb__folder_tokenizer(&e->folder, &e->tok));
    NEB_TRY(neb__hf_token_numbers_read(e->folder.path, e->tok, &e->numbers));
    NEB_TRY(neb__hf_begin_folder(e->to, "config.json", 0755));
    NEB_TRY(neb__hf_export_tensors(&e->folder, e->kind, padding_of(e), e->to, limit, &type));
    NEB_TRY(neb__hf_tokenizer_write(&e->folder, e->kind, e->tok, e->to));
    NEB_TRY(neb__sentence_export(e->folder.path, e->to, a.hidden));
    return write_config(e, type);
}

neb_status neb__hf_export_cut(const char *from, const char *to, uint64_t limit)
{
    struct export e = {.to = to};
    NEB_TRY(neb__hf_apart(from, to));
    NEB_TRY(neb__model_yaml_read(from, &e.folder));
    neb_status status = export(&e, limit);
    neb__tok_close(e.tok);
    json_decref(e.numbers);
    neb__model_yaml_free(&e.folder);
    return status;
}

neb_status neb__hf_export(const char *from, const char *to)
{
    return neb__hf_export_cut(from, to, FILE_LIMIT);
}
