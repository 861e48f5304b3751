/* hf_peft_import.c: an adapter of the peft library and a base model become one model folder.
 *
 * A prompt is one table, and so is a prefix (hf_prefix.c). Otherwise the adapter's tensors say which matrices have LoRA (with DoRA's lengths) or IA3's factors, and whether these belong to inputs
 * or to outputs; adapter_config.json says how LoRA counts. Everything there that would
 * change a number and is not known here is refused by its name. Weights are taken from the mapped files as they are. */
#include "task/hf_peft.h"
#include "base/file.h"
#include "base/mem.h"
#include "tensor/params.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
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
    uint8_t *has; /* (all.n) bits of enum neb_hf_added */
    int n;
    bool ia3, dora, prompt, prefix; /* else LoRA alone */
    int64_t tokens;                 /* of the prompt or prefix */
    float *made;                    /* the prefix's values */
    struct neb_hf_ranks ranks;
    int64_t rank;
    double alpha, dropout;
    json_t *saved; /* names of modules; NULL: none */
    int *matrix;   /* of each tensor of the adapter; -1: of a head */
    float **owned; /* of each: values that are not the file's */
    int added;
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
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "modules_to_save",
                                        "lora_dropout",
                                        "target_modules",
                                        "bias",
                                        "use_rslora",
                                        "use_dora",
                                        "feedforward_modules",
                                        "init_ia3_weights",
                                        "num_virtual_tokens",
                                        "token_dim",
                                        "num_transformer_submodules",
                                        "num_attention_heads",
                                        "num_layers",
                                        "encoder_hidden_size",
                                        "prefix_projection", /* the table is written behind it */
                                        "prompt_tuning_init",
                                        "prompt_tuning_init_text",
                                        "tokenizer_name_or_path",
                                        "tokenizer_kwargs",
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
                                        "eva_config",
                                        "megatron_core",
                                        "runtime_config",
                                        "qalora_group_size",
                                        "ensure_weight_tying"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(key, known[i])) return true;
    return false;
}

/* The sizes are those of the base; how the prompt began does not matter any more. */
static neb_status read_prompt_config(const json_t *j, struct adapter_in *e)
{
    int64_t submodules;
    NEB_TRY(neb__hf_whole(j, "num_virtual_tokens", -1, &e->tokens));
    NEB_TRY(neb__hf_whole(j, "num_transformer_submodules", 1, &submodules));
    if (e->tokens < 1 || e->tokens > 1 << 16) return refuse("num_virtual_tokens", "is not from 1 to 65536");
    if (submodules != 1) return refuse("num_transformer_submodules", "only 1 is supported");
    return NEB_OK;
}

/* Some ways to begin take a part of the base's weights away, again each time that peft loads the adapter. With the base as it is,
 * such an adapter would compute something else. */
static neb_status check_beginning(const json_t *j)
{
    static const char *const keys[] = {"loftq_config", "corda_config", "lora_ga_config"};
    static const char *const fine[] = {"gaussian", "eva", "orthogonal"};
    const json_t *init = json_object_get(j, "init_lora_weights");
    const char *text = json_string_value(init);
    size_t i = 0;
    while (text && i < 3 && strcasecmp(text, fine[i]) != 0) i++;
    if (init && !json_is_boolean(init) && !json_is_null(init) && (!text || i == 3))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "adapter_config.json, 'init_lora_weights': '%.40s' is not true, false, gaussian, eva or "
            "orthogonal, and peft may change the base's weights for it; save the adapter with "
            "path_initial_model_for_weight_conversion, which makes it a plain one",
            text ? text : "");
    for (i = 0; i < 3; i++) {
        const json_t *v = json_object_get(j, keys[i]);
        if (v && !json_is_null(v) && !(json_is_object(v) && !json_object_size(v)))
            return refuse(keys[i], "peft may change the base's weights for it");
    }
    return NEB_OK;
}

