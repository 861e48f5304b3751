/* fake_gpu.c: see fake_gpu.h. The ranks meet in memory that was shared before they were forked: each writes its values,
 * waits for the others, and takes what it needs. Whoever waits looks whether its comm was aborted.
 *
 * A recording is a list of calls with copies of their arguments. While it is made, nothing is computed. */
#include "fake_gpu.h"
#include "check.h"
#include "forked.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 8, COMMS = 16, LETTERS = 4 };

/* Where the ranks of a comm meet, and what they have sent each other. Their values lie behind all meetings. */
struct meeting {
    _Atomic uint64_t arrived[RANKS];
    struct {
        _Atomic uint64_t sent, taken;
    } box[RANKS]; /* to this rank */
};

struct shared {
    _Atomic unsigned next; /* comm */
    struct meeting meeting[COMMS];
};

static struct shared *shared;
static size_t room, letter, mapped;
static int most;
struct fake_library fake_library = {.version = 23007, .shares = 1};

struct comm {
    struct meeting *meeting;
    char *values; /* (ranks, room), then (ranks, LETTERS, letter) */
    int rank, size;
    uint64_t turns;
    _Atomic uint64_t begun, ended;
    atomic_bool aborted;
    int beside; /* exchanges begun beside the stream, so far */
    bool owes;  /* … and not joined: */
    const void *unjoined[64];
    int n_unjoined;
};
static struct comm comms[COMMS]; /* of this rank, in the order of opening; the first is the one of all */
static int n_comms;

void fake_gpu_prepare(int ranks, size_t bytes)
{
    assert_true(ranks <= RANKS);
    most = ranks;
    room = bytes;
    letter = bytes / 16;
    mapped = sizeof *shared + COMMS * (size_t)ranks * (room + LETTERS * letter);
    shared = forked_memory(mapped);
    n_comms = 0;
}

void fake_gpu_end(void)
{
    forked_free(shared, mapped);
}

int fake_gpu_exchanges(void)
{
    int n = 0;
    for (int i = 0; i < n_comms; i++) n += (int)comms[i].ended;
    return n;
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
    out->bytes[0] = (unsigned char)(atomic_fetch_add(&shared->next, 1) % COMMS);
    return NEB_OK;
}

static neb_status comm_open(void *dev, const struct neb_comm_place *place, void **out)
{
    (void)dev;
    if (place->id.bytes[255] != 7) return NEB_ERR_INVALID; /* it is the first rank's */
    if (n_comms == COMMS) return NEB_ERR_LIMIT;
    struct comm *c = &comms[n_comms++];
    const unsigned number = place->id.bytes[0];
    memset(c, 0, sizeof *c);
    c->meeting = &shared->meeting[number];
    c->values = (char *)(shared + 1) + number * (size_t)most * (room + LETTERS * letter);
    c->rank = place->rank;
    c->size = place->size;
    /* of ranks that were forked before */
    atomic_store(&c->meeting->arrived[c->rank], 0);
    atomic_store(&c->meeting->box[c->rank].sent, 0);
    atomic_store(&c->meeting->box[c->rank].taken, 0);
    *out = c;
    return NEB_OK;
}

