/* progress.c: the progress of a training as a line of fields.
 *
 * Every field has a worth. Where the line is wider than the terminal, the fields of the least worth are left out, so the
 * others stay whole. Plain lines have all fields: they go to a file or to another program. */
#include "watch/progress.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/log.h"
#include "watch/report.h"
#include "watch/status.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { REDRAW_NS = 200000000, FIELDS = 12, FIELD = 120, LINE = FIELDS * (FIELD + 2), SPACE = 2 };

struct field {
    char text[FIELD];
    int worth;
    enum neb_console_style style;
};

struct fields {
    struct field list[FIELDS];
    int n;
};

void neb__progress_begin(struct neb_progress_display *s, const char *name, int64_t every, int64_t step)
{
    *s = (struct neb_progress_display){.name = name,
                                       .live = neb__console_redraws(),
                                       .quiet = !neb__log_shows(NEB_LOG_INFO),
                                       .every = every,
                                       .first_step = step,
                                       .step = step,
                                       .printed = step,
                                       .start_ns = neb__now_ns()};
}

double neb__progress_rate(const struct neb_progress_display *s)
{
    double t = neb__seconds_since(s->start_ns);
    return t > 0 ? (double)s->tokens / t : 0;
}

/* ---- the fields -------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void add(struct fields *f, int worth, const char *fmt, ...)
{
    char text[FIELD];
    va_list ap;
    if (f->n == FIELDS) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct field *to = &f->list[f->n++];
    *to = (struct field){.worth = worth};
    neb__status_text(text, to->text, sizeof to->text);
}

/* The time until `goal`, at the pace since the start. */
static double time_to(double first, double now, double goal, double seconds)
{
    return now > first ? seconds / (now - first) * fmax(0, goal - now) : INFINITY;
}

/* Seconds until the first of the ends that the run has; infinite: not known. */
static double seconds_left(const struct neb_progress_display *s)
{
    double t = neb__seconds_since(s->start_ns);
    double left = time_to((double)s->first_step, (double)s->step, (double)s->total, t);
    if (s->target > 0) left = fmin(left, time_to(s->first_reached, s->reached, s->target, t));
    return s->limit_s > 0 ? fmin(left, fmax(0, s->limit_s - t)) : left;
}

static void add_left(struct fields *f, double seconds)
{
    int64_t n = (int64_t)seconds;
    if (!(seconds < 1e8)) return;
    if (n >= 3600)
        add(f, 8, "%d:%02d:%02d left", (int)(n / 3600), (int)(n / 60 % 60), (int)(n % 60));
    else
        add(f, 8, "%d:%02d left", (int)(n / 60), (int)(n % 60));
}

/* A site that has made its steps goes on until the run has ended everywhere: these are told apart. */
static void add_step(struct fields *f, const struct neb_progress_display *s)
{
    int64_t more = s->step > s->total ? s->step - s->total : 0;
    if (more)
        add(f, 10, "step %lld/%lld + %lld", (long long)s->total, (long long)s->total, (long long)more);
    else
        add(f, 10, "step %lld/%lld", (long long)s->step, (long long)s->total);
}

static void add_tokens(struct fields *f, const struct neb_progress_display *s)
{
    char target[32];
    if (s->target <= 0) return;
    neb__format_count(s->target, target, sizeof target);
    add(f, 9, "%.0f %% of %s tokens", floor(100 * fmin(1, s->reached / s->target)), target);
}

static void add_parts(struct fields *f, const char *text)
{
    for (int worth = 4; text && *text; worth--) {
        const char *end = strstr(text, "  ");
        add(f, worth, "%.*s", end ? (int)(end - text) : (int)strlen(text), text);
        if (f->n) f->list[f->n - 1].style = NEB_STYLE_DIM;
        text = end ? end + strspn(end, " ") : NULL;
    }
}

static void collect(const struct neb_progress_display *s, struct fields *f)
{
    f->n = 0;
    add(f, 6, "%s", s->name);
    f->list[0].style = NEB_STYLE_BOLD;
    add_step(f, s);
    add_tokens(f, s);
    add(f, 7, "loss %.4f", s->loss);
    add(f, 0, "lr %.2e", s->lr);
    add(f, 5, "%.0f tokens/s", neb__progress_rate(s));
    if (s->step < s->total && !s->over) add_left(f, seconds_left(s));
    add_parts(f, s->extra);
}

/* ---- the line ---------------------------------------------------------------------------------------------------- */

static int width_of(const struct fields *f)
{
    int sum = 0;
    for (int i = 0; i < f->n; i++) sum += (i ? SPACE : 0) + neb__console_columns(f->list[i].text);
    return sum;
}

static void leave_out_least(struct fields *f)
{
    int least = 0;
    for (int i = 1; i < f->n; i++)
        if (f->list[i].worth < f->list[least].worth) least = i;
    memmove(&f->list[least], &f->list[least + 1], (size_t)(f->n - least - 1) * sizeof *f->list);
    f->n--;
}

static void join(const struct fields *f, bool styled, char *out, size_t size)
{
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < f->n && at < size; i++) {
        const struct field *x = &f->list[i];
        bool style = styled && x->style != NEB_STYLE_PLAIN;
        at += (size_t)snprintf(out + at, size - at, "%*s%s%s%s", i ? SPACE : 0, "",
                               style ? neb__console_begin_style(STDOUT_FILENO, x->style) : "", x->text,
                               style ? neb__console_end_style(STDOUT_FILENO) : "");
    }
}

static void draw(const struct neb_progress_display *s)
{
    struct fields f;
    char line[LINE];
    collect(s, &f);
    while (f.n > 1 && width_of(&f) >= neb__console_width()) leave_out_least(&f);
    join(&f, true, line, sizeof line);
    neb__console_show(line);
}

static void print(struct neb_progress_display *s)
{
    struct fields f;
    char line[LINE];
    collect(s, &f);
    join(&f, false, line, sizeof line);
    neb__console_line(line);
    s->printed = s->step;
}

/* ---- for the trainer --------------------------------------------------------------------------------------------- */

void neb__progress_step(struct neb_progress_display *s, int64_t step, int64_t total, double loss,
                        int64_t tokens, double lr)
{
    s->tokens += tokens;
    s->loss = step - s->first_step <= 1 || s->loss == 0 ? loss : s->loss + 0.05 * (loss - s->loss);
    s->step = step;
    s->total = total;
    s->lr = lr;
    if (s->quiet) return;
    if (!s->live) {
        if (step % s->every == 0 || step == total) print(s);
    } else if (neb__now_ns() - s->drawn_ns >= REDRAW_NS || step == total) {
        s->drawn_ns = neb__now_ns();
        draw(s);
    }
}

void neb__progress_waits(struct neb_progress_display *s, const char *note)
{
    char line[LINE];
    if (!s->live || s->quiet || neb__now_ns() - s->drawn_ns < REDRAW_NS) return;
    s->drawn_ns = neb__now_ns();
    snprintf(line, sizeof line, "%s  step %lld  %s", s->name, (long long)s->step, note);
    neb__status_clean(line);
    neb__console_show(line);
}

void neb__progress_line(struct neb_progress_display *s, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    (void)s;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    neb__status_clean(text);
    neb__console_line(text);
}

void neb__progress_end(struct neb_progress_display *s)
{
    if (s->over) return;
    s->over = true;
    if (!s->quiet && s->step != s->first_step) {
        if (s->live)
            draw(s);
        else if (s->printed != s->step)
            print(s);
    }
    neb__console_keep();
}
