/* hf_import.c: a Hugging Face folder becomes one of ours.
 *
 * The head follows from the tensors that are there, since folders are often mislabelled. Every parameter of
 * the model that results must find its tensors. Tensors that are left over (a pooler, an unused head) are named and
 * not taken.
 *
 * The model itself is never in memory: its parameters are only described, and each goes from the mapped file to
 * the new one. Values keep their type (bf16, fp16, fp32), so the new folder is as large as the old one. */
#include "task/hf.h"
#include "job/objective.h"
#include "base/file.h"
#include "base/mem.h"
#include "task/sentence.h"
#include "tensor/params.h"

#include <stdio.h>
#include <string.h>

enum { MAX_JSON = 64 << 20, CHUNK = 4 << 20 };

struct import {
    const char *from;
    struct neb_hf_config config;
    struct neb_model_yaml folder;
    struct neb_hf_files *files;
    neb_params *params; /* described, never ready */
    struct neb_model *model;
    struct neb_st_tensor *list; /* ours, one a parameter */
    struct neb_sentence *sentence;
};

/* ---- the model ----------------------------------------------------------------------------------------- */

static bool locate(const struct import *m, const char *ours, struct neb_hf_source *source,
                   const struct neb_st_tensor *t[3])
{
    return neb__hf_files_locate(m->files, m->config.kind, ours, source, t);
}

static bool has(const struct import *m, const char *ours)
{
    struct neb_hf_source source;
    const struct neb_st_tensor *t[3];
    return locate(m, ours, &source, t);
}

static neb_status choose_head(struct import *m)
{
    const char *head = "none";
    struct neb_model_config *c = &m->folder.model;
    if (neb__hf_has_decoder(m->config.kind) || has(m, "head.transform.weight"))
        head = "tokens";
    else if (has(m, "head.out.weight") && has(m, "head.pool.weight"))
        head = m->config.kind == NEB_HF_ELECTRA ? "rtd" : "class";
    if (!strcmp(head, "tokens")) {
        NEB_TRY(neb__hf_settle_output(m->files, m->from, &m->config));
        c->tied = m->config.tied;
    }
    if (!strcmp(head, "class")) {
        struct neb_hf_source source;
        const struct neb_st_tensor *t[3];
        locate(m, "head.out.weight", &source, t);
        c->classes = t[0]->rank == 2 ? t[0]->shape[0] : 0;
    }
    if (!neb__hf_has_decoder(m->config.kind) && strcmp(head, "none") && strcmp(c->activation, "gelu"))
        return neb__fail(NEB_ERR_UNSUPPORTED, "a head with activation '%s' is not supported, only gelu",
                         c->activation);
    NEB_TRY(neb__opts_set(neb__model_options, c, "head", head));
    const struct neb_objective *o = neb__objective_of_model(c->kind, head);
    if (o) return neb__model_yaml_set_task(&m->folder, o->name);
    return NEB_OK;
}

/* ---- one parameter ------------------------------------------------------------------------------------- */

/* Tables of sines are computed, and a bias that no file has is zero, as there. */
static bool is_sinusoid(const char *name)
{
    return strstr(name, ".embed.sinusoid.weight") != NULL;
}

static bool may_be_zero(const struct import *m, const char *name)
{
    return neb__hf_is_seq2seq(m->config.kind) && !strcmp(name, "head.bias");
}

static bool is_float(enum neb_st_type t)
{
    return t == NEB_ST_F32 || t == NEB_ST_F16 || t == NEB_ST_BF16;
}

