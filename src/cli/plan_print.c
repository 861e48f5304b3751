/* plan_print.c: see plan_print.h. */
#include "cli/plan_print.h"
#include "plan/line.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { REASONS = 8 };
static const double gb = 1e9, mib = 0x1p20;

/* ---- for people ----------------------------------------------------------------------------------------------- */

static void duration(double s, char out[32])
{
    if (s < 120)
        snprintf(out, 32, "%.1f s", s);
    else if (s < 7200)
        snprintf(out, 32, "%.1f min", s / 60);
    else if (s < 172800)
        snprintf(out, 32, "%.1f h", s / 3600);
    else
        snprintf(out, 32, "%.1f days", s / 86400);
}

static void bytes_text(double b, char out[32])
{
    if (b >= gb)
        snprintf(out, 32, "%.2f GB", b / gb);
    else if (b >= 1e6)
        snprintf(out, 32, "%.1f MB", b / 1e6);
    else
        snprintf(out, 32, "%.0f kB", b / 1e3);
}

static void print_head(const struct neb_planner_words *w)
{
    const struct neb_planner_order *o = w->order;
    const struct neb_job *j = o->data->job;
    printf("%s: %.1f million trained parameters, %.0f tokens a step, %" PRId64 " steps\n",
           j->name ? j->name : "job", (double)w->plan->values / 1e6, w->plan->tokens, j->train.steps);
    printf("device: %s\n", o->costs->device);
    if (neb__wan_sites(j) < 2) return;
    if (o->line.rate > 0)
        printf("%d sites, line of %.0f Mbit/s and %.0f ms\n", neb__wan_sites(j), o->line.rate / 1e6,
               1e3 * o->line.rtt);
    else
        printf("%d sites; no line is stated (--wan 100mbit,50ms): the updates are those of a line that is "
               "not known yet\n",
               neb__wan_sites(j));
}

static void print_rows(const struct neb_planner_words *w)
{
    const struct neb_planned *p = w->plan;
    const bool wan = p->fit && p->row[0].wan.sites > 1, cost = w->order->price > 0 && wan;
    printf("\n%-34s %12s %12s %12s %10s%s%s\n", "layout", "a process", "step", "tokens/s", "to the end",
           wan ? "    leaves a site" : "", cost ? "       costs   all sites" : "");
    for (int i = 0; i < p->fit && i < w->shown; i++) {
        const struct neb_planner_row *r = &p->row[i];
        char name[96], total[32], out[32];
        neb__planner_row_text(r, name, sizeof name);
        duration(r->total_s, total);
        bytes_text(r->wan.bytes, out);
        printf("%-34s %8.0f MiB %9.4f s  %12.0f %10s", name, r->memory / mib, r->step_s, r->tokens_s, total);
        if (wan) printf(" %16s", out);
        if (cost) printf(" %11.2f %11.2f", r->cost, r->cost_all);
        printf("\n");
    }
    if (!p->fit) printf("no layout fits\n");
}

static void print_best(const struct neb_planner_words *w)
{
    const struct neb_planner_row *r = w->plan->row;
    char name[96];
    if (!w->plan->fit) return;
    neb__planner_row_text(r, name, sizeof name);
    printf("\nbest: %s. Of a step %.4f s are computing, %.4f s exchanges, %.4f s the update", name,
           r->compute_s, r->exchange_s, r->update_s);
    if (r->layout.pipeline > 1 || r->line) printf("; stages idle %.0f %%", 100 * r->idle);
    printf("\n");
    if (r->wan.sites > 1 && !r->line)
        printf("line: rung %s, interval %.0f steps; %s\n", r->wan.rung, r->wan.interval, r->wan.reason);
    if (r->wan.held > 0.5)
        printf("line: too thin for %.0f %% of the intervals; see wan.interval and peft\n", 100 * r->wan.held);
}

