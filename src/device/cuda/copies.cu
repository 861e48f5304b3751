/* copies.cu: moving bytes between host and device, and recorded graphs.
 *
 * upload() must let the caller reuse its memory at once, so it passes the bytes through a ring of pinned
 * stages. It waits only for a free stage. There are two side streams, one for each direction, because the bus
 * carries both at full speed. A side stream starts a copy when the compute stream has reached the point of the
 * call, and then runs beside it. A fence is a number: fence f is complete when its event is, or when its slot in
 * the ring of events has been reused (reuse waits for it). */
#include "cuda.h"

#include <string.h>

neb_status neb__cuda_copies_init(struct neb_cuda *dev)
{
    struct neb_cuda_copies *c = &dev->copies;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->down_lock, NULL);
    CUDA_TRY(dev, cudaMallocHost((void **)&c->stage, (NEB_CUDA_STAGES + 1) * NEB_CUDA_STAGE_BYTES));
    for (int i = 0; i < 2; i++) CUDA_TRY(dev, cudaStreamCreateWithFlags(&c->side[i], cudaStreamNonBlocking));
    for (int i = 0; i < NEB_CUDA_STAGES; i++)
        CUDA_TRY(dev, cudaEventCreateWithFlags(&c->stage_free[i], cudaEventDisableTiming));
    for (int i = 0; i < NEB_CUDA_FENCES; i++) {
        CUDA_TRY(dev, cudaEventCreateWithFlags(&c->reached[i], cudaEventDisableTiming));
        CUDA_TRY(dev, cudaEventCreateWithFlags(&c->fence[i], cudaEventDisableTiming));
    }
    return NEB_OK;
}

void neb__cuda_copies_close(struct neb_cuda *dev)
{
    struct neb_cuda_copies *c = &dev->copies;
    for (int i = 0; i < 2; i++)
        if (c->side[i]) cudaStreamSynchronize(c->side[i]);
    for (int i = 0; i < NEB_CUDA_STAGES; i++)
        if (c->stage_free[i]) cudaEventDestroy(c->stage_free[i]);
    for (int i = 0; i < NEB_CUDA_FENCES; i++) {
        if (c->reached[i]) cudaEventDestroy(c->reached[i]);
        if (c->fence[i]) cudaEventDestroy(c->fence[i]);
    }
    for (int i = 0; i < 2; i++)
        if (c->side[i]) cudaStreamDestroy(c->side[i]);
    if (c->stage) cudaFreeHost(c->stage);
    memset(c, 0, sizeof *c);
}

static neb_status not_capturing(struct neb_cuda *dev, const char *what)
{
    if (!dev->capturing) return NEB_OK;
    return neb__cuda_fail(dev, NEB_ERR_STATE, "cuda: %s is not possible while a graph is being recorded",
                          what);
}

neb_status neb__cuda_host_alloc(void *ctx, size_t bytes, void **out)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    void *p;
    cudaError_t e = cudaMallocHost(&p, bytes ? bytes : 1);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return neb__cuda_fail(dev, NEB_ERR_NOMEM, "cuda: cannot allocate %zu bytes of pinned host memory: %s",
                              bytes, cudaGetErrorString(e));
    }
    *out = p;
    return NEB_OK;
}

void neb__cuda_host_free(void *ctx, void *p)
{
    (void)ctx;
    if (p) cudaFreeHost(p);
}

neb_status neb__cuda_upload(void *ctx, void *dst, const void *src, size_t bytes)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    struct neb_cuda_copies *c = &dev->copies;
    NEB_TRY(not_capturing(dev, "upload"));
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < NEB_CUDA_STAGE_BYTES ? bytes - done : NEB_CUDA_STAGE_BYTES;
        unsigned i = c->next_stage++ % NEB_CUDA_STAGES;
        char *stage = c->stage + i * NEB_CUDA_STAGE_BYTES;
        CUDA_TRY(dev, cudaEventSynchronize(c->stage_free[i]));
        memcpy(stage, (const char *)src + done, n);
        CUDA_TRY(dev, cudaMemcpyAsync((char *)dst + done, stage, n, cudaMemcpyHostToDevice, dev->stream));
        CUDA_TRY(dev, cudaEventRecord(c->stage_free[i], dev->stream));
        done += n;
    }
    return NEB_OK;
}

/* Small downloads go through pinned memory, because the driver waits twice for pageable memory. */
static neb_status download_staged(struct neb_cuda *dev, void *dst, const void *src, size_t bytes)
{
    char *stage = dev->copies.stage + NEB_CUDA_STAGES * NEB_CUDA_STAGE_BYTES;
    pthread_mutex_lock(&dev->copies.down_lock);
    cudaError_t e = cudaMemcpyAsync(stage, src, bytes, cudaMemcpyDeviceToHost, dev->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(dev->stream);
    if (e == cudaSuccess) memcpy(dst, stage, bytes);
    pthread_mutex_unlock(&dev->copies.down_lock);
    return e == cudaSuccess ? NEB_OK : neb__cuda_error(dev, e, "download");
}

neb_status neb__cuda_download(void *ctx, void *dst, const void *src, size_t bytes)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_TRY(not_capturing(dev, "download"));
    if (bytes <= NEB_CUDA_STAGE_BYTES) return download_staged(dev, dst, src, bytes);
    CUDA_TRY(dev, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, dev->stream));
    CUDA_TRY(dev, cudaStreamSynchronize(dev->stream));
    return NEB_OK;
}

neb_status neb__cuda_copy(void *ctx, void *dst, const void *src, size_t bytes)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (bytes) CUDA_TRY(dev, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, dev->stream));
    return NEB_OK;
}

