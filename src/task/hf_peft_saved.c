/* hf_peft_saved.c: modules that the peft library saves whole beside an adapter (modules_to_save), as far as they belong to a head.
 *
 * Such a tensor stands in the place of the base's. Here that is the parameter itself, which peft.train names, so that a training goes on
 * with it and an export gives it back. An output of its own beside a base whose output is the token table unties the two, as there. */
#include "task/hf_peft.h"
#include "base/doc.h"

#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Parameters of a head that are the weight or the bias of a module of its own there. */
static const char *const heads[] = {"head.weight", "head.out.weight", "head.out.bias", "head.pool.weight",
                                    "head.pool.bias"};
enum { HEADS = sizeof heads / sizeof *heads };

/* The modules among them, by name: lm_head stands for lm_head and a.lm_head, and for what is below. */
bool neb__hf_saved_names(const json_t *list, const char *theirs)
{
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        const char *module = json_string_value(v), *at = theirs;
        const size_t n = module ? strlen(module) : 0;
        while (n && (at = strstr(at, module)) != NULL) {
            if ((at == theirs || at[-1] == '.') && at[n] == '.') return true;
            at++;
        }
    }
    return false;
}

bool neb__hf_saved_theirs(enum neb_hf_kind kind, const char *ours, char out[NEB_HF_NAME])
{
    struct neb_hf_source source;
    int i = 0;
    while (i < HEADS && strcmp(ours, heads[i]) != 0) i++;
    if (i == HEADS || neb__hf_source(kind, ours, true, &source) != NEB_OK || source.parts != 1 ||
        source.turned)
        return false;
    snprintf(out, NEB_HF_NAME, "%s", source.name[0]);
    return true;
}

const char *neb__hf_saved_ours(enum neb_hf_kind kind, const char *theirs)
{
    char name[NEB_HF_NAME];
    for (int i = 0; i < HEADS; i++)
        if (neb__hf_saved_theirs(kind, heads[i], name) && !strcmp(name, theirs)) return heads[i];
    return NULL;
}

static bool is_chosen(const struct neb_peft *p, const char *ours)
{
    char pattern[NEB_PATH];
    bool chosen = false;
    for (int i = 0; p->train && neb__list_part(p->train, i, pattern, sizeof pattern); i++)
        chosen |= !fnmatch(pattern, ours, 0);
    for (int i = 0; p->freeze && neb__list_part(p->freeze, i, pattern, sizeof pattern); i++)
        if (!fnmatch(pattern, ours, 0)) return false;
    return chosen;
}

/* RoBERTa's classifier is one module with both layers. */
static bool is_classifier(enum neb_hf_kind kind, const char *ours)
{
    char name[NEB_HF_NAME];
    return neb__hf_saved_theirs(kind, ours, name) && !strncmp(name, "classifier.", strlen("classifier."));
}

bool neb__hf_saved_chosen(enum neb_hf_kind kind, const struct neb_peft *p, const char *ours)
{
    bool any = is_chosen(p, ours);
    for (int i = 0; !any && is_classifier(kind, ours) && i < HEADS; i++)
        any = is_classifier(kind, heads[i]) && is_chosen(p, heads[i]);
    return any;
}

void neb__hf_saved_module(const char *theirs, char out[NEB_HF_NAME])
{
    const char *dot = strrchr(theirs, '.');
    snprintf(out, NEB_HF_NAME, "%.*s", dot ? (int)(dot - theirs) : 0, theirs); /* without .weight or .bias */
    if (!strncmp(theirs, "classifier.", strlen("classifier."))) out[strlen("classifier")] = 0;
}
