/* sentence.c: see sentence.h. sentence-transformers lists its modules in modules.json:
 *
 *     Transformer   the encoder itself, in the folder
 *     Pooling       N_Pooling/config.json: one of several pooling_mode_…; the first token or the mean are read
 *     Dense         N_Dense/config.json and model.safetensors (linear.weight, linear.bias): tanh or nothing behind it
 *     Normalize     length 1: sentence vectors here always are
 *
 * Anything else is refused. */
#include "task/sentence.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/safetensors.h"
#include "task/dot.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_JSON = 1 << 20, WIDEST = 1 << 20 };

struct neb_sentence {
    float *weight, *bias; /* NULL: no dense layer */
    int64_t in, out;
    bool first, tanh;
};

void neb__sentence_close(struct neb_sentence *s)
{
    if (!s) return;
    neb__free(s->weight);
    neb__free(s->bias);
    neb__free(s);
}

bool neb__sentence_reads_first(const struct neb_sentence *s)
{
    return s->first;
}

int64_t neb__sentence_width(const struct neb_sentence *s)
{
    return s->out;
}

void neb__sentence_apply(const struct neb_sentence *s, const float *pooled, float *out)
{
    for (int64_t i = 0; i < s->out; i++) {
        const float y = s->weight ? neb__dot(s->weight + i * s->in, pooled, s->in) + s->bias[i] : pooled[i];
        out[i] = s->tanh ? tanhf(y) : y;
    }
}

/* ---- the dense layer ------------------------------------------------------------------------------------ */

static neb_status wrong_shape(const char *path, int64_t in)
{
    return neb__fail(NEB_ERR_SHAPE, "%s: the dense layer does not fit hidden states of width %" PRId64, path,
                     in);
}

/* weight and bias by these names, if the file has them. */
static neb_status read_dense(struct neb_sentence *s, const struct neb_st *st, const char *path,
                             const char *weight, const char *bias)
{
    const struct neb_st_tensor *w = neb__st_find(st, weight), *b = neb__st_find(st, bias);
    s->out = s->in;
    if (!w) return NEB_OK;
    if (w->rank != 2 || w->shape[1] != s->in || w->shape[0] < 1 || w->shape[0] > WIDEST)
        return wrong_shape(path, s->in);
    if (b && (b->rank != 1 || b->shape[0] != w->shape[0])) return wrong_shape(path, s->in);
    s->out = w->shape[0];
    s->weight = NEB_NEW_ARRAY(float, (size_t)(s->out * s->in));
    s->bias = NEB_NEW_ARRAY(float, (size_t)s->out);
    if (!s->weight || !s->bias) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", path);
    NEB_TRY(neb__st_to_f32(w, s->weight));
    return b ? neb__st_to_f32(b, s->bias) : NEB_OK;
}

static neb_status read_file(struct neb_sentence *s, const char *path, const char *weight, const char *bias)
{
    struct neb_st *st;
    NEB_TRY(neb__st_open(path, &st));
    const char *pooling = neb__st_meta(st, "pooling"), *activation = neb__st_meta(st, "activation");
    if (pooling) s->first = !strcmp(pooling, "first");
    if (activation) s->tanh = !strcmp(activation, "tanh");
    neb_status status = read_dense(s, st, path, weight, bias);
    neb__st_close(st);
    return status;
}

static neb_status write_file(const struct neb_sentence *s, const char *path, const char *weight,
                             const char *bias, const char *const *meta, mode_t mode)
{
    const struct neb_st_tensor list[] = {{.name = weight,
                                          .type = NEB_ST_F32,
                                          .rank = 2,
                                          .shape = {s->out, s->in},
                                          .data = s->weight,
                                          .size = (uint64_t)(s->out * s->in) * sizeof(float)},
                                         {.name = bias,
                                          .type = NEB_ST_F32,
                                          .rank = 1,
                                          .shape = {s->out},
                                          .data = s->bias,
                                          .size = (uint64_t)s->out * sizeof(float)}};
    return neb__st_write(path, list, s->weight ? 2 : 0, meta, mode);
}

static bool there(const char *path)
{
    return access(path, F_OK) == 0;
}

