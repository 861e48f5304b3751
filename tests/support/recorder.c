/* recorder.c: every slot of the CPU's table behind one that can keep the call: a function and a copy of its arguments. */
#include "recorder.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/device.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS = 1024 };

typedef neb_status (*call_fn)(void *dev, const void *args);

struct call {
    call_fn fn;
    _Alignas(16) char args[ARGS];
};

struct recording {
    struct call *list;
    int n, room;
};

static struct recording *now; /* being made, or NULL */
static int launches;

static neb_status keep(void *dev, call_fn fn, const void *args, size_t bytes)
{
    if (!now) return fn(dev, args);
    if (now->n == now->room) {
        int room = now->room ? 2 * now->room : 64;
        struct call *list = realloc(now->list, (size_t)room * sizeof *list);
        if (!list) return NEB_ERR_NOMEM;
        now->list = list;
        now->room = room;
    }
    now->list[now->n].fn = fn;
    memcpy(now->list[now->n++].args, args, bytes);
    return NEB_OK;
}

#define NEB__X(slot, type)                                         \
    static neb_status call_##slot(void *dev, const void *args)     \
    {                                                              \
        return neb__cpu_##slot(dev, args);                         \
    }                                                              \
    static neb_status take_##slot(void *dev, const struct type *a) \
    {                                                              \
        _Static_assert(sizeof *a <= ARGS, "arguments of " #slot);  \
        return keep(dev, call_##slot, a, sizeof *a);               \
    }
NEB_CPU_SLOTS(NEB__X)
#undef NEB__X

struct move {
    void *dst;
    const void *src;
    size_t bytes;
    uint8_t byte;
};

static neb_status call_move(void *dev, const void *args)
{
    const struct move *m = args;
    return m->src ? neb__cpu_ops.copy(dev, m->dst, m->src, m->bytes)
                  : neb__cpu_ops.fill(dev, m->dst, m->byte, m->bytes);
}
static neb_status take_copy(void *dev, void *dst, const void *src, size_t bytes)
{
    return keep(dev, call_move, &(struct move){dst, src, bytes, 0}, sizeof(struct move));
}
static neb_status take_fill(void *dev, void *dst, uint8_t byte, size_t bytes)
{
    return keep(dev, call_move, &(struct move){dst, NULL, bytes, byte}, sizeof(struct move));
}

/* ---- what must not happen while recording ---- */

static neb_status idle(void)
{
    return now ? neb__fail(NEB_ERR_STATE, "the recorder: not while recording") : NEB_OK;
}
static neb_status take_alloc(void *dev, size_t bytes, void **out)
{
    NEB_TRY(idle());
    return neb__cpu_ops.alloc(dev, bytes, out);
}
static neb_status take_upload(void *dev, void *dst, const void *src, size_t bytes)
{
    NEB_TRY(idle());
    return neb__cpu_ops.upload(dev, dst, src, bytes);
}
static neb_status take_download(void *dev, void *dst, const void *src, size_t bytes)
{
    NEB_TRY(idle());
    return neb__cpu_ops.download(dev, dst, src, bytes);
}
static neb_status take_sync(void *dev)
{
    (void)dev;
    return idle();
}

/* ---- side copies ---- */

enum { COPIES = 64 };

static struct move copies[COPIES];
static uint64_t issued;

static neb_status side(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    (void)dev;
    NEB_TRY(idle());
    *fence = ++issued;
    copies[*fence % COPIES] = (struct move){dst, src, bytes, 0};
    return NEB_OK;
}
static neb_status wait_for(void *dev, uint64_t fence)
{
    struct move *m = &copies[fence % COPIES];
    if (!fence || fence > issued || issued - fence >= COPIES)
        return neb__fail(NEB_ERR_INVALID, "the recorder: no such fence");
    if (m->dst) memcpy(m->dst, m->src, m->bytes);
    m->dst = NULL;
    return neb__cpu_ops.sync(dev);
}
static neb_status is_done(void *dev, uint64_t fence, int *done)
{
    *done = 1;
    return wait_for(dev, fence);
}
static neb_status host_alloc(void *dev, size_t bytes, void **out)
{
    (void)dev;
    *out = neb__malloc(bytes ? bytes : 1);
    return *out ? NEB_OK : NEB_ERR_NOMEM;
}
static void host_free(void *dev, void *p)
{
    (void)dev;
    neb__free(p);
}

/* ---- recordings ---- */

static neb_status begin(void *dev)
{
    (void)dev;
    NEB_TRY(idle());
    now = calloc(1, sizeof *now);
    return now ? NEB_OK : NEB_ERR_NOMEM;
}
static neb_status end(void *dev, void **graph)
{
    (void)dev;
    *graph = now;
    now = NULL;
    return NEB_OK;
}
static neb_status launch(void *dev, void *graph)
{
    const struct recording *r = graph;
    launches++;
    for (int i = 0; i < r->n; i++) NEB_TRY(r->list[i].fn(dev, r->list[i].args));
    return NEB_OK;
}
static void release(void *dev, void *graph)
{
    struct recording *r = graph;
    (void)dev;
    free(r->list);
    free(r);
}

void recorder_take(neb_device *d)
{
    static struct neb_device_ops ops;
    ops = neb__cpu_ops;
#define NEB__X(slot, type) ops.slot = take_##slot;
    NEB_CPU_SLOTS(NEB__X)
#undef NEB__X
    ops.norm_residual = take_norm;
    ops.norm_residual_bwd = take_norm_bwd;
    ops.packed_bytes = NULL;
    ops.pack_linear = NULL;
    ops.copy = take_copy;
    ops.fill = take_fill;
    ops.alloc = take_alloc;
    ops.upload = take_upload;
    ops.download = take_download;
    ops.sync = take_sync;
    ops.host_alloc = host_alloc;
    ops.host_free = host_free;
    ops.side_download = side;
    ops.side_upload = side;
    ops.fence_done = is_done;
    ops.fence_wait = wait_for;
    ops.fence_join = wait_for;
    ops.graph_begin = begin;
    ops.graph_end = end;
    ops.graph_launch = launch;
    ops.graph_free = release;
    d->ops = &ops;
    launches = 0;
}

int recorder_launches(void)
{
    return launches;
}
