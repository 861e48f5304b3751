/* private_step.c: DP-SGD (Abadi et al. 2016): each sample's gradient is clipped by itself, their sum gets noise, and the
 * optimizer takes the noisy mean for the gradient.
 *
 * A sample is a micro-batch of its own: forward and backward once, its gradient from the slab, clipped, rounded and added to a
 * sum of integers (privacy/noise.h). So the engine needs nothing new, any model and op is covered, and a sample's part of
 * the sum is bounded by construction. The price is small batches: a step costs as much as its samples one by one.
 *
 * Several ranks run different samples of one draw. Their sums are integers, and integers below 2^53 add up exactly as doubles, in any order.
 * Each rank then makes the noise of its part of the values, and all gather the noisy gradient. Draw and noise follow from the step's key and the sum
 * (privacy/step_noise.h): the result has the same bits for any number of ranks, for one process, and for ranks that repeat the step.
 *
 * The mean is over the expected number of samples. The number that was drawn depends on the draw and is not told. A
 * sample whose gradient is not finite counts as 0, and does not make the step fail: that would tell. */
#include "optim/private_step.h"
#include "base/mem.h"
#include "optim/optimizer.h"
#include "tensor/partition.h"

#include <math.h>
#include <string.h>

enum { PIECE = NEB_STEP_BLOCK, RANKS = NEB_GROUP_RANKS };

/* Of one step at this rank. */
struct parts {
    struct neb_group *data;
    int rank, ranks;
    size_t n, blocks;        /* of the slab's trainable values */
    double *piece;           /* (PIECE) */
    struct neb_hash *digest; /* (blocks) */
};

neb_status neb__private_step_check(const neb_optimizer *o)
{
    if (strcmp(o->dev->ops->name, "cpu"))
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "privacy.unit: sample needs each sample's gradient in the host's memory: train with "
                         "train.device: cpu, not %s",
                         o->dev->ops->name);
    if (neb__group_size(neb__layout_model(o->layout)) > 1 || neb__partition_of_grads(o->params) ||
        o->offload || o->pipeline || o->site)
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "privacy.unit: sample needs the whole gradient of a sample at one process: use "
                         "parallel.data alone, with zero 0 or 1");
    return NEB_OK;
}

/* ---- the samples --------------------------------------------------------------------------------------- */

/* The losses were not divided by their weight. */
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

/* ---- the sum of all ranks, with noise ------------------------------------------------------------------ */

static size_t values_of(const struct parts *x, size_t block)
{
    const size_t at = block * NEB_STEP_BLOCK;
    return x->n - at < NEB_STEP_BLOCK ? x->n - at : NEB_STEP_BLOCK;
}

/* The first block of a rank. */
static size_t first_of(const struct parts *x, int rank)
{
    return x->blocks * (size_t)rank / (size_t)x->ranks;
}

static neb_status add_up(const struct parts *x, struct neb_private_step *p)
{
    double told[3] = {p->weight, (double)p->drawn, (double)p->clipped};
    NEB_TRY(neb__group_sum_doubles(x->data, told, 3));
    p->weight = told[0];
    p->drawn = (int64_t)told[1];
    p->clipped = (int64_t)told[2];
    if (x->ranks == 1) return NEB_OK;
    for (size_t b = 0; b < x->blocks; b++) {
        int64_t *v = p->sum + b * NEB_STEP_BLOCK;
        const size_t n = values_of(x, b);
        for (size_t i = 0; i < n; i++) x->piece[i] = (double)v[i];
        NEB_TRY(neb__group_sum_doubles(x->data, x->piece, (int64_t)n));
        for (size_t i = 0; i < n; i++) v[i] = (int64_t)x->piece[i];
    }
    return NEB_OK;
}

/* Each rank hashes its blocks, and all get all hashes. */
static neb_status hash_sum(const struct parts *x, const int64_t *sum)
{
    for (size_t b = first_of(x, x->rank); b < first_of(x, x->rank + 1); b++) {
        NEB_TRY(neb__step_digest(sum + b * NEB_STEP_BLOCK, values_of(x, b), &x->digest[b]));
        neb__group_beat(x->data);
    }
    for (int r = 0; x->ranks > 1 && r < x->ranks; r++) {
        const size_t first = first_of(x, r), count = first_of(x, r + 1) - first;
        if (count) NEB_TRY(neb__group_broadcast(x->data, x->digest + first, count * sizeof *x->digest, r));
    }
    return NEB_OK;
}

