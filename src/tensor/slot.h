/* slot.h (internal): the forward and the backward of a run apart, and the ends of a stage.
 *
 * A stage of a pipeline has several micro-batches in flight: their forward is over, their backward waits for a
 * gradient from the next stage. Each of them occupies a slot: an arena, the tensors and the nodes of one run.
 * Slots share parameters, plans and the step's numbers. A tape has one slot until neb__tape_set_slots().
 *
 *     neb__tape_set_slots(t, 2);
 *     neb__tape_forward(t, 0, &run0);
 *     neb__tape_forward(t, 1, &run1);
 *     neb__tape_backward_slot(t, 0);
 *     neb__tape_backward_slot(t, 1);
 *
 * Gradients are added up in the order of the backwards, so `accumulate` is false for the run that goes
 * backwards first. A loss writes gradients in the forward already: a run with a loss goes backwards before the
 * next one with a loss goes forwards. Buffers and arguments of a run must stay as they are until its backward
 * is over. Halves of a run are not recorded. */
#ifndef NEB_TENSOR_SLOT_H
#define NEB_TENSOR_SLOT_H

#include "tensor/tape.h"

/* n slots, empty. Only while nothing is in flight. NEB_ERR_NOMEM */
neb_status neb__tape_set_slots(neb_tape *t, int n);
/* Every slot gets as much memory as the first one needed so far, so that one that cannot have it is known before a run.
 * NEB_ERR_NOMEM */
neb_status neb__tape_reserve_slots(neb_tape *t);
void neb__tape_free_slots(neb_tape *t);
int neb__tape_slot(const neb_tape *t); /* the present one: model functions keep what they need by it */
int neb__tape_in_flight(const neb_tape *t);

/* The present slot becomes this one. NEB_ERR_STATE: its backward is still to come */
neb_status neb__tape_enter_slot(neb_tape *t, int slot);

/* As neb_tape_run(). With run->grad the run stays in its slot until neb__tape_backward_slot(). */
neb_status neb__tape_forward(neb_tape *t, int slot, const struct neb_run *run);
neb_status neb__tape_backward_slot(neb_tape *t, int slot);
/* Forgets what is in flight, after an error. */
void neb__tape_abandon(neb_tape *t);

/* ---- the ends of a stage --------------------------------------------------------------------------------- */

/* A tensor (rows, cols) of the compute type that the stage before has computed: it lies in `value`, `at` bytes
 * from its beginning. The backward writes its gradient to the same place of `grad`. NULL: nothing before it is trained, and no
 * gradient is computed. */
neb_tensor *neb__op_stage_in(neb_tape *t, neb_buffer *value, neb_buffer *grad, size_t at, int64_t rows,
                             int64_t cols);
/* Copies x to `value` for the stage behind. The backward begins with the gradient that is in `grad` by then. */
void neb__op_stage_out(neb_tape *t, neb_tensor *x, neb_buffer *value, neb_buffer *grad, size_t at);

#endif
