/* verb_site.c: `nebula-i site`: makes and shows the folder that makes a process a site; repeats the run in it. */
#include "cli/verb.h"
#include "base/opts.h"
#include "seal/site.h"
#include "run/replay.h"

#include <stdio.h>
#include <string.h>

struct options {
    char *dir;
    int64_t to;
    bool help;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, dir, NEB_OPT_TEXT, "", NULL, "the site's folder (default: its name)"),
    NEB_OPT(struct options, to, NEB_OPT_INT, "0", NULL, "replay: the last record; 0: all"),
    NEB_OPT(struct options, help, NEB_OPT_BOOL, "no", NULL, "show this"),
    NEB_OPT_END,
};

static int usage(FILE *to)
{
    fprintf(
        to,
        "usage: nebula-i site init NAME [--dir DIR]   makes the folder with a new key; prints the identity\n"
        "       nebula-i site show DIR                prints the identity\n"
        "       nebula-i site replay DIR [--to N]     repeats the run from its beginning; prints the state "
        "root\n\n"
        "The identity is public: give it to whoever collects the run's roster. The key in DIR/site.key "
        "never\n"
        "leaves the folder.\n\n");
    neb__opts_help(table, to);
    return to == stdout ? 0 : 2;
}

static int init(const char *name, const char *dir)
{
    char identity[NEB_IDENTITY_SIZE];
    if (neb__site_init(dir ? dir : name, name, identity) != NEB_OK) return 1;
    printf("%s\n", identity);
    return 0;
}

static int show(const char *dir)
{
    char name[NEB_NAME_SIZE], identity[NEB_IDENTITY_SIZE];
    struct neb_public key;
    if (neb__site_identity(dir, name, &key) != NEB_OK) return 1;
    neb__identity_format(name, &key, identity);
    printf("%s\n", identity);
    return 0;
}

/* The root is that of `nebula-i train` and of the status when a site stood at the same record. */
static int replay(const char *dir, int64_t upto)
{
    struct neb_replay r;
    char hex[2 * NEB_HASH_SIZE + 1];
    if (neb__run_replay(dir, upto > 0 ? (uint64_t)upto : 0, &r) != NEB_OK) return 1;
    neb__hash_hex(&r.root, hex);
    printf("record %" PRIu64 ", state root %s (%zu values, %" PRIu64 " rounds, %" PRIu64 " updates, %" PRIu64
           " tokens)\n",
           r.records, hex, r.values, r.rounds, r.updates, r.tokens);
    for (int i = 0; i < NEB_SITES_MAX; i++)
        if (r.steps[i]) printf("member %d: %" PRIu64 " steps\n", i, r.steps[i]);
    return 0;
}

static int run(int argc, char **argv)
{
    struct options o;
    int n = 0, rc;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &n) != NEB_OK)
        rc = 2;
    else if (o.help)
        rc = usage(stdout);
    else if (n == 2 && !strcmp(argv[0], "init"))
        rc = init(argv[1], o.dir);
    else if (n == 2 && !strcmp(argv[0], "show"))
        rc = show(argv[1]);
    else if (n == 2 && !strcmp(argv[0], "replay"))
        rc = replay(argv[1], o.to);
    else
        rc = usage(stderr);
    neb__opts_free(table, &o);
    return rc;
}

const struct neb_verb neb__verb_site = {"site", "init NAME | show DIR | replay DIR",
                                        "make or show a site's key and identity; repeat its run", run};
