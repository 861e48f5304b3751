/* hf_peft.c: LoRA, DoRA, IA3, prompts and prefixes as the peft library stores them, on their way out.
 *
 * There every matrix has a pair of its own: q_proj, k_proj and v_proj apart. A pair of ours belongs to one such matrix, or
 * to a fused weight (qkv). A fused pair goes out as three that share their first matrix, which computes the same.
 *
 *     ours    decoder.layers.0.attention.q.lora.a
 *     theirs  base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight */
#include "task/hf_peft.h"
#include "base/file.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- out ------------------------------------------------------------------------------------------------------- */

struct adapter_out {
    struct neb_model_yaml folder;
    enum neb_hf_kind kind;
    struct neb_hf_matrices all;
    struct neb_st *st;
    struct neb_st_tensor *list;
    char (*names)[NEB_HF_NAME];
    uint8_t *has; /* (all.n) a bit of enum neb_hf_added */
    int n;
    bool ia3, prompt, prefix; /* else LoRA */
    struct neb_peft peft;
    json_t *saved; /* names of modules that go out whole */
    float *made;   /* the prefix's table */
};

static neb_status check_out(struct adapter_out *e)
{
    NEB_TRY(neb__peft_config_check(&e->folder.peft, &e->peft));
    const struct neb_peft p = e->peft;
    const bool trains = p.train && *p.train;
    e->ia3 = p.ia3;
    e->prompt = p.prompt;
    e->prefix = p.prefix;
    if (p.lora + p.ia3 + p.prompt + p.prefix == 1 && !p.adapter && !p.bias &&
        !(trains && (p.prompt || p.prefix)))
        return NEB_OK;
    return neb__fail(
        NEB_ERR_UNSUPPORTED,
        "%s: only LoRA, IA3, a prompt or a prefix alone goes out as an adapter, not peft.method %s%s; "
        "`nebula-i export` without --adapter writes the whole model",
        e->folder.path, e->folder.peft.method, trains ? " with peft.train" : "");
}

/* Rows [first, first + shape[0]) of t, in the shape that they have there. */
static void put(struct adapter_out *e, const struct neb_st_tensor *t, const struct neb_hf_matrix *m,
                const char *end, int64_t first, int rank, const int64_t shape[2])
{
    const int64_t width = rank > 1 ? shape[1] : 1;
    const size_t each = neb__st_type_size(t->type);
    snprintf(e->names[e->n], NEB_HF_NAME, "%s%.200s.%s", NEB_HF_ADAPTER_LEAD, m->theirs, end);
    e->list[e->n] = (struct neb_st_tensor){.name = e->names[e->n],
                                           .type = t->type,
                                           .rank = rank,
                                           .shape = {shape[0], width},
                                           .data = (const uint8_t *)t->data + (size_t)(first * width) * each,
                                           .size = (uint64_t)(shape[0] * width) * each};
    e->n++;
}

/* What our matrix has under `which`: its own tensor, or the fused weight's. *first: where its rows begin. */
static const struct neb_st_tensor *find(const struct adapter_out *e, const struct neb_hf_matrix *m,
                                        const char *which, int64_t *first)
{
    char name[NEB_HF_NAME + 16];
    snprintf(name, sizeof name, "%s.%s", m->ours, which);
    const struct neb_st_tensor *t = neb__st_find(e->st, name);
    *first = 0;
    if (t && strcmp(m->ours, m->fused)) return t;
    snprintf(name, sizeof name, "%s.%s", m->fused, which);
    *first = m->first;
    return neb__st_find(e->st, name);
}

static bool is_vector(const struct neb_st_tensor *t, int64_t least)
{
    return t->rank == 1 && t->shape[0] >= least;
}