/* Reasons that several layouts share are told once. */
static void print_reasons(const struct neb_planner_words *w)
{
    const struct neb_planned *p = w->plan;
    int told = 0;
    for (int i = p->fit; i < p->rows; i++) {
        char name[96];
        int same = 0;
        bool before = false;
        for (int k = p->fit; k < p->rows; k++) {
            if (strcmp(p->row[k].why, p->row[i].why) || !p->row[k].line != !p->row[i].line) continue;
            before |= k < i;
            same++;
        }
        if (before) continue;
        if (!told) printf("\nfell out:\n");
        if (++told > REASONS) break;
        neb__planner_row_text(&p->row[i], name, sizeof name);
        printf("  %s%s: %s\n", name, same > 1 ? " and others" : "", p->row[i].why);
    }
}

/* The whole model in one process, as fast as it would be if it fitted. */
static double tokens_of_a_site(const struct neb_planned *p)
{
    double most = 0;
    for (int i = 0; i < p->rows; i++)
        if (p->row[i].timed && p->row[i].tokens_s > most) most = p->row[i].tokens_s;
    return most;
}

static bool could_be_pipeline(const struct neb_job *j)
{
    const bool trains = j->plan == NEB_STRATEGY_REPLICA || j->plan == NEB_STRATEGY_PIPELINE;
    return trains && neb__wan_sites(j) == j->n_sites && j->n_sites > 1;
}

/* The pipeline that would be taken, or the first that falls out; NULL: none was looked at. */
static const struct neb_planner_row *pipeline_of(const struct neb_planned *p)
{
    for (int i = 0; i < p->rows; i++)
        if (p->row[i].line) return &p->row[i];
    return NULL;
}

static struct neb_wan_pipeline line_of(const struct neb_planner_words *w, const struct neb_planner_row *r)
{
    struct neb_wan_pipeline x;
    neb__wan_pipeline(w->order->data->job, &w->order->line, r->line->cut.sites, tokens_of_a_site(w->plan),
                      r->line->bits, &x);
    return x;
}

static void print_stages(const struct neb_planner_words *w, const struct neb_planner_row *r)
{
    const struct neb_job *j = w->order->data->job;
    for (int i = 0; i < r->line->cut.sites; i++) {
        const struct neb_planner_line_site *s = &r->line->site[i];
        char name[96], out[32];
        neb__planner_layout_text(&s->layout, name, sizeof name);
        bytes_text(s->sent, out);
        if (s->memory > 0)
            printf("  site %s: %s, %d in flight, %.1f MiB a process; %s leave it\n", j->site[i].name, name,
                   s->depth, s->memory / mib, out);
    }
}

static void print_strategy(const struct neb_planner_words *w, bool chosen)
{
    const struct neb_planned *p = w->plan;
    const struct neb_planner_row *r = pipeline_of(p);
    const double held = p->fit && !p->row[0].line ? p->row[0].wan.held : 0;
    if (!w->strategy.known) return;
    if (!w->strategy.fits)
        printf("strategy replica cannot be: the model needs %.0f MiB of a process, and %s %.0f MiB%s\n",
               w->strategy.needs / mib,
               w->strategy.site >= 0     ? "a site allows"
               : w->order->costs->stated ? "the device has"
                                         : "this machine has",
               w->strategy.room / mib, chosen || !r || !r->fits ? "" : "; use strategy: pipeline");
    else if (held > 0.5)
        printf("a site can hold the model, but this line is too thin for most updates of strategy replica: "
               "give it a "
               "longer wan.interval, or train a part of the model (peft)\n");
    else
        printf("strategy replica is faster: a site can hold the model, and its updates cross beside the "
               "computing%s\n",
               chosen ? "; use it" : "");
}

static bool leaves_line_out(const struct neb_job *j)
{
    return j->plan == NEB_STRATEGY_RELAY || j->plan == NEB_STRATEGY_TUTOR;
}