/* Whether the shape of a tensor is the one that its part of a parameter needs. */
static neb_status check_part(const struct import *m, const struct neb_st_tensor *t,
                             const struct neb_hf_source *source, int64_t rows, int64_t cols)
{
    int64_t skip = source->skips ? m->config.skip : 0, want[2] = {rows + skip, cols};
    if (source->turned) want[0] = cols, want[1] = rows;
    if (source->by_heads) want[1] = m->model->arch.heads, want[0] = rows / want[1];
    bool fits = t->rank == 1 ? t->shape[0] == want[0] * want[1]
                             : t->rank == 2 && t->shape[0] == want[0] && t->shape[1] == want[1];
    if (fits) return NEB_OK;
    return neb__fail(NEB_ERR_SHAPE,
                     "%s is %" PRId64 " x %" PRId64 "; %" PRId64 " x %" PRId64 " follows from config.json",
                     t->name, t->rank > 0 ? t->shape[0] : 0, t->rank > 1 ? t->shape[1] : 1, want[0], want[1]);
}

/* Describes the tensor of ours that parameter p becomes. */
static neb_status describe(struct import *m, const neb_param *p, struct neb_st_tensor *out)
{
    struct neb_hf_source source;
    const struct neb_st_tensor *t[3];
    int64_t shape[4] = {0};
    const char *name = neb_param_name(p);
    *out = (struct neb_st_tensor){.name = name, .type = NEB_ST_F32, .rank = neb_param_shape(p, shape)};
    memcpy(out->shape, shape, sizeof shape);
    const int64_t cols = out->rank > 1 ? shape[1] : 1;
    if (is_sinusoid(name) || (may_be_zero(m, name) && !has(m, name))) {
        out->size = (uint64_t)(shape[0] * cols) * sizeof(float);
        return NEB_OK;
    }
    if (!locate(m, name, &source, t))
        return neb__fail(NEB_ERR_NOTFOUND, "%s has no tensor '%s'", m->from, source.name[0]);
    out->type = is_float(t[0]->type) && !source.plus ? t[0]->type : NEB_ST_F32;
    for (int i = 0; i < source.parts; i++) {
        NEB_TRY(check_part(m, t[i], &source, neb__hf_part_rows(&m->model->arch, &source, shape[0], i), cols));
        if (t[i]->type != out->type) out->type = NEB_ST_F32;
    }
    out->size = (uint64_t)(shape[0] * cols) * neb__st_type_size(out->type);
    return NEB_OK;
}

/* A part of a tensor: `n` elements from the first-th on. */
static struct neb_st_tensor slice(const struct neb_st_tensor *t, int64_t first, int64_t n)
{
    struct neb_st_tensor s = *t;
    const size_t each = neb__st_type_size(t->type);
    s.data = (const uint8_t *)t->data + (size_t)first * each;
    s.size = (uint64_t)n * each;
    return s;
}

