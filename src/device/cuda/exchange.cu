/* exchange.cu: exchanges with the GPUs of other processes, through NCCL.
 *
 * An exchange is enqueued on the compute stream, so it needs no waiting of the host and can be recorded. Before
 * and after it a kernel of one thread counts, in host memory that the GPU sees: so another thread can tell, while
 * the stream is busy, whether this rank waits in an exchange and in which one. A replay of a recording counts, too.
 *
 * A communicator has a second lane: a side stream, whose exchanges begin where the compute stream stands and run beside
 * it. An event leads from the compute stream to the lane at each of them, another one back at the join, so a recording
 * that has the first must have the second: graph_end() makes the joins that a pass that broke off still owes. The lane has
 * the highest priority: the few blocks of an exchange begin when any block of a product ends, not behind all of them.
 * Each lane has counters of its own, because kernels of the two may run at the same time.
 *
 * Communicators are non-blocking: a call that needs other ranks returns at once, and is asked about until it is over
 * or its time is. An abort makes kernels that wait for others end; nothing may use the communicator afterwards, so
 * `lock` stands between enqueuing and aborting. */
#include "nccl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct comm {
    struct neb_cuda *dev;
    const struct neb_nccl_api *api;
    ncclComm_t nccl; /* NULL: aborted */
    int rank, size;
    double timeout_s;
    pthread_mutex_t lock;
    volatile uint64_t *marks; /* (LANES, 2) host, seen by the GPU: exchanges begun, ended */
    uint64_t *marks_there;    /* the same for the GPU */
    uint64_t *counts;         /* the GPU's own */
    cudaStream_t side;        /* NULL: nothing was begun beside the compute stream */
    cudaEvent_t reached, done;
    int forked;        /* the lane has work for which the compute stream does not wait yet */
    struct comm *next; /* … and is in the device's list of those */
};

enum { COMPUTE, BESIDE, LANES };

/* ---- facts ------------------------------------------------------------------------------------------------- */

static void describe(int version, char *out, size_t size)
{
    snprintf(out, size, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

neb_status neb__cuda_comm_facts(void *ctx, struct neb_comm_facts *out)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    const struct neb_nccl_api *api;
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    NEB_TRY(neb__nccl_load(dev, &api));
    memset(out, 0, sizeof *out);
    describe(api->version, out->library, sizeof out->library);
    out->version = (uint64_t)api->version;
    cudaDeviceProp prop;
    CUDA_TRY(dev, cudaGetDeviceProperties(&prop, dev->index));
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof prop.uuid.bytes; i++)
        h = (h ^ (unsigned char)prop.uuid.bytes[i]) * 1099511628211u;
    out->device = h;
    out->shares = api->version >= 23000 && allowed && !strcmp(allowed, "1");
    snprintf(out->sharing, sizeof out->sharing, "%s",
             api->version >= 23000
                 ? "set NCCL_MULTI_RANK_GPU_ENABLE=1 and run under MPS (nvidia-cuda-mps-control -d)"
                 : "use NCCL 2.30 or newer with NCCL_MULTI_RANK_GPU_ENABLE=1 under MPS");
    return NEB_OK;
}

neb_status neb__cuda_comm_id(void *ctx, struct neb_comm_id *out)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    const struct neb_nccl_api *api;
    ncclUniqueId id;
    NEB_TRY(neb__nccl_load(dev, &api));
    ncclResult_t r = api->ncclGetUniqueId(&id);
    if (r != ncclSuccess)
        return neb__cuda_fail(dev, NEB_ERR_DEVICE, "cuda: NCCL cannot begin a communicator: %s",
                              api->ncclGetErrorString(r));
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &id, sizeof id);
    return NEB_OK;
}

/* ---- errors and waiting ------------------------------------------------------------------------------------ */

