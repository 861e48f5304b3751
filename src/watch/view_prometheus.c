/* view_prometheus.c: a view in the text format of Prometheus.
 *
 * Names begin with nebula_, values have base units (seconds, bytes), counters end in _total. The labels are
 * the names of sites, the kind of traffic and the use of time; a run has at most 64 sites. Lines have two
 * names, so those of a full view of many sites are left out: their number grows with the square. */
#include "base/buf.h"
#include "watch/view.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { LINES_SHOWN = 512 };

static neb_status head(struct neb_buf *b, const char *name, const char *type, const char *help)
{
    return neb__buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: \ " and line ends are escaped. */
static neb_status label(struct neb_buf *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') NEB_TRY(neb__buf_append(b, "\\", 1));
        NEB_TRY(neb__buf_append(b, *text == '\n' ? " " : text, 1));
    }
    return NEB_OK;
}

static neb_status value(struct neb_buf *b, double x)
{
    if (isfinite(x) && fabs(x) < 1e15 && x == floor(x)) return neb__buf_printf(b, " %.0f\n", x);
    return neb__buf_printf(b, " %.9g\n", isfinite(x) ? x : 0);
}

static neb_status of_site(struct neb_buf *b, const char *name, const char *site, const char *key,
                          const char *kind, double x)
{
    NEB_TRY(neb__buf_printf(b, "%s{site=\"", name));
    NEB_TRY(label(b, site));
    if (key) NEB_TRY(neb__buf_printf(b, "\",%s=\"%s", key, kind));
    NEB_TRY(neb__buf_append(b, "\"}", 2));
    return value(b, x);
}

/* ---- the sites ----------------------------------------------------------------------------------------- */

enum kind { INT, REAL, FLAG, ZERO_IS_NONE };
#define FIELD(name, type, kind, field, help)                            \
    {                                                                   \
        name, type, help, kind, offsetof(struct neb_site_status, field) \
    }
static const struct {
    const char *name, *type, *help;
    enum kind kind;
    size_t offset;
} fields[] = {
    FIELD("nebula_site_steps_total", "counter", INT, step, "Steps made since the training began."),
    FIELD("nebula_site_steps_planned", "gauge", INT, steps_planned, "Steps of the job."),
    FIELD("nebula_site_trained_tokens_total", "counter", INT, trained_tokens, "Tokens trained on."),
    FIELD("nebula_site_tokens_per_second", "gauge", REAL, tokens_per_second,
          "Tokens a second, in the last one."),
    FIELD("nebula_site_loss", "gauge", ZERO_IS_NONE, loss,
          "Training loss, smoothed; absent where none is measured."),
    FIELD("nebula_site_record", "gauge", INT, record, "Index of the newest record that is applied."),
    FIELD("nebula_site_committed_record", "gauge", INT, committed,
          "Index of the newest record that is committed."),
    FIELD("nebula_site_updates_total", "counter", INT, updates, "Updates sent since the process started."),
    FIELD("nebula_site_rejected_updates_total", "counter", INT, rejected,
          "Updates that came too late and were dropped."),
    FIELD("nebula_site_refused_total", "counter", INT, refused,
          "Messages of other sites that a quota refused."),
    FIELD("nebula_site_scaled_updates_total", "counter", INT, scaled,
          "Updates that entered shorter than they came."),
    FIELD("nebula_site_interval_steps", "gauge", INT, interval, "Steps between two updates."),
    FIELD("nebula_site_update_bytes", "gauge", REAL, update_bytes, "Bytes of the newest update."),
    FIELD("nebula_site_stored_bytes", "gauge", INT, stored, "Bytes of updates on disk."),
    FIELD("nebula_site_disk_free_bytes", "gauge", ZERO_IS_NONE, disk_free, "Room where the site writes."),
    FIELD("nebula_site_privacy_epsilon_spent", "gauge", ZERO_IS_NONE, epsilon_spent,
          "Privacy budget spent; absent where there is none."),
    FIELD("nebula_site_privacy_epsilon_limit", "gauge", ZERO_IS_NONE, epsilon_limit,
          "Privacy budget; absent where there is none."),
    FIELD("nebula_site_privacy_delta", "gauge", ZERO_IS_NONE, epsilon_delta,
          "The delta for which the epsilons hold."),
    FIELD("nebula_site_waiting_seconds", "gauge", REAL, waiting_s, "Since the site waits; 0: it does not."),
    FIELD("nebula_site_nonfinite_steps", "gauge", INT, nonfinite,
          "Steps in a row whose loss was not finite."),
    FIELD("nebula_site_trainable_values", "gauge", INT, trainable, "Values of the model that are trained."),
    FIELD("nebula_site_ranks", "gauge", INT, ranks, "Processes that train together at the site."),
    FIELD("nebula_site_peers_up", "gauge", INT, peers_up, "Other sites that it is connected to."),
    FIELD("nebula_site_leader", "gauge", FLAG, leader, "1: the site leads the rounds."),
    FIELD("nebula_site_disk_full", "gauge", FLAG, disk_full, "1: commits wait for room."),
};

