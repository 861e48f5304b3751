/* copies.c: moving bytes between host and device.
 *
 * upload() must let the caller reuse its memory at once and must not wait for the device, so the bytes pass through a ring
 * of stages; it waits only for a free stage. Side copies have a queue for each direction. A side copy starts after a
 * marker on the compute queue and runs beside it. A fence is a number: fence f is complete when its event is, or when its
 * slot in the ring of events has been reused (reuse waits for it). */
#include "opencl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct neb_ocl_pinned {
    struct neb_ocl_pinned *next;
    void *p;
    cl_mem mem; /* NULL: plain memory */
};

neb_status neb__ocl_copies_open(struct neb_ocl *dev)
{
    struct neb_ocl_copies *c = &dev->copies;
    c->stage = aligned_alloc(4096, (size_t)NEB_OCL_STAGES * NEB_OCL_STAGE_BYTES);
    if (!c->stage)
        return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory for the stages of uploads");
    for (int i = 0; i < 2; i++) {
        cl_int e = CL_SUCCESS;
        c->side[i] = clCreateCommandQueue(dev->context, dev->id, 0, &e);
        if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "clCreateCommandQueue");
    }
    return NEB_OK;
}

void neb__ocl_copies_close(struct neb_ocl *dev)
{
    struct neb_ocl_copies *c = &dev->copies;
    for (int i = 0; i < 2; i++)
        if (c->side[i]) clFinish(c->side[i]);
    for (int i = 0; i < NEB_OCL_STAGES; i++)
        if (c->stage_free[i]) clReleaseEvent(c->stage_free[i]);
    for (int i = 0; i < NEB_OCL_FENCES; i++)
        if (c->fence[i]) clReleaseEvent(c->fence[i]);
    while (c->pinned) neb__ocl_host_free(dev, c->pinned->p);
    for (int i = 0; i < 2; i++)
        if (c->side[i]) clReleaseCommandQueue(c->side[i]);
    free(c->stage);
    memset(c, 0, sizeof *c);
}

/* Drivers of GPUs pin the memory behind such a buffer, and copies from and to it run at the bus's speed. */
static void *map_pinned(struct neb_ocl *dev, size_t bytes, cl_mem *mem)
{
    cl_int e = CL_SUCCESS;
    *mem = clCreateBuffer(dev->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, NULL, &e);
    if (e != CL_SUCCESS) return *mem = NULL, NULL;
    void *p = clEnqueueMapBuffer(dev->copies.side[0], *mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0,
                                 NULL, NULL, &e);
    if (e == CL_SUCCESS) return p;
    clReleaseMemObject(*mem);
    return *mem = NULL, NULL;
}

neb_status neb__ocl_host_alloc(void *ctx, size_t bytes, void **out)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    struct neb_ocl_pinned *a = bytes <= SIZE_MAX - 4096 ? calloc(1, sizeof *a) : NULL;
    size_t whole = (bytes + 4095) / 4096 * 4096;
    if (!whole) whole = 4096;
    if (a && !dev->cpu) a->p = map_pinned(dev, whole, &a->mem);
    if (a && !a->p) a->p = aligned_alloc(4096, whole);
    if (!a || !a->p) {
        free(a);
        return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: cannot allocate %zu bytes of host memory", bytes);
    }
    pthread_mutex_lock(&dev->lock);
    a->next = dev->copies.pinned;
    dev->copies.pinned = a;
    pthread_mutex_unlock(&dev->lock);
    *out = a->p;
    return NEB_OK;
}

void neb__ocl_host_free(void *ctx, void *p)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if (!p) return;
    pthread_mutex_lock(&dev->lock);
    struct neb_ocl_pinned **at = &dev->copies.pinned;
    while (*at && (*at)->p != p) at = &(*at)->next;
    struct neb_ocl_pinned *a = *at;
    if (a) *at = a->next;
    pthread_mutex_unlock(&dev->lock);
    if (!a) return;
    if (a->mem) {
        clEnqueueUnmapMemObject(dev->copies.side[0], a->mem, p, 0, NULL, NULL);
        clFinish(dev->copies.side[0]);
        clReleaseMemObject(a->mem);
    } else {
        free(p);
    }
    free(a);
}

