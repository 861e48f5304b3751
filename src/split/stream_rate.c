/* stream_rate.c: chooses window and rung of a stream from what both its ends measure.
 *
 * The window covers the items that the receiving site takes while one item travels there and its credit
 * travels back:
 *
 *     window = least + need * (1.5 * longest of the last 16 round trips + 0.25 s) * boost
 *
 * The quarter second is for the journal's disk and for threads that wake late. The window moves when it is
 * more than an eighth too small or more than twice too large. A window that is too large costs something,
 * too: items that lie ahead of the receiving site are older than they need be, and they are wasted when the
 * run ends.
 *
 * Only one thing shows that a line is too slow: the receiving site waits for items while the sending one
 * waits for credit. (A slow sending site never waits for credit; a slow receiving site never starves.) There
 * are two causes. If the line could have carried more, the window is too small, and boost doubles. If the
 * line is full, the choice falls on the most faithful rung at which it carries the needed items with a tenth
 * to spare, else on the cheapest. A line that is not full does not show how much more it would carry. So the
 * way back is tried: one rung after `hold` quiet seconds. If that starves the other site, hold doubles, up to
 * 256.
 *
 * After a change nothing is concluded until the items of the old kind have left the line. */
#include "split/stream_rate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    HOLD = 16,
    HOLD_MAX = 256,
    PROBE = 8,
    BOOST_MAX = 16,
    SETTLE_MAX = 8,
    LAG = 2 /* decisions until the other site's status shows a change */
};
static const double waits = 0.02, spare = 0.9, full = 0.6, enough = 0.97, slack_s = 0.25;

void neb__stream_rate_init(struct neb_stream_rate *r, const struct neb_stream_rate_config *c)
{
    *r = (struct neb_stream_rate){.config = *c, .boost = 1, .hold = HOLD};
    int64_t window = c->window ? c->window : NEB_STREAM_RATE_WINDOW;
    r->window = window > c->least ? window : c->least;
}

static double sane(double x)
{
    return isfinite(x) && x > 0 ? x : 0;
}

static double longest_trip(struct neb_stream_rate *r, double rtt)
{
    double most = 0;
    r->trip[r->trips++ % NEB_STREAM_RATE_TRIPS] = rtt;
    for (int i = 0; i < NEB_STREAM_RATE_TRIPS; i++) most = fmax(most, r->trip[i]);
    return most;
}

static double carried(const struct neb_stream_rate_sample *in)
{
    return in->items * in->item_bytes / in->seconds;
}

static bool is_full(const struct neb_stream_rate_sample *in)
{
    return in->line > 0 && carried(in) >= full * in->line;
}

static bool set_window(struct neb_stream_rate *r, const struct neb_stream_rate_sample *in, double trip)
{
    double n = (double)r->config.least + ceil(r->need * (1.5 * trip + slack_s) * r->boost);
    int64_t target = n < NEB_STREAM_RATE_WINDOW_MAX ? (int64_t)n : NEB_STREAM_RATE_WINDOW_MAX;
    if (r->config.window || r->need <= 0 || (8 * target <= 9 * r->window && 2 * target >= r->window))
        return false;
    if (target > r->window && is_full(in)) return false; /* a longer queue would not make the line faster */
    if (target > r->window && r->settle < LAG) r->settle = LAG;
    r->window = target;
    snprintf(
        r->reason, sizeof r->reason,
        "sending up to %lld batches ahead: the other site takes %.1f batches/s, a round trip is %.0f ms%s",
        (long long)target, r->need, 1e3 * trip, r->boost > 1 ? ", and items take longer than that" : "");
    return true;
}

static double bytes_of(const struct neb_stream_rate *r, const struct neb_stream_rate_sample *in, int rung)
{
    return in->item_bytes * r->config.rung[rung].bytes / r->config.rung[r->rung].bytes;
}

static void move(struct neb_stream_rate *r, int rung, double flight_s, double seconds)
{
    double n = 1 + ceil(flight_s / seconds);
    r->rung = rung;
    r->settle = n < SETTLE_MAX ? (int)n : SETTLE_MAX;
    r->quiet = 0;
}

static bool cheaper(struct neb_stream_rate *r, const struct neb_stream_rate_sample *in, double gone)
{
    int to = 0;
    while (to < r->config.rungs - 1 && r->need * bytes_of(r, in, to) > spare * gone) to++;
    if (to <= r->rung) return false;
    if (r->probe) r->hold = r->hold * 2 < HOLD_MAX ? r->hold * 2 : HOLD_MAX;
    r->probe = 0;
    snprintf(r->reason, sizeof r->reason, "%s: the line gives %.2f Mbit/s; %s at %.1f batches/s needs %.2f",
             r->config.rung[to].name, 8e-6 * gone, r->config.rung[r->rung].name, r->need,
             8e-6 * r->need * in->item_bytes);
    move(r, to, (double)r->window * in->item_bytes / gone, in->seconds);
    return true;
}

/* Called when both ends wait. */
static bool mend(struct neb_stream_rate *r, const struct neb_stream_rate_sample *in, double trip)
{
    r->quiet = 0;
    if (in->items <= 0) return false; /* the line is cut: nothing can be concluded */
    if (is_full(in)) return cheaper(r, in, carried(in));
    if (r->config.window || r->boost >= BOOST_MAX) return false;
    r->boost *= 2;
    return set_window(r, in, trip);
}

static bool better(struct neb_stream_rate *r, const struct neb_stream_rate_sample *in)
{
    if (r->probe && is_full(in) && carried(in) < enough * r->need * in->item_bytes)
        return cheaper(r, in, carried(in)); /* before either site has to wait */
    if (r->probe && --r->probe == 0 && r->hold > HOLD) r->hold /= 2;
    if (!r->rung || ++r->quiet < r->hold) return false;
    if (in->line > 0 && r->need * bytes_of(r, in, r->rung - 1) > spare * in->line) return false;
    snprintf(r->reason, sizeof r->reason, "%s: the line has carried %s for %d s without a wait",
             r->config.rung[r->rung - 1].name, r->config.rung[r->rung].name, r->quiet);
    move(r, r->rung - 1, 0, in->seconds);
    r->probe = PROBE;
    return true;
}

bool neb__stream_rate_step(struct neb_stream_rate *r, const struct neb_stream_rate_sample *seen)
{
    struct neb_stream_rate_sample in = {sane(seen->seconds), sane(seen->items), sane(seen->item_bytes),
                                        sane(seen->rtt),     sane(seen->line),  sane(seen->need),
                                        sane(seen->starved), sane(seen->credit)};
    if (in.seconds <= 0) return false;
    if (in.need > 0) r->need = r->need > 0 ? r->need + 0.5 * (in.need - r->need) : in.need;
    double trip = longest_trip(r, in.rtt);
    bool changed = set_window(r, &in, trip);
    if (r->need <= 0 || in.item_bytes <= 0) return changed;
    if (r->settle) {
        r->settle--;
        return changed;
    }
    if (in.starved > waits && in.credit > waits) return mend(r, &in, trip) || changed;
    return better(r, &in) || changed;
}
