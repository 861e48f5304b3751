/* waiting.c: see waiting.h.
 *
 * A wait becomes a line after three seconds, once. The status shows it from the beginning: for whom, for what,
 * how many bytes are left, how long it will take. Bytes are those that the log names and this site lacks, and
 * those that wait to leave. The time follows from the goodput of the lines, or from the limit of the end. */
#include "run/waiting.h"
#include "base/clock.h"
#include "base/log.h"
#include "run/end.h"
#include "run/site_status.h"
#include "run/stream.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double say_after_s = 3, stale_s = 2, look_every_s = 0.2, growth_every_s = 2;

/* One reason to wait, as it was found. */
struct reason {
    int what;
    uint64_t sites;
    double bytes, seconds; /* left; below 0: not known */
    double limit_s;        /* it takes no longer than this; below 0: no limit */
    char more[80];         /* part of the sentence */
};

void neb__waiting_begin(neb_session *s, enum neb_waiter who)
{
    s->waiting.who = who;
    s->waiting.inside = true;
}

void neb__waiting_end(neb_session *s, bool again)
{
    if (!again) s->waiting.who = NEB_WAITER_NONE;
    s->waiting.inside = false;
    s->waiting.seen = neb__now_ns();
}

/* ---- finding the reason -------------------------------------------------------------------------------- */

/* Who waits in the caller's name. A caller that was told to come back, and does not, waits no more. */
static enum neb_waiter waiter(neb_session *s, bool *ended)
{
    pthread_mutex_lock(&s->lock);
    const struct neb_waiting *w = &s->waiting;
    bool gone = !w->inside && neb__seconds_since(w->seen) > stale_s;
    enum neb_waiter who = gone ? NEB_WAITER_NONE : w->who;
    *ended = s->ended;
    pthread_mutex_unlock(&s->lock);
    return who;
}

/* The bytes that wait to leave, and how long the slowest line takes for them. */
static void outgoing(neb_session *s, struct reason *r)
{
    bool known = true;
    r->bytes = r->seconds = 0;
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        const struct neb_line line = neb__lines_get(&s->lines, i);
        if (!line.up || !line.queued) continue;
        double rate = neb__lines_goodput(&s->lines, i);
        if (!(rate > 0)) rate = line.goodput_out / 8;
        r->bytes += (double)line.queued;
        known = known && rate > 0;
        if (rate > 0) r->seconds = fmax(r->seconds, (double)line.queued / rate);
    }
    if (!known || !(r->bytes > 0)) r->seconds = -1; /* the others decide how long it takes */
}

/* The bytes that have to come from the sites that are waited for. */
static void incoming(neb_session *s, double bytes, struct reason *r)
{
    double rate = 0, seen = s->waiting.received.rate;
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++)
        if (r->sites & neb__bit(i)) rate += neb__lines_get(&s->lines, i).goodput_in / 8;
    rate = fmax(rate, seen);
    r->bytes = bytes;
    r->seconds = bytes >= 0 && rate > 0 ? bytes / rate : -1;
}

static void follow(struct neb_growth *g, int64_t value, int64_t now)
{
    double since = (double)(now - g->at) * 1e-9;
    if (since < growth_every_s) return;
    g->rate = g->at ? (double)(value - g->value) / since : 0;
    g->value = value;
    g->at = now;
}

static void follow_counts(neb_session *s)
{
    struct neb_waiting *w = &s->waiting;
    pthread_mutex_lock(&s->lock);
    follow(&w->tokens, s->status.tokens, w->looked);
    follow(&w->received, s->status.bytes_in, w->looked);
    pthread_mutex_unlock(&s->lock);
}

static void of_core(neb_session *s, enum neb_waiter who, struct reason *r)
{
    struct neb_round_wait w;
    neb__round_waits(s->core, &w);
    pthread_mutex_lock(&s->lock);
    bool blocked = who == NEB_WAITER_STEP || who == NEB_WAITER_START;
    bool behind = w.what == NEB_WAIT_CELLS || (w.what == NEB_WAIT_UPDATES && !s->status.caught_up);
    bool starting = w.what == NEB_WAIT_BEGIN || (w.what == NEB_WAIT_LEADER && !s->status.steps);
    pthread_mutex_unlock(&s->lock);
    if (!blocked && !behind && !starting) return;
    r->what = (int)w.what;
    r->sites = w.sites;
    r->limit_s = w.ms < 0 ? -1 : (double)w.ms / 1000;
    if (w.what == NEB_WAIT_CELLS || w.what == NEB_WAIT_UPDATES) incoming(s, (double)w.bytes, r);
    if (w.what == NEB_WAIT_ROUND || w.what == NEB_WAIT_LAST || w.what == NEB_WAIT_TOLD) outgoing(s, r);
}