static neb_status upload_locked(struct neb_ocl *dev, cl_mem mem, size_t at, const char *src, size_t bytes)
{
    struct neb_ocl_copies *c = &dev->copies;
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < NEB_OCL_STAGE_BYTES ? bytes - done : NEB_OCL_STAGE_BYTES;
        unsigned i = c->next_stage++ % NEB_OCL_STAGES;
        char *stage = c->stage + (size_t)i * NEB_OCL_STAGE_BYTES;
        cl_int e = CL_SUCCESS;
        if (c->stage_free[i]) {
            clFlush(dev->queue);
            e = clWaitForEvents(1, &c->stage_free[i]);
            clReleaseEvent(c->stage_free[i]);
            c->stage_free[i] = NULL;
            if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "upload");
        }
        memcpy(stage, src + done, n);
        e = clEnqueueWriteBuffer(dev->queue, mem, CL_FALSE, at + done, n, stage, 0, NULL, &c->stage_free[i]);
        if (e != CL_SUCCESS) {
            c->stage_free[i] = NULL;
            return neb__ocl_error(dev, e, "upload");
        }
        done += n;
    }
    clFlush(dev->queue);
    return NEB_OK;
}

neb_status neb__ocl_upload(void *ctx, void *dst, const void *src, size_t bytes)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    cl_mem mem = NULL;
    size_t at = 0;
    if (!bytes) return NEB_OK;
    NEB_TRY(neb__ocl_not_recording(dev, "upload"));
    pthread_mutex_lock(&dev->lock);
    neb_status s = neb__ocl_find(dev, dst, bytes, &mem, &at);
    if (s == NEB_OK) s = upload_locked(dev, mem, at, src, bytes);
    pthread_mutex_unlock(&dev->lock);
    return s;
}

neb_status neb__ocl_download(void *ctx, void *dst, const void *src, size_t bytes)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    cl_mem mem = NULL;
    size_t at = 0;
    if (!bytes) return NEB_OK;
    NEB_TRY(neb__ocl_not_recording(dev, "download"));
    pthread_mutex_lock(&dev->lock);
    neb_status s = neb__ocl_find(dev, src, bytes, &mem, &at);
    pthread_mutex_unlock(&dev->lock);
    NEB_TRY(s);
    cl_int e = clEnqueueReadBuffer(dev->queue, mem, CL_TRUE, at, bytes, dst, 0, NULL, NULL);
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "download");
}

static neb_status copy_locked(struct neb_ocl *dev, void *dst, const void *src, size_t bytes)
{
    cl_mem to = NULL, from = NULL;
    size_t at = 0, of = 0;
    NEB_TRY(neb__ocl_find(dev, dst, bytes, &to, &at));
    NEB_TRY(neb__ocl_find(dev, src, bytes, &from, &of));
    if (dev->recording) return neb__ocl_record_copy(dev, to, at, from, of, bytes);
    cl_int e = clEnqueueCopyBuffer(dev->queue, from, to, of, at, bytes, 0, NULL, NULL);
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "copy");
}

neb_status neb__ocl_copy(void *ctx, void *dst, const void *src, size_t bytes)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if (!bytes || dst == src) return NEB_OK;
    pthread_mutex_lock(&dev->lock);
    neb_status s = copy_locked(dev, dst, src, bytes);
    pthread_mutex_unlock(&dev->lock);
    return s;
}

static neb_status fill_locked(struct neb_ocl *dev, void *dst, uint8_t byte, size_t bytes)
{
    cl_mem mem = NULL;
    size_t at = 0;
    NEB_TRY(neb__ocl_find(dev, dst, bytes, &mem, &at));
    if (dev->recording) return neb__ocl_record_fill(dev, mem, at, byte, bytes);
    cl_int e = clEnqueueFillBuffer(dev->queue, mem, &byte, 1, at, bytes, 0, NULL, NULL);
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "fill");
}

neb_status neb__ocl_fill(void *ctx, void *dst, uint8_t byte, size_t bytes)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if (!bytes) return NEB_OK;
    pthread_mutex_lock(&dev->lock);
    neb_status s = fill_locked(dev, dst, byte, bytes);
    pthread_mutex_unlock(&dev->lock);
    return s;
}

