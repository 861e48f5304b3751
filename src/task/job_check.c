/* job_check.c: whether the values of a job fit: each within its range, and task and model together. All of it is known
 * when the file is read, so a job that cannot run is refused with file and line before anything is opened. */
#include "task/job.h"

#include <string.h>

/* ---- task and model -------------------------------------------------------------------------------------------- */

/* What a task trains. A model of another kind would run all the same: one that reads the tokens it is to predict, or one
 * whose head gives no loss. */
static const struct {
    const char *kind, *head, *families;
} tasks[] = {[NEB_TASK_MLM] = {"encoder", "tokens", "bert, xlm-r, electra"},
             [NEB_TASK_CAUSAL] = {"decoder", "tokens", "gpt2, llama"},
             [NEB_TASK_RTD] = {"encoder", "rtd", "bert, xlm-r, electra"},
             [NEB_TASK_TRANSLATE] = {"encoder-decoder", "tokens", "transformer, marian, bart"}};

const char *neb__job_head(enum neb_task_kind task)
{
    return tasks[task].head;
}

/* The first of these keys that the job has: the line that is to be changed. */
static const char *place(const struct neb_job *j, const char *section, const char *key, char *out,
                         size_t size)
{
    const char *const keys[] = {key, "family"};
    for (int k = 0; k < 2; k++) {
        snprintf(out, size, "%s.%s", section, keys[k]);
        for (int i = 0; i < j->doc.n; i++)
            if (!strcmp(j->doc.list[i].path, out)) return out;
    }
    snprintf(out, size, "%s", !strcmp(section, "model") && j->init.from ? "init.from" : section);
    return out;
}

static neb_status check_model(const struct neb_job *j, const char *section, const struct neb_model_config *m,
                              enum neb_task_kind task)
{
    char path[64];
    if (!m->kind || strcmp(m->kind, tasks[task].kind))
        return neb__doc_fail(&j->doc, place(j, section, "kind", path, sizeof path),
                             "task %s needs %s of kind %s (family %s); this one is of kind %s", j->task,
                             strcmp(section, "model") ? "a generator" : "a model", tasks[task].kind,
                             tasks[task].families, m->kind ? m->kind : "none");
    if (!m->head || strcmp(m->head, tasks[task].head))
        return neb__doc_fail(&j->doc, place(j, section, "head", path, sizeof path),
                             "task %s needs %s.head: %s, not %s; it may be left out", j->task, section,
                             tasks[task].head, m->head ? m->head : "none");
    return NEB_OK;
}

static neb_status check_models(const struct neb_job *j)
{
    NEB_TRY(check_model(j, "model", &j->model, j->kind));
    return j->kind == NEB_TASK_RTD ? check_model(j, "generator", &j->generator, NEB_TASK_MLM) : NEB_OK;
}

/* ---- ranges ---------------------------------------------------------------------------------------------------- */

neb_status neb__job_check_train(const struct neb_job *j, const char *section, const struct neb_job_train *t)
{
    const struct {
        const char *key;
        double value, low, high;
    } rules[] = {{"steps", (double)t->steps, 1, 1e12},
                 {"tokens", (double)t->tokens, 16, 1 << 24},
                 {"max_len", (double)t->max_len, 4, 1 << 16},
                 {"micro", (double)t->micro, 1, 1024},
                 {"lr", t->lr, 0, 10},
                 {"warmup", (double)t->warmup, -1, (double)t->steps},
                 {"keep", (double)t->keep, 1, 1000},
                 {"log_every", (double)t->log_every, 1, 1e9},
                 {"mask", t->mask, 0.01, 0.9},
                 {"temperature", t->temperature, 0.01, 1000},
                 {"threads", (double)t->threads, 0, 1024},
                 {"average", (double)t->average, 0, 100}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!(rules[i].value >= rules[i].low && rules[i].value <= rules[i].high)) {
            char path[64];
            snprintf(path, sizeof path, "%s.%s", section, rules[i].key);
            return neb__doc_fail(&j->doc, path, "%s is %g; it must be between %g and %g", path,
                                 rules[i].value, rules[i].low, rules[i].high);
        }
    if (t->max_len > t->tokens)
        return neb__doc_fail(&j->doc, section, "%s.max_len %" PRId64 " exceeds %s.tokens %" PRId64, section,
                             t->max_len, section, t->tokens);
    if (!t->dtype || (strcmp(t->dtype, "f32") && strcmp(t->dtype, "bf16")))
        return neb__doc_fail(&j->doc, section, "%s.dtype: f32 or bf16", section);
    return NEB_OK;
}

