/* masters.c: the F32 values of the parameters, on the device or on the host (masters.h). */
#include "tensor/masters.h"
#include "base/mem.h"
#include "base/status.h"
#include "tensor/partition.h"

#include <string.h>

enum { STAGE = 1 << 20 }; /* values that go to the device at one time */

neb_status neb__params_offload(neb_params *ps)
{
    if (ps->ready) return neb__fail(NEB_ERR_STATE, "parameters are offloaded before they are ready");
    ps->masters.wanted = true;
    return NEB_OK;
}

bool neb__masters_on_host(const neb_params *ps)
{
    return ps->masters.on_host;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static int64_t place_vectors(neb_params *ps)
{
    int64_t n = 0;
    for (int i = 0; i < ps->count; i++) {
        neb_param *p = ps->list[i];
        p->vector = p->ndim == 1 ? n : -1;
        if (p->ndim == 1) n += (p->values + NEB_PARAM_ALIGN - 1) / NEB_PARAM_ALIGN * NEB_PARAM_ALIGN;
    }
    return n;
}

/* What ops read in F32 where the masters are not here, and room for masters on their way. */
static neb_status alloc_copies(neb_params *ps)
{
    neb_device *d = ps->dev;
    int64_t n = ps->masters.vector_values = place_vectors(ps);
    NEB_TRY(d->ops->alloc(d->ctx, STAGE * sizeof(float), (void **)&ps->masters.stage));
    return n ? d->ops->alloc(d->ctx, (size_t)n * sizeof(float), (void **)&ps->masters.vectors) : NEB_OK;
}

static neb_status alloc_on_host(neb_params *ps)
{
    neb_device *d = ps->dev;
    size_t bytes = (size_t)ps->all_values * sizeof(float);
    if (d->ops->host_alloc)
        NEB_TRY(d->ops->host_alloc(d->ctx, bytes, (void **)&ps->value));
    else if (!(ps->value = neb__malloc(bytes)))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes of parameters on the host", bytes);
    if (!neb__device_rehearses(d)) memset(ps->value, 0, bytes);
    return alloc_copies(ps);
}

neb_status neb__masters_alloc(neb_params *ps)
{
    neb_device *d = ps->dev;
    size_t bytes = (size_t)ps->all_values * sizeof(float);
    const bool half = d->config.compute == NEB_BF16;
    if (neb__partition_of_values(ps) && half && ps->masters.wanted)
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "masters that the ranks share out (parallel.zero: 3) are not kept on the host, too; use "
            "parallel.offload: moments");
    if (neb__partition_of_masters(ps)) bytes = (size_t)neb__partition_held(ps) * sizeof(float);
    ps->masters.on_host = ps->masters.wanted && half;
    if (ps->masters.on_host) return alloc_on_host(ps);
    NEB_TRY(d->ops->alloc(d->ctx, bytes ? bytes : sizeof(float), (void **)&ps->value));
    NEB_TRY(d->ops->fill(d->ctx, ps->value, 0, bytes));
    return neb__partition_of_masters(ps) && half ? alloc_copies(ps) : NEB_OK;
}

void neb__masters_free(neb_params *ps)
{
    neb_device *d = ps->dev;
    if (ps->masters.stage) d->ops->free(d->ctx, ps->masters.stage);
    if (ps->masters.vectors) d->ops->free(d->ctx, ps->masters.vectors);
    if (ps->value && !ps->masters.on_host)
        d->ops->free(d->ctx, ps->value);
    else if (ps->value && d->ops->host_alloc)
        d->ops->host_free(d->ctx, ps->value);
    else
        neb__free(ps->value);
    ps->value = ps->masters.stage = ps->masters.vectors = NULL;
}

/* ---- values ------------------------------------------------------------------------------------------------ */

neb_status neb__masters_settle(const neb_params *ps)
{
    return ps->masters.fence ? ps->dev->ops->fence_wait(ps->dev->ctx, ps->masters.fence) : NEB_OK;
}

/* Only what lies in this rank's ranges. */
static neb_status put_held(neb_params *ps, int64_t at, const float *host, int64_t n)
{
    neb_device *d = ps->dev;
    for (int i = 0; i < 2; i++) {
        const struct neb_held *h = &ps->partition->held[i];
        int64_t first = at > h->first ? at : h->first, end = at + n < h->end ? at + n : h->end;
        if (first >= end) continue;
        NEB_TRY(d->ops->upload(d->ctx, ps->value + h->at + (first - h->first), host + (first - at),
                               (size_t)(end - first) * sizeof *host));
    }
    return NEB_OK;
}

static neb_status to_shadow(neb_params *ps, int64_t at, int64_t n, const float *from);

