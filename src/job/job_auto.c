/* job_auto.c: the settings of a replica run that a job leaves to the program: train.optimizer, train.beta2, wan.interval and
 * wan.outer_lr.
 *
 * What `auto` means follows from the job alone (its sites, steps, batch and model), so all sites come to the same values
 * without a word between them. The rules have a number, which a roster's genesis has as a fact (run/settings_fact.c). A
 * run keeps to the rules of its roster, whatever program goes on with it: another outer step in the middle would be refused by
 * the log, another optimizer by the checkpoint.
 *
 *     interval   as many steps as make 10 rounds, from 10 to 100; 50 rounds if a corpus belongs to one site, because sites with
 *                different text drift apart
 *     outer_lr   1 with 100 rounds or more of 50 steps or more, else 0.7: it raises the learning rate of short rounds, and the
 *                first rounds of a run are the loudest
 *     beta2      1 - 1 / n. The second moment is a mean over n steps, which should hold some eight million tokens: a small
 *                batch is noise and lacks rare tokens. From 50 to 1000 steps, and no more than a twentieth of all steps: a
 *                short run would remember its wild beginning to the end
 *     optimizer  muon for a model that begins from random values, if a step of the sites has on average 8 tokens or more for
 *                each value of a hidden state: with fewer, orthogonalising costs more time than it saves. Else adamw. One
 *                for all sites
 *
 * Elsewhere than in a replica run `auto` is what it has always been. */
#include "job/job.h"
#include "base/buf.h"
#include "base/clamp.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ROUNDS = 10,
    ROUNDS_APART = 50, /* with different text */
    ROUNDS_MANY = 100,
    SHORTEST = 10,
    LONGEST = 100,
    BOLD = 50,
    MEMORY_SHORT = 50,
    MEMORY_LONG = 1000,
    MEMORY_SHARE = 20,
    ROWS = 8,
    ROWS_EACH = 32
};
static const double memory_tokens = 8388608, usual_beta2 = 0.98, usual_outer = 0.7, bold_outer = 1;

static bool is_written(const struct neb_job *j, const char *path)
{
    for (int i = 0; i < j->doc.n; i++)
        if (!strcmp(j->doc.list[i].path, path)) return true;
    return false;
}

static double batch_of(const struct neb_job *j)
{
    return (double)(j->train.tokens * j->train.micro);
}

/* What site i makes of the job: tokens of a step, and where its optimizer's state is. */
static neb_status look_at(struct neb_job *j, int i, double *batch, bool *offload)
{
    struct neb_job_train t;
    char path[64];
    snprintf(path, sizeof path, "sites[%d].parallel.offload", i);
    const char *where = neb__doc_get(&j->doc, path);
    *offload = strcmp(where ? where : j->parallel.offload, "none") != 0;
    snprintf(path, sizeof path, "sites[%d].train", i);
    NEB_TRY(neb__opts_init(neb__job_train_options, &t));
    neb_status status = neb__doc_bind(&j->doc, "train", neb__job_train_options, &t, NULL);
    if (status == NEB_OK) status = neb__doc_bind(&j->doc, path, neb__job_train_options, &t, NULL);
    *batch = (double)(t.tokens * t.micro);
    neb__opts_free(neb__job_train_options, &t);
    return status;
}

/* What the rules look at: the settings of the job and of all of its sites, at each of them the same. */
static neb_status look(struct neb_job *j)
{
    struct neb_job_auto *a = &j->settings;
    int sites = 0;
    a->batch = 0;
    a->offload = false;
    for (int i = 0; i < j->n_sites; i++) {
        double batch;
        bool offload;
        if (j->site[i].does != NEB_ROLE_TRAIN) continue;
        NEB_TRY(look_at(j, i, &batch, &offload));
        sites++;
        a->batch += (batch - a->batch) / sites;
        a->offload |= offload;
    }
    a->replica = j->plan == NEB_STRATEGY_REPLICA && sites > 1;
    a->apart = false;
    for (int i = 0; i < j->n_data; i++) a->apart |= j->data[i].site != NULL;
    a->steps = is_written(j, "train.steps") ? (double)j->train.steps : 0;
    if (!a->replica || !(j->wan.tokens > 0)) return NEB_OK;
    double most = ceil(j->wan.tokens / (batch_of(j) * sites));
    a->steps = a->steps > 0 && a->steps < most ? a->steps : most;
    return NEB_OK;
}

/* ---- the rules ----------------------------------------------------------------------------------------- */

