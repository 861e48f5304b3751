/* source_mix.h: the order in which samples are drawn from several sources; the languages are sampled with a
 * temperature, and each source is shuffled anew every epoch. A draw is a pure function of (seed, sources, number of the
 * draw), so any rank can compute any draw at any time. Only one cycle's table is held in memory. */
#ifndef NEB_TEXT_SOURCE_MIX_H
#define NEB_TEXT_SOURCE_MIX_H

#include "base/rng.h"
#include "base/status.h"

/* A keyed permutation of [0, n): where `i` goes. n > 0, i < n. */
uint64_t neb__mix_permute(uint64_t key, uint64_t n, uint64_t i);

struct neb_mix;

struct neb_pick {
    int source;
    int64_t sample; /* in the source */
    int64_t epoch;  /* how many times all of the source was drawn before */
};

/* How the shares are found.
 *   LANGUAGE: the tokens that come from a language are in proportion to (all its tokens)^(1/temperature): 1 follows the sizes, larger
 *             is more even. Inside a language every sample is as likely as another. A weight multiplies the share of its source.
 *   SOURCE:   draws are in proportion to weight * samples^(1/temperature), whatever the language; for positions that were saved by
 *             versions that sampled so. */
enum neb_mix_rule { NEB_MIX_BY_LANGUAGE, NEB_MIX_BY_SOURCE };

struct neb_mix_source {
    int64_t samples, tokens; /* > 0 */
    double weight;           /* > 0 */
    int language;            /* sources with equal numbers are of one language */
};

/* Owes a free. NEB_ERR_INVALID, NEB_ERR_NOMEM */
neb_status neb__mix_create(uint64_t seed, int sources, const struct neb_mix_source *source,
                           double temperature, enum neb_mix_rule rule, struct neb_mix **out);
void neb__mix_free(struct neb_mix *m); /* NULL is fine */

/* The draw with this number. Do not call it from two threads at once. */
struct neb_pick neb__mix_draw(struct neb_mix *m, uint64_t draw);

double neb__mix_share(const struct neb_mix *m, int source); /* as used: a multiple of 1/cycle */

#endif
