/* job_parallel.c: how many processes a site has, and whether its layout fits the job. */
#include "job/job.h"
#include "base/mem.h"

#include <string.h>

int neb__job_ranks(const struct neb_job *j)
{
    return (int)(j->parallel.data * j->parallel.tensor * j->parallel.pipeline);
}

/* ---- auto --------------------------------------------------------------------------------------------------- */

static bool is_parallel(const char *path)
{
    const char *rest = strncmp(path, "sites[", 6) ? path : strchr(path, ']');
    if (rest != path && rest) rest += rest[1] == '.' ? 2 : 1;
    return rest && !strcmp(rest, "parallel");
}

/* Takes the value of `path` out of the document. NULL: there is none. */
static char *take_out(struct neb_doc *d, const char *path)
{
    for (int i = 0; i < d->n; i++) {
        if (strcmp(d->list[i].path, path)) continue;
        char *value = d->list[i].value;
        neb__free(d->list[i].path);
        memmove(&d->list[i], &d->list[i + 1], (size_t)(--d->n - i) * sizeof *d->list);
        return value;
    }
    return NULL;
}

/* A word of the command line (parallel.auto=no) wins over the file's `parallel: auto`. */
neb_status neb__job_gather_parallel(struct neb_job *j)
{
    for (int i = 0; i < j->doc.n; i++) {
        char path[64];
        if (!is_parallel(j->doc.list[i].path) || strcmp(j->doc.list[i].value, "auto")) continue;
        snprintf(path, sizeof path, "%.50s.auto", j->doc.list[i].path);
        char *said = take_out(&j->doc, path);
        char *name = neb__strdup(path), *value = said ? said : neb__strdup("yes");
        struct neb_doc_entry *e = &j->doc.list[i]; /* the word comes behind the file's lines */
        if (!name || !value) {
            neb__free(name);
            neb__free(value);
            return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", path);
        }
        neb__free(e->path);
        neb__free(e->value);
        e->path = name;
        e->value = value;
    }
    return NEB_OK;
}

void neb__job_layout_words(const struct neb_job *j, const struct neb_job_parallel *p,
                           char word[NEB_JOB_LAYOUT_WORDS][NEB_JOB_WORD])
{
    char section[40] = "parallel", own[48];
    snprintf(own, sizeof own, "sites[%d].parallel.auto", j->at);
    for (int i = 0; j->at >= 0 && i < j->doc.n; i++)
        if (!strcmp(j->doc.list[i].path, own)) snprintf(section, sizeof section, "sites[%d].parallel", j->at);
    snprintf(word[0], NEB_JOB_WORD, "%s.auto=no", section);
    snprintf(word[1], NEB_JOB_WORD, "%s.data=%" PRId64, section, p->data);
    snprintf(word[2], NEB_JOB_WORD, "%s.tensor=%" PRId64, section, p->tensor);
    snprintf(word[3], NEB_JOB_WORD, "%s.pipeline=%" PRId64, section, p->pipeline);
    snprintf(word[4], NEB_JOB_WORD, "%s.zero=%" PRId64, section, p->zero);
    snprintf(word[5], NEB_JOB_WORD, "%s.sequence=%s", section, p->sequence ? "yes" : "no");
    snprintf(word[6], NEB_JOB_WORD, "%s.offload=%s", section, p->offload);
}

neb_status neb__job_take_layout(struct neb_job *j, const struct neb_job_parallel *p)
{
    char word[NEB_JOB_LAYOUT_WORDS][NEB_JOB_WORD], section[40];
    neb__job_layout_words(j, p, word);
    snprintf(section, sizeof section, "%.*s", (int)(strstr(word[0], ".auto=") - word[0]), word[0]);
    for (int i = 0; i < NEB_JOB_LAYOUT_WORDS; i++) NEB_TRY(neb__doc_override(&j->doc, word[i]));
    NEB_TRY(neb__doc_bind(&j->doc, section, neb__job_parallel_options, &j->parallel, NULL));
    j->parallel.chosen = true;
    return NEB_OK;
}

