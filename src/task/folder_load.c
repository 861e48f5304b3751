/* folder_load.c: values from a folder into a model's parameters.
 *
 * The model need not be the one that was saved. Names that both have are taken. Two things that the folder
 * keeps apart are merged: LoRA's product with the weight it was added to, and the first segment's embedding
 * with the positions. Adapters and prefixes have nothing to be merged with: a model without them would
 * compute something else and is refused. A table that is a difference to another model's takes what that one
 * lacks, so the other model is loaded first. */
#include "task/folder.h"
#include "base/mem.h"
#include "store/safetensors.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static bool matches(const char *list, const char *name)
{
    char pattern[NEB_PATH];
    if (!list) return true;
    for (int i = 0; neb__list_part(list, i, pattern, sizeof pattern); i++)
        if (!fnmatch(pattern, name, 0)) return true;
    return false;
}

static bool same_shape(const struct neb_st_tensor *t, const neb_param *p)
{
    int64_t shape[4] = {0};
    int rank = neb_param_shape(p, shape);
    bool same = rank == t->rank;
    for (int i = 0; same && i < rank; i++) same = shape[i] == t->shape[i];
    return same;
}

/* w (out, in) += scale * b (out, rank) a (rank, in). The rows of w are those that b has. */
static neb_status add_lora(const struct neb_st_tensor *a, const struct neb_st_tensor *b, float scale,
                           float *w)
{
    int64_t rank = a->shape[0], in = a->shape[1], out = b->shape[0];
    float *low = neb__malloc((size_t)(rank * in + out * rank) * sizeof *low), *high = low + rank * in;
    if (!low) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", a->name);
    neb_status status = neb__st_to_f32(a, low);
    if (status == NEB_OK) status = neb__st_to_f32(b, high);
    for (int64_t o = 0; status == NEB_OK && o < out; o++)
        for (int64_t r = 0; r < rank; r++)
            for (int64_t i = 0; i < in; i++) w[o * in + i] += scale * high[o * rank + r] * low[r * in + i];
    neb__free(low);
    return status;
}

/* The tensor NAME.lora.a or .b, where the model has no such parameter of its own; or NULL. */
static const struct neb_st_tensor *lora_tensor(const struct neb_st *st, const struct neb_model *m,
                                               const char *stem, char which)
{
    char name[2][NEB_PATH + 32];
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof name[i], "%s%s.lora.%c", i ? m->prefix : "", stem, which);
    return neb_params_find(m->params, name[1]) ? NULL : neb__st_find(st, name[0]);
}

/* Adds the product of one pair to `rows` rows of a weight of `cols` columns. */
static neb_status merge_pair(const struct neb_st *st, const struct neb_peft *peft, const struct neb_model *m,
                             const char *stem, int64_t rows, int64_t cols, float *w)
{
    const struct neb_st_tensor *a = lora_tensor(st, m, stem, 'a'), *b = lora_tensor(st, m, stem, 'b');
    if (!a) return NEB_OK;
    if (!b || a->rank != 2 || b->rank != 2 || a->shape[0] != b->shape[1] || a->shape[1] != cols ||
        b->shape[0] != rows)
        return neb__fail(NEB_ERR_CORRUPT, "the LoRA matrices of %s do not fit", stem);
    return add_lora(a, b, peft->lora_scale, w);
}

/* Adds LoRA's products to a weight whose model has no LoRA: that of the whole weight, and those of its parts. */
static neb_status merge_lora(struct neb_st *st, const struct neb_peft *peft, const struct neb_model *m,
                             const struct neb_st_tensor *t, float *values)
{
    char stem[NEB_PATH], part[NEB_PATH + 8];
    struct neb_weight_part list[3];
    size_t n = strlen(t->name);
    if (!peft->lora || n < 7 || n >= NEB_PATH || strcmp(t->name + n - 7, ".weight") || t->rank != 2)
        return NEB_OK;
    snprintf(stem, sizeof stem, "%.*s", (int)n - 7, t->name);
    NEB_TRY(merge_pair(st, peft, m, stem, t->shape[0], t->shape[1], values));
    const char *dot = strrchr(stem, '.');
    const int parts = neb__weight_parts(&m->arch, stem, list);
    for (int i = 0; i < parts; i++) {
        snprintf(part, sizeof part, "%.*s.%s", dot ? (int)(dot - stem) : 0, stem, list[i].name);
        NEB_TRY(merge_pair(st, peft, m, part, list[i].rows, t->shape[1], values));
        values += list[i].rows * t->shape[1];
    }
    return NEB_OK;
}

static neb_status subtract(const neb_param *base, float *values)
{
    const size_t n = (size_t)neb_param_values(base);
    float *other = neb__malloc(n * sizeof *other);
    if (!other) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", neb_param_name(base));
    neb_status status = neb_param_read(base, other);
    for (size_t i = 0; status == NEB_OK && i < n; i++) values[i] -= other[i];
    neb__free(other);
    return status;
}

