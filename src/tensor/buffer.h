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

#endif
