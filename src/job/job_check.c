/* job_check.c: whether the values of a job fit together. Each by itself has been checked against its table (job.c). All is
 * known when the file is read, so a job that cannot run is refused with file and line before anything is opened. */
#include "job/job.h"
#include "codec/codec.h"

#include <stdlib.h>
#include <string.h>

/* ---- task and model ------------------------------------------------------------------------------------ */

/* Finds the line to be changed: the first of these keys that the job has. */
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

/* A model of another kind would run without an error: it would read the tokens that it should predict, or its
 * head would give no loss. */
static neb_status check_model(const struct neb_job *j, const char *section, const struct neb_model_config *m,
                              const struct neb_objective *o)
{
    char path[64];
    struct neb_model_misfit misfit;
    const char *what = strcmp(section, "model") ? "a generator" : "a model";
    const char *kind = m->kind ? m->kind : "none";
    const char *head = m->head ? m->head : "none";
    if (strcmp(kind, o->kind))
        return neb__doc_fail(&j->doc, place(j, section, "kind", path, sizeof path),
                             "task %s needs %s of kind %s (family %s); this one is of kind %s", j->task, what,
                             o->kind, o->families, kind);
    if (strcmp(head, o->head))
        return neb__doc_fail(&j->doc, place(j, section, "head", path, sizeof path),
                             "task %s needs %s.head: %s, not %s; it may be left out", j->task, section,
                             o->head, head);
    if (neb__model_config_misfit(m, &misfit))
        return neb__doc_fail(&j->doc, place(j, section, misfit.option, path, sizeof path), "%s.%s: %s",
                             section, misfit.option, misfit.why);
    return NEB_OK;
}

static neb_status check_models(const struct neb_job *j)
{
    NEB_TRY(check_model(j, "model", &j->model, j->objective));
    if (!j->objective->generator) return NEB_OK;
    return check_model(j, "generator", &j->generator, j->objective->generator);
}

/* ---- options of one section ------------------------------------------------------------------------------------ */

static neb_status check_schedule(const struct neb_job *j, const char *section, const struct neb_job_train *t)
{
    char path[64];
    snprintf(path, sizeof path, "%s.schedule", section);
    int64_t warmup = t->warmup >= 0 ? t->warmup : t->steps / 20;
    if (!strcmp(t->schedule, "inverse-sqrt") && warmup < 1)
        return neb__doc_fail(&j->doc, path, "%s: inverse-sqrt needs a warm-up of at least one step", path);
    if (!strcmp(t->schedule, "wsd") && !(t->decay_share > 0))
        return neb__doc_fail(&j->doc, path, "%s: wsd needs a decay_share above 0", path);
    return NEB_OK;
}

neb_status neb__job_check_train(const struct neb_job *j, const char *section, const struct neb_job_train *t)
{
    char path[64];
    snprintf(path, sizeof path, "%s.floor", section);
    if (t->floor > t->lr)
        return neb__doc_fail(&j->doc, path, "%s is %.7g; it must not exceed the lr, %.7g", path, t->floor,
                             t->lr);
    snprintf(path, sizeof path, "%s.warmup", section);
    if (t->warmup > t->steps)
        return neb__doc_fail(&j->doc, path, "%s is %" PRId64 "; it must not exceed the %" PRId64 " steps",
                             path, t->warmup, t->steps);
    if (t->max_len > t->tokens)
        return neb__doc_fail(&j->doc, section, "%s.max_len %" PRId64 " exceeds %s.tokens %" PRId64, section,
                             t->max_len, section, t->tokens);
    snprintf(path, sizeof path, "%s.muon_also", section);
    if (t->muon_also && !strcmp(t->optimizer, "adamw"))
        return neb__doc_fail(&j->doc, path, "%s names matrices for Muon, but %s.optimizer is %s", path,
                             section, t->optimizer);
    return check_schedule(j, section, t);
}

int64_t neb__job_beams(const struct neb_job *j)
{
    const char *text = j->distill.sequence;
    char *end;
    if (!text || strncmp(text, "beam", 4) != 0 || text[4] < '1' || text[4] > '9') return 0;
    long n = strtol(text + 4, &end, 10);
    return *end || n > 64 ? 0 : n;
}

static neb_status check_sequence(const struct neb_job *j)
{
    int64_t beams = neb__job_beams(j);
    if (!beams)
        return neb__doc_fail(&j->doc, "distill.sequence",
                             "distill.sequence: '%s' is not beam1, beam5 … beam64", j->distill.sequence);
    if (!j->distill.teacher)
        return neb__doc_fail(&j->doc, "distill.sequence",
                             "distill.sequence: set distill.teacher to the model that translates");
    if (j->objective->sides != 2)
        return neb__doc_fail(&j->doc, "distill.sequence", "distill.sequence: task must be translate, not %s",
                             j->task);
    if (j->distill.n > beams)
        return neb__doc_fail(&j->doc, "distill.n",
                             "distill.n is %" PRId64 "; %s finds at most %" PRId64 " translations",
                             j->distill.n, j->distill.sequence, beams);
    return NEB_OK;
}