static const char *const layout_keys[] = {"data", "tensor", "pipeline", "zero", "sequence", "offload"};
enum { LAYOUT_KEYS = (int)(sizeof layout_keys / sizeof *layout_keys) };

static bool has_key(const struct neb_job *j, const char *section, const char *key)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", section, key);
    for (int i = 0; i < j->doc.n; i++)
        if (!strcmp(j->doc.list[i].path, path)) return true;
    return false;
}

void neb__job_prefer_own_layout(struct neb_job *j)
{
    char own[40];
    snprintf(own, sizeof own, "sites[%d].parallel", j->at);
    for (int i = 0; i < LAYOUT_KEYS && !has_key(j, own, "auto"); i++)
        if (has_key(j, own, layout_keys[i])) j->parallel.automatic = false;
}

static neb_status check_auto(const struct neb_job *j)
{
    const struct neb_job_parallel *p = &j->parallel;
    if (!p->automatic) return NEB_OK;
    if (p->data * p->tensor * p->pipeline == 1 && !p->zero && !p->sequence && !strcmp(p->offload, "none"))
        return NEB_OK;
    return neb__doc_fail(&j->doc, "parallel.auto",
                         "parallel: auto chooses data, tensor, pipeline, zero, sequence and offload by "
                         "itself; leave them out, or "
                         "say auto: no");
}

/* ---- does it fit? ------------------------------------------------------------------------------------------- */

static const char *line_of(const struct neb_job *j, const char *key, char *out, size_t size)
{
    snprintf(out, size, "sites[%d].parallel.%s", j->at, key);
    for (int i = 0; i < j->doc.n; i++)
        if (!strcmp(j->doc.list[i].path, out)) return out;
    snprintf(out, size, "parallel.%s", key);
    return out;
}

static neb_status check_parts(const struct neb_job *j)
{
    const struct neb_job_parallel *p = &j->parallel;
    char at[64];
    if (strcmp(p->offload, "none") && !strcmp(j->train.optimizer, "muon"))
        return neb__doc_fail(
            &j->doc, line_of(j, "offload", at, sizeof at),
            "%s is %s: Muon needs whole matrices of its momentum on the device; leave it out, share the "
            "state among processes (parallel.zero), or use train.optimizer: adamw",
            at, p->offload);
    if (!p->sequence) return NEB_OK;
    line_of(j, "sequence", at, sizeof at);
    if (p->tensor == 1)
        return neb__doc_fail(
            &j->doc, at, "%s: the processes that share a layer share its rows, too, but parallel.tensor is 1",
            at);
    if (p->zero > 1)
        return neb__doc_fail(
            &j->doc, at,
            "%s and parallel.zero %" PRId64
            ": gradients of shared rows are added up before they are shared out; use zero 0 or 1",
            at, p->zero);
    return NEB_OK;
}

static neb_status check_tensor(const struct neb_job *j)
{
    const int64_t n = j->parallel.tensor;
    const struct neb_model_config *m = &j->model;
    char at[64];
    if (n == 1) return NEB_OK;
    line_of(j, "tensor", at, sizeof at);
    const struct {
        const char *name;
        int64_t value;
    } cut[] = {{"heads", m->heads}, {"kv_heads", m->kv_heads}, {"ffn", m->ffn}};
    for (int i = 0; i < 3; i++)
        if (cut[i].value > 0 && cut[i].value % n)
            return neb__doc_fail(&j->doc, at,
                                 "%s is %" PRId64 ", but model.%s is %" PRId64 ", which %" PRId64
                                 " processes cannot share equally",
                                 at, n, cut[i].name, cut[i].value, n);
    if (j->objective->generator || j->distill.teacher)
        return neb__doc_fail(&j->doc, at,
                             "%s is %" PRId64
                             ": an objective with a generator or a teacher needs tensor 1; use "
                             "parallel.data",
                             at, n);
    return NEB_OK;
}

