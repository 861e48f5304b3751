/* report_data.c: reads what the sites measured from their databases and puts it on one clock.
 *
 * A site's counters go on over its restarts, so the site was away while there is a gap in time. Loss is
 * smoothed by a running mean whose memory is a fiftieth of the run: enough to compare two sites by eye, with
 * the raw values faint behind it. */
#include "watch/report.h"
#include "base/mem.h"
#include "base/printable.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

neb_status neb__series_add(struct neb_series *s, double t, double v)
{
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 256;
        double *times = neb__realloc(s->t, (size_t)cap * sizeof *times);
        if (times) s->t = times;
        double *values = times ? neb__realloc(s->v, (size_t)cap * sizeof *values) : NULL;
        if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d values", cap);
        s->v = values;
        s->cap = cap;
    }
    s->t[s->n] = t;
    s->v[s->n++] = v;
    return NEB_OK;
}

void neb__series_free(struct neb_series *s)
{
    neb__free(s->t);
    neb__free(s->v);
    *s = (struct neb_series){0};
}

double neb__series_last(const struct neb_series *s)
{
    return s->n ? s->v[s->n - 1] : 0;
}

double neb__series_at(const struct neb_series *s, double t)
{
    if (!s->n) return 0;
    int low = 0, high = s->n - 1;
    if (t <= s->t[0]) return s->v[0];
    if (t >= s->t[high]) return s->v[high];
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (s->t[mid] <= t)
            low = mid;
        else
            high = mid;
    }
    double span = s->t[high] - s->t[low];
    return span > 0 ? s->v[low] + (s->v[high] - s->v[low]) * (t - s->t[low]) / span : s->v[high];
}

/* ---- reading ------------------------------------------------------------------------------------------- */

struct reading {
    struct neb_series *to;
    neb_status status;
};

static int take(void *arg, int64_t step, double time, double value)
{
    struct reading *r = arg;
    (void)step;
    if (!isfinite(value) || !isfinite(time)) return 1;
    r->status = neb__series_add(r->to, time, value);
    return r->status == NEB_OK;
}

static neb_status read_series(struct neb_metrics *m, const char *name, struct neb_series *to)
{
    struct reading r = {.to = to};
    neb_status status = neb__metrics_range(m, name, -1, INT64_MAX, INT64_MAX, take, &r);
    if (r.status != NEB_OK) return r.status;
    return status == NEB_ERR_NOTFOUND ? NEB_OK : status;
}

struct event_reading {
    struct neb_report_site *site;
    neb_status status;
};

static int take_event(void *arg, int64_t step, double time, const char *kind, const char *text)
{
    struct event_reading *r = arg;
    struct neb_report_site *s = r->site;
    size_t n = (size_t)s->n_events;
    if (!(n & (n - 1))) { /* full at every power of two */
        struct neb_report_event *list = neb__realloc(s->events, (n ? 2 * n : 1) * sizeof *list);
        if (!list) r->status = neb__fail(NEB_ERR_NOMEM, "out of memory for events");
        if (!list) return 0;
        s->events = list;
    }
    struct neb_report_event *e = &s->events[s->n_events++];
    *e = (struct neb_report_event){.t = time, .step = step};
    snprintf(e->kind, sizeof e->kind, "%s", kind);
    snprintf(e->text, sizeof e->text, "%s", text);
    neb__text_clean(e->text); /* it may quote another site */
    return 1;
}

static neb_status read_all(struct neb_metrics *m, struct neb_report_site *s)
{
    const struct {
        const char *name;
        struct neb_series *to;
    } list[] = {{"loss", &s->loss},
                {"valid/loss", &s->valid},
                {"tokens", &s->tokens},
                {"rate", &s->rate},
                {"wan/out", &s->out},
                {"wan/in", &s->in},
                {"wan/goodput_out", &s->goodput_out},
                {"wan/goodput_in", &s->goodput_in},
                {"wan/interval", &s->interval},
                {"wan/peers", &s->peers},
                {"wan/capacity", &s->capacity}};
    char name[64];
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) NEB_TRY(read_series(m, list[i].name, list[i].to));
    for (int i = 0; i < NEB_TIMES; i++) {
        snprintf(name, sizeof name, "time/%s", neb__time_names[i]);
        NEB_TRY(read_series(m, name, &s->time[i]));
    }
    for (int i = 0; i < NEB_METER_KINDS; i++) {
        snprintf(name, sizeof name, "wan/out/%s", neb__kind_names[i]);
        NEB_TRY(read_series(m, name, &s->kind[i]));
    }
    NEB_TRY(neb__report_read_languages(m, s));
    struct event_reading r = {.site = s};
    NEB_TRY(neb__metrics_events(m, take_event, &r));
    return r.status;
}

/* NULL: there is none. */
static char *read_note(struct neb_metrics *m, const char *key)
{
    enum { ROOM = 64 << 10 };
    char *text = neb__malloc(ROOM);
    if (text && neb__metrics_get_note(m, key, text, ROOM) == NEB_OK) return text;
    neb__free(text);
    return NULL;
}