/* Every rank gets all values: it keeps its masters, and makes the copies of all. */
static neb_status put_parted(neb_params *ps, int64_t at, const float *host, int64_t n)
{
    neb_device *d = ps->dev;
    NEB_TRY(put_held(ps, at, host, n));
    for (int64_t i = 0; ps->shadow && i < n; i += STAGE) {
        int64_t m = n - i < STAGE ? n - i : STAGE;
        NEB_TRY(d->ops->upload(d->ctx, ps->masters.stage, host + i, (size_t)m * sizeof *host));
        NEB_TRY(to_shadow(ps, at + i, m, ps->masters.stage));
        NEB_TRY(neb__masters_keep_vectors(ps, at + i, m, ps->masters.stage));
    }
    return NEB_OK;
}

neb_status neb__masters_put(neb_params *ps, int64_t at, const float *host, int64_t n)
{
    if (neb__partition_of_masters(ps)) return put_parted(ps, at, host, n);
    neb_device *d = ps->dev;
    size_t bytes = (size_t)n * sizeof *host;
    if (!ps->masters.on_host) return d->ops->upload(d->ctx, ps->value + at, host, bytes);
    NEB_TRY(neb__masters_settle(ps));
    memcpy(ps->value + at, host, bytes);
    return NEB_OK;
}

neb_status neb__masters_get(const neb_params *ps, int64_t at, float *host, int64_t n)
{
    if (neb__partition_of_masters(ps))
        return neb__fail(NEB_ERR_STATE,
                         "the ranks share the parameters: they are collected before they are read");
    neb_device *d = ps->dev;
    size_t bytes = (size_t)n * sizeof *host;
    if (!ps->masters.on_host) return d->ops->download(d->ctx, host, ps->value + at, bytes);
    NEB_TRY(neb__masters_settle(ps));
    memcpy(host, ps->value + at, bytes);
    return NEB_OK;
}

static neb_status convert(neb_params *ps, int64_t to, int64_t n, const float *from)
{
    struct neb_copy2d c = {.src = from,
                           .dst = (uint16_t *)ps->shadow + to,
                           .rows = 1,
                           .cols = n,
                           .ld_src = n,
                           .ld_dst = n,
                           .src_type = NEB_F32,
                           .dst_type = NEB_BF16};
    return ps->dev->ops->copy2d(ps->dev->ctx, &c);
}

/* The copy of values [at, at + n) that are at `from`, as far as it is here. */
static neb_status to_shadow(neb_params *ps, int64_t at, int64_t n, const float *from)
{
    if (!neb__partition_of_values(ps)) return convert(ps, at, n, from);
    for (int i = 0; i < 2; i++) {
        const struct neb_held *h = &ps->partition->held[i];
        int64_t first = at > h->first ? at : h->first, end = at + n < h->end ? at + n : h->end;
        if (first < end) NEB_TRY(convert(ps, h->at + (first - h->first), end - first, from + (first - at)));
    }
    return NEB_OK;
}

neb_status neb__masters_own_copies(neb_params *ps, bool frozen, bool shadow)
{
    neb_device *d = ps->dev;
    const size_t bytes = (size_t)ps->masters.vector_values * sizeof(float);
    if (bytes) NEB_TRY(d->ops->fill(d->ctx, ps->masters.vectors, 0, bytes));
    for (int i = 0; i < (frozen ? 2 : 1); i++) {
        const struct neb_held *h = &ps->partition->held[i];
        const float *own = ps->value + h->at;
        if (h->first >= h->end) continue;
        if (shadow) NEB_TRY(to_shadow(ps, h->first, h->end - h->first, own));
        NEB_TRY(neb__masters_keep_vectors(ps, h->first, h->end - h->first, own));
    }
    return NEB_OK;
}

neb_status neb__masters_keep_vectors(neb_params *ps, int64_t at, int64_t n, const float *from)
{
    neb_device *d = ps->dev;
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        int64_t first = p->offset > at ? p->offset : at;
        int64_t end = p->offset + p->values < at + n ? p->offset + p->values : at + n;
        if (p->vector < 0 || first >= end) continue;
        NEB_TRY(d->ops->copy(d->ctx, ps->masters.vectors + p->vector + (first - p->offset),
                             from + (first - at), (size_t)(end - first) * sizeof *from));
    }
    return NEB_OK;
}

neb_status neb__masters_refresh(neb_params *ps, int64_t at, int64_t n)
{
    neb_device *d = ps->dev;
    if (!ps->shadow || !n) return NEB_OK;
    if (neb__partition_of_masters(ps))
        return NEB_OK; /* a put makes the copies; else all ranks do it together */
    if (!ps->masters.on_host) return to_shadow(ps, at, n, ps->value + at);
    NEB_TRY(neb__masters_settle(ps));
    for (int64_t end = at + n; at < end; at += STAGE) {
        int64_t m = end - at < STAGE ? end - at : STAGE;
        NEB_TRY(d->ops->upload(d->ctx, ps->masters.stage, ps->value + at, (size_t)m * sizeof(float)));
        NEB_TRY(to_shadow(ps, at, m, ps->masters.stage));
        NEB_TRY(neb__masters_keep_vectors(ps, at, m, ps->masters.stage));
    }
    return NEB_OK;
}