static bool hides_samples(const struct neb_job *j)
{
    return !strcmp(j->privacy.unit, "sample");
}

/* A sample's gradient is clipped as a whole, by the process that ran it. */
static neb_status check_private(const struct neb_job *j)
{
    const struct neb_job_parallel *p = &j->parallel;
    const char *key = NULL;
    char at[64];
    if (!hides_samples(j)) return NEB_OK;
    if (strcmp(p->offload, "none")) key = "offload";
    if (p->zero > 1) key = "zero";
    if (p->pipeline > 1) key = "pipeline";
    if (p->tensor > 1) key = "tensor";
    if (key)
        return neb__doc_fail(&j->doc, line_of(j, key, at, sizeof at),
                             "%s and privacy.unit: sample: a sample's gradient is clipped whole, at one "
                             "process; use parallel.data alone, with zero 0 or 1",
                             at);
    if (p->data > j->privacy.samples)
        return neb__doc_fail(&j->doc, line_of(j, "data", at, sizeof at),
                             "%s is %" PRId64 ", but a step has %" PRId64
                             " samples on average (privacy.samples): processes would have nothing to do; "
                             "use fewer, or more samples",
                             at, p->data, j->privacy.samples);
    return NEB_OK;
}

static neb_status check_data(const struct neb_job *j)
{
    const struct neb_job_parallel *p = &j->parallel;
    char at[64];
    if (p->zero && p->data == 1)
        return neb__doc_fail(&j->doc, line_of(j, "zero", at, sizeof at),
                             "%s is %" PRId64 ", but there is one process: parallel.data says how many "
                             "share the optimizer's state",
                             at, p->zero);
    if (hides_samples(j)) return NEB_OK; /* its micro-batches are samples */
    if (p->data > j->train.micro)
        return neb__doc_fail(&j->doc, line_of(j, "data", at, sizeof at),
                             "%s is %" PRId64 ", but a step has %" PRId64
                             " micro-batches (train.micro): every process needs at least one; make "
                             "train.micro a multiple of %" PRId64 " and train.tokens smaller",
                             at, p->data, j->train.micro, p->data);
    if (p->zero > 1 && j->train.micro % p->data)
        return neb__doc_fail(&j->doc, line_of(j, "data", at, sizeof at),
                             "%s is %" PRId64 " and train.micro %" PRId64 ": with parallel.zero %" PRId64
                             " every process runs as many micro-batches as the others; make train.micro a "
                             "multiple of %" PRId64,
                             at, p->data, j->train.micro, p->zero, p->data);
    return NEB_OK;
}

static int64_t layers_of(const struct neb_model_config *m)
{
    bool both = m->kind && !strcmp(m->kind, "encoder-decoder");
    int64_t second = m->decoder_layers ? m->decoder_layers : m->layers;
    return both ? m->layers + second : m->layers;
}

static neb_status check_pipeline(const struct neb_job *j)
{
    const struct neb_job_parallel *p = &j->parallel;
    char at[64];
    if (p->pipeline < 2) return NEB_OK;
    line_of(j, "pipeline", at, sizeof at);
    if (!j->init.from && p->pipeline > layers_of(&j->model))
        return neb__doc_fail(&j->doc, at,
                             "%s is %" PRId64 ", but the model has %" PRId64
                             " layers: every stage needs at least one",
                             at, p->pipeline, layers_of(&j->model));
    if (j->train.micro / p->data < p->pipeline)
        return neb__doc_fail(
            &j->doc, at,
            "%s is %" PRId64 ", but each of the %" PRId64 " copies of the model gets %" PRId64
            " micro-batches a step (train.micro is %" PRId64
            "): with fewer than stages most of them idle; make train.micro %" PRId64
            " or more and train.tokens smaller",
            at, p->pipeline, p->data, j->train.micro / p->data, j->train.micro, p->pipeline * p->data);
    if (p->zero > 1)
        return neb__doc_fail(
            &j->doc, at,
            "%s is %" PRId64 " and parallel.zero %" PRId64
            ": stages of a pipeline keep their gradients and parameters; use zero 0 or 1, or "
            "more stages",
            at, p->pipeline, p->zero);
    if (!j->objective->stages || j->distill.teacher)
        return neb__doc_fail(&j->doc, at, "%s is %" PRId64 ": %s", at, p->pipeline,
                             j->distill.teacher ? "a student is trained as a whole; use parallel.data"
                                                : "this task has two models, which are not cut into stages; "
                                                  "use parallel.data");
    return NEB_OK;
}

