/* folder_load.c: values from a folder into a model's parameters.
 *
 * The model need not be the one that was saved. Names that both have are taken. What the folder keeps apart is
 * merged: LoRA's product with the weight it was added to, DoRA's lengths and IA3's factors with the rows, columns and biases
 * that they scale, and the first segment's embedding with the positions. Adapters, prefixes and prompts have nothing to be merged with: a model without them would
 * compute something else and is refused. A table that is a difference to another model's takes what that one
 * lacks, so the other model is loaded first. */
#include "task/folder_values.h"
#include "base/mem.h"
#include "tensor/narrow.h"

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

static neb_status check_shape(const struct neb_st_tensor *t, const neb_param *p)
{
    int64_t shape[4] = {0};
    const int rank = neb_param_shape(p, shape);
    if (same_shape(t, p)) return NEB_OK;
    return neb__fail(NEB_ERR_SHAPE,
                     "%s is %" PRId64 " x %" PRId64 " in the folder, %" PRId64 " x %" PRId64 " in this model",
                     t->name, t->rank > 0 ? t->shape[0] : 0, t->rank > 1 ? t->shape[1] : 1, shape[0],
                     rank > 1 ? shape[1] : 1);
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

/* The tensor STEM.WHICH, where the model has no such parameter of its own; or NULL. */
static const struct neb_st_tensor *added_tensor(const struct neb_st *st, const struct neb_model *m,
                                                const char *stem, const char *which)
{
    char name[2][2 * NEB_PATH + 32];
    for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "%s%s.%s", i ? m->prefix : "", stem, which);
    return neb_params_find(m->params, name[1]) ? NULL : neb__st_find(st, name[0]);
}

/* The n values of such a vector, owned by the caller; *out NULL: there is none. */
static neb_status added_vector(const struct neb_st *st, const struct neb_model *m, const char *stem,
                               const char *which, int64_t n, float **out)
{
    const struct neb_st_tensor *t = added_tensor(st, m, stem, which);
    *out = NULL;
    if (!t) return NEB_OK;
    if (t->rank != 1 || t->shape[0] != n)
        return neb__fail(NEB_ERR_CORRUPT, "%s does not have %" PRId64 " values", t->name, n);
    float *x = neb__malloc((size_t)n * sizeof *x);
    if (!x) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    *out = x;
    return neb__st_to_f32(t, x);
}

/* Rows get the lengths that DoRA trained. */
static neb_status merge_lengths(const struct neb_st *st, const struct neb_model *m, const char *stem,
                                int64_t rows, int64_t cols, float *w)
{
    float *length;
    neb_status status = added_vector(st, m, stem, "lora.m", rows, &length);
    for (int64_t r = 0; status == NEB_OK && length && r < rows; r++) {
        float now;
        neb__dora_lengths(w + r * cols, NULL, NULL, 0, 1, cols, 0, &now);
        for (int64_t i = 0; now > 0 && i < cols; i++) w[r * cols + i] *= length[r] / now;
    }
    neb__free(length);
    return status;
}

/* IA3: rows, or the values of a bias (cols 1), times the factors of the outputs; columns times those of the inputs. */
static neb_status merge_factors(const struct neb_st *st, const struct neb_model *m, const char *stem,
                                int64_t rows, int64_t cols, bool bias, float *w)
{
    float *out, *in = NULL;
    neb_status status = added_vector(st, m, stem, "ia3.out", rows, &out);
    if (status == NEB_OK && !bias) status = added_vector(st, m, stem, "ia3.in", cols, &in);
    for (int64_t r = 0; status == NEB_OK && r < rows; r++)
        for (int64_t i = 0; i < cols; i++) w[r * cols + i] *= (out ? out[r] : 1) * (in ? in[i] : 1);
    neb__free(out);
    neb__free(in);
    return status;
}