/* Whether there is a choice to make; otherwise `auto` is what it was before there were rules. */
static bool chooses(const struct neb_job_auto *a)
{
    return a->replica && a->rules != NEB_SETTINGS_OLD;
}

static int64_t choose_interval(const struct neb_job *j)
{
    const struct neb_job_auto *a = &j->settings;
    if (!chooses(a) || !(a->steps > 0) || j->wan.merge_after >= 0) return LONGEST;
    return (int64_t)neb__clamp(a->steps / (a->apart ? ROUNDS_APART : ROUNDS), SHORTEST, LONGEST);
}

static double choose_outer(const struct neb_job *j)
{
    const struct neb_job_auto *a = &j->settings;
    bool bold =
        chooses(a) && j->wan.interval >= BOLD && a->steps >= (double)ROUNDS_MANY * (double)j->wan.interval;
    return bold ? bold_outer : usual_outer;
}

/* Steps over which the second moment is a mean. */
static double memory_of(const struct neb_job *j)
{
    const double steps = j->settings.steps;
    double most = steps > 0 ? neb__clamp(steps / MEMORY_SHARE, MEMORY_SHORT, MEMORY_LONG) : MEMORY_LONG;
    return floor(neb__clamp(memory_tokens / batch_of(j), MEMORY_SHORT, most));
}

static bool begins_at_random(const struct neb_job *j)
{
    return !j->init.from && !strcmp(j->peft.method, "full") && !j->distill.teacher && !j->distill.encoder;
}

/* From how many tokens a step on Muon pays; how many there are. */
static double least_of(const struct neb_job *j)
{
    return (double)(j->settings.rules == NEB_SETTINGS_EACH ? ROWS_EACH : ROWS) * (double)j->model.hidden;
}

static double mean_of(const struct neb_job *j)
{
    return j->settings.rules == NEB_SETTINGS_EACH ? batch_of(j) : j->settings.batch;
}

static bool wants_muon(const struct neb_job *j)
{
    const struct neb_job_auto *a = &j->settings;
    const bool own = a->rules == NEB_SETTINGS_EACH, offload = strcmp(j->parallel.offload, "none") != 0;
    return chooses(a) && begins_at_random(j) && strcmp(j->privacy.unit, "sample") != 0 &&
           !(own ? offload : a->offload) && mean_of(j) >= least_of(j);
}

/* ---- filling in ---------------------------------------------------------------------------------------- */

static neb_status set_optimizer(struct neb_job_train *t, const char *name)
{
    char *copy = neb__strdup(name);
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for a job");
    neb__free(t->optimizer);
    t->optimizer = copy;
    return NEB_OK;
}

static neb_status fill_in(struct neb_job *j)
{
    const struct neb_job_auto *a = &j->settings;
    if (a->interval) j->wan.interval = choose_interval(j);
    if (a->outer_lr) j->wan.outer_lr = choose_outer(j);
    if (a->beta2) j->train.beta2 = chooses(a) ? 1 - 1 / memory_of(j) : usual_beta2;
    return a->optimizer ? set_optimizer(&j->train, wants_muon(j) ? "muon" : "adamw") : NEB_OK;
}

static void find_auto(struct neb_job *j)
{
    struct neb_job_auto *a = &j->settings;
    a->optimizer = !strcmp(j->train.optimizer, "auto");
    a->beta2 = j->train.beta2 < 0;
}

neb_status neb__job_settle(struct neb_job *j)
{
    struct neb_job_auto *a = &j->settings;
    find_auto(j);
    a->interval = j->wan.interval == NEB_OPT_AUTO;
    a->outer_lr = j->wan.outer_lr < 0;
    NEB_TRY(look(j));
    return fill_in(j);
}

neb_status neb__job_unsettle(struct neb_job *j)
{
    if (j->settings.beta2) j->train.beta2 = NEB_OPT_AUTO;
    return j->settings.optimizer ? set_optimizer(&j->train, "auto") : NEB_OK;
}

neb_status neb__job_settle_own(struct neb_job *j)
{
    find_auto(j);
    return fill_in(j);
}

neb_status neb__job_set_rules(struct neb_job *j, enum neb_settings_rules rules)
{
    j->settings.rules = rules;
    return fill_in(j);
}

neb_status neb__job_settle_alone(struct neb_job *j)
{
    j->settings.replica = false;
    return fill_in(j);
}

