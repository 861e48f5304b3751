/* offload.c: moments and masters on the host, taken through the device in buckets (offload.h).
 *
 * A ring of slots on the device holds a bucket each. Bucket b is uploaded beside the computing, updated in stream
 * order, and downloaded beside the computing; its slot is then free for bucket b + SLOTS. Uploads and downloads go
 * through side copies, and the compute stream waits for a copy exactly where it needs it:
 *
 *     for an update          its bucket has come up
 *     for the next upload    the bucket that was in the slot has gone down
 *
 * An upload begins when everything enqueued before it is done, so the second wait also holds the upload back. The
 * host waits for nothing. The first buckets come up while the last micro-batch computes; by then the downloads of
 * the step before are long done. Without side copies (the CPU) the copies are made on the spot.
 *
 * The alternative, the CPU's update of gradients that were downloaded, moves 6 instead of 24 bytes a value, but
 * costs the CPU's memory 28 bytes a value and gives other bits. */
#include "optim/offload.h"
#include "base/mem.h"
#include "tensor/masters.h"

#include <string.h>

enum { SLOTS = 4, ARRAYS = 3 };
enum { MOMENT1, MOMENT2, MASTER };

struct neb_offload {
    float *host[ARRAYS];             /* m, v of the range; the masters, from the range's first value on */
    float *slot[SLOTS][ARRAYS];      /* device */
    uint64_t up[SLOTS], down[SLOTS]; /* fences; 0: none */
    int64_t begun;                   /* buckets of this step whose upload has begun */
};

static bool side_copies(const neb_optimizer *o)
{
    return o->dev->ops->side_upload && o->dev->ops->host_alloc;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static neb_status host_zeroed(neb_optimizer *o, size_t bytes, float **out)
{
    neb_device *d = o->dev;
    if (d->ops->host_alloc)
        NEB_TRY(d->ops->host_alloc(d->ctx, bytes, (void **)out));
    else if (!(*out = neb__malloc(bytes)))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes of an optimizer's state on the host",
                         bytes);
    if (!neb__device_rehearses(d)) memset(*out, 0, bytes);
    return NEB_OK;
}

neb_status neb__offload_create(neb_optimizer *o)
{
    neb_device *d = o->dev;
    struct neb_offload *x = o->offload = NEB_NEW(struct neb_offload);
    if (!x) return neb__fail(NEB_ERR_NOMEM, "out of memory for an offloaded optimizer");
    const int64_t n = o->end - o->first;
    const int moments = neb__optimizer_moments(o);
    if (!n) return NEB_OK;
    for (int i = 0; i < moments; i++) NEB_TRY(host_zeroed(o, (size_t)n * sizeof(float), &x->host[i]));
    if (neb__masters_on_host(o->params)) x->host[MASTER] = o->params->value + o->first;
    for (int s = 0; s < SLOTS; s++)
        for (int i = 0; i < ARRAYS; i++)
            if (x->host[i])
                NEB_TRY(
                    d->ops->alloc(d->ctx, (size_t)o->bucket[0].n * sizeof(float), (void **)&x->slot[s][i]));
    o->m = x->host[MOMENT1];
    o->v = x->host[MOMENT2];
    return NEB_OK;
}

void neb__offload_destroy(neb_optimizer *o)
{
    neb_device *d = o->dev;
    struct neb_offload *x = o->offload;
    if (!x) return;
    (void)neb__offload_settle(o);
    d->ops->sync(d->ctx);
    for (int s = 0; s < SLOTS; s++)
        for (int i = 0; i < ARRAYS; i++)
            if (x->slot[s][i]) d->ops->free(d->ctx, x->slot[s][i]);
    for (int i = 0; i < MASTER; i++) {
        if (x->host[i] && d->ops->host_alloc)
            d->ops->host_free(d->ctx, x->host[i]);
        else
            neb__free(x->host[i]);
    }
    o->params->masters.fence = 0;
    neb__free(x);
    o->offload = NULL;
    o->m = o->v = NULL;
}

/* ---- copies ------------------------------------------------------------------------------------------------ */

