/* verb_site.c: `nebula-i site`: makes and shows the folder that makes a process a site. */
#include "cli/verb.h"
#include "base/opts.h"
#include "seal/site.h"

#include <stdio.h>
#include <string.h>

struct options {
    char *dir;
    bool help;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, dir, NEB_OPT_TEXT, "", NULL, "the site's folder (default: its name)"),
    NEB_OPT(struct options, help, NEB_OPT_BOOL, "no", NULL, "show this"),
    NEB_OPT_END,
};

static int usage(FILE *to)
{
    fprintf(
        to,
        "usage: nebula-i site init NAME [--dir DIR]   makes the folder with a new key; prints the identity\n"
        "       nebula-i site show DIR                prints the identity\n\n"
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
    else
        rc = usage(stderr);
    neb__opts_free(table, &o);
    return rc;
}

const struct neb_verb neb__verb_site = {"site", "init NAME | show DIR",
                                        "make or show a site's key and identity", run};
