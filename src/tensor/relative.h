/* relative.h (internal): attention whose scores get a learned number for the distance of key and query (T5). Near distances have a
 * bucket each, farther ones share buckets that grow with the logarithm of the distance (Raffel et al. 2020). */
#ifndef NEB_TENSOR_RELATIVE_H
#define NEB_TENSOR_RELATIVE_H

#include <nebula/device.h>
#include <nebula/engine.h>

/* Which distances share a number: see struct neb_attn_bias. */
struct neb_relative {
    bool both_ways;
    int64_t buckets; /* of a side */
    int32_t from[NEB_BIAS_BUCKETS];
};

/* `buckets` in all, half of them for each side if both_ways. Half of a side's are of one distance; the others reach to `farthest`,
 * and the last one has all that is farther. buckets and farthest are as neb__model_config_check() wants them. */
void neb__relative_buckets(int64_t buckets, int64_t farthest, bool both_ways, struct neb_relative *out);

bool neb__device_has_relative(const neb_device *d);

/* As neb_op_attention(). table: a parameter of one dimension, (buckets of all sides, heads). `relative` stays where it is until
 * the run ends. */
neb_tensor *neb__op_attention_relative(neb_tape *t, const struct neb_attention *a,
                                       const struct neb_relative *relative, neb_param *table);

#endif
