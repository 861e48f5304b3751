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

neb_status neb__buffer_clear_front(neb_buffer *b, size_t bytes); /* the first bytes become 0 */

#endif
