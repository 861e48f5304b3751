/* work_internal.h: what work.c (opening), work_step.c (steps) and work_eval.c (held-out text) share with the
 * objectives. */
#ifndef NEB_TASK_WORK_INTERNAL_H
#define NEB_TASK_WORK_INTERNAL_H

#include "optim/private_step.h"
#include "privacy/ledger.h"
#include "task/distill.h"
#include "task/on_policy.h"
#include "task/work.h"
#include "tensor/team.h"

struct neb_work_part { /* one run of a step */
    struct neb_work *work;
    struct neb_batch *batch;
    struct neb_micro *micro; /* NULL: not of a step */
};

/* Over the batches of held-out text. */
struct neb_eval_sums {
    double loss, right, counted;
    int64_t rows, batches;
    double own[8]; /* the objective's */
};

/* How an objective makes its steps. NULL: nothing is to do there. */
struct neb_objective_steps {
    /* Adds model (and generator) to params, which are not ready yet. */
    neb_status (*make_models)(struct neb_work *w);
    /* Makes what the steps need beside w->input. */
    neb_status (*make_inputs)(struct neb_work *w, const struct neb_model_input_limits *l);
    /* Frees w->own, also after one of the two has failed. */
    void (*close)(struct neb_work *w);
    /* The runs of one batch of a step: neb__work_add_run(). At most two. */
    void (*add_runs)(struct neb_work *w, struct neb_batch *b);
    /* The runs are over, the batches still here. made: the step was, though it may have been skipped. */
    neb_status (*end_step)(struct neb_work *w, bool made);
    /* A batch of held-out text, and what follows from all of them. */
    neb_status (*eval)(struct neb_work *w, struct neb_batch *b, struct neb_eval_sums *s);
    void (*end_eval)(const struct neb_eval_sums *s, struct neb_work_eval *out);
    /* What the model makes of the first texts of a batch, in words: task/samples.h. */
    neb_status (*sample)(struct neb_work *w, const struct neb_batch *b, struct neb_buf *out);
    bool loss_by_weight; /* eval's loss has each row times its weight, so that some rows can be left out */
};

enum { NEB_WORK_RUNS = 2 }; /* of a batch, at most */

struct neb_work {
    const struct neb_job *job;
    const struct neb_data *data;
    const struct neb_objective_steps *steps; /* the job's objective's */
    void *own;                               /* the objective's */
    struct neb_step_links links;
    int64_t part, parts;
    const struct neb_layout *layout; /* NULL: this process makes the steps alone */
    struct neb_team team;            /* ranks that share the model's layers, if there are several */
    float *whole; /* host: the slab of all ranks, at the first of several that share the model; or NULL */
    neb_device *dev;
    int64_t opened; /* bytes of it that were taken before the first run */
    neb_params *params;
    neb_tape *tape;
    neb_optimizer *opt;
    struct neb_model *model, *generator; /* either is NULL where it lives on another site */
    neb_param *table;                    /* relay: see neb__work_table() */
    struct neb_hash frozen;              /* of frozen weights in few bits, once it is known */
    bool frozen_hashed;
    struct neb_model_input *input;
    struct neb_work_stages *stages;     /* work_stages.c; NULL: the whole model is here */
    struct neb_work_outlines *outlines; /* work_outline.c; NULL: no stage that gets or gives any */
    struct neb_distill *distill;
    struct neb_own_sampler *sampler;  /* on-policy distillation; NULL: none, or not yet */
    struct neb_work_private *privacy; /* work_private.c; NULL: plain steps */
    struct neb_batches *stream;
    struct neb_prefetch *ahead;
    bool (*asks)(void *arg); /* whether to give the present step up; NULL: nobody does, and load, too */
    neb_status (**load)(void *piece); /* (runs) what is asked before */
    void *asks_arg;
    bool gave_up;
    struct neb_buf before;        /* the position before the step, where somebody asks */
    bool text_failed;             /* the last step had no batches, and has changed nothing */
    struct neb_work_part *pieces; /* (runs) of the present step */
    struct neb_micro *micros;
    int runs;
    int64_t batches; /* drawn for steps, over all starts */
};