/* The caller makes no steps of its own and asks again and again whether the run has ended. */
static void of_idle_caller(neb_session *s, struct reason *r)
{
    const struct neb_members m = neb__members_roster(&s->members, NULL);
    pthread_mutex_lock(&s->lock);
    int64_t tokens = s->status.tokens, target = (int64_t)s->config.token_target;
    pthread_mutex_unlock(&s->lock);
    double rate = s->waiting.tokens.rate;
    r->what = NEB_WAIT_TARGET;
    r->sites = m.trains & ~neb__bit(s->self);
    if (!target || tokens >= target) return;
    r->seconds = rate > 0 ? (double)(target - tokens) / rate : -1;
    snprintf(r->more, sizeof r->more, "%lld of %lld tokens are made", (long long)tokens, (long long)target);
}

/* The lock of the session and that of the stream are held. */
static bool of_stream(const neb_stream *st, struct reason *r)
{
    if (!st->waits || neb__seconds_since(st->waited_at) > stale_s) return false;
    double items = (double)(st->last - st->config.mark);
    *r = (struct reason){.what = st->waits, .sites = neb__bit(st->peer), .seconds = -1, .limit_s = -1};
    r->bytes = items > 0 ? (double)st->bytes / items : -1; /* of an item, as they have been so far */
    if (st->waits == NEB_WAIT_ITEMS)
        snprintf(r->more, sizeof r->more, "item %llu", (unsigned long long)st->last + 1);
    else
        snprintf(r->more, sizeof r->more, "it has %llu of %llu items",
                 (unsigned long long)(st->waits == NEB_WAIT_KEPT ? st->retained : st->received),
                 (unsigned long long)st->last);
    return true;
}

static void of_streams(neb_session *s, struct reason *r)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (neb_stream *st = s->streams; st && !found; st = st->next) {
        pthread_mutex_lock(&st->lock);
        found = of_stream(st, r);
        pthread_mutex_unlock(&st->lock);
    }
    pthread_mutex_unlock(&s->lock);
    if (!found) return;
    if (r->what == NEB_WAIT_ITEMS)
        incoming(s, r->bytes, r);
    else
        outgoing(s, r);
}

static void of_job(neb_session *s, struct reason *r)
{
    r->what = NEB_WAIT_JOB;
    r->sites = neb__members_present(&s->members) & ~neb__bit(s->self);
    uint64_t away = r->sites & ~neb__members_reached(&s->members);
    if (away) r->sites = away;
}

static void find(neb_session *s, struct reason *r)
{
    bool ended;
    enum neb_waiter who = waiter(s, &ended);
    bool rounds = s->core && !ended;
    if (rounds) of_core(s, who, r);
    if (who == NEB_WAITER_CLOSE) {
        r->what = NEB_WAIT_BYE;
        r->sites = neb__members_links(&s->members);
        outgoing(s, r);
    }
    if (r->what == NEB_WAIT_NOTHING && rounds && who == NEB_WAITER_IDLE) of_idle_caller(s, r);
    if (r->what == NEB_WAIT_NOTHING && !s->core && who == NEB_WAITER_START) of_job(s, r);
    if (r->what == NEB_WAIT_NOTHING) of_streams(s, r);
}

/* ---- the note ------------------------------------------------------------------------------------------ */

static const char *sentence(int what)
{
    switch (what) {
    case NEB_WAIT_BEGIN: return "a quorum of the sites must be connected";
    case NEB_WAIT_LEADER: return "the sites must agree on who leads";
    case NEB_WAIT_CELLS: return "parts of the model that this site lacks";
    case NEB_WAIT_UPDATES: return "updates that this site lacks";
    case NEB_WAIT_ROUND: return "the next round, without which this site may make no more steps";
    case NEB_WAIT_LAST: return "the last updates of the run";
    case NEB_WAIT_TOLD:
    case NEB_WAIT_BYE: return "the end of the run must reach everybody";
    case NEB_WAIT_JOB: return "it must say that it runs the same job";
    case NEB_WAIT_TARGET: return "the run goes on there";
    case NEB_WAIT_CREDIT: return "it has room for no more items yet";
    case NEB_WAIT_FINISH: return "it must hear that this site is done";
    case NEB_WAIT_KEPT: return "it must have every item in a checkpoint";
    default: return "the next items";
    }
}

