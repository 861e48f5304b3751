/* dummy.c: a device plug-in for the loader's tests. It can open and close, and nothing else; DUMMY_KIND makes the broken
 * ones: 1 another ABI version, 2 a table that is too small, 3 a required slot missing. */
#include <nebula/device.h>
#include <stdio.h>
#include <string.h>

static struct neb_device_ops ops;
static int opened;

static neb_status dummy_open(const struct neb_device_config *config, void **dev)
{
    if (config->index != 0) {
        char text[64];
        snprintf(text, sizeof text, "the dummy has no device %d", config->index);
        return config->host ? config->host->fail(NEB_ERR_NOTFOUND, text) : NEB_ERR_NOTFOUND;
    }
    *dev = &opened;
    return NEB_OK;
}

static void dummy_close(void *dev)
{
    (void)dev;
}

static void dummy_info(void *dev, struct neb_device_info *out)
{
    (void)dev;
    memset(out, 0, sizeof *out);
    snprintf(out->description, sizeof out->description, "a dummy");
}

static neb_status refuse(void *dev)
{
    (void)dev;
    return NEB_ERR_UNSUPPORTED;
}

NEB_API const struct neb_device_ops *neb_device_plugin(uint32_t abi);
const struct neb_device_ops *neb_device_plugin(uint32_t abi)
{
    if (abi != NEB_DEVICE_ABI) return NULL;
    /* Every slot is one that refuses: they are never called, the loader only looks for holes. */
    void (**slot)(void) = (void (**)(void))(void *)&ops.open;
    size_t n = (sizeof ops - offsetof(struct neb_device_ops, open)) / sizeof *slot;
    for (size_t i = 0; i < n; i++) slot[i] = (void (*)(void))refuse;
    ops.abi = DUMMY_KIND == 1 ? NEB_DEVICE_ABI + 1 : NEB_DEVICE_ABI;
    ops.size = (uint32_t)sizeof ops - (DUMMY_KIND == 2 ? 8 : 0);
    ops.name = "dummy";
    ops.flags = 0;
    ops.open = dummy_open;
    ops.close = dummy_close;
    ops.info = dummy_info;
    if (DUMMY_KIND == 3) ops.gemm = NULL;
    return &ops;
}
