/* hf_peft_import.c: an adapter of the peft library and a base model become one model folder.
 *
 * The adapter's tensors say which matrices have LoRA; adapter_config.json says how it counts. Everything there that would
 * change a number and is not known here is refused by its name. Weights are taken from the mapped files as they are. */
#include "task/hf_peft.h"
#include "base/file.h"
#include "base/mem.h"
#include "tensor/params.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_JSON = 16 << 20, MAX_ON = 1 << 20 };

struct adapter_in {
    const char *from;
    struct neb_model_yaml folder;
    enum neb_hf_kind kind;
    struct neb_hf_matrices all;
    struct neb_st *base, *adapter;
    struct neb_st_tensor *list;
    char (*names)[NEB_HF_NAME];
    uint8_t *has; /* (all.n) 1: lora_A, 2: lora_B */
    int n;
    int64_t rank;
    double alpha, dropout;
};

/* ---- adapter_config.json ---------------------------------------------------------------------------------------- */

static neb_status refuse(const char *key, const char *what)
{
    return neb__fail(NEB_ERR_UNSUPPORTED, "adapter_config.json, '%.60s': %s", key, what);
}

/* Keys that change nothing that is computed here. Which layers have LoRA is seen from the tensors. */
static bool is_harmless(const char *key)
{
    static const char *const known[] = {"peft_type",
                                        "task_type",
                                        "r",
                                        "lora_alpha",
                                        "lora_dropout",
                                        "target_modules",
                                        "bias",
                                        "use_rslora",
                                        "fan_in_fan_out",
                                        "inference_mode",
                                        "init_lora_weights",
                                        "base_model_name_or_path",
                                        "revision",
                                        "layers_to_transform",
                                        "layers_pattern",
                                        "exclude_modules",
                                        "peft_version",
                                        "auto_mapping",
                                        "loftq_config",
                                        "eva_config",
                                        "corda_config",
                                        "lora_ga_config",
                                        "megatron_core",
                                        "runtime_config",
                                        "qalora_group_size",
                                        "ensure_weight_tying"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(key, known[i])) return true;
    return false;
}

static neb_status read_object(const json_t *j, struct adapter_in *e)
{
    const char *key, *type = json_string_value(json_object_get(j, "peft_type"));
    const char *bias = json_string_value(json_object_get(j, "bias"));
    json_t *value;
    if (!type || strcmp(type, "LORA")) return refuse("peft_type", "only LORA is supported");
    if (bias && strcmp(bias, "none")) return refuse("bias", "only none is supported");
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        bool off = json_is_null(value) || json_is_false(value) ||
                   (json_is_object(value) && !json_object_size(value)) ||
                   (json_is_array(value) && !json_array_size(value));
        if (!off && !is_harmless(key))
            return refuse(key, "is not known here and may change what is computed");
    }
    NEB_TRY(neb__hf_whole(j, "r", -1, &e->rank));
    NEB_TRY(neb__hf_real(j, "lora_alpha", 8, &e->alpha)); /* the library's default */
    NEB_TRY(neb__hf_real(j, "lora_dropout", 0, &e->dropout));
    if (e->rank < 1 || e->rank > 4096) return refuse("r", "is not a rank from 1 to 4096");
    if (json_is_true(json_object_get(j, "use_rslora")))
        e->alpha *= sqrt((double)e->rank); /* counts alpha / sqrt(r) */
    return NEB_OK;
}

static neb_status read_config(struct adapter_in *e)
{
    char path[NEB_MODEL_PATH + 64];
    struct neb_buf text;
    json_error_t error;
    neb__buf_init(&text, MAX_JSON);
    snprintf(path, sizeof path, "%s/adapter_config.json", e->from);
    neb_status status = neb__file_read(path, &text);
    json_t *j = status == NEB_OK ? json_loadb((const char *)text.data, text.len, 0, &error) : NULL;
    if (status == NEB_OK && !json_is_object(j))
        status = neb__fail(NEB_ERR_CORRUPT, "adapter_config.json: %s", j ? "not a JSON object" : error.text);
    if (status == NEB_OK) status = read_object(j, e);
    json_decref(j);
    neb__buf_free(&text);
    return status;
}

/* ---- tensors -------------------------------------------------------------------------------------------------------- */

