/* private_step.c: DP-SGD (Abadi et al. 2016): each sample's gradient is clipped by itself, their sum gets noise, and the
 * optimizer takes the noisy mean for the gradient.
 *
 * A sample is a micro-batch of its own: forward and backward once, its gradient from the slab, clipped, rounded and added to a
 * sum of integers (privacy/noise.h). So the engine needs nothing new, any model and op is covered, and a sample's part of
 * the sum is bounded by construction. The price is small batches: a step costs as much as its samples one by one.
 *
 * The mean is over the expected number of samples. The number that was drawn depends on the draw and is not told. A
 * sample whose gradient is not finite counts as 0, and does not make the step fail: that would tell. */
#include "optim/private_step.h"
#include "optim/optimizer.h"

#include <math.h>
#include <string.h>

neb_status neb__private_step_check(const neb_optimizer *o)
{
    if (strcmp(o->dev->ops->name, "cpu"))
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "privacy.unit: sample needs each sample's gradient in the host's memory: train with "
                         "train.device: cpu, not %s",
                         o->dev->ops->name);
    if (neb__group_size(neb__layout_world(o->layout)) > 1 || o->edge || o->offload || o->pipeline)
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "privacy.unit: sample works in one process of a site: leave out `parallel`");
    return NEB_OK;
}

/* Returns the sample's norm. The losses were not divided by their weight. */
static neb_status one_sample(neb_optimizer *o, neb_tape *t, struct neb_private_step *p,
                             const struct neb_micro *m)
{
    const struct neb_run run = {
        .fn = m->fn, .arg = m->arg, .key = m->key, .grad = true, .train = true, .last = true};
    if (!(m->weight > 0)) return NEB_OK; /* nothing to predict in it */
    NEB_TRY(neb_tape_run(t, &run));
    double norm = neb__privacy_clip(o->params->grad, (size_t)o->params->trainable_values, 1 / m->weight,
                                    p->clip, p->sum);
    p->clipped += !(norm <= p->clip);
    p->weight += m->weight;
    return NEB_OK;
}

static neb_status all_samples(neb_optimizer *o, neb_tape *t, struct neb_private_step *p)
{
    struct neb_micro m;
    neb_status status;
    while ((status = p->next(p->arg, &m)) == NEB_OK) {
        if (m.load) NEB_TRY(m.load(m.arg));
        NEB_TRY(one_sample(o, t, p, &m));
        p->drawn++;
    }
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

neb_status neb__private_step(neb_optimizer *o, neb_tape *t, struct neb_private_step *p, float lr,
                             uint32_t seed, struct neb_step_info *info)
{
    const size_t n = (size_t)o->params->trainable_values;
    if (!isfinite(lr)) return neb__fail(NEB_ERR_INVALID, "a step needs a finite learning rate");
    memset(p->sum, 0, n * sizeof *p->sum);
    /* the gaps between parameters, which no run writes, have noise of the step before: it must not count as gradient */
    memset(o->params->grad, 0, n * sizeof *o->params->grad);
    p->drawn = p->clipped = 0;
    p->weight = 0;
    NEB_TRY(neb__optimizer_begin(o, t, 1, lr, seed));
    NEB_TRY(all_samples(o, t, p));
    NEB_TRY(neb__noise_add(p->noise, p->sum, n));
    neb__privacy_values(p->sum, n, p->clip / (NEB_PRIVACY_UNITS * p->samples), o->params->grad);
    struct neb_ctl *ctl = t->ctl; /* the CPU's is in the host's memory */
    ctl->nonfinite = 0;
    for (int i = 0; i < 8; i++) {
        ctl->loss[i] = p->weight > 0 ? (float)((double)ctl->loss[i] / p->weight) : 0;
        if (!isfinite(ctl->loss[i])) ctl->loss[i] = 0;
    }
    return neb__optimizer_finish(o, t, NULL, info);
}
