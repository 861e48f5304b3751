/* offload.h (internal): an optimizer's state in the host's memory.
 *
 * The moments, and with offloaded masters the parameters (tensor/masters.h), live in host memory that copies fast.
 * An update takes them through the device bucket by bucket: up, the device's own update, down. So the bits are
 * those of an update without offload, on any device. */
#ifndef NEB_OPTIM_OFFLOAD_H
#define NEB_OPTIM_OFFLOAD_H

#include "optim/optimizer.h"

/* After the optimizer's buckets are known. */
neb_status neb__offload_create(neb_optimizer *o);
void neb__offload_destroy(neb_optimizer *o);
/* Before the last micro-batch of a step: the first buckets come to the device while it computes. */
neb_status neb__offload_begin(neb_optimizer *o);
/* The update of this rank's range. */
neb_status neb__offload_update(neb_optimizer *o, neb_tape *t);
/* Everything is back on the host after this. */
neb_status neb__offload_settle(const neb_optimizer *o);

#endif
