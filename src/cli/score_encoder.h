/* score_encoder.h: the scores of `nebula-i score --encoder`: BERTScore, cosines of whole sentences, a COMET estimator's. */
#ifndef NEB_CLI_SCORE_ENCODER_H
#define NEB_CLI_SCORE_ENCODER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_score_encoder;

struct neb_score_encoder_config {
    const char *folder, *device;
    const char *estimator;  /* file of a COMET metric behind this encoder (task/estimator.h); NULL: none */
    int64_t layer, threads; /* layer 0: the last */
    int refs;
    bool source; /* every sentence comes with its source */
};

/* Owes a close. */
neb_status neb__score_encoder_open(const struct neb_score_encoder_config *c, struct neb_score_encoder **out);
void neb__score_encoder_close(struct neb_score_encoder *s); /* NULL is fine */

/* Texts are copied. source: NULL without one. */
neb_status neb__score_encoder_add(struct neb_score_encoder *s, const char *hyp, char *const *ref,
                                  const char *source);
/* Means over all sentences, printed. */
neb_status neb__score_encoder_say(struct neb_score_encoder *s);

#endif