/* The matrix that a tensor's name names; which: 'A' or 'B'. */
static int matrix_of(const struct adapter_in *e, const char *name, char *which)
{
    char stem[NEB_HF_NAME];
    const char *tail = strstr(name, ".lora_");
    if (strncmp(name, NEB_HF_ADAPTER_LEAD, strlen(NEB_HF_ADAPTER_LEAD)) || !tail) return -1;
    if ((tail[6] != 'A' && tail[6] != 'B') || strcmp(tail + 7, ".weight")) return -1;
    *which = tail[6];
    name += strlen(NEB_HF_ADAPTER_LEAD);
    snprintf(stem, sizeof stem, "%.*s", (int)(tail - name), name);
    for (int i = 0; i < e->all.n; i++)
        if (!strcmp(e->all.list[i].theirs, stem)) return i;
    return -1;
}

static neb_status take(struct adapter_in *e, const struct neb_st_tensor *t)
{
    char which = 0;
    const int i = matrix_of(e, t->name, &which);
    if (i < 0)
        return neb__fail(NEB_ERR_NOTFOUND,
                         "%s: '%.150s' is not LoRA of a linear layer that the base model has", e->from,
                         t->name);
    const struct neb_hf_matrix *m = &e->all.list[i];
    const int64_t rows = which == 'A' ? e->rank : m->rows, cols = which == 'A' ? m->cols : e->rank;
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return neb__fail(NEB_ERR_SHAPE,
                         "%.150s is %" PRId64 " x %" PRId64 "; %" PRId64 " x %" PRId64 " is needed", t->name,
                         t->rank > 0 ? t->shape[0] : 0, t->rank > 1 ? t->shape[1] : 1, rows, cols);
    if (t->type != NEB_ST_F32 && t->type != NEB_ST_F16 && t->type != NEB_ST_BF16)
        return neb__fail(NEB_ERR_DTYPE, "%.150s has type %s", t->name, neb__st_type_name(t->type));
    snprintf(e->names[e->n], NEB_HF_NAME, "%.200s.lora.%c", m->ours, which == 'A' ? 'a' : 'b');
    e->list[e->n] = *t;
    e->list[e->n].name = e->names[e->n];
    e->n++;
    e->has[i] |= which == 'A' ? 1 : 2;
    return NEB_OK;
}

static neb_status take_all(struct adapter_in *e)
{
    const int base = neb__st_count(e->base), added = neb__st_count(e->adapter);
    e->list = NEB_NEW_ARRAY(struct neb_st_tensor, (size_t)(base + added));
    e->names = neb__calloc((size_t)(base + added) + 1, sizeof *e->names);
    e->has = NEB_NEW_ARRAY(uint8_t, (size_t)e->all.n + 1);
    if (!e->list || !e->names || !e->has) return neb__fail(NEB_ERR_NOMEM, "out of memory for an adapter");
    for (int i = 0; i < added; i++) NEB_TRY(take(e, neb__st_at(e->adapter, i)));
    for (int i = 0; i < e->all.n; i++)
        if (e->has[i] == 1 || e->has[i] == 2)
            return neb__fail(NEB_ERR_CORRUPT, "%s: %s has one LoRA matrix instead of two", e->from,
                             e->all.list[i].theirs);
    if (!e->n) return neb__fail(NEB_ERR_CORRUPT, "%s: the adapter is empty", e->from);
    for (int i = 0; i < base; i++) e->list[e->n++] = *neb__st_at(e->base, i);
    return NEB_OK;
}

/* ---- the peft section of model.yaml ------------------------------------------------------------------------------------ */

/* The last two words: attention.q. */
static const char *last_two(const char *name)
{
    const char *at = neb__hf_last_word(name);
    for (at = at > name ? at - 1 : name; at > name && at[-1] != '.';) at--;
    return at;
}

static bool all_have(const struct adapter_in *e, int i)
{
    for (int k = 0; k < e->all.n; k++)
        if (!e->has[k] && !strcmp(last_two(e->all.list[k].ours), last_two(e->all.list[i].ours))) return false;
    return true;
}

