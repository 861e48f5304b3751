/* operator_words.h (internal): operators as a command line names them, one or several behind commas. */
#ifndef NEB_CLI_OPERATOR_WORDS_H
#define NEB_CLI_OPERATOR_WORDS_H

#include "seal/operators.h"

struct neb_operator_keys {
    struct neb_key *key[NEB_OPERATORS_MAX];
    uint32_t n;
};

/* DIR[,DIR…]: folders with the keys that sign. Success owes a free; so does a failure, which leaves those that were read. */
neb_status neb__operator_keys(const char *text, struct neb_operator_keys *out);
void neb__operator_keys_free(struct neb_operator_keys *k);

/* WHO[,WHO…]: folders or identities of the operators; threshold 0: more than half of them. */
neb_status neb__operator_set(const char *text, int64_t threshold, struct neb_operators *out);

/* The set that was in force before the one that epoch `epoch` of the chain made. */
struct neb_chain;
neb_status neb__operators_before(const struct neb_chain *chain, uint64_t epoch, struct neb_operators *out);

#endif
