/* watch_text.c: a run in a terminal, also over ssh: `nebula-i watch --text`.
 *
 * The page is made as lines of text that fit the terminal, then drawn over the old one, so nothing flickers. The first lines
 * matter most: a terminal of 80 by 24 shows the run, its sites and what is wrong; a larger one also the lines and more of what
 * happened. Where the output is not a terminal the page is printed once. */
#include "base/buf.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cli/watch_loop.h"
#include "watch/report.h"

#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

struct screen {
    struct neb_buf text;
    int columns, rows, used;
    bool colors;
};

enum color { PLAIN, GOOD, SLOW, BAD, DIM, BOLD };
static const char *const codes[] = {"", "\033[32m", "\033[33m", "\033[31;1m", "\033[2m", "\033[1m"};

static void find_size(struct screen *s)
{
    struct winsize w = {0};
    const char *columns = getenv("COLUMNS"), *rows = getenv("LINES");
    s->columns = columns ? atoi(columns) : 80;
    s->rows = rows ? atoi(rows) : 24;
    if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_col) s->columns = w.ws_col, s->rows = w.ws_row;
    if (s->columns < 40) s->columns = 40;
    if (s->rows < 8) s->rows = 8;
}

/* Bytes of the first `columns` characters of a text. */
static size_t fitting(const char *text, int columns)
{
    size_t n = 0;
    for (; text[n]; n++)
        if ((text[n] & 0xc0) != 0x80 && columns-- == 0) break;
    return n;
}

/* One line, cut to the width; false: the screen is full. */
static bool line(struct screen *s, enum color color, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static bool line(struct screen *s, enum color color, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (s->used >= s->rows - 1) return false;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    s->used++;
    bool colored = s->colors && color != PLAIN;
    return neb__buf_printf(&s->text, "%s%.*s%s%s\n", colored ? codes[color] : "",
                           (int)fitting(text, s->columns), text, colored ? "\033[0m" : "",
                           s->colors ? "\033[K" : "") == NEB_OK;
}

static enum color color_of(enum neb_health h)
{
    switch (h) {
    case NEB_HEALTH_GOOD: return PLAIN;
    case NEB_HEALTH_DONE: return GOOD;
    case NEB_HEALTH_WAITING:
    case NEB_HEALTH_LATE: return SLOW;
    case NEB_HEALTH_UNKNOWN: return DIM;
    default: return BAD;
    }
}

static const char *words_on_roots(const struct neb_view *v)
{
    if (!v->roots_agree) return ", STATE ROOTS DIFFER";
    return v->roots > 1 ? ", state roots agree" : "";
}

static void put_head(struct screen *s, const struct neb_view *v)
{
    char tokens[32], rate[32], left[32] = "", bar[64] = "", when[32];
    time_t now = (time_t)v->now;
    struct tm tm;
    neb__format_count((double)v->tokens, tokens, sizeof tokens);
    neb__format_count(v->tokens_per_second, rate, sizeof rate);
    if (v->seconds_left > 0) neb__format_seconds(v->seconds_left, left, sizeof left);
    for (int i = 0; i < 20 && v->progress >= 0; i++) bar[i] = i < (int)(20 * v->progress) ? '#' : '.';
    strftime(when, sizeof when, "%H:%M:%S", localtime_r(&now, &tm));
    line(s, BOLD, "%s, %d site%s%s%s   %s", *v->job ? v->job : "run", v->n, v->n == 1 ? "" : "s",
         *v->strategy ? ", " : "", v->strategy, when);
    if (v->progress >= 0)
        line(s, PLAIN, "[%s] %.1f %%%s%s%s", bar, 100 * v->progress, v->ended ? ", ended" : "",
             *left ? ", until the end about " : "", left);
    line(s, PLAIN, "%s tokens, %s tokens/s, loss %.4f, record %lld%s", tokens, rate, v->loss,
         (long long)v->record, words_on_roots(v));
}

static void put_sites(struct screen *s, const struct neb_view *v)
{
    int room = s->rows - s->used - 7;
    if (room < 3) room = 3;
    line(s, DIM, "%-14s %-20s %9s %8s %10s %9s %8s  %s", "site", "state", "step", "loss", "tokens/s",
         "sends Mb/s", "record", "coded");
    for (int i = 0; i < v->n && i < room; i++) {
        const struct neb_site_status *st = &v->site[i].st;
        char loss[16] = "-", rate[24];
        if (st->loss > 0) snprintf(loss, sizeof loss, "%.4f", st->loss);
        neb__format_count(st->tokens_per_second, rate, sizeof rate);
        line(s, color_of(v->site[i].health), "%-14.14s %-20.20s %9lld %8s %10s %9.2f %8lld  %s", st->name,
             v->site[i].shown, (long long)st->step, loss, rate, st->link_out / 1e6, (long long)st->record,
             st->pace);
    }
    if (v->n > room) line(s, DIM, "and %d more sites; a larger terminal shows them", v->n - room);
}

static void put_trouble(struct screen *s, const struct neb_view *v)
{
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *st = &v->site[i].st;
        if (st->waiting_s > 0 && *st->note && v->site[i].health != NEB_HEALTH_DONE)
            line(s, SLOW, "%s, for %.0f s: %s", st->name, st->waiting_s, st->note);
        if (st->nonfinite)
            line(s, BAD, "%s: the loss of %lld steps was not finite", st->name, (long long)st->nonfinite);
        if (st->disk_full) line(s, BAD, "%s: the disk is full", st->name);
        if (v->site[i].root_differs) line(s, BAD, "%s says another state root than a site here", st->name);
        if (st->epsilon_spent > 0 || st->epsilon_limit > 0)
            line(s, st->epsilon_limit > 0 && st->epsilon_spent >= 0.9 * st->epsilon_limit ? BAD : DIM,
                 "%s: privacy epsilon %.3g of %.3g, delta %.1e", st->name, st->epsilon_spent,
                 st->epsilon_limit, st->epsilon_delta);
    }
    for (int i = 0; i < v->n_lines; i++) {
        const struct neb_view_line *l = &v->line[i];
        bool over = v->site[l->from].health == NEB_HEALTH_DONE || v->site[l->to].health == NEB_HEALTH_DONE;
        if (!l->up && !over && l->from < l->to)
            line(s, BAD, "the line from %s to %s is down", v->site[l->from].st.name, v->site[l->to].st.name);
    }
}

