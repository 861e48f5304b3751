/* optimizer.c: AdamW and SGD over the slab, and the step that composes micro-batches, reduction, clipping and
 * update.
 *
 * The optimizer's moments mirror the trainable slab. A table with one segment per parameter carries the
 * weight decay, and the device walks all segments in one pass. The device skips a step in which something was
 * not finite. It decides that from the step's own numbers, so the host need not wait for them. A step without
 * any loss weight (masked prediction of a text in which nothing was masked) runs with a scale of 0 and makes
 * no update: neither momentum nor decay changes a parameter. */
#include "base/mem.h"
#include "tensor/params.h"
#include "tensor/tape.h"

#include <math.h>
#include <string.h>

struct neb_optimizer {
    neb_device *dev;
    neb_params *params;
    struct neb_optimizer_config config;
    float *m, *v;                 /* device */
    struct neb_segment *segments; /* device */
    int n_segments;
    void *scratch; /* device, for the norm */
    int64_t step;
};

struct neb_optimizer_config neb_optimizer_defaults(void)
{
    return (struct neb_optimizer_config){
        .kind = NEB_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.01f, .max_norm = 1.0f};
}

static neb_status check(const struct neb_optimizer_config *c)
{
    if (c->kind != NEB_ADAMW && c->kind != NEB_SGD)
        return neb__fail(NEB_ERR_CONFIG, "unknown optimizer %d", (int)c->kind);
    struct {
        const char *name;
        float value, low, high;
    } rules[] = {{"beta1", c->beta1, 0, 0.999999f},
                 {"beta2", c->kind == NEB_ADAMW ? c->beta2 : 0, 0, 0.9999999f},
                 {"eps", c->kind == NEB_ADAMW ? c->eps : 1, 1e-30f, 1},
                 {"decay", c->decay, 0, 10},
                 {"max_norm", c->max_norm, 0, 1e30f}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!(rules[i].value >= rules[i].low && rules[i].value <= rules[i].high))
            return neb__fail(NEB_ERR_CONFIG, "optimizer: %s is %g; it must be between %g and %g",
                             rules[i].name, (double)rules[i].value, (double)rules[i].low,
                             (double)rules[i].high);
    return NEB_OK;
}

static neb_status make_segments(neb_optimizer *o)
{
    neb_params *ps = o->params;
    struct neb_segment *host = NEB_NEW_ARRAY(struct neb_segment, (size_t)ps->count);
    if (!host) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d segments", ps->count);
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (!p->trainable) continue;
        host[o->n_segments++] =
            (struct neb_segment){p->offset, p->values, p->no_decay ? 0 : o->config.decay, 1};
    }
    size_t bytes = (size_t)o->n_segments * sizeof *host;
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

static neb_status prepare(neb_optimizer *o)
{
    neb_device *d = o->dev;
    size_t bytes = (size_t)o->params->trainable_values * sizeof(float);
    if (!bytes)
        return neb__fail(NEB_ERR_STATE,
                         "nothing to train: every parameter is frozen; make at least one trainable");
    if (o->config.kind == NEB_ADAMW || o->config.beta1 > 0) NEB_TRY(zeroed(d, bytes, &o->m));
    if (o->config.kind == NEB_ADAMW) NEB_TRY(zeroed(d, bytes, &o->v));
    NEB_TRY(make_segments(o));
    struct neb_sumsq q = {.x = o->params->grad, .n = o->params->trainable_values};
    int64_t scratch = d->ops->scratch_bytes ? d->ops->scratch_bytes(d->ctx, NEB_SLOT_SUMSQ, &q) : 0;
    return scratch > 0 ? d->ops->alloc(d->ctx, (size_t)scratch, &o->scratch) : NEB_OK;
}

neb_status neb_optimizer_create(neb_device *d, neb_params *ps, const struct neb_optimizer_config *c,
                                neb_optimizer **out)
{
    NEB_TRY(check(c));
    if (!ps->ready || ps->dev != d)
        return neb__fail(NEB_ERR_STATE, "an optimizer needs parameters that are ready on the same device");
    neb_optimizer *o = NEB_NEW(neb_optimizer);
    if (!o) return neb__fail(NEB_ERR_NOMEM, "out of memory for an optimizer");
    o->dev = d;
    o->params = ps;
    o->config = *c;
    neb_status status = prepare(o);
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
    void *memory[] = {o->m, o->v, o->segments, o->scratch};
    for (int i = 0; i < 4; i++)
        if (memory[i]) o->dev->ops->free(o->dev->ctx, memory[i]);
    neb__free(o);
}

