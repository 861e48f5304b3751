/* rate_control.c: the rate controller (src/round/rate.c) at work: what the links measure goes in, the rung and the interval
 * of the next update come out, each time with one sentence of reason.
 *
 * Goodput is taken from the updates themselves. An update is pushed to every member at once; to one of them it took the
 * time from the push, or from the acknowledgement of the update before it if that came later, to its own acknowledgement;
 * one round trip is not the line's fault when the line was idle before. So only time counts in which there was
 * something to send, and updates that overlap are not counted twice. An acknowledgement may be some milliseconds late
 * because a thread was: the true rate lies between what was seen and what it would be without that. The last sample
 * stands if it lies there, too; so an update too small to fill the line does not make it look slow.
 *
 * When the controller holds, the work stays in the live model and the next update contains it. Three things must go out all
 * the same: the end of the run, a site that waits at its drift limit, and work of more than four intervals (a late update
 * delays the next one, no work at all delays everybody). The hourly limit gives way to the first two only.
 *
 * The leader's change of class becomes a record, which all sites follow. A site whose own line is too thin for the run's
 * class sends updates of the other one all the same: they say so. The outer step is the same for both. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double smooth = 0.3, stalled_s = 5, burst_s = 36, late_thread_s = 0.02;

static size_t largest_fragment(const neb_session *s, uint32_t fragments)
{
    uint32_t cells = (s->outer->cells + fragments - 1) / fragments;
    size_t n = (size_t)cells * NEB_CELL;
    return n < s->values ? n : s->values;
}

neb_status neb__session_rate_open(neb_session *s)
{
    s->ladder = NEB_NEW_ARRAY(struct neb_rate_rung, (size_t)neb__rung_count);
    if (!s->ladder) return neb__fail(NEB_ERR_NOMEM, "out of memory for the rate controller");
    int n = 0;
    for (int i = 0; i < neb__rung_count; i++) {
        const struct neb_rung *r = &neb__rung_table[i];
        if (r->outside_scales) continue;
        s->ladder[n++] = (struct neb_rate_rung){.id = r->id,
                                                .name = r->name,
                                                .cls = r->cls,
                                                .bytes = (double)r->bytes,
                                                .error = (double)r->error};
    }
    struct neb_rate_config c = {.rungs = s->ladder,
                                .rung_count = n,
                                .cls = s->cls,
                                .keep_class = s->fixed != NULL,
                                .prefer = s->config.prefer && !strcmp(s->config.prefer, "quality")
                                              ? NEB_PREFER_QUALITY
                                              : NEB_PREFER_COST,
                                .max_bytes_per_hour = s->config.max_bytes_per_hour,
                                .h = (int)s->config.interval,
                                .fragments = (int)s->fragments,
                                .pipeline = NEB_ROUND_PIPELINE,
                                .values = (double)largest_fragment(s, s->fragments),
                                .force = s->fixed ? s->fixed->id : 0};
    s->decision.h = (int)s->config.interval;
    return neb__rate_create(&c, &s->rate);
}

void neb__session_rate_close(neb_session *s)
{
    neb__rate_destroy(s->rate);
    neb__free(s->ladder);
}

/* ---- what the links saw ---------------------------------------------------------------------------------------- */

/* An update begins its way: pushes of it are counted until the last is acknowledged. The lock is held. */
void neb__session_pushed(neb_session *s, struct neb_sending *to)
{
    struct neb_line_stats *l = &s->lines;
    l->sent += to->bytes;
    for (int i = 0; i < NEB_PUSHES; i++)
        if (to->push && l->push[i].id == to->push) l->push[i].left++;
}

static void watch_update(neb_session *s, const struct neb_hash *hash, double bytes)
{
    struct neb_line_stats *l = &s->lines;
    pthread_mutex_lock(&s->lock);
    struct neb_update_push *p = &l->push[l->next_push++ % NEB_PUSHES];
    *p = (struct neb_update_push){.id = l->next_push, .since = neb__now_ns(), .bytes = bytes};
    l->current = p->id;
    l->hash = *hash;
    pthread_mutex_unlock(&s->lock);
}

/* The time an update kept a line busy that was free from `free_at` on. */
static double busy_for(int64_t since, int64_t free_at, int64_t now, double rtt)
{
    double took = (double)(now - (free_at > since ? free_at : since)) * 1e-9;
    if (free_at <= since) took -= rtt;
    return took > 1e-3 ? took : 1e-3;
}

