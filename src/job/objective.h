/* objective.h: what a model can learn to do, one row each. `task` in a job file names a row.
 *
 * A row says which model the objective trains, what text it reads, how a step is made and what is measured.
 * Everybody asks the row; nobody asks which objective it is. A new objective is a file
 * src/task/objective_NAME.c and a line in src/task/objectives.h. The rows live there because their functions
 * work on models and text. This folder reads what they say about a job. */
#ifndef NEB_JOB_OBJECTIVE_H
#define NEB_JOB_OBJECTIVE_H

#include "nn/config.h"

struct neb_batches_cfg;
struct neb_objective_steps;
struct neb_work_eval;

/* Values beside loss and accuracy that an objective may measure; losses that a step may tell apart. */
enum { NEB_OBJECTIVE_METRICS = 4, NEB_OBJECTIVE_LOSSES = 2 };

struct neb_objective {
    const char *name;  /* in job files and model folders */
    const char *about; /* a line of help */

    /* the model */
    const char *kind, *head;
    const char *family;   /* default of a job's model */
    const char *families; /* of this kind, for messages */
    /* Options that a model gets when it starts from the folder of a model for something else: name and value,
     * up to a name of NULL. NULL: the head alone. */
    const char *const (*options)[2];
    /* The objective of a second model, the generator. It is trained beside the first and may live on another
     * site. NULL: there is no second model. */
    const struct neb_objective *generator;

    /* the text */
    int sides;        /* of a batch; 2: source and target */
    bool needs_pairs; /* every corpus has two sides */
    bool stages;      /* its model can be cut into the stages of a pipeline */
    bool joins_pairs; /* both texts of a pair become one sequence */
    bool masks;       /* train.mask of the tokens are predicted, not all of them */
    void (*set_batches)(struct neb_batches_cfg *cfg); /* their kind, and what differs from its defaults */

    /* the work */
    bool distils;                            /* a teacher's answers can be part of the loss */
    const struct neb_objective_steps *steps; /* task/work_internal.h; NULL: no job trains it */

    /* what is measured, beside loss and accuracy */
    const char *losses[NEB_OBJECTIVE_LOSSES];   /* metrics of a step's parts; NULL: not told apart */
    const char *metrics[NEB_OBJECTIVE_METRICS]; /* of neb_work_eval.more; NULL: shown, but not stored */
    void (*describe)(const struct neb_work_eval *e, char *out, size_t size); /* held-out text, in a line */
    /* The values of `more` alone, in a line; NULL: the objective has no such values. */
    void (*describe_more)(const struct neb_work_eval *e, char *out, size_t size);
};

extern const struct neb_objective *const neb__objectives[]; /* ends with NULL */

/* NULL: not found. The second finds the first objective that trains such a model. */
const struct neb_objective *neb__objective_named(const char *name);
const struct neb_objective *neb__objective_of_model(const char *kind, const char *head);

/* Lists the objectives that a job can train and that fit (NULL:
 * all fit), as "mlm, causal or rtd". Returns out. */
const char *neb__objective_list(bool (*fits)(const struct neb_objective *o), char *out, size_t size);

/* Gives a model that may have had another objective the head and the options of this one. NEB_ERR_NOMEM */
neb_status neb__objective_adopt(const struct neb_objective *o, struct neb_model_config *m);

#endif
