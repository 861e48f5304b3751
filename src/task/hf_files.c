/* hf_files.c: the tensors of a Hugging Face folder, which may lie in several files.
 *
 * Files are mapped, not read: a folder may be larger than the memory. Every tensor that was read is noted, so that the
 * others can be named. A few are known to say nothing: tables that are computed, masks, copies of tied weights. */
#include "task/hf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 512, MAX_JSON = 64 << 20, NAMED = 8 };

struct neb_hf_files {
    const char *folder;
    struct neb_st *file[MAX_FILES];
    uint8_t *read[MAX_FILES]; /* of each tensor */
    const char *name[MAX_FILES];
    int n;
    json_t *index; /* owns the names; NULL: one file */
    json_t *map;   /* of the index: tensor to file */
};

neb_status neb__hf_apart(const char *from, const char *to)
{
    struct stat a, b;
    if (strlen(from) >= NEB_MODEL_PATH || strlen(to) >= NEB_MODEL_PATH)
        return neb__fail(NEB_ERR_INVALID, "a path is longer than %d bytes", NEB_MODEL_PATH - 1);
    if (!stat(from, &a) && !stat(to, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return neb__fail(NEB_ERR_INVALID, "%s cannot be written over itself: give another folder", from);
    return NEB_OK;
}

neb_status neb__hf_begin_folder(const char *to, const char *description, mode_t mode)
{
    char path[NEB_MODEL_PATH + 64];
    NEB_TRY(neb__file_make_dir(to, mode));
    snprintf(path, sizeof path, "%s/%s", to, description);
    if (!unlink(path) || errno == ENOENT) return NEB_OK;
    return neb__fail(NEB_ERR_IO, "cannot replace %s: %s", path, strerror(errno));
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static neb_status open_file(struct neb_hf_files *f, const char *name)
{
    char path[NEB_MODEL_PATH + 300];
    if (!*name) return neb__fail(NEB_ERR_CORRUPT, "the index names a file without a name");
    if (strchr(name, '/') || *name == '.' || strlen(name) > 255)
        return neb__fail(NEB_ERR_CORRUPT, "the index names the file '%.60s', which is not in the folder",
                         name);
    if (f->n == MAX_FILES) return neb__fail(NEB_ERR_CORRUPT, "the index names more than %d files", MAX_FILES);
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    NEB_TRY(neb__st_open(path, &f->file[f->n]));
    f->name[f->n] = name;
    f->n++; /* it is closed from now on */
    f->read[f->n - 1] = NEB_NEW_ARRAY(uint8_t, (size_t)neb__st_count(f->file[f->n - 1]) + 1);
    return f->read[f->n - 1] ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a folder of tensors");
}

/* The number of an open file, or how many are open. */
static int file_called(const struct neb_hf_files *f, const char *name)
{
    int i = 0;
    while (i < f->n && strcmp(f->name[i], name)) i++;
    return i;
}

/* {"weight_map": {tensor: file}}: each file once. */
static neb_status open_index(struct neb_hf_files *f, const char *json, size_t n)
{
    json_error_t error;
    json_t *value;
    const char *key;
    f->index = json_loadb(json, n, 0, &error);
    f->map = json_object_get(f->index, "weight_map");
    if (!json_is_object(f->map))
        return neb__fail(NEB_ERR_CORRUPT, "model.safetensors.index.json has no weight_map");
    json_object_foreach(f->map, key, value)
    {
        const char *name = json_string_value(value);
        if (!name)
            return neb__fail(NEB_ERR_CORRUPT, "model.safetensors.index.json: '%.60s' has no file", key);
        if (file_called(f, name) == f->n) NEB_TRY(open_file(f, name));
    }
    return NEB_OK;
}

static neb_status open_all(struct neb_hf_files *f)
{
    char path[NEB_MODEL_PATH + 64];
    struct stat st;
    snprintf(path, sizeof path, "%s/model.safetensors", f->folder);
    if (!stat(path, &st)) return open_file(f, "model.safetensors");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", f->folder);
    if (stat(path, &st))
        return neb__fail(
            NEB_ERR_NOTFOUND,
            "%s has neither model.safetensors nor model.safetensors.index.json; save the model again "
            "with save_pretrained(…, safe_serialization=True)",
            f->folder);
    struct neb_buf text;
    neb__buf_init(&text, MAX_JSON);
    neb_status status = neb__file_read_plain(path, &text);
    if (status == NEB_OK) status = open_index(f, (const char *)text.data, text.len);
    neb__buf_free(&text);
    return status;
}

neb_status neb__hf_files_open(const char *folder, struct neb_hf_files **out)
{
    struct neb_hf_files *f = NEB_NEW(struct neb_hf_files);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a folder of tensors");
    f->folder = folder;
    neb_status status = open_all(f);
    if (status != NEB_OK) {
        neb__hf_files_close(f);
        return status;
    }
    *out = f;
    return NEB_OK;
}

void neb__hf_files_close(struct neb_hf_files *f)
{
    if (!f) return;
    for (int i = 0; i < f->n; i++) {
        neb__st_close(f->file[i]);
        neb__free(f->read[i]);
    }
    json_decref(f->index);
    neb__free(f);
}

/* ---- finding ----------------------------------------------------------------------------------------------- */

/* A tensor by this very name, in the file that the index says. */
static const struct neb_st_tensor *find_named(const struct neb_hf_files *f, const char *name)
{
    const char *file = json_string_value(json_object_get(f->map, name));
    if (!f->map) return neb__st_find(f->file[0], name);
    return file ? neb__st_find(f->file[file_called(f, file)], name) : NULL;
}

/* Old files call a norm's weight gamma and its bias beta. */
static const struct neb_st_tensor *find(const struct neb_hf_files *f, const char *name)
{
    char old[200];
    const char *dot = strrchr(name, '.');
    const struct neb_st_tensor *t = find_named(f, name);
    if (t || !strstr(name, "LayerNorm")) return t;
    snprintf(old, sizeof old, "%.*s%s", dot ? (int)(dot - name) : 0, name,
             dot && !strcmp(dot, ".bias") ? ".beta" : ".gamma");
    return find_named(f, old);
}

/* An encoder-decoder's token table has four names; a file may hold any of them. */
static const struct neb_st_tensor *find_shared(const struct neb_hf_files *f, const char *name)
{
    static const char *const others[] = {"model.encoder.embed_tokens.weight",
                                         "model.decoder.embed_tokens.weight", "encoder.embed_tokens.weight",
                                         "decoder.embed_tokens.weight", "lm_head.weight"};
    const struct neb_st_tensor *t = find(f, name);
    for (size_t i = 0; !t && i < sizeof others / sizeof *others; i++) t = find(f, others[i]);
    return t;
}

/* BERT and RoBERTa add the bias of their output layer. The one beside it is the same, or left over. */
static const struct neb_st_tensor *find_output_bias(const struct neb_hf_files *f, enum neb_hf_kind kind,
                                                    const char *ours)
{
    if (kind > NEB_HF_XLMR || strcmp(ours, "head.bias") != 0) return NULL;
    return find(f, neb__hf_decoder_bias(kind));
}

bool neb__hf_files_locate(const struct neb_hf_files *f, enum neb_hf_kind kind, const char *ours,
                          struct neb_hf_source *source, const struct neb_st_tensor *t[3])
{
    const bool shared = neb__hf_is_seq2seq(kind) && !strcmp(ours, "embed.token.weight");
    const struct neb_st_tensor *bias = NULL;
    for (int prefix = 1; prefix >= 0; prefix--) {
        int found = 0;
        if (neb__hf_source(kind, ours, prefix, source) != NEB_OK) return false;
        for (int i = 0; i < source->parts; i++)
            found += (t[i] = shared && !prefix ? find_shared(f, source->name[i])
                                               : find(f, source->name[i])) != NULL;
        if (source->parts == 1 && (bias = find_output_bias(f, kind, ours))) t[0] = bias;
        if (found == source->parts || bias) return true;
    }
    neb__hf_source(kind, ours, true, source); /* for the message */
    return false;
}

const struct neb_st_tensor *neb__hf_files_find(const struct neb_hf_files *f, const char *name)
{
    return find(f, name);
}

bool neb__hf_files_same(const struct neb_hf_files *f, const struct neb_st_tensor *a,
                        const struct neb_st_tensor *b)
{
    if (a == b) return true;
    const bool same = a->type == b->type && a->size == b->size && !memcmp(a->data, b->data, (size_t)a->size);
    neb__hf_files_forget(f, a, a);
    neb__hf_files_forget(f, b, b);
    return same;
}

/* ---- what was read ------------------------------------------------------------------------------------------ */

/* The file of a tensor, or -1. */
static int file_of(const struct neb_hf_files *f, const struct neb_st_tensor *t)
{
    for (int i = 0; i < f->n; i++) {
        const struct neb_st_tensor *first = neb__st_at(f->file[i], 0);
        if (first && t >= first && t < first + neb__st_count(f->file[i])) return i;
    }
    return -1;
}

void neb__hf_files_forget(const struct neb_hf_files *f, const struct neb_st_tensor *t,
                          const struct neb_st_tensor *part)
{
    const int i = file_of(f, t);
    if (i >= 0) neb__st_forget(f->file[i], part);
}

void neb__hf_files_done(struct neb_hf_files *f, const struct neb_st_tensor *t)
{
    const int i = file_of(f, t);
    if (i < 0) return;
    f->read[i][t - neb__st_at(f->file[i], 0)] = 1;
    neb__st_forget(f->file[i], t);
}

/* Tensors that a model without them computes just the same. */
static bool says_nothing(const char *name, const struct neb_hf_config *c)
{
    static const char *const always[] = {"*.position_ids",     "*rotary_emb.inv_freq", "*.attn.bias",
                                         "*.attn.masked_bias", "cls.predictions.bias", "lm_head.bias"};
    static const char *const copies[] = {"lm_head.weight",    "*coder.embed_tokens.weight",
                                         "*shared.weight",    "cls.predictions.decoder.*",
                                         "lm_head.decoder.*", "generator_lm_head.weight"};
    static const char *const computed[] = {"*.embed_positions.weight", "*.embed_positions.weights",
                                           "*.embed_positions._float_tensor"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!fnmatch(always[i], name, 0)) return true;
    static const char *const t5[] = {
        "*coder.embed_tokens.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"};
    for (size_t i = 0; neb__hf_is_t5(c->kind) && i < sizeof t5 / sizeof *t5; i++)
        if (!fnmatch(t5[i], name, 0)) return true;
    for (size_t i = 0; c->tied && i < sizeof copies / sizeof *copies; i++)
        if (!fnmatch(copies[i], name, 0)) return true;
    for (size_t i = 0; (c->kind == NEB_HF_MARIAN || c->kind == NEB_HF_M2M100) && i < 3; i++)
        if (!fnmatch(computed[i], name, 0)) return true;
    return false;
}

void neb__hf_files_name_unread(const struct neb_hf_files *f, const struct neb_hf_config *c)
{
    char list[NAMED * 100] = "";
    size_t at = 0;
    int n = 0;
    for (int i = 0; i < f->n; i++)
        for (int k = 0; k < neb__st_count(f->file[i]); k++) {
            const char *name = neb__st_at(f->file[i], k)->name;
            if (f->read[i][k] || says_nothing(name, c)) continue;
            if (n++ < NAMED)
                at += (size_t)snprintf(list + at, sizeof list - at, "%s%.90s", n > 1 ? ", " : "", name);
        }
    if (!n) return;
    char more[40] = "";
    if (n > NAMED) snprintf(more, sizeof more, " and %d more", n - NAMED);
    neb__warn("%s: %d tensors have no place in this model and were not taken: %s%s", f->folder, n, list,
              more);
}