static void reached_everybody(struct neb_line_stats *l, uint64_t id, double rtt, int64_t now, bool waited)
{
    for (int i = 0; i < NEB_PUSHES; i++) {
        struct neb_update_push *p = &l->push[i];
        if (p->id != id) continue;
        p->waited |= waited;
        if (--p->left > 0) continue;
        l->late_bytes = p->bytes;
        l->late_s = p->waited ? 0 : fmax(busy_for(p->since, l->all_until, now, rtt) - late_thread_s, 1e-3);
        l->all_until = now;
        p->id = 0;
    }
}

/* On the links' thread. */
void neb__session_acked(neb_session *s, const struct neb_sending *to, uint16_t peer, bool ok)
{
    struct neb_line_stats *l = &s->lines;
    if (!to->push || peer >= NEB_SITES_MAX) return;
    int64_t now = neb__now_ns();
    pthread_mutex_lock(&s->lock);
    double rtt = l->line[peer].rtt_min;
    bool waited = to->since < l->up_since[peer]; /* an outage says nothing about the line's rate */
    if (ok && waited) l->busy_until[peer] = now;
    if (ok && !waited) {
        double took = busy_for(to->since, l->busy_until[peer], now, rtt);
        l->sum_bytes[peer] += to->bytes;
        l->sum_s[peer] += took;
        l->goodput[peer] = to->bytes / took;
        l->busy_until[peer] = now;
    }
    reached_everybody(l, to->push, rtt, now, waited);
    pthread_mutex_unlock(&s->lock);
}

/* What the line carries, by `bytes` in `s` seconds and the sample before. */
static double sample(double *last, double bytes, double s)
{
    double least = bytes / s, most = s > late_thread_s ? bytes / (s - late_thread_s) : INFINITY;
    *last = *last > 0 ? fmin(fmax(*last, least), most) : least;
    return *last;
}

/* One sample an interval: of each peer that took an update in, and of the whole egress. */
static void report_lines(neb_session *s, int members)
{
    struct neb_line_stats *l = &s->lines;
    double bytes = 0, most = 0;
    bool stuck = false;
    int64_t now = neb__now_ns();
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        if (l->sum_s[i] > 0) {
            neb__rate_sample(s->rate, i,
                             sample(&l->sampled[i], l->sum_bytes[i], l->sum_s[i]) * (members - 1));
            bytes += l->sum_bytes[i];
            most = fmax(most, l->sum_s[i]);
        }
        if (!l->line[i].up) neb__rate_peer_gone(s->rate, i), l->sampled[i] = 0;
        stuck |= l->line[i].up && l->line[i].queued && l->line[i].bytes_out == l->moved[i];
        l->moved[i] = l->line[i].bytes_out;
        l->sum_bytes[i] = l->sum_s[i] = 0;
    }
    if (most > 0) neb__rate_sample(s->rate, -1, sample(&l->sampled_out, bytes, most));
    for (int i = 0; i < NEB_PUSHES && stuck && most == 0; i++)
        if (l->push[i].id && (double)(now - l->push[i].since) * 1e-9 > stalled_s) {
            neb__rate_sample(s->rate, -1, l->sampled_out = 0);
            break;
        }
    if (l->late_s > 0) neb__rate_sent(s->rate, l->late_bytes, l->late_s);
    l->late_s = 0;
}

/* ---- the decision ---------------------------------------------------------------------------------------------- */

/* The least round trip: a queue that the updates themselves make is part of their sending. */
static void look_around(neb_session *s, struct neb_rate_input *in)
{
    in->members = 1;
    for (int i = 0; i < NEB_SITES_MAX; i++)
        if (s->lines.line[i].up) in->members++, in->rtt = fmax(in->rtt, s->lines.line[i].rtt_min);
    if (in->members < 2) in->members = 2; /* nobody is there now; what is made waits for them */
    in->share = s->budget / 1000.0;
    in->step = s->lines.step_s;
    in->overhead = s->encode_took + s->apply_took;
}

/* Egress of updates against what the hour allows, with a hundredth of an hour's in advance. */
static bool over_the_hour(const neb_session *s, const struct neb_rate_decision *d, int members)
{
    double limit = s->config.max_bytes_per_hour / 3600;
    double bytes = d->kind == NEB_RATE_SEND ? d->bytes * (members - 1) : 0;
    return limit > 0 && s->lines.sent + bytes > limit * (neb__seconds_since(s->started) + burst_s);
}

static void publish(neb_session *s, const struct neb_rate_decision *d, const char *rung)
{
    struct neb_session_status *st = &s->status;
    bool news = strcmp(st->rung, rung) || st->interval != d->h || d->kind != s->decision.kind;
    snprintf(st->rung, sizeof st->rung, "%s", rung);
    snprintf(st->reason, sizeof st->reason, "%s", d->reason);
    st->interval = d->h;
    st->ceiling = isfinite(d->ceiling) ? d->ceiling : -1;
    st->update_bytes = d->kind == NEB_RATE_SEND ? d->bytes : 0;
    st->decisions++;
    s->decision = *d;
    neb__log(news ? NEB_LOG_INFO : NEB_LOG_DEBUG, "rate: %s", d->reason);
}