static neb_status load_one(struct neb_st *st, const struct neb_peft *peft, const struct neb_st_tensor *t,
                           const struct neb_model *m, neb_param *p)
{
    int64_t shape[4] = {0};
    int rank = neb_param_shape(p, shape);
    if (!same_shape(t, p))
        return neb__fail(
            NEB_ERR_SHAPE,
            "%s is %" PRId64 " x %" PRId64 " in the folder, %" PRId64 " x %" PRId64 " in this model", t->name,
            t->rank > 0 ? t->shape[0] : 0, t->rank > 1 ? t->shape[1] : 1, shape[0], rank > 1 ? shape[1] : 1);
    float *values = neb__malloc((size_t)neb_param_values(p) * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = neb__st_to_f32(t, values);
    if (status == NEB_OK) status = merge_lora(st, peft, m, t, values);
    if (status == NEB_OK && p == m->token && m->token_base) status = subtract(m->token_base, values);
    if (status == NEB_OK) status = neb_param_write(p, values);
    neb__free(values);
    return status;
}

/* A model without segments gets the folder's first segment as part of its positions. */
static neb_status fold_segment(struct neb_st *st, struct neb_model *m)
{
    const struct neb_st_tensor *t = neb__st_find(st, "encoder.embed.type.weight");
    neb_param *p = m->encoder.position;
    int64_t shape[4];
    if (!t || m->encoder.type || !p || m->arch.positions != NEB_POSITIONS_LEARNED) return NEB_OK;
    neb_param_shape(p, shape);
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] != shape[1])
        return neb__fail(NEB_ERR_SHAPE, "%s has another width than this model", t->name);
    size_t n = (size_t)neb_param_values(p), types = (size_t)(t->shape[0] * t->shape[1]);
    float *values = neb__malloc((n + types) * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = neb_param_read(p, values);
    if (status == NEB_OK) status = neb__st_to_f32(t, values + n);
    for (size_t i = 0; status == NEB_OK && i < n; i++) values[i] += values[n + i % (size_t)shape[1]];
    if (status == NEB_OK) status = neb_param_write(p, values);
    neb__free(values);
    return status;
}

/* Refuses a folder with adapters or prefixes for a model that has no place for them. */
static neb_status keeps_additions(const struct neb_st *st, const struct neb_model_yaml *f,
                                  const struct neb_peft *peft, const struct neb_model *m, const char *match)
{
    const bool adapters = peft->adapter && !m->peft.adapter, prefixes = peft->prefix && !m->peft.prefix;
    for (int i = 0; (adapters || prefixes) && i < neb__st_count(st); i++) {
        const char *name = neb__st_at(st, i)->name;
        const bool adapter = strstr(name, ".adapter.") != NULL;
        if (!(adapter ? adapters : prefixes && strstr(name, ".prefix.")) || !matches(match, name)) continue;
        return neb__fail(
            NEB_ERR_CONFIG,
            "the model in %s has %s (%s), which this one lacks: it would compute something else; "
            "choose a method with %s here, too",
            f->path, adapter ? "adapters" : "prefixes", name, adapter ? "adapter" : "prefix");
    }
    return NEB_OK;
}

static neb_status load_all(struct neb_st *st, const struct neb_model_yaml *f, struct neb_model *m,
                           const char *match, bool all, int *loaded)
{
    int n = 0;
    struct neb_peft peft;
    NEB_TRY(neb__peft_config_check(&f->peft, &peft));
    NEB_TRY(keeps_additions(st, f, &peft, m, match));
    for (int i = 0; i < neb_params_count(m->params); i++) {
        neb_param *p = neb_params_at(m->params, i);
        const char *name = neb__folder_name(m, p);
        if (!name || !matches(match, name)) continue;
        const struct neb_st_tensor *t = neb__st_find(st, name);
        if (!t && all) return neb__fail(NEB_ERR_NOTFOUND, "%s has no parameter '%s'", f->path, name);
        if (!t) continue;
        NEB_TRY(load_one(st, &peft, t, m, p));
        n++;
    }
    *loaded = n;
    return n && matches(match, "encoder.embed.position.weight") ? fold_segment(st, m) : NEB_OK;
}

neb_status neb__folder_load(const struct neb_model_yaml *f, struct neb_model *m, const char *match, bool all,
                            int *loaded)
{
    char file[NEB_MODEL_PATH + 32];
    struct neb_st *st;
    snprintf(file, sizeof file, "%s/model.safetensors", f->path);
    NEB_TRY(neb__st_open(file, &st));
    neb_status status = load_all(st, f, m, match, all, loaded);
    neb__st_close(st);
    return status;
}
