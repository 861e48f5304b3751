/* private_step.h: a training step whose result hides every single sample. */
#ifndef NEB_OPTIM_PRIVATE_STEP_H
#define NEB_OPTIM_PRIVATE_STEP_H

#include "privacy/step_noise.h"

#include <nebula/engine.h>

struct neb_private_step {
    double clip;    /* longest gradient of a sample's mean loss */
    double samples; /* expected number of samples of a step; the sum is divided by it */
    struct neb_noise *noise;
    struct neb_step_key key; /* of this step alone, the same at all ranks */
    int64_t *sum;            /* (trainable values) */
    /* Gives the micro-batch of this rank's next sample of the step. NEB_ERR_AGAIN: there is none. */
    neb_status (*next)(void *arg, struct neb_micro *out);
    void *arg;
    uint64_t order; /* of the draw of all ranks, as next() leaves it: it must be the same at each of them */
    /* of the last step, over all ranks: */
    int64_t drawn, clipped;
    double weight;
    struct neb_hash mark; /* equal marks: the same result under the same key */
};

/* Whether this optimizer can: NEB_ERR_UNSUPPORTED says why not. */
neb_status neb__private_step_check(const neb_optimizer *o);
/* As neb_train_step(). The loss is the mean over the drawn samples' tokens; it is not private. A step without a sample changes
 * the parameters, too, by noise alone. */
neb_status neb__private_step(neb_optimizer *o, neb_tape *t, struct neb_private_step *p, float lr,
                             uint32_t seed, struct neb_step_info *info);

#endif
