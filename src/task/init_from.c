/* init_from.c: where a model's parameters start when a job names folders: the values of one, or the mean of
 * several.
 *
 * Models that were tuned from one start lie close together, and their mean is often better than each of them.
 * Every folder's values go through the model's parameters, so that merging (folder_load.c) is the same for
 * one and for several. */
#include "base/log.h"
#include "base/mem.h"
#include "task/folder.h"
#include "task/init_from.h"

#include <string.h>

static neb_status load(const struct neb_job *job, const char *path, struct neb_model *m, int *loaded,
                       struct neb_hash *tokens)
{
    struct neb_model_yaml f;
    struct neb_tok *tok = NULL;
    *loaded = 0;
    *tokens = (struct neb_hash){0};
    NEB_TRY(neb__model_yaml_read(path, &f));
    neb_status status = neb__folder_load(&f, m, job->init.match, false, loaded);
    if (status == NEB_OK && f.tokenizer) status = neb__folder_tokenizer(&f, &tok);
    if (status == NEB_OK && tok) *tokens = *neb__tok_hash(tok);
    neb__tok_close(tok);
    neb__model_yaml_free(&f);
    NEB_TRY(status);
    if (!*loaded)
        return neb__doc_fail(&job->doc, "init", "init: %s has no parameter of this model%s%s", path,
                             job->init.match ? " that matches " : "", job->init.match ? job->init.match : "");
    return NEB_OK;
}

static int64_t values_of(const neb_params *params)
{
    int64_t n = 0;
    for (int i = 0; i < neb_params_count(params); i++) n += neb_param_values(neb_params_at(params, i));
    return n;
}

/* sum += the parameters' values; one: room for the largest of them. */
static neb_status add(neb_params *params, float *one, float *sum)
{
    for (int i = 0; i < neb_params_count(params); i++) {
        neb_param *p = neb_params_at(params, i);
        int64_t n = neb_param_values(p);
        NEB_TRY(neb_param_read(p, one));
        for (int64_t j = 0; j < n; j++) sum[j] += one[j];
        sum += n;
    }
    return NEB_OK;
}

static neb_status write_mean(neb_params *params, float *sum, int n)
{
    for (int i = 0; i < neb_params_count(params); i++) {
        neb_param *p = neb_params_at(params, i);
        for (int64_t j = 0; j < neb_param_values(p); j++) sum[j] /= (float)n;
        NEB_TRY(neb_param_write(p, sum));
        sum += neb_param_values(p);
    }
    return NEB_OK;
}

static neb_status load_mean(const struct neb_job *job, struct neb_model *m, float *one, float *sum,
                            int *loaded)
{
    char path[NEB_MODEL_PATH + 1], first[NEB_MODEL_PATH + 1];
    struct neb_hash tokens, of_first = {0};
    int n = 0;
    neb__list_part(job->init.from, 0, first, sizeof first);
    for (int found; neb__list_part(job->init.from, n, path, sizeof path); n++) {
        NEB_TRY(load(job, path, m, &found, &tokens));
        if (!n) *loaded = found, of_first = tokens;
        if (found != *loaded || !neb__hash_equal(&tokens, &of_first))
            return neb__doc_fail(&job->doc, "init",
                                 "init: %s and %s have no mean: they do not have the same %s", first, path,
                                 found != *loaded ? "parameters" : "tokenizer");
        NEB_TRY(add(m->params, one, sum));
    }
    return write_mean(m->params, sum, n);
}

neb_status neb__init_from(const struct neb_job *job, struct neb_model *m)
{
    char second[2];
    int loaded = 0;
    struct neb_hash tokens;
    neb_status status;
    if (neb__list_part(job->init.from, 1, second, sizeof second)) {
        size_t n = (size_t)values_of(m->params);
        float *room = NEB_NEW_ARRAY(float, 2 * n); /* the sum, and one folder's */
        if (!room) return neb__fail(NEB_ERR_NOMEM, "out of memory for the mean of %s", job->init.from);
        status = load_mean(job, m, room + n, room, &loaded);
        neb__free(room);
    } else {
        status = load(job, job->init.from, m, &loaded, &tokens);
    }
    NEB_TRY(status);
    neb__info("%d parameters start from %s", loaded, job->init.from);
    return NEB_OK;
}

neb_status neb__init_frozen(const struct neb_job *job, const struct neb_model *m, float *whole, bool *have)
{
    char second[2];
    struct neb_model_yaml f;
    if (!job->init.from || neb__list_part(job->init.from, 1, second, sizeof second)) return NEB_OK;
    NEB_TRY(neb__model_yaml_read(job->init.from, &f));
    neb_status status = neb__folder_read_frozen(&f, m, job->init.match, whole, have);
    neb__model_yaml_free(&f);
    return status;
}
