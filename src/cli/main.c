/* main.c: finds the verb and runs it. */
#include "cli/verb.h"
#include "base/nearest.h"
#include "cli/reference.h"
#include "job/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct neb_verb *const neb__verbs[] = {
#define NEB__X(name) &neb__verb_##name,
    NEB_VERBS(NEB__X)
#undef NEB__X
        NULL,
};

static int usage(FILE *to)
{
    fprintf(to,
            "usage: nebula-i VERB [arguments]; nebula-i VERB --help tells more,\n"
            "       nebula-i help job every key of a job file, nebula-i manual VERB the man page\n"
            "       -q: no progress, only results, warnings and errors; -v: every detail; NEBULA_LOG says\n"
            "       the same with debug, info, warn, error or none\n\n");
    for (int i = 0; neb__verbs[i]; i++) fprintf(to, "  %-10s %s\n", neb__verbs[i]->name, neb__verbs[i]->help);
    return to == stdout ? NEB_EXIT_DONE : NEB_EXIT_USAGE;
}

static const struct neb_verb *find(const char *name)
{
    for (int i = 0; neb__verbs[i]; i++)
        if (!strcmp(name, neb__verbs[i]->name)) return neb__verbs[i];
    return NULL;
}

static int unknown(const char *name)
{
    struct neb_nearest n = {.word = name, .within = 3};
    char hint[NEB_HINT];
    for (int i = 0; neb__verbs[i]; i++) neb__nearest_try(&n, neb__verbs[i]->name);
    neb__nearest_hint(&n, hint);
    fprintf(stderr, "nebula-i: no verb '%s'%s\n", name, hint);
    return NEB_EXIT_USAGE;
}

/* `nebula-i help VERB [PART]` is `nebula-i VERB [PART] --help`. */
static int help(int argc, char **argv)
{
    if (!strcmp(argv[0], "job")) {
        neb__job_help(stdout);
        return 0;
    }
    const struct neb_verb *v = find(argv[0]);
    if (!v) return unknown(argv[0]);
    char flag[] = "--help", *words[] = {argc > 1 ? argv[1] : flag, flag, NULL};
    return neb__verb_run(v, argc > 1 ? 2 : 1, words);
}

/* -q and -v stand anywhere in front of `--`. They are NEBULA_LOG by another name, so processes that a verb starts (the
 * sites of a laboratory) follow them, too. Returns the number of the words that are left. */
static int take_volume(int argc, char **argv)
{
    static const struct {
        const char *word, *level;
    } words[] = {{"-q", "warn"}, {"--quiet", "warn"}, {"-v", "debug"}, {"--verbose", "debug"}};
    int kept = 0, i = 0;
    for (; i < argc && strcmp(argv[i], "--"); i++) {
        const char *level = NULL;
        for (int k = 0; k < 4; k++)
            if (!strcmp(argv[i], words[k].word)) level = words[k].level;
        if (level)
            setenv("NEBULA_LOG", level, 1);
        else
            argv[kept++] = argv[i];
    }
    for (; i < argc; i++) argv[kept++] = argv[i];
    argv[kept] = NULL;
    return kept;
}

static bool is_one_of(const char *word, const char *a, const char *b)
{
    return !strcmp(word, a) || !strcmp(word, b);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    argc = take_volume(argc, argv);
    if (argc < 2) return usage(stderr);
    if (!strcmp(argv[1], "help") && argc > 2) return help(argc - 2, argv + 2);
    if (is_one_of(argv[1], "--help", "-h") || !strcmp(argv[1], "help")) return usage(stdout);
    const char *name = is_one_of(argv[1], "--version", "-V") ? "version" : argv[1];
    const struct neb_verb *v = find(name);
    return v ? neb__verb_run(v, argc - 2, argv + 2) : unknown(name);
}