static bool barrier(struct comm *c)
{
    uint64_t target = ++c->turns;
    atomic_store(&c->meeting->arrived[c->rank], target);
    for (int r = 0; r < c->size; r++)
        while (atomic_load(&c->meeting->arrived[r]) < target) {
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
        for (int r = 0; r < c->size; r++) sum += value(c->values + (size_t)r * room, i, x->type);
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
        memcpy(x->values, c->values + (size_t)x->peer * room, (size_t)x->n * w);
    for (int r = 0; x->op == NEB_EXCHANGE_GATHER && r < c->size; r++)
        memcpy((char *)x->values + (size_t)x->edge[r] * w,
               c->values + (size_t)r * room + (size_t)x->edge[r] * w,
               (size_t)(x->edge[r + 1] - x->edge[r]) * w);
}

static bool wait_for(const struct comm *c, const _Atomic uint64_t *count, uint64_t least)
{
    while (atomic_load(count) < least) {
        if (c->aborted) return false;
        sched_yield();
    }
    return true;
}

/* A sender waits while LETTERS of its messages are not taken. */
static bool pass_letter(struct comm *c, const struct neb_comm_exchange *x)
{
    const bool send = x->op == NEB_EXCHANGE_SEND;
    const int to = send ? x->peer : c->rank;
    const size_t bytes = (size_t)x->n * width(x->type);
    char *box = c->values + (size_t)most * room + (size_t)to * LETTERS * letter;
    _Atomic uint64_t *sent = &c->meeting->box[to].sent, *taken = &c->meeting->box[to].taken;
    const uint64_t n = *(send ? sent : taken);
    assert_true(bytes <= letter);
    if (!(send ? wait_for(c, taken, n < LETTERS ? 0 : n + 1 - LETTERS) : wait_for(c, sent, n + 1)))
        return false;
    char *at = box + n % LETTERS * letter;
    if (send)
        memcpy(at, x->values, bytes);
    else
        memcpy(x->values, at, bytes);
    atomic_fetch_add(send ? sent : taken, 1);
    return true;
}

static neb_status exchange(void *dev, void *ctx, const struct neb_comm_exchange *x)
{
    struct comm *c = ctx;
    (void)dev;
    if ((size_t)x->n * width(x->type) > room) return NEB_ERR_NOSPACE;
    c->begun++;
    if (x->op == NEB_EXCHANGE_SEND || x->op == NEB_EXCHANGE_RECEIVE) {
        if (!pass_letter(c, x)) return NEB_ERR_PEER;
        c->ended++;
        return NEB_OK;
    }
    memcpy(c->values + (size_t)c->rank * room, x->values, (size_t)x->n * width(x->type));
    if (!barrier(c)) return NEB_ERR_PEER;
    take(c, x);
    if (!barrier(c)) return NEB_ERR_PEER;
    c->ended++;
    return NEB_OK;
}

/* ---- beside the stream --------------------------------------------------------------------------------------- */

enum { EDGES = RANKS + 1, WAITING = 64 };

/* An exchange that is kept, with its edges. */
struct kept {
    struct comm *comm;
    struct neb_comm_exchange x;
    int64_t edge[EDGES];
};
static struct kept waiting[WAITING]; /* for the join */
static int n_waiting;

static void keep(struct kept *k, struct comm *c, const struct neb_comm_exchange *x)
{
    k->comm = c;
    k->x = *x;
    if (x->edge) memcpy(k->edge, x->edge, (size_t)(c->size + 1) * sizeof *k->edge);
}

static neb_status carry_out(struct kept *k)
{
    if (k->x.edge) k->x.edge = k->edge;
    return exchange(NULL, k->comm, &k->x);
}

static neb_status beside_now(void *dev, struct comm *c, const struct neb_comm_exchange *x)
{
    for (int i = 0; i < c->n_unjoined; i++)
        if (c->unjoined[i] == x->values)
            return NEB_ERR_STATE; /* they may have been written while they were read */
    if (c->n_unjoined == 64) return NEB_ERR_LIMIT;
    c->unjoined[c->n_unjoined++] = x->values;
    c->beside++;
    c->owes = true;
    if (!fake_library.late) return exchange(dev, c, x);
    if (n_waiting == WAITING) return NEB_ERR_LIMIT;
    keep(&waiting[n_waiting++], c, x);
    return NEB_OK;
}

/* All that is begun, of all comms, is carried out. */
static neb_status get_on(void)
{
    const int n = n_waiting;
    n_waiting = 0;
    for (int i = 0; i < n; i++)
        if (carry_out(&waiting[i]) != NEB_OK) return NEB_ERR_PEER;
    return NEB_OK;
}

static neb_status join_now(struct comm *c)
{
    c->owes = false;
    c->n_unjoined = 0;
    return get_on();
}

/* ---- recordings ---------------------------------------------------------------------------------------------- */

enum call_kind {
#define KIND(slot, type) CALL_##slot,
    NEB_PRIMITIVE_SLOTS(KIND) NEB_FUSED_SLOTS(KIND) NEB_OPTIONAL_SLOTS(KIND)
#undef KIND
        CALL_copy,
    CALL_fill,
    CALL_exchange,
    CALL_beside,
    CALL_join
};

struct call {
    enum call_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    uint8_t byte;
    union {
#define ARGS(slot, type) struct type slot;
        NEB_PRIMITIVE_SLOTS(ARGS)
        NEB_FUSED_SLOTS(ARGS)
        NEB_OPTIONAL_SLOTS(ARGS)
#undef ARGS
        struct kept kept;
    } args;
};

struct recording {
    struct call *list;
    int n, room;
    bool owes;   /* a join */
    bool beside; /* it has exchanges beside the stream */
};

static const struct neb_device_ops *own; /* of the CPU */
static struct recording *recording;      /* the present one */
static int launches;

int fake_gpu_launches(void)
{
    return launches;
}

int fake_gpu_beside(void)
{
    int n = 0;
    for (int i = 0; i < n_comms; i++) n += comms[i].beside;
    return n;
}

static struct call *record(enum call_kind kind)
{
    struct recording *r = recording;
    if (r->n == r->room) {
        r->room = r->room ? 2 * r->room : 256;
        r->list = realloc(r->list, (size_t)r->room * sizeof *r->list);
        assert_non_null(r->list);
    }
    r->list[r->n].kind = kind;
    return &r->list[r->n++];
}

#define RECORDED(slot, type)                                    \
    static neb_status r_##slot(void *dev, const struct type *a) \
    {                                                           \
        if (!recording) return own->slot(dev, a);               \
        record(CALL_##slot)->args.slot = *a;                    \
        return NEB_OK;                                          \
    }
NEB_PRIMITIVE_SLOTS(RECORDED)
NEB_FUSED_SLOTS(RECORDED)
NEB_OPTIONAL_SLOTS(RECORDED)
#undef RECORDED

static neb_status r_copy(void *dev, void *to, const void *from, size_t bytes)
{
    if (!recording) return own->copy(dev, to, from, bytes);
    struct call *c = record(CALL_copy);
    c->to = to;
    c->from = from;
    c->bytes = bytes;
    return NEB_OK;
}

static neb_status r_fill(void *dev, void *to, uint8_t byte, size_t bytes)
{
    if (!recording) return own->fill(dev, to, byte, bytes);
    struct call *c = record(CALL_fill);
    c->to = to;
    c->byte = byte;
    c->bytes = bytes;
    return NEB_OK;
}

static neb_status r_exchange(void *dev, void *ctx, const struct neb_comm_exchange *x)
{
    struct comm *c = ctx;
    if (c->owes || (recording && recording->owes)) return NEB_ERR_STATE; /* two at once in one comm */
    if (!recording && get_on() != NEB_OK)
        return NEB_ERR_PEER; /* it may wait for what another rank gets from this one */
    if (!recording) return exchange(dev, ctx, x);
    keep(&record(CALL_exchange)->args.kept, c, x);
    return NEB_OK;
}

static neb_status r_beside(void *dev, void *ctx, const struct neb_comm_exchange *x)
{
    if (!recording) return beside_now(dev, ctx, x);
    recording->owes = recording->beside = true;
    keep(&record(CALL_beside)->args.kept, ctx, x);
    return NEB_OK;
}

static neb_status r_join(void *dev, void *ctx)
{
    struct comm *c = ctx;
    (void)dev;
    if (!recording) return join_now(c);
    recording->owes = false;
    record(CALL_join)->args.kept.comm = c;
    return NEB_OK;
}

static neb_status r_download(void *dev, void *to, const void *from, size_t bytes)
{
    if (recording || get_on() != NEB_OK) return NEB_ERR_STATE;
    return own->download(dev, to, from, bytes);
}

static neb_status r_upload(void *dev, void *to, const void *from, size_t bytes)
{
    return recording ? NEB_ERR_STATE : own->upload(dev, to, from, bytes);
}

static neb_status r_sync(void *dev)
{
    if (recording || get_on() != NEB_OK) return NEB_ERR_STATE;
    return own->sync(dev);
}

static neb_status graph_begin(void *dev)
{
    (void)dev;
    if (recording) return NEB_ERR_STATE;
    recording = calloc(1, sizeof *recording);
    return recording ? NEB_OK : NEB_ERR_NOMEM;
}

static void graph_free(void *dev, void *graph)
{
    struct recording *r = graph;
    (void)dev;
    free(r->list);
    free(r);
}

static neb_status graph_end(void *dev, void **graph)
{
    struct recording *r = recording;
    recording = NULL;
    if (!r) return NEB_ERR_STATE;
    *graph = r;
    if (!r->owes && !(fake_library.breaks && r->beside)) return NEB_OK;
    graph_free(dev, r);
    *graph = NULL;
    return fake_library.breaks ? NEB_ERR_IO : NEB_ERR_STATE;
}

static neb_status again(void *dev, struct call *c)
{
    switch (c->kind) {
#define AGAIN(slot, type) \
    case CALL_##slot: return own->slot(dev, &c->args.slot);
        NEB_PRIMITIVE_SLOTS(AGAIN)
        NEB_FUSED_SLOTS(AGAIN)
        NEB_OPTIONAL_SLOTS(AGAIN)
#undef AGAIN
    case CALL_copy: return own->copy(dev, c->to, c->from, c->bytes);
    case CALL_fill: return own->fill(dev, c->to, c->byte, c->bytes);
    case CALL_exchange: return carry_out(&c->args.kept);
    case CALL_beside: {
        struct kept k = c->args.kept;
        if (k.x.edge) k.x.edge = k.edge;
        return beside_now(dev, k.comm, &k.x);
    }
    case CALL_join: return join_now(c->args.kept.comm);
    }
    return NEB_ERR_INTERNAL;
}

static neb_status graph_launch(void *dev, void *graph)
{
    struct recording *r = graph;
    neb_status status = recording ? NEB_ERR_STATE : NEB_OK;
    for (int i = 0; status == NEB_OK && i < r->n; i++) status = again(dev, &r->list[i]);
    launches++;
    return status;
}

static void record_all(struct neb_device_ops *ops)
{
#define WRAP(slot, type) \
    if (ops->slot) ops->slot = r_##slot;
    NEB_PRIMITIVE_SLOTS(WRAP)
    NEB_FUSED_SLOTS(WRAP)
    NEB_OPTIONAL_SLOTS(WRAP)
#undef WRAP
    ops->copy = r_copy;
    ops->fill = r_fill;
    ops->upload = r_upload;
    ops->download = r_download;
    ops->sync = r_sync;
    ops->exchange = r_exchange;
    ops->exchange_beside = r_beside;
    ops->exchange_join = r_join;
    ops->graph_begin = graph_begin;
    ops->graph_end = graph_end;
    ops->graph_launch = graph_launch;
    ops->graph_free = graph_free;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

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

/* Nothing of it is under way any more: what nobody has joined is given up. */
static void comm_close(void *dev, void *ctx)
{
    int left = 0;
    (void)dev;
    for (int i = 0; i < n_waiting; i++)
        if (waiting[i].comm != ctx) waiting[left++] = waiting[i];
    n_waiting = left;
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
    own = d->ops;
    if (fake_library.records) record_all(ops);
    d->ops = ops;
}
