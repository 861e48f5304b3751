/* tape.c: running a model: plan, compute, record, replay.
 *
 * A new key first runs dry: all ops check their shapes and number their allocations, no device call is made,
 * and the observed lifetimes become a plan. From then on the n-th allocation of a run gets the n-th planned
 * offset. An allocation that differs from the plan (the model did something else under the same key) stops
 * the run. The key is then planned anew and the run starts again.
 *
 * On a device that can record, every key is recorded at its third run, when the libraries underneath have
 * chosen their algorithms. From then on the model function is not called any more. A recording with sums of gradients
 * beside the backward pass (tape.h) and one without are not taken for each other. */
#include "tensor/tape.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/partition.h"
#include "tensor/slot.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WARM_RUNS = 2 };

neb_status neb_tape_create(neb_device *d, neb_params *ps, neb_tape **out)
{
    if (ps && (!ps->ready || ps->dev != d))
        return neb__fail(NEB_ERR_STATE, "a tape needs parameters that are ready on the same device");
    neb_tape *t = NEB_NEW(neb_tape);
    if (!t) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tape");
    t->dev = d;
    t->params = ps;
    t->graphs = true;
    neb_status status = d->ops->alloc(d->ctx, 4 * sizeof(struct neb_ctl), (void **)&t->ctl);
    if (status == NEB_OK) status = d->ops->fill(d->ctx, t->ctl, 0, 4 * sizeof(struct neb_ctl));
    size_t bytes = 2 * sizeof(struct neb_ctl);
    if (status == NEB_OK && d->ops->host_alloc)
        status = d->ops->host_alloc(d->ctx, bytes, (void **)&t->ctl_host[0]);
    else if (status == NEB_OK && !(t->ctl_host[0] = neb__calloc(1, bytes)))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a tape");
    if (status != NEB_OK) {
        neb_tape_destroy(t);
        return status;
    }
    t->ctl_host[1] = t->ctl_host[0] + 1;
    t->ctl_copy[0] = t->ctl + 1;
    t->ctl_copy[1] = t->ctl + 2;
    t->ctl_before = t->ctl + 3;
    *out = t;
    return NEB_OK;
}

static void drop_graph(neb_tape *t, struct neb_plan *p)
{
    if (p->graph) t->dev->ops->graph_free(t->dev->ctx, p->graph);
    p->graph = NULL;
    p->runs = 0;
}

