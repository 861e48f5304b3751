/* buffer.h (internal): what a neb_buffer is. */
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

/* Host memory that copies fast. */
neb_status neb__host_alloc(neb_device *d, size_t bytes, void **out);
void neb__host_free(neb_device *d, void *p); /* NULL is fine */

/* Brings the first bytes to host memory of neb__host_alloc(), beside what is enqueued from now on; they are there when the fence
 * has been waited for. A device without a side stream has brought them at once. */
neb_status neb__buffer_fetch(const neb_buffer *b, void *host, size_t bytes, uint64_t *fence);
neb_status neb__buffer_fetched(const neb_buffer *b, uint64_t fence);

neb_status neb__buffer_clear_front(neb_buffer *b, size_t bytes); /* the first bytes become 0 */

#endif
