/* verb_train.c: `nebula-i train JOB.yaml [--site NAME [--alone]] [--watch PORT] [section.key=value …]`. */
#include "cli/verb.h"
#include "cli/reference.h"
#include "cli/watch_child.h"
#include "train/launch.h"
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

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_job job;
    NEB_TRY(neb__job_read_as(c->words[0], o->site, c->words + 1, c->n - 1, &job));
    neb_status status = NEB_OK;
    if (o->site) status = neb__job_at(&job, o->site);
    if (status == NEB_OK && o->alone) neb__job_alone(&job);
    struct neb_watch_child page = {0};
    bool first = neb__launch_needed(&job) || neb__job_ranks(&job) == 1; /* not one of the ranks */
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
