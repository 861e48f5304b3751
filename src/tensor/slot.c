/* slot.c: micro-batches in flight: what belongs to one of them is swapped into the tape and out again.
 *
 * The ops read the tape's own fields, so a tape without slots pays nothing for them. A parameter's state in a
 * run (whether its gradient was written, how many contributions are to come) is kept beside the slot while
 * another run goes. */
#include "tensor/slot.h"
#include "base/mem.h"

struct held_param {
    bool written;
    int contributions;
};

struct neb_tape_slot {
    neb_tensor **chunks;
    int n_chunks, n_tensors;
    struct neb_node *nodes;
    int n_nodes, cap_nodes;
    struct neb_plan *plan;
    struct neb_lifetimes life;
    char *arena;
    size_t arena_bytes;
    struct neb_run run;
    struct held_param *params; /* (parameters) while the backward is to come */
    bool waits;                /* the forward is over, the backward is not */
};

static void put_aside(const neb_tape *t, struct neb_tape_slot *s)
{
    s->chunks = t->chunks, s->n_chunks = t->n_chunks, s->n_tensors = t->n_tensors;
    s->nodes = t->nodes, s->n_nodes = t->n_nodes, s->cap_nodes = t->cap_nodes;
    s->plan = t->plan, s->life = t->life;
    s->arena = t->arena, s->arena_bytes = t->arena_bytes;
}

static void take_up(neb_tape *t, const struct neb_tape_slot *s)
{
    t->chunks = s->chunks, t->n_chunks = s->n_chunks, t->n_tensors = s->n_tensors;
    t->nodes = s->nodes, t->n_nodes = s->n_nodes, t->cap_nodes = s->cap_nodes;
    t->plan = s->plan, t->life = s->life;
    t->arena = s->arena, t->arena_bytes = s->arena_bytes;
}

static void change_to(neb_tape *t, int slot)
{
    if (slot == t->slot) return;
    put_aside(t, &t->slots[t->slot]);
    take_up(t, &t->slots[slot]);
    t->slot = slot;
}

/* ---- slots ------------------------------------------------------------------------------------------------ */

static void slot_free(neb_tape *t, struct neb_tape_slot *s)
{
    for (int i = 0; i < s->n_chunks; i++) neb__free(s->chunks[i]);
    neb__free(s->chunks);
    neb__free(s->nodes);
    neb__life_free(&s->life);
    if (s->arena) t->dev->ops->free(t->dev->ctx, s->arena);
}

void neb__tape_free_slots(neb_tape *t)
{
    if (!t->slots) return;
    change_to(t, 0);
    for (int i = 0; i < t->n_slots; i++) neb__free(t->slots[i].params);
    for (int i = 1; i < t->n_slots; i++) slot_free(t, &t->slots[i]); /* the first one's are the tape's */
    neb__free(t->slots);
    t->slots = NULL;
    t->n_slots = 0;
}

neb_status neb__tape_set_slots(neb_tape *t, int n)
{
    if (n < 1 || neb__tape_in_flight(t))
        return neb__fail(NEB_ERR_STATE, "a tape cannot get %d slots with %d runs in flight", n,
                         neb__tape_in_flight(t));
    NEB_TRY(t->dev->ops->sync(t->dev->ctx));
    neb__tape_free_slots(t);
    struct neb_tape_slot *slots = NEB_NEW_ARRAY(struct neb_tape_slot, (size_t)n);
    bool enough = slots != NULL;
    for (int i = 0; enough && i < n; i++) {
        slots[i].params = NEB_NEW_ARRAY(struct held_param, t->params ? (size_t)t->params->count : 1);
        enough = slots[i].params != NULL;
    }
    if (!enough) {
        for (int i = 0; slots && i < n; i++) neb__free(slots[i].params);
        neb__free(slots);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %d micro-batches in flight", n);
    }
    t->slots = slots;
    t->n_slots = n;
    return NEB_OK;
}

neb_status neb__tape_reserve_slots(neb_tape *t)
{
    neb_device *d = t->dev;
    const size_t most = t->slot ? t->slots[0].arena_bytes : t->arena_bytes;
    for (int i = 1; most && i < t->n_slots; i++) {
        struct neb_tape_slot *s = &t->slots[i];
        if (i == t->slot || s->arena) continue;
        NEB_TRY(d->ops->alloc(d->ctx, most, (void **)&s->arena));
        s->arena_bytes = most;
    }
    return NEB_OK;
}

int neb__tape_slot(const neb_tape *t)
{
    return t->slot;
}

int neb__tape_in_flight(const neb_tape *t)
{
    int n = 0;
    for (int i = 0; i < t->n_slots; i++) n += t->slots[i].waits;
    return n;
}

neb_status neb__tape_enter_slot(neb_tape *t, int slot)
{
    if (!t->slots && !slot) return NEB_OK;
    if (slot < 0 || slot >= t->n_slots || t->slots[slot].waits)
        return neb__fail(NEB_ERR_STATE, "slot %d of %d is not free: the backward of its run is to come", slot,
                         t->n_slots);
    change_to(t, slot);
    return NEB_OK;
}

void neb__tape_abandon(neb_tape *t)
{
    for (int i = 0; i < t->n_slots; i++) t->slots[i].waits = false;
}

/* ---- halves ----------------------------------------------------------------------------------------------- */

static neb_status forward(neb_tape *t, const struct neb_run *run, struct neb_plan *plan)
{
    neb_device *d = t->dev;
    if (t->poison && t->arena) NEB_TRY(d->ops->fill(d->ctx, t->arena, 0xff, t->arena_bytes));
    plan->runs++;
    NEB_TRY(neb__tape_forward_part(t, run, plan));
    return run->grad ? NEB_OK : neb__tape_backward_part(t); /* which only checks */
}

neb_status neb__tape_forward(neb_tape *t, int slot, const struct neb_run *run)
{
    if (!t->slots) NEB_TRY(neb__tape_set_slots(t, 1));
    NEB_TRY(neb__tape_enter_slot(t, slot));
    struct neb_tape_slot *s = &t->slots[slot];
    s->run = *run;
    NEB_TRY(neb__tape_planned(t, &s->run, forward));
    for (int i = 0; run->grad && t->params && i < t->params->count; i++) {
        const neb_param *p = t->params->list[i];
        s->params[i] = (struct held_param){p->written, p->contributions};
    }
    s->waits = run->grad;
    return NEB_OK;
}

neb_status neb__tape_backward_slot(neb_tape *t, int slot)
{
    if (slot < 0 || slot >= t->n_slots || !t->slots[slot].waits)
        return neb__fail(NEB_ERR_STATE, "slot %d of %d holds no run that could go backwards", slot,
                         t->n_slots);
    struct neb_tape_slot *s = &t->slots[slot];
    change_to(t, slot);
    s->waits = false;
    t->run = &s->run;
    t->failed = NEB_OK;
    t->dry = false;
    t->recording = true;
    t->hold = 0;
    for (int i = 0; t->params && i < t->params->count; i++) {
        neb_param *p = t->params->list[i];
        p->written = s->params[i].written;
        p->contributions = s->params[i].contributions;
        p->complete = false;
    }
    neb_status status = neb__tape_backward_part(t);
    if (status != NEB_ERR_AGAIN) return status;
    return neb__fail(NEB_ERR_STATE, "the backward of a run differs from its plan (%s)", neb_last_error());
}
