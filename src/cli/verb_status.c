/* verb_status.c: `nebula-i status [FOLDER]`: how all sites of a run are getting on, as seen from one of them.
 *
 * The native trainer writes OUT/status.json; a session of any training loop writes run/status.json in the site's folder. Both
 * have the same shape, and hold what this site knows of itself and what the others last told it. Loss and speed are there
 * where the native trainer runs. Texts of other sites come without control characters (watch/status.h). */
#include "cli/verb.h"
#include "base/buf.h"
#include "base/mem.h"
#include "watch/view.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct options {
    bool json, fields;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, json, NEB_OPT_BOOL, "no", NULL,
            "as JSON; docs/status.md and docs/watch.md list the keys"),
    NEB_OPT(struct options, fields, NEB_OPT_BOOL, "no", NULL, "list the keys of a status and their meaning"),
    NEB_OPT_END,
};

/* ---- of the native trainer: loss and speed ---------------------------------------------------------------------- */

/* A site that has not measured a loss, such as a teacher, has none. */
static void loss_text(double loss, char *out, size_t size)
{
    if (loss > 0)
        snprintf(out, size, "%.4f", loss);
    else
        snprintf(out, size, "-");
}

static void print_training(const struct neb_view *v, double late)
{
    char loss[24];
    printf("job %s, strategy %s, %.0f s ago\n", v->job, v->strategy, late);
    printf("%-12s %-13s %-18s %8s %9s %9s %8s %8s  %s  %s\n", "site", "role", "state", "step", "loss",
           "tokens/s", "out Mb/s", "in Mb/s", "cmp enc wai rec %", "rung");
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        loss_text(s->loss, loss, sizeof loss);
        printf("%-12.31s %-13s %-18s %8" PRId64 " %9s %9.0f %8.2f %8.2f  %3.0f %3.0f %3.0f %3.0f  %s\n",
               s->name, s->role, v->site[i].shown, s->step, loss, s->tokens_per_second, s->link_out / 1e6,
               s->link_in / 1e6, s->share_compute, s->share_encode, s->share_wait, s->share_recover, s->pace);
    }
}

/* ---- of a session, whatever trains in it ------------------------------------------------------------------------ */

static void print_session(const struct neb_view *v, double late)
{
    printf("%.0f s ago\n%-12s %-18s %8s %12s %8s %-6s %-10s %6s  %s\n", late, "site", "state", "step",
           "tokens", "record", "leads", "rung", "H", "why");
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        printf("%-12.31s %-18s %8" PRId64 " %12" PRId64 " %8" PRId64 " %-6s %-10.16s %6" PRId64 "  %.120s\n",
               s->name, v->site[i].shown, s->own_steps, s->own_tokens, s->record, s->leader ? "yes" : "",
               s->rung, s->interval, s->reason);
    }
}

/* Says for whom and for what each site waits. */
static void print_waits(const struct neb_view *v)
{
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        bool over = v->site[i].health == NEB_HEALTH_DONE || v->site[i].health == NEB_HEALTH_HALTED;
        if (s->waiting_s > 0 && *s->note && !over)
            printf("%.31s, for %.0f s: %s\n", s->name, s->waiting_s, s->note);
    }
}

/* ---- of both ---------------------------------------------------------------------------------------------------- */

/* Sites without a line of their own to the one that wrote this, and lines through relay hosts. */
static void print_paths(const struct neb_view *v)
{
    for (int i = 0; i < v->n_lines; i++) {
        const struct neb_view_line *l = &v->line[i];
        if (*l->via)
            printf("%.31s reaches %.31s via %.31s\n", v->site[l->from].st.name, v->site[l->to].st.name,
                   l->via);
        if (l->up && l->relayed)
            printf("%.31s reaches %.31s through a relay host\n", v->site[l->from].st.name,
                   v->site[l->to].st.name);
    }
}

static void print_refusals(const struct neb_view *v)
{
    for (int i = 0; i < v->n; i++)
        if (v->site[i].st.refused)
            printf("%.31s refused by a quota: %s\n", v->site[i].st.name, v->site[i].st.refused_of);
    for (int i = 0; i < v->n; i++)
        if (v->site[i].st.scaled)
            printf("%.31s made shorter: updates of %s\n", v->site[i].st.name, v->site[i].st.scaled_of);
}

/* Where one site writes, its file has older keys, too, which stay for one release. */
static json_t *with_older_keys(const struct neb_view *v, json_t *view)
{
    char path[PATH_MAX + 16];
    int self = neb__view_find(v, v->self);
    if (self < 0) return view;
    snprintf(path, sizeof path, "%s/status.json", v->site[self].folder);
    json_t *stored = json_load_file(path, 0, NULL);
    if (!json_is_object(stored)) {
        json_decref(stored);
        return view;
    }
    json_object_update(stored, view);
    json_decref(view);
    return stored;
}

static neb_status print_json(const struct neb_view *v)
{
    json_t *all = neb__view_json(v);
    if (!all) return neb__fail(NEB_ERR_NOMEM, "out of memory for a status");
    all = with_older_keys(v, all);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(all);
    return NEB_OK;
}

static void print_table(const struct neb_view *v)
{
    double late = fmax(0, floor(v->now - v->made));
    int self = neb__view_find(v, v->self);
    if (*v->site[self >= 0 ? self : 0].st.role)
        print_training(v, late);
    else
        print_session(v, late);
    print_waits(v);
    print_paths(v);
    print_refusals(v);
}

static neb_status show(const struct options *o, const char *folder)
{
    struct neb_view *v;
    NEB_TRY(neb__view_create(&v));
    neb_status status = neb__view_look(v, folder);
    if (status == NEB_ERR_NOTFOUND) status = neb__fail(status, "%s", neb_last_error());
    if (status == NEB_OK && o->json) status = print_json(v);
    if (status == NEB_OK && !o->json) print_table(v);
    neb__view_free(v);
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