/* The pair of a matrix, its own or its rows of the fused one, and DoRA's lengths. */
static neb_status put_pair(struct adapter_out *e, int i)
{
    const struct neb_hf_matrix *m = &e->all.list[i];
    int64_t first, unused;
    const struct neb_st_tensor *a = find(e, m, "lora.a", &unused), *b = find(e, m, "lora.b", &first),
                               *length = find(e, m, "lora.m", &unused);
    if (!a && !b) return NEB_OK;
    if (!a || !b || a->rank != 2 || b->rank != 2 || a->shape[1] != m->cols || b->shape[0] < first + m->rows ||
        a->shape[0] != b->shape[1] || (length && !is_vector(length, first + m->rows)))
        return neb__fail(NEB_ERR_CORRUPT, "the LoRA matrices of %s do not fit", m->ours);
    put(e, a, m, "lora_A.weight", 0, 2, a->shape);
    put(e, b, m, "lora_B.weight", first, 2, (int64_t[]){m->rows, b->shape[1]});
    if (length) put(e, length, m, "lora_magnitude_vector", first, 1, (int64_t[]){m->rows, 1});
    e->has[i] = NEB_HF_LORA_A;
    return NEB_OK;
}

/* What peft.train chose: of a head it goes out whole. */
static neb_status put_saved(struct adapter_out *e, const struct neb_st_tensor *t)
{
    char theirs[NEB_HF_NAME], module[NEB_HF_NAME];
    if (!neb__hf_saved_chosen(e->kind, &e->peft, t->name)) return NEB_OK;
    if (!neb__hf_saved_theirs(e->kind, t->name, theirs))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "%s was trained (peft.train) and is not a module of a head, so that it cannot go out with an "
            "adapter; `nebula-i export` without --adapter writes the whole model",
            t->name);
    snprintf(e->names[e->n], NEB_HF_NAME, "%s%.200s", NEB_HF_ADAPTER_LEAD, theirs);
    e->list[e->n] = *t;
    e->list[e->n].name = e->names[e->n];
    e->n++;
    neb__hf_saved_module(theirs, module);
    for (size_t i = 0; i < json_array_size(e->saved); i++)
        if (!strcmp(json_string_value(json_array_get(e->saved, i)), module)) return NEB_OK;
    if (!e->saved) e->saved = json_array();
    return json_array_append_new(e->saved, json_string(module))
               ? neb__fail(NEB_ERR_NOMEM, "out of memory for adapter_config.json")
               : NEB_OK;
}

/* Factors of the outputs are a column there, those of the inputs a row. A matrix has one of both. */
static neb_status put_factors(struct adapter_out *e, int i)
{
    const struct neb_hf_matrix *m = &e->all.list[i];
    int64_t first, unused;
    const struct neb_st_tensor *in = find(e, m, "ia3.in", &unused), *out = find(e, m, "ia3.out", &first);
    if (in && out)
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "%s has factors for its inputs and for its outputs; the peft library knows one of both", m->ours);
    if ((in && (in->rank != 1 || in->shape[0] != m->cols)) || (out && !is_vector(out, first + m->rows)))
        return neb__fail(NEB_ERR_CORRUPT, "the IA3 factors of %s do not fit", m->ours);
    if (in) put(e, in, m, "ia3_l", 0, 2, (int64_t[]){1, m->cols});
    if (out) put(e, out, m, "ia3_l", first, 2, (int64_t[]){m->rows, 1});
    if (in) e->has[i] = NEB_HF_IA3_IN;
    if (out) e->has[i] = NEB_HF_IA3_OUT;
    return NEB_OK;
}

/* The short name (q_proj) where every matrix of that name has the same, else the long one. */
static bool all_have(const struct adapter_out *e, int i)
{
    for (int k = 0; k < e->all.n; k++)
        if (e->has[k] != e->has[i] &&
            !strcmp(neb__hf_last_word(e->all.list[k].theirs), neb__hf_last_word(e->all.list[i].theirs)))
            return false;
    return true;
}

/* Names of the matrices that have one of the bits. */
static json_t *targets(const struct adapter_out *e, int bits)
{
    json_t *list = json_array();
    for (int i = 0; list && i < e->all.n; i++) {
        if (!(e->has[i] & bits)) continue;
        const char *name = all_have(e, i) ? neb__hf_last_word(e->all.list[i].theirs) : e->all.list[i].theirs;
        bool there = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            there |= !strcmp(json_string_value(json_array_get(list, k)), name);
        if (!there) json_array_append_new(list, json_string(name));
    }
    return list;
}

