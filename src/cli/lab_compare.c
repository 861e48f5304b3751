/* lab_compare.c: see lab_compare.h.
 *
 * Goodput counts committed tokens alone: work that a kill destroyed, or that came too late to be named, is in no record. Losses
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

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* What the sites say of the run: its tokens, and whether their states are one. */
static neb_status read_statuses(const struct neb_job *job, struct neb_lab_arm *a)
{
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a status");
    char root[sizeof f->site[0].root] = "";
    int64_t record = -1;
    a->one_root = true;
    for (int i = 0; i < job->n_sites; i++) {
        bool read = neb__lab_status(job, i, f);
        const struct neb_site_status *s = &f->site[read ? f->self : 0];
        if (read && record < 0) {
            record = s->root_record;
            snprintf(root, sizeof root, "%s", s->root);
        }
        a->one_root = a->one_root && read && *s->root && s->root_record == record && !strcmp(root, s->root);
        if (read) a->tokens = fmax(a->tokens, (double)s->run_tokens);
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
    int kinds[NEB_CHAOS_KINDS];
};

static struct verdict judge(const struct neb_lab_arm *calm, const struct neb_lab_arm *chaos,
                            const struct neb_chaos_fault *fault, int faults)
{
    struct verdict v = {0};
    double rate = calm->tokens / fmax(calm->seconds, 1e-9);
    v.goodput = rate > 0 ? chaos->tokens / fmax(chaos->seconds, 1e-9) / rate : 0;
    double tokens = fmin(neb__series_last(&calm->trained), neb__series_last(&chaos->trained));
    v.loss[0] = neb__series_at(&calm->loss, tokens);
    v.loss[1] = neb__series_at(&chaos->loss, tokens);
    v.worse = v.loss[0] > 0 ? 100 * (v.loss[1] / v.loss[0] - 1) : 0;
    for (int i = 0; i < faults; i++) v.kinds[fault[i].kind]++;
    return v;
}

static void print_arm(const char *name, const struct neb_lab_arm *a, double loss)
{
    char tokens[32], rate[32];
    neb__format_count(a->tokens, tokens, sizeof tokens);
    neb__format_count(a->tokens / fmax(a->seconds, 1e-9), rate, sizeof rate);
    printf("%-15s %9s %10s %8.0f s %8.4f  %s\n", name, tokens, rate, a->seconds, loss,
           a->one_root ? "one" : "DIFFERENT, or not all known");
}

static void print_faults(const struct verdict *v, int faults)
{
    printf("%d faults:", faults);
    for (int k = 0, first = 1; k < NEB_CHAOS_KINDS; k++) {
        if (!v->kinds[k]) continue;
        printf("%s %d %s", first ? "" : ",", v->kinds[k], neb__chaos_names[k]);
        first = 0;
    }
    printf("\n");
}

static neb_status print_json(const struct verdict *v, const struct neb_lab_arm *calm,
                             const struct neb_lab_arm *chaos, int faults, FILE *to)
{
    json_t *kinds = json_object();
    for (int k = 0; k < NEB_CHAOS_KINDS; k++)
        json_object_set_new(kinds, neb__chaos_names[k], json_integer(v->kinds[k]));
    json_t *o =
        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b,s:i,s:o}", "goodput", v->goodput, "loss", v->loss[1],
                  "loss.calm", v->loss[0], "loss.worse", v->worse, "tokens", chaos->tokens, "tokens.calm",
                  calm->tokens, "seconds", chaos->seconds, "seconds.calm", calm->seconds, "one_root",
                  chaos->one_root && calm->one_root, "faults", faults, "kinds", kinds);
    int bad = o ? json_dumpf(o, to, JSON_INDENT(1)) : -1;
    json_decref(o);
    fprintf(to, "\n");
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for JSON") : NEB_OK;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static neb_status draw_page(const struct neb_lab_arm *calm, const struct neb_lab_arm *chaos,
                            const struct verdict *v, const struct neb_report *shaded, int faults,
                            struct neb_buf *out)
{
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
    char says[160];
    snprintf(says, sizeof says, "%d faults; goodput %.1f %% of the run without faults; loss %+.2f %%", faults,
             100 * v->goodput, v->worse);
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

static neb_status write_page(const struct neb_lab_arm *calm, const struct neb_lab_arm *chaos,
                             const struct verdict *v, const struct neb_chaos_fault *fault, int faults,
                             const char *path)
{
    struct neb_report *shaded = NEB_NEW(struct neb_report);
    struct neb_buf page;
    if (!shaded) return neb__fail(NEB_ERR_NOMEM, "out of memory for a page");
    for (int i = 0; i < faults && shaded->gaps < NEB_REPORT_GAPS; i++)
        shaded->gap[shaded->gaps++] = (struct neb_report_gap){fault[i].from, fault[i].to};
    neb__buf_init(&page, 16 << 20);
    neb_status s = draw_page(calm, chaos, v, shaded, faults, &page);
    if (s == NEB_OK) s = neb__file_replace(path, page.data, page.len, 0600);
    neb__buf_free(&page);
    neb__free(shaded);
    return s;
}

neb_status neb__lab_compare(const struct neb_lab_arm *calm, const struct neb_lab_arm *chaos,
                            const struct neb_chaos_fault *fault, int faults, const char *path, FILE *json)
{
    struct verdict v = judge(calm, chaos, fault, faults);
    printf("\n%-15s %9s %10s %10s %8s  %s\n", "", "tokens", "tokens/s", "time", "loss", "state root");
    print_arm("without faults", calm, v.loss[0]);
    print_arm("with faults", chaos, v.loss[1]);
    print_faults(&v, faults);
    printf("goodput %.3f of the run without faults; loss %+.2f %% at equal tokens%s\n", v.goodput, v.worse,
           calm->held_out ? " (held-out text)" : " (the sites' own batches)");
    NEB_TRY(write_page(calm, chaos, &v, fault, faults, path));
    printf("plots: %s\n", path);
    return json ? print_json(&v, calm, chaos, faults, json) : NEB_OK;
}