neb_status neb__sentence_open(const char *folder, int64_t hidden, struct neb_sentence **out)
{
    char path[PATH_MAX + 64];
    *out = NULL;
    snprintf(path, sizeof path, "%s/sentence.safetensors", folder);
    if (!there(path)) return NEB_OK;
    struct neb_sentence *s = NEB_NEW(struct neb_sentence);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", path);
    s->in = hidden;
    neb_status status = read_file(s, path, "weight", "bias");
    if (status != NEB_OK) {
        neb__sentence_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

/* ---- sentence-transformers ------------------------------------------------------------------------------ */

static neb_status read_json(const char *folder, const char *name, json_t **out)
{
    char path[PATH_MAX + 64];
    struct neb_buf text;
    json_error_t why;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    neb__buf_init(&text, MAX_JSON);
    neb_status status = neb__file_read(path, &text);
    if (status == NEB_OK) {
        *out = json_loadb((const char *)text.data, text.len, 0, &why);
        if (!*out) status = neb__fail(NEB_ERR_CORRUPT, "%s, line %d: %s", path, why.line, why.text);
    }
    neb__buf_free(&text);
    return status;
}

static neb_status unsupported(const char *folder, const char *what, const char *value)
{
    return neb__fail(NEB_ERR_UNSUPPORTED, "%s, %s: '%.60s' is not supported", folder, what,
                     value ? value : "");
}

/* Exactly one mode. */
static neb_status read_pooling(struct neb_sentence *s, const char *folder)
{
    json_t *j = NULL;
    const char *key, *mode = NULL;
    json_t *value;
    NEB_TRY(read_json(folder, "config.json", &j));
    neb_status status = NEB_OK;
    json_object_foreach(j, key, value)
    {
        if (strncmp(key, "pooling_mode_", 13) != 0 || !json_is_true(value)) continue;
        if (mode ||
            (strcmp(key, "pooling_mode_cls_token") != 0 && strcmp(key, "pooling_mode_mean_tokens") != 0))
            status = unsupported(folder, "pooling", key);
        mode = key;
    }
    if (status == NEB_OK && !mode) status = unsupported(folder, "pooling", "none");
    if (status == NEB_OK) s->first = !strcmp(mode, "pooling_mode_cls_token");
    json_decref(j);
    return status;
}

static neb_status read_module_dense(struct neb_sentence *s, const char *folder)
{
    char path[PATH_MAX + 64];
    json_t *j = NULL;
    NEB_TRY(read_json(folder, "config.json", &j));
    const char *activation = json_string_value(json_object_get(j, "activation_function"));
    const char *last = activation ? strrchr(activation, '.') : NULL;
    neb_status status = NEB_OK;
    if (last && !strcmp(last, ".Tanh"))
        s->tanh = true;
    else if (!last || strcmp(last, ".Identity") != 0)
        status = unsupported(folder, "activation_function", activation);
    json_decref(j);
    NEB_TRY(status);
    if (s->weight) return unsupported(folder, "modules.json", "a second dense layer");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!there(path))
        return neb__fail(NEB_ERR_NOTFOUND,
                         "%s has no model.safetensors; a pickle is not read: save the model again with "
                         "sentence-transformers",
                         folder);
    NEB_TRY(read_file(s, path, "linear.weight", "linear.bias"));
    return s->weight ? NEB_OK : neb__fail(NEB_ERR_NOTFOUND, "%s has no tensor 'linear.weight'", path);
}

static neb_status read_module(struct neb_sentence *s, const char *from, const json_t *module)
{
    char folder[2300];
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *path = json_string_value(json_object_get(module, "path")),
               *last = type ? strrchr(type, '.') : NULL;
    snprintf(folder, sizeof folder, "%.2000s/%.200s", from, path ? path : "");
    if (path && strstr(path, "..")) return unsupported(from, "modules.json", path);
    if (last && (!strcmp(last, ".Transformer") || !strcmp(last, ".Normalize"))) return NEB_OK;
    if (last && !strcmp(last, ".Pooling")) return read_pooling(s, folder);
    if (last && !strcmp(last, ".Dense")) return read_module_dense(s, folder);
    return unsupported(from, "modules.json", type);
}

static neb_status keep(const struct neb_sentence *s, const char *to)
{
    char path[PATH_MAX + 64];
    const char *meta[] = {"pooling", s->first ? "first" : "mean", "activation", s->tanh ? "tanh" : "none",
                          NULL};
    snprintf(path, sizeof path, "%s/sentence.safetensors", to);
    return write_file(s, path, "weight", "bias", meta, 0600);
}

/* Plain means need no file: they are what every folder without one has. */
neb_status neb__sentence_import(const char *from, const char *to, int64_t hidden)
{
    char path[PATH_MAX + 64];
    struct neb_sentence s = {.in = hidden, .out = hidden};
    json_t *modules = NULL, *module;
    size_t i;
    snprintf(path, sizeof path, "%s/sentence.safetensors", to);
    if (there(path) && unlink(path)) return neb__fail(NEB_ERR_IO, "cannot replace %s", path);
    snprintf(path, sizeof path, "%s/modules.json", from);
    if (!there(path)) return NEB_OK;
    neb_status status = read_json(from, "modules.json", &modules);
    json_array_foreach(modules, i, module)
    {
        if (status == NEB_OK) status = read_module(&s, from, module);
    }
    json_decref(modules);
    if (status == NEB_OK && (s.first || s.weight)) status = keep(&s, to);
    neb__free(s.weight);
    neb__free(s.bias);
    return status;
}

/* ---- and back ------------------------------------------------------------------------------------------- */

static neb_status put_json(const char *folder, const char *name, json_t *j)
{
    char path[PATH_MAX + 64];
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    json_decref(j);
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    neb_status status = neb__file_replace(path, text, strlen(text), 0644);
    free(text);
    return status;
}

static json_t *module_of(int i, const char *path, const char *type)
{
    char name[8], full[80];
    snprintf(name, sizeof name, "%d", i);
    snprintf(full, sizeof full, "sentence_transformers.models.%s", type);
    return json_pack("{s:i, s:s, s:s, s:s}", "idx", i, "name", name, "path", path, "type", full);
}

static neb_status put_pooling(const struct neb_sentence *s, const char *to)
{
    char folder[PATH_MAX + 16];
    snprintf(folder, sizeof folder, "%s/1_Pooling", to);
    NEB_TRY(neb__file_make_dir(folder, 0755));
    return put_json(folder, "config.json",
                    json_pack("{s:I, s:b, s:b, s:b, s:b}", "word_embedding_dimension", (json_int_t)s->in,
                              "pooling_mode_cls_token", s->first, "pooling_mode_mean_tokens", !s->first,
                              "pooling_mode_max_tokens", 0, "pooling_mode_mean_sqrt_len_tokens", 0));
}

static neb_status put_dense(const struct neb_sentence *s, const char *to)
{
    char folder[PATH_MAX + 16], path[PATH_MAX + 64];
    if (!s->weight) return NEB_OK;
    snprintf(folder, sizeof folder, "%s/2_Dense", to);
    NEB_TRY(neb__file_make_dir(folder, 0755));
    NEB_TRY(put_json(
        folder, "config.json",
        json_pack("{s:I, s:I, s:b, s:s}", "in_features", (json_int_t)s->in, "out_features",
                  (json_int_t)s->out, "bias", 1, "activation_function",
                  s->tanh ? "torch.nn.modules.activation.Tanh" : "torch.nn.modules.linear.Identity")));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return write_file(s, path, "linear.weight", "linear.bias", NULL, 0644);
}

static neb_status put_modules(const struct neb_sentence *s, const char *to)
{
    json_t *all = json_array();
    int n = 0;
    bool bad = !all || json_array_append_new(all, module_of(n++, "", "Transformer")) ||
               json_array_append_new(all, module_of(n++, "1_Pooling", "Pooling"));
    if (s->weight) bad = bad || json_array_append_new(all, module_of(n++, "2_Dense", "Dense"));
    bad = bad ||
          json_array_append_new(all, module_of(n, s->weight ? "3_Normalize" : "2_Normalize", "Normalize"));
    if (bad) {
        json_decref(all);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for modules.json");
    }
    return put_json(to, "modules.json", all);
}

neb_status neb__sentence_export(const char *from, const char *to, int64_t hidden)
{
    struct neb_sentence *s;
    NEB_TRY(neb__sentence_open(from, hidden, &s));
    if (!s) return NEB_OK;
    neb_status status = put_pooling(s, to);
    if (status == NEB_OK) status = put_dense(s, to);
    if (status == NEB_OK) status = put_modules(s, to);
    neb__sentence_close(s);
    return status;
}
