/* report_plot.c: plots as SVG text.
 *
 * A figure is 560 units wide and scales with the page. Colours and type come from the page's style sheet
 * (classes c0 … c7 for the palette), so a dark page needs no other figures. A line has at most one point for
 * each unit of width, the mean of the values that fall there. */
#include "watch/report.h"
#include "base/clamp.h"
#include "base/mem.h"
#include "watch/history.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 560, HEIGHT = 250, LEFT = 56, RIGHT = 14, TOP = 12, BOTTOM = 36, COLORS = 8 };

struct frame {
    double x0, x1, y0, y1, unit; /* unit: of x when it is a time */
    const char *unit_name;
    bool time; /* x is a time */
};

static const char *entity(char c)
{
    switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    default: return NULL;
    }
}

neb_status neb__report_html(struct neb_buf *out, const char *text)
{
    for (; *text; text++) {
        const char *safe = entity(*text);
        NEB_TRY(safe ? neb__buf_append(out, safe, strlen(safe)) : neb__buf_append(out, text, 1));
    }
    return NEB_OK;
}

static double px(const struct frame *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}

static double py(const struct frame *f, double y)
{
    return HEIGHT - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

/* Returns 1, 2 or 5 times a power of ten, so that about `n` of them fit. */
static double tick_step(double span, int n)
{
    double raw = span / n, power = pow(10, floor(log10(raw))), m = raw / power;
    if (m <= 1) return power;
    if (m <= 2) return 2 * power;
    return m <= 5 ? 5 * power : 10 * power;
}

static void choose_unit(struct frame *f, bool time)
{
    double span = f->x1 - f->x0;
    f->unit = 1;
    f->unit_name = time ? "s" : "";
    if (!time || span < 200) return;
    bool minutes = span < 3 * 3600;
    f->unit = minutes ? 60 : 3600;
    f->unit_name = minutes ? "min" : "h";
}

static void widen(struct frame *f, const struct neb_series *s)
{
    for (int i = 0; s && i < s->n; i++) {
        f->x0 = fmin(f->x0, s->t[i]), f->x1 = fmax(f->x1, s->t[i]);
        f->y0 = fmin(f->y0, s->v[i]), f->y1 = fmax(f->y1, s->v[i]);
    }
}

static struct frame find_frame(const struct neb_plot *p)
{
    struct frame f = {INFINITY, -INFINITY, INFINITY, -INFINITY, 1, "", p->time};
    for (int i = 0; i < p->n; i++) {
        widen(&f, p->lines[i].line);
        widen(&f, p->lines[i].dots);
    }
    for (int i = 0; i < p->n && p->ceiling; i++) /* a line far above what is used would flatten it */
        if (neb__series_last(p->lines[i].faint) < 4 * f.y1)
            f.y1 = fmax(f.y1, neb__series_last(p->lines[i].faint));
    if (!isfinite(f.x0)) f = (struct frame){0, 1, 0, 1, 1, "", p->time};
    if (p->time) f.x0 = fmin(0, f.x0);
    if (p->from_zero) f.y0 = fmin(0, f.y0);
    if (f.x1 <= f.x0) f.x1 = f.x0 + 1;
    double room = 0.06 * (f.y1 - f.y0);
    f.y1 = f.y1 > f.y0 ? f.y1 + room : f.y0 + 1;
    if (!p->from_zero && room > 0) f.y0 -= room;
    choose_unit(&f, p->time);
    return f;
}

static int decimals(double step)
{
    if (step >= 1) return 0;
    if (step >= 0.1) return 1;
    return step >= 0.01 ? 2 : 3;
}

static void tick_text(double v, double step, char *out, size_t size)
{
    if (fabs(v) < step * 1e-6) v = 0;
    if (fabs(v) >= 1e4)
        neb__format_count(v, out, size);
    else
        snprintf(out, size, "%.*f", decimals(step), v);
}

static neb_status axes(const struct frame *f, const char *x, const char *y, struct neb_buf *out)
{
    char text[32];
    double sy = tick_step(f->y1 - f->y0, 5), sx = tick_step((f->x1 - f->x0) / f->unit, 7);
    for (double v = ceil(f->y0 / sy) * sy; v <= f->y1; v += sy) {
        tick_text(v, sy, text, sizeof text);
        NEB_TRY(neb__buf_printf(out,
                                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                                "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                                LEFT, WIDTH - RIGHT, py(f, v), py(f, v), LEFT - 6, py(f, v) + 3.5, text));
    }
    for (double v = ceil(f->x0 / f->unit / sx) * sx; v <= f->x1 / f->unit; v += sx) {
        tick_text(v, sx, text, sizeof text);
        NEB_TRY(neb__buf_printf(out,
                                "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                                px(f, v * f->unit), HEIGHT - BOTTOM + 15, text));
    }
    return neb__buf_printf(out,
                           "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
                           "<text class=\"label\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s%s%s</text>"
                           "<text class=\"label\" x=\"%d\" y=\"%d\" text-anchor=\"start\">%s</text>\n",
                           LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - 5,
                           x, *f->unit_name ? ", " : "", f->unit_name, LEFT, TOP - 2, y);
}

/* Draws one point for each unit of width. A step line goes along first, then up. */
/* A silence that is much longer than usual breaks the line: the site was away. */
static double usual_gap(const struct frame *f, const struct neb_series *s)
{
    if (!f->time || s->n < 4) return INFINITY;
    double mean = (s->t[s->n - 1] - s->t[0]) / (s->n - 1);
    return fmax(15, 8 * mean);
}

static neb_status path(const struct frame *f, const struct neb_series *s, bool steps, const char *classes,
                       int color, struct neb_buf *out)
{
    if (!s || !s->n) return NEB_OK;
    double gap = usual_gap(f, s), last = s->t[0];
    NEB_TRY(neb__buf_printf(out, "<path class=\"%s c%d\" d=\"", classes, color % COLORS));
    bool first = true;
    for (int i = 0; i < s->n;) {
        double column = floor(px(f, s->t[i])), x = 0, y = 0;
        int k = 0;
        if (s->t[i] - last > gap) first = true;
        for (; i < s->n && (k == 0 || floor(px(f, s->t[i])) <= column); i++, k++) x += s->t[i], y += s->v[i];
        if (steps) x = s->t[i - 1] * k, y = s->v[i - 1] * k;
        double at = neb__clamp(py(f, y / k), TOP - 8, HEIGHT - BOTTOM);
        if (steps && !first) NEB_TRY(neb__buf_printf(out, "H%.1f", px(f, x / k)));
        NEB_TRY(neb__buf_printf(out, "%s%.1f,%.1f", first ? "M" : "L", px(f, x / k), at));
        first = false;
        last = s->t[i - 1];
    }
    return neb__buf_printf(out, "\"/>\n");
}

static neb_status legend(const struct neb_plot_line *lines, int n, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "<div class=\"legend\">"));
    for (int i = 0; i < n; i++) {
        NEB_TRY(neb__buf_printf(out, "<span><i class=\"c%d\"></i>", lines[i].color % COLORS));
        NEB_TRY(neb__report_html(out, lines[i].name));
        NEB_TRY(neb__buf_printf(out, "</span>"));
    }
    return neb__buf_printf(out, "</div>");
}

static neb_status begin(const char *title, const char *says, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "<figure><h2>%s</h2><p>", title));
    NEB_TRY(neb__report_html(out, says));
    return neb__buf_printf(out, "</p>");
}

/* Shades the times in which a line was down, or what the gap says was in force. */
static neb_status gaps(const struct frame *f, const struct neb_report *r, double top, double bottom,
                       struct neb_buf *out)
{
    for (int i = 0; r && i < r->gaps; i++) {
        const struct neb_report_gap *g = &r->gap[i];
        NEB_TRY(neb__buf_printf(out,
                                "<rect class=\"gap\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
                                "<title>",
                                px(f, g->from), top, fmax(1, px(f, g->to) - px(f, g->from)), bottom - top));
        NEB_TRY(neb__report_html(out, *g->what ? g->what : "a line was down"));
        NEB_TRY(neb__buf_printf(out, " from %.1f to %.1f s</title></rect>\n", g->from, g->to));
        if (!*g->what) continue;
        double x = (px(f, g->from) + px(f, g->to)) / 2 - 3;
        NEB_TRY(neb__buf_printf(out, "<text class=\"shade\" transform=\"translate(%.1f %.1f) rotate(90)\">",
                                x, top + 4));
        NEB_TRY(neb__report_html(out, g->what));
        NEB_TRY(neb__buf_printf(out, "</text>\n"));
    }
    return NEB_OK;
}

/* Columns that cannot be seen, each with the values there: a browser shows them under the pointer, without a script. */
static neb_status values_under_pointer(const struct neb_plot *p, const struct frame *f, struct neb_buf *out)
{
    enum { COLUMNS = 100 };
    char text[48];
    double step = (f->x1 - f->x0) / COLUMNS;
    for (int c = 0; c < COLUMNS; c++) {
        double x = f->x0 + (c + 0.5) * step;
        NEB_TRY(neb__buf_printf(
            out, "<rect class=\"hit\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>",
            px(f, x - step / 2), TOP, px(f, x + step) - px(f, x), HEIGHT - TOP - BOTTOM));
        if (p->time)
            neb__format_seconds(x, text, sizeof text);
        else
            neb__format_count(x, text, sizeof text);
        NEB_TRY(neb__buf_printf(out, "%s %s", p->time ? "after" : p->x, text));
        for (int i = 0; i < p->n; i++) {
            const struct neb_series *s = p->lines[i].line;
            if (!s || !s->n || x < s->t[0] - step || x > s->t[s->n - 1] + step) continue;
            NEB_TRY(neb__buf_printf(out, "\n"));
            NEB_TRY(neb__report_html(out, p->lines[i].name));
            NEB_TRY(neb__buf_printf(out, ": %.4g", neb__series_at(s, x)));
        }
        NEB_TRY(neb__buf_printf(out, "</title></rect>"));
    }
    return NEB_OK;
}

neb_status neb__plot_lines(const struct neb_plot *p, struct neb_buf *out)
{
    struct frame f = find_frame(p);
    int shown = 0;
    NEB_TRY(begin(p->title, p->says, out));
    for (int i = 0; i < p->n; i++) shown += p->lines[i].line && p->lines[i].line->n;
    if (!shown) return neb__buf_printf(out, "<p class=\"none\">nothing was measured</p></figure>\n");
    if (p->n > 1) NEB_TRY(legend(p->lines, p->n, out));
    NEB_TRY(neb__buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", WIDTH,
                            HEIGHT, p->title));
    if (p->time) NEB_TRY(gaps(&f, p->run, TOP, HEIGHT - BOTTOM, out));
    NEB_TRY(axes(&f, p->x, p->y, out));
    for (int i = 0; i < p->n; i++)
        NEB_TRY(
            path(&f, p->lines[i].faint, false, p->ceiling ? "faint limit" : "faint", p->lines[i].color, out));
    for (int i = 0; i < p->n; i++) {
        const struct neb_plot_line *l = &p->lines[i];
        NEB_TRY(path(&f, l->line, l->steps, "line", l->color, out));
        for (int k = 0; l->dots && k < l->dots->n; k++)
            NEB_TRY(neb__buf_printf(
                out, "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%.4g</title></circle>",
                l->color % COLORS, px(&f, l->dots->t[k]), py(&f, l->dots->v[k]), l->dots->v[k]));
    }
    NEB_TRY(values_under_pointer(p, &f, out));
    return neb__buf_printf(out, "</svg></figure>\n");
}

