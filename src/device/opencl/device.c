/* device.c: opening and closing an OpenCL device, its errors, and the table the program sees.
 *
 * When a part of open() fails, the parts before it are undone in reverse order. Every slot that computes takes the
 * device's lock for its whole length: its launches share work memory, and the queue runs them in the order in which they
 * were enqueued. */
#include "opencl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

neb_status neb__ocl_fail(const struct neb_ocl *dev, neb_status s, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return dev->host.fail ? dev->host.fail(s, text) : s;
}

void neb__ocl_log(const struct neb_ocl *dev, int level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (dev->host.log) dev->host.log(level, text);
}

const char *neb__ocl_error_name(cl_int e)
{
#define NAME(x) \
    case x: return #x
    switch (e) {
        NAME(CL_DEVICE_NOT_AVAILABLE);
        NAME(CL_COMPILER_NOT_AVAILABLE);
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE);
        NAME(CL_OUT_OF_RESOURCES);
        NAME(CL_OUT_OF_HOST_MEMORY);
        NAME(CL_MEM_COPY_OVERLAP);
        NAME(CL_BUILD_PROGRAM_FAILURE);
        NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        NAME(CL_INVALID_VALUE);
        NAME(CL_INVALID_BINARY);
        NAME(CL_INVALID_BUILD_OPTIONS);
        NAME(CL_INVALID_KERNEL_NAME);
        NAME(CL_INVALID_ARG_INDEX);
        NAME(CL_INVALID_ARG_VALUE);
        NAME(CL_INVALID_ARG_SIZE);
        NAME(CL_INVALID_KERNEL_ARGS);
        NAME(CL_INVALID_WORK_GROUP_SIZE);
        NAME(CL_INVALID_GLOBAL_WORK_SIZE);
        NAME(CL_INVALID_BUFFER_SIZE);
    default: return "an error of the driver";
    }
#undef NAME
}

neb_status neb__ocl_error(const struct neb_ocl *dev, cl_int e, const char *what)
{
    const bool memory =
        e == CL_MEM_OBJECT_ALLOCATION_FAILURE || e == CL_OUT_OF_RESOURCES || e == CL_OUT_OF_HOST_MEMORY;
    return neb__ocl_fail(dev, memory ? NEB_ERR_NOMEM : NEB_ERR_DEVICE, "opencl %d: %s: %s (%d)",
                         dev->config.index, what, neb__ocl_error_name(e), (int)e);
}

neb_status neb__ocl_type(const struct neb_ocl *dev, const char *op, neb_dtype type)
{
    if (type == NEB_F32 || type == NEB_BF16) return NEB_OK;
    return neb__ocl_fail(dev, NEB_ERR_DTYPE, "opencl: %s: values are F32 or BF16, not type %d", op,
                         (int)type);
}

static neb_status open_parts(struct neb_ocl *dev)
{
    cl_int e = CL_SUCCESS;
    NEB_TRY(neb__ocl_choose(dev));
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)dev->platform, 0};
    dev->context = clCreateContext(properties, 1, &dev->id, NULL, NULL, &e);
    if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "clCreateContext");
    dev->queue = clCreateCommandQueue(dev->context, dev->id, 0, &e);
    if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "clCreateCommandQueue");
    snprintf(dev->kernels.key, sizeof dev->kernels.key, "%s\n%s\n%s\n%s\n%u units", dev->platform_name,
             dev->name, dev->version, dev->driver, dev->units);
    neb__ocl_cache_open(dev);
    NEB_TRY(neb__ocl_memory_open(dev));
    return neb__ocl_copies_open(dev);
}

/* Also called after a part of open failed: parts that were not made are NULL or 0. */
static void device_close(void *ctx)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if (!dev) return;
    if (dev->queue) clFinish(dev->queue);
    neb__ocl_record_drop(dev);
    neb__ocl_copies_close(dev);
    neb__ocl_rope_close(dev);
    neb__ocl_kernels_close(dev);
    neb__ocl_memory_close(dev);
    if (dev->queue) clReleaseCommandQueue(dev->queue);
    if (dev->context) clReleaseContext(dev->context);
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