int neb__job_settings_words(const struct neb_job *j, char word[NEB_JOB_SETTINGS_WORDS][NEB_JOB_WORD])
{
    int n = 0;
    if (j->at < 0) return 0; /* without a roster there is one choice */
    if (j->settings.optimizer)
        snprintf(word[n++], NEB_JOB_WORD, "sites[%d].train.optimizer=%s", j->at, j->train.optimizer);
    if (j->settings.beta2)
        snprintf(word[n++], NEB_JOB_WORD, "sites[%d].train.beta2=%.17g", j->at, j->train.beta2);
    return n;
}

neb_status neb__job_take_settings(struct neb_job *j)
{
    char word[NEB_JOB_SETTINGS_WORDS][NEB_JOB_WORD];
    const int n = neb__job_settings_words(j, word);
    for (int i = 0; i < n; i++) NEB_TRY(neb__doc_override(&j->doc, word[i]));
    return NEB_OK;
}

neb_status neb__job_settings_fact(const struct neb_job *j, struct neb_buf *out)
{
    if (!chooses(&j->settings) || j->settings.rules == NEB_SETTINGS_EACH) return NEB_OK;
    return neb__buf_printf(out, "(train.optimizer: auto)=%s\n", wants_muon(j) ? "muon" : "adamw");
}

/* ---- saying it ----------------------------------------------------------------------------------------- */

static const char as_before[] = "this run's roster is from before there was a choice";

static void say_optimizer(const struct neb_job *j, struct neb_settled *out)
{
    const bool muon = !strcmp(j->train.optimizer, "muon");
    snprintf(out->value, sizeof out->value, "%s", j->train.optimizer);
    if (mean_of(j) >= least_of(j) && !muon)
        snprintf(out->why, sizeof out->why,
                 "Muon is for models that begin from random values and train as a whole");
    else
        snprintf(out->why, sizeof out->why,
                 "Muon pays from %.0f tokens a step (%.0f for each of %" PRId64
                 " hidden values); a step of the sites has %.0f",
                 least_of(j), least_of(j) / (double)j->model.hidden, j->model.hidden, mean_of(j));
}

static void say_beta2(const struct neb_job *j, struct neb_settled *out)
{
    snprintf(out->value, sizeof out->value, "%.6g", j->train.beta2);
    snprintf(out->why, sizeof out->why,
             "a mean over %.0f steps of %.0f tokens each; a small batch needs a long one", memory_of(j),
             batch_of(j));
}

static void say_interval(const struct neb_job *j, struct neb_settled *out)
{
    snprintf(out->value, sizeof out->value, "%" PRId64, j->wan.interval);
    if (j->wan.merge_after >= 0)
        snprintf(out->why, sizeof out->why, "a run of fixed pace (wan.merge_after)");
    else if (j->settings.steps > 0)
        snprintf(out->why, sizeof out->why, "%.0f steps make %.0f rounds, each of 10 to 100 steps%s",
                 j->settings.steps, ceil(j->settings.steps / (double)j->wan.interval),
                 j->settings.apart ? "; the sites have different text" : "");
    else
        snprintf(out->why, sizeof out->why, "the job does not say how many steps it has (train.steps)");
}

static void say_outer(const struct neb_job *j, struct neb_settled *out)
{
    snprintf(out->value, sizeof out->value, "%g", j->wan.outer_lr);
    if (j->settings.steps > 0)
        snprintf(out->why, sizeof out->why,
                 "%.0f rounds of %" PRId64 " steps; 1 from 100 rounds of 50 steps on",
                 j->settings.steps / (double)j->wan.interval, j->wan.interval);
    else
        snprintf(out->why, sizeof out->why, "the job does not say how many steps it has (train.steps)");
}

int neb__job_settled(const struct neb_job *j, struct neb_settled out[NEB_SETTLED_MAX])
{
    const struct neb_job_auto *a = &j->settings;
    const struct {
        bool is_auto;
        const char *key;
        void (*say)(const struct neb_job *j, struct neb_settled *out);
    } list[NEB_SETTLED_MAX] = {{a->optimizer, "train.optimizer", say_optimizer},
                               {a->beta2, "train.beta2", say_beta2},
                               {a->interval, "wan.interval", say_interval},
                               {a->outer_lr, "wan.outer_lr", say_outer}};
    int n = 0;
    for (int i = 0; a->replica && i < NEB_SETTLED_MAX; i++) {
        if (!list[i].is_auto) continue;
        snprintf(out[n].key, sizeof out[n].key, "%s", list[i].key);
        list[i].say(j, &out[n]);
        if (!chooses(a)) snprintf(out[n].why, sizeof out[n].why, "%s", as_before);
        n++;
    }
    return n;
}
