/* hf_peft.c: LoRA as the peft library stores it, on its way out.
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
    uint8_t *has; /* (all.n) */
    int n;
};

static neb_status check_out(const struct adapter_out *e)
{
    struct neb_peft p;
    NEB_TRY(neb__peft_config_check(&e->folder.peft, &p));
    if (!p.lora || p.adapter || p.prefix || p.bias || (p.train && *p.train))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "%s: only LoRA alone goes out as an adapter, not peft.method %s%s; `nebula-i export` without "
            "--adapter writes the whole model",
            e->folder.path, e->folder.peft.method, p.train && *p.train ? " with peft.train" : "");
    return NEB_OK;
}

static void put(struct adapter_out *e, const struct neb_st_tensor *t, const struct neb_hf_matrix *m,
                char which, int64_t first, int64_t rows)
{
    const int64_t cols = t->shape[1];
    const size_t each = neb__st_type_size(t->type);
    snprintf(e->names[e->n], NEB_HF_NAME, "%s%.200s.lora_%c.weight", NEB_HF_ADAPTER_LEAD, m->theirs, which);
    e->list[e->n] = (struct neb_st_tensor){.name = e->names[e->n],
                                           .type = t->type,
                                           .rank = 2,
                                           .shape = {rows, cols},
                                           .data = (const uint8_t *)t->data + (size_t)(first * cols) * each,
                                           .size = (uint64_t)(rows * cols) * each};
    e->n++;
}

/* The pair of a matrix: its own, or its rows of the fused one. */
static neb_status put_pair(struct adapter_out *e, int i)
{
    const struct neb_hf_matrix *m = &e->all.list[i];
    char name[2][NEB_HF_NAME + 16];
    const struct neb_st_tensor *t[2];
    bool own = true;
    for (int fused = 0; fused < 2; fused++) {
        for (int k = 0; k < 2; k++) {
            snprintf(name[k], sizeof name[k], "%s.lora.%c", fused ? m->fused : m->ours, "ab"[k]);
            t[k] = neb__st_find(e->st, name[k]);
        }
        own = !fused && strcmp(m->ours, m->fused);
        if (t[0] || t[1]) break;
    }
    if (!t[0] && !t[1]) return NEB_OK;
    const int64_t first = own ? 0 : m->first;
    if (!t[0] || !t[1] || t[0]->rank != 2 || t[1]->rank != 2 || t[0]->shape[1] != m->cols ||
        t[1]->shape[0] < first + m->rows || t[0]->shape[0] != t[1]->shape[1])
        return neb__fail(NEB_ERR_CORRUPT, "the LoRA matrices of %s do not fit", m->ours);
    put(e, t[0], m, 'A', 0, t[0]->shape[0]);
    put(e, t[1], m, 'B', first, m->rows);
    e->has[i] = 1;
    return NEB_OK;
}

/* The short name (q_proj) where every matrix of that name has LoRA, else the long one. */
static bool all_have(const struct adapter_out *e, int i)
{
    for (int k = 0; k < e->all.n; k++)
        if (!e->has[k] &&
            !strcmp(neb__hf_last_word(e->all.list[k].theirs), neb__hf_last_word(e->all.list[i].theirs)))
            return false;
    return true;
}

static json_t *targets(const struct adapter_out *e)
{
    json_t *list = json_array();
    for (int i = 0; list && i < e->all.n; i++) {
        if (!e->has[i]) continue;
        const char *name = all_have(e, i) ? neb__hf_last_word(e->all.list[i].theirs) : e->all.list[i].theirs;
        bool there = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            there |= !strcmp(json_string_value(json_array_get(list, k)), name);
        if (!there) json_array_append_new(list, json_string(name));
    }
    return list;
}

static neb_status write_config(const struct adapter_out *e, const char *to)
{
    const struct neb_peft_config *p = &e->folder.peft;
    char path[NEB_MODEL_PATH + 64];
    const char *task = neb__hf_is_seq2seq(e->kind) ? "SEQ_2_SEQ_LM" : "CAUSAL_LM";
    if (!neb__hf_has_decoder(e->kind)) task = "FEATURE_EXTRACTION";
    json_t *j =
        json_pack("{s:s, s:s, s:I, s:f, s:f, s:o, s:s, s:b, s:b, s:b, s:b, s:b, s:s, s:n}", "peft_type",
                  "LORA", "task_type", task, "r", (json_int_t)p->lora_rank, "lora_alpha", p->lora_alpha,
                  "lora_dropout", p->lora_dropout, "target_modules", targets(e), "bias", "none", "use_rslora",
                  0, "use_dora", 0, "fan_in_fan_out", e->kind == NEB_HF_GPT2, "inference_mode", 1,
                  "init_lora_weights", 1, "base_model_name_or_path", "", "modules_to_save");
    char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for adapter_config.json");
    snprintf(path, sizeof path, "%s/adapter_config.json", to);
    neb_status status = neb__file_replace(path, text, strlen(text), 0644);
    free(text); /* jansson's own */
    return status;
}

/* LoRA that has no place there, such as a head's, must not get lost. */
static neb_status all_placed(const struct adapter_out *e)
{
    for (int i = 0; i < neb__st_count(e->st); i++) {
        const char *name = neb__st_at(e->st, i)->name, *lora = strstr(name, ".lora.");
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

static neb_status write_adapter(struct adapter_out *e, const char *to)
{
    char path[NEB_MODEL_PATH + 64];
    NEB_TRY(check_out(e));
    NEB_TRY(neb__hf_kind_of(&e->folder, &e->kind));
    NEB_TRY(neb__hf_matrices_list(&e->folder, e->kind, &e->all));
    snprintf(path, sizeof path, "%s/model.safetensors", e->folder.path);
    NEB_TRY(neb__st_open(path, &e->st));
    e->list = NEB_NEW_ARRAY(struct neb_st_tensor, 2 * (size_t)e->all.n);
    e->names = neb__calloc(2 * (size_t)e->all.n + 1, sizeof *e->names);
    e->has = NEB_NEW_ARRAY(uint8_t, (size_t)e->all.n + 1);
    if (!e->list || !e->names || !e->has) return neb__fail(NEB_ERR_NOMEM, "out of memory for an adapter");
    for (int i = 0; i < e->all.n; i++) NEB_TRY(put_pair(e, i));
    if (!e->n)
        return neb__fail(NEB_ERR_UNSUPPORTED, "%s has no LoRA in a layer that the peft library could name",
                         e->folder.path);
    NEB_TRY(all_placed(e));
    NEB_TRY(neb__file_make_dir(to, 0755));
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
    neb__hf_matrices_free(&e.all);
    neb__model_yaml_free(&e.folder);
    return status;
}
