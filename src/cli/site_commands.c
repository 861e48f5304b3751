/* site_commands.c: see site_commands.h. */
#include "cli/site_commands.h"

#include <string.h>

neb_status neb__site_commands(char **argv, int sites, char **out[])
{
    int n = 0;
    char **begin = argv;
    for (char **a = argv;; a++) {
        if (*a && strcmp(*a, ":")) continue;
        if (a == begin) return neb__fail(NEB_ERR_CONFIG, "one of the commands behind -- is empty");
        if (n == sites) return neb__fail(NEB_ERR_CONFIG, "more commands than the %d sites", sites);
        out[n++] = begin;
        begin = a + 1;
        if (!*a) break;
        *a = NULL;
    }
    if (n != 1 && n != sites) return neb__fail(NEB_ERR_CONFIG, "%d commands for %d sites", n, sites);
    for (int i = n; i < sites; i++) out[i] = out[0];
    return NEB_OK;
}
