/* on_device.h: measures training steps on an asynchronous device as they run in training, and prints losses
 * for comparison. */
#ifndef NEB_BENCH_ON_DEVICE_H
#define NEB_BENCH_ON_DEVICE_H

#include "bench.h"
#include "shapes.h"

neb_status neb__bench_on_device(const struct neb_shape *s, const struct neb_shape_options *o, int64_t steps,
                                bool capture, struct neb_figures *f);

/* Prints "step loss" lines and "parameters HASH"; returns the exit status. */
int neb__bench_losses(const struct neb_shape *s, const struct neb_shape_options *o, int64_t steps);

#endif
