/* device.h (internal): opening a compute device by name.
 *
 * "cpu" is built in. Any other name is a plug-in, the shared object libnebula-i-NAME.so, looked for in
 * $NEBULA_PLUGIN_PATH (folders with ':' between), in the executable's folder, in ../lib beside it, and where the
 * system's loader looks. A successful open owes a neb__device_close(). */
#ifndef NEB_DEVICE_DEVICE_H
#define NEB_DEVICE_DEVICE_H

#include "base/status.h"

#include <nebula/device.h>

struct neb_device {
    const struct neb_device_ops *ops;
    void *ctx;    /* first argument of every slot */
    void *plugin; /* the loader's handle; NULL for the built-in device */
    struct neb_device_config config;
};

/* NEB_ERR_NOTFOUND: no such plug-in (says where it was looked for); NEB_ERR_VERSION: a plug-in of another ABI;
 * NEB_ERR_UNSUPPORTED: a required slot is missing, or no such hardware; NEB_ERR_INVALID, NEB_ERR_NOMEM, and what
 * the device's own open() returns. */
neb_status neb__device_open(const char *name, const struct neb_device_config *config,
                            struct neb_device **out);
void neb__device_close(struct neb_device *d); /* NULL is fine */

/* Is the table complete: version, size, every required slot, the all-or-none groups? `where` names it in errors. */
neb_status neb__device_check_ops(const struct neb_device_ops *ops, const char *where);

extern const struct neb_device_ops neb__cpu_ops;

static inline size_t neb__dtype_size(neb_dtype t)
{
    return t == NEB_F32 || t == NEB_I32 ? 4 : t == NEB_BF16 ? 2 : 1;
}

#endif
