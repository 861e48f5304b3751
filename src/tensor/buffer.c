/* buffer.c: device memory that lives across steps, and the facts about data types. */
#include "tensor/buffer.h"
#include "base/mem.h"

static const struct {
    size_t size;
    const char *name;
} types[NEB_DTYPES] = {
    [NEB_F32] = {4, "f32"}, [NEB_BF16] = {2, "bf16"}, [NEB_I32] = {4, "i32"}, [NEB_I8] = {1, "i8"}};

size_t neb_dtype_size(neb_dtype type)
{
    return (unsigned)type < NEB_DTYPES ? types[type].size : 0;
}

const char *neb_dtype_name(neb_dtype type)
{
    return (unsigned)type < NEB_DTYPES ? types[type].name : "unknown dtype";
}

neb_status neb_device_sync(neb_device *d)
{
    return d->ops->sync(d->ctx);
}

void neb_device_get_info(neb_device *d, struct neb_device_info *out)
{
    d->ops->info(d->ctx, out);
}

neb_status neb_buffer_create(neb_device *d, size_t bytes, neb_buffer **out)
{
    neb_buffer *b = NEB_NEW(neb_buffer);
    if (!b) return neb__fail(NEB_ERR_NOMEM, "out of memory for a buffer");
    neb_status status = d->ops->alloc(d->ctx, bytes ? bytes : 1, &b->data);
    if (status != NEB_OK) {
        neb__free(b);
        return status;
    }
    b->dev = d;
    b->bytes = bytes;
    *out = b;
    return NEB_OK;
}

void neb_buffer_destroy(neb_buffer *b)
{
    if (!b) return;
    b->dev->ops->free(b->dev->ctx, b->data);
    neb__free(b);
}

size_t neb_buffer_size(const neb_buffer *b)
{
    return b->bytes;
}

static neb_status check_size(const neb_buffer *b, size_t bytes)
{
    if (bytes <= b->bytes) return NEB_OK;
    return neb__fail(NEB_ERR_RANGE, "%zu bytes do not fit into a buffer of %zu bytes", bytes, b->bytes);
}

neb_status neb_buffer_clear(neb_buffer *b)
{
    return b->dev->ops->fill(b->dev->ctx, b->data, 0, b->bytes);
}

neb_status neb__buffer_clear_front(neb_buffer *b, size_t bytes)
{
    NEB_TRY(check_size(b, bytes));
    return b->dev->ops->fill(b->dev->ctx, b->data, 0, bytes);
}

neb_status neb_buffer_upload(neb_buffer *b, const void *host, size_t bytes)
{
    NEB_TRY(check_size(b, bytes));
    return bytes ? b->dev->ops->upload(b->dev->ctx, b->data, host, bytes) : NEB_OK;
}

neb_status neb_buffer_download(const neb_buffer *b, void *host, size_t bytes)
{
    NEB_TRY(check_size(b, bytes));
    return bytes ? b->dev->ops->download(b->dev->ctx, host, b->data, bytes) : NEB_OK;
}

neb_status neb__host_alloc(neb_device *d, size_t bytes, void **out)
{
    if (d->ops->host_alloc) return d->ops->host_alloc(d->ctx, bytes, out);
    *out = neb__malloc(bytes);
    return *out ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes", bytes);
}

void neb__host_free(neb_device *d, void *p)
{
    if (p && d->ops->host_alloc)
        d->ops->host_free(d->ctx, p);
    else
        neb__free(p);
}

neb_status neb__buffer_fetch(const neb_buffer *b, void *host, size_t bytes, uint64_t *fence)
{
    const struct neb_device_ops *ops = b->dev->ops;
    NEB_TRY(check_size(b, bytes));
    *fence = 0;
    if (!ops->side_download || !ops->host_alloc) return ops->download(b->dev->ctx, host, b->data, bytes);
    return ops->side_download(b->dev->ctx, host, b->data, bytes, fence);
}

neb_status neb__buffer_fetched(const neb_buffer *b, uint64_t fence)
{
    return fence ? b->dev->ops->fence_wait(b->dev->ctx, fence) : NEB_OK;
}