int64_t neb_optimizer_step_count(const neb_optimizer *o)
{
    return o->step;
}

static size_t slab_bytes(const neb_optimizer *o)
{
    return (size_t)o->params->trainable_values * sizeof(float);
}

neb_status neb_optimizer_save(const neb_optimizer *o, float *m, float *v)
{
    if (m && o->m) NEB_TRY(o->dev->ops->download(o->dev->ctx, m, o->m, slab_bytes(o)));
    if (v && o->v) NEB_TRY(o->dev->ops->download(o->dev->ctx, v, o->v, slab_bytes(o)));
    return NEB_OK;
}

neb_status neb_optimizer_load(neb_optimizer *o, int64_t step, const float *m, const float *v)
{
    if (step < 0) return neb__fail(NEB_ERR_INVALID, "optimizer: step %" PRId64 " is negative", step);
    if (m && o->m) NEB_TRY(o->dev->ops->upload(o->dev->ctx, o->m, m, slab_bytes(o)));
    if (v && o->v) NEB_TRY(o->dev->ops->upload(o->dev->ctx, o->v, v, slab_bytes(o)));
    o->step = step;
    return NEB_OK;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

static neb_status begin(neb_optimizer *o, neb_tape *t, const struct neb_micro *micros, int n, float lr,
                        uint32_t seed, const struct neb_reduce *reduce, bool *empty)
{
    double weight = 0, step = (double)(o->step + 1);
    for (int i = 0; i < n; i++) weight += micros[i].weight;
    if (reduce && reduce->host) NEB_TRY(reduce->host(reduce->arg, &weight, 1));
    if (!(weight >= 0) || !isfinite(weight))
        return neb__fail(NEB_ERR_RANGE,
                         "step %" PRId64
                         ": the loss weights sum to %g; their sum must be finite and not negative",
                         o->step + 1, weight);
    *empty = !(weight > 0);
    struct neb_ctl c = {.step = (uint32_t)(o->step + 1),
                        .seed = seed,
                        .lr = lr,
                        .loss_scale = *empty ? 0 : (float)(1 / weight),
                        .max_norm = o->config.max_norm,
                        .bias1 = (float)(1 - pow((double)o->config.beta1, step)),
                        .bias2 = (float)(1 - pow((double)o->config.beta2, step))};
    return neb_tape_begin_step(t, &c);
}

static neb_status run_micros(neb_tape *t, const struct neb_micro *micros, int n)
{
    for (int i = 0; i < n; i++) {
        if (micros[i].load) NEB_TRY(micros[i].load(micros[i].arg));
        struct neb_run run = {.fn = micros[i].fn,
                              .arg = micros[i].arg,
                              .key = micros[i].key,
                              .grad = true,
                              .train = true,
                              .accumulate = i > 0,
                              .last = i == n - 1};
        NEB_TRY(neb_tape_run(t, &run));
    }
    return NEB_OK;
}

static neb_status update(neb_optimizer *o, neb_tape *t, const struct neb_reduce *reduce)
{
    neb_device *d = o->dev;
    neb_params *ps = o->params;
    if (reduce && reduce->grads) NEB_TRY(reduce->grads(reduce->arg, ps->grad, ps->trainable_values));
    struct neb_sumsq q = {.x = ps->grad, .n = ps->trainable_values, .ctl = t->ctl, .scratch = o->scratch};
    NEB_TRY(d->ops->sumsq(d->ctx, &q));
    struct neb_clip c = {.ctl = t->ctl};
    NEB_TRY(d->ops->clip(d->ctx, &c));
    struct neb_update u = {.param = ps->value,
                           .m = o->m,
                           .v = o->v,
                           .grad = ps->grad,
                           .shadow = ps->shadow,
                           .segments = o->segments,
                           .n_segments = o->n_segments,
                           .n = ps->trainable_values,
                           .beta1 = o->config.beta1,
                           .beta2 = o->config.beta2,
                           .eps = o->config.eps,
                           .ctl = t->ctl};
    return d->ops->update(d->ctx, &u);
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
    NEB_TRY(begin(o, t, micros, n, lr, seed, reduce, &empty));
    NEB_TRY(run_micros(t, micros, n));
    if (!empty) NEB_TRY(update(o, t, reduce));
    o->step++;
    struct neb_ctl c;
    NEB_TRY(neb_tape_end_step(t, false, &c));
    return report(&c, info);
}
