/* hf_import.c: a Hugging Face folder becomes one of ours.
 *
 * The head follows from the tensors that are there, since folders are often mislabelled. Every parameter of
 * the model that results must find its tensors. Tensors that are left over (a pooler, an unused head) are not
 * taken. */
#include "task/hf.h"
#include "job/objective.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 512, MAX_JSON = 64 << 20 };

struct import {
    const char *from;
    struct neb_hf_config config;
    struct neb_model_yaml folder;
    struct neb_st *file[MAX_FILES];
    int files;
    neb_device *device;
    neb_params *params;
    struct neb_model *model;
};

/* ---- tensors ------------------------------------------------------------------------------------------- */

static neb_status open_file(struct import *m, const char *name)
{
    char path[NEB_MODEL_PATH + 300];
    if (strchr(name, '/') || *name == '.' || strlen(name) > 255)
        return neb__fail(NEB_ERR_CORRUPT, "the index names the file '%.60s', which is not in the folder",
                         name);
    if (m->files == MAX_FILES)
        return neb__fail(NEB_ERR_CORRUPT, "the index names more than %d files", MAX_FILES);
    snprintf(path, sizeof path, "%s/%s", m->from, name);
    NEB_TRY(neb__st_open(path, &m->file[m->files]));
    m->files++;
    return NEB_OK;
}

/* {"weight_map": {tensor: file}}: each file once. */
static neb_status open_index(struct import *m, const char *json, size_t n)
{
    json_error_t error;
    json_t *j = json_loadb(json, n, 0, &error), *value;
    const char *key;
    const char **seen = NEB_NEW_ARRAY(const char *, MAX_FILES);
    neb_status status = NEB_OK;
    if (!seen) status = neb__fail(NEB_ERR_NOMEM, "out of memory for an index");
    json_t *map = json_object_get(j, "weight_map");
    if (status == NEB_OK && !json_is_object(map))
        status = neb__fail(NEB_ERR_CORRUPT, "model.safetensors.index.json has no weight_map");
    if (status == NEB_OK) {
        json_object_foreach(map, key, value)
        {
            const char *name = json_string_value(value);
            int i = 0;
            if (!name)
                status = neb__fail(NEB_ERR_CORRUPT, "model.safetensors.index.json: '%.60s' has no file", key);
            while (status == NEB_OK && i < m->files && strcmp(seen[i], name)) i++;
            if (status == NEB_OK && i == m->files) status = open_file(m, name);
            if (status == NEB_OK) seen[i] = name;
            if (status != NEB_OK) break;
        }
    }
    neb__free(seen);
    json_decref(j);
    return status;
}

static neb_status open_tensors(struct import *m)
{
    char path[NEB_MODEL_PATH + 64];
    struct stat st;
    snprintf(path, sizeof path, "%s/model.safetensors", m->from);
    if (!stat(path, &st)) return open_file(m, "model.safetensors");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", m->from);
    if (stat(path, &st))
        return neb__fail(
            NEB_ERR_NOTFOUND,
            "%s has neither model.safetensors nor model.safetensors.index.json; save the model again "
            "with save_pretrained(…, safe_serialization=True)",
            m->from);
    struct neb_buf text;
    neb__buf_init(&text, MAX_JSON);
    neb_status status = neb__file_read(path, &text);
    if (status == NEB_OK) status = open_index(m, (const char *)text.data, text.len);
    neb__buf_free(&text);
    return status;
}

/* Old files call a norm's weight gamma and its bias beta. */
static const struct neb_st_tensor *find(const struct import *m, const char *name)
{
    char old[200];
    const char *dot = strrchr(name, '.');
    snprintf(old, sizeof old, "%.*s%s", dot ? (int)(dot - name) : 0, name,
             dot && !strcmp(dot, ".bias") ? ".beta" : ".gamma");
    for (int i = 0; i < m->files; i++) {
        const struct neb_st_tensor *t = neb__st_find(m->file[i], name);
        if (!t && strstr(name, "LayerNorm")) t = neb__st_find(m->file[i], old);
        if (t) return t;
    }
    return NULL;
}

