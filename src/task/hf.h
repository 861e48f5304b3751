/* hf.h: models from Hugging Face folders and back: config.json, safetensors (one file or several with an
 * index), tokenizer files. BERT (MiniLM among them), XLM-R and RoBERTa, ELECTRA, GPT-2, Llama 2 and 3, Mistral,
 * Qwen 2, 2.5 and 3.
 *
 * Nothing in such a folder is believed: config and index are checked key by key, tensors must have the shapes
 * that follow. */
#ifndef NEB_TASK_HF_H
#define NEB_TASK_HF_H

#include "task/folder.h"

/* Reads the folder of a Hugging Face model and writes one of ours.
 *   NEB_ERR_NOTFOUND: a file or a tensor is missing; NEB_ERR_UNSUPPORTED: another kind of model, or an option
 *   that changes what is computed; NEB_ERR_CORRUPT, NEB_ERR_SHAPE, NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__hf_import(const char *from, const char *to);

/* The other way, so that from_pretrained() loads `to`. LoRA is merged; a model with other additions is
 * refused.
 *   NEB_ERR_UNSUPPORTED names what has no counterpart */
neb_status neb__hf_export(const char *from, const char *to);

/* Whether neb__hf_export() takes such a model. */
bool neb__hf_exports(const struct neb_model_config *m, const struct neb_peft_config *peft);

/* ---- inside -------------------------------------------------------------------------------------------- */

enum neb_hf_kind {
    NEB_HF_BERT,
    NEB_HF_XLMR,
    NEB_HF_ELECTRA,
    NEB_HF_GPT2,
    NEB_HF_LLAMA,
    NEB_HF_MISTRAL,
    NEB_HF_QWEN2,
    NEB_HF_QWEN3
};

/* Decoders, whose head is always that of tokens. */
static inline bool neb__hf_is_decoder(enum neb_hf_kind kind)
{
    return kind >= NEB_HF_GPT2;
}

struct neb_hf_config {
    enum neb_hf_kind kind;
    int64_t skip; /* rows in front of the position table that stand for padding */
    bool tied;
};

/* The bytes of a config.json: sizes and options into `model`, which has its defaults.
 *   NEB_ERR_CORRUPT, NEB_ERR_UNSUPPORTED */
neb_status neb__hf_config_read(const char *json, size_t n, struct neb_model_config *model,
                               struct neb_hf_config *out);
/* The JSON of a model, appended. */
neb_status neb__hf_config_write(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                                const struct neb_tok *tok, struct neb_buf *out);

/* The tensors in their file that make up a parameter of ours. */
struct neb_hf_source {
    char name[3][192]; /* tensors, one below the other */
    int parts;
    bool turned; /* stored (in, out) */
    bool skips;  /* the rows of padding are not ours */
};

/* ours: a name of docs/models.md. prefix: whether theirs stand under `bert.` and the like. NEB_ERR_NOTFOUND
 * (quiet) */
neb_status neb__hf_source(enum neb_hf_kind kind, const char *ours, bool prefix, struct neb_hf_source *out);
/* How many of the `rows` of a parameter of ours the i-th of its tensors has. */
int64_t neb__hf_part_rows(const struct neb_arch *a, const struct neb_hf_source *s, int64_t rows, int i);

/* ---- hf_config_decoder.c: config.json of Llama and its relatives ---------------------------------------- */

struct json_t;
neb_status neb__hf_decoder_read(const struct json_t *j, enum neb_hf_kind kind, struct neb_model_config *m);
neb_status neb__hf_decoder_write(const struct neb_model_yaml *f, const struct neb_arch *a,
                                 enum neb_hf_kind kind, struct json_t *j);

#endif
