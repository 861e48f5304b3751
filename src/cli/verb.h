/* verb.h: one command of `nebula-i`. A verb has its own file src/cli/verb_NAME.c, defines one struct neb_verb, and
 * is named in the list below, from which main.c makes its table. */
#ifndef NEB_CLI_VERB_H
#define NEB_CLI_VERB_H

struct neb_verb {
    const char *name;
    const char *args; /* for the usage line */
    const char *help; /* one line */
    /* argv[0] is the first argument behind the verb's name; with --help anywhere they are `--help [FIRST]`. Returns the
     * exit status: 0, 1 (failed), 2 (usage). */
    int (*run)(int argc, char **argv);
};

/* One a line, so that two changes rarely meet. */
/* clang-format off */
#define NEB_VERBS(X) \
    X(adopt)         \
    X(bench)         \
    X(corpus)        \
    X(device)        \
    X(embed)         \
    X(eval)          \
    X(export)        \
    X(import)        \
    X(lab)           \
    X(order)         \
    X(report)        \
    X(roster)        \
    X(score)         \
    X(simulate)      \
    X(site)          \
    X(status)        \
    X(train)         \
    X(translate)     \
    X(version)       \
    X(wan)
/* clang-format on */

#define NEB__X(name) extern const struct neb_verb neb__verb_##name;
NEB_VERBS(NEB__X)
#undef NEB__X

#endif
