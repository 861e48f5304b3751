/* work_internal.h: what work.c (opening), work_step.c (steps) and work_eval.c (held-out text) share. */
#ifndef NEB_TASK_WORK_INTERNAL_H
#define NEB_TASK_WORK_INTERNAL_H

#include "task/distill.h"
#include "task/rtd_sampler.h"
#include "task/work.h"

struct neb_work_part { /* one run of a step */
    struct neb_work *work;
    struct neb_batch *batch;
    struct neb_micro *micro; /* NULL: not of a step */
};

struct neb_work {
    const struct neb_job *job;
    const struct neb_data *data;
    struct neb_step_links links;
    int64_t part, parts;
    neb_device *dev;
    neb_params *params;
    neb_tape *tape;
    neb_optimizer *opt;
    struct neb_model *model, *generator;  /* either is NULL where it lives on another site */
    struct neb_model *table;              /* the generator's token table alone: the rest is on another site */
    struct neb_model_input *feed, *feed2; /* feed2: the discriminator's */
    neb_buffer *logits;                   /* rtd: the generator's, at the masked rows */
    struct neb_sampler *sampler;
    struct neb_distill *distill;
    struct neb_batches *stream;
    struct neb_prefetch *ahead;
    struct neb_work_part *pieces;
    struct neb_micro *micros;
    int64_t batches;           /* drawn for steps, over all starts */
    struct neb_batch *to_give; /* relay: its choices have not gone out yet */
};

/* Loaders and model functions of a piece. */
neb_status neb__load_plain(void *piece);
neb_status neb__load_generator(void *piece);
neb_status neb__load_discriminator(void *piece);
void neb__run_plain(neb_tape *t, void *piece);
void neb__run_student(neb_tape *t, void *piece);
void neb__run_generator(neb_tape *t, void *piece);
void neb__run_discriminator(neb_tape *t, void *piece);

#endif
