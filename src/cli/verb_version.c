/* verb_version.c: which build this is. */
#include "cli/verb.h"

static neb_status run(struct neb_call *c)
{
    (void)c;
    printf("nebula-i %s\n", NEB_VERSION);
    return NEB_OK;
}

const struct neb_verb neb__verb_version = {
    .name = "version", .args = "", .help = "print the version", .run = run};