neb_status neb__report_add(struct neb_report *r, const char *dir)
{
    struct neb_metrics *m;
    if (r->n == NEB_REPORT_SITES)
        return neb__fail(NEB_ERR_LIMIT, "a report has at most %d sites", NEB_REPORT_SITES);
    NEB_TRY(neb__metrics_read(dir, &m));
    struct neb_report_site *s = &r->site[r->n++];
    const char *slash = strrchr(dir, '/');
    if (neb__metrics_get_note(m, "site", s->name, sizeof s->name) != NEB_OK)
        snprintf(s->name, sizeof s->name, "%s", slash && slash[1] ? slash + 1 : dir);
    (void)neb__metrics_get_note(m, "role", s->role, sizeof s->role);
    (void)neb__metrics_get_note(m, "rung", s->rung, sizeof s->rung);
    (void)neb__metrics_get_note(m, "job", r->job, sizeof r->job);
    (void)neb__metrics_get_note(m, "task", r->task, sizeof r->task);
    (void)neb__metrics_get_note(m, "strategy", r->strategy, sizeof r->strategy);
    if (!r->job_text) r->job_text = read_note(m, "job_text");
    if (!r->samples) r->samples = read_note(m, "samples");
    if (!r->plan) r->plan = read_note(m, NEB_PLAN_NOTE);
    neb_status status = read_all(m, s);
    neb__metrics_close(m);
    return status;
}

/* ---- one clock ----------------------------------------------------------------------------------------- */

static void each_series(struct neb_report_site *s, void (*fn)(struct neb_series *s, void *arg), void *arg)
{
    struct neb_series *list[] = {&s->loss,     &s->valid, &s->tokens,      &s->rate,
                                 &s->out,      &s->in,    &s->goodput_out, &s->goodput_in,
                                 &s->interval, &s->peers, &s->capacity};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) fn(list[i], arg);
    for (int i = 0; i < NEB_TIMES; i++) fn(&s->time[i], arg);
    for (int i = 0; i < NEB_METER_KINDS; i++) fn(&s->kind[i], arg);
}

static void find_span(struct neb_series *s, void *arg)
{
    double *span = arg;
    for (int i = 0; i < s->n; i++) {
        span[0] = s->t[i] < span[0] ? s->t[i] : span[0];
        span[1] = s->t[i] > span[1] ? s->t[i] : span[1];
    }
}

static void shift(struct neb_series *s, void *arg)
{
    for (int i = 0; i < s->n; i++) s->t[i] -= *(double *)arg;
}

static void release(struct neb_series *s, void *arg)
{
    (void)arg;
    neb__series_free(s);
}

/* Overlapping gaps become one. */
static void add_gap(struct neb_report *r, double from, double to)
{
    for (int i = 0; i < r->gaps; i++) {
        struct neb_report_gap *g = &r->gap[i];
        if (from > g->to + 1 || to < g->from - 1) continue;
        g->from = fmin(g->from, from), g->to = fmax(g->to, to);
        return;
    }
    if (r->gaps < NEB_REPORT_GAPS) r->gap[r->gaps++] = (struct neb_report_gap){.from = from, .to = to};
}

/* A gap lasts from the first sign (a heartbeat without an answer, or a lost link) to the next answer or link. A site
 * that ends in order says goodbye: that is not a gap. */
static void find_gaps(struct neb_report *r, const struct neb_report_site *s)
{
    double since = -1;
    for (int k = 0; k < s->n_events; k++) {
        const struct neb_report_event *e = &s->events[k];
        if (!strcmp(e->kind, "late") && since < 0) since = fmax(0, e->t - 2);
        if (!strcmp(e->kind, "link down") && since < 0) since = e->t;
        bool back = !strcmp(e->kind, "link up") || !strcmp(e->kind, "answers");
        if (back && since >= 0) add_gap(r, since, e->t), since = -1;
    }
    if (since >= 0 && r->seconds - since > 10) add_gap(r, since, r->seconds);
}

void neb__report_finish(struct neb_report *r)
{
    double span[2] = {INFINITY, -INFINITY};
    for (int i = 0; i < r->n; i++) {
        each_series(&r->site[i], find_span, span);
        for (int k = 0; k < r->site[i].n_events; k++) span[0] = fmin(span[0], r->site[i].events[k].t);
    }
    if (!isfinite(span[0])) span[0] = span[1] = 0;
    r->start = span[0];
    r->seconds = span[1] > span[0] ? span[1] - span[0] : 0;
    for (int i = 0; i < r->n; i++) {
        each_series(&r->site[i], shift, &r->start);
        for (int k = 0; k < r->site[i].n_events; k++) r->site[i].events[k].t -= r->start;
        find_gaps(r, &r->site[i]);
    }
}

void neb__report_free(struct neb_report *r)
{
    for (int i = 0; i < r->n; i++) {
        each_series(&r->site[i], release, NULL);
        neb__free(r->site[i].events);
    }
    neb__free(r->job_text);
    neb__free(r->samples);
    neb__free(r->plan);
    *r = (struct neb_report){0};
}

/* ---- numbers as words ---------------------------------------------------------------------------------- */

void neb__format_bytes(double n, char *out, size_t size)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (fabs(n) >= 999.5 && u < 4) n /= 1000, u++;
    snprintf(out, size, u && n < 99.95 ? "%.1f %s" : "%.0f %s", n, units[u]);
}

void neb__format_count(double n, char *out, size_t size)
{
    static const char *const units[] = {"", " k", " M", " G"};
    int u = 0;
    while (fabs(n) >= 9999.5 && u < 3) n /= 1000, u++;
    snprintf(out, size, u && n < 99.95 ? "%.1f%s" : "%.0f%s", n, units[u]);
}

void neb__format_seconds(double s, char *out, size_t size)
{
    if (s < 100)
        snprintf(out, size, "%.1f s", s);
    else if (s < 6000)
        snprintf(out, size, "%d min %02d s", (int)s / 60, (int)s % 60);
    else
        snprintf(out, size, "%d h %02d min", (int)s / 3600, (int)s / 60 % 60);
}
