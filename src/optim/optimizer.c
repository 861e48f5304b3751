/* optimizer.c: AdamW and SGD over the slab, and the step that composes micro-batches, reduction, clipping and
 * update. ranks.c has what several ranks do together. With Muon the matrices between hidden states are no segments of
 * the slab's update; muon.c takes them.
 *
 * The optimizer's moments mirror the trainable slab. A table with one segment per parameter carries the
 * weight decay, and the device walks all segments in one pass. The device skips a step in which something was
 * not finite. It decides that from the step's own numbers, so the host need not wait for them. A step without
 * any loss weight (masked prediction of a text in which nothing was masked) runs with a scale of 0 and makes
 * no update: neither momentum nor decay changes a parameter. */
#include "optim/offload.h"
#include "base/clock.h"
#include "base/mem.h"
#include "optim/beside.h"
#include "optim/muon.h"
#include "optim/pipeline.h"
#include "optim/site_stage.h"
#include "optim/whole.h"
#include "tensor/matrices.h"

#include <math.h>
#include <string.h>

struct neb_optimizer_config neb_optimizer_defaults(void)
{
    return (struct neb_optimizer_config){.kind = NEB_ADAMW,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.999f,
                                         .eps = 1e-8f,
                                         .decay = 0.01f,
                                         .max_norm = 1.0f,
                                         .muon_momentum = 0.95f};
}

static neb_status check(const struct neb_optimizer_config *c)
{
    const bool muon = c->kind == NEB_MUON, moments = muon || c->kind == NEB_ADAMW;
    if (!moments && c->kind != NEB_SGD)
        return neb__fail(NEB_ERR_CONFIG, "unknown optimizer %d", (int)c->kind);
    if (muon && c->muon_type != NEB_F32 && c->muon_type != NEB_BF16)
        return neb__fail(NEB_ERR_CONFIG, "optimizer: Muon's products are F32 or BF16");
    struct {
        const char *name;
        float value, low, high;
    } rules[] = {{"beta1", c->beta1, 0, 0.999999f},
                 {"beta2", moments ? c->beta2 : 0, 0, 0.9999999f},
                 {"eps", moments ? c->eps : 1, 1e-30f, 1},
                 {"muon_momentum", muon ? c->muon_momentum : 0, 0, 0.999999f},
                 {"decay", c->decay, 0, 10},
                 {"max_norm", c->max_norm, 0, 1e30f}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!(rules[i].value >= rules[i].low && rules[i].value <= rules[i].high))
            return neb__fail(NEB_ERR_CONFIG, "optimizer: %s is %g; it must be between %g and %g",
                             rules[i].name, (double)rules[i].value, (double)rules[i].low,
                             (double)rules[i].high);
    return NEB_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int neb__optimizer_moments(const neb_optimizer *o)
{
    if (o->config.kind != NEB_SGD) return 2;
    return o->config.beta1 > 0;
}

/* The parts of the parameters that lie in a bucket. Returns how many. */
static int segments_of(const neb_optimizer *o, const struct neb_state_bucket *k, struct neb_segment *out)
{
    const neb_params *ps = o->params;
    const int64_t from = o->first + k->first, to = from + k->n;
    int n = 0;
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        int64_t first = larger(p->offset, from), end = smaller(p->offset + p->values, to);
        if (!p->trainable || first >= end || (o->config.kind == NEB_MUON && p->taken_as_matrix)) continue;
        if (out)
            out[n] = (struct neb_segment){first - from, end - first, p->no_decay ? 0 : o->config.decay, 1};
        n++;
    }
    return n;
}

/* The parameter takes its step here, and not as a matrix. [first, end) is its part of the range. */
static bool is_updated(const neb_optimizer *o, const neb_param *p, int64_t *first, int64_t *end)
{
    *first = larger(p->offset, o->first) - o->first;
    *end = smaller(p->offset + p->values, o->end) - o->first;
    return p->trainable && *first < *end && !p->taken_as_matrix;
}

/* With Muon: from matrix to matrix. k (or NULL): the buckets. Returns how many there are. */
static int runs_between(const neb_optimizer *o, struct neb_state_bucket *k)
{
    int n = 0;
    bool open = false;
    int64_t v = 0, first, end;
    for (int i = 0; i < o->params->count; i++) {
        const neb_param *p = o->params->list[i];
        if (p->trainable && p->taken_as_matrix && p->values) open = false;
        if (!is_updated(o, p, &first, &end)) continue;
        if (!open && k) k[n] = (struct neb_state_bucket){.first = first, .v = v};
        if (!open) n++;
        open = true;
        if (!k) continue;
        k[n - 1].n = end - k[n - 1].first;
        v = k[n - 1].v + k[n - 1].n;
    }
    return n;
}

