/* trained_layers.c: see trained_layers.h.
 *
 * Measuring takes the model with one layer and with a few. A pattern for layer 31 would match nothing there, so it is widened, and a
 * trained layer is measured. What a frozen one takes follows from the parts of a run: forward, gradient of the hidden states, and
 * gradient of the weights have as many multiplications each. */
#include "plan/trained_layers.h"
#include "nn/model.h"
#include "tensor/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char mark[] = "layers.";

/* The number, or class of numbers, in a pattern: *end behind it. NULL: any layer is meant, or none. */
static const char *number_in(const char *pattern, const char **end)
{
    const char *at = strstr(pattern, mark);
    if (!at) return NULL;
    at += sizeof mark - 1;
    *end = at + strcspn(at, ".");
    return *at == '*' || *at == '\0' ? NULL : at;
}

bool neb__patterns_of_any_layer(const char *list, bool train, char out[NEB_PATTERNS])
{
    char pattern[NEB_PATH], text[NEB_PATTERNS] = "";
    size_t n = 0;
    bool named = false;
    for (int i = 0; list && neb__list_part(list, i, pattern, sizeof pattern); i++) {
        const char *end = NULL, *number = number_in(pattern, &end);
        named |= number != NULL;
        if (number && !train) continue;
        const int head = number ? (int)(number - pattern) : (int)strlen(pattern);
        int k = snprintf(text + n, sizeof text - n, "%s%.*s%s%s", n ? "," : "", head, pattern,
                         number ? "*" : "", number ? end : "");
        if (k < 0 || (size_t)k >= sizeof text - n) return false;
        n += (size_t)k;
    }
    if (named) memcpy(out, text, sizeof text);
    return named;
}

/* The layer of both stacks that a parameter belongs to; -1: none. */
static int64_t layer_of(const struct neb_arch *a, const char *name)
{
    const char *at = strstr(name, mark);
    if (!at) return -1;
    const bool second = a->kind == NEB_ENCODER_DECODER && !strncmp(name, "decoder.", 8);
    return strtoll(at + sizeof mark - 1, NULL, 10) + (second ? a->layers : 0);
}

static void share_out(const struct neb_model *m, double *share, int64_t most)
{
    bool before = false;
    for (int64_t i = 0; i < most; i++) share[i] = 0;
    for (int i = 0; i < neb_params_count(m->params); i++) {
        const neb_param *p = neb_params_at(m->params, i);
        const int64_t layer = layer_of(&m->arch, neb_param_name(p));
        if (layer >= 0 && layer < most && p->trainable) share[layer] = 1;
        before |= layer < 0 && p->trainable && strstr(neb_param_name(p), "embed.");
    }
    for (int64_t i = 0; i < most; i++) {
        if (share[i] > 0) before = true;
        if (!(share[i] > 0)) share[i] = before ? 2.0 / 3 : 1.0 / 3;
    }
}

neb_status neb__trained_layers(const struct neb_data *data, double *share, int64_t most)
{
    char unused[NEB_PATTERNS];
    const struct neb_peft_config *peft = &data->job->peft;
    neb_params *ps = NULL;
    struct neb_model *m = NULL;
    for (int64_t i = 0; i < most; i++) share[i] = 1;
    if (!neb__patterns_of_any_layer(peft->train, true, unused) &&
        !neb__patterns_of_any_layer(peft->freeze, false, unused))
        return NEB_OK;
    NEB_TRY(neb_params_create(&ps));
    neb_status status = neb__model_create(&data->models.model, peft, "", NULL, ps, &m);
    if (status == NEB_OK) share_out(m, share, most);
    neb__model_destroy(m);
    neb_params_destroy(ps);
    return status;
}
