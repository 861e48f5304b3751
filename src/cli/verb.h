/* verb.h: one command of `nebula-i`. A verb has its own file src/cli/verb_NAME.c, defines one struct neb_verb, and
 * is named in the list below, from which main.c makes its table.
 *
 *     struct options { char *to; };
 *     static const struct neb_opt table[] = {NEB_OPT(struct options, to, NEB_OPT_TEXT, "x", NULL, "the page"), NEB_OPT_END};
 *     static neb_status run(struct neb_call *c) { const struct options *o = c->options; … }
 *     const struct neb_verb neb__verb_page = {.name = "page", .args = "FOLDER… [--to FILE]", .help = "a run as a page",
 *         .options = {{table, 0}}, .size = sizeof(struct options), .least = 1, .most = NEB_ANY_NUMBER, .run = run};
 *
 * verb.c does the rest: --help, the options, the number of words, the messages about them, and the exit status. */
#ifndef NEB_CLI_VERB_H
#define NEB_CLI_VERB_H

#include "base/opts.h"

enum { NEB_ANY_NUMBER = -1, NEB_VERB_TABLES = 4 };

/* One call of a verb: its arguments, and what it leaves. */
struct neb_call {
    const void *options; /* the verb's struct */
    char **words;        /* all that is not an option, and not the name of a part; ended by NULL */
    int n;               /* of the words */
    char **command; /* behind `--`, for verbs that take a command; ended by NULL. NULL: there is no `--` */
    int tag;        /* of the part */
    int code;       /* exit status, if run() sets one; 0: that of the status which run() returns */
};

struct neb_verb {
    const char *name;
    const char *args;  /* for the usage line */
    const char *help;  /* one line for the list */
    const char *about; /* paragraphs between usage and options; or NULL */
    struct {
        const struct neb_opt *table;
        size_t offset;          /* in the struct, where the table's object begins */
    } options[NEB_VERB_TABLES]; /* ended by NULL, unless all are there */
    size_t size;                /* of the struct */
    int least, most;            /* words; NEB_ANY_NUMBER: no limit */
    const char *missing;        /* says which word, where one is missing; or NULL */
    bool command;               /* takes a command behind `--` */
    bool raw;                   /* gets its arguments as words just as they are, even --help */
    /* Instead of run(): parts by name, ended by one without. The name is the word at part_at. A verb that has options
     * gives them to its parts; otherwise a part has its own, and its name comes first. */
    const struct neb_verb *parts;
    int part_at;
    int tag;                /* tells apart the parts that one run() serves */
    void (*more)(FILE *to); /* the rest of the help; or NULL */
    /* A raw verb's parts, for the manual and completion: name, args, help and options. NULL: it has none. */
    const struct neb_verb *(*describe)(void);
    /* The exit status is that of reference.h, or c->code if run() has set it. */
    neb_status (*run)(struct neb_call *c);
};

/* Returns the exit status. argv[0] is the first argument behind the verb's name. */
int neb__verb_run(const struct neb_verb *v, int argc, char **argv);

/* One a line, so that two changes rarely meet. */
/* clang-format off */
#define NEB_VERBS(X) \
    X(adopt)         \
    X(audit)         \
    X(bench)         \
    X(chat)          \
    X(completion)    \
    X(corpus)        \
    X(device)        \
    X(embed)         \
    X(eval)          \
    X(export)        \
    X(generate)      \
    X(import)        \
    X(lab)           \
    X(manual)        \
    X(new)           \
    X(order)         \
    X(pair)          \
    X(plan)          \
    X(privacy)       \
    X(relay)         \
    X(report)        \
    X(roster)        \
    X(score)         \
    X(simulate)      \
    X(site)          \
    X(status)        \
    X(train)         \
    X(translate)     \
    X(version)       \
    X(wan)           \
    X(watch)
/* clang-format on */

#define NEB__X(name) extern const struct neb_verb neb__verb_##name;
NEB_VERBS(NEB__X)
#undef NEB__X

extern const struct neb_verb *const neb__verbs[]; /* all of them, ended by NULL */

/* The parts of a verb, also of one that finds them itself; ended by one without a name. NULL: it has none. */
const struct neb_verb *neb__verb_parts(const struct neb_verb *v);

/* Whether words of the form section.key=value may stand behind a job file. */
bool neb__verb_takes_keys(const struct neb_verb *v);

#endif