/* The ranks of a site that has a stage. Copies of it take what has come, each at its own time: so they cannot exchange inside a
 * run. */
static neb_status check_stage(const struct neb_job *j, const char *at)
{
    const struct neb_job_parallel *p = &j->parallel;
    if (p->pipeline > 1)
        return neb__doc_fail(&j->doc, at,
                             "%s is %" PRId64
                             ": the site has one stage of the model between sites; cut that one no "
                             "further, use data and tensor",
                             at, p->pipeline);
    if (p->zero > 1)
        return neb__doc_fail(
            &j->doc, at,
            "%s and parallel.zero %" PRId64
            ": the copies of a stage (strategy pipeline) take micro-batches as they come; use "
            "zero 0 or 1, or tensor",
            at, p->zero);
    if (p->sequence)
        return neb__doc_fail(&j->doc, at,
                             "%s and parallel.sequence: between sites (strategy pipeline) whole rows cross; "
                             "leave sequence out",
                             at);
    return NEB_OK;
}

/* All layers of a stack read one table of distances. */
static neb_status check_relative(const struct neb_job *j)
{
    const struct neb_job_parallel *p = &j->parallel;
    const char *positions = j->model.positions, *key = p->tensor > 1 ? "tensor" : "pipeline";
    char at[64];
    if (!positions || strcmp(positions, "relative") || (p->tensor == 1 && p->pipeline < 2)) return NEB_OK;
    line_of(j, key, at, sizeof at);
    return neb__doc_fail(&j->doc, at,
                         "%s is %" PRId64
                         ", but a model with positions: relative is not shared out or cut, because "
                         "its layers read one table of distances; use parallel.data, with zero for memory",
                         at, p->tensor > 1 ? p->tensor : p->pipeline);
}

neb_status neb__job_check_parallel(const struct neb_job *j)
{
    const struct neb_job_parallel *p = &j->parallel;
    const char *key = "data";
    char at[64];
    if (p->pipeline > 1) key = "pipeline";
    if (p->tensor > 1) key = "tensor";
    NEB_TRY(check_auto(j));
    NEB_TRY(check_parts(j));
    NEB_TRY(check_private(j));
    NEB_TRY(check_data(j));
    NEB_TRY(check_relative(j));
    NEB_TRY(check_pipeline(j));
    NEB_TRY(check_tensor(j));
    if (p->data * p->tensor * p->pipeline == 1) return NEB_OK;
    line_of(j, key, at, sizeof at);
    if (p->data * p->tensor * p->pipeline > NEB_JOB_RANKS)
        return neb__doc_fail(&j->doc, at,
                             "data %" PRId64 ", tensor %" PRId64 " and pipeline %" PRId64 " make %" PRId64
                             " processes; a site has at most %d",
                             p->data, p->tensor, p->pipeline, p->data * p->tensor * p->pipeline,
                             NEB_JOB_RANKS);
    if (j->plan == NEB_STRATEGY_PIPELINE) return check_stage(j, at);
    if (j->plan != NEB_STRATEGY_REPLICA)
        return neb__doc_fail(&j->doc, at, "%s: a site of strategy %s is one process", at,
                             neb__strategy_name(j->plan));
    return NEB_OK;
}
