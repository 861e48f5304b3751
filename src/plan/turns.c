/* turns.c: how long the turns of a pipeline take (optim/pipeline.c has their order). A stage begins a turn when it has ended
 * the one before and the message that the turn needs has come: of a forward from the stage before, of a backward from the one
 * behind.
 *
 * Stages with a device of their own are independent: each turn's end follows from two others. Stages that share a device run
 * the faster the more of them wait, so they are followed event by event: until the next turn ends or the next message
 * comes, every running turn goes on at the speed that the number of them on its device allows. */
#include "base/mem.h"
#include "optim/pipeline.h"
#include "plan/plan.h"

#include <math.h>

struct turns {
    const double *forward, *backward;
    int stages, m;
    double message;
    double *came[2]; /* (stages, m) when a forward, a backward was over there; negative: not yet */
    double *clock;   /* (stages) */
    int *next;       /* (stages) */
};

/* When the turn may begin; negative: what it needs is not made yet. */
static double ready(const struct turns *t, int s, const struct neb_stage_turn *turn)
{
    const int from = turn->backward ? s + 1 : s - 1;
    if (from < 0 || from == t->stages) return 0;
    const double came = t->came[turn->backward][from * t->m + turn->micro];
    return came < 0 ? -1 : came + t->message;
}

static bool advance(struct turns *t, int s)
{
    if (t->next[s] == 2 * t->m) return false;
    const struct neb_stage_turn turn = neb__pipeline_turn(s, t->stages, t->m, t->next[s]);
    const double at = ready(t, s, &turn);
    if (at < 0) return false;
    t->clock[s] = fmax(t->clock[s], at) + (turn.backward ? t->backward[s] : t->forward[s]);
    t->came[turn.backward][s * t->m + turn.micro] = t->clock[s];
    t->next[s]++;
    return true;
}

static neb_status begin_turns(struct turns *t)
{
    const size_t n = (size_t)t->stages * (size_t)t->m;
    double *memory = NEB_NEW_ARRAY(double, 2 * n + (size_t)t->stages);
    t->next = NEB_NEW_ARRAY(int, (size_t)t->stages);
    if (!memory || !t->next) {
        neb__free(memory);
        neb__free(t->next);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the turns of %d stages", t->stages);
    }
    for (size_t i = 0; i < 2 * n; i++) memory[i] = -1;
    t->came[0] = memory;
    t->came[1] = memory + n;
    t->clock = memory + 2 * n;
    return NEB_OK;
}

static void end_turns(struct turns *t)
{
    neb__free(t->came[0]);
    neb__free(t->next);
}

neb_status neb__planner_turns(const double *forward, const double *backward, int stages, int m,
                              double message, double *seconds, double *idle)
{
    struct turns t = {.forward = forward, .backward = backward, .stages = stages, .m = m, .message = message};
    NEB_TRY(begin_turns(&t));
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < stages; s++)
            while (advance(&t, s)) moved = true;
    }
    double end = 0, busy = 0;
    for (int s = 0; s < stages; s++) {
        end = fmax(end, t.clock[s]);
        busy += m * (forward[s] + backward[s]);
    }
    *seconds = end;
    *idle = end > 0 ? 1 - busy / (end * stages) : 0;
    end_turns(&t);
    return NEB_OK;
}

/* ---- on one device -------------------------------------------------------------------------------------------- */

static const double rounding = 1e-9;

struct sharing {
    struct turns t; /* clock: what is left of the running turn; negative: none runs */
    double alone, now, worked;
};

/* A turn begins if nothing runs and what it needs has come. Returns when that is; infinite: nobody knows yet. */
static double try_begin(struct sharing *h, int s)
{
    struct turns *t = &h->t;
    if (t->next[s] == 2 * t->m) return HUGE_VAL;
    const struct neb_stage_turn turn = neb__pipeline_turn(s, t->stages, t->m, t->next[s]);
    const double at = ready(t, s, &turn);
    if (at < 0) return HUGE_VAL;
    if (at <= h->now) t->clock[s] = turn.backward ? t->backward[s] : t->forward[s];
    return at;
}

/* How fast turns run: 1 where all stages work, 1 / alone where one does. */
static double speed(const struct sharing *h)
{
    int n = 0;
    for (int s = 0; s < h->t.stages; s++) n += h->t.clock[s] >= 0;
    const double load = h->t.stages > 1 ? (double)(n - 1) / (h->t.stages - 1) : 0;
    return 1 / (h->alone + (1 - h->alone) * load);
}

static void end_turn(struct sharing *h, int s)
{
    struct turns *t = &h->t;
    const struct neb_stage_turn turn = neb__pipeline_turn(s, t->stages, t->m, t->next[s]);
    t->came[turn.backward][s * t->m + turn.micro] = h->now;
    t->next[s]++;
    t->clock[s] = -1;
}

/* Goes to the next event. False: all turns are over. */
static bool next_event(struct sharing *h)
{
    struct turns *t = &h->t;
    double until = HUGE_VAL;
    for (int s = 0; s < t->stages; s++)
        if (t->clock[s] < 0) {
            const double at = try_begin(h, s);
            if (t->clock[s] < 0) until = fmin(until, at);
        }
    const double fast = speed(h);
    for (int s = 0; s < t->stages; s++)
        if (t->clock[s] >= 0) until = fmin(until, h->now + t->clock[s] / fast);
    if (!isfinite(until)) return false;
    const double before = h->now, dt = until - before;
    h->now = until;
    for (int s = 0; s < t->stages; s++) {
        if (t->clock[s] < 0) continue;
        /* the one whose end this event is, too: of a short turn late in a step rounding may leave more than dt takes */
        const bool over = before + t->clock[s] / fast <= until;
        h->worked += dt;
        t->clock[s] -= dt * fast;
        if (over || t->clock[s] <= rounding * (t->forward[s] + t->backward[s])) end_turn(h, s);
    }
    return true;
}

neb_status neb__planner_turns_sharing(const double *forward, const double *backward, int stages, int m,
                                      double message, double alone, double *seconds, double *idle)
{
    struct sharing h = {
        .t = {.forward = forward, .backward = backward, .stages = stages, .m = m, .message = message},
        .alone = fmin(fmax(alone, 1e-3), 1)};
    NEB_TRY(begin_turns(&h.t));
    for (int s = 0; s < stages; s++) h.t.clock[s] = -1;
    while (next_event(&h)) continue;
    *seconds = h.now;
    *idle = h.now > 0 ? 1 - h.worked / (h.now * stages) : 0;
    end_turns(&h.t);
    return NEB_OK;
}
