/* buffer.h (internal): the struct behind neb_buffer. */
#ifndef NEB_TENSOR_BUFFER_H
#define NEB_TENSOR_BUFFER_H

#include "base/status.h"
#include "tensor/device.h"

#include <nebula/engine.h>

struct neb_buffer {
    neb_device *dev;
    void *data;
    size_t bytes;
};

/* Host memory from which and into which the device copies fast. */
neb_status neb__host_alloc(neb_device *d, size_t bytes, void **out);
void neb__host_free(neb_device *d, void *p); /* NULL is fine */

/* Copies the first bytes to host memory of neb__host_alloc(), beside the work that is enqueued from now on.
 * They have arrived once the fence has been waited for. A device without a side stream copies them before it
 * returns. */
neb_status neb__buffer_fetch(const neb_buffer *b, void *host, size_t bytes, uint64_t *fence);
neb_status neb__buffer_fetched(const neb_buffer *b, uint64_t fence);

neb_status neb__buffer_clear_front(neb_buffer *b, size_t bytes); /* the first bytes become 0 */

#endif
