/* memory.c: device memory under a hard cap, and addresses for it.
 *
 * The program adds to device pointers: it cuts slabs into tensors. A buffer of OpenCL 1.2 has no address, so every
 * allocation reserves a range of the process's addresses that cannot be read or written (PROT_NONE). An address in it
 * stands for a place in the buffer; find() turns it into buffer and offset. A host that follows such a pointer by mistake
 * stops at once.
 *
 * Kernels get the buffer and the offset. Work memory of the plug-in's own counts under the cap, too. */
#include "opencl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

neb_status neb__ocl_memory_open(struct neb_ocl *dev)
{
    const int64_t asked = dev->config.memory_limit;
    dev->memory.limit = asked > 0 ? (size_t)asked : (size_t)dev->memory_total;
    return NEB_OK;
}

void neb__ocl_memory_close(struct neb_ocl *dev)
{
    struct neb_ocl_memory *m = &dev->memory;
    for (size_t i = 0; i < m->n; i++) {
        clReleaseMemObject(m->block[i].mem);
        munmap(m->block[i].base, m->block[i].bytes);
    }
    for (int i = 0; i < NEB_OCL_WORKS; i++)
        if (dev->work[i].mem) clReleaseMemObject(dev->work[i].mem);
    for (size_t i = 0; i < dev->n_retired; i++) clReleaseMemObject(dev->retired[i].mem);
    free(dev->retired);
    free(m->block);
    memset(m, 0, sizeof *m);
}

static neb_status refuse(struct neb_ocl *dev, size_t bytes, const char *why)
{
    const struct neb_ocl_memory *m = &dev->memory;
    return neb__ocl_fail(
        dev, NEB_ERR_NOMEM,
        "opencl %d: %zu bytes were requested, %zu of %zu allowed are in use%s; use a smaller batch, or "
        "raise the memory limit",
        dev->config.index, bytes, m->used, m->limit, why);
}

static neb_status make_buffer(struct neb_ocl *dev, size_t bytes, cl_mem *out)
{
    struct neb_ocl_memory *m = &dev->memory;
    if (bytes > m->limit || m->used > m->limit - bytes) return refuse(dev, bytes, "");
    if (bytes > dev->largest) return refuse(dev, bytes, ", and this device gives no buffer of that size");
    cl_int e = CL_SUCCESS;
    cl_mem mem = clCreateBuffer(dev->context, CL_MEM_READ_WRITE, bytes, NULL, &e);
    if (e == CL_MEM_OBJECT_ALLOCATION_FAILURE || e == CL_OUT_OF_RESOURCES || e == CL_OUT_OF_HOST_MEMORY ||
        e == CL_INVALID_BUFFER_SIZE)
        return refuse(dev, bytes, ", and the driver refused");
    if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "clCreateBuffer");
    m->used += bytes;
    if (m->used > m->peak) m->peak = m->used;
    *out = mem;
    return NEB_OK;
}

static void drop_buffer(struct neb_ocl *dev, cl_mem mem, size_t bytes)
{
    clReleaseMemObject(mem);
    dev->memory.used -= bytes;
}

static bool make_room(struct neb_ocl_memory *m)
{
    if (m->n < m->room) return true;
    size_t room = m->room ? 2 * m->room : 64;
    struct neb_ocl_block *more = realloc(m->block, room * sizeof *more);
    if (!more) return false;
    m->block = more;
    m->room = room;
    return true;
}

static neb_status alloc_locked(struct neb_ocl *dev, size_t bytes, void **out)
{
    struct neb_ocl_memory *m = &dev->memory;
    cl_mem mem = NULL;
    if (bytes > SIZE_MAX - 4096) return refuse(dev, bytes, "");
    bytes = bytes ? (bytes + 255) / 256 * 256 : 256;
    if (!make_room(m))
        return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory for the table of allocations");
    NEB_TRY(make_buffer(dev, bytes, &mem));
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        drop_buffer(dev, mem, bytes);
        return refuse(dev, bytes, ", and the process has no addresses left");
    }
    size_t at = m->n;
    while (at > 0 && m->block[at - 1].base > (char *)base) at--;
    memmove(m->block + at + 1, m->block + at, (m->n - at) * sizeof *m->block);
    m->block[at] = (struct neb_ocl_block){base, bytes, mem};
    m->n++;
    *out = base;
    return NEB_OK;
}

neb_status neb__ocl_alloc(void *ctx, size_t bytes, void **out)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_not_recording(dev, "alloc"));
    pthread_mutex_lock(&dev->lock);
    neb_status s = alloc_locked(dev, bytes, out);
    pthread_mutex_unlock(&dev->lock);
    return s;
}

/* The block that contains p, or NULL. */
static struct neb_ocl_block *block_of(struct neb_ocl_memory *m, const char *p)
{
    if (m->recent < m->n) {
        struct neb_ocl_block *b = &m->block[m->recent];
        if (p >= b->base && p < b->base + b->bytes) return b;
    }
    size_t lo = 0, hi = m->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (m->block[mid].base + m->block[mid].bytes <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == m->n || p < m->block[lo].base) return NULL;
    m->recent = lo;
    return &m->block[lo];
}

void neb__ocl_free(void *ctx, void *p)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    struct neb_ocl_memory *m = &dev->memory;
    if (!p) return;
    pthread_mutex_lock(&dev->lock);
    struct neb_ocl_block *b = block_of(m, p);
    if (b && b->base == p) {
        drop_buffer(dev, b->mem, b->bytes); /* commands on their way keep it */
        munmap(b->base, b->bytes);
        memmove(b, b + 1, (size_t)(m->block + m->n - (b + 1)) * sizeof *b);
        m->n--;
    } else {
        neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: free of %p, which is not the beginning of an allocation",
                      p);
    }
    pthread_mutex_unlock(&dev->lock);
}

neb_status neb__ocl_find(struct neb_ocl *dev, const void *p, size_t bytes, cl_mem *mem, size_t *offset)
{
    const struct neb_ocl_block *b = block_of(&dev->memory, p);
    if (!b || bytes > (size_t)(b->base + b->bytes - (const char *)p))
        return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: %zu bytes at %p are not memory of this device",
                             bytes, p);
    *mem = b->mem;
    *offset = (size_t)((const char *)p - b->base);
    return NEB_OK;
}

/* A work buffer that is too small gives way to a larger one. A recording may name the old one, so that lives on. */
neb_status neb__ocl_work(struct neb_ocl *dev, int which, size_t bytes, cl_mem *out)
{
    struct neb_ocl_work *w = &dev->work[which], larger = {NULL, 0};
    if (w->bytes < bytes || !w->mem) {
        struct neb_ocl_work *more = realloc(dev->retired, (dev->n_retired + 1) * sizeof *more);
        if (!more) return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory");
        dev->retired = more;
        larger.bytes = (bytes + bytes / 4 + 65535) / 65536 * 65536;
        NEB_TRY(make_buffer(dev, larger.bytes, &larger.mem));
        if (w->mem) dev->retired[dev->n_retired++] = *w;
        *w = larger;
    }
    *out = w->mem;
    return NEB_OK;
}