static void equal_runs(const neb_optimizer *o, int64_t most)
{
    const int64_t n = o->end - o->first;
    for (int64_t b = 0; b < o->n_buckets; b++)
        o->bucket[b] =
            (struct neb_state_bucket){.first = b * most, .n = smaller(most, n - b * most), .v = b * most};
}

/* Cuts the range into buckets. Returns the number of segments of all of them. */
static neb_status make_buckets(neb_optimizer *o, int64_t most, int *segments)
{
    const bool muon = o->config.kind == NEB_MUON;
    *segments = 0;
    o->n_buckets = muon ? runs_between(o, NULL) : (int)((o->end - o->first + most - 1) / most);
    o->bucket = NEB_NEW_ARRAY(struct neb_state_bucket, (size_t)o->n_buckets);
    if (o->n_buckets && !o->bucket)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %d buckets", o->n_buckets);
    if (muon)
        (void)runs_between(o, o->bucket);
    else
        equal_runs(o, most);
    for (int b = 0; b < o->n_buckets; b++) {
        struct neb_state_bucket *k = &o->bucket[b];
        k->segment = *segments;
        k->segs = segments_of(o, k, NULL);
        *segments += k->segs;
    }
    return NEB_OK;
}

static neb_status make_segments(neb_optimizer *o, int64_t most)
{
    int n;
    NEB_TRY(make_buckets(o, most, &n));
    if (!n) return NEB_OK; /* more ranks than blocks, or matrices only: nothing is left for this one */
    struct neb_segment *host = NEB_NEW_ARRAY(struct neb_segment, (size_t)n);
    if (!host) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d segments", n);
    for (int b = 0; b < o->n_buckets; b++) segments_of(o, &o->bucket[b], host + o->bucket[b].segment);
    size_t bytes = (size_t)n * sizeof *host;
    neb_status status = o->dev->ops->alloc(o->dev->ctx, bytes, (void **)&o->segments);
    if (status == NEB_OK) status = o->dev->ops->upload(o->dev->ctx, o->segments, host, bytes);
    neb__free(host);
    return status;
}

static neb_status zeroed(neb_device *d, size_t bytes, float **out)
{
    NEB_TRY(d->ops->alloc(d->ctx, bytes, (void **)out));
    return d->ops->fill(d->ctx, *out, 0, bytes);
}

static neb_status make_moments(neb_optimizer *o)
{
    const size_t bytes = (size_t)(o->end - o->first) * sizeof(float);
    const int moments = neb__optimizer_moments(o);
    const struct neb_state_bucket *last = o->n_buckets ? &o->bucket[o->n_buckets - 1] : NULL;
    const size_t second = last ? (size_t)(last->v + last->n) * sizeof(float) : 0;
    if (bytes && moments > 0) NEB_TRY(zeroed(o->dev, bytes, &o->m));
    return second && moments > 1 ? zeroed(o->dev, second, &o->v) : NEB_OK;
}

static neb_status prepare(neb_optimizer *o, const struct neb_state_place *place)
{
    neb_device *d = o->dev;
    if (!o->params->whole_trainable)
        return neb__fail(NEB_ERR_STATE,
                         "nothing to train: every parameter is frozen; make at least one trainable");
    const int64_t bucket = place->bucket ? place->bucket : NEB_OFFLOAD_BUCKET;
    NEB_TRY(make_segments(o, place->offload ? bucket : larger(1, o->end - o->first)));
    NEB_TRY(place->offload ? neb__offload_create(o) : make_moments(o));
    if (o->config.kind == NEB_MUON) NEB_TRY(neb__muon_create(o));
    struct neb_sumsq q = {.x = o->params->grad, .n = o->params->trainable_values};
    int64_t scratch = d->ops->scratch_bytes ? d->ops->scratch_bytes(d->ctx, NEB_SLOT_SUMSQ, &q) : 0;
    return scratch > 0 ? d->ops->alloc(d->ctx, (size_t)scratch, &o->scratch) : NEB_OK;
}

neb_status neb_optimizer_create(neb_device *d, neb_params *ps, const struct neb_optimizer_config *c,
                                neb_optimizer **out)
{
    return neb__optimizer_create(d, ps, c, &(struct neb_state_place){0}, out);
}

