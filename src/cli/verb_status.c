/* verb_status.c: `nebula-i status [FOLDER]`: how all sites of a run are getting on, as seen from one of them.
 *
 * The native trainer writes OUT/status.json; a session of any training loop writes run/status.json in the site's folder. Both
 * have the same shape, and hold what this site knows of itself and what the others last told it. Loss and speed are there
 * where the native trainer runs. Texts of other sites come without control characters (watch/status.h). */
#include "cli/verb.h"
#include "base/file.h"
#include "base/mem.h"
#include "watch/status.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { STALE = 15 }; /* seconds; a site speaks every two */

struct options {
    bool json, fields;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, json, NEB_OPT_BOOL, "no", NULL, "as it is stored"),
    NEB_OPT(struct options, fields, NEB_OPT_BOOL, "no", NULL, "list the keys of a status and their meaning"),
    NEB_OPT_END,
};

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

static bool stays(const char *state)
{
    static const char *const last[] = {"done", "ended", "stopped", "halted"};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        if (!strcmp(state, last[i])) return true;
    return false;
}

/* Says what a site does, or how long it has been silent. */
static void describe_state(const struct neb_site_status *s, double age, char *out, size_t size)
{
    const char *state = neb__status_state(s);
    if (!*state)
        snprintf(out, size, "not heard of");
    else if (age > STALE && !stays(state))
        snprintf(out, size, "silent for %.0f s", age);
    else
        snprintf(out, size, "%s", state);
}

/* ---- of the native trainer: loss and speed ---------------------------------------------------------------------- */

static void print_training(const struct neb_status_file *f, double late)
{
    const struct neb_site_status *me = &f->site[f->self];
    char state[64];
    printf("job %s, strategy %s, %.0f s ago\n", me->job, me->strategy, late);
    printf("%-12s %-13s %-18s %8s %9s %9s %8s %8s  %s  %s\n", "site", "role", "state", "step", "loss",
           "tokens/s", "out Mb/s", "in Mb/s", "cmp enc wai rec %", "rung");
    for (int i = 0; i < f->n; i++) {
        const struct neb_site_status *s = &f->site[i];
        describe_state(s, s->age + late, state, sizeof state);
        printf("%-12.31s %-13s %-18s %8" PRId64 " %9.4f %9.0f %8.2f %8.2f  %3.0f %3.0f %3.0f %3.0f  %s\n",
               s->name, s->role, state, s->step, s->loss, s->tokens_per_second, s->link_out / 1e6,
               s->link_in / 1e6, s->share_compute, s->share_encode, s->share_wait, s->share_recover, s->pace);
    }
}

/* ---- of a session, whatever trains in it ------------------------------------------------------------------------ */

static void print_session(const struct neb_status_file *f, double late)
{
    char state[64];
    printf("%.0f s ago\n%-12s %-18s %8s %12s %8s %-6s %-10s %6s  %s\n", late, "site", "state", "step",
           "tokens", "record", "leads", "rung", "H", "why");
    for (int i = 0; i < f->n; i++) {
        const struct neb_site_status *s = &f->site[i];
        describe_state(s, s->age + late, state, sizeof state);
        printf("%-12.31s %-18s %8" PRId64 " %12" PRId64 " %8" PRId64 " %-6s %-10.16s %6" PRId64 "  %.120s\n",
               s->name, state, s->own_steps, s->own_tokens, s->record, s->leader ? "yes" : "", s->rung,
               s->interval, s->reason);
    }
}

/* Says for whom and for what each site waits. */
static void print_waits(const struct neb_status_file *f)
{
    for (int i = 0; i < f->n; i++) {
        const struct neb_site_status *s = &f->site[i];
        if (s->waiting_s > 0 && *s->note && !stays(neb__status_state(s)))
            printf("%.31s, for %.0f s: %s\n", s->name, s->waiting_s, s->note);
    }
}

/* ---- of both ---------------------------------------------------------------------------------------------------- */

/* Sites without a line of their own to the one that wrote this. */
static void print_paths(const struct neb_status_file *f)
{
    for (int i = 0; i < f->n; i++)
        if (*f->site[i].via)
            printf("%.31s reaches %.31s via %.31s\n", f->site[f->self].name, f->site[i].name, f->site[i].via);
}

static void print_refusals(const struct neb_status_file *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->site[i].refused)
            printf("%.31s refused by a quota: %s\n", f->site[i].name, f->site[i].refused_of);
    for (int i = 0; i < f->n; i++)
        if (f->site[i].scaled)
            printf("%.31s made shorter: updates of %s\n", f->site[i].name, f->site[i].scaled_of);
}

static neb_status print_as_stored(const char *path)
{
    json_error_t e;
    json_t *all = json_load_file(path, 0, &e);
    if (!all) return neb__fail(NEB_ERR_CORRUPT, "%s: %s", path, e.text);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    printf("\n");
    json_decref(all);
    return NEB_OK;
}

static neb_status show(const struct options *o, const char *folder)
{
    char path[PATH_MAX];
    NEB_TRY(find_file(folder, path, sizeof path));
    if (o->json) return print_as_stored(path);
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a status");
    neb_status status = neb__status_file_read(path, f);
    if (status == NEB_OK && f->self < 0) status = neb__fail(NEB_ERR_CORRUPT, "%s: no site is in it", path);
    if (status == NEB_OK) {
        double late = fmax(0, (double)(time(NULL) - f->written));
        if (*f->site[f->self].role)
            print_training(f, late);
        else
            print_session(f, late);
        print_waits(f);
        print_paths(f);
        print_refusals(f);
    }
    neb__free(f);
    return status;
}

static neb_status print_fields(void)
{
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    neb_status status = neb__status_fields_table(&b);
    if (status == NEB_OK) fwrite(b.data, 1, b.len, stdout);
    neb__buf_free(&b);
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    if (o->fields) return print_fields();
    return show(o, c->n ? c->words[0] : "out");
}

const struct neb_verb neb__verb_status = {
    .name = "status",
    .args = "[FOLDER] [--json]",
    .help = "how the sites of a run are getting on",
    .about = "FOLDER is the `out` of a job or of nebula-i lab, or a site's folder (default: out).",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .most = 1,
    .run = run,
};
