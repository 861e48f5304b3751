/* stripes.c: hill climbing on the number of stripes.
 *
 * More connections raise goodput where one is held back by loss (with a loss-based congestion control) or by its buffers (a
 * long fat pipe); where the line itself is full they only cost. Nobody can tell which beforehand, so the link tries: it
 * counts acknowledged bytes over a period in which the queue was never empty, changes the number, lets the new connections
 * get going, counts again, and keeps the change if goodput rose by more than noise (or, for fewer, did not fall). While more
 * keeps helping it doubles; when a try fails the next one waits twice as long. Periods are multiples of the round-trip time,
 * since that is the time scale on which TCP reacts.
 *
 * The first answer is one, and more are tried only while TCP says that flows are held back by something other than the line
 * (try_more): with BBR a single flow fills most lines, and several flows of it on a line with a short queue push each other's
 * packets out, so that even a try costs. */
#include "net/stripes.h"

#include <string.h>

static const double gain = 1.08, loss = 0.985, hold_first = 4, hold_most = 120;

void neb__stripes_init(struct neb_stripes *s, int fixed, int max, int64_t now)
{
    memset(s, 0, sizeof *s);
    s->max = max < 1 ? 1 : max;
    s->fixed = fixed > 0;
    s->target = s->best = fixed > 0 ? fixed : 1;
    s->direction = 1;
    s->phase_since = now;
    s->settle_until = now;
}

static double period(double rtt)
{
    double t = 12 * rtt;
    return t < 1 ? 1 : t;
}

static void enter(struct neb_stripes *s, int phase, int target, int64_t now, double settle)
{
    s->phase = phase;
    s->target = target;
    s->phase_since = now;
    s->settle_until = now + (int64_t)(settle * 1e9);
    s->bytes = s->busy = 0;
}

static int next_target(const struct neb_stripes *s)
{
    int t = s->direction > 0 ? s->best * 2 : s->best - (s->best > 4 ? s->best / 4 : 1);
    return t > s->max ? s->max : t < 1 ? 1 : t;
}

/* After a period of holding: the base rate is known afresh, try the next number. */
static void begin_try(struct neb_stripes *s, int64_t now, double rtt)
{
    s->best_rate = s->bytes / s->busy;
    if (!s->try_more) s->direction = -1;
    if (next_target(s) == s->best && !s->try_more) {
        enter(s, NEB_STRIPES_HOLD, s->best, now, 0);
        return;
    }
    if (next_target(s) == s->best) s->direction = -s->direction;
    if (next_target(s) == s->best) {
        enter(s, NEB_STRIPES_HOLD, s->best, now, 0);
        return;
    }
    enter(s, NEB_STRIPES_TRY, next_target(s), now, s->direction > 0 ? 0.5 + 8 * rtt : 2 * rtt);
}

static void judge_try(struct neb_stripes *s, int64_t now)
{
    double rate = s->bytes / s->busy;
    bool better = s->direction > 0 ? rate > gain * s->best_rate : rate > loss * s->best_rate;
    if (better) {
        s->best = s->target;
        s->best_rate = rate;
        s->hold = s->direction > 0 ? 0 : hold_first;
    } else {
        s->hold = s->hold < hold_first ? hold_first : s->hold * 2 > hold_most ? hold_most : s->hold * 2;
        s->direction = -s->direction;
    }
    enter(s, NEB_STRIPES_HOLD, s->best, now, 0);
}

void neb__stripes_sample(struct neb_stripes *s, int64_t now, double bytes, double seconds, double rtt)
{
    if (s->fixed || now < s->settle_until) return;
    if (s->warm < 2 + 20 * rtt) { /* a flow that is still starting says nothing about what it will give */
        s->warm += seconds;
        return;
    }
    s->bytes += bytes;
    s->busy += seconds;
    double need = period(rtt);
    if (s->phase == NEB_STRIPES_HOLD && need < s->hold) need = s->hold;
    if (s->busy < need) return;
    if (s->phase == NEB_STRIPES_HOLD)
        begin_try(s, now, rtt);
    else
        judge_try(s, now);
}
