/* site_stage.c: the turns of a stage whose neighbours are at other sites: see site_stage.h.
 *
 * Each slot has four buffers on the device: input, its gradient, output, its gradient. A message is turned into floats on
 * the host, and back. On a device that computes in the host's memory, in F32, the buffers themselves are the floats.
 *
 * The last stage has one slot: a loss writes gradients in the forward already, so its backward comes before the next
 * forward. */
#include "optim/site_stage_internal.h"
#include "base/bf16.h"
#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { SECOND = 0x5EC0 };                             /* makes the key of a second visit another one */
static const double slice = 0.2, short_slice = 0.002; /* seconds of a wait for one neighbour, for either */

/* ---- opening ---------------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static void drop_slots(struct neb_site_stage *s)
{
    if (s->memory) s->dev->ops->free(s->dev->ctx, s->memory);
    neb__free(s->slot);
    s->memory = NULL;
    s->slot = NULL;
}

/* Each copy of the model has its share of the micro-batches in flight. */
static int slots_of(const struct neb_site_stage *s, int depth)
{
    return (depth + s->copies - 1) / s->copies;
}

static neb_status make_slots(struct neb_site_stage *s, int in_flight)
{
    const size_t bytes[4] = {s->c.before_bytes, s->c.before_bytes, s->c.behind_bytes, s->c.behind_bytes};
    const bool is_there[4] = {s->c.ways->before, s->c.ways->before, s->c.ways->behind, s->c.ways->behind};
    size_t all = 0, at = 0;
    const int depth = slots_of(s, in_flight) + s->c.twice;
    for (int i = 0; i < 4; i++) all += is_there[i] ? aligned(bytes[i]) : 0;
    s->slot = NEB_NEW_ARRAY(struct neb_stage_slot, (size_t)depth);
    if (!s->slot) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d micro-batches in flight", depth);
    NEB_TRY(s->dev->ops->alloc(s->dev->ctx, all * (size_t)depth, (void **)&s->memory));
    for (int d = 0; d < depth; d++) {
        struct neb_stage_slot *k = &s->slot[d];
        neb_buffer **port[4] = {&k->ports.in, &k->ports.in_grad, &k->ports.out, &k->ports.out_grad};
        for (int i = 0; i < 4; i++) {
            if (!is_there[i]) continue;
            if (i == 1 && !s->c.gradients_out) continue;
            if (s->c.twice && (i < 2) != (d == depth - 1)) continue; /* each visit has one end */
            k->buffer[i] = (neb_buffer){s->dev, s->memory + at, bytes[i]};
            *port[i] = &k->buffer[i];
            at += aligned(bytes[i]);
        }
    }
    NEB_TRY(s->dev->ops->fill(s->dev->ctx, s->memory, 0, all * (size_t)depth));
    return neb__tape_set_slots(s->tape, depth);
}

static neb_status make_staging(struct neb_site_stage *s)
{
    const bool bf16 = s->dev->config.compute == NEB_BF16, host = !strcmp(s->dev->ops->name, "cpu");
    size_t most = s->c.before_bytes > s->c.behind_bytes ? s->c.before_bytes : s->c.behind_bytes,
           values = most / neb_dtype_size(s->dev->config.compute);
    s->direct = host && !bf16;
    if (s->direct && s->copies == 1) return NEB_OK;
    s->host = NEB_NEW_ARRAY(float, values);
    s->halves = bf16 ? NEB_NEW_ARRAY(uint16_t, values) : NULL;
    if (s->host && (s->halves || !bf16)) return NEB_OK;
    return neb__fail(NEB_ERR_NOMEM, "out of memory for a message of %zu values", values);
}