static json_t *lora_config(const struct adapter_out *e, const char *task)
{
    const struct neb_peft_config *p = &e->folder.peft;
    return json_pack("{s:s, s:s, s:I, s:f, s:f, s:o, s:s, s:b, s:b, s:b, s:b, s:b, s:s, s:n}", "peft_type",
                     "LORA", "task_type", task, "r", (json_int_t)p->lora_rank, "lora_alpha", p->lora_alpha,
                     "lora_dropout", p->lora_dropout, "target_modules", targets(e, NEB_HF_LORA_A), "bias",
                     "none", "use_rslora", 0, "use_dora", (int)p->lora_dora, "fan_in_fan_out",
                     e->kind == NEB_HF_GPT2, "inference_mode", 1, "init_lora_weights", 1,
                     "base_model_name_or_path", "", "modules_to_save");
}

static json_t *ia3_config(const struct adapter_out *e, const char *task)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:b, s:b, s:b, s:s, s:n}", "peft_type", "IA3", "task_type", task,
                     "target_modules", targets(e, NEB_HF_IA3_IN | NEB_HF_IA3_OUT), "feedforward_modules",
                     targets(e, NEB_HF_IA3_IN), "fan_in_fan_out", e->kind == NEB_HF_GPT2, "inference_mode", 1,
                     "init_ia3_weights", 1, "base_model_name_or_path", "", "modules_to_save");
}

static json_t *prompt_config(const struct adapter_out *e)
{
    const struct neb_model_config *m = &e->folder.model;
    return json_pack("{s:s, s:s, s:I, s:I, s:i, s:I, s:I, s:s, s:b, s:s}", "peft_type", "PROMPT_TUNING",
                     "task_type", "CAUSAL_LM", "num_virtual_tokens", (json_int_t)e->folder.peft.prompt_length,
                     "token_dim", (json_int_t)m->hidden, "num_transformer_submodules", 1,
                     "num_attention_heads", (json_int_t)m->heads, "num_layers", (json_int_t)m->layers,
                     "prompt_tuning_init", "RANDOM", "inference_mode", 1, "base_model_name_or_path", "");
}

static json_t *prefix_config(const struct adapter_out *e)
{
    const int64_t tokens = e->folder.peft.prefix_length, layers = e->folder.model.layers;
    struct neb_arch a;
    if (neb__model_config_check(&e->folder.model, &a) != NEB_OK) return NULL;
    return json_pack("{s:s, s:s, s:I, s:I, s:i, s:I, s:I, s:I, s:b, s:b, s:s}", "peft_type", "PREFIX_TUNING",
                     "task_type", "CAUSAL_LM", "num_virtual_tokens", (json_int_t)tokens, "token_dim",
                     (json_int_t)(a.kv_heads * a.head_dim), "num_transformer_submodules", 1,
                     "num_attention_heads", (json_int_t)a.kv_heads, "num_layers", (json_int_t)layers,
                     "encoder_hidden_size", (json_int_t)(a.kv_heads * a.head_dim), "prefix_projection", 0,
                     "inference_mode", 1, "base_model_name_or_path", "");
}

static neb_status write_config(const struct adapter_out *e, const char *to)
{
    char path[NEB_MODEL_PATH + 64];
    const char *task = neb__hf_is_seq2seq(e->kind) ? "SEQ_2_SEQ_LM" : "CAUSAL_LM";
    if (!neb__hf_has_decoder(e->kind)) task = "FEATURE_EXTRACTION";
    if (e->saved && !strcmp(e->folder.model.head, "class")) task = "SEQ_CLS";
    json_t *j = e->prompt ? prompt_config(e) : NULL;
    if (e->prefix) j = prefix_config(e);
    if (!e->prompt && !e->prefix) j = e->ia3 ? ia3_config(e, task) : lora_config(e, task);
    if (j && e->saved && json_object_set(j, "modules_to_save", e->saved)) {
        json_decref(j);
        j = NULL;
    }
    char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for adapter_config.json");
    snprintf(path, sizeof path, "%s/adapter_config.json", to);
    neb_status status = neb__file_replace(path, text, strlen(text), 0644);
    free(text); /* jansson's own */
    return status;
}

/* What has no place there, such as a head's LoRA, must not get lost. */
static neb_status all_placed(const struct adapter_out *e)
{
    for (int i = 0; i < neb__st_count(e->st); i++) {
        const char *name = neb__st_at(e->st, i)->name, *lora = strstr(name, e->ia3 ? ".ia3." : ".lora.");
        bool placed = !lora;
        for (int k = 0; !placed && k < e->all.n; k++) {
            const struct neb_hf_matrix *m = &e->all.list[k];
            const size_t n = (size_t)(lora - name);
            placed = e->has[k] && ((strlen(m->ours) == n && !strncmp(m->ours, name, n)) ||
                                   (strlen(m->fused) == n && !strncmp(m->fused, name, n)));
        }
        if (!placed)
            return neb__fail(NEB_ERR_UNSUPPORTED, "%s has no counterpart in an adapter of the peft library",
                             name);
    }
    return NEB_OK;
}

