/* meter.c: see meter.h.
 *
 * Counters of the session only grow while the process lives. The database gets their sums over all starts of
 * the run, so a plot does not jump back when a site was killed. Events are found by comparing two samples:
 * links that come and go, waiting that begins and ends, another rung or interval. */
#include "watch/meter.h"
#include "watch/alive.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

const char *const neb__time_names[NEB_TIMES] = {"compute", "encode", "wait", "recover"};

const char *const neb__kind_names[NEB_METER_KINDS] = {[NEB_TRAFFIC_CONTROL] = "control",
                                                      [NEB_TRAFFIC_UPDATES] = "updates",
                                                      [NEB_TRAFFIC_RECOVERY] = "recovery",
                                                      [NEB_TRAFFIC_STATUS] = "status",
                                                      [NEB_METER_STREAM] = "stream"};

static int keep_last(void *arg, int64_t step, double time, double value)
{
    (void)step, (void)time;
    if (isfinite(value)) *(double *)arg = value;
    return 1;
}

static double last_value(struct neb_metrics *metrics, const char *name)
{
    double v = 0;
    (void)neb__metrics_each(metrics, name, keep_last, &v);
    return v;
}

/* Alerts, and the proxy and command by which a site dials. */
static bool may_hold_secrets(const char *path)
{
    const char *rest = strchr(path, ']');
    if (!strncmp(path, "watch.", 6)) return true;
    return !strncmp(path, "sites[", 6) && rest && (!strcmp(rest, "].proxy") || !strcmp(rest, "].dial"));
}

/* The job as it was read, a line for each key; what may hold secrets stays out. */
static void note_job(struct neb_metrics *metrics, const struct neb_job *job)
{
    struct neb_buf b;
    neb__buf_init(&b, 60 << 10);
    for (int i = 0; i < job->doc.n; i++) {
        const struct neb_doc_entry *e = &job->doc.list[i];
        if (may_hold_secrets(e->path)) continue;
        if (neb__buf_printf(&b, "%s: %s\n", e->path, e->value) != NEB_OK) break;
    }
    if (neb__buf_append(&b, "", 1) == NEB_OK) neb__metrics_note(metrics, "job_text", (const char *)b.data);
    neb__buf_free(&b);
}

void neb__meter_begin(struct neb_meter *m, const struct neb_job *job, struct neb_metrics *metrics,
                      neb_session *session, const struct neb_meter_run *run, int64_t tokens)
{
    char name[64];
    *m = (struct neb_meter){
        .job = job, .metrics = metrics, .session = session, .run = run, .start_ns = neb__now_ns()};
    m->alive = neb__alive_hold(job->out);
    m->sample_ns = m->start_ns;
    m->last_tokens = tokens;
    for (int i = 0; i < NEB_TIMES; i++) {
        snprintf(name, sizeof name, "time/%s", neb__time_names[i]);
        m->before[i] = last_value(metrics, name);
    }
    for (int i = 0; i < NEB_METER_KINDS; i++) {
        snprintf(name, sizeof name, "wan/out/%s", neb__kind_names[i]);
        m->kind_before[i] = last_value(metrics, name);
    }
    m->bytes_before[0] = last_value(metrics, "wan/out");
    m->bytes_before[1] = last_value(metrics, "wan/in");
    if (job->at >= 0) {
        neb__metrics_note(metrics, "site", job->site[job->at].name);
        neb__metrics_note(metrics, "role", neb__role_name(job->site[job->at].does));
        neb__metrics_note(metrics, "strategy", neb__strategy_name(job->plan));
    }
    note_job(metrics, job);
    neb__metrics_note(metrics, "job", job->name);
    neb__metrics_note(metrics, "task", job->task);
}

void neb__meter_model(struct neb_meter *m, int64_t trainable)
{
    m->trainable = trainable;
}

void neb__meter_end(struct neb_meter *m)
{
    if (m->job && m->alive >= 0) close(m->alive);
    m->alive = -1;
}

