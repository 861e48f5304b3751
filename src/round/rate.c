/* rate.c: the rate controller's decision. rate_guard.c judges quality; this file judges the line.
 *
 * The line. An estimate is the least of the last three samples, so one good sample raises nothing. After
 * silence (a sample of 0) the first good sample counts alone. T is how long an update may keep the line
 * busy. One update starts every H * step / fragments seconds (a slot), and updates of several fragments are
 * on their way at a time. So the sending alone must fit a slot, and likewise the coding alone, while round
 * trips need only be over in time:
 *     sending     T <= slot                                  else updates queue up
 *     coding      overhead <= slot, or T = 0                 else the driver's thread falls behind
 *     the round   T <= fragments * slot - overhead - 2 rtt   the next update waits for the last one's commit
 *     the log     T <= pipeline * slot - overhead - rtt      no more than `pipeline` records are prepared
 *
 * The limit of coding holds whatever the update's size.
 *
 * An update that kept the line busy for longer than T exceeded the ceiling. For one interval the estimate is
 * then cut to 0.4 of what was seen, so that even a line that jitters by half cannot make updates exceed twice
 * in a row. Nothing larger than that update's rate is tried again for 4, 8, … 64 intervals, unless the line
 * has become twice as fast. Staying needs bytes <= ceiling. Moving needs bytes <= 0.8 of it, or 0.95 if
 * staying is impossible and the move is to fewer bytes a second. So the choice does not flap at an edge.
 *
 * An interval may be hardly longer than the work in it (a fast line and rounds of a tenth of a second). T is
 * then a small difference of numbers that jitter: after one slow sync of the disk, or one late wake-up,
 * nothing fits for a moment. H then grows at once, as the ceiling asks. Going back to a smaller H can be put
 * off at no cost. It waits until the smaller H would have fitted 0, then 4, 8, … 1024 intervals in a row, the
 * longer the shorter the last way back lasted.
 *
 * The choice. `cost`: the cheapest acceptable rung, at the largest H for which the guard has evidence.
 * `quality`: the most faithful rung that fits at nominal H. If nothing acceptable fits, H grows up to 4
 * times nominal; then a change of class is proposed; then nothing is sent, and training goes on. The class
 * goes back from sparse to dense only after 8 intervals in which an acceptable dense rung would have
 * filled at most half of the ceiling.
 *
 * Everything follows from the calls made: the same calls give the same decisions. */
#include "round/rate.h"
#include "round/rate_guard.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW = 3, ROOM_NEEDED = 8, LONG_AGO = 1 << 20, RELAPSES_MAX = 9 };

static const double margin = 0.9, less_margin = 0.95, more_margin = 0.8, cut_after_exceeding = 0.4,
                    probe_bytes = 65536;

struct line {
    double sample[WINDOW];
    int count; /* samples held */
};

struct neb_rate {
    struct neb_rate_config c;
    struct neb__guard guard;
    struct line up, down[NEB_RATE_PEERS];
    enum neb_rung_class cls;
    double per_value[NEB_RATE_RUNGS]; /* bytes, measured */
    /* The last decision, for the reports about it. */
    const struct neb_rate_rung *rung;
    int h;
    double last_bytes, last_t;
    bool can_stay; /* the last decision would still be allowed */
    /* After exceeding. */
    bool exceeded;
    int strikes, hold; /* intervals without climbing */
    double hold_rate;  /* bytes/s of what exceeded; the hold ends early when the line is twice as fast */
    double hold_line;
    double confirmed; /* most bytes/s seen to fit */
    int room;         /* sparse: intervals in a row in which dense would have had room */
    /* An H that the line stretched. */
    int asked;      /* the guard's H at the last decision */
    int relapses;   /* ways back in a row that did not last */
    int calm;       /* intervals in a row in which a smaller H would have fitted */
    int since_back; /* intervals since the last way back */
};

