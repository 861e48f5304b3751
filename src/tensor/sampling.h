/* sampling.h (internal): drawing tokens on the device, so the logits need not leave it. */
#ifndef NEB_TENSOR_SAMPLING_H
#define NEB_TENSOR_SAMPLING_H

#include <nebula/engine.h>

/* Keeps the draws of one use apart from those of another; nebula/device.h explains the fields. */
struct neb_sampling {
    uint32_t seed, op, step;
    float temperature;
};

/* Draws a column of each row of `logits` F32 (rows, cols) into id (rows) I32. `who`: (rows) sample ids, then
 * (rows) positions. Only for devices for which neb__device_has_sample() is true. */
bool neb__device_has_sample(const neb_device *d);
neb_status neb__sample_rows(const struct neb_sampling *how, const neb_buffer *logits, int64_t rows,
                            int64_t cols, const neb_buffer *who, neb_buffer *id);

/* Does the same for one row on the host, for a device without the slot. */
int32_t neb__sample_on_host(const struct neb_sampling *how, const float *logits, int32_t cols,
                            uint32_t sample, int32_t position);

#endif
