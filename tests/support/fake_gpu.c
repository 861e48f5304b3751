/* fake_gpu.c: see fake_gpu.h. The ranks meet in memory that was shared before they were forked: each writes its values,
 * waits for the others, and takes what it needs. Whoever waits looks whether its comm was aborted. */
#include "fake_gpu.h"
#include "check.h"
#include "forked.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 8 };

struct meeting {
    _Atomic uint64_t arrived[RANKS];
    char values[];
};

static struct meeting *meeting;
static size_t room, mapped;
struct fake_library fake_library = {.version = 23007, .shares = 1};

struct comm {
    int rank, size;
    uint64_t turns;
    _Atomic uint64_t begun, ended;
    atomic_bool aborted;
};
static struct comm comm;

void fake_gpu_prepare(int ranks, size_t bytes)
{
    assert_true(ranks <= RANKS);
    room = bytes;
    mapped = sizeof *meeting + (size_t)ranks * bytes;
    meeting = forked_memory(mapped);
}

void fake_gpu_end(void)
{
    forked_free(meeting, mapped);
}

int fake_gpu_exchanges(void)
{
    return (int)comm.ended;
}

static neb_status facts(void *dev, struct neb_comm_facts *out)
{
    (void)dev;
    if (fake_library.missing) return NEB_ERR_NOTFOUND;
    *out = (struct neb_comm_facts){.library = "FCCL 1.0",
                                   .version = (uint64_t)fake_library.version,
                                   .device = UINT64_C(0x123456789abcdef0) + (uint64_t)fake_library.device,
                                   .shares = fake_library.shares,
                                   .sharing = "buy another one"};
    return NEB_OK;
}

static neb_status make_id(void *dev, struct neb_comm_id *out)
{
    (void)dev;
    memset(out->bytes, 7, sizeof out->bytes);
    return NEB_OK;
}

static neb_status comm_open(void *dev, const struct neb_comm_place *place, void **out)
{
    (void)dev;
    if (place->id.bytes[255] != 7) return NEB_ERR_INVALID; /* it is the first rank's */
    comm.rank = place->rank;
    comm.size = place->size;
    atomic_store(&meeting->arrived[place->rank], 0); /* of ranks that were forked before */
    *out = &comm;
    return NEB_OK;
}

static bool barrier(struct comm *c)
{
    uint64_t target = ++c->turns;
    atomic_store(&meeting->arrived[c->rank], target);
    for (int r = 0; r < c->size; r++)
        while (atomic_load(&meeting->arrived[r]) < target) {
            if (c->aborted) return false;
            sched_yield();
        }
    return true;
}

static size_t width(neb_dtype t)
{
    if (t == NEB_F32 || t == NEB_I32) return 4;
    return t == NEB_BF16 ? 2 : 1;
}

static float value(const char *p, int64_t i, neb_dtype t)
{
    float f;
    uint32_t u = 0;
    if (t == NEB_F32) return ((const float *)p)[i];
    u = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void add(const struct comm *c, const struct neb_comm_exchange *x, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) {
        float sum = 0;
        for (int r = 0; r < c->size; r++) sum += value(meeting->values + (size_t)r * room, i, x->type);
        if (x->type == NEB_F32) {
            ((float *)x->values)[i] = sum;
        } else {
            uint32_t u;
            memcpy(&u, &sum, sizeof u);
            ((uint16_t *)x->values)[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
        }
    }
}

static void take(const struct comm *c, const struct neb_comm_exchange *x)
{
    const size_t w = width(x->type);
    if (x->op == NEB_EXCHANGE_SUM) add(c, x, 0, x->n);
    if (x->op == NEB_EXCHANGE_SUM_SCATTER) add(c, x, x->edge[c->rank], x->edge[c->rank + 1]);
    if (x->op == NEB_EXCHANGE_BROADCAST)
        memcpy(x->values, meeting->values + (size_t)x->peer * room, (size_t)x->n * w);
    for (int r = 0; x->op == NEB_EXCHANGE_GATHER && r < c->size; r++)
        memcpy((char *)x->values + (size_t)x->edge[r] * w,
               meeting->values + (size_t)r * room + (size_t)x->edge[r] * w,
               (size_t)(x->edge[r + 1] - x->edge[r]) * w);
}

static neb_status exchange(void *dev, void *ctx, const struct neb_comm_exchange *x)
{
    struct comm *c = ctx;
    (void)dev;
    if ((size_t)x->n * width(x->type) > room) return NEB_ERR_NOSPACE;
    c->begun++;
    memcpy(meeting->values + (size_t)c->rank * room, x->values, (size_t)x->n * width(x->type));
    if (!barrier(c)) return NEB_ERR_PEER;
    take(c, x);
    if (!barrier(c)) return NEB_ERR_PEER;
    c->ended++;
    return NEB_OK;
}

static neb_status state(void *dev, void *ctx, struct neb_comm_state *out)
{
    struct comm *c = ctx;
    (void)dev;
    memset(out, 0, sizeof *out);
    out->ended = c->ended;
    out->begun = c->begun;
    return NEB_OK;
}

static void comm_abort(void *dev, void *ctx)
{
    (void)dev;
    ((struct comm *)ctx)->aborted = true;
}

static void comm_close(void *dev, void *ctx)
{
    (void)dev;
    (void)ctx;
}

void fake_gpu_wrap(neb_device *d, struct neb_device_ops *ops)
{
    *ops = *d->ops;
    ops->name = "fake";
    ops->comm_facts = facts;
    ops->comm_id = make_id;
    ops->comm_open = comm_open;
    ops->exchange = exchange;
    ops->comm_state = state;
    ops->comm_abort = comm_abort;
    ops->comm_close = comm_close;
    d->ops = ops;
}
