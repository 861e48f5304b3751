/* teacher.h: a teacher on this site: a model folder that is asked about batches. Several can answer as
 * one. */
#ifndef NEB_TASK_TEACHER_H
#define NEB_TASK_TEACHER_H

#include "nn/model_input.h"
#include "task/data.h"
#include "task/step_links.h"
#include "text/tokenizer.h"

struct neb_teacher_config {
    const char *folder;
    bool logits;               /* else hidden states */
    bool logp;                 /* logits are log-probabilities over the whole vocabulary; one teacher only */
    int32_t k;                 /* logits a row */
    int threads;               /* for choosing the likeliest */
    const struct neb_tok *tok; /* the student's */
    const struct neb_data
        *data; /* the student's text, for a teacher with another tokenizer; NULL: it must have the same */
    int sides; /* of the batches */
    int64_t max_len; /* of their sequences */
};

/* limits: the largest batch it will be asked about. Owes a close. A teacher with another tokenizer is
 * asked about the same text in its own tokens (teacher_across.c).
 *   NEB_ERR_CONFIG: another tokenizer, or a model that cannot read such batches; and those of the engine */
neb_status neb__teacher_open(neb_device *device, const struct neb_teacher_config *c,
                             const struct neb_model_input_limits *limits, struct neb_teacher *out);

/* The same where c->folder may name several, separated by commas, that teach logits: their answer is the mean
 * of what each thinks likely (teacher_ensemble.c).
 *   NEB_ERR_CONFIG also: more than NEB_TEACHERS_MAX of them */
enum { NEB_TEACHERS_MAX = 16 };
neb_status neb__teacher_ensemble_open(neb_device *device, const struct neb_teacher_config *c,
                                      const struct neb_model_input_limits *limits, struct neb_teacher *out);

/* Teachers that are open already, as one, each with its weight. They are closed with it, if they have a close. */
neb_status neb__teacher_mix_open(const struct neb_teacher *members, const double *weights, int n, int threads,
                                 int32_t targets, struct neb_teacher *out);

/* teacher_across.c; only for a folder with another tokenizer. */
neb_status neb__teacher_across_open(neb_device *device, const struct neb_teacher_config *c,
                                    const struct neb_model_input_limits *limits, struct neb_teacher *out);

/* A packed batch as a model's input. */
struct neb_model_input_data neb__model_input_of(const struct neb_batch *b);

#endif
