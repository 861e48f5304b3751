/* memory.cu: device memory behind a cache, with a hard cap.
 *
 * cudaMalloc and cudaFree synchronise the device, so freed blocks are kept and serve the next request of
 * about their size (at most an eighth is wasted). When the cap is reached or the driver refuses, the kept
 * blocks go back to the driver and the request is tried once more. If that fails too, it returns
 * NEB_ERR_NOMEM with a message that says how much was requested and how much is held. Nothing else has
 * changed then, so the caller may continue with a smaller batch.
 *
 * Invariant: held = sum of all blocks' bytes <= limit; used = sum over the blocks in use. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

neb_status neb__cuda_memory_init(struct neb_cuda *dev)
{
    struct neb_cuda_memory *m = &dev->memory;
    pthread_mutex_init(&m->lock, NULL);
    m->limit = dev->memory_total;
    if (dev->config.memory_limit > 0 && (size_t)dev->config.memory_limit < m->limit)
        m->limit = (size_t)dev->config.memory_limit;
    return NEB_OK;
}

void neb__cuda_memory_close(struct neb_cuda *dev)
{
    struct neb_cuda_memory *m = &dev->memory;
    for (size_t i = 0; i < m->n; i++) cudaFree(m->blocks[i].p);
    free(m->blocks);
    if (m->limit) pthread_mutex_destroy(&m->lock);
    memset(m, 0, sizeof *m);
}

static void release_kept(struct neb_cuda_memory *m)
{
    size_t keep = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (m->blocks[i].used) {
            m->blocks[keep++] = m->blocks[i];
            continue;
        }
        cudaFree(m->blocks[i].p);
        m->held -= m->blocks[i].bytes;
    }
    m->n = keep;
}

static struct neb_cuda_block *find_kept(struct neb_cuda_memory *m, size_t bytes)
{
    struct neb_cuda_block *best = NULL;
    for (size_t i = 0; i < m->n; i++) {
        struct neb_cuda_block *b = &m->blocks[i];
        if (!b->used && b->bytes >= bytes && b->bytes - bytes <= bytes / 8 &&
            (!best || b->bytes < best->bytes))
            best = b;
    }
    return best;
}

/* A new block from the driver, or NULL. */
static struct neb_cuda_block *make_block(struct neb_cuda_memory *m, size_t bytes)
{
    void *p;
    if (bytes > m->limit - m->held) return NULL;
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 64;
        void *more = realloc(m->blocks, cap * sizeof *m->blocks);
        if (!more) return NULL;
        m->blocks = (struct neb_cuda_block *)more;
        m->cap = cap;
    }
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError(); /* an out-of-memory error does not persist; clear it */
        return NULL;
    }
    m->held += bytes;
    m->blocks[m->n] = {p, bytes, 0, 0};
    return &m->blocks[m->n++];
}

neb_status neb__cuda_try_alloc(struct neb_cuda *dev, size_t bytes, void **out)
{
    struct neb_cuda_memory *m = &dev->memory;
    size_t unit = bytes >= (1u << 20) ? (size_t)1 << 21 : 512;
    if (bytes == 0) bytes = 1;
    if (dev->capturing || bytes > SIZE_MAX - unit) return NEB_ERR_NOMEM;
    size_t size = (bytes + unit - 1) / unit * unit;
    pthread_mutex_lock(&m->lock);
    struct neb_cuda_block *b = find_kept(m, size);
    if (!b) b = make_block(m, size);
    if (!b) {
        release_kept(m);
        b = make_block(m, size);
    }
    if (b) {
        b->used = 1;
        b->asked = bytes;
        m->used += b->bytes;
        if (m->used > m->peak) m->peak = m->used;
        *out = b->p;
    }
    pthread_mutex_unlock(&m->lock);
    return b ? NEB_OK : NEB_ERR_NOMEM;
}

neb_status neb__cuda_alloc(void *ctx, size_t bytes, void **out)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (dev->capturing)
        return neb__cuda_fail(dev, NEB_ERR_STATE,
                              "cuda: memory cannot be allocated while a graph is being recorded");
    if (neb__cuda_try_alloc(dev, bytes, out) == NEB_OK) return NEB_OK;
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    const double mib = 1024.0 * 1024.0;
    return neb__cuda_fail(
        dev, NEB_ERR_NOMEM,
        "cuda %d: cannot allocate %.1f MiB: %.1f MiB of a limit of %.1f MiB are in use (the driver has "
        "%.1f MiB free); use a smaller batch, recomputation, or a larger memory limit",
        dev->index, bytes / mib, dev->memory.used / mib, dev->memory.limit / mib, free_bytes / mib);
}

void neb__cuda_free(void *ctx, void *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    struct neb_cuda_memory *m = &dev->memory;
    if (!p) return;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n; i++)
        if (m->blocks[i].p == p && m->blocks[i].used) {
            m->blocks[i].used = 0; /* the stream orders reuse: all users of a block are on it */
            m->used -= m->blocks[i].bytes;
            break;
        }
    pthread_mutex_unlock(&m->lock);
}
