/* verb_train.c: `nebula-i train JOB.yaml [section.key=value …]`. */
#include "cli/verb.h"
#include "train/train.h"

#include <stdio.h>
#include <string.h>

static int run(int argc, char **argv)
{
    if (argc < 1 || !strcmp(argv[0], "--help")) {
        printf("usage: nebula-i train JOB.yaml [section.key=value …]\n\n");
        neb__job_help(stdout);
        return argc < 1 ? 2 : 0;
    }
    struct neb_job job;
    neb_status s = neb__job_read(argv[0], argv + 1, argc - 1, &job);
    if (s == NEB_OK) {
        s = neb__train(&job);
        neb__job_free(&job);
    }
    if (s == NEB_ERR_CANCELLED) return 130;
    return s == NEB_OK ? 0 : s == NEB_ERR_CONFIG ? 2 : 1;
}

const struct neb_verb neb__verb_train = {"train", "JOB.yaml [key=value …]", "train what a job file describes",
                                         run};