/* The noisy mean of this rank's blocks, into the slab of gradients. */
static neb_status blur_own(const struct parts *x, struct neb_private_step *p, const struct neb_hash *root,
                           float *grad)
{
    const double unit = p->clip / (NEB_PRIVACY_UNITS * p->samples);
    for (size_t b = first_of(x, x->rank); b < first_of(x, x->rank + 1); b++) {
        int64_t *v = p->sum + b * NEB_STEP_BLOCK;
        NEB_TRY(neb__step_noise(p->noise, root, b, v, values_of(x, b)));
        neb__privacy_values(v, values_of(x, b), unit, grad + b * NEB_STEP_BLOCK);
        neb__group_beat(x->data);
    }
    return NEB_OK;
}

static neb_status blur(const struct parts *x, struct neb_private_step *p, float *grad)
{
    int64_t edge[RANKS + 1];
    struct neb_hash root;
    NEB_TRY(hash_sum(x, p->sum));
    NEB_TRY(neb__step_root(&p->key, x->digest, x->blocks, &root));
    NEB_TRY(blur_own(x, p, &root, grad));
    NEB_TRY(hash_sum(x, p->sum));
    NEB_TRY(neb__step_mark(&p->key, x->digest, x->blocks, &p->mark));
    for (int r = 0; r <= x->ranks; r++) {
        size_t at = first_of(x, r) * NEB_STEP_BLOCK;
        edge[r] = (int64_t)(at < x->n ? at : x->n);
    }
    return x->ranks > 1 ? neb__group_gather(x->data, grad, edge) : NEB_OK;
}

/* A sample that two ranks take for theirs would count twice, and be longer than the clip. The draw has logarithms, which may end in
 * other bits on another machine. */
static neb_status same_draw(const struct parts *x, const struct neb_private_step *p)
{
    int64_t v[2] = {(int64_t)(p->order >> 2)};
    v[1] = -v[0];
    NEB_TRY(neb__group_max(x->data, v, 2));
    if (v[0] == -v[1]) return NEB_OK;
    return neb__fail(NEB_ERR_UNSUPPORTED,
                     "the ranks drew different samples from one key: their machines compute logarithms "
                     "differently. Use machines with the same processors and the same C library, or one");
}

static neb_status finish(neb_optimizer *o, neb_tape *t, const struct parts *x, struct neb_private_step *p,
                         struct neb_step_info *info)
{
    NEB_TRY(same_draw(x, p));
    NEB_TRY(add_up(x, p));
    NEB_TRY(blur(x, p, o->params->grad));
    struct neb_ctl *ctl = t->ctl; /* the CPU's is in the host's memory */
    ctl->nonfinite = 0;
    for (int i = 0; i < 8; i++) {
        ctl->loss[i] = p->weight > 0 ? (float)((double)ctl->loss[i] / p->weight) : 0;
        if (!isfinite(ctl->loss[i])) ctl->loss[i] = 0;
    }
    o->added_up = true;
    neb_status status = neb__optimizer_finish(o, t, NULL, info);
    o->added_up = false;
    return status;
}

/* ---- the step ------------------------------------------------------------------------------------------ */

static neb_status make_parts(const neb_optimizer *o, struct parts *out)
{
    struct parts x = {.data = neb__layout_data(o->layout), .n = (size_t)o->params->trainable_values};
    x.rank = neb__group_rank(x.data);
    x.ranks = neb__group_size(x.data);
    x.blocks = neb__step_blocks(x.n);
    x.digest = NEB_NEW_ARRAY(struct neb_hash, x.blocks + 1);
    x.piece = x.ranks > 1 ? NEB_NEW_ARRAY(double, PIECE) : NULL;
    *out = x;
    if (x.digest && (x.piece || x.ranks == 1)) return NEB_OK;
    return neb__fail(NEB_ERR_NOMEM, "out of memory for the sum of gradients");
}

neb_status neb__private_step(neb_optimizer *o, neb_tape *t, struct neb_private_step *p, float lr,
                             uint32_t seed, struct neb_step_info *info)
{
    struct parts x;
    if (!isfinite(lr)) return neb__fail(NEB_ERR_INVALID, "a step needs a finite learning rate");
    neb_status status = make_parts(o, &x);
    memset(p->sum, 0, x.n * sizeof *p->sum);
    /* the gaps between parameters, which no run writes, have noise of the step before: it must not count as gradient */
    memset(o->params->grad, 0, x.n * sizeof *o->params->grad);
    p->drawn = p->clipped = 0;
    p->weight = 0;
    p->order = 0;
    if (status == NEB_OK) status = neb__optimizer_begin(o, t, 1, lr, seed);
    if (status == NEB_OK) status = all_samples(o, t, p);
    status = neb__ranks_run_over(o, status);
    if (status == NEB_OK) status = neb__ranks_step_over(o, finish(o, t, &x, p, info));
    neb__free(x.digest);
    neb__free(x.piece);
    return status;
}
