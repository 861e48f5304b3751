/* peft.c: which of a model's parameters are trained.
 *
 * The order is: everything (full) or nothing; the parts that the methods added or name; `train`; `freeze`.
 * Frozen weights of the layers may be kept in few bits (tensor/narrow.h). Tables that are computed, not learned, are always frozen. Patterns are relative to the model's own prefix,
 * so two models in one parameter set do not touch each other. A pattern that matches nothing is refused as a
 * typing error, because silently training the wrong set costs days. */
#include "nn/model.h"
#include "tensor/narrow.h"

#include <fnmatch.h>

/* Sets only parameters that this model added, because another model's names may match, too. */
static int set_matching(const struct neb_builder *b, const char *pattern, bool trainable)
{
    int n = 0;
    for (int i = b->first; i < neb_params_count(b->params); i++) {
        const char *name = neb_param_name(neb_params_at(b->params, i));
        if (fnmatch(pattern, name + b->root, 0)) continue;
        neb_params_trainable(b->params, name, trainable);
        n++;
    }
    return n;
}

static neb_status set_list(const struct neb_builder *b, const char *option, const char *list, bool trainable)
{
    char pattern[NEB_PATH];
    for (int i = 0; neb__list_part(list, i, pattern, sizeof pattern); i++)
        if (!set_matching(b, pattern, trainable))
            return neb__fail(NEB_ERR_CONFIG, "option '%s': no parameter of the model matches '%s'", option,
                             pattern);
    return NEB_OK;
}

/* Weights between hidden states are nearly all of a model. Embeddings, norms, biases and heads keep their values. */
static neb_status keep_narrow(const struct neb_builder *b, neb_narrow_kind kind)
{
    for (int i = b->first; kind && i < neb_params_count(b->params); i++) {
        neb_param *p = neb_params_at(b->params, i);
        if (p->hidden && !p->trainable) NEB_TRY(neb__param_make_narrow(p, kind));
    }
    return NEB_OK;
}

neb_status neb__peft_apply(struct neb_model *m, const struct neb_builder *b)
{
    const struct neb_peft *p = &m->peft;
    if (p->lora && !b->lora_layers)
        return neb__fail(NEB_ERR_CONFIG, "option 'lora_on': no linear layer of the model matches '%s'",
                         p->lora_on);
    if (p->ia3 && !b->ia3_layers)
        return neb__fail(NEB_ERR_CONFIG,
                         "options 'ia3_on', 'ia3_in': no linear layer of the model matches '%s' or '%s'",
                         p->ia3_on ? p->ia3_on : "", p->ia3_in ? p->ia3_in : "");
    if (!p->full) set_matching(b, "*", false);
    if (p->lora) set_matching(b, "*.lora.[abm]", true);
    if (p->ia3) set_matching(b, "*.ia3.*", true);
    if (p->adapter) set_matching(b, "*.adapter.*", true);
    if (p->prompt) set_matching(b, "embed.prompt.weight", true);
    if (p->prefix) set_matching(b, "*.prefix.*", true);
    if (p->bias && !set_matching(b, "*.bias", true))
        return neb__fail(NEB_ERR_CONFIG, "option 'method': 'bias' trains nothing on a model without biases");
    NEB_TRY(set_list(b, "train", p->train, true));
    NEB_TRY(set_list(b, "freeze", p->freeze, false));
    set_matching(b, "*.embed.sinusoid.weight", false);
    return keep_narrow(b, p->keep);
}
