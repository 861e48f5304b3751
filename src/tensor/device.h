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
    struct neb_device_ops *table;    /* of a rehearsal: `ops` points to it; else NULL */
};

/* Makes a device that was just opened one that computes nothing: its allocations are counted and take no memory until
 * somebody writes to them, its slots return at once, and the sizes of scratch and work memory are those of the device
 * itself. So a training can be rehearsed that would not fit here. The limit of its memory is gone. NEB_ERR_NOMEM */
neb_status neb__device_rehearse(struct neb_device *d);

/* Before that: the CPU's device answers for a GPU that is not here (stated_gpu.c). Nothing but a rehearsal may follow. NEB_ERR_NOMEM */
neb_status neb__device_state_gpu(struct neb_device *d);

/* How many devices of this kind there are ("cuda", "opencl:0", "auto"). 0: it is the CPU, or none can be counted. */
int neb__device_count(const char *name);

static inline int neb__device_rehearses(const struct neb_device *d)
{
    return d->table != NULL;
}

#endif
