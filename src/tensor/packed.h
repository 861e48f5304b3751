/* packed.h (internal): for generating text, where many runs of few rows use the same weights. */
#ifndef NEB_TENSOR_PACKED_H
#define NEB_TENSOR_PACKED_H

#include <nebula/engine.h>

/* From now on linear layers of the tape's runs read copies of their weights in the layout that the device's
 * products read fastest. A copy is made when its weight is first used, and again after
 * neb__tape_weights_changed(). Code that changes the parameters between two runs must call that function. All
 * this has no effect on a device without such a layout. */
void neb__tape_keep_packed(neb_tape *t, bool on);
void neb__tape_weights_changed(neb_tape *t);

/* Whether runs of one key are recorded and replayed. If so, it pays to round many shapes to a few. */
bool neb__tape_records(const neb_device *d);
/* The number of keys that the tape has met. Each has a memory plan and perhaps a recording. */
int neb__tape_plans(const neb_tape *t);

/* Writes the k largest of each row of x (rows, n) into the buffer: values F32 (rows, k), their columns I32
 * (rows, k), log of the sum of the row's exponentials F32 (rows). Only for devices for which
 * neb__device_has_topk() is true. */
bool neb__device_has_topk(const neb_device *d);
void neb__output_best(neb_tape *t, neb_tensor *x, int k, neb_buffer *b);

/* Attention of single queries over rows of a cache; each query has its own list of rows (struct
 * neb_attn_listed). key I32 (q rows, most keys), count I32 (q rows). Only for devices for which
 * neb__device_has_listed() is true; no gradient. */
bool neb__device_has_listed(const neb_device *d);
neb_tensor *neb__op_attention_listed(neb_tape *t, const struct neb_attention *a, neb_tensor *key,
                                     neb_tensor *count);

#endif
