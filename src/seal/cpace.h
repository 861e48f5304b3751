/* cpace.h: CPace, a balanced password-authenticated key exchange (draft-irtf-cfrg-cpace, CPACE-RISTR255-SHA512, with an
 * initiator and a responder), and its key confirmation.
 *
 * Two that share a short secret agree on a strong key over a channel that anybody may read and change. Whoever is in between
 * learns nothing about the secret but whether one guess was right, and must take part in an exchange for each guess.
 *
 *     neb__cpace_begin(&c, initiator, secret, ci, sid, ad)     c.share goes to the other, with ad
 *     neb__cpace_finish(&c, their_share, their_ad)             NEB_ERR_AUTH: not a share
 *     neb__cpace_tag(&c, own_tag)                              goes to the other
 *     neb__cpace_check(&c, their_tag)                          NEB_ERR_AUTH: another secret, ci, sid, or a changed message
 *
 * A key of c.isk must not be used before the check. neb__cpace_wipe() ends it, whatever happened. */
#ifndef NEB_SEAL_CPACE_H
#define NEB_SEAL_CPACE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NEB_CPACE_SHARE = 32, NEB_CPACE_KEY = 64, NEB_CPACE_TAG = 64, NEB_CPACE_INPUT_MAX = 256 };

/* Up to NEB_CPACE_INPUT_MAX bytes. */
struct neb_bytes {
    const void *p;
    size_t n;
};

struct neb_cpace {
    bool initiator;
    uint8_t scalar[32], share[NEB_CPACE_SHARE], their_share[NEB_CPACE_SHARE];
    uint8_t sid[NEB_CPACE_INPUT_MAX], ad[NEB_CPACE_INPUT_MAX], their_ad[NEB_CPACE_INPUT_MAX];
    size_t sid_n, ad_n, their_ad_n;
    uint8_t isk[NEB_CPACE_KEY]; /* after neb__cpace_finish() */
};

/* NEB_ERR_INVALID: an input is too long; NEB_ERR_INTERNAL. */
neb_status neb__cpace_begin(struct neb_cpace *c, bool initiator, struct neb_bytes secret, struct neb_bytes ci,
                            struct neb_bytes sid, struct neb_bytes ad);
neb_status neb__cpace_finish(struct neb_cpace *c, const uint8_t their_share[NEB_CPACE_SHARE],
                             struct neb_bytes their_ad);
void neb__cpace_tag(const struct neb_cpace *c, uint8_t out[NEB_CPACE_TAG]);
neb_status neb__cpace_check(const struct neb_cpace *c, const uint8_t their_tag[NEB_CPACE_TAG]);
void neb__cpace_wipe(struct neb_cpace *c);

/* For tests: the same with a given scalar, as the draft's test vectors have it. */
neb_status neb__cpace_begin_with(struct neb_cpace *c, bool initiator, struct neb_bytes secret,
                                 struct neb_bytes ci, struct neb_bytes sid, struct neb_bytes ad,
                                 const uint8_t scalar[32]);

#endif
