/* report_page.c: the page: the results in a few numbers, then the plots,
 * then a table of everything that happened. */
#include "watch/report.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char style[] =
    ":root{--bg:#fbfbfa;--card:#fff;--ink:#1d1f23;--dim:#646a73;--line:#e4e5e8;--c0:#2a6fdb;--c1:#d9641e;--"
    "c2:#17936b;"
    "--c3:#a03fb8;--c4:#3f8fd2;--c5:#2bb3a3;--c6:#e5a823;--c7:#cf3f4f}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#17181b;--card:#1f2125;--ink:#e9eaec;--dim:#9aa0a9;--line:#"
    "34373d;"
    "--c0:#6ea3f5;--c1:#f09055;--c2:#4cc69b;--c3:#cf80e2;--c4:#62aeea;--c5:#52cfc0;--c6:#f0c04f;--c7:#ef7380}"
    "}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 "
    "system-ui,sans-serif}\n"
    "main{max-width:1240px;margin:0 auto;padding:28px 20px 60px}h1{font-size:26px;margin:0 0 "
    "2px}.sub{color:var(--dim);"
    "margin:0 0 22px}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(270px,1fr));gap:14px;margin-bottom:"
    "14px}"
    ".tile,figure{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px "
    "16px;margin:0}\n"
    ".tile h3{margin:0 0 6px;font-size:15px}.tile h3 span{color:var(--dim);font-weight:400}.tile "
    "dl{display:grid;"
    "grid-template-columns:auto auto;gap:2px 12px;margin:0}.tile dt{color:var(--dim)}.tile "
    "dd{margin:0;text-align:right;"
    "font-variant-numeric:tabular-nums}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr));gap:14px}figure "
    "h2{font-size:15px;margin:0}"
    "figure p{color:var(--dim);font-size:13px;margin:2px 0 8px}.wide{grid-column:1/-1}\n"
    "svg{width:100%;height:auto;display:block}.grid{stroke:var(--line)}.axis{stroke:var(--dim)}.tick,.label,."
    "name{fill:var(--dim);"
    "font-size:11px}.name{fill:var(--ink);font-size:12px}\n"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}.faint{fill:none;stroke-width:1;opacity:.28}\n"
    "path.c0,i.c0{stroke:var(--c0);background:var(--c0)}path.c1,i.c1{stroke:var(--c1);background:var(--c1)}"
    "path.c2,i.c2{stroke:var(--c2);background:var(--c2)}path.c3,i.c3{stroke:var(--c3);background:var(--c3)}"
    "path.c4,i.c4{stroke:var(--c4);background:var(--c4)}path.c5,i.c5{stroke:var(--c5);background:var(--c5)}"
    "path.c6,i.c6{stroke:var(--c6);background:var(--c6)}path.c7,i.c7{stroke:var(--c7);background:var(--c7)}\n"
    ".dot{stroke:var(--card);stroke-width:1.5}rect.c0,.dot.c0{fill:var(--c0)}rect.c1,.dot.c1{fill:var(--c1)}"
    "rect.c2,.dot.c2"
    "{fill:var(--c2)}rect.c3,.dot.c3{fill:var(--c3)}rect.c4{fill:var(--c4)}rect.c5{fill:var(--c5)}rect.c6{"
    "fill:var(--c6)}"
    "rect.c7{fill:var(--c7)}.alive{fill:var(--line)}.ev{stroke:var(--card);stroke-width:1.5}.good{fill:var(--"
    "c2)}"
    ".stack{display:grid;gap:14px;align-content:start}.gap{fill:var(--c7);opacity:.12}.shade{fill:var(--dim);"
    "font-size:9px}.on{fill:#fff;font-"
    "size:11px}.log td:first-child,.log "
    "td:nth-child(4){white-space:nowrap}\n"
    ".hit{fill:transparent}.hit:hover{fill:var(--dim);opacity:.18}.limit{stroke-dasharray:6 "
    "4;opacity:.7}pre{white-space:pre-wrap;font-size:13px;overflow:auto}"
    ".gone,.halted{color:var(--c7);font-weight:600}.late,.waiting{color:var(--c1)}\n"
    ".bad{fill:var(--c7)}.slow{fill:var(--c6)}.plain{fill:var(--dim)}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:4px "
    "16px;font-size:13px;margin-bottom:4px}i{display:inline-block;width:10px;"
    "height:10px;border-radius:3px;margin-right:6px}\n"
    "table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}th,td{text-"
    "align:right;padding:4px "
    "8px;border-top:1px solid var(--line);font-weight:400}tr:first-child "
    "th{border:0;color:var(--dim)}th:first-child{text-align:"
    "left}small{color:var(--dim)}.log td,.log th{text-align:left}.none{padding:20px "
    "0}footer{color:var(--dim);font-size:13px;"
    "margin-top:22px}\n";