/* "b (not connected), c"; *all: every one of them is connected. */
static void name_sites(neb_session *s, uint64_t sites, char *out, size_t size, bool *all)
{
    uint64_t links = neb__members_reached(&s->members);
    size_t n = 0;
    *all = true;
    snprintf(out, size, "the other sites");
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        char name[NEB_NAME_SIZE];
        if (!(sites & neb__bit(i)) || i == s->self) continue;
        bool linked = links & neb__bit(i);
        *all = *all && linked;
        neb__members_name(&s->members, i, name);
        int k =
            snprintf(out + n, size - n, "%s%.31s%s", n ? ", " : "", name, linked ? "" : " (not connected)");
        if (k < 0 || n + (size_t)k >= size) {
            snprintf(out + size - 4, 4, "…"); /* three bytes */
            return;
        }
        n += (size_t)k;
    }
}

/* "; 5.80 MB left, about 100 s" */
static void amounts(const struct reason *r, const struct neb_waiting *w, bool all, char *out, size_t size)
{
    char bytes[40] = "", time[40] = "";
    if (w->bytes == 0) snprintf(bytes, sizeof bytes, "nothing left to send, ");
    if (w->bytes > 0) snprintf(bytes, sizeof bytes, "%.0f kB left, ", ceil((double)w->bytes / 1e3));
    if (w->bytes >= 1000000) snprintf(bytes, sizeof bytes, "%.2f MB left, ", (double)w->bytes / 1e6);
    if (r->limit_s >= 0 && w->seconds >= r->limit_s)
        snprintf(time, sizeof time, "at most %.0f s", r->limit_s);
    else if (w->seconds >= 0)
        snprintf(time, sizeof time, "about %.0f s", ceil(w->seconds));
    else
        snprintf(time, sizeof time, all ? "time not known" : "until it is connected");
    snprintf(out, size, "; %s%s", bytes, time);
}

static void describe(neb_session *s, const struct reason *r, struct neb_waiting *w)
{
    bool all;
    char left[96];
    name_sites(s, r->sites, w->for_whom, sizeof w->for_whom, &all);
    w->bytes = r->bytes < 0 ? -1 : (int64_t)r->bytes;
    w->seconds = all ? r->seconds : -1;
    if (r->limit_s >= 0 && (w->seconds < 0 || w->seconds > r->limit_s)) w->seconds = r->limit_s;
    amounts(r, w, all, left, sizeof left);
    snprintf(w->text, sizeof w->text, "waiting for %.90s: %.65s%s%.60s%.50s", w->for_whom, sentence(r->what),
             *r->more ? ", " : "", r->more, left);
}

/* A reason is said once in a wait. A wait that is interrupted for a moment, by another reason or by a step, is
 * still the same. The lock is held; true: it is to be said. */
static bool note(struct neb_waiting *w, int what)
{
    int64_t now = w->looked;
    bool waits = what != NEB_WAIT_NOTHING;
    bool anew = (double)(now - w->last) * 1e-9 > stale_s;
    if (waits && anew) w->said = 0;
    if (waits && (anew || w->what == NEB_WAIT_NOTHING)) w->since = now;
    if (what != w->what) w->same = now;
    if (waits) w->last = now;
    w->what = what;
    uint64_t bit = (uint64_t)1 << (what & 63);
    if (!waits || (w->said & bit) || (double)(now - w->same) * 1e-9 < say_after_s) return false;
    w->said |= bit;
    return true;
}

void neb__waiting_look(neb_session *s)
{
    struct neb_waiting *w = &s->waiting, now = {0};
    struct reason r = {.bytes = -1, .seconds = -1, .limit_s = -1};
    if (neb__seconds_since(w->looked) < look_every_s) return;
    w->looked = neb__now_ns();
    follow_counts(s);
    if (!s->halted) find(s, &r);
    if (r.what != NEB_WAIT_NOTHING) describe(s, &r, &now);
    pthread_mutex_lock(&s->lock);
    bool say = note(w, r.what);
    memcpy(w->for_whom, now.for_whom, sizeof w->for_whom);
    memcpy(w->text, now.text, sizeof w->text);
    w->bytes = now.bytes;
    w->seconds = now.seconds;
    pthread_mutex_unlock(&s->lock);
    if (say) neb__info("%s", now.text);
}

void neb__waiting_status(const neb_session *s, struct neb_session_status *out)
{
    const struct neb_waiting *w = &s->waiting;
    out->waiting_s = out->seconds_left = 0;
    out->bytes_left = 0;
    out->waiting_for[0] = 0;
    bool over = s->halted || (s->ended && w->who != NEB_WAITER_CLOSE);
    if (w->what == NEB_WAIT_NOTHING || over) return;
    out->waiting_s = neb__seconds_since(w->since);
    out->bytes_left = w->bytes;
    out->seconds_left = w->seconds;
    snprintf(out->waiting_for, sizeof out->waiting_for, "%s", w->for_whom);
    if (!out->note[0]) snprintf(out->note, sizeof out->note, "%s", w->text);
}
