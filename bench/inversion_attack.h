/* inversion_attack.h (of bench inversion): what an attacker reads from updates of the token table, and whose it says it is. */
#ifndef NEB_BENCH_INVERSION_ATTACK_H
#define NEB_BENCH_INVERSION_ATTACK_H

#include "base/status.h"

#include <stdint.h>

enum { NEB_INVERSION_SITES = 3 }; /* in a secure sum */

/* One update of the token table, and the truth about it. */
struct neb_inversion {
    float *d;    /* (vocab, width) */
    uint8_t *in; /* (vocab) 1: the token stands in the text */
    int64_t vocab, width, tokens;
};
void neb__inversion_free(struct neb_inversion *u);

/* The findings, over all attacks. */
struct neb_found {
    double right, guessed, chance;
};

/* Guesses as many tokens as the text has. */
neb_status neb__inversion_attack(const struct neb_inversion *u, struct neb_found *out);

/* The updates of some sites that began with the same model.
 *   sum     tokens found in the sum of the updates, of all that stand in the texts of the sites
 *   plain   of those found that stand in the text of one site alone: the right site is named, by its update in the clear
 *   secure  the same by what leaves a site under secure aggregation: its masked codes */
struct neb_inversion_sums {
    struct neb_found sum, plain, secure;
};
neb_status neb__inversion_sum(const struct neb_inversion site[NEB_INVERSION_SITES],
                              struct neb_inversion_sums *out);

#endif
