/* hf_export_tensors.c: the tensors of a folder of ours under their names.
 *
 * The model is never in memory: it is only described, and what belongs to a tensor of theirs goes from the mapped file to the new
 * one. Values keep their type. A parameter that something is merged with (LoRA, DoRA, IA3) is made when its turn comes and goes
 * out as fp32. Files end at a limit, as transformers cuts them, with an index that says where each tensor is. */
#include "task/hf.h"
#include "base/file.h"
#include "base/mem.h"
#include "task/folder_values.h"
#include "tensor/params.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, FILE_NAME = 48 };

/* Rows [first, first + rows) of a parameter, as a tensor of theirs. */
struct piece {
    const neb_param *p;                /* NULL: zeros */
    const struct neb_st_tensor *plain; /* whose bytes go out as they are; NULL: values are made */
    int64_t first, rows, cols, skip;   /* skip: rows of zeros in front */
    bool turned, plus;
};

struct tensors_out {
    const struct neb_model_yaml *folder;
    enum neb_hf_kind kind;
    int64_t pad;
    neb_params *params; /* described, never ready */
    struct neb_model *model;
    struct neb_folder_values from;
    enum neb_st_type type; /* of the token table */
    struct neb_st_tensor *list;
    struct piece *pieces;
    char (*names)[192];
    int n, room, first; /* first: of the list, in the file that is written */
    const neb_param *made;
    float *values; /* of `made` */
};

/* ---- values -------------------------------------------------------------------------------------------------- */

