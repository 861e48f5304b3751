/* schedule.c: outages, one-way cuts and changes of rate, delay or loss at given times.
 *
 * An event holds in [at + k*every, at + k*every + lasts). That depends only on the time, so the schedule has
 * no state and events may overlap. A line always has its own setting with the events that hold applied over
 * it, in the order of the file.
 */
#include "net/lab/schedule.h"

static int64_t ns(double seconds)
{
    return (int64_t)(seconds * 1e9 + 0.5);
}

/* Returns whether `e` holds at t. *change is when that ends (INT64_MAX: never). */
static bool holds(const struct neb_lab_event *e, int64_t t, int64_t *change)
{
    int64_t at = ns(e->at), lasts = ns(e->lasts), every = ns(e->every);
    *change = INT64_MAX;
    if (t < at) {
        *change = at;
        return false;
    }
    int64_t phase = every > 0 ? (t - at) % every : t - at, base = t - phase;
    bool on = lasts == 0 || phase < lasts;
    if (on && lasts > 0)
        *change = base + lasts;
    else if (!on && every > 0)
        *change = base + every;
    return on;
}

int64_t neb__schedule_next(const struct neb_lab_event *events, int n, int64_t t)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t change;
        holds(&events[i], t, &change);
        if (change < next) next = change;
    }
    return next;
}

static bool concerns(const struct neb_lab_event *e, int from, int to)
{
    if ((e->from < 0 || e->from == from) && (e->to < 0 || e->to == to)) return true;
    return e->both && (e->from < 0 || e->from == to) && (e->to < 0 || e->to == from);
}

void neb__schedule_apply(const struct neb_lab_event *events, int n, int64_t t, int from, int to,
                         struct neb_lab_line *line)
{
    for (int i = 0; i < n; i++) {
        const struct neb_lab_event *e = &events[i];
        int64_t change;
        if (!concerns(e, from, to) || !holds(e, t, &change)) continue;
        if (e->set & 1u << NEB_LAB_SET_RATE) line->rate = e->line.rate;
        if (e->set & 1u << NEB_LAB_SET_DELAY) line->delay = e->line.delay;
        if (e->set & 1u << NEB_LAB_SET_JITTER) line->jitter = e->line.jitter;
        if (e->set & 1u << NEB_LAB_SET_LOSS) line->loss = e->line.loss;
        if (e->set & 1u << NEB_LAB_SET_DOWN) line->down = e->line.down;
    }
}