static neb_status put_prompt(struct adapter_out *e)
{
    const struct neb_st_tensor *t = neb__st_find(e->st, "embed.prompt.weight");
    if (!t) return neb__fail(NEB_ERR_CORRUPT, "%s has no prompt", e->folder.path);
    e->list[e->n] = *t;
    e->list[e->n++].name = "prompt_embeddings";
    return NEB_OK;
}

static neb_status put_prefix(struct adapter_out *e)
{
    const int64_t tokens = e->folder.peft.prefix_length, layers = e->folder.model.layers;
    struct neb_arch a;
    NEB_TRY(neb__model_config_check(&e->folder.model, &a));
    NEB_TRY(neb__hf_prefix_check(&a, e->folder.path));
    NEB_TRY(neb__hf_prefix_out(&a, layers, tokens, e->st, &e->made));
    const int64_t width = layers * 2 * a.kv_heads * a.head_dim;
    e->list[e->n++] = (struct neb_st_tensor){.name = "prompt_embeddings",
                                             .type = NEB_ST_F32,
                                             .rank = 2,
                                             .shape = {tokens, width},
                                             .data = e->made,
                                             .size = (uint64_t)(tokens * width) * sizeof *e->made};
    return NEB_OK;
}

static neb_status write_adapter(struct adapter_out *e, const char *to)
{
    char path[NEB_MODEL_PATH + 64];
    NEB_TRY(check_out(e));
    const bool table = e->prompt || e->prefix; /* beside the matrices, not in them */
    NEB_TRY(table ? neb__hf_kind_of_base(&e->folder, &e->kind) : neb__hf_kind_of(&e->folder, &e->kind));
    NEB_TRY(neb__hf_matrices_list(&e->folder, e->kind, &e->all));
    snprintf(path, sizeof path, "%s/model.safetensors", e->folder.path);
    NEB_TRY(neb__st_open(path, &e->st));
    const size_t room = 3 * (size_t)e->all.n + (size_t)neb__st_count(e->st) + 1;
    e->list = NEB_NEW_ARRAY(struct neb_st_tensor, room);
    e->names = neb__calloc(room, sizeof *e->names);
    e->has = NEB_NEW_ARRAY(uint8_t, (size_t)e->all.n + 1);
    if (!e->list || !e->names || !e->has) return neb__fail(NEB_ERR_NOMEM, "out of memory for an adapter");
    if (e->prompt) NEB_TRY(put_prompt(e));
    if (e->prefix) NEB_TRY(put_prefix(e));
    for (int i = 0; !table && i < e->all.n; i++) NEB_TRY(e->ia3 ? put_factors(e, i) : put_pair(e, i));
    if (!e->n)
        return neb__fail(NEB_ERR_UNSUPPORTED, "%s has no %s in a layer that the peft library could name",
                         e->folder.path, e->ia3 ? "IA3" : "LoRA");
    NEB_TRY(all_placed(e));
    for (int i = 0; !table && i < neb__st_count(e->st); i++) NEB_TRY(put_saved(e, neb__st_at(e->st, i)));
    NEB_TRY(neb__hf_begin_folder(to, "adapter_config.json", 0755));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", to);
    NEB_TRY(neb__st_write(path, e->list, e->n, NULL, 0644));
    return write_config(e, to);
}

neb_status neb__hf_export_adapter(const char *from, const char *to)
{
    struct adapter_out e = {0};
    NEB_TRY(neb__hf_apart(from, to));
    NEB_TRY(neb__model_yaml_read(from, &e.folder));
    neb_status status = write_adapter(&e, to);
    neb__st_close(e.st);
    neb__free(e.list);
    neb__free(e.names);
    neb__free(e.has);
    neb__free(e.made);
    json_decref(e.saved);
    neb__hf_matrices_free(&e.all);
    neb__model_yaml_free(&e.folder);
    return status;
}
