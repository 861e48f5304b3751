/* rehearse.c: a device that computes nothing.
 *
 * What a training takes of a device follows from its calls alone: the engine plans each run before it computes, the
 * optimizer and the layout decide what is allocated. So a training whose device answers every call without doing anything
 * takes, by its allocator, exactly the bytes of the real one. Nothing has to fit: memory is reserved, and a page of it comes
 * only when somebody writes there (inputs and the step's numbers, which the host reads again).
 *
 * On the CPU the slots stay those of the device, because they also size its work memory; its pool runs no task. The slots
 * of a plug-in are replaced by one that returns. What a plug-in's library takes for itself is not seen here. */
#include "base/mem.h"
#include "device/device.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 4096, SMALL = 4096, LARGE = 1 << 20 };

struct rehearsed {
    void *ctx; /* the device's */
    const struct neb_device_ops *real;
    int64_t small, large; /* units of its allocator, below LARGE and from there on */
    int64_t used, peak;
};

/* ---- memory --------------------------------------------------------------------------------------------------- */

static int64_t used_by(const struct rehearsed *r)
{
    struct neb_device_info info;
    r->real->info(r->ctx, &info);
    return info.memory_used;
}

/* What the device's allocator takes for so many bytes, by taking and giving back. */
static int64_t taken_for(const struct rehearsed *r, size_t bytes)
{
    void *p;
    const int64_t before = used_by(r);
    if (r->real->alloc(r->ctx, bytes, &p) != NEB_OK) return (int64_t)bytes;
    const int64_t taken = used_by(r) - before;
    r->real->free(r->ctx, p);
    return taken;
}

/* Sizes of `bytes` and more are rounded up to multiples of this. */
static int64_t unit_from(const struct rehearsed *r, size_t bytes)
{
    const int64_t first = taken_for(r, bytes), next = taken_for(r, (size_t)first + 1);
    return next > first && first > 0 ? next - first : 1;
}

static int64_t rounded(const struct rehearsed *r, size_t bytes)
{
    const int64_t unit = bytes >= LARGE ? r->large : r->small;
    return ((int64_t)bytes + unit - 1) / unit * unit;
}

/* Work memory that the device took when it was opened counts. */
static void learn_memory(struct rehearsed *r)
{
    r->used = r->peak = used_by(r);
    r->small = unit_from(r, 1);
    r->large = unit_from(r, LARGE);
}

static void *reserve(size_t bytes, int64_t counted)
{
    const size_t total = bytes + ALIGN;
    const int64_t header[2] = {(int64_t)total, counted};
    char *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    memcpy(p, header, sizeof header);
    return p + ALIGN;
}

/* Returns what was counted for it. */
static int64_t give_back(void *p)
{
    int64_t header[2];
    char *at = (char *)p - ALIGN;
    memcpy(header, at, sizeof header);
    munmap(at, (size_t)header[0]);
    return header[1];
}

static neb_status no_room(size_t bytes)
{
    return neb__fail(NEB_ERR_NOMEM, "the system has no room for %zu bytes of addresses", bytes);
}

static neb_status alloc_counted(void *dev, size_t bytes, void **out)
{
    struct rehearsed *r = dev;
    const int64_t takes = rounded(r, bytes);
    if (!(*out = reserve(bytes, takes))) return no_room(bytes);
    r->used += takes;
    if (r->used > r->peak) r->peak = r->used;
    return NEB_OK;
}

static void free_counted(void *dev, void *p)
{
    struct rehearsed *r = dev;
    if (p) r->used -= give_back(p);
}

static neb_status host_reserve(void *dev, size_t bytes, void **out)
{
    (void)dev;
    return (*out = reserve(bytes, 0)) ? NEB_OK : no_room(bytes);
}