/* work_step.c: one model that reads a batch and predicts its targets, taught or not. */
extern const struct neb_objective_steps neb__plain_steps;
neb_status neb__load_plain(void *piece);
void neb__work_add_run(struct neb_work *w, struct neb_batch *b, neb_status (*load)(void *), neb_model_fn fn,
                       double weight);

/* work_stages.c. The run of a batch of held-out text; the sums are those of the last stage then. */
bool neb__work_is_staged(const struct neb_work *w);
neb_status neb__work_make_stage(struct neb_work *w);
/* before: how the rest was opened; all stages make this call, also those in which it failed. */
neb_status neb__work_open_stages(struct neb_work *w, const struct neb_model_input_limits *limits,
                                 neb_status before);
void neb__work_close_stages(struct neb_work *w);
/* work_site.c: the same of a stage whose neighbours are at other sites. */
neb_status neb__work_open_site(struct neb_work *w, const struct neb_model_input_limits *limits);
/* The limits become these, between steps. After an error the work can only be closed. */
neb_status neb__work_resize_site(struct neb_work *w, const struct neb_model_input_limits *limits);
/* The inputs of all slots; the first one is w->input. */
neb_status neb__work_make_slots(struct neb_work *w, const struct neb_model_input_limits *limits, int slots);
/* What the stages do with their gradients before the copies of the model add up theirs; NULL: nothing. */
const struct neb_reduce *neb__work_reduce(struct neb_work *w, struct neb_reduce *space);
neb_status neb__work_stage_eval(struct neb_work *w, const struct neb_run *run);
void neb__work_stage_first_input(struct neb_work *w);
neb_status neb__work_stage_sums(struct neb_work *w, struct neb_eval_sums *sums);

/* work_outline.c: what the batches look like, from the stage before and for the stage behind. Without a stage all of them do
 * nothing. */
bool neb__work_has_text(const struct neb_work *w);
neb_status neb__work_open_outlines(struct neb_work *w, const struct neb_model_input_limits *limits);
void neb__work_close_outlines(struct neb_work *w);
/* A site without text: batch i of the step whose outline was taken. */
neb_status neb__work_take_step(struct neb_work *w);
struct neb_batch *neb__work_bare_batch(struct neb_work *w, int64_t i);
/* A site with text has drawn the batches of a step: w->pieces has them. NEB_ERR_CONFIG: those of the stage before differ */
neb_status neb__work_compare_step(struct neb_work *w);
/* The same of a batch of held-out text, which is run so often; and of its end. languages: names; n < 0: there is no such text. */
neb_status neb__work_compare_eval(struct neb_work *w, const struct neb_batch *b, int runs);
neb_status neb__work_compare_eval_end(struct neb_work *w, const char *const *languages, int n);
/* A site without text: the next batch, which is run head->runs times; *b NULL: the end, or there is no such text. */
struct neb_outline_head;
neb_status neb__work_take_eval(struct neb_work *w, struct neb_batch **b, struct neb_outline_head *head);

/* work_private.c */
void neb__work_close_private(struct neb_work *w);
bool neb__work_wants_privacy(const struct neb_work *w);
neb_status neb__work_private_step(struct neb_work *w, float lr, struct neb_work_step *out);

/* work_whole.c: the first rank's copy of all values is older than the parameters. */
void neb__work_forget(struct neb_work *w);
neb_status neb__work_make_whole(struct neb_work *w);

/* work_eval.c: a run without dropout; the same for a run over w->input that predicts tokens, added to the
 * sums. */
neb_status neb__eval_run(struct neb_work *w, neb_model_fn fn, struct neb_work_part *p, uint64_t key,
                         struct neb_ctl *out);
neb_status neb__eval_tokens(struct neb_work *w, neb_model_fn fn, struct neb_work_part *p,
                            struct neb_eval_sums *s);
/* Loss, perplexity and accuracy. */
void neb__describe_tokens(const struct neb_work_eval *e, char *out, size_t size);

/* work_whole.c: the place of a parameter in the slab of neb__work_slab_values(). at: the end of the one before; becomes its first
 * value. Returns its end. */
int64_t neb__work_place_behind(const struct neb_work *w, const neb_param *p, int64_t *at);

#endif
