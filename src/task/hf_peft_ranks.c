/* hf_peft_ranks.c: LoRA whose matrices have ranks and alphas of their own (rank_pattern, alpha_pattern), as EVA makes it.
 *
 * Here all pairs have one rank and one scale. A smaller pair gets zeros up to the largest rank, in both matrices: their
 * product stays, and so do the zeros in training, because each one's gradient is a product with the other. What its scale
 * differs by is multiplied into the second matrix.
 *
 * The keys of the patterns are regular expressions there, matched at the end of a name behind a dot. Names are read, also with ^ in
 * front or \. for a dot; anything more is refused. */
#include "task/hf_peft.h"
#include "base/mem.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static neb_status refuse(const char *key, const char *what)
{
    return neb__fail(NEB_ERR_UNSUPPORTED, "adapter_config.json, '%.60s': %s", key, what);
}

/* The name that a key spells; false: it is more than a name. */
static bool spell(const char *key, bool *whole, char out[NEB_HF_NAME])
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    size_t n = 0;
    *whole = *key == '^';
    for (key += *whole; *key && n < NEB_HF_NAME - 1; key++) {
        if (*key == '\\' && key[1] == '.') key++;
        if (!strchr(fine, *key)) return false;
        out[n++] = *key;
    }
    out[n] = 0;
    return n && !*key;
}

static neb_status check_pattern(const json_t *j, const char *key, double least, double most, json_t **out)
{
    char name[NEB_HF_NAME];
    bool whole;
    const char *inner;
    json_t *v, *all = json_object_get(j, key);
    if (neb__hf_says_nothing(all)) return NEB_OK;
    if (!json_is_object(all)) return refuse(key, "is not an object");
    json_object_foreach(all, inner, v)
    {
        if (!spell(inner, &whole, name))
            return neb__fail(
                NEB_ERR_UNSUPPORTED,
                "adapter_config.json, '%s': '%.100s' is a regular expression; only names are supported", key,
                inner);
        const double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= least && x <= most))
            return refuse(key, "has a value that is not possible");
        if (least >= 1 && !json_is_integer(v)) return refuse(key, "has a rank that is not a whole number");
    }
    *out = json_incref(all);
    return NEB_OK;
}

neb_status neb__hf_ranks_read(const json_t *j, struct neb_hf_ranks *r)
{
    NEB_TRY(neb__hf_whole(j, "r", -1, &r->rank));
    NEB_TRY(neb__hf_real(j, "lora_alpha", 8, &r->alpha)); /* the library's default */
    NEB_TRY(neb__hf_flag(j, "use_rslora", false, &r->rslora));
    if (r->rank < 1 || r->rank > NEB_HF_MAX_RANK) return refuse("r", "is not a rank from 1 to 4096");
    NEB_TRY(check_pattern(j, "rank_pattern", 1, NEB_HF_MAX_RANK, &r->ranks));
    return check_pattern(j, "alpha_pattern", 1e-9, 1e9, &r->alphas);
}

void neb__hf_ranks_free(struct neb_hf_ranks *r)
{
    json_decref(r->ranks);
    json_decref(r->alphas);
    *r = (struct neb_hf_ranks){0};
}

/* The value of the first key that matches, or the fallback. */
static double value_of(json_t *pattern, const char *theirs, double fallback)
{
    char name[NEB_HF_NAME];
    bool whole;
    const char *key;
    json_t *v;
    json_object_foreach(pattern, key, v)
    {
        const size_t all = strlen(theirs);
        if (!spell(key, &whole, name)) continue;
        const size_t n = strlen(name);
        if (n > all || strcmp(theirs + all - n, name) != 0) continue;
        if (n == all || (!whole && theirs[all - n - 1] == '.')) return json_number_value(v);
    }
    return fallback;
}

int64_t neb__hf_ranks_of(const struct neb_hf_ranks *r, const char *theirs)
{
    return (int64_t)value_of(r->ranks, theirs, (double)r->rank);
}

double neb__hf_ranks_scale(const struct neb_hf_ranks *r, const char *theirs)
{
    const double rank = (double)neb__hf_ranks_of(r, theirs);
    return value_of(r->alphas, theirs, r->alpha) / (r->rslora ? sqrt(rank) : rank);
}

neb_status neb__hf_ranks_widen(struct neb_st_tensor *t, bool second, int64_t rank, double times,
                               float **owned)
{
    const int64_t rows = second ? t->shape[0] : rank, cols = second ? rank : t->shape[1];
    const int64_t have = t->shape[1]; /* values of a row */
    if ((second ? t->shape[1] : t->shape[0]) == rank && !(times < 1) && !(times > 1)) return NEB_OK;
    float *from = NEB_NEW_ARRAY(float, (size_t)(t->shape[0] * t->shape[1]));
    float *to = NEB_NEW_ARRAY(float, (size_t)(rows * cols));
    neb_status status = from && to ? neb__st_to_f32(t, from)
                                   : neb__fail(NEB_ERR_NOMEM, "out of memory for '%.150s'", t->name);
    for (int64_t i = 0; status == NEB_OK && i < t->shape[0]; i++)
        for (int64_t k = 0; k < have; k++) to[i * cols + k] = (float)(times * (double)from[i * have + k]);
    neb__free(from);
    if (status != NEB_OK) {
        neb__free(to);
        return status;
    }
    t->type = NEB_ST_F32;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->size = (uint64_t)(rows * cols) * sizeof *to;
    t->data = *owned = to;
    return NEB_OK;
}
