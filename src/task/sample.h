/* sample.h: replaced-token detection: the generator's choices at the masked rows. A successful create owes a free. */
#ifndef NEB_TASK_SAMPLE_H
#define NEB_TASK_SAMPLE_H

#include "nn/feed.h"
#include "text/batch.h"
#include "text/tok.h"

struct neb_sampler;

neb_status neb__sampler_create(const struct neb_tok *tok, int32_t rows, int32_t masked, uint32_t seed,
                               struct neb_sampler **out);
void neb__sampler_free(struct neb_sampler *s); /* NULL is fine */

/* Draws a token at every masked row from the generator's logits (masked, vocabulary), F32 on the device, and makes
 * `feed` the discriminator's: ids with the choices in them, for every real row whether it was replaced. The weights of
 * all rows sum to `total`. What is drawn depends on (seed, sample, position) and the logits alone. The arrays stay the
 * sampler's, valid until the next call. */
neb_status neb__sampler_replace(struct neb_sampler *s, const struct neb_batch *b, const neb_buffer *logits,
                                float total, struct neb_feed_data *feed);

#endif