neb_status neb__site_stage_open(neb_device *d, neb_tape *t, const struct neb_site_stage_config *c, int depth,
                                struct neb_site_stage **out)
{
    struct neb_site_stage *s = NEB_NEW(struct neb_site_stage);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stage");
    *s = (struct neb_site_stage){.c = *c,
                                 .dev = d,
                                 .tape = t,
                                 .depth = depth,
                                 .copies = neb__group_size(neb__layout_data(c->layout)),
                                 .copy = neb__group_rank(neb__layout_data(c->layout))};
    neb_status status = make_staging(s);
    if (status == NEB_OK) status = make_slots(s, depth);
    if (status != NEB_OK) {
        neb__site_stage_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

static void drop_staging(struct neb_site_stage *s)
{
    neb__free(s->host);
    neb__free(s->halves);
    s->host = NULL;
    s->halves = NULL;
}

void neb__site_stage_close(struct neb_site_stage *s)
{
    if (!s) return;
    drop_slots(s);
    drop_staging(s);
    neb__free(s);
}

neb_status neb__site_stage_resize(struct neb_site_stage *s, size_t before_bytes, size_t behind_bytes)
{
    drop_slots(s);
    drop_staging(s);
    s->c.before_bytes = before_bytes;
    s->c.behind_bytes = behind_bytes;
    NEB_TRY(make_staging(s));
    return make_slots(s, s->depth);
}

neb_status neb__site_stage_set_depth(struct neb_site_stage *s, int depth)
{
    if (depth == s->depth) return NEB_OK;
    drop_slots(s);
    neb_status status = make_slots(s, depth);
    if (status == NEB_OK) status = neb__tape_reserve_slots(s->tape);
    if (status == NEB_OK) {
        s->depth = depth;
        return NEB_OK;
    }
    drop_slots(s);
    neb_status back = make_slots(s, s->depth);
    if (back == NEB_ERR_NOMEM)
        return neb__fail(NEB_ERR_STATE, "no memory for the %d micro-batches in flight that were there before",
                         s->depth);
    return back == NEB_OK ? status : back;
}

int neb__site_stage_depth(const struct neb_site_stage *s)
{
    return s->depth;
}

void neb__site_stage_times(const struct neb_site_stage *s, struct neb_site_stage_times *out)
{
    *out = s->times;
}

/* ---- messages --------------------------------------------------------------------------------------------- */

size_t neb__stage_values(const struct neb_stage_message *m)
{
    size_t n = 0;
    for (int i = 0; i < m->parts; i++) n += (size_t)(m->part[i].rows * m->width);
    return n;
}

static neb_status check_room(const struct neb_site_stage *s, size_t values, const neb_buffer *b)
{
    if (values * neb_dtype_size(s->dev->config.compute) <= b->bytes) return NEB_OK;
    return neb__fail(NEB_ERR_RANGE, "a message of %zu values between stages", values);
}

neb_status neb__stage_upload(struct neb_site_stage *s, const float *from, size_t n, const neb_buffer *to)
{
    if ((const void *)from == to->data) return NEB_OK;
    for (size_t i = 0; s->halves && i < n; i++) s->halves[i] = neb__bf16(from[i]);
    const void *bytes = s->halves ? (const void *)s->halves : from;
    return s->dev->ops->upload(s->dev->ctx, to->data, bytes, n * neb_dtype_size(s->dev->config.compute));
}

neb_status neb__stage_download(struct neb_site_stage *s, const neb_buffer *from, size_t n, float *to)
{
    if ((void *)to == from->data) return NEB_OK;
    void *bytes = s->halves ? (void *)s->halves : to;
    NEB_TRY(
        s->dev->ops->download(s->dev->ctx, bytes, from->data, n * neb_dtype_size(s->dev->config.compute)));
    for (size_t i = 0; s->halves && i < n; i++) to[i] = neb__bf16_value(s->halves[i]);
    return NEB_OK;
}

float *neb__stage_host(const struct neb_site_stage *s, const neb_buffer *b)
{
    return s->direct ? b->data : s->host;
}

/* A message has come and goes into its buffer. Ranks that share the layers get it from the first of them. */
static neb_status take(struct neb_site_stage *s, const struct neb_stage_message *m, const neb_buffer *to)
{
    const struct neb_stage_ways *w = s->c.ways;
    const size_t n = neb__stage_values(m);
    float *host = neb__stage_host(s, to);
    neb_status taken = NEB_OK;
    NEB_TRY(check_room(s, n, to));
    if (neb__stage_leads(s)) {
        neb__stage_patience(s, true);
        taken = w->take(w->arg, m, host);
        neb__stage_patience(s, false);
    }
    NEB_TRY(neb__stage_first(s, taken));
    NEB_TRY(neb__group_broadcast(neb__layout_tensor(s->c.layout), host, n * sizeof *host, 0));
    return neb__stage_upload(s, host, n, to);
}

static neb_status give_own(struct neb_site_stage *s, const struct neb_stage_message *m,
                           const neb_buffer *from)
{
    const struct neb_stage_ways *w = s->c.ways;
    float *host = neb__stage_host(s, from);
    NEB_TRY(neb__stage_download(s, from, neb__stage_values(m), host));
    neb__stage_patience(s, true);
    neb_status status = w->give(w->arg, m, host);
    neb__stage_patience(s, false);
    return status;
}

static neb_status give(struct neb_site_stage *s, const struct neb_stage_message *m, const neb_buffer *from)
{
    NEB_TRY(check_room(s, neb__stage_values(m), from));
    return neb__stage_first(s, neb__stage_leads(s) ? give_own(s, m, from) : NEB_OK);
}

/* ---- turns ------------------------------------------------------------------------------------------------ */

neb_status neb__stage_describe(struct neb_site_stage *s, void *run_arg, enum neb_stage_run run,
                               uint32_t number, struct neb_stage_message *before,
                               struct neb_stage_message *behind)
{
    *before = *behind = (struct neb_stage_message){.run = run, .number = number, .width = s->c.width};
    return s->c.shape(s->c.arg, run_arg, before, behind);
}

static neb_status describe(struct neb_site_stage *s, struct neb_stage_slot *k, void *run_arg,
                           enum neb_stage_run run, uint32_t number)
{
    return neb__stage_describe(s, run_arg, run, number, &k->before, &k->behind);
}

static neb_status load(struct neb_site_stage *s, int at, neb_status (*fn)(void *), void *arg)
{
    s->c.enter(s->c.arg, at, &s->slot[at].ports);
    return fn ? fn(arg) : NEB_OK;
}

/* A third of a turn is the forward. The rest of its time is slept, so that a stage has one speed on a busy machine, too. */
static void keep_speed(const struct neb_site_stage *s, const struct neb_stage_slot *k, bool back,
                       int64_t since)
{
    int64_t rows = 0;
    if (!(s->c.speed > 0)) return;
    const struct neb_stage_message *m = k->before.parts ? &k->before : &k->behind;
    for (int i = 0; i < m->parts; i++) rows += m->part[i].used;
    double left = (double)rows / s->c.speed * (back ? 2 : 1) / 3 - neb__seconds_since(since);
    if (!(left > 0)) return;
    struct timespec t = {.tv_sec = (time_t)left, .tv_nsec = (long)(1e9 * fmod(left, 1))};
    nanosleep(&t, NULL);
}

static int slot_number(const struct neb_site_stage *s, int micro)
{
    return micro / s->copies % slots_of(s, s->depth);
}

struct neb_stage_slot *neb__stage_slot_of(const struct neb_site_stage *s, int micro)
{
    return &s->slot[slot_number(s, micro)];
}

neb_status neb__stage_begin(struct neb_site_stage *s, const struct neb_micro *u, int micro)
{
    NEB_TRY(load(s, slot_number(s, micro), u->load, u->arg));
    return describe(s, neb__stage_slot_of(s, micro), u->arg, NEB_STAGE_TRAINS, (uint32_t)micro);
}

neb_status neb__stage_forward(struct neb_site_stage *s, const struct neb_micro *u, int micro, int n)
{
    struct neb_run run = {.fn = u->fn,
                          .arg = u->arg,
                          .key = u->key,
                          .grad = !s->c.forward_only,
                          .train = true,
                          .accumulate = micro >= s->copies,
                          .last = micro + s->copies >= n};
    int64_t since = neb__now_ns();
    NEB_TRY(neb__tape_forward(s->tape, slot_number(s, micro), &run));
    keep_speed(s, neb__stage_slot_of(s, micro), false, since);
    s->times.forward += neb__seconds_since(since);
    return NEB_OK;
}

neb_status neb__stage_backward(struct neb_site_stage *s, int micro)
{
    int64_t since = neb__now_ns();
    NEB_TRY(neb__tape_backward_slot(s->tape, slot_number(s, micro)));
    keep_speed(s, neb__stage_slot_of(s, micro), true, since);
    s->times.backward += neb__seconds_since(since);
    return NEB_OK;
}

static neb_status forward(struct neb_site_stage *s, const struct neb_micro *u, int micro, int n)
{
    struct neb_stage_slot *k = neb__stage_slot_of(s, micro);
    NEB_TRY(neb__stage_begin(s, u, micro));
    if (s->c.ways->before) NEB_TRY(take(s, &k->before, k->ports.in));
    NEB_TRY(neb__stage_forward(s, u, micro, n));
    return s->c.ways->behind ? give(s, &k->behind, k->ports.out) : NEB_OK;
}

static neb_status backward(struct neb_site_stage *s, int micro)
{
    struct neb_stage_slot *k = neb__stage_slot_of(s, micro);
    k->before.back = k->behind.back = true;
    if (s->c.gradients_in) NEB_TRY(take(s, &k->behind, k->ports.out_grad));
    NEB_TRY(neb__stage_backward(s, micro));
    s->times.micros++;
    return s->c.gradients_out ? give(s, &k->before, k->ports.in_grad) : NEB_OK;
}

static neb_status is_here(struct neb_site_stage *s, bool wanted, bool comes, bool back, double wait_s,
                          bool *here)
{
    *here = wanted && !comes;
    if (!wanted || !comes) return NEB_OK;
    neb_status status = s->c.ways->ready(s->c.ways->arg, back, wait_s);
    *here = status == NEB_OK;
    return status == NEB_ERR_TIMEOUT ? NEB_OK : status;
}

neb_status neb__stage_next_turn(struct neb_site_stage *s, int gone, int back, int n, bool *backward_now)
{
    const struct neb_stage_ways *w = s->c.ways;
    const bool may_forward = gone < n && gone - back < s->depth, may_back = back < gone;
    const double wait = may_forward && may_back ? short_slice : slice;
    for (double patience = 0;; patience = wait) {
        bool here;
        NEB_TRY(is_here(s, may_back, s->c.gradients_in, true, patience, &here));
        *backward_now = here;
        if (here) return NEB_OK;
        NEB_TRY(is_here(s, may_forward, w->before, false, patience, &here));
        if (here) return NEB_OK;
    }
}

/* Ranks that share the layers follow the first of them. */
static neb_status next_turn(struct neb_site_stage *s, int gone, int back, int n, bool *backward_now)
{
    struct neb_group *team = neb__layout_tensor(s->c.layout);
    int64_t said = 0;
    neb_status status = NEB_OK;
    if (neb__stage_leads(s)) {
        neb__stage_patience(s, true);
        status = neb__stage_next_turn(s, gone, back, n, backward_now);
        neb__stage_patience(s, false);
        said = status == NEB_OK && *backward_now;
    }
    NEB_TRY(neb__stage_first(s, status));
    NEB_TRY(neb__group_broadcast(team, &said, sizeof said, 0));
    *backward_now = said != 0;
    return NEB_OK;
}

/* ---- two visits ------------------------------------------------------------------------------------------- */

static struct neb_run run_of(const struct neb_micro *u, bool grad, bool accumulate, bool last)
{
    return (struct neb_run){.fn = u->fn,
                            .arg = u->arg,
                            .key = u->key,
                            .grad = grad,
                            .train = true,
                            .accumulate = accumulate,
                            .last = last};
}

/* The next message is known, and nothing else is to be done before. */
static neb_status await(struct neb_site_stage *s, const struct neb_stage_message *m, const neb_buffer *to)
{
    int64_t since = neb__now_ns();
    neb_status status = take(s, m, to);
    s->times.idle += neb__seconds_since(since);
    return status;
}

static neb_status first_visit(struct neb_site_stage *s, const struct neb_micro *u, int micro, int n)
{
    const int at = micro % s->depth;
    struct neb_stage_slot *k = &s->slot[at];
    NEB_TRY(load(s, at, u->load, u->arg));
    NEB_TRY(describe(s, k, u->arg, NEB_STAGE_TRAINS, (uint32_t)micro));
    struct neb_run run = run_of(u, !s->c.forward_only, true, micro == n - 1);
    int64_t since = neb__now_ns();
    NEB_TRY(neb__tape_forward(s->tape, at, &run));
    keep_speed(s, k, false, since);
    s->times.forward += neb__seconds_since(since);
    return give(s, &k->behind, k->ports.out);
}

/* Forwards to the loss and backwards. The first one of a step clears what no op of it reaches, for all visits. */
static neb_status second_visit(struct neb_site_stage *s, const struct neb_micro *u, int micro)
{
    struct neb_stage_slot *k = &s->slot[s->depth];
    NEB_TRY(load(s, s->depth, u->load, u->arg));
    NEB_TRY(describe(s, k, u->arg, NEB_STAGE_TRAINS, (uint32_t)micro));
    NEB_TRY(await(s, &k->before, k->ports.in));
    struct neb_run run = run_of(u, true, micro > 0, false);
    run.key ^= SECOND;
    int64_t since = neb__now_ns();
    NEB_TRY(neb__tape_forward(s->tape, s->depth, &run));
    NEB_TRY(neb__tape_backward_slot(s->tape, s->depth));
    keep_speed(s, k, true, since);
    s->times.backward += neb__seconds_since(since);
    k->before.back = true;
    return s->c.gradients_out ? give(s, &k->before, k->ports.in_grad) : NEB_OK;
}

static neb_status first_back(struct neb_site_stage *s, int micro)
{
    const int at = micro % s->depth;
    struct neb_stage_slot *k = &s->slot[at];
    s->times.micros++;
    if (s->c.forward_only) return NEB_OK;
    k->behind.back = true;
    NEB_TRY(await(s, &k->behind, k->ports.out_grad));
    int64_t since = neb__now_ns();
    NEB_TRY(neb__tape_backward_slot(s->tape, at));
    keep_speed(s, k, true, since);
    s->times.backward += neb__seconds_since(since);
    return NEB_OK;
}

/* Half of the slots are on their way to the second visit, half of them on their way back to the first. */
static neb_status all_visits(struct neb_site_stage *s, const struct neb_micro *micros, int n)
{
    const int lag = (s->depth + 1) / 2;
    int gone = 0, seen = 0, back = 0;
    for (; gone < s->depth && gone < n; gone++) NEB_TRY(first_visit(s, &micros[gone], gone, n));
    while (back < n) {
        if (seen < n && seen - back < lag) {
            NEB_TRY(second_visit(s, &micros[seen], seen));
            seen++;
            continue;
        }
        NEB_TRY(first_back(s, back++));
        if (gone >= n) continue;
        NEB_TRY(first_visit(s, &micros[gone], gone, n));
        gone++;
    }
    return NEB_OK;
}

/* ---- a step ----------------------------------------------------------------------------------------------- */

static neb_status all_turns(struct neb_site_stage *s, const struct neb_micro *micros, int n)
{
    int gone = 0, back = 0;
    while (back < n) {
        bool backward_now;
        int64_t since = neb__now_ns();
        NEB_TRY(next_turn(s, gone, back, n, &backward_now));
        s->times.idle += neb__seconds_since(since);
        if (backward_now)
            NEB_TRY(backward(s, back++));
        else {
            NEB_TRY(forward(s, &micros[gone], gone, n));
            gone++;
            if (s->c.forward_only) back++, s->times.micros++;
        }
    }
    return NEB_OK;
}

neb_status neb__site_stage_run(struct neb_site_stage *s, const struct neb_micro *micros, int n)
{
    int64_t since = neb__now_ns();
    neb_status status;
    s->told = false;
    if (s->copies > 1)
        status = neb__stage_rounds(s, micros, n);
    else
        status = s->c.twice ? all_visits(s, micros, n) : all_turns(s, micros, n);
    s->times.all += neb__seconds_since(since);
    if (status != NEB_OK) neb__tape_abandon(s->tape);
    return status;
}

void neb__site_stage_begin_eval(struct neb_site_stage *s)
{
    s->evaluated = 0;
}

static neb_status evaluate_second(struct neb_site_stage *s, const struct neb_run *first,
                                  const struct neb_stage_slot *from)
{
    struct neb_stage_slot *k = &s->slot[s->depth];
    struct neb_run run = *first;
    run.key ^= SECOND;
    NEB_TRY(load(s, s->depth, NULL, NULL));
    NEB_TRY(take(s, &from->before, k->ports.in));
    neb_status status = neb__tape_forward(s->tape, s->depth, &run);
    if (status != NEB_OK) neb__tape_abandon(s->tape);
    return status;
}

neb_status neb__site_stage_forward(struct neb_site_stage *s, const struct neb_run *run)
{
    struct neb_stage_slot *k = &s->slot[0];
    NEB_TRY(load(s, 0, NULL, NULL));
    NEB_TRY(describe(s, k, run->arg, NEB_STAGE_EVALUATES, s->evaluated++));
    if (s->c.ways->before && !s->c.twice) NEB_TRY(take(s, &k->before, k->ports.in));
    neb_status status = neb__tape_forward(s->tape, 0, run);
    if (status != NEB_OK) neb__tape_abandon(s->tape);
    NEB_TRY(status);
    if (s->c.ways->behind) NEB_TRY(give(s, &k->behind, k->ports.out));
    return s->c.twice ? evaluate_second(s, run, k) : NEB_OK;
}

/* ---- behind the runs -------------------------------------------------------------------------------------- */

neb_status neb__site_stage_sums(struct neb_site_stage *s, double own, struct neb_ctl *device_ctl)
{
    struct neb_ctl c;
    struct neb_stage_sums v;
    NEB_TRY(s->dev->ops->download(s->dev->ctx, &c, device_ctl, sizeof c));
    for (int i = 0; i < NEB_STAGE_LOSSES; i++) v.loss[i] = (double)c.loss[i];
    for (int i = 0; i < NEB_STAGE_COUNTS; i++) v.counts[i] = (double)c.counts[i];
    v.norm2 = own < 0 ? (double)c.norm2 : own;
    v.nonfinite = c.nonfinite;
    int64_t since = neb__now_ns();
    NEB_TRY(neb__stage_add_up_all(s, &v));
    s->times.idle += neb__seconds_since(since);
    s->times.all += neb__seconds_since(since);
    for (int i = 0; i < NEB_STAGE_LOSSES; i++) c.loss[i] = (float)v.loss[i];
    for (int i = 0; i < NEB_STAGE_COUNTS; i++) c.counts[i] = (float)v.counts[i];
    c.norm2 = (float)v.norm2;
    c.nonfinite = v.nonfinite > 0 || !isfinite(v.norm2);
    return s->dev->ops->upload(s->dev->ctx, device_ctl, &c, sizeof c);
}

neb_status neb__site_stage_spread(struct neb_site_stage *s, void *bytes, size_t n)
{
    const struct neb_stage_ways *w = s->c.ways;
    neb_status status = NEB_OK;
    if (neb__stage_leads(s)) {
        neb__stage_patience(s, true);
        status = w->spread(w->arg, bytes, n);
        neb__stage_patience(s, false);
    }
    NEB_TRY(neb__stage_first(s, status));
    return neb__group_broadcast(neb__layout_tensor(s->c.layout), bytes, n, 0);
}
