/* schedule.c: the learning rate as a function of progress. Progress may be counted in steps or in tokens;
 * warm-up and total have the same unit. */
#include "base/status.h"
#include "base/clamp.h"

#include <math.h>
#include <nebula/engine.h>
#include <stdbool.h>

neb_status neb_schedule_check(const struct neb_schedule *s)
{
    if ((unsigned)s->kind > NEB_WSD) return neb__fail(NEB_ERR_CONFIG, "unknown schedule %d", (int)s->kind);
    if (!isfinite(s->peak) || s->peak < 0 || !isfinite(s->floor) || s->floor < 0 || s->floor > s->peak)
        return neb__fail(NEB_ERR_CONFIG,
                         "learning rates: floor %g and peak %g must satisfy 0 <= floor <= peak",
                         (double)s->floor, (double)s->peak);
    if (s->warmup < 0 || s->total < 0 || (s->total > 0 && s->warmup > s->total))
        return neb__fail(NEB_ERR_CONFIG,
                         "schedule: the warm-up (%" PRId64 ") must lie between 0 and the total (%" PRId64 ")",
                         s->warmup, s->total);
    bool ends = s->kind == NEB_LINEAR || s->kind == NEB_COSINE || s->kind == NEB_WSD;
    if (ends && s->total < 1) return neb__fail(NEB_ERR_CONFIG, "this schedule needs a total above 0");
    if (s->kind == NEB_INVERSE_SQRT && s->warmup < 1)
        return neb__fail(NEB_ERR_CONFIG, "the inverse square root schedule needs a warm-up above 0");
    if (s->kind == NEB_WSD && !(s->decay > 0 && s->decay <= 1))
        return neb__fail(NEB_ERR_CONFIG,
                         "WSD: decay is %g; it is a share of the total, above 0 and at most 1",
                         (double)s->decay);
    return NEB_OK;
}

static double between(double from, double to, double part)
{
    return from + (to - from) * neb__clamp(part, 0, 1);
}

float neb_schedule_lr(const struct neb_schedule *s, int64_t at)
{
    double peak = s->peak, floor_ = s->floor, x = (double)at, warm = (double)s->warmup,
           total = (double)s->total;
    if (at < s->warmup) return (float)(peak * (x + 1) / warm);
    double part = total > warm ? (x - warm) / (total - warm) : 1;
    switch (s->kind) {
    case NEB_CONSTANT: return s->peak;
    case NEB_LINEAR: return (float)between(peak, floor_, part);
    case NEB_COSINE: return (float)between(floor_, peak, 0.5 * (1 + cos(3.141592653589793 * fmin(part, 1))));
    case NEB_INVERSE_SQRT: return (float)fmax(floor_, peak * sqrt(warm / (x + 1)));
    case NEB_WSD: return (float)between(peak, floor_, (x - total * (1 - s->decay)) / (total * s->decay));
    }
    return s->peak;
}

float neb_schedule_lr_within(const struct neb_schedule *s, int64_t at, double seconds, double limit_s)
{
    struct neb_schedule fits = *s;
    if (!(limit_s > 0 && seconds > 0) || at <= s->warmup) return neb_schedule_lr(s, at);
    double total = (double)at * limit_s / seconds;
    if (total < (double)s->total) fits.total = total > (double)at ? (int64_t)total : at;
    return neb_schedule_lr(&fits, at);
}