/* ---- bars ---------------------------------------------------------------------------------------------- */

static neb_status bar_row(const struct neb_plot_bars *p, int row, double most, double y, struct neb_buf *out)
{
    const double *v = p->values + row * p->parts;
    double x = 90, sum = 0, width = WIDTH - 90 - 84;
    char text[48];
    NEB_TRY(neb__buf_printf(out, "<text class=\"name\" x=\"82\" y=\"%.1f\" text-anchor=\"end\">", y + 16));
    NEB_TRY(neb__report_html(out, p->row[row]));
    NEB_TRY(neb__buf_printf(out, "</text>"));
    for (int k = 0; k < p->parts; k++) {
        double w = most > 0 ? width * v[k] / most : 0;
        p->format(v[k], text, sizeof text);
        sum += v[k];
        if (w < 0.05) continue;
        NEB_TRY(neb__buf_printf(
            out,
            "<rect class=\"bar c%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"22\" rx=\"2\"><title>%s: "
            "%s</title></rect>",
            (p->color + k) % COLORS, x, y, w > 2.5 ? w - 1.5 : w, p->part[k], text));
        x += w;
    }
    p->format(sum, text, sizeof text);
    return neb__buf_printf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 6, y + 15.5,
                           text);
}

/* A table below the bars has the exact numbers, with a column for each part. */
static neb_status bar_table(const struct neb_plot_bars *p, struct neb_buf *out)
{
    char text[48];
    NEB_TRY(neb__buf_printf(out, "<table><tr><th>site</th>"));
    for (int k = 0; k < p->parts; k++)
        NEB_TRY(
            neb__buf_printf(out, "<th><i class=\"c%d\"></i>%s</th>", (p->color + k) % COLORS, p->part[k]));
    NEB_TRY(neb__buf_printf(out, "</tr>"));
    for (int r = 0; r < p->rows; r++) {
        double sum = 0;
        for (int k = 0; k < p->parts; k++) sum += p->values[r * p->parts + k];
        NEB_TRY(neb__buf_printf(out, "<tr><th>"));
        NEB_TRY(neb__report_html(out, p->row[r]));
        NEB_TRY(neb__buf_printf(out, "</th>"));
        for (int k = 0; k < p->parts; k++) {
            double v = p->values[r * p->parts + k];
            p->format(v, text, sizeof text);
            NEB_TRY(neb__buf_printf(out, "<td>%s <small>%.1f&nbsp;%%</small></td>", text,
                                    sum > 0 ? 100 * v / sum : 0));
        }
        NEB_TRY(neb__buf_printf(out, "</tr>"));
    }
    return neb__buf_printf(out, "</table>");
}

