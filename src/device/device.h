/* device.h (internal): the parts of neb_device_open(): the built-in device and the check of a table. */
#ifndef NEB_DEVICE_DEVICE_H
#define NEB_DEVICE_DEVICE_H

#include "base/status.h"
#include "tensor/device.h"

/* Checks that the table is complete: version, size, every required slot, the all-or-none groups. `where`
 * names it in errors. */
neb_status neb__device_check_ops(const struct neb_device_ops *ops, const char *where);

enum { NEB_DEVICE_NAME = 40 };

/* Says what device number `index` of a plug-in is, without opening it and without a line in the log.
 * NEB_ERR_NOTFOUND after the last; NEB_ERR_UNSUPPORTED with the last error unchanged when the plug-in cannot say. */
neb_status neb__device_probe(const char *kind, int index, struct neb_device_info *out);

/* Puts a table before an open device's own in which the host computes the primitives that it lacks. */
neb_status neb__host_ops_wrap(struct neb_device *d);

extern const struct neb_device_ops neb__cpu_ops;
/* Its work memory grows as ever; no kernel runs. Before the first allocation. */
void neb__cpu_rehearse(void *dev);

static inline size_t neb__dtype_size(neb_dtype t)
{
    if (t == NEB_F32 || t == NEB_I32) return 4;
    return t == NEB_BF16 ? 2 : 1;
}

#endif