static void print_pipeline(const struct neb_planner_words *w)
{
    const struct neb_job *j = w->order->data->job;
    const bool chosen = j->plan == NEB_STRATEGY_PIPELINE;
    const struct neb_planner_row *r = pipeline_of(w->plan);
    if (leaves_line_out(j))
        printf("\nline: nothing is planned for what strategy %s sends between its sites\n",
               neb__strategy_name(j->plan));
    if (!could_be_pipeline(j) || (!chosen && !(w->order->line.rate > 0) && w->strategy.fits)) return;
    if (r) {
        char cut[64];
        const struct neb_wan_pipeline x = line_of(w, r);
        neb__planner_cut_text(&r->line->cut, cut, sizeof cut);
        printf("\npipeline between the sites, layers %s, %d bits", cut, r->line->bits);
        if (isfinite(x.line_tokens_s)) printf("; the line carries %.0f tokens/s", x.line_tokens_s);
        printf("\n");
        print_stages(w, r);
        if (!j->site[0].layers)
            printf("  sites[].layers and wan.depth say another cut and number in flight\n");
    }
    print_strategy(w, chosen);
}

static void print_privacy(const struct neb_planner_words *w)
{
    const struct neb_planner_privacy *p = &w->privacy;
    if (!p->asked) return;
    printf("\nprivacy: %.0f %s cost epsilon %.4g at delta %.3g, with noise %.4g times the clip", p->releases,
           p->site ? "sweeps" : "steps", p->epsilon, p->delta, p->noise);
    printf("; the noise in the mean update is %.3g times as long as an update may be\n", p->ratio);
    if (!p->usable)
        printf("privacy: unit site is unusable here: nothing can be learned through that noise. It would "
               "take %.3g sites, "
               "or at most %.0f trained values (peft); protect samples instead (privacy.unit: sample)\n",
               p->ratio * p->ratio * fmax(1, neb__wan_sites(w->order->data->job)),
               (double)w->plan->values / (p->ratio * p->ratio));
}

/* ---- for programs --------------------------------------------------------------------------------------------- */

static void json_text(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') putchar('\\');
        if ((unsigned char)*s >= 0x20) putchar(*s);
    }
    putchar('"');
}

/* What is of a pipeline between sites alone. */
static void json_line(const struct neb_planner_row *r, const struct neb_job *j)
{
    const struct neb_planner_line *l = r->line;
    char cut[64];
    neb__planner_cut_text(&l->cut, cut, sizeof cut);
    printf(",\"strategy\":\"pipeline\",\"cut\":\"%s\",\"bits\":%d,\"depth\":%d,\"all_wan_bytes\":%.0f,"
           "\"sites\":[",
           cut, l->bits, l->site[0].depth, l->all_bytes);
    for (int i = 0; i < l->cut.sites; i++) {
        const struct neb_planner_line_site *s = &l->site[i];
        printf("%s{\"name\":", i ? "," : "");
        json_text(j->site[i].name);
        printf(",\"data\":%d,\"tensor\":%d,\"zero\":%d,\"depth\":%d,\"memory_bytes\":%.0f,\"wan_bytes\":%.0f,"
               "\"fits\":"
               "%s}",
               s->layout.data, s->layout.tensor, s->layout.zero, s->depth, s->memory, s->sent,
               s->memory > 0 && (!(s->room > 0) || s->memory <= s->room) ? "true" : "false");
    }
    putchar(']');
}