/* The tensors that make up a parameter of ours, with or without the prefix; NULL where one is missing. */
static bool locate(const struct import *m, const char *ours, struct neb_hf_source *source,
                   const struct neb_st_tensor *t[3])
{
    for (int prefix = 1; prefix >= 0; prefix--) {
        int found = 0;
        if (neb__hf_source(m->config.kind, ours, prefix, source) != NEB_OK) return false;
        for (int i = 0; i < source->parts; i++) found += (t[i] = find(m, source->name[i])) != NULL;
        if (found == source->parts) return true;
    }
    neb__hf_source(m->config.kind, ours, true, source); /* for the message */
    return false;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

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
    if (neb__hf_is_decoder(m->config.kind) || has(m, "head.transform.weight"))
        head = "tokens";
    else if (has(m, "head.out.weight") && has(m, "head.pool.weight"))
        head = m->config.kind == NEB_HF_ELECTRA ? "rtd" : "class";
    if (!strcmp(head, "tokens") && !m->config.tied && has(m, "head.weight")) c->tied = false;
    if (!strcmp(head, "class")) {
        struct neb_hf_source source;
        const struct neb_st_tensor *t[3];
        locate(m, "head.out.weight", &source, t);
        c->classes = t[0]->rank == 2 ? t[0]->shape[0] : 0;
    }
    if (!neb__hf_is_decoder(m->config.kind) && strcmp(head, "none") && strcmp(c->activation, "gelu"))
        return neb__fail(NEB_ERR_UNSUPPORTED, "a head with activation '%s' is not supported, only gelu",
                         c->activation);
    NEB_TRY(neb__opts_set(neb__model_options, c, "head", head));
    const struct neb_objective *o = neb__objective_of_model(c->kind, head);
    if (o) return neb__model_yaml_set_task(&m->folder, o->name);
    return NEB_OK;
}

