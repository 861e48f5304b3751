/* sampling.h (internal): drawing tokens on the device, so that no logits need to leave it. */
#ifndef NEB_TENSOR_SAMPLING_H
#define NEB_TENSOR_SAMPLING_H

#include <nebula/engine.h>

/* The draws of one use are told from those of another: nebula/device.h. */
struct neb_sampling {
    uint32_t seed, op, step;
    float temperature;
};

/* A column of each of the rows of `logits` F32 (rows, cols), into id (rows) I32. `who`: (rows) sample ids, then (rows)
 * positions. Only where neb__device_has_sample(). */
bool neb__device_has_sample(const neb_device *d);
neb_status neb__sample_rows(const struct neb_sampling *how, const neb_buffer *logits, int64_t rows,
                            int64_t cols, const neb_buffer *who, neb_buffer *id);

/* The same of one row on the host, for a device that cannot. */
int32_t neb__sample_on_host(const struct neb_sampling *how, const float *logits, int32_t cols,
                            uint32_t sample, int32_t position);

#endif