static neb_status read_object(const json_t *j, struct adapter_in *e)
{
    const char *key, *type, *bias;
    json_t *value;
    NEB_TRY(neb__hf_text(j, "peft_type", &type));
    NEB_TRY(neb__hf_text(j, "bias", &bias));
    NEB_TRY(neb__hf_flag(j, "use_dora", false, &e->dora));
    e->ia3 = type && !strcmp(type, "IA3");
    e->prompt = type && !strcmp(type, "PROMPT_TUNING");
    e->prefix = type && !strcmp(type, "PREFIX_TUNING");
    if (!type || (strcmp(type, "LORA") && !e->ia3 && !e->prompt && !e->prefix))
        return refuse("peft_type", "only LORA, IA3, PROMPT_TUNING and PREFIX_TUNING are supported");
    if (bias && strcmp(bias, "none")) return refuse("bias", "only none is supported");
    NEB_TRY(check_beginning(j));
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        if (!neb__hf_says_nothing(value) && !is_harmless(key))
            return refuse(key, "is not known here and may change what is computed");
    }
    json_t *saved = json_object_get(j, "modules_to_save");
    if (!neb__hf_says_nothing(saved) && (!json_is_array(saved) || e->prompt || e->prefix))
        return refuse("modules_to_save", "only a list beside LoRA or IA3 is supported");
    if (!neb__hf_says_nothing(saved)) e->saved = json_incref(saved);
    if (e->ia3) return NEB_OK;
    if (e->prompt || e->prefix) return read_prompt_config(j, e);
    NEB_TRY(neb__hf_real(j, "lora_dropout", 0, &e->dropout));
    return neb__hf_ranks_read(j, &e->ranks);
}

static neb_status read_config(struct adapter_in *e)
{
    char path[NEB_MODEL_PATH + 64];
    struct neb_buf text;
    json_error_t error;
    neb__buf_init(&text, MAX_JSON);
    snprintf(path, sizeof path, "%s/adapter_config.json", e->from);
    neb_status status = neb__file_read_plain(path, &text);
    json_t *j = status == NEB_OK ? json_loadb((const char *)text.data, text.len, 0, &error) : NULL;
    if (status == NEB_OK && !json_is_object(j))
        status = neb__fail(NEB_ERR_CORRUPT, "adapter_config.json: %s", j ? "not a JSON object" : error.text);
    if (status == NEB_OK) status = read_object(j, e);
    json_decref(j);
    neb__buf_free(&text);
    return status;
}

/* ---- tensors -------------------------------------------------------------------------------------------------------- */

/* What a tensor's name ends in, and what it is. */
static const struct ending {
    const char *text, *ours;
    enum neb_hf_added what;
} endings[] = {{".lora_A.weight", "lora.a", NEB_HF_LORA_A},
               {".lora_B.weight", "lora.b", NEB_HF_LORA_B},
               {".lora_magnitude_vector", "lora.m", NEB_HF_LORA_M},
               {".lora_magnitude_vector.weight", "lora.m", NEB_HF_LORA_M},
               {".ia3_l", "ia3.out", NEB_HF_IA3_OUT}};

/* The matrix that a tensor's name names, and what it adds to it; -1: none. */
static int matrix_of(const struct adapter_in *e, const char *name, const struct ending **end)
{
    char stem[NEB_HF_NAME];
    const size_t lead = strlen(NEB_HF_ADAPTER_LEAD), n = strlen(name);
    *end = NULL;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t k = strlen(endings[i].text);
        if (n > lead + k && !strcmp(name + n - k, endings[i].text)) *end = &endings[i];
    }
    if (strncmp(name, NEB_HF_ADAPTER_LEAD, lead) || !*end) return -1;
    if (((*end)->what == NEB_HF_IA3_OUT) != e->ia3 || ((*end)->what == NEB_HF_LORA_M && !e->dora)) return -1;
    snprintf(stem, sizeof stem, "%.*s", (int)(n - lead - strlen((*end)->text)), name + lead);
    for (int i = 0; i < e->all.n; i++)
        if (!strcmp(e->all.list[i].theirs, stem)) return i;
    return -1;
}

/* The shape that a tensor must have. IA3's factors of the inputs are a row, those of the outputs a column; vectors have one
 * dimension here. */
static void wanted_shape(const struct adapter_in *e, const struct neb_hf_matrix *m,
                         const struct neb_st_tensor *t, enum neb_hf_added *what, int64_t want[2])
{
    const bool row = *what == NEB_HF_IA3_OUT && t->rank == 2 && t->shape[0] == 1 && m->rows != 1;
    if (row) *what = NEB_HF_IA3_IN;
    const int64_t rank = e->ranks.rank ? neb__hf_ranks_of(&e->ranks, m->theirs) : 0;
    want[0] = *what == NEB_HF_LORA_A ? rank : m->rows;
    want[1] = 1;
    if (*what == NEB_HF_LORA_A || *what == NEB_HF_IA3_IN) want[1] = m->cols;
    if (*what == NEB_HF_IA3_IN) want[0] = 1;
    if (*what == NEB_HF_LORA_B) want[1] = rank;
}

static bool is_float(enum neb_st_type t)
{
    return t == NEB_ST_F32 || t == NEB_ST_F16 || t == NEB_ST_BF16;
}

