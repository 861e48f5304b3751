/* step_links.h: a step may get a teacher's answers or a generator's choices from elsewhere, or give them
 * away.
 *
 * A job on one site makes both itself (teacher.h, rtd_sampler.h). If its parts live on several sites, a
 * stream brings them: the step asks about a batch and does not know where the answer comes from. Both ends of
 * a stream make the same batch (text/batches.h: a function of configuration, part and step), so an answer is
 * named by the batch's step and no text crosses.
 *
 * Calls come from the thread that runs the steps, in the order of the batches, once for each; after a resume
 * from the batch at which the checkpoint stands. An answer's arrays stay the answerer's, good until the next
 * call. A failure ends the step with that status. */
#ifndef NEB_TASK_STEP_LINKS_H
#define NEB_TASK_STEP_LINKS_H

#include "nn/stage.h"
#include "optim/site_stage.h"
#include "text/batch.h"

struct neb_samples;

/* A teacher's answer to one batch. */
struct neb_teacher_answer {
    const int32_t *ids;  /* (loss.n, k) the likeliest tokens at each predicted row, any order; < 0: none */
    const float *logits; /* (loss.n, k) theirs; a row's common offset does not matter */
    const float *hidden; /* (side[0].tokens, width) last hidden states; padding rows are not read */
};

struct neb_teacher {
    int32_t k;     /* logits a row; 0: gives none */
    int32_t width; /* of hidden states; 0: gives none */
    neb_status (*ask)(void *arg, const struct neb_batch *b, struct neb_teacher_answer *out);
    void (*close)(void *arg); /* or NULL */
    void *arg;
};

/* Replaced-token detection: the tokens that stand at the masked rows. */
struct neb_relay_ends {
    /* The discriminator's side: sampled (loss.n), rows without weight are not read. NULL: the job's own
     * generator. */
    neb_status (*take)(void *arg, const struct neb_batch *b, int32_t *sampled);
    /* The generator's side: there is no discriminator here, its choices go out. NULL: they stay. */
    neb_status (*give)(void *arg, const struct neb_batch *b, const int32_t *sampled);
    void *arg;
};

/* A stage of the model is here, and the others are at other sites. */
struct neb_stage_links {
    const struct neb_stage_ways *ways; /* NULL: the whole model is here */
    struct neb_stage_range range,
        hole;  /* hole: layers inside that are elsewhere; a micro-batch comes twice then */
    int depth; /* micro-batches in flight */
};

/* Zeros: the job makes everything itself. */
struct neb_step_links {
    struct neb_teacher logits, hidden; /* ask NULL: as the job's `distill` says */
    struct neb_relay_ends relay;       /* take or give, not both */
    /* Before a batch is looked at: gives its sequences other targets. NULL: they keep their own. */
    neb_status (*retarget)(void *arg, struct neb_batch *b);
    void *retarget_arg;
    /* On-policy distillation (task/on_policy.h): takes the samples of a batch that comes later. NULL: there are none. */
    neb_status (*sampled)(void *arg, const struct neb_batch *b, const struct neb_samples *s);
    void *sampled_arg;
    struct neb_stage_links stage;
};

#endif
