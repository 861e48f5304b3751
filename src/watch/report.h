/* report.h: a run as one HTML page: the measured values (report_data.c), their plots (report_plot.c), the
 * page (report_page.c). The page stands alone: it loads no script, font or picture. */
#ifndef NEB_WATCH_REPORT_H
#define NEB_WATCH_REPORT_H

#include "base/buf.h"
#include "watch/meter.h"
#include "watch/view.h"

#include <stdbool.h>

enum { NEB_REPORT_SITES = 64, NEB_REPORT_GAPS = 64 };

struct neb_series {
    double *t, *v; /* t: seconds since the run began, or tokens */
    int n, cap;
};

struct neb_report_event {
    double t;
    int64_t step;
    char kind[16], text[400];
};

enum { NEB_REPORT_LANGUAGES = 32 };
#define NEB_PLAN_NOTE "plan" /* of the metrics: what was foreseen of a training, beside what it measured */
#define NEB_LANGUAGES_NOTE \
    "languages" /* of the metrics: the names of held-out languages, separated by blanks */

struct neb_report_site {
    char name[64], role[32], rung[64];
    double start; /* wall clock of its first value */
    struct neb_series loss, valid, tokens, rate, out, in, goodput_out, goodput_in, interval, peers, capacity;
    struct neb_series time[NEB_TIMES], kind[NEB_METER_KINDS];
    struct neb_report_event *events;
    int n_events;
    struct neb_report_language {
        char name[16];
        double loss; /* the last held-out one */
    } language[NEB_REPORT_LANGUAGES];
    int languages; /* 0: there is one, or no such text */
};

/* A time in which a site did not reach another one, or something else was in force. */
struct neb_report_gap {
    double from, to;
    char what[64]; /* is written on its shade; "": a line was down */
};

struct neb_report {
    char job[64], task[32], strategy[32];
    char *job_text, *samples, *plan; /* or NULL */
    const struct neb_view *view;     /* the sites' state and lines, where their status is there; or NULL */
    double start, seconds;           /* wall clock of the first value; until the last one */
    int n, gaps;
    struct neb_report_gap gap[NEB_REPORT_GAPS];
    struct neb_report_site site[NEB_REPORT_SITES];
};

/* Adds a site from the metrics in `dir`; finish() then puts all sites on one clock. Owes a free, also after a
 * failure.
 *   NEB_ERR_NOTFOUND (quiet) the folder has no metrics; NEB_ERR_LIMIT, NEB_ERR_CORRUPT, NEB_ERR_NOMEM */
neb_status neb__report_add(struct neb_report *r, const char *dir);
void neb__report_finish(struct neb_report *r);
void neb__report_free(struct neb_report *r);

/* report_languages.c */
struct neb_metrics;
neb_status neb__report_read_languages(struct neb_metrics *m, struct neb_report_site *s);
neb_status neb__report_languages(const struct neb_report *r, struct neb_buf *out);

double neb__series_last(const struct neb_series *s); /* 0 when empty */
double neb__series_at(const struct neb_series *s,
                      double t); /* value at time t, between two points in proportion */
neb_status neb__series_add(struct neb_series *s, double t, double v);
void neb__series_free(struct neb_series *s);

/* ---- plots --------------------------------------------------------------------------------------------- */

struct neb_plot_line {
    const char *name;
    int color;                      /* of the palette */
    const struct neb_series *line;  /* drawn */
    const struct neb_series *faint; /* behind it, thin; or NULL */
    const struct neb_series *dots;  /* single points; or NULL */
    bool steps;                     /* held until the next value */
};

struct neb_plot {
    const char *title, *says, *x, *y; /* says: one line under the title */
    const struct neb_plot_line *lines;
    int n;
    bool from_zero, time;         /* time: x is seconds */
    const struct neb_report *run; /* whose gaps are shaded; or NULL */
    bool ceiling;                 /* the faint lines are limits, shown where they are near */
};

/* Appends an SVG figure. */
neb_status neb__plot_lines(const struct neb_plot *p, struct neb_buf *out);

/* A bar for each row, cut into parts. values: (rows, parts). */
struct neb_plot_bars {
    const char *title, *says;
    const char *const *row, *const *part;
    int rows, parts;
    const double *values;
    int color; /* of the first part; the next ones follow */
    void (*format)(double value, char *out, size_t size);
};
neb_status neb__plot_bars(const struct neb_plot_bars *p, struct neb_buf *out);

/* How each site coded its updates, on one time axis. */
neb_status neb__plot_rungs(const struct neb_report *r, struct neb_buf *out);

/* The events of each site, on one time axis. */
neb_status neb__plot_events(const struct neb_report *r, struct neb_buf *out);

/* Appends text; & < > " become harmless. */
neb_status neb__report_html(struct neb_buf *out, const char *text);

neb_status neb__report_page(struct neb_report *r, struct neb_buf *out);

/* A page in the same style with figures of the caller's between the two. */
neb_status neb__report_begin(const char *title, const char *says, struct neb_buf *out);
neb_status neb__report_end(struct neb_buf *out);

void neb__format_bytes(double n, char *out, size_t size);
void neb__format_seconds(double s, char *out, size_t size);
void neb__format_count(double n, char *out, size_t size); /* 12.3 k, 4.5 M */

#endif
