/* verb_manual.c: `nebula-i manual [PAGE] [--to FOLDER]`: the man pages, one or all. The build calls it for `cmake --install`. */
#include "cli/verb.h"
#include "base/file.h"
#include "cli/manual.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

struct options {
    char *to;
    bool tables;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, to, NEB_OPT_TEXT, "", NULL,
            "write every page, into the folders man1 and man5 of this one"),
    NEB_OPT(struct options, tables, NEB_OPT_BOOL, "no", NULL,
            "exit statuses, environment and files as Markdown"),
    NEB_OPT_END,
};

enum { PROGRAM = -1, JOB = -2 }; /* pages that are no verb's */

static const struct neb_verb *verb_at(int page)
{
    return neb__verbs[page];
}

static void print_page(int page, FILE *to)
{
    if (page == PROGRAM)
        neb__manual_program(to);
    else if (page == JOB)
        neb__manual_job(to);
    else
        neb__manual_verb(verb_at(page), to);
}

static neb_status path_of(int page, const char *folder, char path[PATH_MAX])
{
    int section = page == JOB ? 5 : 1, n;
    if (page == PROGRAM)
        n = snprintf(path, PATH_MAX, "%s/man%d/nebula-i.%d", folder, section, section);
    else
        n = snprintf(path, PATH_MAX, "%s/man%d/nebula-i-%s.%d", folder, section,
                     page == JOB ? "job" : verb_at(page)->name, section);
    return n < PATH_MAX ? NEB_OK : neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", folder);
}

static neb_status write_page(int page, const char *folder)
{
    char path[PATH_MAX], dir[PATH_MAX];
    NEB_TRY(path_of(page, folder, path));
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    NEB_TRY(neb__file_make_dir(dir, 0755));
    FILE *f = fopen(path, "w");
    if (!f) return neb__fail(NEB_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    print_page(page, f);
    int bad = ferror(f);
    return fclose(f) || bad ? neb__fail(NEB_ERR_IO, "cannot write %s", path) : NEB_OK;
}

static neb_status write_all(const char *folder)
{
    NEB_TRY(write_page(PROGRAM, folder));
    NEB_TRY(write_page(JOB, folder));
    for (int i = 0; neb__verbs[i]; i++) NEB_TRY(write_page(i, folder));
    return NEB_OK;
}

static neb_status page_named(const char *name, int *page)
{
    *page = PROGRAM;
    if (!strcmp(name, "nebula-i")) return NEB_OK;
    if (!strncmp(name, "nebula-i-", 9)) name += 9;
    *page = JOB;
    if (!strcmp(name, "job")) return NEB_OK;
    for (*page = 0; neb__verbs[*page]; ++*page)
        if (!strcmp(name, neb__verbs[*page]->name)) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "no page '%s'; a page is `job` or the name of a verb: nebula-i help lists them", name);
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    int page = PROGRAM;
    if (c->n) NEB_TRY(page_named(c->words[0], &page));
    if (o->to) return write_all(o->to);
    if (o->tables)
        neb__manual_tables(stdout);
    else
        print_page(page, stdout);
    return fflush(stdout) ? neb__fail(NEB_ERR_IO, "cannot write the page") : NEB_OK;
}

const struct neb_verb neb__verb_manual = {
    .name = "manual",
    .args = "[PAGE] [--to FOLDER]",
    .help = "the man page of a verb, or all of them",
    .about = "Prints the source of a man page: nebula-i(1), that of the verb PAGE, or of the job file (PAGE "
             "is `job`).\n"
             "To read it: nebula-i manual train | man -l -",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .most = 1,
    .run = run,
};
