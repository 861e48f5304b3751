/* meter.c: see meter.h.
 *
 * Counters of the session only grow while the process lives; the database gets their sums over all starts of the run, so a
 * plot does not jump back when a site was killed. What happens is found by comparing two samples: links that come and go,
 * waiting that begins and ends, another rung or interval. */
#include "watch/meter.h"
#include "base/clock.h"
#include "base/mem.h"
#include "run/job_facts.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

void neb__meter_begin(struct neb_meter *m, const struct neb_job *job, struct neb_metrics *metrics,
                      neb_session *session, int64_t tokens)
{
    char name[64];
    *m = (struct neb_meter){.job = job, .metrics = metrics, .session = session, .start_ns = neb__now_ns()};
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
    neb__metrics_note(metrics, "job", job->name);
    neb__metrics_note(metrics, "task", job->task);
}

void neb__meter_stream(struct neb_meter *m, neb_stream *stream, const struct neb_meter_split *feed,
                       bool produces)
{
    m->stream = stream;
    m->feed = feed;
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

/* ---- what changed since the last sample ------------------------------------------------------------------------ */

/* Relay, tutor: the feeding site has a rung, both have a window. */
static void notice_feed(struct neb_meter *m, int64_t step)
{
    char rung[sizeof m->rung];
    if (!m->feed || !m->produces) return;
    snprintf(rung, sizeof rung, "%s, %lld ahead", m->feed->rung, (long long)m->feed->window);
    if (!strcmp(rung, m->rung)) return;
    neb__meter_event(m, step, "rung", "%s", *m->feed->why ? m->feed->why : rung);
    snprintf(m->rung, sizeof m->rung, "%s", rung);
}

static void notice(struct neb_meter *m, int64_t step, const struct neb_session_status *s)
{
    int peers = neb__facts_peers_up(m->session);
    if (peers != m->peers)
        neb__meter_event(m, step, peers > m->peers ? "link up" : "link down", "%d of the other sites reached",
                         peers);
    m->peers = peers;
    double waited = s->wait_s - m->last.wait_s;
    if (waited > 0.3 && !m->waiting) neb__meter_event(m, step, "wait", "waits for the other sites");
    if (waited < 0.1 && m->waiting)
        neb__meter_event(m, step, "goes on", "after %.1f s of waiting", s->wait_s - m->waiting_since);
    if (waited > 0.3 && !m->waiting) m->waiting_since = m->last.wait_s;
    m->waiting = m->waiting ? waited >= 0.1 : waited > 0.3;
    if (s->rejected > m->last.rejected)
        neb__meter_event(m, step, "dropped", "%lld updates came too late and were dropped",
                         (long long)(s->rejected - m->last.rejected));
    if (s->view != m->last.view && m->last.view)
        neb__meter_event(m, step, "leader", "view %lld: another site leads", (long long)s->view);
    if (s->halted && !m->last.halted) neb__meter_event(m, step, "halt", "%s", s->note);
    if (m->job->plan != NEB_STRATEGY_REPLICA) { /* no rounds */
        notice_feed(m, step);
        return;
    }
    char rung[sizeof m->rung];
    snprintf(rung, sizeof rung, "%.15s every %lld steps", s->rung[0] ? s->rung : m->job->wan.rung,
             (long long)(s->interval ? s->interval : m->job->wan.interval));
    if (strcmp(rung, m->rung)) {
        neb__meter_event(m, step, "rung", "%s", s->rung[0] && *s->reason ? s->reason : rung);
        snprintf(m->rung, sizeof m->rung, "%s", rung);
    }
}

/* ---- the sample ------------------------------------------------------------------------------------------------ */

static void put_times(struct neb_meter *m, int64_t step)
{
    char name[64];
    for (int i = 0; i < NEB_TIMES; i++) {
        snprintf(name, sizeof name, "time/%s", neb__time_names[i]);
        neb__metrics_put(m->metrics, step, name, m->before[i] + m->time[i]);
    }
    neb__metrics_put(m->metrics, step, "cpu", neb__process_cpu()); /* of this process, all threads */
}

/* Bytes out and in so far, those of the stream among them; and the rates since the last sample. */
static void count_bytes(struct neb_meter *m, const struct neb_session_status *s, double stream, double dt)
{
    double now[2] = {(double)s->bytes_out + (m->produces ? stream : 0),
                     (double)s->bytes_in + (m->produces ? 0 : stream)};
    m->link_out = 8 * (now[0] - m->bytes[0]) / dt;
    m->link_in = 8 * (now[1] - m->bytes[1]) / dt;
    m->bytes[0] = now[0];
    m->bytes[1] = now[1];
}

static void put_kinds(struct neb_meter *m, int64_t step, const struct neb_session_status *s, double stream)
{
    char name[64];
    for (int i = 0; i < NEB_METER_KINDS; i++) {
        double bytes = i < NEB_TRAFFICS ? (double)s->out[i] : m->produces ? stream : 0;
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
    if (m->feed) neb__metrics_put(m->metrics, step, "wan/window", (double)m->feed->window);
    neb__metrics_put(m->metrics, step, "wan/goodput_out", m->link_out);
    neb__metrics_put(m->metrics, step, "wan/goodput_in", m->link_in);
}

static json_t *describe(const struct neb_meter *m, const struct neb_meter_point *p, const char *state)
{
    double total = 0;
    for (int i = 0; i < NEB_TIMES; i++) total += m->time[i];
    total = total > 0 ? total : 1;
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:[f,f,f,f]}", "role",
                          m->job->at >= 0 ? neb__role_name(m->job->site[m->job->at].does) : "alone", "state",
                          state, "step", (json_int_t)p->step, "steps", (json_int_t)m->job->train.steps,
                          "tokens", (json_int_t)p->tokens, "loss", isfinite(p->loss) ? p->loss : 0.0,
                          "tokens_per_second", m->rate, "link_out", m->link_out, "link_in", m->link_in,
                          "rung", m->rung, "time", 100 * m->time[0] / total, 100 * m->time[1] / total,
                          100 * m->time[2] / total, 100 * m->time[3] / total);
    if (o && m->feed && !m->produces) { /* split_rate.c of the feeding site reads it */
        json_object_set_new(o, "until", json_integer((json_int_t)m->feed->until));
        json_object_set_new(o, "takes", json_real(m->feed->takes));
        json_object_set_new(o, "starved", json_real(m->feed->starved));
    }
    return o;
}