neb_status neb__optimizer_create(neb_device *d, neb_params *ps, const struct neb_optimizer_config *c,
                                 const struct neb_state_place *place, neb_optimizer **out)
{
    NEB_TRY(check(c));
    if (!ps->ready || ps->dev != d)
        return neb__fail(NEB_ERR_STATE, "an optimizer needs parameters that are ready on the same device");
    if (c->kind == NEB_MUON && place->offload)
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "Muon needs a whole matrix of its momentum on the device; leave its state there, or use AdamW");
    if (c->kind == NEB_MUON) NEB_TRY(neb__params_take_matrices(ps, c->muon_also));
    neb_optimizer *o = NEB_NEW(neb_optimizer);
    if (!o) return neb__fail(NEB_ERR_NOMEM, "out of memory for an optimizer");
    o->dev = d;
    o->params = ps;
    o->config = *c;
    o->config.muon_also = NULL; /* the caller's */
    o->layout = place->layout;
    neb_status status = neb__norm_make(ps, !strcmp(d->ops->name, "cpu"), &o->norm);
    if (status == NEB_OK) status = neb__ranks_ranges(o, place->zero);
    if (status == NEB_OK) status = prepare(o, place);
    if (status == NEB_OK) status = neb__beside_create(o, place->sums);
    if (status != NEB_OK) {
        neb_optimizer_destroy(o);
        return status;
    }
    *out = o;
    return NEB_OK;
}

void neb_optimizer_destroy(neb_optimizer *o)
{
    if (!o) return;
    neb__beside_destroy(o);
    neb__offload_destroy(o);
    neb__muon_destroy(o);
    void *memory[] = {o->m, o->v, o->segments, o->scratch};
    for (int i = 0; i < 4; i++)
        if (memory[i]) o->dev->ops->free(o->dev->ctx, memory[i]);
    neb__free(o->edge);
    neb__norm_free(&o->norm);
    neb__free(o->bucket);
    neb__free(o);
}

int64_t neb_optimizer_step_count(const neb_optimizer *o)
{
    return o->step;
}

/* Values of this rank's moments to and from the host, where they may be already. */
static neb_status fetch_values(const neb_optimizer *o, float *to, const float *moment, int64_t n)
{
    const size_t bytes = (size_t)n * sizeof *to;
    if (!o->offload) return o->dev->ops->download(o->dev->ctx, to, moment, bytes);
    NEB_TRY(neb__offload_settle(o));
    memcpy(to, moment, bytes);
    return NEB_OK;
}

static neb_status store_values(const neb_optimizer *o, float *moment, const float *from, int64_t n)
{
    const size_t bytes = (size_t)n * sizeof *from;
    if (!o->offload) return o->dev->ops->upload(o->dev->ctx, moment, from, bytes);
    NEB_TRY(neb__offload_settle(o));
    memcpy(moment, from, bytes);
    return NEB_OK;
}

/* Second moments lie bucket behind bucket; in the range a matrix between two of them has zeros. */
static bool in_buckets(const neb_optimizer *o, bool second)
{
    return second && o->config.kind == NEB_MUON;
}

/* A moment of the whole range. */
static neb_status fetch(const neb_optimizer *o, float *to, bool second)
{
    const int64_t n = o->end - o->first;
    if (!in_buckets(o, second)) return fetch_values(o, to, second ? o->v : o->m, n);
    memset(to, 0, (size_t)n * sizeof *to);
    for (int b = 0; b < o->n_buckets; b++)
        NEB_TRY(fetch_values(o, to + o->bucket[b].first, o->v + o->bucket[b].v, o->bucket[b].n));
    return NEB_OK;
}

static neb_status store(const neb_optimizer *o, const float *from, bool second)
{
    if (!in_buckets(o, second)) return store_values(o, second ? o->v : o->m, from, o->end - o->first);
    for (int b = 0; b < o->n_buckets; b++)
        NEB_TRY(store_values(o, o->v + o->bucket[b].v, from + o->bucket[b].first, o->bucket[b].n));
    return NEB_OK;
}

/* One of the two moments, by way of the host: this rank's range in `own`, those of all ranks in `whole` at the
 * first rank, in the layout of the whole slab. */
