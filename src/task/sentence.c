/* sentence.c: see sentence.h. sentence-transformers lists its modules in modules.json:
 *
 *     Transformer   the encoder itself, in the folder
 *     Pooling       N_Pooling/config.json: one of several modes; the first token or the mean are read
 *     Dense         N_Dense/config.json and model.safetensors (linear.weight, linear.bias): tanh or nothing behind it
 *     Normalize     length 1: sentence vectors here always are; that it was there is kept for an export
 *
 * These modules in this order are read; Dense and Normalize may be missing. Anything else is refused, and so is a prompt that is put in
 * front of every text. */
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
    bool first, tanh, unit; /* unit: a module makes the vectors that long */
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
    const char *pooling = neb__st_meta(st, "pooling"), *activation = neb__st_meta(st, "activation"),
               *length = neb__st_meta(st, "length");
    if (pooling) s->first = !strcmp(pooling, "first");
    if (activation) s->tanh = !strcmp(activation, "tanh");
    if (length) s->unit = !strcmp(length, "1");
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
    s->unit = true; /* files that do not say it */
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
    neb_status status = neb__file_read_plain(path, &text);
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

static bool is_one_of(const char *text, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(text, list[i])) return true;
    return false;
}

static bool says_nothing(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v));
}

/* The one mode of a pooling: a flag of its own in older files, a word in newer ones. */
static neb_status find_mode(const json_t *j, const char *folder, const char **mode)
{
    static const char *const fine[] = {"word_embedding_dimension", "embedding_dimension", "include_prompt"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        const char *is = key + strlen("pooling_mode_");
        if (says_nothing(value) || is_one_of(key, fine, 3)) continue;
        if (!strcmp(key, "pooling_mode")) {
            if (json_array_size(value) == 1) value = json_array_get(value, 0);
            is = json_string_value(value);
        } else if (strncmp(key, "pooling_mode_", 13) != 0 || !json_is_true(value))
            is = NULL;
        if (!is || *mode) return unsupported(folder, "pooling", key);
        *mode = is;
    }
    return NEB_OK;
}

static neb_status read_pooling(struct neb_sentence *s, const char *folder)
{
    static const char *const first[] = {"cls", "cls_token"}, *const mean[] = {"mean", "mean_tokens"};
    json_t *j = NULL;
    const char *mode = NULL;
    NEB_TRY(read_json(folder, "config.json", &j));
    neb_status status = find_mode(j, folder, &mode);
    if (status == NEB_OK && (!mode || (!is_one_of(mode, first, 2) && !is_one_of(mode, mean, 2)))) {
        char name[80];
        snprintf(name, sizeof name, "%s%.50s", mode ? "pooling_mode_" : "none", mode ? mode : "");
        status = unsupported(folder, "pooling", name);
    }
    if (status == NEB_OK) s->first = is_one_of(mode, first, 2);
    json_decref(j);
    return status;
}

/* Whether the layer has a bias. */
static neb_status check_dense(struct neb_sentence *s, const json_t *j, const char *folder, bool *has_bias)
{
    static const char *const fine[] = {"in_features",         "out_features",       "bias",
                                       "activation_function", "module_output_name", "module_input_name"};
    const char *activation = json_string_value(json_object_get(j, "activation_function"));
    const char *last = activation ? strrchr(activation, '.') : NULL, *key;
    const json_t *bias = json_object_get(j, "bias"), *input = json_object_get(j, "module_input_name");
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        if (!says_nothing(value) && !is_one_of(key, fine, sizeof fine / sizeof *fine))
            return unsupported(folder, "config.json", key);
    }
    if (input && !says_nothing(input) &&
        (!json_is_string(input) || strcmp(json_string_value(input), "sentence_embedding") != 0))
        return unsupported(folder, "module_input_name", json_string_value(input));
    if (bias && !json_is_boolean(bias)) return unsupported(folder, "bias", "neither true nor false");
    s->tanh = last && !strcmp(last, ".Tanh");
    if (!s->tanh && (!last || strcmp(last, ".Identity") != 0))
        return unsupported(folder, "activation_function", activation);
    *has_bias = !json_is_false(bias);
    return NEB_OK;
}

static neb_status check_bias(const char *path, bool wanted)
{
    struct neb_st *st;
    NEB_TRY(neb__st_open(path, &st));
    const bool is = neb__st_find(st, "linear.bias") != NULL;
    neb__st_close(st);
    if (is && !wanted)
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "%s has 'linear.bias', of which config.json says that it is not there", path);
    return is == wanted ? NEB_OK : neb__fail(NEB_ERR_NOTFOUND, "%s has no tensor 'linear.bias'", path);
}

static neb_status read_module_dense(struct neb_sentence *s, const char *folder)
{
    char path[PATH_MAX + 64];
    json_t *j = NULL;
    bool bias = true;
    NEB_TRY(read_json(folder, "config.json", &j));
    neb_status status = check_dense(s, j, folder, &bias);
    json_decref(j);
    NEB_TRY(status);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!there(path))
        return neb__fail(NEB_ERR_NOTFOUND,
                         "%s has no model.safetensors; a pickle is not read: save the model again with "
                         "sentence-transformers",
                         folder);
    NEB_TRY(read_file(s, path, "linear.weight", "linear.bias"));
    if (!s->weight) return neb__fail(NEB_ERR_NOTFOUND, "%s has no tensor 'linear.weight'", path);
    return check_bias(path, bias);
}

