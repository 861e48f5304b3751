/* lab_compare.c: see lab_compare.h.
 *
 * Goodput counts committed tokens alone: work that a kill destroyed, or that came too late to be named, is in no record. It is
 * counted from the first commit to the last, so that the start and the end of the processes are in neither run's figure. Losses
 * are compared at equal tokens, the lesser of the two runs', so a run that was ended by the clock can be judged, too. */
#include "cli/lab_compare.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/lab_summary.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { POINTS = 400 };
#define SHORT 60 /* seconds of commits; status files come every two seconds, which is much of less */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

void neb__lab_arm_watch(struct neb_lab_arm *a, const struct neb_job *job, double now)
{
    double tokens = 0;
    if (now - a->looked < 0.5) return;
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return;
    a->looked = now;
    for (int i = 0; i < job->n_sites; i++)
        if (neb__lab_status(job, i, f)) tokens = fmax(tokens, (double)f->site[f->self].run_tokens);
    neb__free(f);
    if (tokens <= a->last.tokens) return;
    a->last.t = now;
    a->last.tokens = tokens;
    if (!(a->first.tokens > 0)) a->first = a->last;
}

/* What the sites say of the run: its tokens, and whether their states are one. Sites at one record with two roots differ;
 * a site at another record than the others has yet to catch up. */
static neb_status read_statuses(const struct neb_job *job, struct neb_lab_arm *a)
{
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a status");
    struct {
        char root[sizeof f->site[0].root];
        int64_t record;
    } seen[NEB_JOB_SITES] = {0};
    a->root = NEB_ROOT_ONE;
    for (int i = 0; i < job->n_sites; i++) {
        bool read = neb__lab_status(job, i, f);
        const struct neb_site_status *s = &f->site[read ? f->self : 0];
        if (read) snprintf(seen[i].root, sizeof seen[i].root, "%s", s->root);
        seen[i].record = read ? s->root_record : -1;
        if (read) a->tokens = fmax(a->tokens, (double)s->run_tokens);
        if (!*seen[i].root || seen[i].record != seen[0].record)
            a->root = a->root == NEB_ROOT_DIFFERENT ? a->root : NEB_ROOT_UNKNOWN;
        for (int k = 0; k < i; k++)
            if (*seen[i].root && *seen[k].root && seen[k].record == seen[i].record &&
                strcmp(seen[i].root, seen[k].root) != 0)
                a->root = NEB_ROOT_DIFFERENT;
    }
    neb__free(f);
    return NEB_OK;
}

static neb_status sum_tokens(const struct neb_report *r, struct neb_series *out)
{
    for (int k = 0; k <= POINTS; k++) {
        double t = r->seconds * k / POINTS, sum = 0;
        for (int i = 0; i < r->n; i++)
            if (r->site[i].tokens.n && t >= r->site[i].tokens.t[0])
                sum += neb__series_at(&r->site[i].tokens, t);
        NEB_TRY(neb__series_add(out, t, sum));
    }
    return NEB_OK;
}

/* Held-out losses of the first site that has any, since all evaluate the common model; else the mean of the sites' own
 * losses, smoothed by a tenth of the run. */
static neb_status read_losses(const struct neb_report *r, struct neb_lab_arm *a)
{
    for (int i = 0; i < r->n && !a->held_out; i++) {
        const struct neb_series *v = &r->site[i].valid;
        for (int k = 0; k < v->n; k++)
            NEB_TRY(neb__series_add(&a->loss, neb__series_at(&a->trained, v->t[k]), v->v[k]));
        a->held_out = v->n > 0;
    }
    double mean = 0;
    for (int k = 0; k <= POINTS && !a->held_out; k++) {
        double t = r->seconds * k / POINTS, sum = 0;
        int n = 0;
        for (int i = 0; i < r->n; i++) {
            if (!r->site[i].loss.n || t < r->site[i].loss.t[0]) continue;
            sum += neb__series_at(&r->site[i].loss, t);
            n++;
        }
        if (!n) continue;
        mean = a->loss.n ? mean + (sum / n - mean) * fmax(10.0 / POINTS, 1.0 / (a->loss.n + 1)) : sum / n;
        NEB_TRY(neb__series_add(&a->loss, a->trained.v[k], mean));
    }
    return NEB_OK;
}

