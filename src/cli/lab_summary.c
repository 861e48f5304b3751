/* lab_summary.c: the results of a run in the laboratory: a table of all sites, and the page beside it. */
#include "cli/lab_summary.h"
#include "base/file.h"
#include "base/mem.h"
#include "watch/report.h"
#include "run/lab_sites.h"

#include <limits.h>
#include <stdio.h>

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

static neb_status summarise(const struct neb_job *job, struct neb_report *r, struct neb_buf *page)
{
    char path[PATH_MAX];
    for (int i = 0; i < job->n_sites; i++) {
        neb__lab_site_out(job, job->out, i, path, sizeof path);
        neb_status status = neb__report_add(r, path);
        if (status != NEB_OK && status != NEB_ERR_NOTFOUND) return status;
    }
    neb__report_finish(r);
    printf("\n%-12s %-13s %9s %9s %9s %9s %11s %10s %9s %9s %9s %9s\n", "site", "role", "tokens", "tokens/s",
           "sent", "received", "sent/token", "time", "compute", "encode", "wait", "recover");
    for (int i = 0; i < r->n; i++) print_site(&r->site[i]);
    NEB_TRY(neb__report_page(r, page));
    snprintf(path, sizeof path, "%s/report.html", job->out);
    NEB_TRY(neb__file_replace(path, page->data, page->len, 0644));
    printf("plots: %s\n", path);
    return NEB_OK;
}

neb_status neb__lab_summary(const struct neb_job *job)
{
    struct neb_report *r = NEB_NEW(struct neb_report);
    struct neb_buf page;
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for a report");
    neb__buf_init(&page, 64 << 20);
    neb_status status = summarise(job, r, &page);
    neb__buf_free(&page);
    neb__report_free(r);
    neb__free(r);
    return status;
}
