/* site_weights.h: what a job says of its sites that matters for the cut of a pipeline: how much memory a process of each has, and how
 * fast each is beside the others.
 *
 * Read from the job's text alone, so that all sites cut alike. What is read here must be the same in every site's job
 * (neb__job_facts()). */
#ifndef NEB_TASK_SITE_WEIGHTS_H
#define NEB_TASK_SITE_WEIGHTS_H

#include "job/job.h"
#include "nn/stage.h"

struct neb_site_weights {
    bool limited, paced; /* some site has a limit; all of them say how fast they are */
    struct neb_stage_room site[NEB_JOB_SITES];
};

void neb__site_weights(const struct neb_job *j, struct neb_site_weights *out);

/* Bytes that a process of a stage takes for each layer: its state, and what one micro-batch in flight keeps, roughly. bytes:
 * (layers of both stacks), which owe a neb__free() */
neb_status neb__site_layer_bytes(const struct neb_job *j, const struct neb_model_config *model,
                                 const struct neb_arch *a, double **bytes);

#endif