static neb_status take_prompt(struct adapter_in *e, const struct neb_st_tensor *t)
{
    struct neb_arch a;
    NEB_TRY(neb__model_config_check(&e->folder.model, &a));
    if (strcmp(t->name, "prompt_embeddings") || e->n)
        return neb__fail(NEB_ERR_NOTFOUND, "%s: '%.150s' is no prompt", e->from, t->name);
    if (t->rank != 2 || t->shape[0] != e->tokens || t->shape[1] != a.embedding)
        return neb__fail(
            NEB_ERR_SHAPE,
            "prompt_embeddings is %" PRId64 " x %" PRId64 "; %" PRId64 " x %" PRId64 " is needed",
            t->rank > 0 ? t->shape[0] : 0, t->rank > 1 ? t->shape[1] : 1, e->tokens, a.embedding);
    if (!is_float(t->type))
        return neb__fail(NEB_ERR_DTYPE, "%.150s has type %s", t->name, neb__st_type_name(t->type));
    e->list[e->n] = *t;
    e->list[e->n++].name = "embed.prompt.weight";
    return NEB_OK;
}

/* The table becomes two tensors a layer. */
static neb_status take_prefix(struct adapter_in *e, const struct neb_st_tensor *t)
{
    struct neb_arch a;
    const int64_t layers = e->folder.model.layers;
    NEB_TRY(neb__model_config_check(&e->folder.model, &a));
    NEB_TRY(neb__hf_prefix_check(&a, e->from));
    if (strcmp(t->name, "prompt_embeddings") || e->n)
        return neb__fail(NEB_ERR_NOTFOUND, "%s: '%.150s' is no prefix", e->from, t->name);
    NEB_TRY(neb__hf_prefix_in(&a, layers, e->tokens, t, &e->made));
    const int64_t kv = a.kv_heads * a.head_dim, size = e->tokens * kv;
    for (int64_t i = 0; i < 2 * layers; i++, e->n++) {
        neb__hf_prefix_name(i / 2, (int)(i % 2), e->names[e->n]);
        e->list[e->n] = (struct neb_st_tensor){.name = e->names[e->n],
                                               .type = NEB_ST_F32,
                                               .rank = 2,
                                               .shape = {e->tokens, kv},
                                               .data = e->made + i * size,
                                               .size = (uint64_t)size * sizeof *e->made};
    }
    return NEB_OK;
}

/* A tensor of a head in the place of the base's. */
static neb_status take_saved(struct adapter_in *e, const struct neb_st_tensor *t, const char *theirs)
{
    struct neb_arch a;
    const char *ours = neb__hf_saved_ours(e->kind, theirs);
    const struct neb_st_tensor *was = ours ? neb__st_find(e->base, ours) : NULL;
    NEB_TRY(neb__model_config_check(&e->folder.model, &a));
    const bool untied = ours && !was && !strcmp(ours, "head.weight") && a.head == NEB_HEAD_TOKENS && a.tied;
    if (!was && !untied)
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "adapter_config.json, 'modules_to_save': '%.150s' is not of a head that the base model has",
            t->name);
    const struct neb_st_tensor *like = was ? was : neb__st_find(e->base, "embed.token.weight");
    bool fits = like && like->rank == t->rank && is_float(t->type);
    for (int i = 0; fits && i < t->rank; i++) fits = like->shape[i] == t->shape[i];
    if (!fits)
        return neb__fail(NEB_ERR_SHAPE, "%.150s has another shape or type than the base model's", t->name);
    if (untied) e->folder.model.tied = false;
    snprintf(e->names[e->n], NEB_HF_NAME, "%s", ours);
    e->list[e->n] = *t;
    e->list[e->n].name = e->names[e->n];
    e->matrix[e->n++] = -1;
    return NEB_OK;
}