neb_status neb__cuda_fill(void *ctx, void *dst, uint8_t byte, size_t bytes)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (bytes) CUDA_TRY(dev, cudaMemsetAsync(dst, byte, bytes, dev->stream));
    return NEB_OK;
}

neb_status neb__cuda_sync(void *ctx)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_TRY(not_capturing(dev, "sync"));
    CUDA_TRY(dev, cudaStreamSynchronize(dev->stream));
    return NEB_OK;
}

static neb_status side_copy(struct neb_cuda *dev, void *dst, const void *src, size_t bytes,
                            cudaMemcpyKind kind, uint64_t *fence)
{
    struct neb_cuda_copies *c = &dev->copies;
    cudaStream_t side = c->side[kind == cudaMemcpyHostToDevice];
    uint64_t number = c->issued + 1;
    unsigned slot = number % NEB_CUDA_FENCES;
    if (number > NEB_CUDA_FENCES) CUDA_TRY(dev, cudaEventSynchronize(c->fence[slot]));
    CUDA_TRY(dev, cudaEventRecord(c->reached[slot], dev->stream));
    CUDA_TRY(dev, cudaStreamWaitEvent(side, c->reached[slot], 0));
    if (bytes) CUDA_TRY(dev, cudaMemcpyAsync(dst, src, bytes, kind, side));
    CUDA_TRY(dev, cudaEventRecord(c->fence[slot], side));
    c->issued = number;
    *fence = number;
    return NEB_OK;
}

static neb_status side_copy_locked(void *ctx, void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                                   uint64_t *fence)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_TRY(not_capturing(dev, "side copy"));
    pthread_mutex_lock(&dev->copies.lock);
    neb_status s = side_copy(dev, dst, src, bytes, kind, fence);
    pthread_mutex_unlock(&dev->copies.lock);
    return s;
}

neb_status neb__cuda_side_download(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    return side_copy_locked(ctx, dst, src, bytes, cudaMemcpyDeviceToHost, fence);
}

neb_status neb__cuda_side_upload(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    return side_copy_locked(ctx, dst, src, bytes, cudaMemcpyHostToDevice, fence);
}

/* *event: the fence's event, or NULL when the fence is known to be complete. */
static neb_status fence_event(struct neb_cuda *dev, uint64_t fence, cudaEvent_t *event)
{
    struct neb_cuda_copies *c = &dev->copies;
    pthread_mutex_lock(&c->lock);
    uint64_t issued = c->issued;
    pthread_mutex_unlock(&c->lock);
    if (fence == 0 || fence > issued)
        return neb__cuda_fail(dev, NEB_ERR_INVALID, "cuda: fence %llu was never given out",
                              (unsigned long long)fence);
    *event = issued - fence >= NEB_CUDA_FENCES ? NULL : c->fence[fence % NEB_CUDA_FENCES];
    return NEB_OK;
}

neb_status neb__cuda_fence_done(void *ctx, uint64_t fence, int *done)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    cudaEvent_t event;
    NEB_TRY(fence_event(dev, fence, &event));
    cudaError_t e = event ? cudaEventQuery(event) : cudaSuccess;
    if (e != cudaSuccess && e != cudaErrorNotReady) return neb__cuda_error(dev, e, "side copy");
    *done = e == cudaSuccess;
    return NEB_OK;
}

neb_status neb__cuda_fence_wait(void *ctx, uint64_t fence)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    cudaEvent_t event;
    NEB_TRY(fence_event(dev, fence, &event));
    if (event) CUDA_TRY(dev, cudaEventSynchronize(event));
    return NEB_OK;
}

neb_status neb__cuda_fence_join(void *ctx, uint64_t fence)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    cudaEvent_t event;
    NEB_TRY(not_capturing(dev, "fence_join"));
    NEB_TRY(fence_event(dev, fence, &event));
    if (event) CUDA_TRY(dev, cudaStreamWaitEvent(dev->stream, event, 0));
    return NEB_OK;
}

/* ---- graphs ---- */

neb_status neb__cuda_graph_begin(void *ctx)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    NEB_TRY(not_capturing(dev, "graph_begin"));
    NEB_TRY(neb__cuda_join_lanes(dev)); /* a recording cannot wait for what came before it */
    CUDA_TRY(dev, cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeRelaxed));
    dev->capturing = 1;
    dev->recorded_lanes = 0;
    return NEB_OK;
}

neb_status neb__cuda_graph_end(void *ctx, void **graph)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t exec = NULL;
    if (!dev->capturing) return neb__cuda_fail(dev, NEB_ERR_STATE, "cuda: graph_end without graph_begin");
    neb_status joined = neb__cuda_join_lanes(dev); /* a recording has no loose ends */
    dev->capturing = 0;
    cudaError_t e = cudaStreamEndCapture(dev->stream, &recorded);
    if (joined != NEB_OK && e == cudaSuccess) cudaGraphDestroy(recorded);
    NEB_TRY(joined);
    if (e != cudaSuccess) return neb__cuda_error(dev, e, "cudaStreamEndCapture");
    /* else all kernels would have the priority of the stream in which the recording is launched */
    const unsigned long long flags = dev->recorded_lanes ? cudaGraphInstantiateFlagUseNodePriority : 0;
    e = cudaGraphInstantiate(&exec, recorded, flags);
    cudaGraphDestroy(recorded);
    if (e != cudaSuccess) return neb__cuda_error(dev, e, "cudaGraphInstantiate");
    *graph = exec;
    return NEB_OK;
}

neb_status neb__cuda_graph_launch(void *ctx, void *graph)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    CUDA_TRY(dev, cudaGraphLaunch((cudaGraphExec_t)graph, dev->stream));
    return NEB_OK;
}

void neb__cuda_graph_free(void *ctx, void *graph)
{
    (void)ctx;
    if (graph) cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
