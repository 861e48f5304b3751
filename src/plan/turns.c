/* turns.c: how long the turns of a pipeline take (optim/pipeline.c has their order). A stage begins a turn when it has ended
 * the one before and the message that the turn needs has come: of a forward from the stage before, of a backward from the one
 * behind. */
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

neb_status neb__planner_turns(const double *forward, const double *backward, int stages, int m,
                              double message, double *seconds, double *idle)
{
    const size_t n = (size_t)stages * (size_t)m;
    double *memory = NEB_NEW_ARRAY(double, 2 * n + (size_t)stages);
    struct turns t = {forward,        backward,
                      stages,         m,
                      message,        {memory, memory + n},
                      memory + 2 * n, NEB_NEW_ARRAY(int, (size_t)stages)};
    if (!memory || !t.next) {
        neb__free(memory);
        neb__free(t.next);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the turns of %d stages", stages);
    }
    for (size_t i = 0; i < 2 * n; i++) memory[i] = -1;
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
    neb__free(memory);
    neb__free(t.next);
    return NEB_OK;
}
