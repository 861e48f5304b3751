/* token_mass.h: what a teacher with another tokenizer says about the student's next token. */
#ifndef NEB_TEXT_TOKEN_MASS_H
#define NEB_TEXT_TOKEN_MASS_H

#include "text/surfaces.h"

struct neb_token_mass;

/* own: the student's tokenizer. Both stay the caller's. Owes a free. NEB_ERR_CONFIG, NEB_ERR_NOMEM */
neb_status neb__token_mass_make(const struct neb_tok *own, const struct neb_tok *teachers,
                                struct neb_token_mass **out);
void neb__token_mass_free(struct neb_token_mass *m); /* NULL is fine */

const struct neb_surfaces *neb__token_mass_own(const struct neb_token_mass *m);
const struct neb_surfaces *neb__token_mass_teachers(const struct neb_token_mass *m);

/* One text cut into tokens twice. */
struct neb_token_cuts {
    const char *text; /* with a space in front, as neb__surfaces_join() writes it; both give the same */
    const int32_t *own, *own_ends;
    const int32_t *its, *its_ends; /* the teacher's */
    int32_t own_n, its_n;
};

/* The teacher's likeliest tokens, of which row j is about its token j; row its_n is about the end. */
struct neb_token_says {
    const int32_t *ids;  /* (its_n + 1, k); < 0: none */
    const float *logits; /* (its_n + 1, k) */
    int32_t k;
    bool whole; /* the logits are log-probabilities: what lies below a row's k-th token goes to nobody */
};

/* Room of one thread for the sum of a row. */
enum { NEB_TOKEN_MASS_HOPS = 8 };
struct neb_token_sum {
    int32_t *ids; /* (NEB_TOKEN_MASS_HOPS * k) */
    float *p;
    int32_t n;
};

/* The k likeliest of the student's tokens after its first `row` ones, as logarithms; ids of -1 where there are fewer.
 * Row own_n is about the end. */
void neb__token_mass_row(const struct neb_token_mass *m, const struct neb_token_cuts *cuts,
                         const struct neb_token_says *says, int32_t row, struct neb_token_sum *sum, int32_t k,
                         int32_t *ids, float *logits);

#endif
