/* pipeline.c: one stage's turns in a step, and the messages between stages.
 *
 * A message lies in a place of a channel (group/channel.h). On a device that computes in the host's memory the
 * model reads and writes it right there. Other devices have a buffer for each place, and a message is copied: the
 * host waits for the device before it sends. The place of a forward's message and that of its gradient are fixed
 * when the forward begins: gradients come in the order of the micro-batches. */
#include "optim/pipeline.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tensor/slot.h"

#include <string.h>

struct places { /* the places of a channel as buffers of the device */
    neb_buffer *list;
    int n;
    char *memory; /* of the device; NULL: the channel's */
};

struct neb_pipeline {
    struct neb_group *group;
    neb_tape *tape;
    struct neb_channels channels;
    struct places ahead_in, ahead_out, back_in, back_out;
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

static neb_status buffers_of(neb_device *d, const struct neb_channel *c, size_t bytes, struct places *out)
{
    int n = neb__channel_places(c);
    if (!n) return NEB_OK;
    out->list = NEB_NEW_ARRAY(neb_buffer, (size_t)n);
    if (!out->list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d messages", n);
    out->n = n;
    const size_t step = (bytes + 255) / 256 * 256;
    if (strcmp(d->ops->name, "cpu"))
        NEB_TRY(d->ops->alloc(d->ctx, (size_t)n * (step ? step : 256), (void **)&out->memory));
    for (int i = 0; i < n; i++) {
        void *at = out->memory ? out->memory + (size_t)i * step : neb__channel_place(c, i);
        out->list[i] = (neb_buffer){d, at, bytes};
    }
    return NEB_OK;
}

/* As many places as micro-batches are in flight at the stage before: none of them ever waits to send. */
static neb_status open_channels(struct neb_pipeline *p, neb_device *d, const size_t *bytes)
{
    struct neb_channel_size *size = NEB_NEW_ARRAY(struct neb_channel_size, (size_t)p->stages);
    neb_status status = size ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d stages", p->stages);
    for (int s = 0; size && s < p->stages - 1; s++)
        size[s] = (struct neb_channel_size){bytes[s], p->stages - s};
    status = neb__group_agree(p->group, status);
    if (status == NEB_OK) status = neb__channels_open(p->group, size, &p->channels);
    neb__free(size);
    NEB_TRY(status);
    const struct neb_channels *c = &p->channels;
    size_t before = p->stage ? bytes[p->stage - 1] : 0,
           behind = p->stage < p->stages - 1 ? bytes[p->stage] : 0;
    NEB_TRY(buffers_of(d, c->ahead_in, before, &p->ahead_in));
    NEB_TRY(buffers_of(d, c->back_out, before, &p->back_out));
    NEB_TRY(buffers_of(d, c->ahead_out, behind, &p->ahead_out));
    return buffers_of(d, c->back_in, behind, &p->back_in);
}

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
        status = open_channels(p, d, bytes);
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
    neb__channels_close(&p->channels);
    struct places *all[] = {&p->ahead_in, &p->ahead_out, &p->back_in, &p->back_out};
    for (int i = 0; i < 4; i++) {
        if (all[i]->memory) p->tape->dev->ops->free(p->tape->dev->ctx, all[i]->memory);
        neb__free(all[i]->list);
    }
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

static neb_status idle(struct neb_pipeline *p, neb_status (*wait)(struct neb_channel *),
                       struct neb_channel *c)
{
    if (!c) return NEB_OK;
    int64_t since = neb__now_ns();
    neb_status status = wait(c);
    p->idle_s += neb__seconds_since(since);
    return status;
}

/* A message has come, and goes into its buffer. */
static neb_status take_in(struct neb_pipeline *p, const struct places *at, const struct neb_channel *c)
{
    if (!at->memory) return NEB_OK;
    const int64_t i = (neb__channel_count(c) - 1) % at->n;
    const neb_buffer *b = &at->list[i];
    neb_device *d = p->tape->dev;
    return d->ops->upload(d->ctx, b->data, neb__channel_place(c, (int)i), b->bytes);
}

/* The next message goes out of its buffer. */
static neb_status send_out(struct neb_pipeline *p, const struct places *at, struct neb_channel *c)
{
    if (!c) return NEB_OK;
    const int64_t i = neb__channel_count(c) % (at->n ? at->n : 1);
    neb_device *d = p->tape->dev;
    if (at->memory)
        NEB_TRY(d->ops->download(d->ctx, neb__channel_place(c, (int)i), at->list[i].data, at->list[i].bytes));
    return neb__channel_post(c);
}

/* The buffer of message `number`. */
static neb_buffer *buffer_at(const struct places *p, int64_t number)
{
    return p->n ? &p->list[number % p->n] : NULL;
}

/* `behind`: how many gradients come before this micro-batch's, from now on. */
static struct neb_stage_ports ports(const struct neb_pipeline *p, int behind)
{
    const struct neb_channels *c = &p->channels;
    return (struct neb_stage_ports){
        .in = buffer_at(&p->ahead_in, neb__channel_count(c->ahead_in)),
        .out = buffer_at(&p->ahead_out, neb__channel_count(c->ahead_out)),
        .in_grad = buffer_at(&p->back_out, neb__channel_count(c->back_out) + behind),
        .out_grad = buffer_at(&p->back_in, neb__channel_count(c->back_in) + behind),
    };
}

/* Tells the model where this run reads and writes, loads the batch and waits for the stage before. */
static neb_status begin(struct neb_pipeline *p, int slot, int behind, neb_status (*load)(void *), void *arg)
{
    struct neb_stage_ports at = ports(p, behind);
    p->enter(p->arg, slot, &at);
    if (load) NEB_TRY(load(arg));
    NEB_TRY(idle(p, neb__channel_reserve, p->channels.ahead_out));
    NEB_TRY(idle(p, neb__channel_await, p->channels.ahead_in));
    return take_in(p, &p->ahead_in, p->channels.ahead_in);
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
    return send_out(p, &p->ahead_out, p->channels.ahead_out);
}

static neb_status backward(struct neb_pipeline *p, int micro)
{
    struct neb_channels *c = &p->channels;
    NEB_TRY(idle(p, neb__channel_reserve, c->back_out));
    NEB_TRY(idle(p, neb__channel_await, c->back_in));
    NEB_TRY(take_in(p, &p->back_in, c->back_in));
    NEB_TRY(neb__tape_backward_slot(p->tape, micro % neb__pipeline_slots(p)));
    if (c->back_in) neb__channel_release(c->back_in);
    if (c->ahead_in) neb__channel_release(c->ahead_in);
    return send_out(p, &p->back_out, c->back_out);
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
    neb__channels_fail(&p->channels);
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
    struct neb_channels *c = &p->channels;
    neb_status status = begin(p, 0, 0, NULL, NULL);
    if (status == NEB_OK) status = neb__tape_forward(p->tape, 0, run);
    if (status == NEB_OK && c->ahead_in) neb__channel_release(c->ahead_in);
    if (status == NEB_OK) status = send_out(p, &p->ahead_out, c->ahead_out);
    if (status != NEB_OK) give_up(p);
    return status;
}
