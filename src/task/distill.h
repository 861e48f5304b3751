/* distill.h: the student's side of distillation: a batch's answers on the device, and the losses made of
 * them.
 *
 * Logits: the loss is a mix of the cross-entropy with the targets and the divergence from the teacher's top-k
 * distribution. Hidden states: a learned projection (distill.project) brings the student's encoder output to
 * the teacher's width, and the loss draws it to the teacher's hidden states, row by row. A successful create
 * owes a destroy. */
#ifndef NEB_TASK_DISTILL_H
#define NEB_TASK_DISTILL_H

#include "nn/model.h"
#include "task/data.h"
#include "task/step_links.h"

struct neb_distill;

/* Loss slot of the hidden states' part. */
enum { NEB_DISTILL_SLOT = 2 };

/* NULL where the job has no teacher. Adds the projection to `params`, which are not ready yet.
 *   NEB_ERR_CONFIG: teacher and student do not fit; and those of the engine */
neb_status neb__distill_create(const struct neb_job *job, const struct neb_data *data,
                               const struct neb_step_links *links, neb_device *device,
                               const struct neb_model_input_limits *limits, neb_params *params,
                               const struct neb_model *student, struct neb_distill **out);
void neb__distill_destroy(struct neb_distill *d); /* NULL is fine */

/* Asks for the batch's answers and uploads them. */
neb_status neb__distill_load(struct neb_distill *d, const struct neb_batch *b);

/* Inside the student's function: the whole loss of a run. */
void neb__distill_run(struct neb_distill *d, struct neb_model *student, neb_tape *t,
                      const struct neb_input *in);

#endif