static neb_status device_open(const struct neb_device_config *config, void **out)
{
    struct neb_ocl *dev = calloc(1, sizeof *dev);
    if (!dev) return NEB_ERR_NOMEM;
    dev->config = *config;
    dev->config.isa = NULL;
    if (config->host) dev->host = *config->host;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&dev->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    neb_status s = NEB_OK;
    if (config->compute != NEB_F32 && config->compute != NEB_BF16)
        s = neb__ocl_fail(dev, NEB_ERR_DTYPE, "opencl: activations are F32 or BF16, not type %d",
                          (int)config->compute);
    if (s == NEB_OK) s = open_parts(dev);
    if (s != NEB_OK) {
        device_close(dev);
        return s;
    }
    *out = dev;
    return NEB_OK;
}

static void device_info(void *ctx, struct neb_device_info *out)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    memset(out, 0, sizeof *out);
    snprintf(out->description, sizeof out->description, "%.60s (%.30s), %u units, %s", dev->name,
             dev->platform_name, dev->units, dev->config.compute == NEB_BF16 ? "bf16 in memory" : "f32");
    pthread_mutex_lock(&dev->lock);
    out->memory_total = (int64_t)dev->memory.limit;
    out->memory_used = (int64_t)dev->memory.used;
    out->memory_peak = (int64_t)dev->memory.peak;
    pthread_mutex_unlock(&dev->lock);
    out->asynchronous = 1;
}

int64_t neb__ocl_scratch_bytes(void *ctx, enum neb_slot slot, const void *args)
{
    (void)ctx;
    if (slot == NEB_SLOT_ATTN_BWD) { /* the sums delta */
        const struct neb_attn_bwd *a = args;
        return a->f.heads * a->f.q_rows * 4;
    }
    if (slot == NEB_SLOT_LINEAR_BWD) { /* dx, where only its column sums are wanted */
        const struct neb_linear_bwd *a = args;
        return !a->dx && a->dx_colsum ? a->rows * a->lddx * (int64_t)neb__ocl_size(a->type) : 0;
    }
    if (slot == NEB_SLOT_LINEAR_XENT) {
        const struct neb_linear_xent *a = args;
        return neb__ocl_xent_rows(a) * a->classes * 4;
    }
    return 0;
}

#define LOCKED(slot, type)                                       \
    static neb_status do_##slot(void *ctx, const struct type *a) \
    {                                                            \
        struct neb_ocl *dev = neb__ocl(ctx);                     \
        pthread_mutex_lock(&dev->lock);                          \
        neb_status s = neb__ocl_##slot(ctx, a);                  \
        pthread_mutex_unlock(&dev->lock);                        \
        return s;                                                \
    }
NEB_OCL_SLOTS(LOCKED)

static const struct neb_device_ops table = {
    .abi = NEB_DEVICE_ABI,
    .size = sizeof(struct neb_device_ops),
    .name = "opencl",
    .open = device_open,
    .close = device_close,
    .info = device_info,
    .alloc = neb__ocl_alloc,
    .free = neb__ocl_free,
    .host_alloc = neb__ocl_host_alloc,
    .host_free = neb__ocl_host_free,
    .upload = neb__ocl_upload,
    .download = neb__ocl_download,
    .copy = neb__ocl_copy,
    .fill = neb__ocl_fill,
    .sync = neb__ocl_sync,
    .side_download = neb__ocl_side_download,
    .side_upload = neb__ocl_side_upload,
    .fence_done = neb__ocl_fence_done,
    .fence_wait = neb__ocl_fence_wait,
    .fence_join = neb__ocl_fence_join,
    .graph_begin = neb__ocl_graph_begin,
    .graph_end = neb__ocl_graph_end,
    .graph_launch = neb__ocl_graph_launch,
    .graph_free = neb__ocl_graph_free,
    .scratch_bytes = neb__ocl_scratch_bytes,
#define ENTRY(slot, type) .slot = do_##slot,
    NEB_OCL_SLOTS(ENTRY)
#undef ENTRY
        .norm_residual = do_norm,
    .norm_residual_bwd = do_norm_bwd,
    .probe = neb__ocl_probe,
};

NEB_API const struct neb_device_ops *neb_device_plugin(uint32_t abi);
const struct neb_device_ops *neb_device_plugin(uint32_t abi)
{
    return abi == NEB_DEVICE_ABI ? &table : NULL;
}