void neb__meter_stream(struct neb_meter *m, neb_stream *stream, const struct neb_meter_split *split,
                       bool produces)
{
    m->stream = stream;
    m->split = split;
    m->produces = produces;
}

void neb__meter_add(struct neb_meter *m, enum neb_time kind, double seconds)
{
    double *sum = kind == NEB_TIME_WAIT ? &m->waited : &m->time[kind];
    *sum += seconds > 0 ? seconds : 0;
}

void neb__meter_event(struct neb_meter *m, int64_t step, const char *kind, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    neb__metrics_event(m->metrics, step, kind, text);
}

/* ---- what changed since the last sample ---------------------------------------------------------------- */

/* Describes what is sent and how often. Before the first decision of the rate controller the job says so. */
static void describe_pace(const struct neb_meter *m, const struct neb_session_status *s,
                          struct neb_site_status *out)
{
    bool rounds = m->session && m->job->plan == NEB_STRATEGY_REPLICA;
    if (m->split) {
        snprintf(out->rung, sizeof out->rung, "%s", m->split->rung);
        snprintf(out->reason, sizeof out->reason, "%s", m->split->why);
        out->window = m->split->window;
    } else if (rounds) {
        snprintf(out->rung, sizeof out->rung, "%.15s", s->rung[0] ? s->rung : m->job->wan.rung);
        snprintf(out->reason, sizeof out->reason, "%s", s->rung[0] ? s->reason : "");
        out->interval = s->interval ? s->interval : m->job->wan.interval;
    }
    neb__status_set_pace(out);
}

/* A receiving site has only a window, and the sending one notes that, too. */
static void notice_pace(struct neb_meter *m, int64_t step, const struct neb_session_status *s)
{
    struct neb_site_status now = {0};
    if (m->split && !m->produces) return;
    describe_pace(m, s, &now);
    if (!strcmp(now.pace, m->pace)) return;
    neb__meter_event(m, step, "rung", "%s", *now.reason ? now.reason : now.pace);
    snprintf(m->pace, sizeof m->pace, "%s", now.pace);
}

static void notice(struct neb_meter *m, int64_t step, const struct neb_session_status *s)
{
    m->peers = (int)s->peers_up;
    double waited = s->wait_s - m->last.wait_s;
    if (waited > 0.3 && !m->waiting) neb__meter_event(m, step, "wait", "waits for the other sites");
    if (waited < 0.1 && m->waiting)
        neb__meter_event(m, step, "goes on", "after %.1f s of waiting", s->wait_s - m->waiting_since);
    if (waited > 0.3 && !m->waiting) m->waiting_since = m->last.wait_s;
    m->waiting = m->waiting ? waited >= 0.1 : waited > 0.3;
    if (s->halted && !m->last.halted) neb__meter_event(m, step, "halt", "%s", s->note);
    notice_pace(m, step, s);
}

/* ---- the sample ---------------------------------------------------------------------------------------- */

static void put_times(struct neb_meter *m, int64_t step)
{
    char name[64];
    for (int i = 0; i < NEB_TIMES; i++) {
        snprintf(name, sizeof name, "time/%s", neb__time_names[i]);
        neb__metrics_put(m->metrics, step, name, m->before[i] + m->time[i]);
    }
    neb__metrics_put(m->metrics, step, "cpu", neb__process_cpu()); /* of this process, all threads */
}

/* Of the streams: out, in. */
static void stream_bytes(const struct neb_meter *m, double out[2])
{
    struct neb_stream_status st = {0};
    if (m->stream) neb_stream_get_status(m->stream, &st);
    out[0] = m->split ? m->split->out : 0;
    out[1] = m->split ? m->split->in : 0;
    out[m->produces ? 0 : 1] += (double)st.bytes;
}

