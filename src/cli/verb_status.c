/* verb_status.c: `nebula-i status [FOLDER]`: how all sites of a run are getting on, as seen from one of them.
 *
 * The native trainer writes OUT/status.json, with loss and speed; a session of any training loop writes run/status.json in
 * the site's folder. Either holds what this site knows of itself and what the others last told it. */
#include "cli/verb.h"
#include "base/file.h"
#include "base/opts.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { STALE = 10 };

struct options {
    bool json, help;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, json, NEB_OPT_BOOL, "no", NULL, "as it is stored"),
    NEB_OPT(struct options, help, NEB_OPT_BOOL, "no", NULL, "show this"),
    NEB_OPT_END,
};

static int usage(FILE *to)
{
    fprintf(to, "usage: nebula-i status [FOLDER] [--json]\n\nFOLDER is the `out` of a job, or of nebula-i "
                "lab (default: out).\n\n");
    neb__opts_help(table, to);
    return to == stdout ? 0 : 2;
}

/* FOLDER/status.json, or the newest of those one folder below. */
static neb_status find_file(const char *folder, char *out, size_t size)
{
    struct stat st;
    struct dirent *d;
    time_t newest = 0;
    snprintf(out, size, "%s/status.json", folder);
    if (!stat(out, &st)) return NEB_OK;
    snprintf(out, size, "%s/run/status.json", folder);
    if (!stat(out, &st)) return NEB_OK;
    DIR *dir = opendir(folder);
    while (dir && (d = readdir(dir))) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s/status.json", folder, d->d_name) >= (int)sizeof path) continue;
        if (stat(path, &st) || st.st_mtime <= newest) continue;
        newest = st.st_mtime;
        snprintf(out, size, "%s", path);
    }
    if (dir) closedir(dir);
    return newest ? NEB_OK
                  : neb__fail(NEB_ERR_NOTFOUND, "%s: no site writes there; give the `out` of a job", folder);
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static void print_site(const json_t *s, double late)
{
    const json_t *t = json_object_get(s, "time");
    double age = number(s, "age") + late;
    char state[64];
    if (!*text(s, "state"))
        snprintf(state, sizeof state, "not heard of");
    else if (age > STALE && strcmp(text(s, "state"), "done"))
        snprintf(state, sizeof state, "silent for %.0f s", age);
    else
        snprintf(state, sizeof state, "%.40s", text(s, "state"));
    printf("%-12.31s %-13.31s %-18s %8.0f %9.4f %9.0f %8.2f %8.2f  %3.0f %3.0f %3.0f %3.0f  %s\n",
           text(s, "site"), text(s, "role"), state, number(s, "step"), number(s, "loss"),
           number(s, "tokens_per_second"), number(s, "link_out") / 1e6, number(s, "link_in") / 1e6,
           json_number_value(json_array_get(t, 0)), json_number_value(json_array_get(t, 1)),
           json_number_value(json_array_get(t, 2)), json_number_value(json_array_get(t, 3)), text(s, "rung"));
}

/* ---- of a session, whatever trains in it ------------------------------------------------------------------------ */

static void print_member(const json_t *s, double age)
{
    char state[64];
    if (age > 2 * STALE)
        snprintf(state, sizeof state, "silent for %.0f s", age);
    else
        snprintf(state, sizeof state, "%.40s", text(s, "state"));
    printf("%-12.31s %-18s %8.0f %12.0f %8.0f %-6s %-10.16s %6.0f  %.120s\n", text(s, "name"), state,
           number(s, "step"), number(s, "own_tokens"), number(s, "record"),
           json_is_true(json_object_get(s, "leader")) ? "yes" : "", text(s, "rung"), number(s, "interval"),
           text(s, "reason"));
}

static void print_session(const json_t *all, double late)
{
    json_t *others = json_object_get(all, "others"), *other;
    const char *name;
    printf("%.0f s ago\n%-12s %-18s %8s %12s %8s %-6s %-10s %6s  %s\n", late, "site", "state", "step",
           "tokens", "record", "leads", "rung", "H", "why");
    print_member(json_object_get(all, "site"), late);
    json_object_foreach(others, name, other) print_member(other, number(other, "age") + late);
}

static neb_status show(const struct options *o, const char *folder)
{
    char path[PATH_MAX];
    json_error_t e;
    NEB_TRY(find_file(folder, path, sizeof path));
    json_t *all = json_load_file(path, 0, &e), *s;
    if (!all) return neb__fail(NEB_ERR_CORRUPT, "%s: %s", path, e.text);
    double late = (double)time(NULL) - number(all, "written");
    size_t i;
    if (o->json) {
        json_dumpf(all, stdout, JSON_INDENT(1));
        printf("\n");
    } else if (json_object_get(all, "members")) {
        print_session(all, late > 0 ? late : 0);
    } else {
        printf("job %s, strategy %s, %.0f s ago\n", text(all, "job"), text(all, "strategy"),
               late > 0 ? late : 0);
        printf("%-12s %-13s %-18s %8s %9s %9s %8s %8s  %s  %s\n", "site", "role", "state", "step", "loss",
               "tokens/s", "out Mb/s", "in Mb/s", "cmp enc wai rec %", "rung");
        json_array_foreach(json_object_get(all, "sites"), i, s) print_site(s, late > 0 ? late : 0);
    }
    json_decref(all);
    return NEB_OK;
}

static int run(int argc, char **argv)
{
    struct options o;
    int n = 0, code;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &n) != NEB_OK)
        code = 2;
    else if (o.help || n > 1)
        code = usage(o.help ? stdout : stderr);
    else
        code = show(&o, n ? argv[0] : "out") != NEB_OK;
    neb__opts_free(table, &o);
    return code;
}

const struct neb_verb neb__verb_status = {"status", "[FOLDER]", "how the sites of a run are getting on", run};
