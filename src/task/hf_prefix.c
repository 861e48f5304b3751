/* hf_prefix.c: prefixes of the peft library: one table (tokens, layers · 2 · kv) of keys and values, layer by layer.
 *
 * There a text behind a prefix of P tokens begins at position P; here it begins at 0. With rotary positions only the distance
 * between query and key counts, and the prefix's keys are not turned: a key that is turned back by P positions gives the same
 * scores here. Learned positions leave no such way. */
#include "task/hf_peft.h"
#include "base/mem.h"
#include "tensor/rope_step.h"

#include <stdio.h>

neb_status neb__hf_prefix_check(const struct neb_arch *a, const char *path)
{
    if (a->kind == NEB_DECODER && a->positions == NEB_POSITIONS_ROPE) return NEB_OK;
    return neb__fail(
        NEB_ERR_UNSUPPORTED,
        "%s: only a decoder with rotary positions shares prefixes with the peft library, which moves a "
        "text's positions by the length of its prefix",
        path);
}

/* Turns every head of a row of keys by so many positions. */
static void turn(const struct neb_arch *a, double positions, float *key)
{
    const int64_t half = a->head_dim / 2;
    for (int64_t h = 0; h < a->kv_heads; h++, key += a->head_dim)
        for (int64_t j = 0; j < half; j++) {
            const double angle = positions * neb__rope_step(j, half, (double)a->rope_base, &a->rope_scale);
            const double x = (double)key[j], y = (double)key[j + half];
            key[j] = (float)(x * cos(angle) - y * sin(angle));
            key[j + half] = (float)(y * cos(angle) + x * sin(angle));
        }
}

/* values: (tokens, layers, 2, kv) there, (layers, 2, tokens, kv) here. */
static void carry(const struct neb_arch *a, int64_t layers, int64_t tokens, bool in, const float *from,
                  float *to)
{
    const int64_t kv = a->kv_heads * a->head_dim;
    for (int64_t l = 0; l < layers; l++)
        for (int64_t part = 0; part < 2; part++)
            for (int64_t t = 0; t < tokens; t++) {
                const int64_t theirs = ((t * layers + l) * 2 + part) * kv,
                              ours = ((l * 2 + part) * tokens + t) * kv;
                const float *x = from + (in ? theirs : ours);
                float *y = to + (in ? ours : theirs);
                for (int64_t i = 0; i < kv; i++) y[i] = x[i];
                if (!part) turn(a, in ? -(double)tokens : (double)tokens, y);
            }
}

void neb__hf_prefix_name(int64_t layer, int part, char out[NEB_HF_NAME])
{
    snprintf(out, NEB_HF_NAME, "decoder.layers.%d.attention.prefix.%s", (int)layer, part ? "value" : "key");
}

neb_status neb__hf_prefix_in(const struct neb_arch *a, int64_t layers, int64_t tokens,
                             const struct neb_st_tensor *t, float **out)
{
    const int64_t width = layers * 2 * a->kv_heads * a->head_dim, n = tokens * width;
    if (t->rank != 2 || t->shape[0] != tokens || t->shape[1] != width)
        return neb__fail(NEB_ERR_SHAPE,
                         "%.150s is %" PRId64 " x %" PRId64 "; %" PRId64 " x %" PRId64 " is needed", t->name,
                         t->rank > 0 ? t->shape[0] : 0, t->rank > 1 ? t->shape[1] : 1, tokens, width);
    float *theirs = NEB_NEW_ARRAY(float, (size_t)n), *ours = NEB_NEW_ARRAY(float, (size_t)n);
    neb_status status =
        theirs && ours ? neb__st_to_f32(t, theirs) : neb__fail(NEB_ERR_NOMEM, "out of memory for a prefix");
    if (status == NEB_OK) carry(a, layers, tokens, true, theirs, ours);
    neb__free(theirs);
    if (status != NEB_OK) neb__free(ours);
    if (status == NEB_OK) *out = ours;
    return status;
}

/* Our tensors, one behind the other. */
static neb_status gather(const struct neb_st *st, int64_t layers, int64_t size, int64_t tokens, float *to)
{
    char name[NEB_HF_NAME];
    for (int64_t i = 0; i < 2 * layers; i++) {
        neb__hf_prefix_name(i / 2, (int)(i % 2), name);
        const struct neb_st_tensor *t = neb__st_find(st, name);
        if (!t || t->rank != 2 || t->shape[0] != tokens || t->shape[0] * t->shape[1] != size)
            return neb__fail(NEB_ERR_CORRUPT, "%s is missing or does not fit", name);
        NEB_TRY(neb__st_to_f32(t, to + i * size));
    }
    return NEB_OK;
}

neb_status neb__hf_prefix_out(const struct neb_arch *a, int64_t layers, int64_t tokens,
                              const struct neb_st *st, float **out)
{
    const int64_t kv = a->kv_heads * a->head_dim, n = tokens * layers * 2 * kv;
    float *theirs = NEB_NEW_ARRAY(float, (size_t)n), *ours = NEB_NEW_ARRAY(float, (size_t)n);
    neb_status status = theirs && ours ? gather(st, layers, tokens * kv, tokens, ours)
                                       : neb__fail(NEB_ERR_NOMEM, "out of memory for a prefix");
    if (status == NEB_OK) carry(a, layers, tokens, false, ours, theirs);
    neb__free(ours);
    if (status != NEB_OK) neb__free(theirs);
    if (status == NEB_OK) *out = theirs;
    return status;
}
