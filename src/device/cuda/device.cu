/* device.cu: opening and closing a CUDA device, its errors, and the table the program sees.
 *
 * Opening needs a driver, a GPU of compute capability 8.0 or newer and cuBLASLt of CUDA 13. If one is
 * missing, open() returns a status with a message and never aborts. When a part of open() fails, the parts
 * before it are undone in reverse order. */
#include "cuda.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

neb_status neb__cuda_fail(const struct neb_cuda *dev, neb_status s, const char *fmt, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return dev->host.fail ? dev->host.fail(s, text) : s;
}

void neb__cuda_log(const struct neb_cuda *dev, int level, const char *fmt, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (dev->host.log) dev->host.log(level, text);
}

neb_status neb__cuda_error(const struct neb_cuda *dev, cudaError_t e, const char *what)
{
    neb_status s = e == cudaErrorMemoryAllocation ? NEB_ERR_NOMEM : NEB_ERR_DEVICE;
    return neb__cuda_fail(dev, s, "cuda %d: %s: %s", dev->index, what, cudaGetErrorString(e));
}

static neb_status choose_gpu(struct neb_cuda *dev)
{
    int count = 0, driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0)
        return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED,
                              "cuda: no NVIDIA driver is installed on this machine");
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0)
        return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED,
                              "cuda: no GPU can be used: %s (driver for CUDA %d.%d)",
                              e ? cudaGetErrorString(e) : "none found", driver / 1000, driver % 1000 / 10);
    if (dev->config.index < 0 || (!dev->config.spread && dev->config.index >= count))
        return neb__cuda_fail(dev, NEB_ERR_NOTFOUND,
                              "cuda: device %d does not exist; this machine has 0 to %d", dev->config.index,
                              count - 1);
    dev->index = dev->config.index % count;
    cudaDeviceProp prop;
    CUDA_TRY(dev, cudaGetDeviceProperties(&prop, dev->index));
    if (prop.major < 8)
        return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED,
                              "cuda: %s has compute capability %d.%d; 8.0 or newer is needed", prop.name,
                              prop.major, prop.minor);
    CUDA_TRY(dev, cudaSetDevice(dev->index));
    snprintf(dev->name, sizeof dev->name, "%.90s", prop.name);
    dev->sms = prop.multiProcessorCount;
    dev->major = prop.major;
    dev->minor = prop.minor;
    dev->memory_total = prop.totalGlobalMem;
    return NEB_OK;
}

static neb_status open_parts(struct neb_cuda *dev)
{
    NEB_TRY(choose_gpu(dev));
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking));
    NEB_TRY(neb__cuda_memory_init(dev));
    NEB_TRY(neb__cuda_copies_init(dev));
    NEB_TRY(neb__cuda_alloc(dev, NEB_CUDA_WORK_BYTES, &dev->work));
    return neb__lt_open(dev);
}

/* Also called after a part of open failed: parts that were not made are NULL or 0. */
static void device_close(void *ctx)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (!dev) return;
    if (dev->stream) cudaStreamSynchronize(dev->stream);
    neb__lt_close(dev);
    neb__cuda_copies_close(dev);
    neb__cuda_memory_close(dev);
    if (dev->stream) cudaStreamDestroy(dev->stream);
    free(dev);
}

static neb_status device_open(const struct neb_device_config *config, void **out)
{
    struct neb_cuda *dev = (struct neb_cuda *)calloc(1, sizeof *dev);
    if (!dev) return NEB_ERR_NOMEM;
    dev->config = *config;
    if (config->host) dev->host = *config->host;
    neb_status s = NEB_OK;
    if (config->compute != NEB_F32 && config->compute != NEB_BF16)
        s = neb__cuda_fail(dev, NEB_ERR_DTYPE, "cuda: activations are F32 or BF16, not type %d",
                           config->compute);
    if (s == NEB_OK) s = open_parts(dev);
    if (s != NEB_OK) {
        device_close(dev);
        return s;
    }
    *out = dev;
    return NEB_OK;
}

static const char *arithmetic(const struct neb_cuda *dev)
{
    if (dev->config.compute == NEB_BF16) return "bf16";
    return dev->config.tf32 ? "tf32" : "f32";
}

static void device_info(void *ctx, struct neb_device_info *out)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    memset(out, 0, sizeof *out);
    snprintf(out->description, sizeof out->description, "%.60s, %d multiprocessors, capability %d.%d, %s",
             dev->name, dev->sms, dev->major, dev->minor, arithmetic(dev));
    pthread_mutex_lock(&dev->memory.lock);
    out->memory_total = (int64_t)dev->memory.limit;
    out->memory_used = (int64_t)dev->memory.used;
    out->memory_peak = (int64_t)dev->memory.peak;
    pthread_mutex_unlock(&dev->memory.lock);
    out->asynchronous = 1;
}

