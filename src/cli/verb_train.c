/* verb_train.c: `nebula-i train JOB.yaml [--site NAME [--alone]] [--watch PORT] [--relay HOST:PORT] [section.key=value …]`. */
#include "cli/verb.h"
#include "base/mem.h"
#include "cli/reference.h"
#include "cli/relay_folder.h"
#include "cli/watch_child.h"
#include "train/launch.h"
#include "train/plan_here.h"
#include "train/train.h"

#include <limits.h>
#include <stdio.h>

struct options {
    char *site, *relay, *relay_folder;
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
    NEB_OPT(struct options, relay, NEB_OPT_TEXT, "", NULL,
            "be a relay host for the run's members, too, and listen on HOST:PORT; for a witness that all can "
            "reach"),
    NEB_OPT(struct options, relay_folder, NEB_OPT_TEXT, "relay", NULL,
            "of that relay host, with its key; nebula-i relay --print tells its address"),
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

/* A relay host in this process (docs/relay.md). */
static neb_status start_relay(const struct options *o, const struct neb_job *job,
                              struct neb_relay_beside **out)
{
    const struct neb_job_site *here = job->at >= 0 ? &job->site[job->at] : NULL;
    char roster[PATH_MAX];
    if (!o->relay) return NEB_OK;
    if (!here || o->alone)
        return neb__fail(NEB_ERR_CONFIG,
                         "--relay serves the members of a run: give --site NAME, and not --alone");
    NEB_TRY(neb__relay_path(here->folder ? here->folder : here->name, "roster", roster));
    return neb__relay_beside_start(o->relay, o->relay_folder, roster, out);
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_job job;
    NEB_TRY(read_job(c, o, c->words + 1, c->n - 1, &job));
    neb_status status = settle_strategy(c, o, &job);
    if (status == NEB_OK && o->alone) neb__job_alone(&job);
    if (status == NEB_OK && job.at < 0) status = neb__job_settle_alone(&job);
    struct neb_watch_child page = {0};
    bool first = neb__launch_needed(&job) || neb__job_ranks(&job) == 1; /* not one of the ranks */
    first = first && !neb__planner_is_probe();
    if (status == NEB_OK && o->watch >= 0 && first) neb__watch_child_start(&page, &job, (int)o->watch);
    struct neb_relay_beside *relay = NULL;
    if (status == NEB_OK && first) status = start_relay(o, &job, &relay);
    if (status == NEB_OK) status = neb__train_job(&job);
    neb__relay_beside_stop(relay);
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
    .args = "JOB.yaml [--site NAME [--alone]] [--watch PORT] [--relay HOST:PORT] [section.key=value …]",
    .help = "train what a job file describes",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give a job file",
    .most = NEB_ANY_NUMBER,
    .more = job_help,
    .run = run,
};