static neb_status read_report(const struct neb_job *job, struct neb_report *r, struct neb_lab_arm *a)
{
    NEB_TRY(neb__lab_report(job, r));
    NEB_TRY(sum_tokens(r, &a->trained));
    return read_losses(r, a);
}

neb_status neb__lab_arm_read(const struct neb_job *job, struct neb_lab_arm *out)
{
    struct neb_report *r = NEB_NEW(struct neb_report);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for a report");
    neb_status status = read_statuses(job, out);
    if (status == NEB_OK) status = read_report(job, r, out);
    neb__report_free(r);
    neb__free(r);
    return status;
}

void neb__lab_arm_free(struct neb_lab_arm *a)
{
    neb__series_free(&a->trained);
    neb__series_free(&a->loss);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

struct verdict {
    double goodput, loss[2], worse; /* loss: without faults, with them; worse: per cent */
    bool brief;                     /* too short for the goodput to mean anything */
    int faults, kinds[NEB_CHAOS_KINDS];
};

/* Seconds from the first commit to the last. */
static double span(const struct neb_lab_arm *a)
{
    return a->last.t - a->first.t;
}

static double rate(const struct neb_lab_arm *a)
{
    if (span(a) > 1) return (a->last.tokens - a->first.tokens) / span(a);
    return a->tokens / fmax(a->seconds, 1e-9);
}

static struct verdict judge(const struct neb_lab_pair *p)
{
    struct verdict v = {.brief = span(p->calm) < SHORT || span(p->chaos) < SHORT};
    v.goodput = rate(p->calm) > 0 ? rate(p->chaos) / rate(p->calm) : 0;
    double tokens = fmin(neb__series_last(&p->calm->trained), neb__series_last(&p->chaos->trained));
    v.loss[0] = neb__series_at(&p->calm->loss, tokens);
    v.loss[1] = neb__series_at(&p->chaos->loss, tokens);
    v.worse = v.loss[0] > 0 ? 100 * (v.loss[1] / v.loss[0] - 1) : 0;
    for (int i = 0; i < p->faults; i++) {
        v.kinds[p->fault[i].kind] += !p->fault[i].failed;
        v.faults += !p->fault[i].failed;
    }
    return v;
}

static void print_arm(const char *name, const struct neb_lab_arm *a, double loss)
{
    static const char *const roots[] = {"one", "not all known", "DIFFERENT"};
    char tokens[32], per_second[32];
    neb__format_count(a->tokens, tokens, sizeof tokens);
    neb__format_count(rate(a), per_second, sizeof per_second);
    printf("%-15s %9s %10s %8.0f s %8.4f  %s\n", name, tokens, per_second, a->seconds, loss, roots[a->root]);
}

static void print_faults(const struct verdict *v)
{
    printf("%d faults:", v->faults);
    for (int k = 0, first = 1; k < NEB_CHAOS_KINDS; k++) {
        if (!v->kinds[k]) continue;
        printf("%s %d %s", first ? "" : ",", v->kinds[k], neb__chaos_names[k]);
        first = 0;
    }
    printf("\n");
}

static json_t *fault_json(const struct neb_lab_pair *p, const struct neb_chaos_fault *f)
{
    return json_pack("{s:f,s:s,s:s,s:f,s:b}", "time", f->from, "site", p->job->site[f->site].name, "kind",
                     neb__chaos_names[f->kind], "seconds", f->lasts, "happened", !f->failed);
}

static neb_status print_json(const struct neb_lab_pair *p, const struct verdict *v, FILE *to)
{
    const struct neb_lab_arm *calm = p->calm, *chaos = p->chaos;
    json_t *kinds = json_object(), *faults = json_array();
    for (int k = 0; k < NEB_CHAOS_KINDS; k++)
        json_object_set_new(kinds, neb__chaos_names[k], json_integer(v->kinds[k]));
    for (int i = 0; i < p->faults; i++) json_array_append_new(faults, fault_json(p, &p->fault[i]));
    json_t *o = json_pack("{s:f,s:b,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b,s:i,s:o,s:o}", "goodput", v->goodput,
                          "goodput.short", v->brief, "loss", v->loss[1], "loss.calm", v->loss[0],
                          "loss.worse", v->worse, "tokens", chaos->tokens, "tokens.calm", calm->tokens,
                          "seconds", chaos->seconds, "seconds.calm", calm->seconds, "one_root",
                          chaos->root == NEB_ROOT_ONE && calm->root == NEB_ROOT_ONE, "faults.count",
                          v->faults, "kinds", kinds, "faults", faults);
    int bad = o ? json_dumpf(o, to, JSON_INDENT(1)) : -1;
    json_decref(o);
    fprintf(to, "\n");
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for JSON") : NEB_OK;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static neb_status draw_page(const struct neb_lab_pair *pair, const struct verdict *v,
                            const struct neb_report *shaded, struct neb_buf *out)
{
    const struct neb_lab_arm *calm = pair->calm, *chaos = pair->chaos;
    struct neb_plot_line work[] = {{"without faults", 0, &calm->trained, NULL, NULL, false},
                                   {"with faults", 1, &chaos->trained, NULL, NULL, false}};
    struct neb_plot_line loss[] = {{"without faults", 0, &calm->loss, NULL, NULL, false},
                                   {"with faults", 1, &chaos->loss, NULL, NULL, false}};
    struct neb_plot p = {.title = "Tokens of all sites",
                         .says = "shaded: a fault is in force",
                         .x = "time",
                         .y = "tokens",
                         .lines = work,
                         .n = 2,
                         .from_zero = true,
                         .time = true,
                         .run = shaded};
    char says[200];
    snprintf(says, sizeof says, "%d faults; goodput %.1f %% of the run without faults%s; loss %+.2f %%",
             v->faults, 100 * v->goodput, v->brief ? " (too short for a figure)" : "", v->worse);
    NEB_TRY(neb__report_begin("A run under faults", says, out));
    NEB_TRY(neb__plot_lines(&p, out));
    p = (struct neb_plot){.title = "Loss against tokens",
                          .says = calm->held_out ? "of held-out text" : "of the sites' own batches, smoothed",
                          .x = "tokens of all sites",
                          .y = "loss",
                          .lines = loss,
                          .n = 2};
    NEB_TRY(neb__plot_lines(&p, out));
    return neb__report_end(out);
}

static neb_status write_page(const struct neb_lab_pair *p, const struct verdict *v, const char *path)
{
    struct neb_report *shaded = NEB_NEW(struct neb_report);
    struct neb_buf page;
    if (!shaded) return neb__fail(NEB_ERR_NOMEM, "out of memory for a page");
    for (int i = 0; i < p->faults && shaded->gaps < NEB_REPORT_GAPS; i++) {
        const struct neb_chaos_fault *f = &p->fault[i];
        struct neb_report_gap *g = &shaded->gap[shaded->gaps];
        if (f->failed) continue;
        *g = (struct neb_report_gap){.from = f->from, .to = f->to};
        snprintf(g->what, sizeof g->what, "%s %.40s", neb__chaos_names[f->kind], p->job->site[f->site].name);
        shaded->gaps++;
    }
    neb__buf_init(&page, 16 << 20);
    neb_status s = draw_page(p, v, shaded, &page);
    if (s == NEB_OK) s = neb__file_replace(path, page.data, page.len, 0600);
    neb__buf_free(&page);
    neb__free(shaded);
    return s;
}

neb_status neb__lab_compare(const struct neb_lab_pair *p, const char *path, FILE *json)
{
    struct verdict v = judge(p);
    printf("\n%-15s %9s %10s %10s %8s  %s\n", "", "tokens", "tokens/s", "time", "loss", "state root");
    print_arm("without faults", p->calm, v.loss[0]);
    print_arm("with faults", p->chaos, v.loss[1]);
    print_faults(&v);
    printf("goodput %.3f of the run without faults%s; loss %+.2f %% at equal tokens%s\n", v.goodput,
           v.brief ? " (too short for a figure: less than a minute of commits)" : "", v.worse,
           p->calm->held_out ? " (held-out text)" : " (the sites' own batches)");
    NEB_TRY(write_page(p, &v, path));
    printf("plots: %s\n", path);
    return json ? print_json(p, &v, json) : NEB_OK;
}