/* Counts the bytes out and in so far, the stream's included, and the rates since the last sample. */
static void count_bytes(struct neb_meter *m, const struct neb_session_status *s, const double stream[2],
                        double dt)
{
    double now[2] = {(double)s->bytes_out + stream[0], (double)s->bytes_in + stream[1]};
    m->link_out = 8 * (now[0] - m->bytes[0]) / dt;
    m->link_in = 8 * (now[1] - m->bytes[1]) / dt;
    m->bytes[0] = now[0];
    m->bytes[1] = now[1];
}

static void put_kinds(struct neb_meter *m, int64_t step, const struct neb_session_status *s, double stream)
{
    char name[64];
    for (int i = 0; i < NEB_METER_KINDS; i++) {
        double bytes = stream;
        if (i < NEB_TRAFFICS) bytes = (double)s->out[i];
        snprintf(name, sizeof name, "wan/out/%s", neb__kind_names[i]);
        neb__metrics_put(m->metrics, step, name, m->kind_before[i] + bytes);
    }
}

static void put_session(struct neb_meter *m, int64_t step, const struct neb_session_status *s)
{
    neb__metrics_put(m->metrics, step, "wan/out", m->bytes_before[0] + m->bytes[0]);
    neb__metrics_put(m->metrics, step, "wan/in", m->bytes_before[1] + m->bytes[1]);
    neb__metrics_put(m->metrics, step, "wan/records", (double)s->applied);
    neb__metrics_put(m->metrics, step, "wan/cpu/merge", s->merge_cpu_s);
    neb__metrics_put(m->metrics, step, "wan/cpu/driver", s->driver_cpu_s);
    neb__metrics_put(m->metrics, step, "wan/cpu/links", s->links_cpu_s);
    neb__metrics_put(m->metrics, step, "wan/peers", m->peers);
    if (m->job->plan == NEB_STRATEGY_REPLICA)
        neb__metrics_put(m->metrics, step, "wan/interval",
                         (double)(s->interval ? s->interval : m->job->wan.interval));
    if (m->split) neb__metrics_put(m->metrics, step, "wan/window", (double)m->split->window);
    neb__metrics_put(m->metrics, step, "wan/goodput_out", m->link_out);
    neb__metrics_put(m->metrics, step, "wan/goodput_in", m->link_in);
}

/* What the job trains on, and when it ends or fails. */
static void describe_limits(const struct neb_meter *m, const struct neb_meter_point *p,
                            struct neb_site_status *out)
{
    struct statvfs room;
    snprintf(out->hardware, sizeof out->hardware, "%s", m->job->train.device ? m->job->train.device : "");
    out->ranks = m->job->parallel.data;
    out->trainable = m->trainable;
    out->trained_s = p->seconds;
    out->planned_s = 60 * m->job->train.minutes;
    out->nonfinite = p->nonfinite;
    if (!statvfs(m->job->out, &room)) out->disk_free = (double)room.f_bavail * (double)room.f_frsize;
}

static void describe(const struct neb_meter *m, const struct neb_meter_point *p,
                     const struct neb_session_status *s, const char *state, struct neb_site_status *out)
{
    const struct neb_job *j = m->job;
    double total = 0, *share[NEB_TIMES] = {&out->share_compute, &out->share_encode, &out->share_wait,
                                           &out->share_recover};
    for (int i = 0; i < NEB_TIMES; i++) total += m->time[i];
    for (int i = 0; i < NEB_TIMES; i++) *share[i] = total > 0 ? 100 * m->time[i] / total : 0;
    snprintf(out->name, sizeof out->name, "%s", j->at >= 0 ? j->site[j->at].name : j->name);
    snprintf(out->job, sizeof out->job, "%s", j->name);
    snprintf(out->strategy, sizeof out->strategy, "%s", neb__strategy_name(j->plan));
    snprintf(out->role, sizeof out->role, "%s", j->at >= 0 ? neb__role_name(j->site[j->at].does) : "alone");
    snprintf(out->state, sizeof out->state, "%s", state);
    out->step = p->step;
    out->steps_planned = j->train.steps;
    out->trained_tokens = p->tokens;
    out->loss = isfinite(p->loss) ? p->loss : 0;
    out->tokens_per_second = m->rate;
    out->link_out = m->link_out;
    out->link_in = m->link_in;
    describe_limits(m, p, out);
    describe_pace(m, s, out);
    if (!m->split || m->produces) return;
    out->until = (int64_t)m->split->until; /* split_rate.c of the sending site uses these */
    out->takes = m->split->takes;
    out->starved = m->split->starved;
}

