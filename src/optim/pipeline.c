/* pipeline.c: one stage's turns in a step. Its messages go by stage_ways.c.
 *
 * The place of a forward's message and that of its gradient are fixed when the forward begins: gradients come in the order of the
 * micro-batches. Where devices send messages by themselves the host runs ahead of them, and how long a stage idles is not seen. */
#include "optim/pipeline.h"
#include "base/clock.h"
#include "base/mem.h"
#include "optim/stage_ways.h"
#include "tensor/slot.h"

struct neb_pipeline {
    struct neb_group *group;
    neb_tape *tape;
    struct neb_line_ways ways;
    neb_enter_stage_fn enter;
    void *arg;
    int stage, stages;
    double all_s, idle_s;
};

struct neb_stage_turn neb__pipeline_turn(int stage, int stages, int micros, int i)
{
    int first = stages - 1 - stage < micros ? stages - 1 - stage : micros, both = 2 * (micros - first);
    if (i < first) return (struct neb_stage_turn){false, i};
    i -= first;
    if (i >= both) return (struct neb_stage_turn){true, micros - first + i - both};
    return i % 2 ? (struct neb_stage_turn){true, i / 2} : (struct neb_stage_turn){false, first + i / 2};
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

neb_status neb__pipeline_open(struct neb_group *g, neb_device *d, neb_tape *t, const size_t *bytes,
                              neb_enter_stage_fn enter, void *arg, struct neb_pipeline **out)
{
    struct neb_pipeline *p = NEB_NEW(struct neb_pipeline);
    neb_status status = p ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a pipeline");
    status = neb__group_agree(g, status);
    if (status == NEB_OK) {
        *p = (struct neb_pipeline){.group = g,
                                   .tape = t,
                                   .enter = enter,
                                   .arg = arg,
                                   .stage = neb__group_rank(g),
                                   .stages = neb__group_size(g)};
        status = neb__ways_open(g, d, bytes, &p->ways);
    }
    if (status == NEB_OK) status = neb__tape_set_slots(t, neb__pipeline_slots(p));
    if (status != NEB_OK) {
        neb__pipeline_close(p);
        return status;
    }
    *out = p;
    return NEB_OK;
}

void neb__pipeline_close(struct neb_pipeline *p)
{
    if (!p) return;
    neb__ways_close(&p->ways);
    neb__free(p);
}

int neb__pipeline_slots(const struct neb_pipeline *p)
{
    return p->stages - p->stage;
}

void neb__pipeline_times(const struct neb_pipeline *p, double *all_s, double *idle_s)
{
    *all_s = p->all_s;
    *idle_s = p->idle_s;
}

/* ---- turns ------------------------------------------------------------------------------------------------ */

static neb_status idle(struct neb_pipeline *p, neb_status (*wait)(struct neb_line_way *),
                       struct neb_line_way *w)
{
    int64_t since = neb__now_ns();
    neb_status status = wait(w);
    if (w->channel) p->idle_s += neb__seconds_since(since);
    return status;
}

/* `behind`: how many gradients come before this micro-batch's, from now on. */
static struct neb_stage_ports ports(const struct neb_pipeline *p, int behind)
{
    const struct neb_line_ways *w = &p->ways;
    return (struct neb_stage_ports){
        .in = neb__way_buffer(&w->ahead_in, 0),
        .out = neb__way_buffer(&w->ahead_out, 0),
        .in_grad = neb__way_buffer(&w->back_out, behind),
        .out_grad = neb__way_buffer(&w->back_in, behind),
    };
}

/* Tells the model where this run reads and writes, loads the batch and waits for the stage before. */
static neb_status begin(struct neb_pipeline *p, int slot, int behind, neb_status (*load)(void *), void *arg)
{
    struct neb_stage_ports at = ports(p, behind);
    p->enter(p->arg, slot, &at);
    if (load) NEB_TRY(load(arg));
    NEB_TRY(idle(p, neb__way_reserve, &p->ways.ahead_out));
    NEB_TRY(idle(p, neb__way_await, &p->ways.ahead_in));
    return neb__way_take(&p->ways.ahead_in);
}

struct own_micros { /* those that this copy of the model runs */
    const struct neb_micro *list;
    int n, all, *index;
};

static neb_status forward(struct neb_pipeline *p, const struct own_micros *m, int micro, int gone_back)
{
    int slot = micro % neb__pipeline_slots(p);
    const struct neb_micro *u = &m->list[m->index[micro]];
    NEB_TRY(begin(p, slot, micro - gone_back, u->load, u->arg));
    struct neb_run run = {.fn = u->fn,
                          .arg = u->arg,
                          .key = u->key,
                          .grad = true,
                          .train = true,
                          .accumulate = micro > 0,
                          .last = micro == m->n - 1};
    NEB_TRY(neb__tape_forward(p->tape, slot, &run));
    return neb__way_send(&p->ways.ahead_out);
}

static neb_status backward(struct neb_pipeline *p, int micro)
{
    struct neb_line_ways *w = &p->ways;
    NEB_TRY(idle(p, neb__way_reserve, &w->back_out));
    NEB_TRY(idle(p, neb__way_await, &w->back_in));
    NEB_TRY(neb__way_take(&w->back_in));
    NEB_TRY(neb__tape_backward_slot(p->tape, micro % neb__pipeline_slots(p)));
    neb__way_release(&w->back_in);
    neb__way_release(&w->ahead_in);
    return neb__way_send(&w->back_out);
}

static neb_status all_turns(struct neb_pipeline *p, const struct own_micros *m)
{
    int gone_back = 0;
    for (int i = 0; i < 2 * m->n; i++) {
        struct neb_stage_turn turn = neb__pipeline_turn(p->stage, p->stages, m->n, i);
        NEB_TRY(turn.backward ? backward(p, turn.micro) : forward(p, m, turn.micro, gone_back));
        gone_back += turn.backward;
    }
    return NEB_OK;
}

static void give_up(struct neb_pipeline *p)
{
    neb__tape_abandon(p->tape);
    neb__ways_fail(&p->ways);
}

neb_status neb__pipeline_run(struct neb_pipeline *p, const struct neb_micro *micros, int n)
{
    struct own_micros own = {.list = micros, .all = n, .index = NEB_NEW_ARRAY(int, (size_t)n)};
    if (!own.index) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d micro-batches", n);
    for (int i = 0; i < n; i++)
        if (micros[i].fn) own.index[own.n++] = i;
    int64_t since = neb__now_ns();
    neb_status status = all_turns(p, &own);
    p->all_s += neb__seconds_since(since);
    if (status != NEB_OK) give_up(p);
    neb__free(own.index);
    return status;
}

neb_status neb__pipeline_forward(struct neb_pipeline *p, const struct neb_run *run)
{
    neb_status status = begin(p, 0, 0, NULL, NULL);
    if (status == NEB_OK) status = neb__tape_forward(p->tape, 0, run);
    if (status == NEB_OK) neb__way_release(&p->ways.ahead_in);
    if (status == NEB_OK) status = neb__way_send(&p->ways.ahead_out);
    if (status != NEB_OK) give_up(p);
    return status;
}