static neb_status check_on_policy(const struct neb_job *j)
{
    const char *at = "distill.on_policy", *teacher = j->distill.teacher;
    if (!teacher)
        return neb__doc_fail(&j->doc, at, "distill.on_policy: set distill.teacher to the model that judges");
    if (strchr(teacher, ','))
        return neb__doc_fail(&j->doc, at,
                             "distill.on_policy: one teacher judges; distill.teacher names several");
    if (j->objective->masks)
        return neb__doc_fail(&j->doc, at,
                             "distill.on_policy: a model of task %s writes no text; use translate or causal",
                             j->task);
    if (j->distill.top_k > 256)
        return neb__doc_fail(&j->doc, "distill.top_k", "distill.top_k with on_policy must be at most 256");
    if (j->distill.on_policy < 0.001)
        return neb__doc_fail(&j->doc, at,
                             "distill.on_policy is %g: a share of less than 0.001 judges nothing",
                             j->distill.on_policy);
    if ((j->distill.lag + 1) * j->train.micro > 4000)
        return neb__doc_fail(&j->doc, "distill.lag",
                             "distill.lag %" PRId64 " with train.micro %" PRId64
                             ": at most 4000 micro-batches of samples may be under way; use a smaller lag",
                             j->distill.lag, j->train.micro);
    if (j->wan.recorded)
        return neb__doc_fail(&j->doc, "wan.recorded",
                             "wan.recorded: a record cannot judge a student's samples; leave out "
                             "distill.on_policy");
    return NEB_OK;
}

static neb_status check_distill(const struct neb_job *j)
{
    if ((j->distill.teacher || j->distill.encoder) && !j->objective->distils)
        return neb__doc_fail(&j->doc, "distill", "distill: not for task %s", j->task);
    if (j->distill.sequence) NEB_TRY(check_sequence(j));
    return j->distill.on_policy > 0 ? check_on_policy(j) : NEB_OK;
}

/* The method is a list, whose words a table cannot check. */
static neb_status check_peft(const struct neb_job *j)
{
    static const char *const names[] = {"full",    "frozen", "lora",   "ia3",
                                        "adapter", "bias",   "prefix", "prompt"};
    const char *method = j->peft.method;
    char word[32];
    bool alone = false;
    int n = 0;
    for (int i; neb__list_part(method, n, word, sizeof word); n++) {
        for (i = 0; i < 8 && strcmp(word, names[i]);) i++;
        if (i == 8)
            return neb__doc_fail(
                &j->doc, "peft.method",
                "peft.method: '%s' is not full, frozen, lora, ia3, adapter, bias, prefix or prompt", word);
        alone |= i < 2;
    }
    if (alone && n > 1)
        return neb__doc_fail(&j->doc, "peft.method", "peft.method: '%s': full and frozen stand alone",
                             method);
    return NEB_OK;
}

/* docs/codecs.md has the rungs: a table of their own. */
static neb_status check_rung(const struct neb_job *j)
{
    const char *name = j->wan.rung ? j->wan.rung : "";
    const struct neb_rung *rung = neb__rung_by_name(name);
    if (!strcmp(name, "auto") || (rung && !rung->outside_scales)) return NEB_OK;
    return neb__doc_fail(
        &j->doc, "wan.rung",
        "wan.rung: '%s' is not auto, fp32, bf16, int8, int4, int2, sparse4, sparse2 or another "
        "rung of docs/codecs.md",
        name);
}

/* Everything that a clock decides elsewhere must be fixed. */
static neb_status check_pace(const struct neb_job *j)
{
    const struct neb_job_wan *w = &j->wan;
    if (w->merge_after < 0) return NEB_OK;
    if (w->merge_after >= w->interval)
        return neb__doc_fail(&j->doc, "wan.merge_after",
                             "wan.merge_after is %" PRId64 "; it must be less than wan.interval, %" PRId64,
                             w->merge_after, w->interval);
    if (w->fragments != 1 || !strcmp(w->rung, "auto") || w->tokens > 0 || j->train.minutes > 0 ||
        j->train.steps % w->interval)
        return neb__doc_fail(
            &j->doc, "wan.merge_after",
            "wan.merge_after needs `fragments: 1`, a `rung` other than auto, neither `wan.tokens` nor "
            "`train.minutes`, and `train.steps` that are a multiple of `wan.interval`");
    return NEB_OK;
}

static neb_status check_streams(const struct neb_job *j)
{
    if (j->wan.bits == 2 && j->distill.teacher)
        return neb__doc_fail(&j->doc, "wan.bits",
                             "wan.bits: 8 or 4; for hidden states alone also 2; 0 to follow the line");
    return NEB_OK;
}

static neb_status check_numbering(const struct neb_job *j)
{
    const struct neb_job_tokenizer *t = &j->tokenizer;
    if (t->numbering && !t->file)
        return neb__doc_fail(&j->doc, "tokenizer.numbering",
                             "tokenizer.numbering is that of tokenizer.file, which the job does not name");
    return NEB_OK;
}

neb_status neb__job_check(const struct neb_job *j)
{
    NEB_TRY(check_numbering(j));
    NEB_TRY(check_models(j));
    NEB_TRY(neb__job_check_train(j, "train", &j->train));
    NEB_TRY(check_distill(j));
    NEB_TRY(check_peft(j));
    NEB_TRY(check_rung(j));
    NEB_TRY(check_pace(j));
    return check_streams(j);
}