/* The lines, where there is room for them. */
static void put_lines(struct screen *s, const struct neb_view *v)
{
    if (s->rows - s->used < v->n_lines + 6) return;
    for (int i = 0; i < v->n_lines; i++) {
        const struct neb_view_line *l = &v->line[i];
        if (l->up)
            line(s, DIM, "%s -> %s: %.2f of %.1f Mbit/s, round trip %.0f ms, loss %.2f %%%s",
                 v->site[l->from].st.name, v->site[l->to].st.name, fmax(0, l->out_bps) / 1e6,
                 l->goodput_bps / 1e6, l->rtt_ms, 100 * l->loss, l->relayed ? ", through a relay host" : "");
    }
}

static enum color color_of_mood(const char *mood)
{
    if (mood && !strcmp(mood, "bad")) return BAD;
    return mood && !strcmp(mood, "slow") ? SLOW : DIM;
}

static void put_event(struct screen *s, const json_t *e)
{
    const char *mood = json_string_value(json_object_get(e, "mood"));
    time_t t = (time_t)json_number_value(json_object_get(e, "time"));
    struct tm tm;
    char when[32];
    strftime(when, sizeof when, "%H:%M:%S", localtime_r(&t, &tm));
    line(s, color_of_mood(mood), "%s %s %s: %s", when, json_string_value(json_object_get(e, "site")),
         json_string_value(json_object_get(e, "kind")), json_string_value(json_object_get(e, "text")));
}

