/* pipeline.h (internal): the stages of a model at the ranks of a site.
 *
 * Each rank of a pipeline holds one stage. A micro-batch goes forwards through all of them and then backwards.
 * The order is 1F1B (Narayanan et al. 2021): a stage first makes as many forwards as there are stages behind
 * it, then a forward and a backward in turn, then the backwards that are left. So at most (stages - stage)
 * micro-batches are in flight at a stage, and each of them has a slot of the tape (tensor/slot.h). A stage
 * idles for (stages - 1) / (micro-batches + stages - 1) of a step.
 *
 * The gradients of a stage are added up in the order of the micro-batches, as one process does it. */
#ifndef NEB_OPTIM_PIPELINE_H
#define NEB_OPTIM_PIPELINE_H

#include "base/status.h"
#include "group/channel.h"

#include <nebula/engine.h>

struct neb_stage_turn {
    bool backward;
    int micro;
};

/* Turn i of 2 * micros of this stage. */
struct neb_stage_turn neb__pipeline_turn(int stage, int stages, int micros, int i);

/* Where the next forward finds its input and leaves its output, and their gradients; NULL at the ends of the
 * model. */
struct neb_stage_ports {
    neb_buffer *in, *in_grad, *out, *out_grad;
};

/* Called before a micro-batch is loaded: from now on inputs of `slot` are used, and these ports. */
typedef void (*neb_enter_stage_fn)(void *arg, int slot, const struct neb_stage_ports *ports);

struct neb_pipeline;

/* Collective over `g`, the ranks of one pipeline in the order of their stages. bytes: of the largest message
 * between stage s and stage s + 1. The tape gets its slots.
 *   NEB_ERR_NOMEM, NEB_ERR_LIMIT */
neb_status neb__pipeline_open(struct neb_group *g, neb_device *d, neb_tape *t, const size_t *bytes,
                              neb_enter_stage_fn enter, void *arg, struct neb_pipeline **out);
void neb__pipeline_close(struct neb_pipeline *p); /* NULL is fine */

int neb__pipeline_slots(const struct neb_pipeline *p);

/* Forwards and backwards of a step's micro-batches. */
neb_status neb__pipeline_run(struct neb_pipeline *p, const struct neb_micro *micros, int n);
/* One run forwards only, over the inputs of slot 0; `run` must not ask for gradients. */
neb_status neb__pipeline_forward(struct neb_pipeline *p, const struct neb_run *run);

/* Seconds of all steps so far, and those of them in which this stage waited for a neighbour. */
void neb__pipeline_times(const struct neb_pipeline *p, double *all_s, double *idle_s);

#endif
