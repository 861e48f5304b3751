/* hf_peft_matrices.c: the matrices of a model that may have LoRA, under our names and under theirs. */
#include "task/hf_peft.h"
#include "base/mem.h"
#include "tensor/params.h"

#include <stdio.h>
#include <string.h>

static neb_status add(struct neb_hf_matrices *m, const struct neb_hf_matrix *x)
{
    if (m->n == m->room) {
        int room = m->room ? 2 * m->room : 256;
        struct neb_hf_matrix *list = neb__realloc(m->list, (size_t)room * sizeof *list);
        if (!list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d matrices", room);
        m->list = list;
        m->room = room;
    }
    m->list[m->n++] = *x;
    return NEB_OK;
}

static void without_weight(const char *name, char out[NEB_HF_NAME])
{
    size_t n = strlen(name), tail = strlen(".weight");
    snprintf(out, NEB_HF_NAME, "%.*s", (int)(n > tail && !strcmp(name + n - tail, ".weight") ? n - tail : n),
             name);
}

/* The matrices of one weight of ours. */
static neb_status add_weight(struct neb_hf_matrices *m, enum neb_hf_kind kind, const struct neb_arch *a,
                             const neb_param *p)
{
    struct neb_hf_source source;
    struct neb_weight_part parts[3];
    struct neb_hf_matrix x = {.first = 0};
    int64_t shape[4] = {0};
    const char *name = neb_param_name(p);
    if (neb_param_shape(p, shape) != 2 || !strstr(name, ".layers.") ||
        neb__hf_source(kind, name, a->head != NEB_HEAD_NONE, &source) != NEB_OK)
        return NEB_OK;
    without_weight(name, x.fused);
    x.cols = shape[1];
    const char *dot = strrchr(x.fused, '.');
    const int count = source.parts > 1 ? neb__weight_parts(a, x.fused, parts) : 0;
    if (count != (source.parts > 1 ? source.parts : 0)) return NEB_OK;
    for (int i = 0; i < source.parts; i++) {
        snprintf(x.ours, NEB_HF_NAME, "%s", x.fused);
        if (count) snprintf(x.ours, NEB_HF_NAME, "%.*s.%s", (int)(dot - x.fused), x.fused, parts[i].name);
        without_weight(source.name[i], x.theirs);
        x.rows = count ? parts[i].rows : shape[0];
        NEB_TRY(add(m, &x));
        x.first += x.rows;
    }
    return NEB_OK;
}

/* All matrices that may have LoRA. */
neb_status neb__hf_matrices_list(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                                 struct neb_hf_matrices *out)
{
    neb_params *params;
    struct neb_model *model = NULL;
    NEB_TRY(neb_params_create(&params));
    neb_status status = neb__model_create(&f->model, NULL, "", NULL, params, &model);
    if (status == NEB_OK) status = params->failed;
    for (int i = 0; status == NEB_OK && i < neb_params_count(params); i++)
        status = add_weight(out, kind, &model->arch, neb_params_at(params, i));
    neb__model_destroy(model);
    neb_params_destroy(params);
    return status;
}

const char *neb__hf_last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

void neb__hf_matrices_free(struct neb_hf_matrices *m)
{
    neb__free(m->list);
    *m = (struct neb_hf_matrices){0};
}