/* Adds the product of one pair to `rows` rows of a weight of `cols` columns. */
static neb_status merge_pair(const struct neb_st *st, const struct neb_peft *peft, const struct neb_model *m,
                             const char *stem, int64_t rows, int64_t cols, float *w)
{
    const struct neb_st_tensor *a = added_tensor(st, m, stem, "lora.a"),
                               *b = added_tensor(st, m, stem, "lora.b");
    if (!a) return NEB_OK;
    if (!b || a->rank != 2 || b->rank != 2 || a->shape[0] != b->shape[1] || a->shape[1] != cols ||
        b->shape[0] != rows)
        return neb__fail(NEB_ERR_CORRUPT, "the LoRA matrices of %s do not fit", stem);
    NEB_TRY(add_lora(a, b, peft->lora_scale, w));
    return merge_lengths(st, m, stem, rows, cols, w);
}

static neb_status merge_one(const struct neb_st *st, const struct neb_peft *peft, const struct neb_model *m,
                            const char *stem, int64_t rows, int64_t cols, bool bias, float *w)
{
    if (peft->lora && !bias) NEB_TRY(merge_pair(st, peft, m, stem, rows, cols, w));
    return peft->ia3 ? merge_factors(st, m, stem, rows, cols, bias, w) : NEB_OK;
}

/* Adds what the folder's methods added to a weight or a bias whose model lacks it: to the whole of it, and to its
 * parts. */
static neb_status merge_additions(struct neb_st *st, const struct neb_peft *peft, const struct neb_model *m,
                                  const struct neb_st_tensor *t, float *values)
{
    char stem[NEB_PATH], part[NEB_PATH + 8];
    struct neb_weight_part list[3];
    const char *last = strrchr(t->name, '.');
    const bool bias = last && !strcmp(last, ".bias") && t->rank == 1;
    if ((!peft->lora && !peft->ia3) || !last || last - t->name >= NEB_PATH) return NEB_OK;
    if (!bias && (strcmp(last, ".weight") || t->rank != 2)) return NEB_OK;
    const int64_t cols = bias ? 1 : t->shape[1];
    snprintf(stem, sizeof stem, "%.*s", (int)(last - t->name), t->name);
    const char *dot = strrchr(stem, '.');
    const int parts = neb__weight_parts(&m->arch, stem, list);
    float *at = values;
    for (int i = 0; i < parts; i++) {
        snprintf(part, sizeof part, "%.*s.%s", dot ? (int)(dot - stem) : 0, stem, list[i].name);
        NEB_TRY(merge_one(st, peft, m, part, list[i].rows, cols, bias, at));
        at += list[i].rows * cols;
    }
    return merge_one(st, peft, m, stem, t->shape[0], cols, bias, values);
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

/* The file's bytes are the parameter's, and nothing is merged with them. */
static bool as_it_is(const struct neb_st_tensor *t, const struct neb_peft *peft, const struct neb_model *m,
                     const neb_param *p)
{
    return t->type == NEB_ST_BF16 && neb__narrow_takes(p) && !peft->lora && !peft->ia3 &&
           !(p == m->token && m->token_base);
}

static neb_status load_one(struct neb_st *st, const struct neb_peft *peft, const struct neb_st_tensor *t,
                           const struct neb_model *m, neb_param *p)
{
    NEB_TRY(check_shape(t, p));
    if (as_it_is(t, peft, m, p)) return neb__narrow_put(p, t->data);
    float *values = neb__malloc((size_t)neb_param_values(p) * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = neb__st_to_f32(t, values);
    if (status == NEB_OK) status = merge_additions(st, peft, m, t, values);
    if (status == NEB_OK && p == m->token && m->token_base) status = subtract(m->token_base, values);
    if (status == NEB_OK) status = neb_param_write(p, values);
    neb__free(values);
    return status;
}

/* The segments of a folder whose model has none: the first one is a part of the positions. NULL: nothing is to be folded. */
static const struct neb_st_tensor *segments_to_fold(const struct neb_st *st, const struct neb_model *m)
{
    if (m->encoder.type || !m->encoder.position || m->arch.positions != NEB_POSITIONS_LEARNED) return NULL;
    return neb__st_find(st, "encoder.embed.type.weight");
}

/* values: of the positions p, to which the first segment is added. */
static neb_status add_segment(const struct neb_st_tensor *t, const neb_param *p, float *values)
{
    int64_t shape[4];
    neb_param_shape(p, shape);
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] != shape[1])
        return neb__fail(NEB_ERR_SHAPE, "%s has another width than this model", t->name);
    const size_t n = (size_t)neb_param_values(p), types = (size_t)(t->shape[0] * t->shape[1]);
    float *segments = neb__malloc(types * sizeof *segments);
    if (!segments) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = neb__st_to_f32(t, segments);
    for (size_t i = 0; status == NEB_OK && i < n; i++) values[i] += segments[i % (size_t)shape[1]];
    neb__free(segments);
    return status;
}

