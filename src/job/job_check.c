/* job_check.c: whether the values of a job fit: each within its range, and task and model together. All of it is known
 * when the file is read, so a job that cannot run is refused with file and line before anything is opened. */
#include "job/job.h"
#include "codec/codec.h"

#include <string.h>

/* ---- task and model -------------------------------------------------------------------------------------------- */

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

/* A model of another kind would run all the same: one that reads the tokens it is to predict, or one whose head gives no
 * loss. */
static neb_status check_model(const struct neb_job *j, const char *section, const struct neb_model_config *m,
                              const struct neb_objective *o)
{
    char path[64];
    if (!m->kind || strcmp(m->kind, o->kind))
        return neb__doc_fail(&j->doc, place(j, section, "kind", path, sizeof path),
                             "task %s needs %s of kind %s (family %s); this one is of kind %s", j->task,
                             strcmp(section, "model") ? "a generator" : "a model", o->kind, o->families,
                             m->kind ? m->kind : "none");
    if (!m->head || strcmp(m->head, o->head))
        return neb__doc_fail(&j->doc, place(j, section, "head", path, sizeof path),
                             "task %s needs %s.head: %s, not %s; it may be left out", j->task, section,
                             o->head, m->head ? m->head : "none");
    return NEB_OK;
}

static neb_status check_models(const struct neb_job *j)
{
    NEB_TRY(check_model(j, "model", &j->model, j->objective));
    if (!j->objective->generator) return NEB_OK;
    return check_model(j, "generator", &j->generator, j->objective->generator);
}

/* ---- ranges ---------------------------------------------------------------------------------------------------- */

struct rule {
    const char *key;
    double value, low, high;
};

static neb_status within(const struct neb_job *j, const char *section, const struct rule *rules, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(rules[i].value >= rules[i].low && rules[i].value <= rules[i].high)) {
            char path[64];
            snprintf(path, sizeof path, "%s.%s", section, rules[i].key);
            return neb__doc_fail(&j->doc, path, "%s is %.7g; it must be between %.7g and %.7g", path,
                                 rules[i].value, rules[i].low, rules[i].high);
        }
    return NEB_OK;
}
#define WITHIN(j, section, rules) within(j, section, rules, sizeof rules / sizeof *rules)

static neb_status check_schedule(const struct neb_job *j, const char *section, const struct neb_job_train *t)
{
    static const char *const names[] = {"constant", "linear", "cosine", "inverse-sqrt", "wsd"};
    char path[64];
    int i = 0;
    while (i < 5 && strcmp(t->schedule, names[i])) i++;
    snprintf(path, sizeof path, "%s.schedule", section);
    if (i == 5)
        return neb__doc_fail(&j->doc, path, "%s: '%s' is not constant, linear, cosine, inverse-sqrt or wsd",
                             path, t->schedule);
    if (i == 3 && (t->warmup >= 0 ? t->warmup : t->steps / 20) < 1)
        return neb__doc_fail(&j->doc, path, "%s: inverse-sqrt needs a warm-up of at least one step", path);
    if (i == 4 && !(t->decay_share > 0))
        return neb__doc_fail(&j->doc, path, "%s: wsd needs a decay_share above 0", path);
    return NEB_OK;
}