static neb_status failed(const struct comm *c, ncclResult_t r, const char *what)
{
    const char *more = c->api->ncclGetLastError ? c->api->ncclGetLastError(c->nccl) : "";
    return neb__cuda_fail(c->dev, r == ncclRemoteError ? NEB_ERR_PEER : NEB_ERR_DEVICE,
                          "cuda: NCCL: %s: %s%s%.300s", what, c->api->ncclGetErrorString(r),
                          more && *more ? ": " : "", more ? more : "");
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A call has returned r; it is over when this returns. */
static neb_status over(const struct comm *c, ncclResult_t r, const char *what)
{
    double since = now_s();
    for (long looks = 0; r == ncclInProgress; looks++) {
        struct timespec nap = {0, 20000};
        ncclResult_t e = c->api->ncclCommGetAsyncError(c->nccl, &r);
        if (e != ncclSuccess) r = e;
        if (r != ncclInProgress) break;
        if (now_s() - since > c->timeout_s)
            return neb__cuda_fail(c->dev, NEB_ERR_PEER,
                                  "cuda: NCCL: %s: rank %d of %d has waited %.0f s for the others", what,
                                  c->rank, c->size, c->timeout_s);
        if (looks > 1000) nanosleep(&nap, NULL);
    }
    return r == ncclSuccess ? NEB_OK : failed(c, r, what);
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

static neb_status make_marks(struct comm *c)
{
    void *there;
    const size_t bytes = LANES * 2 * sizeof(uint64_t);
    CUDA_TRY(c->dev, cudaHostAlloc((void **)&c->marks, bytes, cudaHostAllocMapped));
    for (int i = 0; i < LANES * 2; i++) c->marks[i] = 0;
    CUDA_TRY(c->dev, cudaHostGetDevicePointer(&there, (void *)c->marks, 0));
    c->marks_there = (uint64_t *)there;
    NEB_TRY(neb__cuda_alloc(c->dev, bytes, (void **)&c->counts));
    CUDA_TRY(c->dev, cudaMemsetAsync(c->counts, 0, bytes, c->dev->stream));
    return NEB_OK;
}

static neb_status join(struct comm *c, const struct neb_comm_place *place)
{
    ncclUniqueId id;
    ncclConfig_t config = {sizeof config, 0xcafebeef, 21800, 0, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN};
    memcpy(&id, place->id.bytes, sizeof id);
    ncclResult_t r = c->api->ncclCommInitRankConfig(&c->nccl, c->size, id, c->rank, &config);
    return over(c, r, "joining the ranks' GPUs");
}

neb_status neb__cuda_comm_open(void *ctx, const struct neb_comm_place *place, void **out)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    const struct neb_nccl_api *api;
    NEB_TRY(neb__nccl_load(dev, &api));
    struct comm *c = (struct comm *)calloc(1, sizeof *c);
    if (!c) return neb__cuda_fail(dev, NEB_ERR_NOMEM, "cuda: out of memory for a communicator");
    c->dev = dev, c->api = api, c->rank = place->rank, c->size = place->size, c->timeout_s = place->timeout_s;
    pthread_mutex_init(&c->lock, NULL);
    neb_status s = make_marks(c);
    if (s == NEB_OK) s = join(c, place);
    if (s != NEB_OK) {
        neb__cuda_comm_abort(dev, c);
        neb__cuda_comm_close(dev, c);
        return s;
    }
    *out = c;
    return NEB_OK;
}

void neb__cuda_comm_abort(void *ctx, void *comm)
{
    struct comm *c = (struct comm *)comm;
    (void)ctx;
    pthread_mutex_lock(&c->lock);
    ncclComm_t nccl = c->nccl;
    c->nccl = NULL;
    pthread_mutex_unlock(&c->lock);
    if (nccl) c->api->ncclCommAbort(nccl);
}

static cudaError_t busy(const struct comm *c)
{
    cudaError_t e = cudaStreamQuery(c->dev->stream);
    return e == cudaSuccess && c->side ? cudaStreamQuery(c->side) : e;
}

/* The streams have nothing left to do. Nobody watches any more: an exchange to which a rank will not come ends by the time. */
static int idle(const struct comm *c)
{
    double since = now_s();
    cudaError_t e;
    while ((e = busy(c)) == cudaErrorNotReady && now_s() - since <= c->timeout_s) {
        struct timespec nap = {0, 200000};
        nanosleep(&nap, NULL);
    }
    cudaGetLastError(); /* "not ready" is none */
    return e == cudaSuccess;
}

/* The device's list of lanes for which the compute stream does not wait yet. */
static void forget(struct comm *c)
{
    struct comm **at = &c->dev->forked;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    c->forked = 0;
}

static void close_lane(struct comm *c)
{
    forget(c);
    if (c->reached) cudaEventDestroy(c->reached);
    if (c->done) cudaEventDestroy(c->done);
    if (c->side) cudaStreamDestroy(c->side);
}

void neb__cuda_comm_close(void *ctx, void *comm)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    struct comm *c = (struct comm *)comm;
    if (!c) return;
    if (c->nccl) {
        /* finalizing is collective: where it does not end in time, somebody has gone already */
        if (idle(c) && over(c, c->api->ncclCommFinalize(c->nccl), "closing") == NEB_OK)
            c->api->ncclCommDestroy(c->nccl);
        else
            c->api->ncclCommAbort(c->nccl);
    }
    close_lane(c);
    neb__cuda_free(dev, c->counts);
    if (c->marks) cudaFreeHost((void *)c->marks);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

neb_status neb__cuda_comm_state(void *ctx, void *comm, struct neb_comm_state *out)
{
    struct comm *c = (struct comm *)comm;
    ncclResult_t r = ncclSuccess;
    (void)ctx;
    memset(out, 0, sizeof *out);
    for (int lane = 0; lane < LANES; lane++) out->ended += c->marks[2 * lane + 1];
    for (int lane = 0; lane < LANES; lane++) /* after the ends: so they are never ahead of the beginnings */
        out->begun += c->marks[2 * lane];
    if (pthread_mutex_trylock(&c->lock)) return NEB_OK; /* an exchange is being enqueued */
    if (!c->nccl)
        out->status = NEB_ERR_PEER, snprintf(out->why, sizeof out->why, "aborted");
    else if (c->api->ncclCommGetAsyncError(c->nccl, &r) != ncclSuccess ||
             (r != ncclSuccess && r != ncclInProgress)) {
        out->status = NEB_ERR_PEER;
        snprintf(out->why, sizeof out->why, "NCCL: %s", c->api->ncclGetErrorString(r));
    }
    pthread_mutex_unlock(&c->lock);
    return NEB_OK;
}

/* ---- exchanges --------------------------------------------------------------------------------------------- */

static __global__ void count_kernel(uint64_t *count, volatile uint64_t *mark)
{
    *mark = ++*count;
    __threadfence_system();
}

static cudaStream_t stream_of(const struct comm *c, int lane)
{
    return lane == BESIDE ? c->side : c->dev->stream;
}

/* which: 0 begun, 1 ended */
static neb_status count(struct comm *c, int lane, int which)
{
    const int at = 2 * lane + which;
    count_kernel<<<1, 1, 0, stream_of(c, lane)>>>(c->counts + at, c->marks_there + at);
    CUDA_LAUNCHED(c->dev, "counting an exchange");
    return NEB_OK;
}

static int type_of(neb_dtype t)
{
    if (t == NEB_F32) return ncclFloat32;
    if (t == NEB_BF16) return ncclBfloat16;
    return t == NEB_I32 ? ncclInt32 : ncclInt8;
}

/* The ranks' ranges are equally long and fill the array: one call does it. Else it takes one for each rank. */
static int regular(const struct comm *c, const int64_t *edge)
{
    for (int r = 0; r < c->size; r++)
        if (edge[r + 1] - edge[r] != edge[1] - edge[0]) return 0;
    return edge[0] == 0 && edge[1] > 0;
}

static ncclResult_t scatter(struct comm *c, const struct neb_comm_exchange *x, cudaStream_t s)
{
    const struct neb_nccl_api *a = c->api;
    const size_t w = neb__type_size(x->type);
    char *v = (char *)x->values, *own = v + x->edge[c->rank] * w;
    if (regular(c, x->edge))
        return a->ncclReduceScatter(v, own, (size_t)x->edge[1], type_of(x->type), ncclSum, c->nccl, s);
    ncclResult_t worst = a->ncclGroupStart();
    for (int r = 0; r < c->size; r++) {
        char *at = v + x->edge[r] * w;
        size_t n = (size_t)(x->edge[r + 1] - x->edge[r]);
        ncclResult_t e = n ? a->ncclReduce(at, at, n, type_of(x->type), ncclSum, r, c->nccl, s) : ncclSuccess;
        if (worst == ncclSuccess && e != ncclInProgress) worst = e;
    }
    ncclResult_t e = a->ncclGroupEnd();
    return worst == ncclSuccess ? e : worst;
}

static ncclResult_t gather(struct comm *c, const struct neb_comm_exchange *x, cudaStream_t s)
{
    const struct neb_nccl_api *a = c->api;
    const size_t w = neb__type_size(x->type);
    char *v = (char *)x->values, *own = v + x->edge[c->rank] * w;
    if (regular(c, x->edge))
        return a->ncclAllGather(own, v, (size_t)x->edge[1], type_of(x->type), c->nccl, s);
    ncclResult_t worst = a->ncclGroupStart();
    for (int r = 0; r < c->size; r++) {
        char *at = v + x->edge[r] * w;
        size_t n = (size_t)(x->edge[r + 1] - x->edge[r]);
        ncclResult_t e = n ? a->ncclBroadcast(at, at, n, type_of(x->type), r, c->nccl, s) : ncclSuccess;
        if (worst == ncclSuccess && e != ncclInProgress) worst = e;
    }
    ncclResult_t e = a->ncclGroupEnd();
    return worst == ncclSuccess ? e : worst;
}

static ncclResult_t enqueue(struct comm *c, const struct neb_comm_exchange *x, cudaStream_t s)
{
    const struct neb_nccl_api *a = c->api;
    const int type = type_of(x->type);
    const size_t n = (size_t)x->n;
    switch (x->op) {
    case NEB_EXCHANGE_SUM: return a->ncclAllReduce(x->values, x->values, n, type, ncclSum, c->nccl, s);
    case NEB_EXCHANGE_SUM_SCATTER: return scatter(c, x, s);
    case NEB_EXCHANGE_GATHER: return gather(c, x, s);
    case NEB_EXCHANGE_BROADCAST: return a->ncclBroadcast(x->values, x->values, n, type, x->peer, c->nccl, s);
    case NEB_EXCHANGE_SEND: return a->ncclSend(x->values, n, type, x->peer, c->nccl, s);
    case NEB_EXCHANGE_RECEIVE: return a->ncclRecv(x->values, n, type, x->peer, c->nccl, s);
    }
    return ncclInvalidUsage;
}

static neb_status exchange_in(struct comm *c, int lane, const struct neb_comm_exchange *x)
{
    pthread_mutex_lock(&c->lock);
    neb_status s =
        c->nccl ? count(c, lane, 0)
                : neb__cuda_fail(c->dev, NEB_ERR_PEER, "cuda: the exchange with the other ranks was ended");
    if (s == NEB_OK) s = over(c, enqueue(c, x, stream_of(c, lane)), "an exchange");
    if (s == NEB_OK) s = count(c, lane, 1);
    pthread_mutex_unlock(&c->lock);
    return s;
}

neb_status neb__cuda_exchange(void *ctx, void *comm, const struct neb_comm_exchange *x)
{
    (void)ctx;
    return x->n > 0 ? exchange_in((struct comm *)comm, COMPUTE, x) : NEB_OK;
}

/* ---- beside the compute stream ----------------------------------------------------------------------------- */

static neb_status make_lane(struct comm *c)
{
    int least, greatest;
    if (c->side) return NEB_OK;
    CUDA_TRY(c->dev, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    if (!c->reached) CUDA_TRY(c->dev, cudaEventCreateWithFlags(&c->reached, cudaEventDisableTiming));
    if (!c->done) CUDA_TRY(c->dev, cudaEventCreateWithFlags(&c->done, cudaEventDisableTiming));
    CUDA_TRY(c->dev, cudaStreamCreateWithPriority(&c->side, cudaStreamNonBlocking, greatest));
    return NEB_OK;
}

neb_status neb__cuda_exchange_beside(void *ctx, void *comm, const struct neb_comm_exchange *x)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    struct comm *c = (struct comm *)comm;
    if (x->n <= 0) return NEB_OK;
    NEB_TRY(make_lane(c));
    CUDA_TRY(dev, cudaEventRecord(c->reached, dev->stream));
    CUDA_TRY(dev, cudaStreamWaitEvent(c->side, c->reached, 0));
    if (!c->forked) {
        c->forked = 1;
        c->next = dev->forked;
        dev->forked = c;
    }
    dev->recorded_lanes |= dev->capturing;
    return exchange_in(c, BESIDE, x);
}

neb_status neb__cuda_exchange_join(void *ctx, void *comm)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    struct comm *c = (struct comm *)comm;
    if (!c->forked) return NEB_OK;
    forget(c);
    CUDA_TRY(dev, cudaEventRecord(c->done, c->side));
    CUDA_TRY(dev, cudaStreamWaitEvent(dev->stream, c->done, 0));
    return NEB_OK;
}

neb_status neb__cuda_join_lanes(struct neb_cuda *dev)
{
    neb_status first = NEB_OK;
    while (dev->forked) {
        neb_status s = neb__cuda_exchange_join(dev, dev->forked);
        if (first == NEB_OK) first = s;
    }
    return first;
}
