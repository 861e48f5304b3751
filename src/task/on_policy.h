/* on_policy.h: a student's own samples, which its teacher judges (Agarwal et al. 2024, generalised knowledge distillation).
 *
 * Of the batches that a student draws, a share (distill.on_policy) gets other targets: what the student itself wrote. Which
 * ones is a function of the job and the batch's number, so both sites know it. The samples of step s were drawn with the
 * parameters before step s - distill.lag; the first `lag` steps have none. A translation is sampled whole; of a causal
 * text the second half. */
#ifndef NEB_TASK_ON_POLICY_H
#define NEB_TASK_ON_POLICY_H

#include "nn/model.h"
#include "task/data.h"

/* Whether the targets of batch n (0, 1, …) are samples; how many such batches there are before it. */
bool neb__on_policy_judged(const struct neb_job *j, int64_t n);
uint64_t neb__on_policy_before(const struct neb_job *j, int64_t n);
/* Batches from a sample to the step that learns from it. */
int64_t neb__on_policy_lag(const struct neb_job *j);

/* The samples of one batch. Owes a free. */
struct neb_samples {
    int32_t seqs, room; /* room: sequences */
    int32_t *n;         /* (room) tokens of each; 0: the sequence keeps its own */
    struct neb_buf ids; /* int32_t, one sequence after the other, without special tokens */
};
neb_status neb__samples_init(struct neb_samples *s, int32_t seqs);
void neb__samples_free(struct neb_samples *s); /* zeros are fine */

/* Puts the samples into the batch in place of its own targets. *taken: how many.
 *   NEB_ERR_CORRUPT: they are not of such a batch; NEB_ERR_NOMEM */
neb_status neb__samples_apply(const struct neb_samples *s, const struct neb_data *data, struct neb_batch *b,
                              int32_t *taken);

/* Draws batches ahead of the training and lets the model write. Owes a close. batch: the next that is trained on. */
struct neb_own_sampler;
neb_status neb__own_sampler_open(const struct neb_data *data, neb_device *device, struct neb_model *m,
                                 int64_t batch, struct neb_own_sampler **out);
void neb__own_sampler_close(struct neb_own_sampler *s); /* NULL is fine */

/* For each batch of the step that comes `lag` steps later: if it is judged, calls `give` with it and its samples. */
typedef neb_status (*neb_own_sampler_fn)(void *arg, const struct neb_batch *b, const struct neb_samples *s);
neb_status neb__own_sampler_step(struct neb_own_sampler *s, neb_own_sampler_fn give, void *arg);

#endif
