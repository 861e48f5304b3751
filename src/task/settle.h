/* settle.h: the models of a job as they are built: what the job says, completed by what its data decides. */
#ifndef NEB_TASK_SETTLE_H
#define NEB_TASK_SETTLE_H

#include "job/job.h"

/* Their texts are the job's, so the job must outlive them. generator: for an objective that has one. */
struct neb_settled_models {
    struct neb_model_config model, generator;
};

/* tokens: of the tokenizer. */
void neb__settle_models(const struct neb_job *job, int64_t tokens, struct neb_settled_models *out);

#endif