neb_status neb__rate_create(const struct neb_rate_config *config, struct neb_rate **out)
{
    const struct neb_rate_config *c = config;
    if (c->rung_count < 1 || c->rung_count > NEB_RATE_RUNGS || c->h < 1 || c->fragments < 1 ||
        c->pipeline < 1 || !(c->values >= 1) || !(c->max_bytes_per_hour >= 0) || !(c->loss_slack >= 0) ||
        !(c->residual[NEB_DENSE] >= 0) || !(c->residual[NEB_SPARSE] >= 0))
        return neb__fail(NEB_ERR_INVALID,
                         "rate control: H, fragments, pipeline, values and limits must be positive");
    bool some = false, forced = c->force == 0;
    for (int i = 0; i < c->rung_count; i++) {
        if (!(c->rungs[i].bytes > 0) || !(c->rungs[i].error >= 0 && c->rungs[i].error < 1))
            return neb__fail(NEB_ERR_INVALID,
                             "rate control: rung %s must have bytes > 0 and an error in [0, 1)",
                             c->rungs[i].name);
        some |= c->rungs[i].cls == c->cls;
        forced |= c->rungs[i].id == c->force;
    }
    if (!some || !forced)
        return neb__fail(NEB_ERR_INVALID, "rate control: the table has no rung of the requested class or id");
    struct neb_rate *r = NEB_NEW(struct neb_rate);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "no memory for the rate controller");
    r->c = *c;
    r->cls = c->cls;
    r->h = r->asked = c->h;
    r->since_back = LONG_AGO;
    for (int i = 0; i < c->rung_count; i++) r->per_value[i] = c->rungs[i].bytes;
    neb__guard_init(&r->guard, &r->c);
    *out = r;
    return NEB_OK;
}

void neb__rate_destroy(struct neb_rate *r)
{
    neb__free(r);
}

/* ---- the line ------------------------------------------------------------------------------------------ */

static void line_sample(struct line *l, double goodput)
{
    if (l->count && l->sample[0] == 0 && goodput > 0) l->count = 0; /* back after silence */
    memmove(l->sample + 1, l->sample, (WINDOW - 1) * sizeof *l->sample);
    l->sample[0] = goodput;
    if (l->count < WINDOW) l->count++;
}

static double line_rate(const struct line *l) /* infinite: nothing known */
{
    double least = INFINITY;
    for (int i = 0; i < l->count; i++) least = fmin(least, l->sample[i]);
    return l->count && l->sample[0] == 0 ? 0 : least;
}

/* The highest sample. If even that is too low, the line is weak for more than a moment. */
static double line_best(const struct line *l)
{
    double most = l->count ? 0 : INFINITY;
    for (int i = 0; i < l->count; i++) most = fmax(most, l->sample[i]);
    return most;
}

void neb__rate_sample(struct neb_rate *r, int peer, double goodput)
{
    if (!(goodput >= 0) || isinf(goodput) || peer >= NEB_RATE_PEERS) return;
    line_sample(peer < 0 ? &r->up : &r->down[peer], goodput);
}

void neb__rate_peer_gone(struct neb_rate *r, int peer)
{
    if (peer >= 0 && peer < NEB_RATE_PEERS) r->down[peer].count = 0;
}

static double copies(const struct neb_rate *r, int members)
{
    double n = members;
    return r->c.owners ? 2 * (n - 1) / n : n - 1;
}

/* Update bytes per second that egress and every known ingress can carry. */
static double update_rate(const struct neb_rate *r, int members, double (*of)(const struct line *))
{
    double c = copies(r, members), rate = of(&r->up);
    for (int i = 0; i < NEB_RATE_PEERS; i++) rate = fmin(rate, of(&r->down[i]));
    return rate / c;
}

static double time_for(const struct neb_rate *r, const struct neb_rate_input *in, int h)
{
    double slot = h * in->step / r->c.fragments;
    double round = r->c.fragments * slot - in->overhead - 2 * in->rtt;
    double log = r->c.pipeline * slot - in->overhead - in->rtt;
    return in->overhead > slot ? 0 : fmax(0, fmin(slot, fmin(round, log)));
}