static bool field_value(const struct neb_site_status *st, size_t i, double *out)
{
    const void *at = (const char *)st + fields[i].offset;
    switch (fields[i].kind) {
    case INT: *out = (double)*(const int64_t *)at; return true;
    case FLAG: *out = *(const bool *)at; return true;
    default: *out = *(const double *)at; return fields[i].kind == REAL || *out > 0;
    }
}

static neb_status put_fields(const struct neb_view *v, struct neb_buf *b)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        bool begun = false;
        double x;
        for (int k = 0; k < v->n; k++) {
            const struct neb_view_site *s = &v->site[k];
            if (s->health == NEB_HEALTH_UNKNOWN || !field_value(&s->st, i, &x)) continue;
            if (!begun) NEB_TRY(head(b, fields[i].name, fields[i].type, fields[i].help));
            begun = true;
            NEB_TRY(of_site(b, fields[i].name, s->st.name, NULL, NULL, x));
        }
    }
    return NEB_OK;
}

static neb_status put_health(const struct neb_view *v, struct neb_buf *b)
{
    static const char up[] = "nebula_site_up", silent[] = "nebula_site_silent_seconds",
                      health[] = "nebula_site_health";
    NEB_TRY(head(b, up, "gauge", "1: the site is heard of and goes on, waits or has ended in order."));
    for (int i = 0; i < v->n; i++) {
        enum neb_health h = v->site[i].health;
        bool well = h == NEB_HEALTH_GOOD || h == NEB_HEALTH_DONE || h == NEB_HEALTH_WAITING;
        NEB_TRY(of_site(b, up, v->site[i].st.name, NULL, NULL, well));
    }
    NEB_TRY(head(b, health, "gauge",
                 "0 unknown, 1 good, 2 done, 3 waiting, 4 late, 5 gone, 6 halted; as the status says."));
    for (int i = 0; i < v->n; i++)
        NEB_TRY(of_site(b, health, v->site[i].st.name, NULL, NULL, v->site[i].health));
    NEB_TRY(head(b, silent, "gauge", "Since something new came from the site."));
    for (int i = 0; i < v->n; i++)
        NEB_TRY(of_site(b, silent, v->site[i].st.name, NULL, NULL, v->site[i].silent));
    return NEB_OK;
}

static neb_status put_kinds(const struct neb_view *v, struct neb_buf *b)
{
    static const char *const kind[] = {"control", "updates", "recovery", "status"};
    static const char *const use[] = {"compute", "merge", "wait", "recover"};
    static const char sent[] = "nebula_site_sent_bytes_total", got[] = "nebula_site_received_bytes_total",
                      spent[] = "nebula_site_seconds_total";
    NEB_TRY(head(b, sent, "counter", "Bytes sent by the session since the process started, by kind."));
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        const int64_t x[] = {s->sent_control, s->sent_updates, s->sent_recovery, s->sent_status};
        for (int k = 0; k < 4; k++) NEB_TRY(of_site(b, sent, s->name, "kind", kind[k], (double)x[k]));
    }
    NEB_TRY(head(b, got, "counter", "Bytes received by the session since the process started, by kind."));
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        const int64_t x[] = {s->received_control, s->received_updates, s->received_recovery,
                             s->received_status};
        for (int k = 0; k < 4; k++) NEB_TRY(of_site(b, got, s->name, "kind", kind[k], (double)x[k]));
    }
    NEB_TRY(head(b, spent, "counter", "Time of the training loop since the process started, by use."));
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        const double x[] = {s->compute_s, s->merge_s, s->wait_s, s->recover_s};
        for (int k = 0; k < 4; k++) NEB_TRY(of_site(b, spent, s->name, "use", use[k], x[k]));
    }
    return NEB_OK;
}

/* ---- the lines ----------------------------------------------------------------------------------------- */

static double of_line(const struct neb_view_line *l, int what)
{
    switch (what) {
    case 0: return l->up;
    case 1: return 1e-3 * l->rtt_ms;
    case 2: return l->goodput_bps / 8;
    case 3: return (double)l->sent;
    case 4: return (double)l->received;
    case 5: return l->loss;
    case 6: return l->silent_s;
    default: return l->relayed;
    }
}

