/* beside.h (internal): gradients that the copies of a model add up during the last backward pass (beside.c). Where that is not
 * done, these calls do nothing. */
#ifndef NEB_OPTIM_BESIDE_H
#define NEB_OPTIM_BESIDE_H

#include <nebula/engine.h>

/* bucket: values; 0: NEB_SUM_BUCKET, on GPUs NEB_SUM_BUCKET_GPU */
neb_status neb__beside_create(neb_optimizer *o, int64_t bucket);
void neb__beside_destroy(neb_optimizer *o);

/* Around the runs of a step. `reduce` as in neb_train_step(). */
void neb__beside_arm(neb_optimizer *o, neb_tape *t, const struct neb_reduce *reduce);
void neb__beside_disarm(neb_optimizer *o);
/* All ranks, after their runs, also a rank whose runs failed: the sums of all buckets. */
neb_status neb__beside_finish(neb_optimizer *o);
/* Whether the slab holds the sums of this step already. */
bool neb__beside_take(neb_optimizer *o);

/* For tests and benchmarks: the sums are begun when the runs are over. At all ranks alike. */
void neb__beside_behind(neb_optimizer *o, bool behind);

#endif