/* The positions come from the folder, too, where it has them: the parameter may have rounded them. */
static neb_status fold_segment(struct neb_st *st, struct neb_model *m)
{
    const struct neb_st_tensor *t = segments_to_fold(st, m),
                               *own = neb__st_find(st, "encoder.embed.position.weight");
    neb_param *p = m->encoder.position;
    if (!t) return NEB_OK;
    float *values = neb__malloc((size_t)neb_param_values(p) * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", t->name);
    neb_status status = own && same_shape(own, p) ? neb__st_to_f32(own, values) : neb_param_read(p, values);
    if (status == NEB_OK) status = add_segment(t, p, values);
    if (status == NEB_OK) status = neb_param_write(p, values);
    neb__free(values);
    return status;
}

/* Refuses a folder with adapters, prefixes or a prompt for a model that has no place for them. */
static neb_status keeps_additions(const struct neb_st *st, const struct neb_model_yaml *f,
                                  const struct neb_peft *peft, const struct neb_model *m, const char *match)
{
    const struct {
        bool lost;
        const char *part, *what, *method;
    } kinds[] = {{peft->adapter && !m->peft.adapter, ".adapter.", "adapters", "adapter"},
                 {peft->prefix && !m->peft.prefix, ".prefix.", "prefixes", "prefix"},
                 {peft->prompt && !m->peft.prompt, "embed.prompt.", "a prompt", "prompt"}};
    for (int i = 0; i < neb__st_count(st); i++) {
        const char *name = neb__st_at(st, i)->name;
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (!kinds[k].lost || !strstr(name, kinds[k].part) || !matches(match, name)) continue;
            return neb__fail(
                NEB_ERR_CONFIG,
                "the model in %s has %s (%s), which this one lacks: it would compute something else; "
                "choose a method with %s here, too",
                f->path, kinds[k].what, name, kinds[k].method);
        }
    }
    return NEB_OK;
}

neb_status neb__folder_read_frozen(const struct neb_model_yaml *f, const struct neb_model *m,
                                   const char *match, float *whole, bool *have)
{
    char file[NEB_MODEL_PATH + 32];
    struct neb_peft peft;
    struct neb_st *st;
    NEB_TRY(neb__peft_config_check(&f->peft, &peft));
    if (peft.lora || peft.ia3) return NEB_OK; /* loading merges them */
    snprintf(file, sizeof file, "%s/model.safetensors", f->path);
    NEB_TRY(neb__st_open(file, &st));
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < neb_params_count(m->params); i++) {
        const neb_param *p = neb_params_at(m->params, i);
        const char *name = neb__folder_name(m, p);
        if (!p->elsewhere || p->trainable || !name || !matches(match, name)) continue;
        const struct neb_st_tensor *t = neb__st_find(st, name);
        if (!t || !same_shape(t, p)) continue;
        status = neb__st_to_f32(t, whole + p->whole_offset);
        neb__st_forget(st, t);
        have[i] = status == NEB_OK;
    }
    neb__st_close(st);
    return status;
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
        if (!t && neb__dora_is_length(name)) continue;
        if (!t && all) return neb__fail(NEB_ERR_NOTFOUND, "%s has no parameter '%s'", f->path, name);
        if (!t) continue;
        NEB_TRY(load_one(st, &peft, t, m, p));
        n++;
    }
    *loaded = n;
    for (int i = 0; i < neb_params_count(m->params); i++) { /* lengths of weights that are known now */
        neb_param *p = neb_params_at(m->params, i);
        const char *name = neb__folder_name(m, p);
        if (name && neb__dora_is_length(name) && !neb__st_find(st, name)) NEB_TRY(neb__dora_fill(m, p));
    }
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

