/* hf.h: models from Hugging Face folders and back: config.json, safetensors (one file or several with an
 * index), tokenizer files. BERT (MiniLM among them), XLM-R and RoBERTa, ELECTRA, DistilBERT, GPT-2, Llama 2 and 3, Mistral,
 * Qwen 2, 2.5 and 3, Marian, M2M100 and NLLB, BART and mBART, T5 and mT5.
 *
 * Nothing in such a folder is believed: config and index are checked key by key, tensors must have the shapes
 * that follow. */
#ifndef NEB_TASK_HF_H
#define NEB_TASK_HF_H

#include "store/safetensors.h"
#include "task/folder.h"

/* Reads the folder of a Hugging Face model and writes one of ours.
 *   NEB_ERR_NOTFOUND: a file or a tensor is missing; NEB_ERR_UNSUPPORTED: another kind of model, or an option
 *   that changes what is computed; NEB_ERR_CORRUPT, NEB_ERR_SHAPE, NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__hf_import(const char *from, const char *to);

/* The other way, so that from_pretrained() loads `to`. LoRA is merged; a model with other additions is
 * refused.
 *   NEB_ERR_UNSUPPORTED names what has no counterpart */
neb_status neb__hf_export(const char *from, const char *to);

/* The same with files of at most `limit` bytes, or one tensor; neb__hf_export() has 5 GB. */
neb_status neb__hf_export_cut(const char *from, const char *to, uint64_t limit);

/* Adapters of the peft library (a folder with adapter_config.json and adapter_model.safetensors): LoRA, on any linear layer
 * of a layer. `base` is a model folder of ours; the model folder `to` gets its weights and LoRA beside them.
 *   NEB_ERR_UNSUPPORTED names the option, NEB_ERR_NOTFOUND the layer that the base does not have */
neb_status neb__hf_import_adapter(const char *from, const char *base, const char *to);
/* The other way: only LoRA of the model folder `from` is written. */
neb_status neb__hf_export_adapter(const char *from, const char *to);

/* Whether neb__hf_export() takes such a model. */
bool neb__hf_exports(const struct neb_model_config *m, const struct neb_peft_config *peft);

/* ---- inside -------------------------------------------------------------------------------------------- */

enum neb_hf_kind {
    NEB_HF_BERT,
    NEB_HF_XLMR,
    NEB_HF_ELECTRA,
    NEB_HF_DISTILBERT,
    NEB_HF_GPT2,
    NEB_HF_LLAMA,
    NEB_HF_MISTRAL,
    NEB_HF_QWEN2,
    NEB_HF_QWEN3,
    NEB_HF_GEMMA,
    NEB_HF_MARIAN,
    NEB_HF_M2M100,
    NEB_HF_BART,
    NEB_HF_MBART,
    NEB_HF_T5,
    NEB_HF_T5_GATED /* v1.1 and mT5: the feed-forward has a gate, whose matrices have other names */
};

/* Llama and its relatives. */
static inline bool neb__hf_is_llama(enum neb_hf_kind kind)
{
    return kind >= NEB_HF_LLAMA && kind <= NEB_HF_GEMMA;
}

static inline bool neb__hf_is_seq2seq(enum neb_hf_kind kind)
{
    return kind >= NEB_HF_MARIAN;
}

static inline bool neb__hf_is_t5(enum neb_hf_kind kind)
{
    return kind >= NEB_HF_T5;
}

/* With a decoder, whose head is always that of tokens. */
static inline bool neb__hf_has_decoder(enum neb_hf_kind kind)
{
    return kind >= NEB_HF_GPT2;
}

struct json_t;

struct neb_hf_config {
    enum neb_hf_kind kind;
    int64_t skip; /* rows in front of the position table that stand for padding */
    bool tied;
    int64_t pad, bos, eos, start; /* numbers of tokens; -1: not given */
};

/* The bytes of a config.json: sizes and options into `model`, which has its defaults.
 *   NEB_ERR_CORRUPT, NEB_ERR_UNSUPPORTED */
neb_status neb__hf_config_read(const char *json, size_t n, struct neb_model_config *model,
                               struct neb_hf_config *out);
/* The JSON of a model, appended. numbers: of tokens (neb__hf_token_numbers_read()), or NULL. type: of the
 * tensors. */
neb_status neb__hf_config_write(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                                const struct neb_tok *tok, const struct json_t *numbers,
                                enum neb_st_type type, struct neb_buf *out);

