/* main.c: finds the verb and runs it. */
#include "cli/verb.h"
#include "base/opts.h"
#include "job/job.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct neb_verb *const verbs[] = {
#define NEB__X(name) &neb__verb_##name,
    NEB_VERBS(NEB__X)
#undef NEB__X
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static int usage(FILE *to)
{
    fprintf(to, "usage: nebula-i VERB [arguments]; nebula-i VERB --help tells more,\n"
                "       nebula-i help job every key of a job file\n\n");
    for (int i = 0; i < VERBS; i++) fprintf(to, "  %-10s %s\n", verbs[i]->name, verbs[i]->help);
    return to == stdout ? 0 : 2;
}

static int unknown(const char *name)
{
    const char *near = NULL;
    int best = 3;
    for (int i = 0; i < VERBS; i++) {
        int d = neb__edit_distance(verbs[i]->name, name);
        if (d < best) best = d, near = verbs[i]->name;
    }
    fprintf(stderr, "nebula-i: no verb '%s'%s%s%s\n", name, near ? "; did you mean '" : "", near ? near : "",
            near ? "'?" : "");
    return 2;
}

/* With --help among the words (what stands behind `--` is somebody else's) a verb gets that, and the part it is about. */
static int run(const struct neb_verb *v, int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++) {
        if (strcmp(argv[i], "--help")) continue;
        char *words[] = {argv[i], argv[0], NULL};
        return v->run(argv[0][0] == '-' ? 1 : 2, words);
    }
    return v->run(argc, argv);
}

static int help(const char *about)
{
    if (!strcmp(about, "job")) {
        neb__job_help(stdout);
        return 0;
    }
    char *words[] = {(char *)(uintptr_t) "--help", NULL};
    for (int i = 0; i < VERBS; i++)
        if (!strcmp(about, verbs[i]->name)) return verbs[i]->run(1, words);
    return unknown(about);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) return usage(stderr);
    if (!strcmp(argv[1], "help") && argc > 2) return help(argv[2]);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) return usage(stdout);
    const char *name = strcmp(argv[1], "--version") ? argv[1] : "version";
    for (int i = 0; i < VERBS; i++)
        if (!strcmp(name, verbs[i]->name)) return run(verbs[i], argc - 2, argv + 2);
    return unknown(name);
}
