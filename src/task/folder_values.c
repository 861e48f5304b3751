/* folder_values.c: the parameters of a model as a file of safetensors: all of them, or the part of one stage.
 *
 * They are written one by one: the host needs memory for the largest of them, not for the model. Which type a frozen one has follows
 * from its values, so those are read twice. The file does not depend on where its values come from: the parts of all stages, joined
 * (folder_join.c), are the bytes of the whole. */
#include "base/mem.h"
#include "store/safetensors.h"
#include "task/folder.h"
#include "tensor/params.h"

#include <stdio.h>
#include <string.h>

struct writing {
    const struct neb_model *model;
    const neb_param **param; /* (n), beside the list */
    struct neb_st_tensor *list;
    int n;
    float *values; /* room for the largest parameter, and for the table that is added to it */
};

/* The bits of x in 16 of them; false: some would be lost. */
static bool as_bf16(float x, uint16_t *out)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    *out = (uint16_t)(bits >> 16);
    return !(bits & 0xFFFF);
}

/* The same with 5 bits of exponent, without infinities. */
static bool as_f16(float x, uint16_t *out)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, fraction = bits & 0x7FFFFF;
    const int exponent = (int)(bits >> 23 & 255) - 112; /* of a half, whose bias is 15 */
    *out = (uint16_t)(sign | (uint32_t)exponent << 10 | fraction >> 13);
    if (exponent > 0 && exponent < 31) return !(fraction & 0x1FFF);
    const int lost = 14 - exponent; /* below 2^-14 the first bit is written out */
    const uint32_t whole = fraction | 0x800000;
    if (!(bits & 0x7FFFFFFF)) *out = (uint16_t)sign;
    if (!(bits & 0x7FFFFFFF)) return true;
    if (exponent >= 31 || lost > 23) return false;
    *out = (uint16_t)(sign | whole >> lost);
    return !(whole & ((1u << lost) - 1));
}

static bool (*const ways[])(float, uint16_t *) = {as_bf16, as_f16};
static const enum neb_st_type types[] = {NEB_ST_BF16, NEB_ST_F16};

/* A frozen parameter that came in with 16 bits a value goes out so: nothing is lost, and half of the space is saved. */
static enum neb_st_type type_of(const float *values, int64_t n)
{
    uint16_t half;
    for (int k = 0; k < 2; k++) {
        int64_t i = 0;
        while (i < n && ways[k](values[i], &half)) i++;
        if (i == n) return types[k];
    }
    return NEB_ST_F32;
}

static void shrink(float *values, int64_t n, enum neb_st_type type)
{
    for (int64_t i = 0; i < n; i++) { /* a value is read before its place is written */
        uint16_t half;
        ways[type == NEB_ST_F16](values[i], &half);
        memcpy((uint8_t *)values + (size_t)i * sizeof half, &half, sizeof half);
    }
}

static neb_status read_values(const struct writing *w, const neb_param *p)
{
    const struct neb_model *m = w->model;
    const int64_t n = neb_param_values(p);
    NEB_TRY(neb_param_read(p, w->values));
    if (p != m->token || !m->token_base) return NEB_OK;
    NEB_TRY(neb_param_read(m->token_base, w->values + n));
    for (int64_t k = 0; k < n; k++) w->values[k] += w->values[n + k];
    return NEB_OK;
}

static neb_status list_param(struct writing *w, const neb_param *p, const char *name)
{
    int64_t shape[4] = {0};
    struct neb_st_tensor t = {.name = name, .type = NEB_ST_F32, .rank = neb_param_shape(p, shape)};
    const int64_t n = neb_param_values(p);
    memcpy(t.shape, shape, sizeof shape);
    if (!neb_param_trainable(p)) {
        NEB_TRY(read_values(w, p));
        t.type = type_of(w->values, n);
    }
    t.size = (uint64_t)n * neb__st_type_size(t.type);
    w->param[w->n] = p;
    w->list[w->n++] = t;
    return NEB_OK;
}

static neb_status make(void *arg, int i, neb_st_put put, void *sink)
{
    const struct writing *w = arg;
    const struct neb_st_tensor *t = &w->list[i];
    NEB_TRY(read_values(w, w->param[i]));
    if (t->type != NEB_ST_F32) shrink(w->values, neb_param_values(w->param[i]), t->type);
    return put(sink, w->values, t->size);
}

static neb_status list_all(struct writing *w, bool here)
{
    const neb_params *ps = w->model->params;
    for (int i = 0; i < neb_params_count(ps); i++) {
        const neb_param *p = neb_params_at(ps, i);
        const char *name = neb__folder_name(w->model, p);
        if (name && !(here && p->elsewhere)) NEB_TRY(list_param(w, p, name));
    }
    return NEB_OK;
}

static int64_t largest(const struct neb_model *m)
{
    int64_t most = m->token && m->token_base ? 2 * neb_param_values(m->token) : 1;
    for (int i = 0; i < neb_params_count(m->params); i++) {
        const int64_t n = neb_param_values(neb_params_at(m->params, i));
        if (n > most) most = n;
    }
    return most;
}

neb_status neb__folder_write_values(const char *file, const struct neb_model *m, bool here,
                                    const char *const *meta)
{
    const size_t n = (size_t)neb_params_count(m->params);
    struct writing w = {.model = m,
                        .param = NEB_NEW_ARRAY(const neb_param *, n),
                        .list = NEB_NEW_ARRAY(struct neb_st_tensor, n),
                        .values = neb__malloc((size_t)largest(m) * sizeof(float))};
    neb_status status = w.param && w.list && w.values
                            ? list_all(&w, here)
                            : neb__fail(NEB_ERR_NOMEM, "out of memory for writing %zu parameters", n);
    if (status == NEB_OK) status = neb__st_write_made(file, w.list, w.n, meta, 0600, make, &w);
    neb__free(w.values);
    neb__free(w.list);
    neb__free(w.param);
    return status;
}