/* The number of the token that XLM-R pads with: its position table has a row more in front. */
int64_t neb__hf_xlmr_pad(const struct json_t *numbers);

/* The tensors in their file that make up a parameter of ours. */
struct neb_hf_source {
    char name[3][192]; /* tensors, one below the other */
    int parts;
    bool turned;   /* stored (in, out), or a vector as one row */
    bool skips;    /* the rows of padding are not ours */
    bool plus;     /* theirs is ours - 1: a norm that multiplies by 1 + w */
    bool by_heads; /* one dimension of ours is (…, heads) there */
};

/* ours: a name of docs/models.md. prefix: whether theirs stand under `bert.` and the like. NEB_ERR_NOTFOUND
 * (quiet) */
neb_status neb__hf_source(enum neb_hf_kind kind, const char *ours, bool prefix, struct neb_hf_source *out);
/* The other name of the output's bias, of BERT and XLM-R. */
const char *neb__hf_decoder_bias(enum neb_hf_kind kind);
/* How many of the `rows` of a parameter of ours the i-th of its tensors has. */
int64_t neb__hf_part_rows(const struct neb_arch *a, const struct neb_hf_source *s, int64_t rows, int i);

neb_status neb__hf_activation(const struct json_t *j, const char *key, struct neb_model_config *m);
const char *neb__hf_activation_name(const struct neb_model_config *m);

/* As which of theirs a model folder of ours goes out. NEB_ERR_UNSUPPORTED names what has no counterpart. */
neb_status neb__hf_kind_of(const struct neb_model_yaml *f, enum neb_hf_kind *out);
/* The same without what its peft method adds. */
neb_status neb__hf_kind_of_base(const struct neb_model_yaml *f, enum neb_hf_kind *out);

/* ---- hf_config_keys.c: keys of a config.json and their values ------------------------------------------------- */

/* The keys of `list` (n) are read, or change nothing that is computed here, and so are those of every class. Any other that says
 * something is refused. */
neb_status neb__hf_known_keys(const struct json_t *j, const char *const *list, size_t n);
bool neb__hf_says_nothing(const struct json_t *v); /* absent, null, false or empty */
/* NEB_ERR_UNSUPPORTED: config.json, 'key': what */
neb_status neb__hf_refuse(const char *key, const char *what);

/* Absent and null are the fallback. A value of another type is NEB_ERR_CORRUPT. */
neb_status neb__hf_whole(const struct json_t *j, const char *key, int64_t fallback,
                         int64_t *out); /* fallback < 0: it must be there */
neb_status neb__hf_real(const struct json_t *j, const char *key, double fallback, double *out);
neb_status neb__hf_flag(const struct json_t *j, const char *key, bool fallback, bool *out);
neb_status neb__hf_text(const struct json_t *j, const char *key, const char **out); /* fallback: NULL */
/* The number of a token, the first one of a list; -1: not given, or -1 there. */
neb_status neb__hf_token(const struct json_t *j, const char *key, int64_t *out);
/* A boolean that has this value, or is not there. NEB_ERR_UNSUPPORTED */
neb_status neb__hf_only(const struct json_t *j, const char *key, bool value);

/* ---- hf_files.c: the tensors of a folder -------------------------------------------------------------------- */

struct neb_hf_files;
/* NEB_ERR_INVALID: a path is too long, or `to` is the folder `from`, which would be overwritten. */
neb_status neb__hf_apart(const char *from, const char *to);

/* Makes the folder. Its description, which is written last, goes first: what is left behind by an error is no model. */
neb_status neb__hf_begin_folder(const char *to, const char *description, mode_t mode);

/* model.safetensors, or several with an index. A successful open owes a close.
 *   NEB_ERR_NOTFOUND, NEB_ERR_CORRUPT … */
neb_status neb__hf_files_open(const char *folder, struct neb_hf_files **out);
void neb__hf_files_close(struct neb_hf_files *f); /* NULL is fine */
/* The tensors that make up a parameter of ours; false: one is missing, and source names them. */
bool neb__hf_files_locate(const struct neb_hf_files *f, enum neb_hf_kind kind, const char *ours,
                          struct neb_hf_source *source, const struct neb_st_tensor *t[3]);
const struct neb_st_tensor *neb__hf_files_find(const struct neb_hf_files *f, const char *name); /* or NULL */
/* Whether both have the same type and bytes. */
bool neb__hf_files_same(const struct neb_hf_files *f, const struct neb_st_tensor *a,
                        const struct neb_st_tensor *b);
