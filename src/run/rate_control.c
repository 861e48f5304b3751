/* rate_control.c: the rate controller (src/round/rate.c) at work. The measurements of the links go in; the
 * rung and the interval of the next update come out, each time with one sentence of reason.
 *
 * When the controller holds, the work stays in the live model and the next update contains it. An update goes
 * out all the same at the end of the run, at a site that waits at its drift limit, and when the work exceeds
 * four intervals: a late update delays the next one, no work at all delays everybody. The hourly limit gives
 * way in the first two cases only.
 *
 * The leader's change of class becomes a record, which all sites follow. A site whose own line is too thin
 * for the run's class sends updates of the other class; each update names its class. The outer step is the
 * same for both. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double burst_s = 36;

/* The driver's alone. */
struct neb_rate_control {
    struct neb_rate *rate;
    struct neb_rate_rung *ladder;
    struct neb_rate_decision decision; /* the newest */
    uint8_t cls;                       /* neb_rung_class, by the log */
    uint32_t budget;                   /* permille of the line, by the log */
    double encode_took, apply_took;    /* seconds, smoothed */
};

static size_t largest_fragment(const neb_session *s, uint32_t fragments)
{
    uint32_t cells = (s->mirror.outer->cells + fragments - 1) / fragments;
    size_t n = (size_t)cells * NEB_CELL;
    return n < s->mirror.values ? n : s->mirror.values;
}

neb_status neb__session_rate_open(neb_session *s)
{
    struct neb_rate_control *control = s->control = NEB_NEW(struct neb_rate_control);
    if (control) control->ladder = NEB_NEW_ARRAY(struct neb_rate_rung, (size_t)neb__rung_count);
    if (!control || !control->ladder)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the rate controller");
    int n = 0;
    for (int i = 0; i < neb__rung_count; i++) {
        const struct neb_rung *r = &neb__rung_table[i];
        if (r->outside_scales) continue;
        control->ladder[n++] = (struct neb_rate_rung){.id = r->id,
                                                      .name = r->name,
                                                      .cls = r->cls,
                                                      .bytes = (double)r->bytes,
                                                      .error = (double)r->error};
    }
    struct neb_rate_config c = {.rungs = control->ladder,
                                .rung_count = n,
                                .cls = s->fixed ? s->fixed->cls : NEB_DENSE,
                                .keep_class = s->fixed != NULL || neb__session_robust(s),
                                .prefer = s->config.prefer && !strcmp(s->config.prefer, "quality")
                                              ? NEB_PREFER_QUALITY
                                              : NEB_PREFER_COST,
                                .max_bytes_per_hour = s->config.max_bytes_per_hour,
                                .h = (int)s->config.interval,
                                .fragments = (int)s->fragments,
                                .pipeline = NEB_ROUND_PIPELINE,
                                .values = (double)largest_fragment(s, s->fragments),
                                .force = s->fixed ? s->fixed->id : 0};
    control->cls = (uint8_t)(s->fixed ? s->fixed->cls : NEB_DENSE);
    control->decision.h = (int)s->config.interval;
    return neb__rate_create(&c, &control->rate);
}

void neb__session_rate_close(neb_session *s)
{
    if (!s->control) return;
    neb__rate_destroy(s->control->rate);
    neb__free(s->control->ladder);
    neb__free(s->control);
    s->control = NULL;
}

/* ---- the decision -------------------------------------------------------------------------------------- */

/* True if the update would exceed max_bytes_per_hour. A hundredth of an hour's bytes is granted in
 * advance. */
static bool over_the_hour(const neb_session *s, const struct neb_rate_decision *d, int members, double sent)
{
    double limit = s->config.max_bytes_per_hour / 3600;
    double bytes = d->kind == NEB_RATE_SEND ? d->bytes * (members - 1) : 0;
    return limit > 0 && sent + bytes > limit * (neb__seconds_since(s->started) + burst_s);
}

/* The lock is held. steps: of this site to its next update. */
static void publish(neb_session *s, const struct neb_rate_decision *d, const char *rung, int64_t steps)
{
    struct neb_session_status *st = &s->status;
    bool news =
        strcmp(st->rung, rung) || s->control->decision.h != d->h || d->kind != s->control->decision.kind;
    snprintf(st->rung, sizeof st->rung, "%s", rung);
    snprintf(st->reason, sizeof st->reason, "%.199s", d->reason);
    st->interval = steps;
    st->ceiling = isfinite(d->ceiling) ? d->ceiling : -1;
    st->update_bytes = d->kind == NEB_RATE_SEND ? d->bytes : 0;
    st->decisions++;
    s->control->decision = *d;
    neb__log(news ? NEB_LOG_INFO : NEB_LOG_DEBUG, "%s", d->reason);
}

