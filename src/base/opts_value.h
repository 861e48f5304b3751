/* opts_value.h: one value of an option, for opts.c. */
#ifndef NEB_BASE_OPTS_VALUE_H
#define NEB_BASE_OPTS_VALUE_H

#include "base/opts.h"

/* A field that is not a text. */
union neb_opt_value {
    bool truth;
    int64_t whole;
    double real;
};

bool neb__opt_is_whole(const struct neb_opt *o);
bool neb__opt_parse(const struct neb_opt *o, const char *text,
                    union neb_opt_value *out); /* out: on success */
void neb__opt_load(const struct neb_opt *o, const void *field, union neb_opt_value *out);
void neb__opt_store(const struct neb_opt *o, const union neb_opt_value *v, void *field);

/* Position among the choices; -1: not one of them. */
int neb__opt_word_at(const struct neb_opt *o, const char *word);
int neb__opt_number_at(const struct neb_opt *o, int64_t x);

/* Whether choices and range allow it. */
bool neb__opt_word_fits(const struct neb_opt *o, const char *word);
bool neb__opt_number_fits(const struct neb_opt *o, const union neb_opt_value *v); /* false for a NaN */

void neb__opt_write_range(const struct neb_opt *o, char *out,
                          size_t size);           /* "from 1 to 8", "above 0", "at least 1" */
const char *neb__opt_or(const struct neb_opt *o); /* what its range allows besides: ", or 0" or "" */
void neb__opt_write_choices(const struct neb_opt *o, char *out, size_t size); /* "a, b or c" */
void neb__opt_write_allowed(const struct neb_opt *o, char out[NEB_OPT_WHY]);  /* behind "'x' is not " */

#endif