static void host_give_back(void *dev, void *p)
{
    (void)dev;
    if (p) give_back(p);
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

/* Small values are those of the step, which the host reads again; large ones would only take memory. */
static neb_status transfer(void *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    if (bytes <= SMALL) memmove(dst, src, bytes);
    return NEB_OK;
}

/* Between host and device: what a batch looks like is there, since ops check their indices. A state that is kept on the host goes
 * in buckets of many MiB, and is nothing but reserved addresses. */
static neb_status bring(void *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    if (bytes <= LARGE) memmove(dst, src, bytes);
    return NEB_OK;
}

static neb_status fill(void *dev, void *dst, uint8_t byte, size_t bytes)
{
    (void)dev;
    if (bytes <= SMALL) memset(dst, byte, bytes);
    return NEB_OK;
}

static neb_status sync(void *dev)
{
    (void)dev;
    return NEB_OK;
}

static neb_status side(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    *fence = 0;
    return transfer(dev, dst, src, bytes);
}

static neb_status fence_done(void *dev, uint64_t fence, int *done)
{
    (void)dev, (void)fence;
    *done = 1;
    return NEB_OK;
}

static neb_status fence_over(void *dev, uint64_t fence)
{
    (void)dev, (void)fence;
    return NEB_OK;
}

static neb_status nothing(void *dev, const void *args)
{
    (void)dev, (void)args;
    return NEB_OK;
}

static int64_t scratch(void *dev, enum neb_slot slot, const void *args)
{
    struct rehearsed *r = dev;
    return r->real->scratch_bytes(r->ctx, slot, args);
}

static void info(void *dev, struct neb_device_info *out)
{
    struct rehearsed *r = dev;
    r->real->info(r->ctx, out);
    out->memory_used = r->used;
    out->memory_peak = r->peak;
}

static void close_both(void *dev)
{
    struct rehearsed *r = dev;
    r->real->close(r->ctx);
    neb__free(r);
}

/* ---- the table ------------------------------------------------------------------------------------------------ */

/* Every slot that computes has the form of nothing(); those that the device lacks stay empty. */
static void silence(struct neb_device_ops *t)
{
    neb_status (*none)(void *, const void *) = nothing;
#define NEB__X(slot, type) \
    if (t->slot) memcpy(&t->slot, &none, sizeof none);
    NEB_PRIMITIVE_SLOTS(NEB__X)
    NEB_FUSED_SLOTS(NEB__X)
    NEB_OPTIONAL_SLOTS(NEB__X)
#undef NEB__X
    t->alloc = alloc_counted;
    t->free = free_counted;
    t->info = info;
    t->close = close_both;
    if (t->scratch_bytes) t->scratch_bytes = scratch;
    if (t->side_upload) t->side_upload = t->side_download = side;
    if (t->side_upload) t->fence_done = fence_done, t->fence_wait = t->fence_join = fence_over;
    t->packed_bytes = NULL, t->pack_linear = NULL;
    t->graph_begin = NULL, t->graph_end = NULL, t->graph_launch = NULL, t->graph_free = NULL;
    t->comm_facts = NULL, t->comm_id = NULL, t->comm_open = NULL, t->exchange = NULL;
    t->comm_state = NULL, t->comm_abort = NULL, t->comm_close = NULL;
    t->exchange_beside = NULL, t->exchange_join = NULL;
}

neb_status neb__device_rehearse(struct neb_device *d)
{
    struct neb_device_ops *t = NEB_NEW(struct neb_device_ops);
    struct rehearsed *r = NEB_NEW(struct rehearsed);
    if (!t || !r) {
        neb__free(t);
        neb__free(r);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a rehearsal");
    }
    *t = *d->ops;
    t->copy = transfer;
    t->upload = t->download = bring;
    t->fill = fill;
    t->sync = sync;
    t->host_alloc = host_reserve;
    t->host_free = host_give_back;
    if (d->ops == &neb__cpu_ops) {
        neb__cpu_rehearse(d->ctx);
        neb__free(r);
    } else {
        *r = (struct rehearsed){.ctx = d->ctx, .real = d->ops};
        learn_memory(r);
        silence(t);
        d->ctx = r;
    }
    d->ops = d->table = t;
    return NEB_OK;
}