static neb_status save(const neb_optimizer *o, bool second, float *whole)
{
    struct neb_group *world = neb__layout_world(o->layout);
    size_t bytes = (size_t)(o->end - o->first) * sizeof(float);
    bool alone = !o->edge && neb__group_size(neb__layout_model(o->layout)) == 1;
    if (alone) return whole && bytes ? fetch(o, whole, second) : NEB_OK;
    float *own = neb__malloc(bytes ? bytes : 1);
    neb_status status =
        own ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes of an optimizer's state", bytes);
    if (status == NEB_OK && bytes) status = fetch(o, own, second);
    status = neb__group_agree(world, status);
    if (status == NEB_OK) status = neb__ranks_collect(o, own, whole);
    neb__free(own);
    return status;
}

neb_status neb_optimizer_save(const neb_optimizer *o, float *m, float *v)
{
    if (neb__optimizer_moments(o) > 0) NEB_TRY(save(o, false, m));
    return neb__optimizer_moments(o) > 1 ? save(o, true, v) : NEB_OK;
}

/* Every rank has all moments, in the layout of the whole slab, and takes those of its range. A site that has one
 * stage has those of its own slab alone. */
static neb_status load(neb_optimizer *o, bool second, const float *whole)
{
    const neb_params *ps = o->params;
    if (!whole || !(second ? o->v : o->m)) return NEB_OK;
    const bool stage = o->site && neb__group_size(neb__layout_model(o->layout)) == 1;
    if (stage || ps->whole_trainable == ps->trainable_values) return store(o, whole + o->first, second);
    float *here = NEB_NEW_ARRAY(float, (size_t)ps->trainable_values);
    if (!here)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " values of an optimizer's state",
                         ps->trainable_values);
    neb_status status = neb__pieces_take(ps, true, whole, here);
    if (status == NEB_OK) status = store(o, here + o->first, second);
    neb__free(here);
    return status;
}