static neb_status take(struct adapter_in *e, const struct neb_st_tensor *t)
{
    const struct ending *end;
    const size_t lead = strlen(NEB_HF_ADAPTER_LEAD);
    if (e->prompt) return take_prompt(e, t);
    if (e->prefix) return take_prefix(e, t);
    const int i = matrix_of(e, t->name, &end);
    int64_t want[2];
    if (i < 0 && !strncmp(t->name, NEB_HF_ADAPTER_LEAD, lead) &&
        neb__hf_saved_names(e->saved, t->name + lead))
        return take_saved(e, t, t->name + lead);
    if (i < 0)
        return neb__fail(NEB_ERR_NOTFOUND, "%s: '%.150s' is not %s of a linear layer that the base model has",
                         e->from, t->name, e->ia3 ? "IA3" : "LoRA");
    const struct neb_hf_matrix *m = &e->all.list[i];
    enum neb_hf_added what = end->what;
    wanted_shape(e, m, t, &what, want);
    const int64_t rows = t->rank > 0 ? t->shape[0] : 0, cols = t->rank > 1 ? t->shape[1] : 1;
    if (t->rank < 1 || t->rank > 2 || rows != want[0] || cols != want[1])
        return neb__fail(NEB_ERR_SHAPE,
                         "%.150s is %" PRId64 " x %" PRId64 "; %" PRId64 " x %" PRId64 " is needed", t->name,
                         rows, cols, want[0], want[1]);
    if (!is_float(t->type))
        return neb__fail(NEB_ERR_DTYPE, "%.150s has type %s", t->name, neb__st_type_name(t->type));
    if (e->has[i] & (uint8_t)what)
        return neb__fail(NEB_ERR_CORRUPT, "%s: '%.150s' is there twice", e->from, t->name);
    snprintf(e->names[e->n], NEB_HF_NAME, "%.200s.%s", m->ours, what == NEB_HF_IA3_IN ? "ia3.in" : end->ours);
    e->list[e->n] = *t;
    e->list[e->n].name = e->names[e->n];
    if (what & (NEB_HF_LORA_M | NEB_HF_IA3_IN | NEB_HF_IA3_OUT)) {
        e->list[e->n].rank = 1;
        e->list[e->n].shape[0] = rows * cols;
    }
    e->matrix[e->n++] = i;
    e->has[i] |= (uint8_t)what;
    return NEB_OK;
}

/* LoRA's matrices come in pairs, DoRA's with a vector. */
static neb_status check_complete(const struct adapter_in *e)
{
    const uint8_t all = NEB_HF_LORA_A | NEB_HF_LORA_B | (e->dora ? NEB_HF_LORA_M : 0);
    for (int i = 0; !e->ia3 && !e->prompt && !e->prefix && i < e->all.n; i++)
        if (e->has[i] && e->has[i] != all)
            return neb__fail(NEB_ERR_CORRUPT, "%s: %s lacks one of its %s", e->from, e->all.list[i].theirs,
                             e->dora ? "two LoRA matrices and their magnitudes" : "two LoRA matrices");
    bool any = e->prompt || e->prefix;
    for (int i = 0; !any && i < e->all.n; i++) any = e->has[i];
    if (!e->n || !any) return neb__fail(NEB_ERR_CORRUPT, "%s: the adapter is empty", e->from);
    return NEB_OK;
}

/* One rank and one scale for all pairs: the largest rank, the first scale. */
static neb_status even_ranks(struct adapter_in *e)
{
    double scale = 0;
    e->rank = e->ranks.rank;
    e->alpha = e->ranks.alpha * (e->ranks.rslora ? sqrt((double)e->rank) : 1);
    if (!e->ranks.ranks && !e->ranks.alphas) return NEB_OK;
    e->rank = 0;
    for (int i = 0; i < e->added; i++) {
        if (e->matrix[i] < 0) continue;
        const char *theirs = e->all.list[e->matrix[i]].theirs;
        if (!e->rank) scale = neb__hf_ranks_scale(&e->ranks, theirs);
        const int64_t rank = neb__hf_ranks_of(&e->ranks, theirs);
        if (rank > e->rank) e->rank = rank;
    }
    e->alpha = scale * (double)e->rank;
    for (int i = 0; i < e->added; i++) {
        struct neb_st_tensor *t = &e->list[i];
        const bool second = !strcmp(neb__hf_last_word(t->name), "b");
        if (e->matrix[i] < 0 || t->rank != 2) continue; /* of a head, or DoRA's lengths */
        const double times = neb__hf_ranks_scale(&e->ranks, e->all.list[e->matrix[i]].theirs) / scale;
        NEB_TRY(neb__hf_ranks_widen(t, second, e->rank, second ? times : 1, &e->owned[i]));
    }
    return NEB_OK;
}

/* Whether the adapter brought a tensor of this name. */
static bool is_replaced(const struct adapter_in *e, const char *name)
{
    for (int i = 0; e->saved && i < e->added; i++)
        if (!strcmp(e->list[i].name, name)) return true;
    return false;
}

