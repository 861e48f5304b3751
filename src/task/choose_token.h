/* choose_token.h: which token comes next: the likeliest, or one that is drawn. */
#ifndef NEB_TASK_CHOOSE_TOKEN_H
#define NEB_TASK_CHOOSE_TOKEN_H

#include "base/rng.h"
#include "base/status.h"

#include <stdint.h>

struct neb_token_chooser {
    double temperature, top_p, repetition; /* temperature 0: the likeliest */
    int64_t top_k;                         /* 0: all */
    int32_t vocab;
    const uint8_t *absent; /* (vocab) 1: never chosen */
    uint8_t *seen; /* (vocab) 1: is in the text, so the repetition penalty lowers it; the caller's to write */
    struct neb_rng rng;
    struct neb_token_candidate *list; /* (vocab) */
};

/* Takes the fields above the caller's arrays; allocates `seen` and `list`. Owes a free. NEB_ERR_NOMEM */
neb_status neb__token_chooser_init(struct neb_token_chooser *c);
void neb__token_chooser_free(struct neb_token_chooser *c);

/* logits: (vocab), finite. */
int32_t neb__token_choose(struct neb_token_chooser *c, const float *logits);

#endif