static neb_status up(neb_optimizer *o, int64_t b)
{
    struct neb_offload *x = o->offload;
    neb_device *d = o->dev;
    const struct neb_state_bucket *k = &o->bucket[b];
    const int s = (int)(b % SLOTS);
    for (int i = 0; i < ARRAYS; i++) {
        if (!x->host[i]) continue;
        const float *from = x->host[i] + k->first;
        size_t bytes = (size_t)k->n * sizeof(float);
        if (side_copies(o))
            NEB_TRY(d->ops->side_upload(d->ctx, x->slot[s][i], from, bytes, &x->up[s]));
        else
            NEB_TRY(d->ops->upload(d->ctx, x->slot[s][i], from, bytes));
    }
    x->begun = b + 1;
    return NEB_OK;
}

static neb_status down(neb_optimizer *o, int64_t b)
{
    struct neb_offload *x = o->offload;
    neb_device *d = o->dev;
    const struct neb_state_bucket *k = &o->bucket[b];
    const int s = (int)(b % SLOTS);
    for (int i = 0; i < ARRAYS; i++) {
        if (!x->host[i]) continue;
        float *to = x->host[i] + k->first;
        size_t bytes = (size_t)k->n * sizeof(float);
        if (side_copies(o))
            NEB_TRY(d->ops->side_download(d->ctx, to, x->slot[s][i], bytes, &x->down[s]));
        else
            NEB_TRY(d->ops->download(d->ctx, to, x->slot[s][i], bytes));
    }
    return NEB_OK;
}

/* The compute stream waits for the copy. */
static neb_status join(neb_optimizer *o, uint64_t fence)
{
    return fence ? o->dev->ops->fence_join(o->dev->ctx, fence) : NEB_OK;
}

static neb_status await(const neb_optimizer *o, uint64_t fence)
{
    return fence ? o->dev->ops->fence_wait(o->dev->ctx, fence) : NEB_OK;
}

neb_status neb__offload_settle(const neb_optimizer *o)
{
    struct neb_offload *x = o->offload;
    for (int s = 0; x && s < SLOTS; s++) {
        NEB_TRY(await(o, x->up[s]));
        NEB_TRY(await(o, x->down[s]));
    }
    if (x) x->begun = 0; /* what a failed step has brought up may become old */
    return NEB_OK;
}

/* ---- a step ------------------------------------------------------------------------------------------------ */

/* All slots but one: the last one is filled when the first bucket has been updated. */
neb_status neb__offload_begin(neb_optimizer *o)
{
    struct neb_offload *x = o->offload;
    if (!x || x->begun) return NEB_OK;
    for (int s = 0; s < SLOTS; s++) NEB_TRY(join(o, x->down[s]));
    for (int64_t b = 0; b < o->n_buckets && b < SLOTS - 1; b++) NEB_TRY(up(o, b));
    return NEB_OK;
}

static neb_status update_bucket(neb_optimizer *o, neb_tape *t, int64_t b)
{
    neb_params *ps = o->params;
    struct neb_offload *x = o->offload;
    const int s = (int)(b % SLOTS);
    const int64_t at = o->first + o->bucket[b].first;
    struct neb_update u = neb__optimizer_update(o, t, b);
    if (x->host[MASTER]) u.param = x->slot[s][MASTER];
    u.m = x->slot[s][MOMENT1];
    u.v = x->slot[s][MOMENT2];
    if (u.n_segments) NEB_TRY(o->dev->ops->update(o->dev->ctx, &u));
    return x->host[MASTER] ? neb__masters_keep_vectors(ps, at, o->bucket[b].n, u.param) : NEB_OK;
}

neb_status neb__offload_update(neb_optimizer *o, neb_tape *t)
{
    struct neb_offload *x = o->offload;
    NEB_TRY(neb__offload_begin(o));
    for (int64_t b = 0; b < o->n_buckets; b++) {
        NEB_TRY(join(o, x->up[b % SLOTS]));
        NEB_TRY(update_bucket(o, t, b));
        NEB_TRY(down(o, b));
        if (x->begun == o->n_buckets) continue;
        NEB_TRY(join(o, x->down[x->begun % SLOTS]));
        NEB_TRY(up(o, x->begun));
    }
    x->begun = 0;
    if (o->n_buckets) o->params->masters.fence = x->down[(o->n_buckets - 1) % SLOTS];
    return NEB_OK;
}