static neb_status take_all(struct adapter_in *e)
{
    const int base = neb__st_count(e->base), added = neb__st_count(e->adapter);
    const size_t room = (size_t)(base + added) + 2 * (size_t)e->folder.model.layers;
    e->list = NEB_NEW_ARRAY(struct neb_st_tensor, room);
    e->names = neb__calloc(room + 1, sizeof *e->names);
    e->has = NEB_NEW_ARRAY(uint8_t, (size_t)e->all.n + 1);
    e->matrix = NEB_NEW_ARRAY(int, (size_t)added + 1);
    e->owned = NEB_NEW_ARRAY(float *, (size_t)added + 1);
    if (!e->list || !e->names || !e->has || !e->matrix || !e->owned)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for an adapter");
    for (int i = 0; i < added; i++) NEB_TRY(take(e, neb__st_at(e->adapter, i)));
    NEB_TRY(check_complete(e));
    e->added = added;
    if (e->ranks.rank) NEB_TRY(even_ranks(e));
    for (int i = 0; i < base; i++)
        if (!is_replaced(e, neb__st_at(e->base, i)->name)) e->list[e->n++] = *neb__st_at(e->base, i);
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

static bool all_have(const struct adapter_in *e, int i, enum neb_hf_added what)
{
    for (int k = 0; k < e->all.n; k++)
        if (!(e->has[k] & what) && !strcmp(last_two(e->all.list[k].ours), last_two(e->all.list[i].ours)))
            return false;
    return true;
}

/* Patterns that choose just the matrices that have it: *.attention.q where all layers do, else the whole name. */
static neb_status list_patterns(const struct adapter_in *e, enum neb_hf_added what, struct neb_buf *out)
{
    for (int i = 0; i < e->all.n; i++) {
        char pattern[NEB_HF_NAME + 8];
        bool there = false;
        if (!(e->has[i] & what)) continue;
        const bool wide = all_have(e, i, what);
        for (int k = 0; wide && k < i && !there; k++)
            there =
                (e->has[k] & what) && !strcmp(last_two(e->all.list[k].ours), last_two(e->all.list[i].ours));
        if (there) continue;
        snprintf(pattern, sizeof pattern, "%s%s", wide ? "*." : "",
                 wide ? last_two(e->all.list[i].ours) : e->all.list[i].ours);
        NEB_TRY(neb__buf_printf(out, "%s%s", out->len ? "," : "", pattern));
    }
    return neb__buf_append(out, "", 1);
}

static neb_status set_patterns(struct adapter_in *e, const char *option, enum neb_hf_added what)
{
    struct neb_buf on;
    neb__buf_init(&on, MAX_ON);
    neb_status status = list_patterns(e, what, &on);
    if (status == NEB_OK)
        status = neb__opts_set(neb__peft_options, &e->folder.peft, option, (const char *)on.data);
    neb__buf_free(&on);
    return status;
}

/* What came with the adapter is trained on with it. */
static neb_status set_train(struct adapter_in *e)
{
    struct neb_buf names;
    neb_status status = NEB_OK;
    neb__buf_init(&names, MAX_ON);
    for (int i = 0; status == NEB_OK && e->saved && i < e->added; i++)
        if (e->matrix[i] < 0) status = neb__buf_printf(&names, "%s%s", names.len ? "," : "", e->list[i].name);
    if (status == NEB_OK) status = neb__buf_append(&names, "", 1);
    if (status == NEB_OK)
        status = neb__opts_set(neb__peft_options, &e->folder.peft, "train", (const char *)names.data);
    neb__buf_free(&names);
    return status;
}

static neb_status set_peft(struct adapter_in *e)
{
    const char *method = e->ia3 ? "ia3" : "lora";
    if (e->prompt) method = "prompt";
    if (e->prefix) method = "prefix";
    NEB_TRY(neb__opts_set(neb__peft_options, &e->folder.peft, "method", method));
    if (e->prompt) e->folder.peft.prompt_length = e->tokens;
    if (e->prefix) e->folder.peft.prefix_length = e->tokens;
    if (e->prompt || e->prefix) return NEB_OK;
    NEB_TRY(set_train(e));
    if (e->ia3) {
        NEB_TRY(set_patterns(e, "ia3_on", NEB_HF_IA3_OUT));
        return set_patterns(e, "ia3_in", NEB_HF_IA3_IN);
    }
    e->folder.peft.lora_rank = e->rank;
    e->folder.peft.lora_alpha = e->alpha;
    e->folder.peft.lora_dropout = e->dropout;
    e->folder.peft.lora_dora = e->dora;
    return set_patterns(e, "lora_on", NEB_HF_LORA_A);
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
    NEB_TRY(neb__hf_begin_folder(to, "model.yaml", 0700));
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
    neb__free(e.made);
    for (int i = 0; i < e.added; i++) neb__free(e.owned[i]);
    neb__free(e.owned);
    neb__free(e.matrix);
    neb__hf_ranks_free(&e.ranks);
    json_decref(e.saved);
    neb__hf_matrices_free(&e.all);
    neb__model_yaml_free(&e.folder);
    return status;
}