static bool among(const char *word, const char *a, const char *b, const char *c)
{
    return word && (!strcmp(word, a) || !strcmp(word, b) || !strcmp(word, c));
}

static neb_status check_knowledge(const struct neb_job *j)
{
    const struct neb_job_distill *d = &j->distill;
    if (!among(j->train.rtd_embeddings, "separate", "shared", "disentangled"))
        return neb__doc_fail(&j->doc, "train.rtd_embeddings",
                             "train.rtd_embeddings: separate, shared or disentangled");
    if ((d->teacher || d->encoder) && j->kind == NEB_TASK_RTD)
        return neb__doc_fail(&j->doc, "distill", "distill: not for task rtd");
    if (d->top_k < 1 || d->top_k > 4096)
        return neb__doc_fail(&j->doc, "distill.top_k", "distill.top_k must be from 1 to 4096");
    if (!(d->temperature > 0 && d->temperature <= 100))
        return neb__doc_fail(&j->doc, "distill.temperature",
                             "distill.temperature must be above 0, at most 100");
    if (!(d->hidden_weight > 0 && d->hidden_weight <= 1e6))
        return neb__doc_fail(&j->doc, "distill.hidden_weight", "distill.hidden_weight must be above 0");
    if (!among(d->hidden_loss, "cosine", "mse", "mse"))
        return neb__doc_fail(&j->doc, "distill.hidden_loss", "distill.hidden_loss: cosine or mse");
    return NEB_OK;
}

static neb_status check_streams(const struct neb_job *j)
{
    const struct neb_job_wan *w = &j->wan;
    if (w->window < 0 || w->window > 2048)
        return neb__doc_fail(&j->doc, "wan.window",
                             "wan.window must be from 1 to 2048 batches, or 0 to follow the line");
    if (w->snapshot < 0)
        return neb__doc_fail(&j->doc, "wan.snapshot",
                             "wan.snapshot must be at least 1 batch, or 0 to follow the line");
    if (w->bits && w->bits != 8 && w->bits != 4 && (w->bits != 2 || j->distill.teacher))
        return neb__doc_fail(&j->doc, "wan.bits",
                             "wan.bits: 8 or 4; for hidden states alone also 2; 0 to follow the line");
    if (w->cache < 0) return neb__doc_fail(&j->doc, "wan.cache", "wan.cache: a size, or 0 for none");
    return NEB_OK;
}

static neb_status check_numbering(const struct neb_job *j)
{
    const struct neb_job_tokenizer *t = &j->tokenizer;
    if (!t->numbering) return NEB_OK;
    if (!among(t->numbering, "plain", "xlm-r", "xlm-r"))
        return neb__doc_fail(&j->doc, "tokenizer.numbering", "tokenizer.numbering: plain or xlm-r");
    if (!t->file)
        return neb__doc_fail(&j->doc, "tokenizer.numbering",
                             "tokenizer.numbering is that of tokenizer.file, which the job does not name");
    return NEB_OK;
}

neb_status neb__job_check(const struct neb_job *j)
{
    NEB_TRY(check_numbering(j));
    NEB_TRY(check_models(j));
    NEB_TRY(neb__job_check_train(j, "train", &j->train));
    NEB_TRY(check_knowledge(j));
    return check_streams(j);
}