neb_status neb__ocl_sync(void *ctx)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_not_recording(dev, "sync"));
    cl_int e = clFinish(dev->queue);
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "sync");
}

/* ---- the side queues ---- */

static neb_status free_slot(struct neb_ocl *dev, cl_event *slot)
{
    if (!*slot) return NEB_OK;
    cl_int e = clWaitForEvents(1, slot);
    clReleaseEvent(*slot);
    *slot = NULL;
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "side copy");
}

/* `place` is device memory. */
static neb_status side_locked(struct neb_ocl *dev, void *host, const void *place, size_t bytes, bool down,
                              uint64_t *fence)
{
    struct neb_ocl_copies *c = &dev->copies;
    cl_command_queue side = c->side[!down];
    cl_event reached, *slot = &c->fence[(c->issued + 1) % NEB_OCL_FENCES];
    cl_mem mem = NULL;
    size_t at = 0;
    if (bytes) NEB_TRY(neb__ocl_find(dev, place, bytes, &mem, &at));
    NEB_TRY(free_slot(dev, slot));
    cl_int e = clEnqueueMarkerWithWaitList(dev->queue, 0, NULL, &reached);
    if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "side copy");
    clFlush(dev->queue);
    if (!bytes)
        e = clEnqueueMarkerWithWaitList(side, 1, &reached, slot);
    else if (down)
        e = clEnqueueReadBuffer(side, mem, CL_FALSE, at, bytes, host, 1, &reached, slot);
    else
        e = clEnqueueWriteBuffer(side, mem, CL_FALSE, at, bytes, host, 1, &reached, slot);
    clReleaseEvent(reached);
    if (e != CL_SUCCESS) {
        *slot = NULL;
        return neb__ocl_error(dev, e, "side copy");
    }
    clFlush(side);
    *fence = ++c->issued;
    return NEB_OK;
}

static neb_status side(void *ctx, void *host, const void *place, size_t bytes, bool down, uint64_t *fence)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_not_recording(dev, "a side copy"));
    pthread_mutex_lock(&dev->lock);
    neb_status s = side_locked(dev, host, place, bytes, down, fence);
    pthread_mutex_unlock(&dev->lock);
    return s;
}

neb_status neb__ocl_side_download(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    return side(ctx, dst, src, bytes, true, fence);
}

neb_status neb__ocl_side_upload(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    return side(ctx, (void *)(uintptr_t)src, dst, bytes, false, fence);
}

/* *event: the fence's event, retained, or NULL when the fence is known to be complete. */
static neb_status fence_event(struct neb_ocl *dev, uint64_t fence, cl_event *event)
{
    struct neb_ocl_copies *c = &dev->copies;
    pthread_mutex_lock(&dev->lock);
    bool known = fence > 0 && fence <= c->issued;
    *event = known && c->issued - fence < NEB_OCL_FENCES ? c->fence[fence % NEB_OCL_FENCES] : NULL;
    if (*event) clRetainEvent(*event);
    pthread_mutex_unlock(&dev->lock);
    if (known) return NEB_OK;
    return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: fence %llu was never given out",
                         (unsigned long long)fence);
}

neb_status neb__ocl_fence_done(void *ctx, uint64_t fence, int *done)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    cl_event event;
    cl_int state = CL_COMPLETE;
    NEB_TRY(fence_event(dev, fence, &event));
    if (event) {
        cl_int e = clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
        clReleaseEvent(event);
        if (e == CL_SUCCESS && state < 0) e = state;
        if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "side copy");
    }
    *done = state == CL_COMPLETE;
    return NEB_OK;
}

neb_status neb__ocl_fence_wait(void *ctx, uint64_t fence)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    cl_event event;
    NEB_TRY(fence_event(dev, fence, &event));
    if (!event) return NEB_OK;
    cl_int e = clWaitForEvents(1, &event);
    clReleaseEvent(event);
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "side copy");
}

neb_status neb__ocl_fence_join(void *ctx, uint64_t fence)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    cl_event event;
    NEB_TRY(neb__ocl_not_recording(dev, "fence_join"));
    NEB_TRY(fence_event(dev, fence, &event));
    if (!event) return NEB_OK;
    cl_int e = clEnqueueBarrierWithWaitList(dev->queue, 1, &event, NULL);
    clReleaseEvent(event);
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "fence_join");
}
