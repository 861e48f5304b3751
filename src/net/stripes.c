/* stripes.c: hill climbing on the number of stripes.
 *
 * More connections raise goodput if loss (with a loss-based congestion control) or buffers (a long fat pipe)
 * hold one connection back. If the line itself is full they only cost. Nobody can tell beforehand which is
 * the case, so the link tries. It counts acknowledged bytes over a period in which the queue was never empty,
 * changes the number, lets the new connections get going, counts again, and keeps the change if goodput rose
 * by more than noise (or, for fewer, did not fall). It doubles the number as long as that helps. When a try
 * fails the next one waits twice as long. Periods are multiples of the round-trip time, since that is the
 * time scale on which TCP reacts.
 *
 * The link begins with one stripe. It tries more only while TCP says that something other than the line holds
 * flows back (try_more). With BBR a single flow fills most lines, and several BBR flows on a line with a
 * short queue push each other's packets out, so that even a try costs. */
#include "net/stripes.h"
#include "base/clamp.h"

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
    int fewer = s->best - (s->best > 4 ? s->best / 4 : 1);
    int t = s->direction > 0 ? s->best * 2 : fewer;
    return (int)neb__clamp_int(t, 1, s->max);
}

/* Called after a period of holding, when the base rate has just been measured: tries the next number. */
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

static double next_hold(double hold)
{
    if (hold < hold_first) return hold_first;
    return hold * 2 > hold_most ? hold_most : hold * 2;
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
        s->hold = next_hold(s->hold);
        s->direction = -s->direction;
    }
    enter(s, NEB_STRIPES_HOLD, s->best, now, 0);
}

void neb__stripes_sample(struct neb_stripes *s, int64_t now, double bytes, double seconds, double rtt)
{
    if (s->fixed || now < s->settle_until) return;
    if (s->warm < 2 + 20 * rtt) { /* a flow that is still starting does not show its later rate */
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