/* Where there is room for them and for some events. */
static void put_samples(struct screen *s, struct neb_history *h)
{
    char *text = neb__history_note(h, "samples"), *rest = NULL;
    int room = s->rows - 1 - s->used - 3;
    if (room < 6) {
        neb__free(text);
        return;
    }
    for (char *l = text ? strtok_r(text, "\n", &rest) : NULL; l && room > 0;
         l = strtok_r(NULL, "\n", &rest), room--) {
        neb__text_clean(l);
        line(s, PLAIN, "%s", l);
    }
    neb__free(text);
}

/* Several sites tell: in the order of time, and of one time as they came. */
static int by_time(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    double d = json_number_value(json_object_get(x, "time")) - json_number_value(json_object_get(y, "time"));
    if (d < 0 || d > 0) return d < 0 ? -1 : 1;
    json_int_t n = json_integer_value(json_object_get(x, "n")),
               m = json_integer_value(json_object_get(y, "n"));
    return (n > m) - (n < m);
}

static void put_events(struct screen *s, struct neb_history *h)
{
    struct neb_buf b;
    neb__buf_init(&b, 8 << 20);
    json_t *all = neb__history_events_json(h, 0, &b) == NEB_OK
                      ? json_loadb((const char *)b.data, b.len, 0, NULL)
                      : NULL;
    json_t *list = json_object_get(all, "events");
    size_t n = json_array_size(list), room = (size_t)(s->rows - 1 - s->used);
    json_t **sorted = NEB_NEW_ARRAY(json_t *, n + 1);
    for (size_t i = 0; sorted && i < n; i++) sorted[i] = json_array_get(list, i);
    if (sorted) qsort(sorted, n, sizeof *sorted, by_time);
    for (size_t i = n > room ? n - room : 0; sorted && i < n; i++) put_event(s, sorted[i]);
    neb__free(sorted);
    json_decref(all);
    neb__buf_free(&b);
}

static void draw(struct screen *s, const struct neb_view *v, struct neb_history *h, bool live)
{
    neb__buf_clear(&s->text);
    s->used = 0;
    if (!v->n) {
        line(s, PLAIN, "no site writes there yet");
    } else {
        put_head(s, v);
        put_sites(s, v);
        put_trouble(s, v);
        put_lines(s, v);
        put_samples(s, h);
        put_events(s, h);
    }
    if (live) printf("\033[H");
    fwrite(s->text.data, 1, s->text.len, stdout);
    if (live) printf("\033[J\033[2mq ends\033[0m\033[K");
    fflush(stdout);
}

/* Waits; true: q was pressed. */
static bool wait_for_key(double seconds)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char c = 0;
    if (poll(&p, 1, (int)(1000 * seconds)) <= 0) return false;
    return read(STDIN_FILENO, &c, 1) <= 0 || c == 'q' || c == 'Q' || c == 3;
}

neb_status neb__watch_text(const char *folder, const struct neb_watch_options *o)
{
    struct neb_view *v;
    struct neb_history *h = NULL;
    struct termios before, raw;
    bool live = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &before);
    struct screen s = {.colors = live && !(getenv("NO_COLOR") && *getenv("NO_COLOR"))};
    (void)o;
    NEB_TRY(neb__view_create(&v));
    neb__buf_init(&s.text, 1 << 20);
    neb_status status = neb__history_create(&h);
    if (status == NEB_OK && live) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
        printf("\033[?1049h\033[?25l\033[2J");
    }
    for (bool more = status == NEB_OK; more; more = live && !neb__watch_ended() && !wait_for_key(1)) {
        find_size(&s);
        status = neb__view_look(v, folder);
        if (status == NEB_ERR_NOTFOUND && live) status = NEB_OK; /* it may begin yet */
        if (status != NEB_OK) break;
        while (neb__history_update(h, v) == NEB_ERR_AGAIN && !live) {
        } /* a terminal gets the rest at its next look */
        draw(&s, v, h, live);
    }
    if (live) {
        printf("\033[?25h\033[?1049l");
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
        fflush(stdout);
    }
    if (status == NEB_ERR_NOTFOUND) status = neb__fail(status, "%s", neb_last_error());
    neb__history_free(h);
    neb__view_free(v);
    neb__buf_free(&s.text);
    return status;
}