/* What was refused to other sites, whenever its number has doubled. */
static void notice_refusals(struct neb_meter *m, int64_t step, const struct neb_site_status *own)
{
    if (own->refused >= 2 * m->refused && own->refused) {
        neb__meter_event(m, step, "refused", "by a quota: %s", own->refused_of);
        m->refused = own->refused;
    }
}

static void notice_leader(struct neb_meter *m, int64_t step, const struct neb_status_file *f)
{
    for (int i = 0; i < f->n; i++) {
        const struct neb_site_status *s = &f->site[i];
        if (!s->leads || !strcmp(s->name, m->leader)) continue;
        snprintf(m->leader, sizeof m->leader, "%s", s->name);
        neb__meter_event(m, step, "leader", "%s leads, in view %lld", s->name,
                         (long long)f->site[f->self].view);
        return;
    }
}

struct telling {
    struct neb_meter *meter;
    int64_t step;
};

static void tell_news(void *arg, const char *kind, const char *text)
{
    const struct telling *t = arg;
    neb__meter_event(t->meter, t->step, kind, "%s", text);
}

/* A site that has ended in order says goodbye; one that is lost does not. */
static bool has_ended(const struct neb_site_status *s)
{
    return s->ended || s->finished || !strcmp(s->state, "done") || !strcmp(s->state, "stopped") ||
           !strcmp(s->session, "ended") || !strcmp(s->session, "stopped");
}

static void notice_line(struct neb_meter *m, int64_t step, const struct neb_site_status *s, bool over)
{
    uint64_t bit = (uint64_t)1 << (s->id & 63);
    bool was = m->up & bit, silent = s->up && s->silent_s > NEB_STATUS_SILENT_S, was_silent = m->silent & bit;
    if (s->up && !was)
        neb__meter_event(m, step, "link up", "%s is connected%s; %d of the other sites reached", s->name,
                         s->relayed ? " through a relay host" : "", m->peers);
    else if (s->up && s->relayed != !!(m->relayed & bit))
        neb__meter_event(m, step, "path", "%s is reached %s", s->name,
                         s->relayed ? "through a relay host" : "directly");
    if (!s->up && was && (over || has_ended(s)))
        neb__meter_event(m, step, "goodbye", "%s has ended; %d of the other sites reached", s->name,
                         m->peers);
    else if (!s->up && was)
        neb__meter_event(m, step, "link down", "%s is lost; %d of the other sites reached", s->name,
                         m->peers);
    if (silent && !was_silent)
        neb__meter_event(m, step, "late", "%s has not answered for %.0f s", s->name, s->silent_s);
    if (!silent && was_silent && s->up) neb__meter_event(m, step, "answers", "%s answers again", s->name);
    m->up = s->up ? m->up | bit : m->up & ~bit;
    m->relayed = s->relayed ? m->relayed | bit : m->relayed & ~bit;
    m->silent = silent ? m->silent | bit : m->silent & ~bit;
}

/* The lines that came, went or fell silent, and how much the slowest of them gives. */
static void notice_lines(struct neb_meter *m, int64_t step, const struct neb_status_file *f)
{
    double least = 0;
    if (f->self < 0) return;
    for (int i = 0; i < f->n; i++) {
        const struct neb_site_status *s = &f->site[i];
        if (i == f->self) continue;
        notice_line(m, step, s, has_ended(&f->site[f->self]));
        if (s->up && s->goodput_bps > 0 && (least <= 0 || s->goodput_bps < least)) least = s->goodput_bps;
    }
    if (least > 0) neb__metrics_put(m->metrics, step, "wan/capacity", least);
}