/* The update goes out although the controller would rather hold. */
static void send_anyway(neb_session *s, struct neb_rate_decision *d, const char *because)
{
    char held[sizeof d->reason];
    snprintf(held, sizeof held, "%s", d->reason);
    d->rung = neb__rate_fallback(s->control->rate);
    d->kind = NEB_RATE_SEND;
    snprintf(d->reason, sizeof d->reason, "sending an update (%s) all the same, %s (otherwise: %.90s)",
             d->rung->name, because, held);
}

const struct neb_rung *neb__session_choose(neb_session *s, uint64_t tau, bool must)
{
    struct neb_rate_decision d;
    struct neb_rate_input in = {0};
    bool propose = false;
    struct neb_rate *rate = s->control->rate;
    const double tempo = neb__session_tempo(s), usual = tempo * (double)s->config.interval;
    in.share = s->control->budget / 1000.0;
    in.overhead = s->control->encode_took + s->control->apply_took;
    double sent = neb__lines_report(&s->lines, rate, &in);
    in.step *= tempo; /* the controller counts in steps of the fastest site */
    neb__rate_decide(rate, &in, &d);
    if (d.kind == NEB_RATE_CLASS) {
        neb__info("%s", d.reason);
        propose = true;
        neb__rate_class_changed(rate, d.cls);
        neb__rate_decide(rate, &in, &d);
    }
    if (over_the_hour(s, &d, in.members, sent) && !must) {
        d.kind = NEB_RATE_HOLD;
        snprintf(d.reason, sizeof d.reason,
                 "sending nothing for now: the bytes of this hour (wan.max_bytes_per_hour) are used up");
    } else if (d.kind != NEB_RATE_SEND && must)
        send_anyway(s, &d, "because this site waits for the others");
    else if (d.kind != NEB_RATE_SEND && (double)tau >= 4 * usual)
        send_anyway(s, &d, "because the work of four intervals waits");
    if (s->fixed) d.h = (int)s->config.interval;
    const int64_t steps = (int64_t)fmax(1, round(tempo * d.h));
    const struct neb_rung *rung = d.kind == NEB_RATE_SEND ? neb__rung_by_id((uint8_t)d.rung->id) : NULL;
    pthread_mutex_lock(&s->lock);
    propose = propose && s->status.leader;
    publish(s, &d, rung ? rung->name : "hold", steps);
    pthread_mutex_unlock(&s->lock);
    neb__round_set_interval(s->core, (uint32_t)steps);
    if (propose) neb__session_want_class(s, d.cls);
    return rung;
}

void neb__session_want_class(neb_session *s, enum neb_rung_class cls)
{
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_OPERATOR, .op = NEB_OP_CLASS, .count = cls});
}

void neb__session_follow_class(neb_session *s, uint8_t cls)
{
    if (cls == s->control->cls) return;
    s->control->cls = cls;
    if (!s->fixed) neb__rate_class_changed(s->control->rate, cls);
}

void neb__session_follow_budget(neb_session *s, uint32_t permille)
{
    s->control->budget = permille;
}

void neb__session_coded(neb_session *s, const struct neb_rung *rung, const struct neb_hash *hash,
                        double bytes, const struct neb_codec_stats *stats)
{
    neb__rate_quality(s->control->rate, rung->id, sqrt(stats->z_sq), sqrt(stats->residual_sq));
    neb__lines_watch(&s->lines, hash, bytes);
}

static void took(double *smoothed, double seconds)
{
    *smoothed = neb__lines_smooth(*smoothed, seconds);
}

void neb__session_encode_took(neb_session *s, double seconds)
{
    took(&s->control->encode_took, seconds);
}

void neb__session_apply_took(neb_session *s, double seconds)
{
    took(&s->control->apply_took, seconds);
}

void neb__session_hear_loss(neb_session *s, double loss)
{
    if (s->control) neb__rate_loss(s->control->rate, loss);
}

void neb_session_loss(neb_session *s, double loss)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return;
    i->type = NEB_ITEM_LOSS;
    i->value = loss;
    neb__queue_post(&s->driver.queue, i);
}