/* All sites as this one knows them, in the order of the roster. */
static json_t *all_sites(struct neb_meter *m, const char *own)
{
    json_t *list = json_array();
    char name[32], note[NEB_NOTE_MAX + 1];
    double age;
    for (uint32_t i = 0; m->session && neb__session_heard(m->session, i, name, note, &age) == NEB_OK; i++) {
        bool self = m->job->at >= 0 && !strcmp(name, m->job->site[m->job->at].name);
        json_t *o = json_loads(self ? own : note, 0, NULL);
        if (!json_is_object(o)) {
            json_decref(o);
            o = json_object();
        }
        json_object_set_new(o, "site", json_string(name));
        json_object_set_new(o, "age", json_real(age));
        json_array_append_new(list, o);
    }
    return list;
}

/* Not synced: it is made again in a second. A reader sees the old one or the new one. */
static void write_status(const char *out, json_t *o)
{
    char path[600], temporary[620];
    snprintf(path, sizeof path, "%s/status.json", out);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    if (json_dump_file(o, temporary, JSON_INDENT(1)) == 0) rename(temporary, path);
}

static void publish(struct neb_meter *m, const struct neb_meter_point *p, const char *state)
{
    json_t *own = describe(m, p, state);
    char *text = own ? json_dumps(own, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (text && m->session && strlen(text) <= NEB_NOTE_MAX) neb__session_note(m->session, text);
    if (text) {
        json_t *sites = all_sites(m, text);
        if (!json_array_size(sites)) {
            json_object_set_new(own, "site", json_string(m->job->name));
            json_array_append(sites, own);
        }
        json_t *o =
            json_pack("{s:s, s:s, s:f, s:o}", "job", m->job->name, "strategy",
                      neb__strategy_name(m->job->plan), "written", (double)time(NULL), "sites", sites);
        if (o) write_status(m->job->out, o);
        json_decref(o);
    }
    free(text);
    json_decref(own);
}

static void set_line(struct neb_meter *m)
{
    double total = 0;
    int n = 0;
    for (int i = 0; i < NEB_TIMES; i++) total += m->time[i];
    if (m->session)
        n = snprintf(m->line, sizeof m->line, "link %.2f/%.2f Mbit/s out/in  %s%s", m->link_out / 1e6,
                     m->link_in / 1e6, m->rung, *m->rung ? "  " : "");
    for (int i = 0; i < NEB_TIMES && n < (int)sizeof m->line; i++)
        n += snprintf(m->line + n, sizeof m->line - (size_t)n, "%s%s %.0f %%", i ? " " : "",
                      neb__time_names[i], total > 0 ? 100 * m->time[i] / total : 0);
}

void neb__meter_sample(struct neb_meter *m, const struct neb_meter_point *p, const char *state, bool now)
{
    double dt = neb__seconds_since(m->sample_ns);
    struct neb_session_status s = {0};
    if ((!now && dt < 1) || !m->job) return;
    if (m->session) neb_session_get_status(m->session, &s);
    double rest = m->time[NEB_TIME_ENCODE] + m->time[NEB_TIME_RECOVER];
    m->time[NEB_TIME_WAIT] = m->waited + s.wait_s + p->data_wait;
    m->time[NEB_TIME_COMPUTE] = fmax(0, neb__seconds_since(m->start_ns) - rest - m->time[NEB_TIME_WAIT]);
    dt = dt > 1e-3 ? dt : 1e-3;
    m->rate = (double)(p->tokens - m->last_tokens) / dt;
    struct neb_stream_status st = {0};
    if (m->stream) neb_stream_get_status(m->stream, &st);
    count_bytes(m, &s, (double)st.bytes, dt);
    if (m->session) {
        notice(m, p->step, &s);
        put_session(m, p->step, &s);
        put_kinds(m, p->step, &s, (double)st.bytes);
    }
    put_times(m, p->step);
    neb__metrics_put(m->metrics, p->step, "tokens", (double)p->tokens);
    neb__metrics_put(m->metrics, p->step, "rate", m->rate);
    neb__metrics_flush(m->metrics);
    m->last = s;
    m->last_tokens = p->tokens;
    m->sample_ns = neb__now_ns();
    set_line(m);
    publish(m, p, state);
}

const char *neb__meter_line(const struct neb_meter *m)
{
    return m->line;
}