neb_status neb__plot_bars(const struct neb_plot_bars *p, struct neb_buf *out)
{
    double most = 0;
    NEB_TRY(begin(p->title, p->says, out));
    for (int r = 0; r < p->rows; r++) {
        double sum = 0;
        for (int k = 0; k < p->parts; k++) sum += p->values[r * p->parts + k];
        most = sum > most ? sum : most;
    }
    if (!(most > 0)) return neb__buf_printf(out, "<p class=\"none\">nothing was measured</p></figure>\n");
    NEB_TRY(neb__buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", WIDTH, 34 * p->rows + 6));
    for (int r = 0; r < p->rows; r++) NEB_TRY(bar_row(p, r, most, 34.0 * r + 4, out));
    NEB_TRY(neb__buf_printf(out, "</svg>"));
    NEB_TRY(bar_table(p, out));
    return neb__buf_printf(out, "</figure>\n");
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* Draws a bar while the site made steps; the bar is broken while the site was away. */
static neb_status presence(const struct frame *f, const struct neb_series *tokens, double y,
                           struct neb_buf *out)
{
    for (int i = 0; i < tokens->n;) {
        int k = i;
        while (k + 1 < tokens->n && tokens->t[k + 1] - tokens->t[k] < 15) k++;
        NEB_TRY(neb__buf_printf(
            out, "<rect class=\"alive\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"8\" rx=\"3\"/>",
            px(f, tokens->t[i]), y - 4, fmax(2, px(f, tokens->t[k]) - px(f, tokens->t[i]))));
        i = k + 1;
    }
    return NEB_OK;
}

/* Draws the time axis below the rows of a figure. */
static neb_status time_axis(const struct frame *f, int height, struct neb_buf *out)
{
    char text[32];
    double step = tick_step(f->x1 / f->unit, 7);
    for (double v = 0; v <= f->x1 / f->unit; v += step) {
        tick_text(v, step, text, sizeof text);
        NEB_TRY(neb__buf_printf(out,
                                "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                                px(f, v * f->unit), height - 8, text));
    }
    return neb__buf_printf(
        out, "<text class=\"label\" x=\"%d\" y=\"%d\" text-anchor=\"start\">%s</text></svg></figure>\n", 4,
        height - 8, f->unit_name);
}

static neb_status row_name(const struct neb_report *r, int i, double y, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "<text class=\"name\" x=\"%d\" y=\"%.1f\">", LEFT, y - 10));
    NEB_TRY(neb__report_html(out, r->site[i].name));
    return neb__buf_printf(out, "</text>");
}

/* Gives the rung's name of a decision: "sending 2-bit updates (int2e) every 67 steps …", or the word that the sentence begins
 * with; "" for "sending nothing", "Hold" and "auto", which name no rung. */
static void rung_of(const char *text, char out[16])
{
    size_t n = strcspn(text, " :");
    bool sends = !strncmp(text, "sending ", 8);
    const char *open = sends ? strchr(text, '(') : NULL;
    if (open && open - text < 48) text = open + 1, n = strcspn(text, ")"), sends = false;
    snprintf(out, 16, "%.*s", (int)(n < 15 ? n : 15), text);
    if (sends || !strcmp(out, "Hold") || !strcmp(out, "auto")) out[0] = 0;
}

static neb_status rung_bar(const struct frame *f, double from, double to, double y, const char *rung,
                           int color, struct neb_buf *out)
{
    double x = px(f, from), w = fmax(1, px(f, to) - x);
    if (rung[0])
        NEB_TRY(neb__buf_printf(out, "<rect class=\"c%d\"", color % COLORS));
    else
        NEB_TRY(neb__buf_printf(out, "<rect class=\"alive\""));
    NEB_TRY(neb__buf_printf(out, " x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"16\"><title>", x, y - 4, w));
    NEB_TRY(neb__report_html(out, rung[0] ? rung : "nothing sent"));
    NEB_TRY(neb__buf_printf(out, ", %.1f to %.1f s</title></rect>", from, to));
    if (!rung[0] || w <= 9 + 6.5 * (double)strlen(rung)) return neb__buf_printf(out, "\n");
    NEB_TRY(neb__buf_printf(out, "<text class=\"on\" x=\"%.1f\" y=\"%.1f\">", x + 5, y + 8));
    NEB_TRY(neb__report_html(out, rung));
    return neb__buf_printf(out, "</text>\n");
}

/* Draws one row: a bar from each decision that names another rung to the next one. Colours follow the names,
 * in the order of `seen`. */
static neb_status rung_row(const struct frame *f, const struct neb_report_site *s, double end, double y,
                           char seen[COLORS][16], struct neb_buf *out)
{
    char now[16] = "", next[16];
    double since = 0;
    for (int k = 0; k <= s->n_events; k++) {
        bool last = k == s->n_events;
        if (!last && strcmp(s->events[k].kind, "rung")) continue;
        if (!last) rung_of(s->events[k].text, next);
        if (!last && !strcmp(now, next)) continue;
        double until = last ? end : s->events[k].t;
        int color = 0;
        while (color < COLORS - 1 && seen[color][0] && strcmp(seen[color], now)) color++;
        if (now[0]) memcpy(seen[color], now, sizeof now);
        NEB_TRY(rung_bar(f, since, until, y, now, color, out));
        since = until;
        if (!last) memcpy(now, next, sizeof now);
    }
    return NEB_OK;
}

neb_status neb__plot_rungs(const struct neb_report *r, struct neb_buf *out)
{
    struct frame f = {0, r->seconds > 1 ? r->seconds : 1, 0, 1, 1, "", true};
    char seen[COLORS][16] = {{0}};
    int height = 46 * r->n + 34;
    choose_unit(&f, true);
    NEB_TRY(begin("How updates were coded", "the rung of each site; grey: nothing was sent", out));
    NEB_TRY(neb__buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", WIDTH, height));
    NEB_TRY(gaps(&f, r, 4, height - 24, out));
    for (int i = 0; i < r->n; i++) {
        double y = 46.0 * i + 24;
        NEB_TRY(row_name(r, i, y, out));
        NEB_TRY(rung_row(&f, &r->site[i], r->seconds, y, seen, out));
    }
    return time_axis(&f, height, out);
}

neb_status neb__plot_events(const struct neb_report *r, struct neb_buf *out)
{
    struct frame f = {0, r->seconds > 1 ? r->seconds : 1, 0, 1, 1, "", true};
    int height = 40 * r->n + 34;
    choose_unit(&f, true);
    NEB_TRY(begin(
        "Faults and recoveries",
        "green: began, came back, link up; red: a site is lost, halted, left out, named or removed; amber: "
        "waited for the others, late, missed a round, scaled; "
        "grey: a change of leader or rung, a goodbye; shaded, here and above: a line was down",
        out));
    NEB_TRY(neb__buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", WIDTH, height));
    NEB_TRY(gaps(&f, r, 4, height - 24, out));
    for (int i = 0; i < r->n; i++) {
        double y = 40.0 * i + 24;
        NEB_TRY(row_name(r, i, y, out));
        NEB_TRY(presence(&f, &r->site[i].tokens, y, out));
        for (int k = 0; k < r->site[i].n_events; k++) {
            const struct neb_report_event *e = &r->site[i].events[k];
            NEB_TRY(neb__buf_printf(out, "<circle class=\"ev %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"><title>",
                                    neb__event_mood(e->kind, e->text), px(&f, e->t), y));
            NEB_TRY(neb__report_html(out, e->text));
            NEB_TRY(neb__buf_printf(out, "</title></circle>\n"));
        }
    }
    return time_axis(&f, height, out);
}