/* The tensor was read and is not needed any more. */
void neb__hf_files_done(struct neb_hf_files *f, const struct neb_st_tensor *t);
/* A part of tensor t was read: its pages need not stay in memory. */
void neb__hf_files_forget(const struct neb_hf_files *f, const struct neb_st_tensor *t,
                          const struct neb_st_tensor *part);
/* Warns of tensors that nobody read, by their names. */
void neb__hf_files_name_unread(const struct neb_hf_files *f, const struct neb_hf_config *c);

/* ---- hf_export_tensors.c ------------------------------------------------------------------------------------- */

/* Writes the tensors of a folder of ours. pad: rows in front of a position table. *type: that all have, or F32. */
neb_status neb__hf_export_tensors(const struct neb_model_yaml *folder, enum neb_hf_kind kind, int64_t pad,
                                  const char *to, uint64_t limit, enum neb_st_type *type);

/* ---- hf_tied.c: whether the output is the token table --------------------------------------------------------- */

/* Sets c->tied to what the tensors say.
 *   NEB_ERR_NOTFOUND: neither tied nor there; NEB_ERR_UNSUPPORTED: the stacks have tables of their own */
neb_status neb__hf_settle_output(const struct neb_hf_files *f, const char *folder, struct neb_hf_config *c);

/* ---- hf_tokenizer.c: tokenizer files in and out --------------------------------------------------------------- */

/* Finds the tokenizer of the folder `from`; sets numbering, case and frame of `out`. path is empty if there is none
 * that can be read here. */
neb_status neb__hf_tokenizer_find(const char *from, const struct neb_hf_config *c, struct neb_model_yaml *out,
                                  char *path, size_t size);
/* Brings the files to the folder `to`, which neb__folder_begin() has made. */
neb_status neb__hf_tokenizer_bring(const char *from, const struct neb_hf_config *c,
                                   struct neb_model_yaml *out, const char *to);
/* Copies the files that mean nothing here from one model folder of ours to another. */
neb_status neb__hf_tokenizer_carry(const char *from, const char *to);
/* Writes those of a model folder of ours for their library. */
neb_status neb__hf_tokenizer_write(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                                   const struct neb_tok *tok, const char *to);

/* ---- hf_token_numbers.c: which tokens config.json names ----------------------------------------------------------- */

/* From the config.json of a folder to token_numbers.json of one of ours. */
neb_status neb__hf_token_numbers_bring(const char *from, const char *to);
/* pad_token_id, bos_token_id, eos_token_id, and perhaps decoder_start_token_id of a folder of ours, which has `tok` (NULL: none); null: no
 * such token. Owes a json_decref(). */
neb_status neb__hf_token_numbers_read(const char *folder, const struct neb_tok *tok, struct json_t **out);

/* ---- hf_config_seq2seq.c: config.json of Marian, M2M100, BART and mBART ---------------------------------- */

neb_status neb__hf_seq2seq_read(const struct json_t *j, struct neb_hf_config *c, struct neb_model_config *m);
neb_status neb__hf_seq2seq_write(const struct neb_model_yaml *f, const struct neb_arch *a,
                                 enum neb_hf_kind kind, const struct neb_tok *tok, struct json_t *j);

/* The token with which a target starts, or -1. */
int64_t neb__hf_start_of(const struct neb_model_yaml *f, const struct neb_tok *tok);

/* ---- hf_config_t5.c: config.json of T5 and mT5 --------------------------------------------------------------- */

neb_status neb__hf_t5_read(const struct json_t *j, struct neb_hf_config *c, struct neb_model_config *m);
neb_status neb__hf_t5_write(const struct neb_model_yaml *f, const struct neb_arch *a,
                            const struct neb_tok *tok, struct json_t *j);
/* The option of an encoder-decoder with relative positions that T5 cannot have, and its value; NULL: none. */
const char *neb__hf_t5_misfit(const struct neb_model_config *m, const struct neb_arch *a, const char **value);

/* ---- hf_config_decoder.c: config.json of Llama and its relatives ---------------------------------------- */

neb_status neb__hf_decoder_read(const struct json_t *j, enum neb_hf_kind kind, struct neb_model_config *m);
neb_status neb__hf_decoder_write(const struct neb_model_yaml *f, const struct neb_arch *a,
                                 enum neb_hf_kind kind, struct json_t *j);

#endif