static neb_status values_of(struct tensors_out *e, const neb_param *p, const float **out)
{
    if (e->made != p) {
        neb__free(e->values);
        e->made = NULL;
        e->values = neb__malloc((size_t)neb_param_values(p) * sizeof *e->values);
        if (!e->values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", neb_param_name(p));
        NEB_TRY(neb__folder_values_make(&e->from, p, e->values));
        e->made = p;
    }
    *out = e->values;
    return NEB_OK;
}

/* The bf16 next to x. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A norm of a bf16 model, which multiplies by 1 + w there, comes in as the fp32 of that sum. It goes out as bf16 if it comes in as the
 * same again. */
static neb_status plus_fits_bf16(struct tensors_out *e, const neb_param *p, bool *out)
{
    const float *x = NULL;
    *out = false;
    if (e->type != NEB_ST_BF16) return NEB_OK;
    NEB_TRY(values_of(e, p, &x));
    for (int64_t i = 0; i < neb_param_values(p); i++) {
        const float again = 1 + from_bf16(to_bf16(x[i] - 1));
        if (memcmp(&again, &x[i], sizeof again) != 0) return NEB_OK;
    }
    *out = true;
    return NEB_OK;
}

/* ---- the list ------------------------------------------------------------------------------------------------ */

static neb_status add(struct tensors_out *e, const char *name, enum neb_st_type type, int rank,
                      const int64_t shape[2], const struct piece *piece)
{
    if (e->n == e->room) return neb__fail(NEB_ERR_INTERNAL, "more tensors than were counted");
    const int64_t cols = rank > 1 ? shape[1] : 1;
    snprintf(e->names[e->n], sizeof *e->names, "%s", name);
    e->list[e->n] = (struct neb_st_tensor){.name = e->names[e->n],
                                           .type = type,
                                           .rank = rank,
                                           .shape = {shape[0], cols},
                                           .size = (uint64_t)(shape[0] * cols) * neb__st_type_size(type)};
    e->pieces[e->n++] = *piece;
    return NEB_OK;
}

static neb_status add_zeros(struct tensors_out *e, const char *name, int64_t rows, int64_t cols)
{
    const struct piece none = {.rows = rows, .cols = cols};
    return add(e, name, e->type, 2, (int64_t[]){rows, cols}, &none);
}

static bool is_float(enum neb_st_type t)
{
    return t == NEB_ST_F32 || t == NEB_ST_F16 || t == NEB_ST_BF16;
}

static neb_status add_param(struct tensors_out *e, const neb_param *p)
{
    struct neb_hf_source source;
    int64_t shape[4] = {0};
    const struct neb_arch *a = &e->model->arch;
    const char *name = neb_param_name(p);
    const int rank = neb_param_shape(p, shape);
    struct piece x = {.p = p, .cols = rank > 1 ? shape[1] : 1};
    if (strstr(name, ".embed.sinusoid.weight")) return NEB_OK; /* they compute it, too */
    if (neb__hf_source(e->kind, name, a->head != NEB_HEAD_NONE, &source) != NEB_OK)
        return neb__fail(NEB_ERR_UNSUPPORTED, "the parameter '%s' has no counterpart in a Hugging Face model",
                         name);
    NEB_TRY(neb__folder_values_plain(&e->from, p, &x.plain));
    if (x.plain && (source.plus || !is_float(x.plain->type))) x.plain = NULL;
    enum neb_st_type type = x.plain ? x.plain->type : NEB_ST_F32;
    if (source.plus) {
        bool fits;
        NEB_TRY(plus_fits_bf16(e, p, &fits));
        type = fits ? NEB_ST_BF16 : NEB_ST_F32;
    }
    x.turned = source.turned;
    x.plus = source.plus;
    x.skip = source.skips ? e->pad : 0;
    for (int i = 0; i < source.parts; i++, x.first += x.rows) {
        x.rows = neb__hf_part_rows(a, &source, shape[0], i);
        int64_t theirs[2] = {x.rows + x.skip, x.cols};
        if (source.turned) theirs[0] = x.cols, theirs[1] = x.rows;
        if (source.by_heads) theirs[0] = x.rows / a->heads, theirs[1] = a->heads;
        NEB_TRY(add(e, source.name[i], type, source.turned || source.by_heads ? 2 : rank, theirs, &x));
    }
    /* They add the bias of the output layer, which is another tensor where the output is not tied. */
    if (e->kind > NEB_HF_XLMR || a->tied || strcmp(name, "head.bias") != 0) return NEB_OK;
    x.first = 0;
    return add(e, neb__hf_decoder_bias(e->kind), type, 1, shape, &x);
}

static neb_status add_all(struct tensors_out *e)
{
    const struct neb_arch *a = &e->model->arch;
    const struct neb_st_tensor *table = neb__st_find(e->from.st, "embed.token.weight");
    struct neb_hf_source source;
    e->type = table && is_float(table->type) ? table->type : NEB_ST_F32;
    for (int i = 0; i < neb_params_count(e->params); i++) NEB_TRY(add_param(e, neb_params_at(e->params, i)));
    /* Encoders there always have segments; a model that knows none adds zeros. */
    if (!neb__hf_has_decoder(e->kind) && e->kind != NEB_HF_DISTILBERT && !a->types) {
        NEB_TRY(neb__hf_source(e->kind, "encoder.embed.type.weight", a->head != NEB_HEAD_NONE, &source));
        NEB_TRY(add_zeros(e, source.name[0], 1, a->embedding));
    }
    /* BART and Marian always have a bias of the output */
    if (e->kind != NEB_HF_M2M100 && neb__hf_is_seq2seq(e->kind) && !neb__hf_is_t5(e->kind) && !a->head_bias)
        return add_zeros(e, "final_logits_bias", 1, a->vocab);
    return NEB_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static neb_status put_zeros(size_t bytes, neb_st_put put, void *sink)
{
    static const uint8_t zeros[1 << 16];
    for (size_t now; bytes; bytes -= now) {
        now = bytes < sizeof zeros ? bytes : sizeof zeros;
        NEB_TRY(put(sink, zeros, now));
    }
    return NEB_OK;
}

/* Elements of (rows, cols) in the other order. */
static neb_status put_turned(const uint8_t *from, int64_t rows, int64_t cols, size_t each, neb_st_put put,
                             void *sink)
{
    uint8_t *row = neb__malloc((size_t)rows * each);
    if (!row) return neb__fail(NEB_ERR_NOMEM, "out of memory for turning a matrix");
    neb_status status = NEB_OK;
    for (int64_t c = 0; status == NEB_OK && c < cols; c++) {
        for (int64_t r = 0; r < rows; r++)
            memcpy(row + (size_t)r * each, from + (size_t)(r * cols + c) * each, each);
        status = put(sink, row, (size_t)rows * each);
    }
    neb__free(row);
    return status;
}

/* Bytes of the file, whose pages need not stay. */
static neb_status put_plain(const struct tensors_out *e, const struct neb_st_tensor *t, size_t first,
                            size_t bytes, neb_st_put put, void *sink)
{
    for (size_t now; bytes; bytes -= now, first += now) {
        struct neb_st_tensor part = *t;
        now = bytes < CHUNK ? bytes : CHUNK;
        part.data = (const uint8_t *)t->data + first;
        part.size = now;
        NEB_TRY(put(sink, part.data, now));
        neb__st_forget(e->from.st, &part);
    }
    return NEB_OK;
}

static neb_status put_less_one(const float *x, int64_t n, bool bf16, neb_st_put put, void *sink)
{
    for (int64_t i = 0; i < n; i++) {
        const float w = x[i] - 1;
        const uint16_t half = to_bf16(w);
        NEB_TRY(bf16 ? put(sink, &half, sizeof half) : put(sink, &w, sizeof w));
    }
    return NEB_OK;
}

/* neb_st_make */
static neb_status make(void *arg, int number, neb_st_put put, void *sink)
{
    struct tensors_out *e = arg;
    const struct neb_st_tensor *t = &e->list[e->first + number];
    const struct piece *x = &e->pieces[e->first + number];
    const size_t each = neb__st_type_size(t->type);
    const size_t first = (size_t)(x->first * x->cols), n = (size_t)(x->rows * x->cols);
    if (!x->p) return put_zeros(n * each, put, sink);
    NEB_TRY(put_zeros((size_t)(x->skip * x->cols) * each, put, sink));
    if (x->plain && !x->turned) return put_plain(e, x->plain, first * each, n * each, put, sink);
    if (x->plain) {
        const uint8_t *from = x->plain->data;
        NEB_TRY(put_turned(from + first * each, x->rows, x->cols, each, put, sink));
        neb__st_forget(e->from.st, x->plain);
        return NEB_OK;
    }
    const float *values = NULL;
    NEB_TRY(values_of(e, x->p, &values));
    values += first;
    if (x->plus) return put_less_one(values, (int64_t)n, t->type == NEB_ST_BF16, put, sink);
    if (x->turned) return put_turned((const uint8_t *)values, x->rows, x->cols, each, put, sink);
    return put(sink, values, n * each);
}

/* How many of the tensors from `first` on fit into a file; one that is larger has a file of its own. */
static int fitting(const struct tensors_out *e, int first, uint64_t limit)
{
    uint64_t bytes = e->list[first].size;
    int n = 1;
    while (first + n < e->n && bytes + e->list[first + n].size <= limit) bytes += e->list[first + n++].size;
    return n;
}

static void name_file(char out[FILE_NAME], int i, int files)
{
    if (files == 1)
        snprintf(out, FILE_NAME, "model.safetensors");
    else
        snprintf(out, FILE_NAME, "model-%05d-of-%05d.safetensors", i + 1, files);
}

static neb_status remove_old(const char *to, const char *name)
{
    char path[NEB_MODEL_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", to, name);
    if (!unlink(path) || errno == ENOENT) return NEB_OK;
    return neb__fail(NEB_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
}

static neb_status write_index(const char *to, json_t *map, uint64_t bytes)
{
    char path[NEB_MODEL_PATH + 64];
    json_t *j = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for the index");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", to);
    neb_status status = neb__file_replace(path, text, strlen(text), 0644);
    free(text); /* jansson's own */
    return status;
}

static neb_status write_file(struct tensors_out *e, const char *to, const char *name, int n, json_t *map)
{
    char path[NEB_MODEL_PATH + 64];
    bool bad = !map;
    for (int i = 0; i < n; i++)
        bad |= json_object_set_new(map, e->list[e->first + i].name, json_string(name)) != 0;
    if (bad) return neb__fail(NEB_ERR_NOMEM, "out of memory for the index");
    snprintf(path, sizeof path, "%s/%s", to, name);
    return neb__st_write_made(path, e->list + e->first, n, NULL, 0644, make, e);
}

static neb_status write_all(struct tensors_out *e, const char *to, uint64_t limit)
{
    json_t *map = json_object();
    uint64_t bytes = 0;
    int files = 0;
    for (int i = 0; i < e->n; i += fitting(e, i, limit)) files++;
    for (int i = 0; i < e->n; i++) bytes += e->list[i].size;
    /* what an earlier export left would be read instead */
    neb_status status = remove_old(to, "model.safetensors");
    if (status == NEB_OK) status = remove_old(to, "model.safetensors.index.json");
    for (int i = 0; status == NEB_OK && i < files; i++) {
        char name[FILE_NAME];
        const int n = fitting(e, e->first, limit);
        name_file(name, i, files);
        status = write_file(e, to, name, n, map);
        e->first += n;
    }
    if (status == NEB_OK && files > 1) status = write_index(to, map, bytes);
    json_decref(map);
    return status;
}

/* The type that all have, or fp32, in which none loses anything. */
static enum neb_st_type common_type(const struct tensors_out *e)
{
    for (int i = 1; i < e->n; i++)
        if (e->list[i].type != e->list[0].type) return NEB_ST_F32;
    return e->list[0].type;
}

static neb_status run(struct tensors_out *e, const char *to, uint64_t limit, enum neb_st_type *type)
{
    NEB_TRY(neb_params_create(&e->params));
    NEB_TRY(neb__model_create(&e->folder->model, NULL, "", NULL, e->params, &e->model));
    if (e->params->failed != NEB_OK) return e->params->failed;
    NEB_TRY(neb__folder_values_open(e->folder, e->model, &e->from));
    e->room = 3 * neb_params_count(e->params) + 3;
    e->list = NEB_NEW_ARRAY(struct neb_st_tensor, (size_t)e->room);
    e->pieces = NEB_NEW_ARRAY(struct piece, (size_t)e->room);
    e->names = neb__calloc((size_t)e->room, sizeof *e->names);
    if (!e->list || !e->pieces || !e->names) return neb__fail(NEB_ERR_NOMEM, "out of memory for an export");
    NEB_TRY(add_all(e));
    *type = common_type(e);
    return write_all(e, to, limit);
}

neb_status neb__hf_export_tensors(const struct neb_model_yaml *folder, enum neb_hf_kind kind, int64_t pad,
                                  const char *to, uint64_t limit, enum neb_st_type *type)
{
    struct tensors_out e = {.folder = folder, .kind = kind, .pad = pad};
    neb_status status = run(&e, to, limit, type);
    neb__free(e.values);
    neb__free(e.list);
    neb__free(e.pieces);
    neb__free(e.names);
    neb__folder_values_close(&e.from);
    neb__model_destroy(e.model);
    neb_params_destroy(e.params);
    return status;
}
