/* lab_summary.c: the results of a run in the laboratory: a table of all sites, and the page beside it. */
#include "cli/lab_summary.h"
#include "base/file.h"
#include "base/mem.h"
#include "watch/report.h"
#include "run/lab_sites.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void print_site(const struct neb_report_site *s)
{
    char tokens[32], rate[32], out[32], in[32];
    double seconds = 0, t[NEB_TIMES];
    for (int i = 0; i < NEB_TIMES; i++) seconds += t[i] = neb__series_last(&s->time[i]);
    double n = neb__series_last(&s->tokens);
    neb__format_count(n, tokens, sizeof tokens);
    neb__format_count(seconds > 0 ? n / seconds : 0, rate, sizeof rate);
    neb__format_bytes(neb__series_last(&s->out), out, sizeof out);
    neb__format_bytes(neb__series_last(&s->in), in, sizeof in);
    printf("%-12.12s %-13.13s %9s %9s %9s %9s %11.2f %8.0f s", s->name, s->role, tokens, rate, out, in,
           n > 0 ? neb__series_last(&s->out) / n : 0, seconds);
    for (int i = 0; i < NEB_TIMES; i++) printf(" %7.1f %%", seconds > 0 ? 100 * t[i] / seconds : 0);
    printf("\n");
}

neb_status neb__lab_report(const struct neb_job *job, struct neb_report *r)
{
    char path[PATH_MAX];
    for (int i = 0; i < job->n_sites; i++) {
        neb__lab_site_out(job, job->out, i, path, sizeof path);
        neb_status status = neb__report_add(r, path);
        if (status != NEB_OK && status != NEB_ERR_NOTFOUND) return status;
    }
    neb__report_finish(r);
    return NEB_OK;
}

static neb_status summarise(const struct neb_job *job, struct neb_report *r, struct neb_buf *page)
{
    char path[PATH_MAX];
    NEB_TRY(neb__lab_report(job, r));
    printf("\n%-12s %-13s %9s %9s %9s %9s %11s %10s %9s %9s %9s %9s\n", "site", "role", "tokens", "tokens/s",
           "sent", "received", "sent/token", "time", "compute", "encode", "wait", "recover");
    for (int i = 0; i < r->n; i++) print_site(&r->site[i]);
    NEB_TRY(neb__report_page(r, page));
    snprintf(path, sizeof path, "%s/report.html", job->out);
    NEB_TRY(neb__file_replace(path, page->data, page->len, 0600));
    printf("plots: %s\n", path);
    return NEB_OK;
}

/* Of a site that has a model in the end; in a job of split roles one site alone has it. */
static void say_next(const struct neb_job *job)
{
    char out[PATH_MAX], path[PATH_MAX + 24];
    for (int i = 0; i < job->n_sites; i++) {
        neb__lab_site_out(job, job->out, i, out, sizeof out);
        snprintf(path, sizeof path, "%s/model.safetensors", out);
        if (access(path, F_OK)) continue;
        printf("The model is in %s%s. Next:\n", out,
               job->plan == NEB_STRATEGY_REPLICA ? ", the same at every site" : "");
        printf("  nebula-i status %s     # how every site stands\n", job->out);
        return;
    }
    if (job->plan != NEB_STRATEGY_PIPELINE || job->wan.gather) return;
    printf("Every site has its part of the model. Next:\n  nebula-i export --join");
    for (int i = 0; i < job->n_sites; i++) {
        neb__lab_site_out(job, job->out, i, out, sizeof out);
        printf(" %s", out);
    }
    printf(" %s/model\n", job->out);
}

/* ---- programs of the user's -------------------------------------------------------------------------------------- */

static void status_path(const struct neb_job *job, int i, char *path, size_t size)
{
    char dir[PATH_MAX];
    neb__lab_site_out(job, job->out, i, dir, sizeof dir);
    snprintf(path, size, "%s/status.json", dir);
    if (access(path, F_OK)) snprintf(path, size, "%s/site/run/status.json", dir);
}

bool neb__lab_status(const struct neb_job *job, int i, struct neb_status_file *out)
{
    char path[PATH_MAX + 24];
    status_path(job, i, path, sizeof path);
    return !access(path, F_OK) && neb__status_file_read(path, out) == NEB_OK && out->self >= 0;
}

double neb__lab_status_time(const struct neb_job *job, int i)
{
    char path[PATH_MAX + 24];
    struct stat st;
    status_path(job, i, path, sizeof path);
    return stat(path, &st) ? 0 : (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;
}

static neb_status list_statuses(const struct neb_job *job)
{
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a status");
    printf("\n%-12s %-11s %8s %9s %9s %9s %7s  %s\n", "site", "state", "steps", "tokens", "sent", "received",
           "record", "state root");
    for (int i = 0; i < job->n_sites; i++) {
        char tokens[32], out[32], in[32];
        if (!neb__lab_status(job, i, f)) {
            printf("%-12s no status: the program has not joined the run\n", job->site[i].name);
            continue;
        }
        const struct neb_site_status *s = &f->site[f->self];
        neb__format_count((double)s->own_tokens, tokens, sizeof tokens);
        neb__format_bytes((double)s->sent, out, sizeof out);
        neb__format_bytes((double)s->received, in, sizeof in);
        printf("%-12s %-11s %8" PRId64 " %9s %9s %9s %7" PRId64 "  %.16s\n", s->name, neb__status_state(s),
               s->own_steps, tokens, out, in, s->record, s->root);
    }
    neb__free(f);
    return NEB_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ */

neb_status neb__lab_summary(const struct neb_job *job, bool scripts)
{
    if (scripts) return list_statuses(job);
    struct neb_report *r = NEB_NEW(struct neb_report);
    struct neb_buf page;
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for a report");
    neb__buf_init(&page, 64 << 20);
    neb_status status = summarise(job, r, &page);
    if (status == NEB_OK) say_next(job);
    neb__buf_free(&page);
    neb__report_free(r);
    neb__free(r);
    return status;
}