/* ---- at the top ---------------------------------------------------------------------------------------- */

static double total_time(const struct neb_report_site *s)
{
    double sum = 0;
    for (int i = 0; i < NEB_TIMES; i++) sum += neb__series_last(&s->time[i]);
    return sum;
}

static neb_status entry(struct neb_buf *out, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static neb_status entry(struct neb_buf *out, const char *name, const char *fmt, ...)
{
    char text[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return neb__buf_printf(out, "<dt>%s</dt><dd>%s</dd>", name, text);
}

/* The state that the status has, as every other view of the run says it. */
static neb_status state_entry(const struct neb_report *r, const struct neb_report_site *s,
                              struct neb_buf *out)
{
    int at = r->view ? neb__view_find(r->view, s->name) : -1;
    if (at < 0) return NEB_OK;
    const struct neb_view_site *v = &r->view->site[at];
    NEB_TRY(neb__buf_printf(out, "<dt>state</dt><dd class=\"%s\">", neb__health_name(v->health)));
    NEB_TRY(neb__report_html(out, v->shown));
    return neb__buf_printf(out, "</dd>");
}

static neb_status privacy_entry(const struct neb_report *r, const struct neb_report_site *s,
                                struct neb_buf *out)
{
    int at = r->view ? neb__view_find(r->view, s->name) : -1;
    const struct neb_site_status *st = at < 0 ? NULL : &r->view->site[at].st;
    if (!st || !(st->epsilon_spent > 0)) return NEB_OK;
    if (!(st->epsilon_limit > 0)) return entry(out, "privacy", "epsilon %.3g", st->epsilon_spent);
    return entry(out, "privacy", "epsilon %.3g of %.3g", st->epsilon_spent, st->epsilon_limit);
}

/* Bytes of fp32 gradients at every step of the sites in the report, over all starts as `sent` is. The view has it since the
 * last start. */
static double fp32_bytes(const struct neb_report *r)
{
    double sum = 0;
    for (int i = 0; r->view && i < r->n; i++) {
        int at = neb__view_find(r->view, r->site[i].name);
        const struct neb_site_status *st = at >= 0 ? &r->view->site[at].st : NULL;
        if (st) sum += 4 * (double)st->trainable * (double)st->step;
    }
    return sum;
}

/* All sites together, where there are several. */
static neb_status total_tile(const struct neb_report *r, struct neb_buf *out)
{
    double tokens = 0, sent = 0, compute = 0, seconds = 0, trained = 0;
    char text[48];
    if (r->n < 2) return NEB_OK;
    for (int i = 0; i < r->n; i++) {
        const struct neb_report_site *s = &r->site[i];
        double t = total_time(s), own = neb__series_last(&s->tokens);
        tokens += own;
        sent += neb__series_last(&s->out);
        seconds += t;
        compute += neb__series_last(&s->time[NEB_TIME_COMPUTE]);
        trained += t > 0 ? own / t : 0;
    }
    NEB_TRY(neb__buf_printf(out, "<div class=\"tile\"><h3>all sites <span>together</span></h3><dl>"));
    neb__format_count(tokens, text, sizeof text);
    NEB_TRY(entry(out, "tokens trained", "%s", text));
    neb__format_count(trained, text, sizeof text);
    NEB_TRY(entry(out, "tokens a second", "%s", text));
    neb__format_bytes(sent, text, sizeof text);
    NEB_TRY(entry(out, "sent", "%s", text));
    if (fp32_bytes(r) > 0) {
        neb__format_bytes(fp32_bytes(r), text, sizeof text);
        NEB_TRY(entry(out, "fp32 gradients would be", "%s", text));
    }
    if (r->view && r->view->roots)
        NEB_TRY(entry(out, "state roots", "%s", r->view->roots_agree ? "agree" : "differ"));
    NEB_TRY(entry(out, "time computing", "%.1f %%", seconds > 0 ? 100 * compute / seconds : 0));
    return neb__buf_printf(out, "</dl></div>\n");
}

static neb_status tile(const struct neb_report *r, const struct neb_report_site *s, struct neb_buf *out)
{
    char text[48], more[48];
    double seconds = total_time(s), tokens = neb__series_last(&s->tokens), bytes = neb__series_last(&s->out);
    NEB_TRY(neb__buf_printf(out, "<div class=\"tile\"><h3>"));
    NEB_TRY(neb__report_html(out, s->name));
    NEB_TRY(neb__buf_printf(out, " <span>"));
    NEB_TRY(neb__report_html(out, s->role));
    NEB_TRY(neb__buf_printf(out, "</span></h3><dl>"));
    NEB_TRY(state_entry(r, s, out));
    NEB_TRY(privacy_entry(r, s, out));
    neb__format_count(tokens, text, sizeof text);
    NEB_TRY(entry(out, "tokens trained", "%s", text));
    neb__format_count(seconds > 0 ? tokens / seconds : 0, text, sizeof text);
    NEB_TRY(entry(out, "tokens a second", "%s", text));
    if (s->loss.n && neb__series_last(&s->loss) > 0)
        NEB_TRY(entry(out, "loss, first → last", "%.3f → %.3f", s->loss.v[0], neb__series_last(&s->loss)));
    if (s->valid.n) NEB_TRY(entry(out, "held-out loss", "%.4f", neb__series_last(&s->valid)));
    neb__format_bytes(bytes, text, sizeof text);
    neb__format_bytes(neb__series_last(&s->in), more, sizeof more);
    NEB_TRY(entry(out, "sent, received", "%s, %s", text, more));
    if (s->capacity.n)
        NEB_TRY(entry(out, "slowest line", "%.1f Mbit/s", neb__series_last(&s->capacity) / 1e6));
    if (tokens > 0) NEB_TRY(entry(out, "bytes sent a token", "%.2f", bytes / tokens));
    NEB_TRY(entry(out, "time computing", "%.1f %%",
                  seconds > 0 ? 100 * neb__series_last(&s->time[NEB_TIME_COMPUTE]) / seconds : 0));
    return neb__buf_printf(out, "</dl></div>\n");
}

/* Writes nothing if the text is "". */
static neb_status named(struct neb_buf *out, const char *what, const char *text)
{
    if (!*text) return NEB_OK;
    NEB_TRY(neb__buf_printf(out, "%s", what));
    return neb__report_html(out, text);
}

static neb_status open_page(const char *title, const char *heading, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(
        out, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
             "content=\"width=device-width\"><title>"));
    NEB_TRY(neb__report_html(out, title));
    NEB_TRY(neb__buf_printf(out, "</title><style>\n%s</style><main><h1>", style));
    NEB_TRY(neb__report_html(out, heading));
    return neb__buf_printf(out, "</h1><p class=\"sub\">");
}

neb_status neb__report_begin(const char *title, const char *says, struct neb_buf *out)
{
    NEB_TRY(open_page(title, title, out));
    NEB_TRY(neb__report_html(out, says));
    return neb__buf_printf(out, "</p><div class=\"plots\">\n");
}

neb_status neb__report_end(struct neb_buf *out)
{
    return neb__buf_printf(out, "</div><footer>made by nebula-i, version %s</footer></main></html>\n",
                           NEB_VERSION);
}

static neb_status head(const struct neb_report *r, struct neb_buf *out)
{
    char when[64] = "", length[48];
    time_t start = (time_t)r->start;
    struct tm tm;
    if (r->start > 0 && gmtime_r(&start, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &tm);
    neb__format_seconds(r->seconds, length, sizeof length);
    NEB_TRY(open_page(r->job, *r->job ? r->job : "run", out));
    NEB_TRY(neb__buf_printf(out, "%d site%s", r->n, r->n == 1 ? "" : "s"));
    NEB_TRY(named(out, ", strategy ", r->strategy));
    NEB_TRY(named(out, ", task ", r->task));
    NEB_TRY(neb__buf_printf(out, "; began %s, measured for %s</p><div class=\"tiles\">\n", when, length));
    NEB_TRY(total_tile(r, out));
    for (int i = 0; i < r->n; i++) NEB_TRY(tile(r, &r->site[i], out));
    return neb__buf_printf(out, "</div><div class=\"plots\">\n");
}

/* ---- plots --------------------------------------------------------------------------------------------- */

struct derived {
    struct neb_series smooth, by_tokens, smooth_by_tokens, valid_by_tokens;
};

/* A running mean whose memory is a fiftieth of the values. */
static neb_status derive(const struct neb_report_site *s, struct derived *d)
{
    double mean = 0, share = 1.0 / fmax(1, s->loss.n / 50.0);
    for (int i = 0; i < s->loss.n; i++) {
        double tokens = neb__series_at(&s->tokens, s->loss.t[i]);
        mean = i ? mean + fmax(share, 1.0 / (i + 1)) * (s->loss.v[i] - mean) : s->loss.v[0];
        NEB_TRY(neb__series_add(&d->smooth, s->loss.t[i], mean));
        NEB_TRY(neb__series_add(&d->by_tokens, tokens, s->loss.v[i]));
        NEB_TRY(neb__series_add(&d->smooth_by_tokens, tokens, mean));
    }
    for (int i = 0; i < s->valid.n; i++)
        NEB_TRY(
            neb__series_add(&d->valid_by_tokens, neb__series_at(&s->tokens, s->valid.t[i]), s->valid.v[i]));
    return NEB_OK;
}

static neb_status loss_plots(const struct neb_report *r, const struct derived *d, struct neb_buf *out)
{
    struct neb_plot_line by_tokens[NEB_REPORT_SITES], by_time[NEB_REPORT_SITES];
    for (int i = 0; i < r->n; i++) {
        const struct neb_report_site *s = &r->site[i];
        by_tokens[i] = (struct neb_plot_line){
            s->name, i % 4, &d[i].smooth_by_tokens, &d[i].by_tokens, &d[i].valid_by_tokens, false};
        by_time[i] = (struct neb_plot_line){s->name, i % 4, &d[i].smooth, &s->loss, &s->valid, false};
    }
    struct neb_plot p = {"Loss against tokens",
                         "of each site's own batches, smoothed; dots: held-out text",
                         "tokens of the site",
                         "loss",
                         by_tokens,
                         r->n,
                         false,
                         false,
                         NULL,
                         false};
    NEB_TRY(neb__plot_lines(&p, out));
    p = (struct neb_plot){
        "Loss against time", "the same over the clock", "time", "loss", by_time, r->n, false, true, r, false};
    return neb__plot_lines(&p, out);
}

static neb_status per_site(const struct neb_report *r, size_t field, const struct neb_plot *like, bool steps,
                           struct neb_buf *out)
{
    struct neb_plot_line lines[NEB_REPORT_SITES];
    struct neb_plot p = *like;
    for (int i = 0; i < r->n; i++) {
        const struct neb_series *s =
            (const struct neb_series *)(const void *)((const char *)&r->site[i] + field);
        lines[i] = (struct neb_plot_line){r->site[i].name, i % 4, s, NULL, NULL, steps};
        if (like->ceiling) lines[i].faint = &r->site[i].capacity;
    }
    p.lines = lines;
    p.n = r->n;
    p.from_zero = p.time = true;
    p.run = r;
    p.x = "time";
    return neb__plot_lines(&p, out);
}

static void megabits(struct neb_series *s)
{
    for (int i = 0; i < s->n; i++) s->v[i] /= 1e6;
}

static neb_status line_plots(struct neb_report *r, struct neb_buf *out)
{
    static const struct neb_plot rate = {
        .title = "Speed", .says = "tokens a second, each second", .y = "tokens/s"};
    static const struct neb_plot goodput = {.title = "Link use",
                                            .says = "bits sent to the other sites, each second; dashed: what "
                                                    "the slowest line gives, where that is near",
                                            .y = "Mbit/s",
                                            .ceiling = true};
    static const struct neb_plot interval = {.title = "Interval (H)",
                                             .says = "inner steps between two updates of a part of the model",
                                             .y = "steps"};
    for (int i = 0; i < r->n; i++) megabits(&r->site[i].goodput_out), megabits(&r->site[i].capacity);
    NEB_TRY(per_site(r, offsetof(struct neb_report_site, rate), &rate, false, out));
    NEB_TRY(per_site(r, offsetof(struct neb_report_site, goodput_out), &goodput, false, out));
    bool rounds = !strcmp(r->strategy, "replica");
    if (rounds) NEB_TRY(per_site(r, offsetof(struct neb_report_site, interval), &interval, true, out));
    NEB_TRY(neb__buf_printf(out, "<div class=\"stack\">\n"));
    if (rounds) NEB_TRY(neb__plot_rungs(r, out));
    NEB_TRY(neb__plot_events(r, out));
    return neb__buf_printf(out, "</div>\n");
}

static neb_status bar_plots(const struct neb_report *r, struct neb_buf *out)
{
    const char *names[NEB_REPORT_SITES];
    double times[NEB_REPORT_SITES * NEB_TIMES], kinds[NEB_REPORT_SITES * NEB_METER_KINDS];
    for (int i = 0; i < r->n; i++) {
        names[i] = r->site[i].name;
        for (int k = 0; k < NEB_TIMES; k++) times[i * NEB_TIMES + k] = neb__series_last(&r->site[i].time[k]);
        for (int k = 0; k < NEB_METER_KINDS; k++)
            kinds[i * NEB_METER_KINDS + k] = neb__series_last(&r->site[i].kind[k]);
    }
    struct neb_plot_bars time = {"Where every second went",
                                 "of the training loop; encoding and decoding run beside it",
                                 names,
                                 neb__time_names,
                                 r->n,
                                 NEB_TIMES,
                                 times,
                                 4,
                                 neb__format_seconds};
    struct neb_plot_bars kind = {
        "Bytes by kind",  "sent by each site", names, neb__kind_names, r->n, NEB_METER_KINDS, kinds, 0,
        neb__format_bytes};
    NEB_TRY(neb__plot_bars(&kind, out));
    return neb__plot_bars(&time, out);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static neb_status event_table(const struct neb_report *r, struct neb_buf *out)
{
    int next[NEB_REPORT_SITES] = {0}, rows = 0;
    NEB_TRY(neb__buf_printf(
        out,
        "<figure class=\"wide log\"><h2>What happened</h2><table><tr><th>time</th><th>site</th><th>step</th>"
        "<th>what</th><th>details</th></tr>"));
    for (;;) {
        int first = -1;
        for (int i = 0; i < r->n; i++)
            if (next[i] < r->site[i].n_events &&
                (first < 0 || r->site[i].events[next[i]].t < r->site[first].events[next[first]].t))
                first = i;
        if (first < 0 || rows++ == 400) break;
        const struct neb_report_event *e = &r->site[first].events[next[first]++];
        NEB_TRY(neb__buf_printf(out, "<tr><td>%.1f s</td><td>", e->t));
        NEB_TRY(neb__report_html(out, r->site[first].name));
        NEB_TRY(neb__buf_printf(out, "</td><td>%lld</td><td>", (long long)e->step));
        NEB_TRY(neb__report_html(out, e->kind));
        NEB_TRY(neb__buf_printf(out, "</td><td>"));
        NEB_TRY(neb__report_html(out, e->text));
        NEB_TRY(neb__buf_printf(out, "</td></tr>\n"));
    }
    return neb__buf_printf(out, "</table></figure>\n");
}

/* ---- lines, job, samples ------------------------------------------------------------------------------- */

static neb_status topology(const struct neb_report *r, struct neb_buf *out)
{
    const struct neb_view *v = r->view;
    if (!v || !v->n_lines) return NEB_OK;
    NEB_TRY(neb__buf_printf(
        out,
        "<figure class=\"wide log\"><h2>Lines</h2><p>as the first site of each line measured them last</p>"
        "<table><tr><th>from</th><th>to</th><th>state</th><th>round trip</th><th>capacity</th>"
        "<th>loss</th><th>sent</th></tr>"));
    for (int i = 0; i < v->n_lines && i < 256; i++) {
        const struct neb_view_line *l = &v->line[i];
        char sent[48], capacity[48] = "not measured";
        neb__format_bytes((double)l->sent, sent, sizeof sent);
        if (l->goodput_bps > 0) snprintf(capacity, sizeof capacity, "%.1f Mbit/s", l->goodput_bps / 1e6);
        bool over = v->site[l->from].health == NEB_HEALTH_DONE || v->site[l->to].health == NEB_HEALTH_DONE;
        const char *state = l->up ? "up" : "down";
        if (over) state = "ended";
        NEB_TRY(neb__buf_printf(out, "<tr><td>"));
        NEB_TRY(neb__report_html(out, v->site[l->from].st.name));
        NEB_TRY(neb__buf_printf(out, "</td><td>"));
        NEB_TRY(neb__report_html(out, v->site[l->to].st.name));
        NEB_TRY(neb__buf_printf(
            out, "</td><td>%s</td><td>%.1f ms</td><td>%s</td><td>%.2f %%</td><td>%s</td></tr>\n", state,
            l->rtt_ms, capacity, 100 * l->loss, sent));
    }
    return neb__buf_printf(out, "</table></figure>\n");
}

static neb_status text_card(const char *title, const char *text, struct neb_buf *out)
{
    if (!text || !*text) return NEB_OK;
    NEB_TRY(neb__buf_printf(out, "<figure class=\"wide\"><h2>%s</h2><pre>", title));
    NEB_TRY(neb__report_html(out, text));
    return neb__buf_printf(out, "</pre></figure>\n");
}

static neb_status page(struct neb_report *r, struct derived *d, struct neb_buf *out)
{
    for (int i = 0; i < r->n; i++) NEB_TRY(derive(&r->site[i], &d[i]));
    NEB_TRY(head(r, out));
    NEB_TRY(loss_plots(r, d, out));
    NEB_TRY(line_plots(r, out));
    NEB_TRY(bar_plots(r, out));
    NEB_TRY(neb__report_languages(r, out));
    NEB_TRY(topology(r, out));
    NEB_TRY(event_table(r, out));
    NEB_TRY(text_card("Sample outputs", r->samples, out));
    NEB_TRY(text_card("Foreseen and measured", r->plan, out));
    NEB_TRY(text_card("The job", r->job_text, out));
    return neb__report_end(out);
}

neb_status neb__report_page(struct neb_report *r, struct neb_buf *out)
{
    struct derived d[NEB_REPORT_SITES] = {0};
    neb_status status = page(r, d, out);
    for (int i = 0; i < r->n; i++) {
        neb__series_free(&d[i].smooth);
        neb__series_free(&d[i].by_tokens);
        neb__series_free(&d[i].smooth_by_tokens);
        neb__series_free(&d[i].valid_by_tokens);
    }
    return status;
}
