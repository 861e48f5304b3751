/* verb_train.c: `nebula-i train JOB.yaml [--site NAME [--alone]] [section.key=value …]`. */
#include "cli/verb.h"
#include "train/train.h"

#include <stdio.h>
#include <string.h>

struct options {
    char *site;
    bool alone;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, site, NEB_OPT_TEXT, "", NULL,
            "which of the job's sites this is; without it: train alone"),
    NEB_OPT(struct options, alone, NEB_OPT_BOOL, "no", NULL,
            "with that site's own settings and corpora, but without the others"),
    NEB_OPT_END,
};

static int usage(int status)
{
    FILE *to = status ? stderr : stdout;
    fprintf(to, "usage: nebula-i train JOB.yaml [--site NAME [--alone]] [section.key=value …]\n\n");
    neb__opts_help(table, to);
    fputc('\n', to);
    neb__job_help(to);
    return status;
}

static neb_status train(const struct options *o, char **argv, int n)
{
    struct neb_job job;
    NEB_TRY(neb__job_read(argv[0], argv + 1, n - 1, &job));
    neb_status s = NEB_OK;
    if (o->site) s = neb__job_at(&job, o->site);
    if (s == NEB_OK && o->alone) neb__job_alone(&job);
    if (s == NEB_OK) s = neb__train_job(&job);
    neb__job_free(&job);
    return s;
}

static int run(int argc, char **argv)
{
    struct options o;
    int n = 0;
    if (argc && !strcmp(argv[0], "--help")) return usage(0);
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    neb_status s = neb__opts_args(table, &o, argc, argv, &n);
    if (s == NEB_OK && !n) {
        neb__opts_free(table, &o);
        return usage(2);
    }
    if (s == NEB_OK) s = train(&o, argv, n);
    neb__opts_free(table, &o);
    if (s == NEB_ERR_CANCELLED) return 130;
    return s == NEB_OK ? 0 : s == NEB_ERR_CONFIG ? 2 : 1;
}

const struct neb_verb neb__verb_train = {"train", "JOB.yaml [key=value …]", "train what a job file describes",
                                         run};
