/* host_wrap.c: the table of a plug-in that the host helps out.
 *
 * A slot of the plug-in is reached through a trampoline that unwraps the context; a primitive that it lacks is host_ops.c's. Recording
 * is switched off, because it allows no copies to the host. */
#include "device/host_ops.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

#include <stdio.h>

/* ---- the slots that compute ---- */

#define DIRECT(slot, type)                                              \
    static neb_status direct_##slot(void *ctx, const struct type *args) \
    {                                                                   \
        const struct neb_host_ops *h = ctx;                             \
        return h->plugin->slot(h->ctx, args);                           \
    }
NEB_PRIMITIVE_SLOTS(DIRECT)
NEB_FUSED_SLOTS(DIRECT)
NEB_OPTIONAL_SLOTS(DIRECT)

/* ---- the slots without an argument struct ---- */

static void w_close(void *ctx)
{
    struct neb_host_ops *h = ctx;
    h->plugin->close(h->ctx);
    neb__cpu_ops.close(h->cpu);
    neb__free(h);
}
static void w_info(void *ctx, struct neb_device_info *out)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->info(h->ctx, out);
}
static neb_status w_alloc(void *ctx, size_t bytes, void **out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->alloc(h->ctx, bytes, out);
}
static void w_free(void *ctx, void *p)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->free(h->ctx, p);
}
static neb_status w_host_alloc(void *ctx, size_t bytes, void **out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->host_alloc(h->ctx, bytes, out);
}
static void w_host_free(void *ctx, void *p)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->host_free(h->ctx, p);
}
static neb_status w_upload(void *ctx, void *dst, const void *src, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->upload(h->ctx, dst, src, bytes);
}
static neb_status w_download(void *ctx, void *dst, const void *src, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->download(h->ctx, dst, src, bytes);
}
static neb_status w_copy(void *ctx, void *dst, const void *src, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->copy(h->ctx, dst, src, bytes);
}
static neb_status w_fill(void *ctx, void *dst, uint8_t byte, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fill(h->ctx, dst, byte, bytes);
}
static neb_status w_sync(void *ctx)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->sync(h->ctx);
}
static neb_status w_side_download(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->side_download(h->ctx, dst, src, bytes, fence);
}
static neb_status w_side_upload(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->side_upload(h->ctx, dst, src, bytes, fence);
}
static neb_status w_fence_done(void *ctx, uint64_t fence, int *done)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fence_done(h->ctx, fence, done);
}
static neb_status w_fence_wait(void *ctx, uint64_t fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fence_wait(h->ctx, fence);
}
static neb_status w_fence_join(void *ctx, uint64_t fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fence_join(h->ctx, fence);
}
static int64_t w_scratch_bytes(void *ctx, enum neb_slot slot, const void *args)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->scratch_bytes ? h->plugin->scratch_bytes(h->ctx, slot, args) : 0;
}
static int64_t w_packed_bytes(void *ctx, int64_t out, int64_t in, neb_dtype type)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->packed_bytes(h->ctx, out, in, type);
}

static neb_status w_comm_facts(void *ctx, struct neb_comm_facts *out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_facts(h->ctx, out);
}
static neb_status w_comm_id(void *ctx, struct neb_comm_id *out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_id(h->ctx, out);
}
static neb_status w_comm_open(void *ctx, const struct neb_comm_place *place, void **comm)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_open(h->ctx, place, comm);
}
static neb_status w_exchange(void *ctx, void *comm, const struct neb_comm_exchange *x)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->exchange(h->ctx, comm, x);
}
static neb_status w_comm_state(void *ctx, void *comm, struct neb_comm_state *out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_state(h->ctx, comm, out);
}
static void w_comm_abort(void *ctx, void *comm)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->comm_abort(h->ctx, comm);
}
static neb_status w_exchange_beside(void *ctx, void *comm, const struct neb_comm_exchange *x)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->exchange_beside(h->ctx, comm, x);
}
static neb_status w_exchange_join(void *ctx, void *comm)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->exchange_join(h->ctx, comm);
}
static void w_comm_close(void *ctx, void *comm)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->comm_close(h->ctx, comm);
}

/* ---- wrapping ---- */

static void wrap_copies(struct neb_device_ops *t, const struct neb_device_ops *p)
{
    t->close = w_close, t->info = w_info, t->alloc = w_alloc, t->free = w_free;
    t->upload = w_upload, t->download = w_download, t->copy = w_copy, t->fill = w_fill, t->sync = w_sync;
    t->graph_begin = NULL, t->graph_end = NULL, t->graph_launch = NULL, t->graph_free = NULL;
    t->scratch_bytes = w_scratch_bytes;
    if (p->host_alloc) t->host_alloc = w_host_alloc, t->host_free = w_host_free;
    if (p->side_download) {
        t->side_download = w_side_download, t->side_upload = w_side_upload;
        t->fence_done = w_fence_done, t->fence_wait = w_fence_wait, t->fence_join = w_fence_join;
    }
    if (p->packed_bytes) t->packed_bytes = w_packed_bytes;
    if (p->exchange) {
        t->comm_facts = w_comm_facts, t->comm_id = w_comm_id, t->comm_open = w_comm_open;
        t->exchange = w_exchange, t->comm_state = w_comm_state;
        t->comm_abort = w_comm_abort, t->comm_close = w_comm_close;
    }
    if (p->exchange_beside) t->exchange_beside = w_exchange_beside, t->exchange_join = w_exchange_join;
}

/* `missing` gets the names of the slots that the host computes. */
static void fill_table(struct neb_host_ops *h, char *missing, size_t size)
{
    const struct neb_device_ops *p = h->plugin;
    struct neb_device_ops *t = &h->table;
    size_t n = 0;
    *t = *p;
    t->size = sizeof *t;
    wrap_copies(t, p);
#define HELD(slot, type) \
    if (p->slot) t->slot = direct_##slot;
    NEB_PRIMITIVE_SLOTS(HELD)
    NEB_FUSED_SLOTS(HELD)
    NEB_OPTIONAL_SLOTS(HELD)
#undef HELD
#define LACKED(slot, type)                                                        \
    if (!p->slot) {                                                               \
        t->slot = neb__hosted_##slot;                                             \
        if (n < size) n += (size_t)snprintf(missing + n, size - n, " %s", #slot); \
    }
    NEB_HOSTED_SLOTS(LACKED)
#undef LACKED
}

neb_status neb__host_ops_wrap(struct neb_device *d)
{
    char missing[600] = "";
    struct neb_host_ops *h = NEB_NEW(struct neb_host_ops);
    if (!h) return neb__fail(NEB_ERR_NOMEM, "out of memory for device '%s'", d->ops->name);
    struct neb_device_config cpu = d->config;
    cpu.memory_limit = 0;
    cpu.index = 0; /* the number is the plug-in's */
    neb_status status = neb__cpu_ops.open(&cpu, &h->cpu);
    if (status != NEB_OK) {
        neb__free(h);
        return status;
    }
    h->plugin = d->ops;
    h->ctx = d->ctx;
    fill_table(h, missing, sizeof missing);
    if (missing[0])
        neb__warn("device '%s' lacks primitives; the host computes them, with copies in both directions:%s",
                  d->ops->name, missing);
    d->ops = &h->table;
    d->ctx = h;
    return NEB_OK;
}