/* Patterns that choose just these matrices: *.attention.q where all layers have it, else the whole name. */
static neb_status list_patterns(const struct adapter_in *e, struct neb_buf *out)
{
    for (int i = 0; i < e->all.n; i++) {
        char pattern[NEB_HF_NAME + 8];
        bool there = false;
        if (!e->has[i]) continue;
        const bool wide = all_have(e, i);
        for (int k = 0; wide && k < i && !there; k++)
            there = e->has[k] && !strcmp(last_two(e->all.list[k].ours), last_two(e->all.list[i].ours));
        if (there) continue;
        snprintf(pattern, sizeof pattern, "%s%s", wide ? "*." : "",
                 wide ? last_two(e->all.list[i].ours) : e->all.list[i].ours);
        NEB_TRY(neb__buf_printf(out, "%s%s", out->len ? "," : "", pattern));
    }
    return neb__buf_append(out, "", 1);
}

static neb_status set_peft(struct adapter_in *e)
{
    struct neb_buf on;
    neb__buf_init(&on, MAX_ON);
    neb_status status = list_patterns(e, &on);
    if (status == NEB_OK) status = neb__opts_set(neb__peft_options, &e->folder.peft, "method", "lora");
    if (status == NEB_OK)
        status = neb__opts_set(neb__peft_options, &e->folder.peft, "lora_on", (const char *)on.data);
    neb__buf_free(&on);
    e->folder.peft.lora_rank = e->rank;
    e->folder.peft.lora_alpha = e->alpha;
    e->folder.peft.lora_dropout = e->dropout;
    return status;
}

/* The model that the folder now describes has just these parameters. */
static neb_status check_model(const struct adapter_in *e)
{
    neb_params *params;
    struct neb_model *model = NULL;
    NEB_TRY(neb_params_create(&params));
    neb_status status = neb__model_create(&e->folder.model, &e->folder.peft, "", NULL, params, &model);
    if (status == NEB_OK) status = params->failed;
    for (int i = 0; status == NEB_OK && i < neb_params_count(params); i++) {
        const char *name = neb_param_name(neb_params_at(params, i));
        int k = 0;
        while (k < e->n && strcmp(e->list[k].name, name)) k++;
        if (k == e->n)
            status = neb__fail(NEB_ERR_NOTFOUND, "neither %s nor its base has '%s'", e->from, name);
    }
    neb__model_destroy(model);
    neb_params_destroy(params);
    return status;
}

/* ---- the folder -------------------------------------------------------------------------------------------------------- */

static neb_status check_base(const struct adapter_in *e)
{
    const char *method = e->folder.peft.method;
    if (strcmp(method, "full") && strcmp(method, "frozen"))
        return neb__fail(NEB_ERR_UNSUPPORTED, "the base model in %s has peft.method %s already",
                         e->folder.path, method);
    return NEB_OK;
}

static neb_status build(struct adapter_in *e, const char *to)
{
    char path[NEB_MODEL_PATH + 300];
    NEB_TRY(check_base(e));
    NEB_TRY(read_config(e));
    NEB_TRY(neb__hf_kind_of(&e->folder, &e->kind));
    NEB_TRY(neb__hf_matrices_list(&e->folder, e->kind, &e->all));
    snprintf(path, sizeof path, "%s/model.safetensors", e->folder.path);
    NEB_TRY(neb__st_open(path, &e->base));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", e->from);
    NEB_TRY(neb__st_open(path, &e->adapter));
    NEB_TRY(take_all(e));
    NEB_TRY(set_peft(e));
    NEB_TRY(check_model(e));
    snprintf(path, sizeof path, "%s/%.200s", e->folder.path, e->folder.tokenizer ? e->folder.tokenizer : "");
    NEB_TRY(neb__folder_begin(&e->folder, to, e->folder.tokenizer ? path : NULL));
    NEB_TRY(neb__hf_tokenizer_carry(e->folder.path, to));
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    NEB_TRY(neb__st_write(path, e->list, e->n, NULL, 0600));
    return neb__model_yaml_write(&e->folder, to);
}

neb_status neb__hf_import_adapter(const char *from, const char *base, const char *to)
{
    struct adapter_in e = {.from = from};
    NEB_TRY(neb__hf_apart(from, to));
    NEB_TRY(neb__hf_apart(base, to));
    NEB_TRY(neb__model_yaml_read(base, &e.folder));
    neb_status status = build(&e, to);
    neb__st_close(e.base);
    neb__st_close(e.adapter);
    neb__free(e.list);
    neb__free(e.names);
    neb__free(e.has);
    neb__hf_matrices_free(&e.all);
    neb__model_yaml_free(&e.folder);
    return status;
}