static double ceiling_for(const struct neb_rate *r, const struct neb_rate_input *in, double rate, int h)
{
    double bytes = margin * time_for(r, in, h) * rate * (in->share > 0 ? in->share : 1);
    if (isnan(bytes)) bytes = 0; /* no time, line unknown */
    if (r->c.max_bytes_per_hour > 0) {
        double interval = h * in->step / r->c.fragments;
        bytes = fmin(bytes, r->c.max_bytes_per_hour / 3600 * interval / copies(r, in->members));
    }
    return bytes;
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

static double bytes_of(const struct neb_rate *r, int rung)
{
    return r->c.values * r->per_value[rung];
}

/* Whether `rung` at `h` fits under the ceiling. Staying may use all of it. Moving must leave room, and more
 * room while staying is possible. */
static bool fits(const struct neb_rate *r, const struct neb_rate_input *in, int rung, int h, double ceiling)
{
    double bytes = bytes_of(r, rung), t = time_for(r, in, h);
    bool same = r->rung == &r->c.rungs[rung] && h == r->h;
    bool less = r->rung ? !r->can_stay && r->last_t > 0 && bytes / t <= r->last_bytes / r->last_t
                        : h >= 4 * r->c.h; /* nothing is sent now, and H cannot grow further */
    if (!same && !less && r->hold > 0 && bytes / t > 0.99 * r->hold_rate) return false;
    double part = less ? less_margin : more_margin;
    if (same) part = 1.0;
    return bytes <= part * ceiling;
}

static bool can_stay(const struct neb_rate *r, const struct neb_rate_input *in, double rate)
{
    if (!r->rung || r->rung->cls != r->cls) return false;
    int rung = (int)(r->rung - r->c.rungs);
    return neb__guard_accepts(&r->guard, rung) && bytes_of(r, rung) <= ceiling_for(r, in, rate, r->h);
}

/* The preferred acceptable rung of a class at h, or -1. */
static int choose(const struct neb_rate *r, const struct neb_rate_input *in, enum neb_rung_class cls, int h,
                  double ceiling)
{
    int best = -1;
    bool faithful = r->c.prefer == NEB_PREFER_QUALITY && isfinite(ceiling);
    for (int i = 0; i < r->c.rung_count; i++) {
        if (r->c.rungs[i].cls != cls || !neb__guard_accepts(&r->guard, i)) continue;
        if (!fits(r, in, i, h, ceiling)) continue;
        if (best >= 0 && (faithful || bytes_of(r, i) >= bytes_of(r, best))) continue;
        best = i;
    }
    return best;
}

/* Like choose(), with H grown from *h as far as needed. */
static int choose_with_h(const struct neb_rate *r, const struct neb_rate_input *in, enum neb_rung_class cls,
                         double rate, int *h, double *ceiling)
{
    int most = 4 * r->c.h;
    for (double x = *h;; x *= 1.189207115) { /* quarter octaves */
        *h = x >= most ? most : (int)(x + 0.5);
        *ceiling = ceiling_for(r, in, rate, *h);
        int rung = choose(r, in, cls, *h, *ceiling);
        if (rung >= 0 || *h >= most) return rung;
    }
}

static int index_of(const struct neb_rate *r, int id)
{
    for (int i = 0; i < r->c.rung_count; i++)
        if (r->c.rungs[i].id == id) return i;
    return -1;
}

static void size_text(double bytes, char out[24])
{
    static const char *const unit[] = {"B", "kB", "MB", "GB"};
    static const double size[] = {1, 1e3, 1e6, 1e9};
    int i = 0;
    while (i < 3 && bytes >= size[i + 1]) i++;
    if (isinf(bytes))
        snprintf(out, 24, "unknown");
    else
        snprintf(out, 24, "%.3g %s", bytes / size[i], unit[i]);
}

static const char *why_send(const struct neb_rate *r, const struct neb_rate_decision *d, bool forced)
{
    if (forced) return "the job asks for this code";
    if (isinf(d->ceiling)) return "it is the cheapest code, as the line's speed is not known yet";
    if (r->exceeded) return "the last update was late";
    if (r->calm) return "fewer steps between updates did not last";
    if (d->h > neb__guard_h(&r->guard)) return "with fewer steps between updates no good code fits the line";
    if (r->c.prefer == NEB_PREFER_QUALITY) return "it is the most faithful code that fits the line";
    return "it is the cheapest code that does no harm";
}

/* "2-bit", "sparse 4-bit": the digits of a rung's name are the bits of a value. */
static void rung_text(const struct neb_rate_rung *rung, char out[32])
{
    const char *digits = rung->name + strcspn(rung->name, "0123456789");
    snprintf(out, 32, "%s%.*s-bit", rung->cls == NEB_SPARSE ? "sparse " : "",
             (int)strspn(digits, "0123456789"), digits);
}

static void say_send(const struct neb_rate *r, const struct neb_rate_decision *d, bool forced)
{
    char bytes[24], ceiling[24], code[32], room[64] = "";
    size_text(d->bytes, bytes);
    size_text(d->ceiling, ceiling);
    rung_text(d->rung, code);
    if (!isinf(d->ceiling)) snprintf(room, sizeof room, " of the %s that the line allows", ceiling);
    snprintf((char *)d->reason, sizeof d->reason, "sending %s updates (%s) every %d steps, %s%s: %s%s%s",
             code, d->rung->name, d->h, bytes, room, why_send(r, d, forced), r->guard.note[0] ? "; " : "",
             r->guard.note);
}

static void send(struct neb_rate *r, const struct neb_rate_input *in, int rung, bool forced, double rate,
                 struct neb_rate_decision *d)
{
    d->kind = NEB_RATE_SEND;
    d->rung = &r->c.rungs[rung];
    d->bytes = bytes_of(r, rung);
    double t = time_for(r, in, d->h);
    if (!isfinite(rate) || (t > 0 && d->bytes / t > r->confirmed)) d->probe = d->bytes;
    say_send(r, d, forced);
    r->rung = d->rung;
    r->h = d->h;
    r->last_bytes = d->bytes;
    r->last_t = t;
}

/* Whether the line is the reason that no dense rung fits. Two other reasons do not count. Coding, syncing and
 * waiting may leave the line too little of an interval: a smaller update would not mend that. And one late
 * update or one slow sample passes. */
static bool line_is_thin(const struct neb_rate *r, const struct neb_rate_input *in)
{
    struct neb_rate_input bare = *in;
    bare.overhead = bare.rtt = 0;
    double rate = update_rate(r, in->members, line_best);
    double ceiling = more_margin * ceiling_for(r, &bare, rate, 4 * r->c.h);
    for (int i = 0; i < r->c.rung_count; i++)
        if (r->c.rungs[i].cls == NEB_DENSE && neb__guard_accepts(&r->guard, i) && bytes_of(r, i) <= ceiling)
            return false;
    return true;
}

/* No rung of the present class fits. */
static void hold_or_change(struct neb_rate *r, const struct neb_rate_input *in, double rate,
                           struct neb_rate_decision *d)
{
    char ceiling[24];
    int h = neb__guard_h(&r->guard);
    double room;
    enum neb_rung_class other = neb__rung_class_other(r->cls);
    size_text(d->ceiling, ceiling);
    r->rung = NULL;
    r->last_t = 0;
    bool busy = other == NEB_SPARSE && !line_is_thin(r, in);
    if (!r->c.keep_class && rate > 0 && !busy && choose_with_h(r, in, other, rate, &h, &room) >= 0) {
        d->kind = NEB_RATE_CLASS;
        d->cls = other;
        snprintf(d->reason, sizeof d->reason,
                 "changing to %s updates: no good %s code fits the %s that the line allows every %d steps",
                 neb__rung_class_name(other), neb__rung_class_name(r->cls), ceiling, d->h);
        return;
    }
    d->kind = NEB_RATE_HOLD;
    d->probe = probe_bytes;
    if (rate == 0)
        snprintf(d->reason, sizeof d->reason,
                 "sending nothing for now: nothing gets through the line; training goes on alone");
    else if (busy)
        snprintf(d->reason, sizeof d->reason,
                 "sending nothing for now: the line is fast enough, but this site is busy or an update was "
                 "late; training goes on alone");
    else
        snprintf(d->reason, sizeof d->reason,
                 "sending nothing for now: no good code fits the %s that the line allows every %d steps; "
                 "training goes on alone",
                 ceiling, d->h);
}

/* In the sparse class: whether the line has had room to spare for a dense rung for long enough. Coding and
 * round trips ask for the same H in either class, so they need only allow a dense rung at the largest H. */
static bool room_for_dense(struct neb_rate *r, const struct neb_rate_input *in, double rate)
{
    bool room = false;
    struct neb_rate_input bare = *in;
    bare.overhead = bare.rtt = 0;
    double ceiling = fmin(ceiling_for(r, &bare, rate, r->c.h), ceiling_for(r, in, rate, 4 * r->c.h));
    for (int i = 0; i < r->c.rung_count; i++)
        room |= r->c.rungs[i].cls == NEB_DENSE && neb__guard_accepts(&r->guard, i) && isfinite(ceiling) &&
                bytes_of(r, i) <= 0.5 * ceiling;
    r->room = room ? r->room + 1 : 0;
    return r->room >= ROOM_NEEDED;
}

static int patience(const struct neb_rate *r)
{
    return r->relapses ? 2 << r->relapses : 0;
}

/* Whether a choice with another H than the present one must wait. */
static bool too_early(struct neb_rate *r, int h)
{
    int now = neb__guard_h(&r->guard);
    bool stretched = r->rung && r->h > r->asked && now >= r->asked; /* by the line, and no harm was seen */
    if (r->since_back < LONG_AGO) r->since_back++;
    if (r->rung && h > r->h && h > now) {
        bool lasted = r->since_back > 32 + 4 * patience(r);
        if (lasted)
            r->relapses /= 2;
        else if (r->relapses < RELAPSES_MAX)
            r->relapses++;
    }
    if (!stretched || h >= r->h) {
        r->calm = 0;
        return false;
    }
    if (++r->calm <= patience(r)) return true;
    r->calm = r->since_back = 0;
    return false;
}

void neb__rate_decide(struct neb_rate *r, const struct neb_rate_input *in, struct neb_rate_decision *out)
{
    struct neb_rate_decision d = {.cls = r->cls, .h = neb__guard_h(&r->guard), .ceiling = INFINITY};
    neb__guard_tick(&r->guard);
    if (in->members < 2) {
        d.kind = NEB_RATE_HOLD;
        snprintf(d.reason, sizeof d.reason, "sending nothing: there is nobody to send to");
        *out = d;
        return;
    }
    double rate = update_rate(r, in->members, line_rate);
    if (r->exceeded) rate *= cut_after_exceeding;
    if (r->hold > 0 && (--r->hold == 0 || rate >= 2 * r->hold_line)) r->hold = 0;

    r->can_stay = can_stay(r, in, rate);
    int forced = r->c.force ? index_of(r, r->c.force) : -1;
    if (forced >= 0 && r->c.rungs[forced].cls == r->cls && neb__guard_accepts(&r->guard, forced)) {
        d.ceiling = ceiling_for(r, in, rate, d.h);
        send(r, in, forced, true, rate, &d);
    } else if (r->cls == NEB_SPARSE && !r->c.keep_class && room_for_dense(r, in, rate)) {
        r->room = 0;
        d.kind = NEB_RATE_CLASS;
        d.cls = NEB_DENSE;
        snprintf(d.reason, sizeof d.reason,
                 "changing to dense updates: the line has had room for twice as much for %d intervals",
                 ROOM_NEEDED);
    } else {
        int rung = choose_with_h(r, in, r->cls, rate, &d.h, &d.ceiling);
        if (rung >= 0 && too_early(r, d.h)) {
            d.h = r->h;
            d.ceiling = ceiling_for(r, in, rate, d.h);
            rung = r->can_stay ? (int)(r->rung - r->c.rungs)
                               : choose_with_h(r, in, r->cls, rate, &d.h, &d.ceiling);
        }
        if (rung >= 0)
            send(r, in, rung, false, rate, &d);
        else
            hold_or_change(r, in, rate, &d);
    }
    r->exceeded = false;
    r->asked = neb__guard_h(&r->guard);
    *out = d;
}

const struct neb_rate_rung *neb__rate_fallback(const struct neb_rate *r)
{
    int best = -1, first = -1;
    for (int i = 0; i < r->c.rung_count; i++) {
        if (r->c.rungs[i].cls != r->cls) continue;
        if (first < 0) first = i;
        if (neb__guard_accepts(&r->guard, i) && (best < 0 || bytes_of(r, i) < bytes_of(r, best))) best = i;
    }
    return &r->c.rungs[best >= 0 ? best : first];
}

/* ---- reports ------------------------------------------------------------------------------------------- */

bool neb__rate_sent(struct neb_rate *r, double bytes, double seconds)
{
    if (!r->rung || !(bytes > 0)) return false;
    int i = (int)(r->rung - r->c.rungs);
    r->per_value[i] = 0.5 * r->per_value[i] + 0.5 * bytes / r->c.values;
    r->last_bytes = bytes;
    if (seconds <= r->last_t) {
        if (r->last_t > 0) r->confirmed = fmax(r->confirmed, bytes / r->last_t);
        return false;
    }
    r->exceeded = true;
    r->hold = 4 << (r->strikes < 4 ? r->strikes : 4);
    r->strikes++;
    r->hold_rate = r->last_t > 0 ? bytes / r->last_t : 0;
    r->hold_line = bytes / seconds;
    r->confirmed = fmin(r->confirmed, bytes / seconds);
    return true;
}

void neb__rate_quality(struct neb_rate *r, int rung, double delta, double residual)
{
    int i = index_of(r, rung);
    if (i >= 0) neb__guard_ratio(&r->guard, i, delta, residual);
}

void neb__rate_loss(struct neb_rate *r, double loss)
{
    neb__guard_loss(&r->guard, r->rung ? (int)(r->rung - r->c.rungs) : -1, r->h, loss);
}

void neb__rate_class_changed(struct neb_rate *r, enum neb_rung_class cls)
{
    r->cls = cls;
    r->rung = NULL;
    r->last_t = 0;
    r->room = 0;
}
