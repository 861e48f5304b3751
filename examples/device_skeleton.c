/* device_skeleton.c: a device plug-in with the least possible number of slots: ten.
 *
 *     cc -shared -fPIC -Iinclude -o libnebula-i-skeleton.so examples/device_skeleton.c
 *     NEBULA_PLUGIN_PATH=. nebula-i device test --device skeleton
 *     NEBULA_PLUGIN_PATH=. nebula-i train job.yaml train.device=skeleton train.fallback=yes
 *
 * It has memory and copies, nothing else. Its flags say that it is in the making, so the program computes every primitive
 * on the host and composes the fused ops of primitives. That is slow and right: the conformance suite passes. From here a
 * device grows slot by slot, and docs/device.md has an order of work.
 *
 * The memory here is the host's, so that the file runs everywhere. A device of your own replaces the bodies between the
 * lines marked >>> and <<<; nothing else of the program needs to change. A pointer that alloc() returns may be any
 * address, as long as the program can add to it: it cuts one allocation into many tensors, and hands pointers into the
 * middle to the slots. Where the driver knows handles and no addresses, src/device/opencl/memory.c shows a way. */
#include <nebula/device.h>
#include <nebula/status.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct skeleton {
    struct neb_device_host host; /* how messages reach the program */
    int64_t limit, used, peak;   /* memory, in bytes */
};

/* Each allocation has its size before it. The alignment of 256 bytes is a part of the contract. */
enum { ALIGN = 256 };

static neb_status fail(const struct skeleton *d, neb_status status, const char *message)
{
    return d->host.fail ? d->host.fail(status, message) : status;
}

static neb_status skeleton_open(const struct neb_device_config *config, void **dev)
{
    struct skeleton *d = calloc(1, sizeof *d);
    if (!d) return NEB_ERR_NOMEM;
    if (config->host) d->host = *config->host;
    d->limit = config->memory_limit > 0 ? config->memory_limit : (int64_t)1 << 40;
    if (config->index != 0) {
        fail(d, NEB_ERR_NOTFOUND, "skeleton: there is one device, number 0");
        free(d);
        return NEB_ERR_NOTFOUND;
    }
    /* >>> open the driver, make a queue <<< */
    *dev = d;
    return NEB_OK;
}

static void skeleton_close(void *dev)
{
    /* >>> wait for the queue, close the driver <<< */
    free(dev);
}

static void skeleton_info(void *dev, struct neb_device_info *out)
{
    const struct skeleton *d = dev;
    memset(out, 0, sizeof *out);
    snprintf(out->description, sizeof out->description, "skeleton of a device, in the host's memory");
    out->memory_total = d->limit, out->memory_used = d->used, out->memory_peak = d->peak;
    out->asynchronous = 0; /* 1: calls return before the work is done */
}

static neb_status skeleton_alloc(void *dev, size_t bytes, void **out)
{
    struct skeleton *d = dev;
    size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN + ALIGN;
    char text[160];
    /* >>> */
    char *p = whole > bytes && d->used + (int64_t)whole <= d->limit ? aligned_alloc(ALIGN, whole) : NULL;
    /* <<< */
    if (!p) {
        snprintf(text, sizeof text, "skeleton: %zu bytes were requested, %lld of %lld are in use", bytes,
                 (long long)d->used, (long long)d->limit);
        return fail(d, NEB_ERR_NOMEM, text);
    }
    memcpy(p, &whole, sizeof whole);
    d->used += (int64_t)whole;
    if (d->used > d->peak) d->peak = d->used;
    *out = p + ALIGN;
    return NEB_OK;
}

static void skeleton_free(void *dev, void *p)
{
    struct skeleton *d = dev;
    size_t whole;
    if (!p) return;
    memcpy(&whole, (char *)p - ALIGN, sizeof whole);
    d->used -= (int64_t)whole;
    /* >>> */
    free((char *)p - ALIGN);
    /* <<< */
}

/* The three copies are one function here, because the memory is the host's. */
static neb_status skeleton_copy(void *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    /* >>> upload: `src` may be reused when this returns. download: waits for the queue and for the copy. <<< */
    if (bytes) memmove(dst, src, bytes);
    return NEB_OK;
}

static neb_status skeleton_fill(void *dev, void *dst, uint8_t byte, size_t bytes)
{
    (void)dev;
    /* >>> <<< */
    if (bytes) memset(dst, byte, bytes);
    return NEB_OK;
}

static neb_status skeleton_sync(void *dev)
{
    (void)dev;
    /* >>> wait for the queue; return what failed in it <<< */
    return NEB_OK;
}

static const struct neb_device_ops table = {
    .abi = NEB_DEVICE_ABI,
    .size = sizeof(struct neb_device_ops),
    .name = "skeleton",
    .open = skeleton_open,
    .close = skeleton_close,
    .info = skeleton_info,
    .alloc = skeleton_alloc,
    .free = skeleton_free,
    .upload = skeleton_copy,
    .download = skeleton_copy,
    .copy = skeleton_copy,
    .fill = skeleton_fill,
    .sync = skeleton_sync,
    /* >>> .gemm = …, .linear = …: the host computes what is not here <<< */
    .flags = NEB_DEVICE_HOST_PRIMITIVES,
};

NEB_API const struct neb_device_ops *neb_device_plugin(uint32_t abi);
const struct neb_device_ops *neb_device_plugin(uint32_t abi)
{
    return abi == NEB_DEVICE_ABI ? &table : NULL;
}