int64_t neb__cuda_scratch_bytes(void *ctx, enum neb_slot slot, const void *args)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    switch (slot) {
    case NEB_SLOT_EMBED_BWD: return neb__embed_bwd_scratch(dev, (const struct neb_embed *)args);
    case NEB_SLOT_NORM_BWD: return neb__norm_bwd_scratch(dev, (const struct neb_norm_bwd *)args);
    case NEB_SLOT_LINEAR_BWD: return neb__linear_bwd_scratch(dev, (const struct neb_linear_bwd *)args);
    case NEB_SLOT_ATTN_BWD: return neb__attn_bwd_scratch(dev, (const struct neb_attn_bwd *)args);
    case NEB_SLOT_LINEAR_XENT: return neb__linear_xent_scratch(dev, (const struct neb_linear_xent *)args);
    case NEB_SLOT_MUON: return neb__muon_scratch(dev, (const struct neb_muon_args *)args);
    case NEB_SLOT_LINEAR:
    case NEB_SLOT_ATTN:
    case NEB_SLOT_ATTN_BIASED:
    case NEB_SLOT_ATTN_BIASED_BWD:
    case NEB_SLOT_SUMSQ: break;
    }
    return 0;
}

static const struct neb_device_ops table = {
    NEB_DEVICE_ABI,
    (uint32_t)sizeof(struct neb_device_ops),
    "cuda",
    device_open,
    device_close,
    device_info,
    neb__cuda_alloc,
    neb__cuda_free,
    neb__cuda_host_alloc,
    neb__cuda_host_free,
    neb__cuda_upload,
    neb__cuda_download,
    neb__cuda_copy,
    neb__cuda_fill,
    neb__cuda_sync,
    neb__cuda_side_download,
    neb__cuda_side_upload,
    neb__cuda_fence_done,
    neb__cuda_fence_wait,
    neb__cuda_fence_join,
    neb__cuda_graph_begin,
    neb__cuda_graph_end,
    neb__cuda_graph_launch,
    neb__cuda_graph_free,
    neb__cuda_scratch_bytes,
    neb__cuda_gemm,
    neb__cuda_copy2d,
    neb__cuda_axpby,
    neb__cuda_mul,
    neb__cuda_act,
    neb__cuda_act_bwd,
    neb__cuda_bias,
    neb__cuda_colsum,
    neb__cuda_swiglu,
    neb__cuda_swiglu_bwd,
    neb__cuda_embed,
    neb__cuda_embed_bwd,
    neb__cuda_gather_rows,
    neb__cuda_scatter_rows,
    neb__cuda_pool,
    neb__cuda_pool_bwd,
    neb__cuda_rope,
    neb__cuda_dropout,
    neb__cuda_attn_softmax,
    neb__cuda_attn_softmax_bwd,
    neb__cuda_attn_dropout,
    neb__cuda_norm,
    neb__cuda_norm_bwd,
    neb__cuda_xent,
    neb__cuda_bce,
    neb__cuda_mse,
    neb__cuda_cosine,
    neb__cuda_sumsq,
    neb__cuda_clip,
    neb__cuda_update,
    neb__cuda_norm,
    neb__cuda_norm_bwd,
    neb__cuda_linear,
    neb__cuda_linear_bwd,
    neb__cuda_attn,
    neb__cuda_attn_bwd,
    neb__cuda_linear_xent,
    neb__cuda_best,
    NULL, /* packed_bytes, pack_linear: cuBLASLt reads the weights as they are */
    NULL,
    neb__cuda_attn_listed,
    neb__cuda_sample,
    neb__cuda_muon,
    neb__cuda_comm_facts,
    neb__cuda_comm_id,
    neb__cuda_comm_open,
    neb__cuda_exchange,
    neb__cuda_comm_state,
    neb__cuda_comm_abort,
    neb__cuda_comm_close,
    NULL, /* probe */
    0,    /* flags */
    neb__cuda_widen,
    NULL, /* linear_narrow and its backward: a weight is widened, then cuBLASLt multiplies */
    NULL,
    neb__cuda_exchange_beside,
    neb__cuda_exchange_join,
    NULL, /* attn_biased and its backward: relative positions are refused here */
    NULL,
};

extern "C" NEB_API const struct neb_device_ops *neb_device_plugin(uint32_t abi)
{
    return abi == NEB_DEVICE_ABI ? &table : NULL;
}
