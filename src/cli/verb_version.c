/* verb_version.c: which build this is. */
#include "cli/verb.h"

#include <stdio.h>

static int run(int argc, char **argv)
{
    (void)argc, (void)argv;
    printf("nebula-i %s\n", NEB_VERSION);
    return 0;
}

const struct neb_verb neb__verb_version = {"version", "", "print the version", run};
