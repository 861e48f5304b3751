/* tutor.h: a teacher on this site: a model folder that is asked about batches. */
#ifndef NEB_TASK_TUTOR_H
#define NEB_TASK_TUTOR_H

#include "nn/feed.h"
#include "task/links.h"
#include "text/tok.h"

struct neb_tutor_config {
    const char *folder;
    bool logits;               /* else hidden states */
    int32_t k;                 /* logits a row */
    int threads;               /* for choosing the likeliest */
    const struct neb_tok *tok; /* the student's: the teacher's must be the same */
    int sides;                 /* of the batches */
};

/* limits: the largest batch it will be asked about. Owes a close.
 *   NEB_ERR_CONFIG: another tokenizer, or a model that cannot read such batches; and those of the engine */
neb_status neb__tutor_open(neb_device *device, const struct neb_tutor_config *c,
                           const struct neb_feed_limits *limits, struct neb_tutor *out);

/* A packed batch as a model's feed. */
struct neb_feed_data neb__feed_of(const struct neb_batch *b);

#endif