/* What goes out although the controller would rather hold. */
static void send_anyway(neb_session *s, struct neb_rate_decision *d, const char *because)
{
    char held[sizeof d->reason];
    snprintf(held, sizeof held, "%s", d->reason);
    d->rung = neb__rate_fallback(s->rate);
    d->kind = NEB_RATE_SEND;
    snprintf(d->reason, sizeof d->reason, "%s all the same, %s. %.110s", d->rung->name, because, held);
}

const struct neb_rung *neb__session_choose(neb_session *s, uint64_t tau, bool must)
{
    struct neb_rate_decision d;
    struct neb_rate_input in = {0};
    bool propose = false;
    pthread_mutex_lock(&s->lock);
    look_around(s, &in);
    report_lines(s, in.members);
    neb__rate_decide(s->rate, &in, &d);
    if (d.kind == NEB_RATE_CLASS) {
        neb__info("rate: %s", d.reason);
        propose = s->status.leader;
        neb__rate_class_changed(s->rate, d.cls);
        neb__rate_decide(s->rate, &in, &d);
    }
    if (over_the_hour(s, &d, in.members) && !must) {
        d.kind = NEB_RATE_HOLD;
        snprintf(d.reason, sizeof d.reason, "Hold: the bytes of this hour (max_bytes_per_hour) are used up.");
    } else if (d.kind != NEB_RATE_SEND && must)
        send_anyway(s, &d, "because this site waits for the others");
    else if (d.kind != NEB_RATE_SEND && tau >= 4 * (uint64_t)s->config.interval)
        send_anyway(s, &d, "because the work of four intervals waits");
    if (s->fixed) d.h = (int)s->config.interval;
    const struct neb_rung *rung = d.kind == NEB_RATE_SEND ? neb__rung_by_id((uint8_t)d.rung->id) : NULL;
    publish(s, &d, rung ? rung->name : "hold");
    pthread_mutex_unlock(&s->lock);
    neb__round_set_interval(s->core, (uint32_t)d.h);
    if (propose) neb__session_want_class(s, d.cls);
    return rung;
}

void neb__session_want_class(neb_session *s, enum neb_rung_class cls)
{
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_OPERATOR, .op = NEB_OP_CLASS, .count = cls});
}

void neb__session_follow_class(neb_session *s, uint8_t cls)
{
    if (cls == s->cls) return;
    s->cls = cls;
    if (!s->fixed) neb__rate_class_changed(s->rate, cls);
}

void neb__session_coded(neb_session *s, const struct neb_rung *rung, const struct neb_hash *hash,
                        double bytes, const struct neb_codec_stats *stats)
{
    neb__rate_quality(s->rate, rung->id, sqrt(stats->z_sq), sqrt(stats->residual_sq));
    watch_update(s, hash, bytes);
}

double neb__session_goodput(neb_session *s)
{
    double least = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        double g = s->lines.goodput[i];
        if (s->lines.line[i].up && g > 0 && (!least || g < least)) least = g;
    }
    pthread_mutex_unlock(&s->lock);
    return least;
}

void neb__session_took(double *smoothed, double seconds)
{
    *smoothed = *smoothed > 0 ? (1 - smooth) * *smoothed + smooth * seconds : seconds;
}

void neb_session_loss(neb_session *s, double loss)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return;
    i->type = NEB_ITEM_LOSS;
    i->value = loss;
    neb__session_post(s, i);
}

/* On the links' thread, now and then: what they measured, for the other threads. */
static void copy_lines(void *arg)
{
    neb_session *s = arg;
    pthread_mutex_lock(&s->lock);
    s->status.links_cpu_s = neb__thread_cpu();
    pthread_mutex_unlock(&s->lock);
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_line line = {0};
        if (i == s->self || neb__net_line(s->net, i, &line) != NEB_OK) memset(&line, 0, sizeof line);
        pthread_mutex_lock(&s->lock);
        s->lines.line[i] = line;
        pthread_mutex_unlock(&s->lock);
    }
}

void neb__session_line(neb_session *s, uint16_t peer, struct neb_line *out)
{
    *out = (struct neb_line){0};
    if (peer >= NEB_SITES_MAX) return;
    pthread_mutex_lock(&s->lock);
    *out = s->lines.line[peer];
    pthread_mutex_unlock(&s->lock);
}

neb_status neb__session_watch_lines(neb_session *s)
{
    struct neb_net_timer *timer; /* ends with the links */
    return neb__net_timer_start(s->net, 0.05, 0.25, copy_lines, s, &timer);
}