static void drop_plan(neb_tape *t, struct neb_plan *p)
{
    for (struct neb_plan **at = &t->plans; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    drop_graph(t, p);
    neb__plan_free(p);
}

void neb_tape_destroy(neb_tape *t)
{
    if (!t) return;
    neb_device *d = t->dev;
    for (int i = 0; i < 2; i++)
        if (t->pending[i]) d->ops->fence_wait(d->ctx, t->fence[i]);
    d->ops->sync(d->ctx);
    while (t->plans) drop_plan(t, t->plans);
    neb__tape_free_packed(t);
    neb__tape_free_slots(t);
    if (t->arena) d->ops->free(d->ctx, t->arena);
    if (t->ctl) d->ops->free(d->ctx, t->ctl);
    if (t->ctl_host[0] && d->ops->host_alloc)
        d->ops->host_free(d->ctx, t->ctl_host[0]);
    else
        neb__free(t->ctl_host[0]);
    for (int i = 0; i < t->n_chunks; i++) neb__free(t->chunks[i]);
    neb__free(t->chunks);
    neb__free(t->nodes);
    neb__life_free(&t->life);
    neb__free(t);
}

/* ---- errors and scopes --------------------------------------------------------------------------------- */

neb_status neb__tape_fail(neb_tape *t, neb_status status, const char *op, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (t->failed != NEB_OK) return t->failed;
    t->failed = status;
    return neb__fail(status, "%s%s%s: %s", t->scope, *t->scope ? ": " : "", op, text);
}

void neb_push(neb_tape *t, const char *fmt, ...)
{
    enum { DEPTH = sizeof t->frames / sizeof *t->frames };
    if (t->n_frames == DEPTH) {
        neb__tape_fail(t, NEB_ERR_LIMIT, "scope", "more than %d nested scopes", DEPTH);
        return;
    }
    t->frames[t->n_frames++] = (struct neb_scope_frame){t->scope_length, t->drops};
    t->drops = 0;
    char name[NEB_SCOPE];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    int n = snprintf(t->scope + t->scope_length, sizeof t->scope - (size_t)t->scope_length, "%s%s",
                     t->scope_length ? "." : "", name);
    t->scope_length += n;
    if (t->scope_length >= (int)sizeof t->scope) {
        t->scope_length = (int)sizeof t->scope - 1;
        neb__tape_fail(t, NEB_ERR_LIMIT, "scope", "the scope's name is longer than %d bytes", NEB_SCOPE - 1);
    }
}

void neb_pop(neb_tape *t)
{
    if (!t->n_frames) {
        neb__tape_fail(t, NEB_ERR_STATE, "scope", "neb_pop() without a matching neb_push()");
        return;
    }
    struct neb_scope_frame f = t->frames[--t->n_frames];
    t->scope_length = f.length;
    t->scope[f.length] = 0;
    t->drops = f.drops;
}

uint32_t neb__tape_drop_op(neb_tape *t)
{
    uint64_t h = 14695981039346656037u;
    for (const char *c = t->scope; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
    return (uint32_t)neb__mix64(h + t->drops++);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static void reset(neb_tape *t, const struct neb_run *run, struct neb_plan *plan)
{
    t->run = run;
    t->plan = plan;
    t->dry = plan == NULL;
    t->recording = run->grad;
    t->failed = NEB_OK;
    t->hold = 0;
    t->n_nodes = t->n_tensors = 0;
    t->scope_length = t->n_frames = 0;
    t->scope[0] = 0;
    t->drops = 0;
    t->in_recompute = t->replaying = t->unread = t->some_complete = t->announced = false;
    t->row_sample = t->row_position = NULL;
    t->team_rows = 0;
    neb__life_reset(&t->life);
    for (int i = 0; t->params && run->grad && i < t->params->count; i++) {
        neb_param *p = t->params->list[i];
        p->written = run->accumulate;
        p->complete = false;
        p->contributions = plan ? plan->contributions[i] : 0;
    }
    if (plan) neb__partition_expect(t->params, &plan->units);
    neb__partition_reset(t, plan ? plan->contributions : NULL);
}

static neb_status clear(neb_tape *t, const neb_param *p)
{
    neb_device *d = t->dev;
    const size_t bytes = (size_t)p->values * sizeof(float);
    return neb__tape_called(t, t->dry ? NEB_OK : d->ops->fill(d->ctx, t->params->grad + p->offset, 0, bytes));
}

/* Parameters that no op of this run reaches have gradient 0. */
static neb_status clear_unreached(neb_tape *t)
{
    if (neb__partition_of_grads(t->params)) return neb__partition_finish(t);
    for (int i = 0; i < t->params->count; i++) {
        neb_param *p = t->params->list[i];
        if (!p->trainable || p->elsewhere || p->written) continue;
        NEB_TRY(clear(t, p));
    }
    return NEB_OK;
}

/* Gradients to which this run adds nothing are complete before its backward begins. */
static neb_status announce_unreached(neb_tape *t)
{
    const bool asked = t->grad_ready || t->sums;
    if (t->dry || !t->run->last || !asked || neb__partition_of_grads(t->params)) return NEB_OK;
    for (int i = 0; i < t->params->count; i++) {
        neb_param *p = t->params->list[i];
        if (!p->trainable || p->elsewhere || t->plan->contributions[i]) continue;
        if (!p->written) NEB_TRY(clear(t, p));
        p->written = true;
        neb__tape_announce_one(t, p);
    }
    return NEB_OK;
}

/* The model forwards, dry or for real. */
neb_status neb__tape_forward_part(neb_tape *t, const struct neb_run *run, struct neb_plan *plan)
{
    reset(t, run, plan);
    run->fn(t, run->arg);
    if (t->failed == NEB_OK && t->n_frames)
        neb__tape_fail(t, NEB_ERR_STATE, "scope", "neb_push() without a matching neb_pop()");
    return t->failed;
}

/* Those that this run adds up. */
static const struct neb_grad_sums *sums_of(const neb_tape *t, const struct neb_run *run)
{
    return run->grad && run->last ? t->sums : NULL;
}

/* The same run backwards. */
neb_status neb__tape_backward_part(neb_tape *t)
{
    if (t->run->grad) {
        if (!t->dry) neb__tape_announce(t);
        t->failed = neb__partition_announce(t);
        if (t->failed == NEB_OK && t->params) t->failed = announce_unreached(t);
        if (t->failed == NEB_OK) t->failed = neb__tape_backward(t, 0);
        if (t->failed == NEB_OK && t->params) t->failed = clear_unreached(t);
    }
    if (t->failed == NEB_OK && !t->dry && t->life.n != t->plan->n)
        t->failed = neb__quiet(NEB_ERR_AGAIN, "the model made %d allocations, %d were planned", t->life.n,
                               t->plan->n);
    const struct neb_grad_sums *sums = sums_of(t, t->run);
    if (t->failed == NEB_OK && !t->dry && sums && sums->over) t->failed = sums->over(sums->arg);
    return t->failed;
}

static neb_status pass(neb_tape *t, const struct neb_run *run, struct neb_plan *plan)
{
    NEB_TRY(neb__tape_forward_part(t, run, plan));
    return neb__tape_backward_part(t);
}

static neb_status ensure_arena(neb_tape *t, size_t bytes)
{
    if (bytes <= t->arena_bytes) return NEB_OK;
    neb_device *d = t->dev;
    NEB_TRY(d->ops->sync(d->ctx));
    for (struct neb_plan *p = t->plans; p; p = p->next) drop_graph(t, p);
    if (t->arena) d->ops->free(d->ctx, t->arena);
    t->arena = NULL;
    t->arena_bytes = 0;
    NEB_TRY(d->ops->alloc(d->ctx, bytes, (void **)&t->arena));
    t->arena_bytes = bytes;
    return NEB_OK;
}

/* Where units are gathered before they are read, the order in which they are read is known after a first pass. */
static neb_status dry_pass(neb_tape *t, const struct neb_run *run, struct neb_unit_order *units)
{
    neb__partition_expect(t->params, NULL);
    NEB_TRY(pass(t, run, NULL));
    *units = neb__partition_take_order(t->params);
    if (!units->n) return NEB_OK;
    neb__partition_expect(t->params, units);
    return pass(t, run, NULL);
}

static neb_status make_plan(neb_tape *t, const struct neb_run *run, uint64_t key, struct neb_plan **out)
{
    struct neb_unit_order units = {0};
    neb_status status = dry_pass(t, run, &units);
    if (status == NEB_OK) status = neb__plan_make(&t->life, key, out);
    if (status != NEB_OK) {
        neb__free(units.list);
        return status;
    }
    (*out)->units = units;
    (*out)->next = t->plans;
    t->plans = *out;
    int n = t->params ? t->params->count : 0;
    (*out)->contributions = NEB_NEW_ARRAY(int, (size_t)n);
    if (!(*out)->contributions) {
        drop_plan(t, *out);
        return neb__fail(NEB_ERR_NOMEM, "out of memory while planning");
    }
    for (int i = 0; i < n; i++) (*out)->contributions[i] = t->params->list[i]->contributions;
    return NEB_OK;
}

static neb_status record(neb_tape *t, const struct neb_run *run, struct neb_plan *plan)
{
    neb_device *d = t->dev;
    NEB_TRY(d->ops->graph_begin(d->ctx));
    neb_status status = pass(t, run, plan);
    void *graph = NULL;
    neb_status e = d->ops->graph_end(d->ctx, &graph);
    if (status != NEB_OK || e != NEB_OK) {
        if (graph) d->ops->graph_free(d->ctx, graph);
        return status != NEB_OK ? status : e;
    }
    plan->graph = graph;
    return NEB_OK;
}

static neb_status compute(neb_tape *t, const struct neb_run *run, struct neb_plan *plan)
{
    neb_device *d = t->dev;
    const struct neb_grad_sums *sums = sums_of(t, run);
    if (t->poison && t->arena) NEB_TRY(d->ops->fill(d->ctx, t->arena, 0xff, t->arena_bytes));
    bool can_record = t->graphs && d->ops->graph_begin && !t->grad_ready && (!sums || sums->over);
    if (plan->graph && plan->sums != (sums != NULL)) drop_graph(t, plan);
    if (sums) sums->begin(sums->arg);
    if (!plan->graph && can_record && plan->runs >= WARM_RUNS) {
        neb_status status = record(t, run, plan);
        if (sums) sums->begin(sums->arg);
        t->announced = false; /* nothing has happened yet, so the run may be planned anew */
        NEB_TRY(status);
        plan->sums = sums != NULL;
    }
    plan->runs++;
    if (!plan->graph) return pass(t, run, plan);
    NEB_TRY(d->ops->graph_launch(d->ctx, plan->graph));
    if (sums) sums->launched(sums->arg);
    return NEB_OK;
}

static uint64_t full_key(const struct neb_run *r)
{
    uint64_t flags =
        (uint64_t)r->grad | (uint64_t)r->train << 1 | (uint64_t)r->accumulate << 2 | (uint64_t)r->last << 3;
    return neb__mix64(neb__mix64(r->key ^ flags << 60) + (uint64_t)(uintptr_t)r->fn);
}

static struct neb_plan *find_plan(neb_tape *t, uint64_t key)
{
    for (struct neb_plan *p = t->plans; p; p = p->next)
        if (p->key == key) return p;
    return NULL;
}

neb_status neb_tape_run(neb_tape *t, const struct neb_run *run)
{
    NEB_TRY(neb__tape_enter_slot(t, 0));
    return neb__tape_planned(t, run, compute);
}

neb_status neb__tape_planned(neb_tape *t, const struct neb_run *run, neb_compute_fn compute_with)
{
    if (!run->fn) return neb__fail(NEB_ERR_INVALID, "the run has no model function");
    if (t->may_run) NEB_TRY(t->may_run(t->may_run_arg));
    uint64_t key = full_key(run);
    for (int attempt = 0;; attempt++) {
        struct neb_plan *plan = find_plan(t, key);
        if (!plan) NEB_TRY(make_plan(t, run, key, &plan));
        NEB_TRY(ensure_arena(t, plan->bytes));
        /* a run that is broken off must not count in the sums of the losses; a recording is never broken
         * off */
        if (!plan->graph) NEB_TRY(t->dev->ops->copy(t->dev->ctx, t->ctl_before, t->ctl, sizeof *t->ctl));
        neb_status status = compute_with(t, run, plan);
        if (status != NEB_ERR_AGAIN) return status;
        bool others = neb__tape_in_flight(t) > 0; /* they may use this plan */
        if (!others) drop_plan(t, plan);
        t->plan = NULL;
        bool shared = run->grad && t->params && neb__partition_of_grads(t->params);
        if (attempt || run->accumulate || others || shared || t->announced)
            return neb__fail(NEB_ERR_STATE,
                             "the model does something different each time it runs with key %" PRIu64
                             "; give runs of different shapes different keys (%s)",
                             run->key, neb_last_error());
        NEB_TRY(t->dev->ops->copy(t->dev->ctx, t->ctl, t->ctl_before, sizeof *t->ctl));
    }
}

/* ---- settings ------------------------------------------------------------------------------------------ */

void neb_tape_allow_fallback(neb_tape *t, bool allow)
{
    t->fallback = allow;
}

void neb_tape_poison(neb_tape *t, bool on)
{
    t->poison = on;
}

void neb_tape_graphs(neb_tape *t, bool on)
{
    t->graphs = on;
}

void neb_tape_on_grad_ready(neb_tape *t, neb_grad_ready_fn fn, void *arg)
{
    t->grad_ready = fn;
    t->grad_ready_arg = arg;
}

void neb__tape_add_up(neb_tape *t, const struct neb_grad_sums *sums)
{
    t->sums = sums;
}

void neb__tape_on_call(neb_tape *t, void (*fn)(void *arg), void *arg)
{
    t->on_call = fn;
    t->on_call_arg = arg;
}

void neb__tape_ask_first(neb_tape *t, neb_status (*fn)(void *arg), void *arg)
{
    t->may_run = fn;
    t->may_run_arg = arg;
}

void neb__tape_force_reference(neb_tape *t, bool on)
{
    t->force_reference = on;
    while (t->plans) drop_plan(t, t->plans);
    t->plan = NULL;
}

void neb_tape_memory(const neb_tape *t, struct neb_memory *out)
{
    *out = (struct neb_memory){0};
    if (!t->plan) return;
    out->planned = (int64_t)t->plan->bytes;
    out->lower_bound = (int64_t)t->plan->lower_bound;
    out->unplanned = (int64_t)t->plan->unplanned;
    out->allocations = t->plan->n;
}

bool neb_is_training(const neb_tape *t)
{
    return t->run->train;
}

neb_dtype neb_compute_type(const neb_tape *t)
{
    return t->dev->config.compute;
}

void neb_set_rows(neb_tape *t, neb_tensor *sample, neb_tensor *position)
{
    if (!neb__tape_want(t, "rows", "sample", sample, NEB_I32, -1, -1) ||
        !neb__tape_want(t, "rows", "position", position, NEB_I32, neb__tensor_rows(sample), -1))
        return;
    t->row_sample = sample;
    t->row_position = position;
}
