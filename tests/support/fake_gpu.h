/* fake_gpu.h: the CPU device as if it were a GPU: it has another name, so its memory does not count as the host's, and it
 * exchanges values with the devices of other forked ranks by itself, or cannot. It may also record runs, and exchange beside its
 * stream: at once, or as late as it may. */
#ifndef NEB_TESTS_SUPPORT_FAKE_GPU_H
#define NEB_TESTS_SUPPORT_FAKE_GPU_H

#include "tensor/device.h"

#include <nebula/engine.h>

#include <stdbool.h>

/* What its library says of itself; set at a rank before its group is attached. */
struct fake_library {
    bool missing;
    int version, device, shares;
    bool records;
    bool late;   /* an exchange beside the stream is made in the join */
    bool breaks; /* recordings with such exchanges fail at their end */
};
extern struct fake_library fake_library;

/* Before the ranks are forked; bytes: of the largest exchange of one rank. */
void fake_gpu_prepare(int ranks, size_t bytes);
void fake_gpu_end(void);
/* From now on `d`, a CPU device, is a fake GPU. `ops` outlives it. */
void fake_gpu_wrap(neb_device *d, struct neb_device_ops *ops);
int fake_gpu_exchanges(void); /* made at this rank */
int fake_gpu_beside(void);    /* begun beside the stream */
int fake_gpu_launches(void);  /* of recordings */

#endif
