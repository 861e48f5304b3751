/* site_weights.c: see site_weights.h.
 *
 * A site is as fast as its train.speed, or else as its threads times its processes, where every site says that of itself and they differ. A trained
 * value takes 16 bytes, a frozen one 4; a row in flight keeps about 12 hidden states and 3 of the feed-forward's in each layer. */
#include "task/site_weights.h"
#include "base/log.h"
#include "base/mem.h"
#include "nn/model.h"
#include "tensor/params.h"

#include <stdio.h>
#include <string.h>

struct said {
    int64_t memory, threads, data, tensor;
    double speed;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct said, memory, NEB_OPT_BYTES, "0", NULL, ""),
    NEB_OPT(struct said, threads, NEB_OPT_INT, "0", NULL, ""),
    NEB_OPT(struct said, speed, NEB_OPT_REAL, "0", NULL, ""),
    NEB_OPT(struct said, data, NEB_OPT_INT, "1", NULL, ""),
    NEB_OPT(struct said, tensor, NEB_OPT_INT, "1", NULL, ""),
    NEB_OPT_END,
};

static void take(const struct neb_job *j, const char *section, struct said *to)
{
    const size_t n = strlen(section);
    for (int i = 0; i < j->doc.n; i++) {
        const struct neb_doc_entry *e = &j->doc.list[i];
        if (strncmp(e->path, section, n) || e->path[n] != '.') continue;
        for (const struct neb_opt *o = table; o->name; o++)
            if (!strcmp(o->name, e->path + n + 1)) (void)neb__opts_set(table, to, o->name, e->value);
    }
}

/* The layout of a site that chooses it is not known to the others. */
static bool chooses(const struct neb_job *j, int site)
{
    char path[48];
    snprintf(path, sizeof path, "sites[%d].parallel.auto", site);
    for (int i = 0; i < j->doc.n; i++)
        if (!strcmp(j->doc.list[i].path, path)) return true;
    return false;
}

void neb__site_weights(const struct neb_job *j, struct neb_site_weights *out)
{
    struct neb_site_weights w = {.paced = true};
    struct said common = {.data = 1, .tensor = 1};
    bool speeds = true;
    const bool before = neb__log_hush(true);
    take(j, "train", &common);
    for (int i = 0; i < j->n_sites; i++) {
        char train[32], parallel[32];
        struct said own = {.data = 1, .tensor = 1};
        snprintf(train, sizeof train, "sites[%d].train", i);
        snprintf(parallel, sizeof parallel, "sites[%d].parallel", i);
        take(j, train, &own);
        if (!chooses(j, i)) take(j, parallel, &own);
        w.site[i].bytes = (double)(own.memory > 0 ? own.memory : common.memory) * (double)own.tensor;
        w.site[i].speed = (double)(own.threads * own.data * own.tensor);
        w.limited |= w.site[i].bytes > 0;
        speeds &= own.speed > 0;
        w.paced &= w.site[i].speed > 0;
    }
    for (int i = 0; speeds && i < j->n_sites; i++) {
        struct said own = {.data = 1, .tensor = 1};
        char train[32];
        snprintf(train, sizeof train, "sites[%d].train", i);
        take(j, train, &own);
        w.site[i].speed = own.speed;
        w.paced = true;
    }
    bool alike = true;
    for (int i = 1; i < j->n_sites; i++) alike &= w.site[i].speed == w.site[0].speed;
    w.paced &= !alike;
    for (int i = 0; !w.paced && i < j->n_sites; i++) w.site[i].speed = 1;
    neb__log_hush(before);
    *out = w;
}

static neb_status bytes_of_layer(const struct neb_job *j, const struct neb_model_config *model, int64_t layer,
                                 double *bytes)
{
    const struct neb_stage_range range = {layer, layer + 1};
    struct neb_model *m = NULL;
    neb_params *ps;
    NEB_TRY(neb_params_create(&ps));
    neb_status status = neb__model_create_stage(model, &j->peft, &range, NULL, ps, &m);
    *bytes = 0;
    for (int i = 0; status == NEB_OK && i < ps->count; i++)
        if (!ps->list[i]->elsewhere)
            *bytes += (ps->list[i]->trainable ? 16.0 : 4.0) * (double)neb_param_values(ps->list[i]);
    neb__model_destroy(m);
    neb_params_destroy(ps);
    return status;
}

neb_status neb__site_layer_bytes(const struct neb_job *j, const struct neb_model_config *model,
                                 const struct neb_arch *a, double **bytes)
{
    const int64_t layers = neb__stage_layers(a);
    const double kept = 4.0 * (double)j->train.tokens * (12.0 * (double)a->hidden + 3.0 * (double)a->ffn);
    double *list = NEB_NEW_ARRAY(double, (size_t)layers);
    neb_status status =
        list ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " layers", layers);
    for (int64_t i = 0; status == NEB_OK && i < layers; i++) {
        status = bytes_of_layer(j, model, i, &list[i]);
        list[i] += kept;
    }
    if (status == NEB_OK)
        *bytes = list;
    else
        neb__free(list);
    return status;
}
