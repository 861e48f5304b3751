/* verb_train.c: `nebula-i train JOB.yaml [--site NAME [--alone]] [--watch PORT] [section.key=value …]`. */
#include "cli/verb.h"
#include "base/mem.h"
#include "cli/reference.h"
#include "cli/watch_child.h"
#include "train/launch.h"
#include "train/plan_here.h"
#include "train/train.h"

#include <stdio.h>

struct options {
    char *site;
    bool alone;
    int64_t watch;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, site, NEB_OPT_TEXT, "", NULL,
            "which of the job's sites this is; without it: train alone"),
    NEB_OPT(struct options, alone, NEB_OPT_BOOL, "no", NULL,
            "with that site's own settings and corpora, but without the others"),
    NEB_OPT(
        struct options, watch, NEB_OPT_INT, "-1", NULL,
        "port of a live page of this run, as nebula-i watch serves it (8265; 0: any that is free); -1: none",
        NEB_OPT_RANGE(-1, 65535)),
    NEB_OPT_END,
};

static neb_status read_job(const struct neb_call *c, const struct options *o, char *const *words, int n,
                           struct neb_job *job)
{
    NEB_TRY(neb__job_read_as(c->words[0], o->site, words, n, job));
    neb_status status = o->site ? neb__job_at(job, o->site) : NEB_OK;
    if (status != NEB_OK) neb__job_free(job);
    return status;
}

/* What `strategy: auto` means follows from the memory that a model takes, so the job is read twice. */
static neb_status settle_strategy(const struct neb_call *c, const struct options *o, struct neb_job *job)
{
    bool pipeline = false;
    char word[] = "strategy=pipeline";
    if (!o->site || o->alone) return NEB_OK;
    NEB_TRY(neb__planner_wants_pipeline(job, &pipeline));
    if (!pipeline) return NEB_OK;
    char **words = NEB_NEW_ARRAY(char *, (size_t)c->n);
    if (!words) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d words", c->n);
    for (int i = 1; i < c->n; i++) words[i - 1] = c->words[i];
    words[c->n - 1] = word;
    neb__job_free(job);
    neb_status status = read_job(c, o, words, c->n, job);
    neb__free(words);
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_job job;
    NEB_TRY(read_job(c, o, c->words + 1, c->n - 1, &job));
    neb_status status = settle_strategy(c, o, &job);
    if (status == NEB_OK && o->alone) neb__job_alone(&job);
    struct neb_watch_child page = {0};
    bool first = neb__launch_needed(&job) || neb__job_ranks(&job) == 1; /* not one of the ranks */
    first = first && !neb__planner_is_probe();
    if (status == NEB_OK && o->watch >= 0 && first) neb__watch_child_start(&page, &job, (int)o->watch);
    if (status == NEB_OK) status = neb__train_job(&job);
    neb__watch_child_stop(&page);
    neb__job_free(&job);
    if (status == NEB_ERR_CANCELLED && neb__train_signal()) c->code = NEB_EXIT_SIGNAL + neb__train_signal();
    return status;
}

static void job_help(FILE *to)
{
    fputc('\n', to);
    neb__job_help(to);
}

const struct neb_verb neb__verb_train = {
    .name = "train",
    .args = "JOB.yaml [--site NAME [--alone]] [--watch PORT] [section.key=value …]",
    .help = "train what a job file describes",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give a job file",
    .most = NEB_ANY_NUMBER,
    .more = job_help,
    .run = run,
};
