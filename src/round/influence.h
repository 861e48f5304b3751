/* influence.h: the rule of a run that limits what one site can do to the model. It is a fact of the genesis, so it is the
 * same at every site and cannot change. A run whose genesis has no such fact has no rule.
 *
 * Weights and tokens are limited here, by the record alone. The lengths of updates are limited in outer/norms.c, and the
 * coordinates of `trimmed` and `median` in outer/outer.c. */
#ifndef NEB_ROUND_INFLUENCE_H
#define NEB_ROUND_INFLUENCE_H

#include "round/record.h"

enum neb_combine { NEB_COMBINE_MEAN, NEB_COMBINE_TRIMMED, NEB_COMBINE_MEDIAN };

struct neb_influence {
    bool on;
    float clip;          /* an update is made as short as this many times the usual length; 0: no limit */
    float bound;         /* the greatest length while fewer than three sites have sent; 0: none */
    uint8_t combine;     /* enum neb_combine */
    uint8_t liars;       /* trimmed, median: so many sites may lie; 2 * liars + 1 updates are needed */
    bool equal;          /* every update weighs the same */
    uint32_t weight_max; /* 0: four times the middle weight of the record */
    uint8_t steps;       /* steps count up to this many times the middle number of the record; 0: eight */
};

#define NEB_INFLUENCE_FACT "influence" /* its name in the genesis */
/* A fast site makes up to 16 times as many steps between two updates as the others (run/tempo.c). */
#define NEB_INFLUENCE_DEFAULT "clip=2 steps=16"
enum { NEB_INFLUENCE_TEXT = 128 };

/* Words `clip=F`, `bound=F`, `combine=mean|trimmed|median`, `liars=N`, `weights=equal|auto|N`, `steps=N`, in any order; `off` alone:
 * no rule. `sites`: how many train at the start; 0: not known. NEB_ERR_CONFIG says which word does not fit. */
neb_status neb__influence_parse(const char *text, uint32_t sites, struct neb_influence *out);

/* The weights that count, in the order of the record's updates, rejected ones included. */
void neb__influence_weights(const struct neb_influence *rule, const struct neb_record *rec, uint32_t *out);
/* The tokens of update i that count: not more than its steps can have seen. With a robust rule also not more than the
 * middle update of the record has, as all weigh the same. */
uint64_t neb__influence_tokens(const struct neb_influence *rule, const struct neb_record *rec, uint32_t i);

/* Which of the n updates of a record a robust rule leaves out, by their lengths: those that are more than twice as long as
 * the clip allows, by the middle length of this record. The longest go first, and 2 * liars + 1 always stay. */
void neb__influence_outliers(const struct neb_influence *rule, const double *norm, uint32_t n, bool *out);

#endif