neb_status neb_optimizer_load(neb_optimizer *o, int64_t step, const float *m, const float *v)
{
    if (step < 0) return neb__fail(NEB_ERR_INVALID, "optimizer: step %" PRId64 " is negative", step);
    NEB_TRY(load(o, false, m));
    NEB_TRY(load(o, true, v));
    o->step = step;
    return NEB_OK;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

neb_status neb__optimizer_begin(neb_optimizer *o, neb_tape *t, double weight, float lr, uint32_t seed)
{
    const double step = (double)(o->step + 1);
    struct neb_ctl c = {.step = (uint32_t)(o->step + 1),
                        .seed = seed,
                        .lr = lr,
                        .loss_scale = weight > 0 ? (float)(1 / weight) : 0,
                        .max_norm = o->config.max_norm,
                        .bias1 = (float)(1 - pow((double)o->config.beta1, step)),
                        .bias2 = (float)(1 - pow((double)o->config.beta2, step))};
    return neb_tape_begin_step(t, &c);
}

static neb_status begin(neb_optimizer *o, neb_tape *t, const struct neb_micro *micros, int n, float lr,
                        uint32_t seed, const struct neb_reduce *reduce, bool *empty)
{
    double weight = 0;
    for (int i = 0; i < n; i++) weight += micros[i].weight;
    if (reduce && reduce->host) NEB_TRY(reduce->host(reduce->arg, &weight, 1));
    if (!(weight >= 0) || !isfinite(weight))
        return neb__fail(NEB_ERR_RANGE,
                         "step %" PRId64
                         ": the loss weights sum to %g; their sum must be finite and not negative",
                         o->step + 1, weight);
    *empty = !(weight > 0);
    return neb__optimizer_begin(o, t, weight, lr, seed);
}

/* A micro-batch without a function is another rank's: only its weight counts here. */
static neb_status run_micros(neb_optimizer *o, neb_tape *t, const struct neb_micro *micros, int n)
{
    int first = 0, last = n - 1;
    while (first < n && !micros[first].fn) first++;
    while (last > first && !micros[last].fn) last--;
    for (int i = first; i <= last; i++) {
        if (!micros[i].fn) continue;
        if (micros[i].load) NEB_TRY(micros[i].load(micros[i].arg));
        if (i == last) NEB_TRY(neb__offload_begin(o));
        struct neb_run run = {.fn = micros[i].fn,
                              .arg = micros[i].arg,
                              .key = micros[i].key,
                              .grad = true,
                              .train = true,
                              .accumulate = i > first,
                              .last = i == last};
        NEB_TRY(neb_tape_run(t, &run));
    }
    return NEB_OK;
}

/* The whole model's runs, or those of a stage. */
static neb_status run_all(neb_optimizer *o, neb_tape *t, const struct neb_micro *micros, int n)
{
    if (o->site) return neb__site_stage_run(o->site, micros, n);
    return o->pipeline ? neb__pipeline_run(o->pipeline, micros, n) : run_micros(o, t, micros, n);
}

struct neb_update neb__optimizer_update(neb_optimizer *o, neb_tape *t, int64_t bucket)
{
    const struct neb_state_bucket *k = &o->bucket[bucket];
    return (struct neb_update){.param = neb__ranks_values(o) + k->first,
                               .m = o->m ? o->m + k->first : NULL,
                               .v = o->v ? o->v + k->v : NULL,
                               .grad = neb__ranks_grad(o) + k->first,
                               .shadow = neb__ranks_shadow(o, k->first),
                               .segments = o->segments + k->segment,
                               .n_segments = k->segs,
                               .n = k->n,
                               .beta1 = o->config.beta1,
                               .beta2 = o->config.beta2,
                               .eps = o->config.eps,
                               .ctl = t->ctl};
}

static neb_status update(neb_optimizer *o, neb_tape *t, const struct neb_reduce *reduce)
{
    neb_device *d = o->dev;
    neb_params *ps = o->params;
    if (reduce && reduce->grads) NEB_TRY(reduce->grads(reduce->arg, ps->grad, ps->trainable_values));
    NEB_TRY(neb__ranks_reduce(o, t));
    if (o->site) NEB_TRY(neb__site_stage_sums(o->site, neb__norm_here(o), t->ctl));
    struct neb_clip c = {.ctl = t->ctl};
    NEB_TRY(d->ops->clip(d->ctx, &c));
    if (o->offload) NEB_TRY(neb__offload_update(o, t));
    for (int b = 0; b < o->n_buckets && !o->offload; b++) {
        struct neb_update u = neb__optimizer_update(o, t, b);
        if (u.n_segments) NEB_TRY(d->ops->update(d->ctx, &u));
    }
    NEB_TRY(neb__muon_update(o, t));
    return neb__ranks_gather(o);
}

static neb_status report(const struct neb_ctl *c, struct neb_step_info *info)
{
    const bool empty = c->step && !(c->loss_scale > 0);
    *info = (struct neb_step_info){
        .step = c->step, .grad_norm = sqrtf(c->norm2), .skipped = c->nonfinite != 0 || empty};
    memcpy(info->loss, c->loss, sizeof info->loss);
    memcpy(info->counts, c->counts, sizeof info->counts);
    if (!c->nonfinite) return NEB_OK;
    return neb__fail(
        NEB_ERR_NONFINITE,
        "step %u: loss %g or gradient norm %g is not finite; the update was skipped and the parameters are "
        "unchanged (a lower learning rate or tighter clipping usually helps)",
        c->step, (double)c->loss[0], (double)sqrtf(c->norm2));
}

static neb_status end_step(neb_optimizer *o, neb_tape *t, struct neb_step_info *info)
{
    struct neb_ctl c;
    o->step++;
    NEB_TRY(neb_tape_end_step(t, false, &c));
    return report(&c, info);
}

neb_status neb__optimizer_finish(neb_optimizer *o, neb_tape *t, const struct neb_reduce *reduce,
                                 struct neb_step_info *info)
{
    NEB_TRY(update(o, t, reduce));
    return end_step(o, t, info);
}

neb_status neb_train_step(neb_optimizer *o, neb_tape *t, const struct neb_micro *micros, int n, float lr,
                          uint32_t seed, const struct neb_reduce *reduce, struct neb_step_info *info)
{
    if (n < 1 || t->params != o->params || !isfinite(lr))
        return neb__fail(
            NEB_ERR_INVALID,
            "a step needs at least one micro-batch (given: %d), a finite learning rate (given: %g) "
            "and a tape over the optimizer's parameters",
            n, (double)lr);
    bool empty = false;
    const int64_t since = o->timed ? neb__now_ns() : 0;
    neb_status status = begin(o, t, micros, n, lr, seed, reduce, &empty);
    neb__beside_arm(o, t, reduce);
    if (status == NEB_OK) status = run_all(o, t, micros, n);
    neb__beside_disarm(o);
    if (status == NEB_OK && o->timed) status = o->dev->ops->sync(o->dev->ctx);
    if (o->timed) o->runs_s += neb__seconds_since(since);
    NEB_TRY(neb__ranks_run_over(o, status));
    if (!empty) return neb__ranks_step_over(o, neb__optimizer_finish(o, t, reduce, info));
    status = neb__offload_settle(o); /* what came up for no update becomes old */
    if (status == NEB_OK) status = end_step(o, t, info);
    return neb__ranks_step_over(o, status);
}
