/* host_ops.h: a plug-in's table, wrapped so that the host computes what it lacks. host_wrap.c fills the table, host_ops.c has the
 * primitives on the host. Every slot of the wrapped table gets a struct neb_host_ops as its device. */
#ifndef NEB_DEVICE_HOST_OPS_H
#define NEB_DEVICE_HOST_OPS_H

#include "device/device.h"

struct neb_host_ops {
    struct neb_device_ops table; /* what the program sees */
    const struct neb_device_ops *plugin;
    void *ctx; /* the plug-in's */
    void *cpu; /* an open CPU device */
};

/* What the host can compute: every primitive, frozen weights in few bits, and attention with relative positions. */
#define NEB_HOSTED_SLOTS(X)         \
    NEB_PRIMITIVE_SLOTS(X)          \
    X(widen, neb_widen)             \
    X(attn_biased, neb_attn_biased) \
    X(attn_biased_bwd, neb_attn_biased_bwd)

#define NEB_HOSTED(slot, type) neb_status neb__hosted_##slot(void *ctx, const struct type *args);
NEB_HOSTED_SLOTS(NEB_HOSTED)
#undef NEB_HOSTED

#endif