/* ---- one parameter after the other ----------------------------------------------------------------------- */

neb_status neb__folder_values_open(const struct neb_model_yaml *f, const struct neb_model *m,
                                   struct neb_folder_values *out)
{
    char file[NEB_MODEL_PATH + 32];
    *out = (struct neb_folder_values){.model = m};
    NEB_TRY(neb__peft_config_check(&f->peft, &out->peft));
    snprintf(file, sizeof file, "%s/model.safetensors", f->path);
    NEB_TRY(neb__st_open(file, &out->st));
    return keeps_additions(out->st, f, &out->peft, m, NULL);
}

void neb__folder_values_close(struct neb_folder_values *v)
{
    neb__st_close(v->st);
}

static bool has_addition(const struct neb_folder_values *v, const char *stem)
{
    static const char *const which[] = {"lora.a", "ia3.out", "ia3.in"};
    for (int i = 0; i < 3; i++)
        if (added_tensor(v->st, v->model, stem, which[i])) return true;
    return false;
}

/* Whether merge_additions() would change it. */
static bool is_merged(const struct neb_folder_values *v, const struct neb_st_tensor *t)
{
    char stem[NEB_PATH], part[NEB_PATH + 8];
    struct neb_weight_part list[3];
    const char *last = strrchr(t->name, '.');
    if ((!v->peft.lora && !v->peft.ia3) || !last || last - t->name >= NEB_PATH) return false;
    snprintf(stem, sizeof stem, "%.*s", (int)(last - t->name), t->name);
    const char *dot = strrchr(stem, '.');
    for (int i = neb__weight_parts(&v->model->arch, stem, list) - 1; i >= 0; i--) {
        snprintf(part, sizeof part, "%.*s.%s", dot ? (int)(dot - stem) : 0, stem, list[i].name);
        if (has_addition(v, part)) return true;
    }
    return has_addition(v, stem);
}

static neb_status find_tensor(const struct neb_folder_values *v, const neb_param *p,
                              const struct neb_st_tensor **out)
{
    const char *name = neb__folder_name(v->model, p);
    *out = name ? neb__st_find(v->st, name) : NULL;
    if (!*out) return neb__fail(NEB_ERR_NOTFOUND, "the folder has no parameter '%s'", neb_param_name(p));
    return check_shape(*out, p);
}

neb_status neb__folder_values_plain(const struct neb_folder_values *v, const neb_param *p,
                                    const struct neb_st_tensor **out)
{
    const struct neb_st_tensor *t;
    NEB_TRY(find_tensor(v, p, &t));
    const bool folded = p == v->model->encoder.position && segments_to_fold(v->st, v->model);
    *out = folded || is_merged(v, t) ? NULL : t;
    return NEB_OK;
}

neb_status neb__folder_values_make(const struct neb_folder_values *v, const neb_param *p, float *values)
{
    const struct neb_st_tensor *t, *segments = segments_to_fold(v->st, v->model);
    NEB_TRY(find_tensor(v, p, &t));
    NEB_TRY(neb__st_to_f32(t, values));
    NEB_TRY(merge_additions(v->st, &v->peft, v->model, t, values));
    return segments && p == v->model->encoder.position ? add_segment(segments, p, values) : NEB_OK;
}