/* One tensor into rows of ours; turned over if it is stored so. */
static neb_status copy_part(const struct import *m, const struct neb_st_tensor *t,
                            const struct neb_hf_source *source, int64_t rows, int64_t cols, float *out)
{
    int64_t skip = source->skips ? m->config.skip : 0;
    int64_t want[2] = {rows + skip, cols};
    if (source->turned) want[0] = cols, want[1] = rows;
    bool fits = t->rank == 1 ? t->shape[0] == want[0] * want[1]
                             : t->rank == 2 && t->shape[0] == want[0] && t->shape[1] == want[1];
    if (!fits || t->rank < 1)
        return neb__fail(
            NEB_ERR_SHAPE,
            "%s is %" PRId64 " x %" PRId64 "; %" PRId64 " x %" PRId64 " follows from config.json", t->name,
            t->rank > 0 ? t->shape[0] : 0, t->rank > 1 ? t->shape[1] : 1, want[0], want[1]);
    float *values = neb__malloc((size_t)((rows + skip) * cols) * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = neb__st_to_f32(t, values);
    for (int64_t r = 0; status == NEB_OK && r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            out[r * cols + c] = source->turned ? values[c * rows + r] : values[(r + skip) * cols + c];
    neb__free(values);
    return status;
}

static neb_status fill(struct import *m, neb_param *p)
{
    struct neb_hf_source source;
    const struct neb_st_tensor *t[3];
    int64_t shape[4] = {0};
    int rank = neb_param_shape(p, shape);
    if (!locate(m, neb_param_name(p), &source, t))
        return neb__fail(NEB_ERR_NOTFOUND, "%s has no tensor '%s'", m->from, source.name[0]);
    int64_t cols = rank > 1 ? shape[1] : 1;
    float *values = neb__malloc((size_t)neb_param_values(p) * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", neb_param_name(p));
    neb_status status = NEB_OK;
    float *to = values;
    for (int i = 0; status == NEB_OK && i < source.parts; i++) {
        int64_t rows = neb__hf_part_rows(&m->model->arch, &source, shape[0], i);
        status = copy_part(m, t[i], &source, rows, cols, to);
        to += rows * cols;
    }
    if (status == NEB_OK) status = neb_param_write(p, values);
    neb__free(values);
    return status;
}

static neb_status make_model(struct import *m)
{
    struct neb_device_config one = {.threads = 1};
    NEB_TRY(neb_device_open("cpu", &one, &m->device));
    NEB_TRY(neb_params_create(&m->params));
    NEB_TRY(neb__model_create(&m->folder.model, &m->folder.peft, "", NULL, m->params, &m->model));
    neb_params_trainable(m->params, "*", false);
    NEB_TRY(neb_params_ready(m->params, m->device, 1));
    for (int i = 0; i < neb_params_count(m->params); i++) NEB_TRY(fill(m, neb_params_at(m->params, i)));
    return NEB_OK;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static neb_status read_config(struct import *m)
{
    char path[NEB_MODEL_PATH + 64];
    struct neb_buf text;
    neb__buf_init(&text, MAX_JSON);
    snprintf(path, sizeof path, "%s/config.json", m->from);
    neb_status status = neb__file_read(path, &text);
    if (status == NEB_OK)
        status = neb__hf_config_read((const char *)text.data, text.len, &m->folder.model, &m->config);
    neb__buf_free(&text);
    return status;
}

/* The contents of tokenizer_config.json; zeros if there is no such file. */
struct tokenizer_config {
    bool cased;
    char class[64];
};

static void read_tokenizer_config(const char *from, struct tokenizer_config *out)
{
    char path[NEB_MODEL_PATH + 64];
    struct neb_buf text;
    *out = (struct tokenizer_config){0};
    neb__buf_init(&text, MAX_JSON);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", from);
    if (!access(path, F_OK) && neb__file_read(path, &text) == NEB_OK) {
        json_t *j = json_loadb((const char *)text.data, text.len, JSON_DECODE_INT_AS_REAL, NULL);
        const char *class = json_string_value(json_object_get(j, "tokenizer_class"));
        out->cased = json_is_false(json_object_get(j, "do_lower_case"));
        snprintf(out->class, sizeof out->class, "%s", class ? class : "");
        json_decref(j);
    }
    neb__buf_free(&text);
}

/* Many models carry XLM-R's tokenizer; multilingual MiniLM is a BERT. */
static bool numbers_as_xlmr(const char *file, const char *class)
{
    static const char of_xlmr[] = "XLMRoberta";
    return !strcmp(file, "sentencepiece.bpe.model") ||
           (strstr(file, ".model") && !strncmp(class, of_xlmr, sizeof of_xlmr - 1));
}

/* The file of a tokenizer that can be read here; *out is empty if there is no such file. */
static neb_status find_tokenizer(struct import *m, char *out, size_t size)
{
    static const char *const usual[] = {"sentencepiece.bpe.model", "vocab.txt",  "spiece.model",
                                        "tokenizer.model",         "vocab.json", "tokenizer.json"};
    /* Llama and Qwen do not cut as GPT-2 does: their vocab.json alone would give other ids. */
    static const char *const later[] = {"tokenizer.json", "tokenizer.model"};
    const bool llama = m->config.kind > NEB_HF_GPT2;
    const char *const *names = llama ? later : usual;
    char second[NEB_MODEL_PATH + 64];
    struct stat st;
    struct tokenizer_config c;
    read_tokenizer_config(m->from, &c);
    if (m->config.kind == NEB_HF_XLMR) NEB_TRY(neb__model_yaml_set_numbering(&m->folder, "xlm-r"));
    for (int i = 0; i < (llama ? 2 : 6); i++) {
        snprintf(out, size, "%s/%s", m->from, names[i]);
        NEB_TRY(neb__tok_second_file(out, second, sizeof second));
        if (stat(out, &st) || (*second && stat(second, &st))) continue;
        if (!strcmp(names[i], "vocab.txt")) m->folder.cased = c.cased;
        if (numbers_as_xlmr(names[i], c.class)) NEB_TRY(neb__model_yaml_set_numbering(&m->folder, "xlm-r"));
        return NEB_OK;
    }
    *out = 0;
    neb__warn("%s has no tokenizer that can be read here (tokenizer.json, vocab.txt, vocab.json with "
              "merges.txt, or a SentencePiece model): only the weights are taken",
              m->from);
    return NEB_OK;
}

/* Files that mean nothing here but belong to the model: an export gives them back. */
static neb_status carry(const char *from, const char *to)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                        "vocab.json", "merges.txt"};
    for (int i = 0; i < 5; i++) {
        char path[NEB_MODEL_PATH + 64];
        struct neb_buf bytes;
        neb__buf_init(&bytes, MAX_JSON);
        snprintf(path, sizeof path, "%s/%s", from, names[i]);
        neb_status status = NEB_OK;
        struct stat st;
        if (!stat(path, &st)) {
            status = neb__file_read(path, &bytes);
            snprintf(path, sizeof path, "%s/%s", to, names[i]);
            if (status == NEB_OK) status = neb__file_replace(path, bytes.data, bytes.len, 0600);
        }
        neb__buf_free(&bytes);
        NEB_TRY(status);
    }
    return NEB_OK;
}

static neb_status import(struct import *m, const char *to)
{
    char tokenizer[NEB_MODEL_PATH + 64];
    NEB_TRY(read_config(m));
    NEB_TRY(open_tensors(m));
    NEB_TRY(choose_head(m));
    NEB_TRY(make_model(m));
    NEB_TRY(find_tokenizer(m, tokenizer, sizeof tokenizer));
    NEB_TRY(neb__folder_write(&m->folder, to, m->model, *tokenizer ? tokenizer : NULL));
    return carry(m->from, to);
}

neb_status neb__hf_import(const char *from, const char *to)
{
    if (strlen(from) >= NEB_MODEL_PATH || strlen(to) >= NEB_MODEL_PATH)
        return neb__fail(NEB_ERR_INVALID, "a path is longer than %d bytes", NEB_MODEL_PATH - 1);
    struct import *m = NEB_NEW(struct import);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for an import");
    m->from = from;
    neb_status status = neb__model_yaml_init(&m->folder);
    if (status == NEB_OK) status = import(m, to);
    for (int i = 0; i < m->files; i++) neb__st_close(m->file[i]);
    neb__model_destroy(m->model);
    neb_params_destroy(m->params);
    neb_device_close(m->device);
    neb__model_yaml_free(&m->folder);
    neb__free(m);
    return status;
}