static void json_row(const struct neb_planner_row *r, const struct neb_job *j)
{
    const struct neb_planner_layout *l = &r->layout;
    printf(
        "{\"data\":%d,\"tensor\":%d,\"pipeline\":%d,\"zero\":%d,\"memory_bytes\":%.0f,\"step_seconds\":%.9g,"
        "\"wan_bytes\":%.0f,\"fits\":%s",
        l->data, l->tensor, r->line ? r->line->cut.sites : l->pipeline, l->zero, r->memory, r->step_s,
        r->wan.bytes, r->fits ? "true" : "false");
    printf(",\"sequence\":%s,\"offload\":\"%s\",\"threads\":%d,\"state_bytes\":%" PRId64
           ",\"run_bytes\":%" PRId64 ",\"host_bytes\":%.0f",
           l->sequence ? "true" : "false", neb__planner_offload_name(l->offload), l->threads, r->state,
           r->runs, r->host);
    printf(
        ",\"compute_seconds\":%.9g,\"exchange_seconds\":%.9g,\"update_seconds\":%.9g,\"idle\":%.4g,\"tokens_"
        "per_second\":"
        "%.9g,\"total_seconds\":%.9g,\"cost\":%.9g,\"cost_all_sites\":%.9g,\"wan_step_bytes\":%.0f,\"rung\":"
        "\"%s\","
        "\"interval\":%.0f",
        r->compute_s, r->exchange_s, r->update_s, r->idle, r->tokens_s, r->total_s, r->cost, r->cost_all,
        r->wan.step_bytes, r->wan.rung, r->wan.interval);
    if (r->line) json_line(r, j);
    if (*r->why) {
        printf(",\"reason\":");
        json_text(r->why);
    }
    putchar('}');
}

static void json_rows(const struct neb_planner_row *row, int n, const struct neb_job *j)
{
    putchar('[');
    for (int i = 0; i < n; i++) {
        if (i) putchar(',');
        json_row(&row[i], j);
    }
    putchar(']');
}

static void json_pipeline(const struct neb_planner_words *w)
{
    const struct neb_planner_row *r = pipeline_of(w->plan);
    if (leaves_line_out(w->order->data->job)) printf(",\"line_planned\":false");
    if (!could_be_pipeline(w->order->data->job)) return;
    if (w->strategy.known) printf(",\"replica_fits\":%s", w->strategy.fits ? "true" : "false");
    if (!r) return;
    const struct neb_wan_pipeline x = line_of(w, r);
    printf(",\"site_pipeline\":{\"wan_bytes\":%.0f,\"bits\":%d", r->line->all_bytes, r->line->bits);
    if (isfinite(x.line_tokens_s))
        printf(",\"line_tokens_per_second\":%.9g,\"tokens_per_second\":%.9g", x.line_tokens_s, r->tokens_s);
    printf(",\"stage_bytes\":[");
    for (int i = 0; i < r->line->cut.sites; i++) printf("%s%.0f", i ? "," : "", r->line->site[i].memory);
    printf("]}");
}

static void print_json(const struct neb_planner_words *w)
{
    const struct neb_planned *p = w->plan;
    const struct neb_planner_order *o = w->order;
    printf("{\"layouts\":");
    json_rows(p->row, p->fit < w->shown ? p->fit : w->shown, o->data->job);
    printf(",\"rejected\":");
    json_rows(p->row + p->fit, p->rows - p->fit, o->data->job);
    printf(",\"parameters\":%" PRId64 ",\"tokens\":%.0f,\"stated\":%s,\"device\":", p->values, p->tokens,
           o->costs->stated ? "true" : "false");
    json_text(o->costs->device);
    json_pipeline(w);
    const struct neb_planner_privacy *y = &w->privacy;
    if (y->asked)
        printf(",\"privacy\":{\"epsilon\":%.9g,\"delta\":%.9g,\"noise\":%.9g,\"noise_over_update\":%.9g,"
               "\"usable\":%s}",
               y->epsilon, y->delta, y->noise, y->ratio, y->usable ? "true" : "false");
    printf("}\n");
}

void neb__planner_print(const struct neb_planner_words *w)
{
    if (w->json) {
        print_json(w);
        return;
    }
    print_head(w);
    print_rows(w);
    print_best(w);
    print_reasons(w);
    print_pipeline(w);
    print_privacy(w);
}