neb_status neb__job_check_train(const struct neb_job *j, const char *section, const struct neb_job_train *t)
{
    const struct rule rules[] = {{"steps", (double)t->steps, 1, 1e12},
                                 {"minutes", t->minutes, 0, 1e9},
                                 {"tokens", (double)t->tokens, 16, 1 << 24},
                                 {"max_len", (double)t->max_len, 4, 1 << 16},
                                 {"micro", (double)t->micro, 1, 1024},
                                 {"lr", t->lr, 0, 10},
                                 {"floor", t->floor, 0, t->lr},
                                 {"warmup", (double)t->warmup, -1, (double)t->steps},
                                 {"weight_decay", t->weight_decay, 0, 10},
                                 {"clip", t->clip, 0, 1e30},
                                 {"beta1", t->beta1, 0, 0.999999},
                                 {"beta2", t->beta2, 0, 0.9999999},
                                 {"eval_every", (double)t->eval_every, 0, 1e12},
                                 {"save_every", (double)t->save_every, 0, 1e12},
                                 {"keep", (double)t->keep, 1, 1000},
                                 {"log_every", (double)t->log_every, 1, 1e9},
                                 {"mask", t->mask, 0.01, 0.9},
                                 {"temperature", t->temperature, 0.01, 1000},
                                 {"rtd_weight", t->rtd_weight, 0, 1e6},
                                 {"threads", (double)t->threads, 0, 1024},
                                 {"average", (double)t->average, 0, 100}};
    NEB_TRY(WITHIN(j, section, rules));
    if (t->max_len > t->tokens)
        return neb__doc_fail(&j->doc, section, "%s.max_len %" PRId64 " exceeds %s.tokens %" PRId64, section,
                             t->max_len, section, t->tokens);
    if (strcmp(t->dtype, "f32") && strcmp(t->dtype, "bf16"))
        return neb__doc_fail(&j->doc, section, "%s.dtype: f32 or bf16", section);
    return check_schedule(j, section, t);
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
    if ((d->teacher || d->encoder) && !j->objective->distils)
        return neb__doc_fail(&j->doc, "distill", "distill: not for task %s", j->task);
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

static neb_status check_peft(const struct neb_job *j)
{
    static const char *const names[] = {"full", "frozen", "lora", "adapter", "bias", "prefix"};
    const struct neb_peft_config *p = &j->peft;
    const struct rule lora[] = {{"lora_rank", (double)p->lora_rank, 1, 4096},
                                {"lora_alpha", p->lora_alpha, 1e-6, 1e6}},
                      adapter[] = {{"adapter_size", (double)p->adapter_size, 1, 1 << 16}},
                      prefix[] = {{"prefix_length", (double)p->prefix_length, 1, 1 << 16}};
    char word[32];
    bool used[6] = {false};
    int n = 0;
    for (int i; neb__list_part(p->method, n, word, sizeof word); n++) {
        for (i = 0; i < 6 && strcmp(word, names[i]);) i++;
        if (i == 6)
            return neb__doc_fail(&j->doc, "peft.method",
                                 "peft.method: '%s' is not full, frozen, lora, adapter, bias or prefix",
                                 word);
        used[i] = true;
    }
    if ((used[0] || used[1]) && n > 1)
        return neb__doc_fail(&j->doc, "peft.method", "peft.method: '%s': full and frozen stand alone",
                             p->method);
    if (used[2]) NEB_TRY(WITHIN(j, "peft", lora));
    if (used[3]) NEB_TRY(WITHIN(j, "peft", adapter));
    if (used[3] && !among(p->adapter_after, "ffn", "both", "both"))
        return neb__doc_fail(&j->doc, "peft.adapter_after", "peft.adapter_after: ffn or both");
    return used[5] ? WITHIN(j, "peft", prefix) : NEB_OK;
}

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

static neb_status check_wan(const struct neb_job *j)
{
    const struct neb_job_wan *w = &j->wan;
    const struct rule rules[] = {{"interval", (double)w->interval, 1, 1 << 30},
                                 {"fragments", (double)w->fragments, 1, 256},
                                 {"outer_lr", w->outer_lr, 1e-6, 2},
                                 {"outer_momentum", w->outer_momentum, 0, 0.999999},
                                 {"tokens", w->tokens, 0, 1e18},
                                 {"drift_steps", (double)w->drift_steps, 0, 1e12},
                                 {"round_seconds", (double)w->round_seconds, 1, 86400},
                                 {"clip", w->clip, 0, 1e30},
                                 {"noise", w->noise, 0, 1e30},
                                 {"max_rate", w->max_rate, 0, 1e15}};
    NEB_TRY(WITHIN(j, "wan", rules));
    if (!among(w->prefer, "cost", "quality", "quality"))
        return neb__doc_fail(&j->doc, "wan.prefer", "wan.prefer: '%s' is neither cost nor quality",
                             w->prefer);
    return check_rung(j);
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
    NEB_TRY(check_peft(j));
    NEB_TRY(check_wan(j));
    return check_streams(j);
}
