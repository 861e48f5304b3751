/* device.h (internal): an open device: its table, its context, the configuration it was opened with.
 * neb_device_open() in src/device makes it; everything above the boundary uses it. */
#ifndef NEB_TENSOR_DEVICE_H
#define NEB_TENSOR_DEVICE_H

#include <nebula/device.h>

struct neb_device {
    const struct neb_device_ops *ops;
    void *ctx;                       /* the device's own */
    struct neb_device_config config; /* as opened; isa is not kept */
    void *library;                   /* dlopen handle of a plug-in, or NULL */
};

#endif