/* The place of a module in the order, or -1. */
static int place_of(const char *type)
{
    static const char *const order[] = {".Transformer", ".Pooling", ".Dense", ".Normalize"};
    const char *last = type ? strrchr(type, '.') : NULL;
    for (int i = 0; last && i < 4; i++)
        if (!strcmp(last, order[i])) return i;
    return -1;
}

/* *at: the place of the module before, -1: this is the first. */
static neb_status read_module(struct neb_sentence *s, const char *from, const json_t *module, int *at)
{
    char folder[2300];
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *path = json_string_value(json_object_get(module, "path"));
    const int place = place_of(type);
    if (place < 0) return unsupported(from, "modules.json", type);
    if (place <= *at || (place == 1 && *at < 0) || (place > 1 && *at < 1))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "%s, modules.json: '%.60s' is not in its place; Transformer, Pooling, perhaps Dense and "
            "perhaps Normalize are supported, in this order",
            from, type);
    *at = place;
    if (path && strstr(path, "..")) return unsupported(from, "modules.json", path);
    if (place == 0 && path && *path) return unsupported(from, "modules.json, path of the Transformer", path);
    snprintf(folder, sizeof folder, "%.2000s/%.200s", from, path ? path : "");
    s->unit |= place == 3;
    if (place == 1) return read_pooling(s, folder);
    return place == 2 ? read_module_dense(s, folder) : NEB_OK;
}

static neb_status read_modules(struct neb_sentence *s, const char *from, const json_t *modules)
{
    int at = -1;
    size_t i;
    json_t *module;
    json_array_foreach(modules, i, module) NEB_TRY(read_module(s, from, module, &at));
    return at >= 1 ? NEB_OK : unsupported(from, "modules.json", "no Pooling");
}

/* A text that stands before every sentence, unless the caller names another one. */
static neb_status check_prompt(const char *from)
{
    static const char name[] = "config_sentence_transformers.json";
    char path[PATH_MAX + 64];
    json_t *j = NULL;
    snprintf(path, sizeof path, "%s/%s", from, name);
    if (!there(path)) return NEB_OK;
    NEB_TRY(read_json(from, name, &j));
    const json_t *chosen = json_object_get(j, "default_prompt_name");
    const char *key = json_string_value(chosen),
               *prompt = key ? json_string_value(json_object_get(json_object_get(j, "prompts"), key)) : NULL;
    neb_status status = NEB_OK;
    if (chosen && !json_is_null(chosen) && (!prompt || *prompt))
        status = unsupported(from, "config_sentence_transformers.json, default_prompt_name", key);
    json_decref(j);
    return status;
}

neb_status neb__sentence_lowers(const char *from, bool *out)
{
    static const char *const names[] = {"sentence_bert_config.json", "sentence_roberta_config.json",
                                        "sentence_distilbert_config.json",
                                        "sentence_xlm-roberta_config.json"};
    char path[PATH_MAX + 64];
    *out = false;
    snprintf(path, sizeof path, "%s/modules.json", from);
    for (size_t i = there(path) ? 0 : 4; i < 4; i++) {
        json_t *j = NULL;
        snprintf(path, sizeof path, "%s/%s", from, names[i]);
        if (!there(path)) continue;
        NEB_TRY(read_json(from, names[i], &j));
        const json_t *lower = json_object_get(j, "do_lower_case");
        *out |= lower && !json_is_null(lower) && !json_is_false(lower);
        json_decref(j);
    }
    return NEB_OK;
}

neb_status neb__sentence_read(const char *from, int64_t hidden, struct neb_sentence **out)
{
    char path[PATH_MAX + 64];
    json_t *modules = NULL;
    *out = NULL;
    snprintf(path, sizeof path, "%s/modules.json", from);
    if (!there(path)) return NEB_OK;
    struct neb_sentence *s = NEB_NEW(struct neb_sentence);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", path);
    s->in = s->out = hidden;
    neb_status status = check_prompt(from);
    if (status == NEB_OK) status = read_json(from, "modules.json", &modules);
    if (status == NEB_OK) status = read_modules(s, from, modules);
    json_decref(modules);
    if (status == NEB_OK && (s->first || s->weight || s->unit))
        *out = s;
    else
        neb__sentence_close(s); /* a plain mean is what every folder without the file has */
    return status;
}

neb_status neb__sentence_write(const struct neb_sentence *s, const char *to)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/sentence.safetensors", to);
    if (!s) return there(path) && unlink(path) ? neb__fail(NEB_ERR_IO, "cannot remove %s", path) : NEB_OK;
    const char *meta[] = {"pooling", s->first ? "first" : "mean", "activation", s->tanh ? "tanh" : "none",
                          "length",  s->unit ? "1" : "any",       NULL};
    return write_file(s, path, "weight", "bias", meta, 0600);
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
    if (s->unit)
        bad = bad || json_array_append_new(
                         all, module_of(n, s->weight ? "3_Normalize" : "2_Normalize", "Normalize"));
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