/* Elements [first, first + n) as they are, or as fp32, a chunk at a time. */
static neb_status put_elements(const struct import *m, const struct neb_st_tensor *t, int64_t first,
                               int64_t n, enum neb_st_type type, neb_st_put put, void *sink)
{
    float *values = t->type == type ? NULL : neb__malloc(CHUNK * sizeof *values);
    if (t->type != type && !values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = NEB_OK;
    for (int64_t done = 0; status == NEB_OK && done < n; done += CHUNK) {
        const int64_t now = n - done < CHUNK ? n - done : CHUNK;
        struct neb_st_tensor s = slice(t, first + done, now);
        if (values) status = neb__st_to_f32(&s, values);
        if (status == NEB_OK)
            status = put(sink, values ? (const void *)values : s.data,
                         (size_t)now * (values ? sizeof *values : neb__st_type_size(type)));
        neb__hf_files_forget(m->files, t, &s);
    }
    neb__free(values);
    return status;
}

/* A matrix that is stored turned over. */
static neb_status put_turned(const struct neb_st_tensor *t, int64_t rows, int64_t cols, enum neb_st_type type,
                             neb_st_put put, void *sink)
{
    const size_t each = neb__st_type_size(type);
    uint8_t *out = neb__malloc((size_t)(rows * cols) * each);
    float *values = type == t->type ? NULL : neb__malloc((size_t)(rows * cols) * sizeof *values);
    neb_status status = NEB_OK;
    if (!out || (type != t->type && !values))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    if (status == NEB_OK && values) status = neb__st_to_f32(t, values);
    const uint8_t *from = values ? (const uint8_t *)values : t->data;
    for (int64_t r = 0; status == NEB_OK && r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            memcpy(out + (size_t)(r * cols + c) * each, from + (size_t)(c * rows + r) * each, each);
    if (status == NEB_OK) status = put(sink, out, (size_t)(rows * cols) * each);
    neb__free(values);
    neb__free(out);
    return status;
}

static neb_status put_computed(const struct import *m, const struct neb_st_tensor *mine, neb_st_put put,
                               void *sink)
{
    const int64_t rows = mine->shape[0], cols = mine->rank > 1 ? mine->shape[1] : 1;
    float *row = neb__calloc((size_t)cols, sizeof *row);
    if (!row) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", mine->name);
    neb_status status = NEB_OK;
    for (int64_t r = 0; status == NEB_OK && r < rows; r++) {
        if (is_sinusoid(mine->name)) neb__sinusoid_row(m->model->arch.positions, r, cols, row);
        status = put(sink, row, (size_t)cols * sizeof *row);
    }
    neb__free(row);
    return status;
}

/* A norm's vector, as fp32: 1 + w, as their code computes it. */
static neb_status put_plus_one(const struct neb_st_tensor *t, neb_st_put put, void *sink)
{
    const size_t n = (size_t)t->size / neb__st_type_size(t->type);
    float *values = neb__malloc(n * sizeof *values + 1);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = neb__st_to_f32(t, values);
    for (size_t i = 0; status == NEB_OK && i < n; i++) values[i] += 1;
    if (status == NEB_OK) status = put(sink, values, n * sizeof *values);
    neb__free(values);
    return status;
}

/* neb_st_make */
static neb_status make(void *arg, int number, neb_st_put put, void *sink)
{
    struct import *m = arg;
    const struct neb_st_tensor *mine = &m->list[number], *t[3];
    struct neb_hf_source source;
    const int64_t cols = mine->rank > 1 ? mine->shape[1] : 1;
    if (is_sinusoid(mine->name) || !locate(m, mine->name, &source, t))
        return put_computed(m, mine, put, sink);
    for (int i = 0; i < source.parts; i++) {
        int64_t rows = neb__hf_part_rows(&m->model->arch, &source, mine->shape[0], i);
        int64_t skip = source.skips ? m->config.skip : 0;
        if (source.plus)
            NEB_TRY(put_plus_one(t[i], put, sink));
        else
            NEB_TRY(source.turned ? put_turned(t[i], rows, cols, mine->type, put, sink)
                                  : put_elements(m, t[i], skip * cols, rows * cols, mine->type, put, sink));
        neb__hf_files_done(m->files, t[i]);
    }
    return NEB_OK;
}

static neb_status plan_params(struct import *m)
{
    NEB_TRY(neb_params_create(&m->params));
    NEB_TRY(neb__model_create(&m->folder.model, &m->folder.peft, "", NULL, m->params, &m->model));
    if (m->params->failed != NEB_OK) return m->params->failed;
    const int n = neb_params_count(m->params);
    m->list = NEB_NEW_ARRAY(struct neb_st_tensor, (size_t)n);
    if (!m->list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d parameters", n);
    for (int i = 0; i < n; i++) NEB_TRY(describe(m, neb_params_at(m->params, i), &m->list[i]));
    return NEB_OK;
}

static neb_status write_params(struct import *m, const char *to)
{
    char file[NEB_MODEL_PATH + 32];
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    return neb__st_write_made(file, m->list, neb_params_count(m->params), NULL, 0600, make, m);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static neb_status read_config(struct import *m)
{
    char path[NEB_MODEL_PATH + 64];
    struct neb_buf text;
    neb__buf_init(&text, MAX_JSON);
    snprintf(path, sizeof path, "%s/config.json", m->from);
    neb_status status = neb__file_read_plain(path, &text);
    if (status == NEB_OK)
        status = neb__hf_config_read((const char *)text.data, text.len, &m->folder.model, &m->config);
    neb__buf_free(&text);
    return status;
}

/* A tokenizer that reads large letters as small ones. */
static neb_status check_lower(const struct import *m, const char *tokenizer)
{
    static const char large[] = "THE QUICK BROWN FOX JUMPS OVER \303\204 LAZY DOG",
                      small[] = "the quick brown fox jumps over \303\244 lazy dog";
    const struct neb_tok_cfg cfg = neb__folder_tok_cfg(&m->folder);
    struct neb_tok *tok;
    struct neb_buf a, b;
    NEB_TRY(neb__tok_open(tokenizer, &cfg, &tok));
    neb__buf_init(&a, 1 << 16);
    neb__buf_init(&b, 1 << 16);
    neb_status status = neb__tok_encode(tok, large, sizeof large - 1, &a);
    if (status == NEB_OK) status = neb__tok_encode(tok, small, sizeof small - 1, &b);
    if (status == NEB_OK && (a.len != b.len || memcmp(a.data, b.data, a.len) != 0))
        status = neb__fail(NEB_ERR_UNSUPPORTED,
                           "%s: do_lower_case of sentence_bert_config.json is set, but the tokenizer keeps "
                           "large letters",
                           m->from);
    neb__buf_free(&a);
    neb__buf_free(&b);
    neb__tok_close(tok);
    return status;
}

static neb_status check_sentences(struct import *m, const char *tokenizer)
{
    bool lowers;
    if (m->model->arch.kind != NEB_ENCODER) return NEB_OK;
    NEB_TRY(neb__sentence_read(m->from, m->model->arch.hidden, &m->sentence));
    NEB_TRY(neb__sentence_lowers(m->from, &lowers));
    return lowers && *tokenizer ? check_lower(m, tokenizer) : NEB_OK;
}

/* All that can be checked comes before the first file is written. */
static neb_status import(struct import *m, const char *to)
{
    char tokenizer[NEB_MODEL_PATH + 64];
    NEB_TRY(read_config(m));
    NEB_TRY(neb__hf_files_open(m->from, &m->files));
    NEB_TRY(choose_head(m));
    NEB_TRY(neb__hf_tokenizer_find(m->from, &m->config, &m->folder, tokenizer, sizeof tokenizer));
    NEB_TRY(plan_params(m));
    NEB_TRY(check_sentences(m, tokenizer));
    NEB_TRY(neb__hf_begin_folder(to, "model.yaml", 0700));
    NEB_TRY(write_params(m, to));
    NEB_TRY(neb__sentence_write(m->sentence, to));
    neb__hf_files_name_unread(m->files, &m->config);
    NEB_TRY(neb__folder_begin(&m->folder, to, *tokenizer ? tokenizer : NULL));
    NEB_TRY(neb__hf_tokenizer_bring(m->from, &m->config, &m->folder, to));
    NEB_TRY(neb__hf_token_numbers_bring(m->from, to));
    return neb__model_yaml_write(&m->folder, to);
}

neb_status neb__hf_import(const char *from, const char *to)
{
    NEB_TRY(neb__hf_apart(from, to));
    struct import *m = NEB_NEW(struct import);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for an import");
    m->from = from;
    neb_status status = neb__model_yaml_init(&m->folder);
    if (status == NEB_OK) status = import(m, to);
    neb__hf_files_close(m->files);
    neb__model_destroy(m->model);
    neb_params_destroy(m->params);
    neb__sentence_close(m->sentence);
    neb__free(m->list);
    neb__model_yaml_free(&m->folder);
    neb__free(m);
    return status;
}
