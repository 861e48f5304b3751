/* rtd_sampler.h: replaced-token detection: the generator's choices at the masked rows. A successful create
 * owes a free. */
#ifndef NEB_TASK_RTD_SAMPLER_H
#define NEB_TASK_RTD_SAMPLER_H

#include "nn/model_input.h"
#include "text/batch.h"
#include "text/tokenizer.h"

struct neb_sampler;

struct neb_sampler_config {
    const struct neb_tok *tok;
    neb_device *dev;      /* where the logits are */
    int32_t rows, masked; /* the largest batch */
    uint32_t seed;
    int threads;
    bool draws; /* false: choices come from elsewhere, no logits are read */
};

neb_status neb__sampler_create(const struct neb_sampler_config *c, struct neb_sampler **out);
void neb__sampler_free(struct neb_sampler *s); /* NULL is fine */

/* Draws a token at every masked row from the generator's logits (masked, vocabulary), F32 on the device. They
 * stay there if it can draw. A choice depends on (seed, sample, position) and the logits alone. *sampled
 * (loss.n) stays the sampler's until the next call. */
neb_status neb__sampler_draw(struct neb_sampler *s, const struct neb_batch *b, const neb_buffer *logits,
                             int32_t **sampled);
int32_t *neb__sampler_room(struct neb_sampler *s); /* (masked): where choices from elsewhere are put */

/* Makes `input` the discriminator's: ids with the choices in them, and for every real row whether it was
 * replaced. The weights of all rows sum to `total`. The arrays stay the sampler's, valid until the next call.
 *   NEB_ERR_RANGE: a choice is not in the vocabulary */
neb_status neb__sampler_replace(struct neb_sampler *s, const struct neb_batch *b, const int32_t *sampled,
                                float total, struct neb_model_input_data *input);

#endif