static void publish(struct neb_meter *m, const struct neb_meter_point *p, const struct neb_session_status *s,
                    const char *state)
{
    struct neb_site_status own = {0};
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    describe(m, p, s, state, &own);
    if (m->session) m->run->tell(m->session, &own);
    if (!f) return;
    if (m->session) {
        m->run->look(m->session, f);
        struct telling t = {m, p->step};
        if (f->self >= 0) notice_refusals(m, p->step, &f->site[f->self]);
        if (f->self >= 0) notice_leader(m, p->step, f);
        notice_lines(m, p->step, f);
        m->run->news(m->session, &m->news, tell_news, &t);
    } else {
        f->written = (int64_t)time(NULL);
        f->site[0] = own;
        f->n = 1;
    }
    if (neb__status_file_write(m->job->out, f) != NEB_OK) neb__debug("%s", neb_last_error());
    neb__free(f);
}

static void set_line(struct neb_meter *m)
{
    double total = 0;
    int n = 0;
    for (int i = 0; i < NEB_TIMES; i++) total += m->time[i];
    if (m->session)
        n = snprintf(m->line, sizeof m->line, "link %.2f/%.2f Mbit/s out/in  %s%s", m->link_out / 1e6,
                     m->link_in / 1e6, m->pace, *m->pace ? "  " : "");
    for (int i = 0; i < NEB_TIMES && n < (int)sizeof m->line; i++) {
        double share = total > 0 ? 100 * m->time[i] / total : 0;
        n += snprintf(m->line + n, sizeof m->line - (size_t)n, "%s%s %.0f %%", i ? " " : "",
                      neb__time_names[i], share);
    }
}

/* Whether a line was lost or fell silent, or came back, since the last sample; looked at four times a second. */
static bool lines_changed(struct neb_meter *m)
{
    if (!m->session || neb__seconds_since(m->lost_ns) < 0.25) return false;
    uint64_t lost = m->run->lost(m->session);
    bool changed = lost != m->lost;
    m->lost = lost;
    m->lost_ns = neb__now_ns();
    return changed;
}

void neb__meter_sample(struct neb_meter *m, const struct neb_meter_point *p, const char *state, bool now)
{
    double dt = neb__seconds_since(m->sample_ns);
    struct neb_session_status s = {0};
    if (!m->job || (!now && dt < 1 && !lines_changed(m))) return;
    if (m->session) neb_session_get_status(m->session, &s);
    double rest = m->time[NEB_TIME_ENCODE] + m->time[NEB_TIME_RECOVER];
    m->time[NEB_TIME_WAIT] = m->waited + s.wait_s + p->data_wait;
    m->time[NEB_TIME_COMPUTE] = fmax(0, neb__seconds_since(m->start_ns) - rest - m->time[NEB_TIME_WAIT]);
    dt = dt > 1e-3 ? dt : 1e-3;
    m->rate = (double)(p->tokens - m->last_tokens) / dt;
    double stream[2];
    stream_bytes(m, stream);
    count_bytes(m, &s, stream, dt);
    if (m->session) {
        notice(m, p->step, &s);
        put_session(m, p->step, &s);
        put_kinds(m, p->step, &s, stream[0]);
    }
    put_times(m, p->step);
    neb__metrics_put(m->metrics, p->step, "tokens", (double)p->tokens);
    neb__metrics_put(m->metrics, p->step, "rate", m->rate);
    neb__metrics_flush(m->metrics);
    m->last = s;
    m->last_tokens = p->tokens;
    m->sample_ns = neb__now_ns();
    set_line(m);
    publish(m, p, &s, state);
}

const char *neb__meter_line(const struct neb_meter *m)
{
    return m->line;
}
