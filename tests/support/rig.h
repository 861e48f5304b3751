/* rig.h: a model with everything it needs to run, on the CPU device, for tests. */
#ifndef NEB_TEST_RIG_H
#define NEB_TEST_RIG_H

#include "group/layout.h"
#include "nn/model.h"
#include "tensor/team.h"

/* A random batch: its arrays are owned. */
struct rig_batch {
    struct neb_model_input_data data;
    int32_t *memory;
};

/* The ranks that share the rigs which are opened from now on; NULL: none. */
extern const struct neb_layout *rig_layout;
/* Their optimizer. */
extern neb_optimizer_kind rig_optimizer;
extern neb_dtype rig_compute; /* what their devices compute in */
extern bool rig_sequence;     /* the ranks of its tensor group share rows, too */

struct rig {
    struct neb_team team;
    neb_device *device;
    neb_params *params;
    struct neb_model *model;
    struct neb_model_input *feed;
    neb_tape *tape;
    neb_optimizer *optimizer;
    neb_buffer *logits; /* of the last rig_logits() */
    int64_t logit_rows, logit_cols;
};

/* `options` and `peft` are "name=value name=value …", on top of the family; threads 0: two. Everything that fails along
 * the way is returned, and nothing is held then. */
neb_status rig_open(struct rig *r, const char *family, const char *options, const char *peft, int threads);
/* The same for one of several stages of the model. */
neb_status rig_open_stage(struct rig *r, const char *family, const char *options, const char *peft, int stage,
                          int stages);
void rig_close(struct rig *r);

/* Sequences of the given lengths (ending in 0) with ids below vocab and sample ids from first_sample; targets by the
 * model's head. target lengths only for an encoder-decoder (else NULL). Sequence i's content depends on its sample id
 * alone. */
void rig_batch_make(struct rig_batch *b, const struct neb_model *m, const int *lengths,
                    const int *target_lengths, uint32_t first_sample);
void rig_batch_free(struct rig_batch *b);

/* Loss of the batch; grad: also gradients. seed: of dropout, with train. */
neb_status rig_run(struct rig *r, bool grad, bool train, uint32_t seed, double *loss);
/* Logits of the loaded batch at the targets' rows, on the host; the caller frees. */
neb_status rig_logits(struct rig *r, float **out);
neb_status rig_step(struct rig *r, float lr, uint32_t seed, float *loss);

#endif
