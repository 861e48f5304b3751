/* objective.c: looking up the rows of objective.h, and listing them for messages. */
#include "job/objective.h"

#include <stdio.h>
#include <string.h>

const struct neb_objective *neb__objective_named(const char *name)
{
    for (int i = 0; name && neb__objectives[i]; i++)
        if (!strcmp(name, neb__objectives[i]->name)) return neb__objectives[i];
    return NULL;
}

const struct neb_objective *neb__objective_of_model(const char *kind, const char *head)
{
    for (int i = 0; neb__objectives[i]; i++)
        if (!strcmp(kind, neb__objectives[i]->kind) && !strcmp(head, neb__objectives[i]->head))
            return neb__objectives[i];
    return NULL;
}

const char *neb__objective_list(bool (*fits)(const struct neb_objective *o), char *out, size_t size)
{
    const char *last = NULL;
    size_t used = 0;
    *out = 0;
    for (int i = 0; neb__objectives[i]; i++) {
        const struct neb_objective *o = neb__objectives[i];
        if (!o->steps || (fits && !fits(o))) continue;
        if (last && used < size)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", last);
        last = o->name;
    }
    if (last && used < size) snprintf(out + used, size - used, "%s%s", used ? " or " : "", last);
    return out;
}

neb_status neb__objective_adopt(const struct neb_objective *o, struct neb_model_config *m)
{
    NEB_TRY(neb__opts_set(neb__model_options, m, "head", o->head));
    for (int i = 0; o->options && o->options[i][0]; i++)
        NEB_TRY(neb__opts_set(neb__model_options, m, o->options[i][0], o->options[i][1]));
    return NEB_OK;
}