static neb_status put_lines(const struct neb_view *v, struct neb_buf *b)
{
    static const struct {
        const char *name, *type, *help;
    } list[] = {
        {"nebula_line_up", "gauge", "1: the site `from` is connected to the site `to`."},
        {"nebula_line_round_trip_seconds", "gauge", "Round trip."},
        {"nebula_line_capacity_bytes_per_second", "gauge",
         "Measured goodput of updates; 0: not measured yet."},
        {"nebula_line_sent_bytes_total", "counter", "Payload that `to` has acknowledged."},
        {"nebula_line_received_bytes_total", "counter", "Payload that came from `to`."},
        {"nebula_line_loss_ratio", "gauge", "Recent share of bytes that TCP sent again."},
        {"nebula_line_silent_seconds", "gauge", "Since `to` last answered a heartbeat."},
        {"nebula_line_relayed", "gauge", "1: the line goes through a relay host."},
    };
    int n = v->n_lines <= LINES_SHOWN ? v->n_lines : 0;
    for (size_t i = 0; n && i < sizeof list / sizeof *list; i++) {
        NEB_TRY(head(b, list[i].name, list[i].type, list[i].help));
        for (int k = 0; k < n; k++) {
            NEB_TRY(neb__buf_printf(b, "%s{from=\"", list[i].name));
            NEB_TRY(label(b, v->site[v->line[k].from].st.name));
            NEB_TRY(neb__buf_printf(b, "\",to=\""));
            NEB_TRY(label(b, v->site[v->line[k].to].st.name));
            NEB_TRY(neb__buf_printf(b, "\"}"));
            NEB_TRY(value(b, of_line(&v->line[k], (int)i)));
        }
    }
    return NEB_OK;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static neb_status plain(struct neb_buf *b, const char *name, const char *type, double x, const char *help)
{
    NEB_TRY(head(b, name, type, help));
    NEB_TRY(neb__buf_printf(b, "%s", name));
    return value(b, x);
}

neb_status neb__view_prometheus(const struct neb_view *v, struct neb_buf *b)
{
    NEB_TRY(head(b, "nebula_run_info", "gauge", "The job that runs; always 1."));
    NEB_TRY(neb__buf_printf(b, "nebula_run_info{job=\""));
    NEB_TRY(label(b, v->job));
    NEB_TRY(neb__buf_printf(b, "\",strategy=\""));
    NEB_TRY(label(b, v->strategy));
    NEB_TRY(neb__buf_printf(b, "\",version=\"%s\"} 1\n", NEB_VERSION));
    NEB_TRY(plain(b, "nebula_run_sites", "gauge", v->n, "Sites of the run."));
    NEB_TRY(
        plain(b, "nebula_run_tokens_total", "counter", (double)v->tokens, "Tokens of all sites together."));
    NEB_TRY(plain(b, "nebula_run_target_tokens", "gauge", (double)v->target,
                  "Tokens that end the run; 0: none do."));
    NEB_TRY(plain(b, "nebula_run_tokens_per_second", "gauge", v->tokens_per_second,
                  "Speed of the sites that live."));
    NEB_TRY(plain(b, "nebula_run_record", "gauge", (double)v->record,
                  "Newest record that a site here has applied."));
    NEB_TRY(
        plain(b, "nebula_run_progress_ratio", "gauge", v->progress, "Done share of the run; -1: not known."));
    NEB_TRY(plain(b, "nebula_run_left_seconds", "gauge", v->seconds_left,
                  "Until the end, as forecast; -1: not known."));
    NEB_TRY(plain(b, "nebula_run_roots_agree", "gauge", v->roots_agree,
                  "0: two sites that write here have different state roots."));
    NEB_TRY(plain(b, "nebula_run_ended", "gauge", v->ended, "1: every site has ended."));
    NEB_TRY(plain(b, "nebula_run_sent_bytes_total", "counter", v->sent, "Sent by all sites."));
    NEB_TRY(plain(b, "nebula_run_fp32_gradient_bytes_total", "counter", v->fp32,
                  "Bytes that fp32 gradients at every step would have been."));
    NEB_TRY(plain(b, "nebula_status_age_seconds", "gauge", fmax(0, v->now - v->made),
                  "Since a site last wrote."));
    NEB_TRY(put_health(v, b));
    NEB_TRY(put_fields(v, b));
    NEB_TRY(put_kinds(v, b));
    return put_lines(v, b);
}
