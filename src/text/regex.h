/* regex.h: regular expressions of tokenizers, through PCRE2. A successful create owes a free. Searching is safe
 * from several threads at once; each has a struct of its own. */
#ifndef NEB_TEXT_REGEX_H
#define NEB_TEXT_REGEX_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct neb_regex;

/* The syntax is that of Oniguruma, as far as PCRE2 has the same: \w is rewritten; what would mean something else
 * is refused. NEB_ERR_UNSUPPORTED, NEB_ERR_NOMEM */
neb_status neb__regex_create(const char *pattern, struct neb_regex **out);
void neb__regex_free(struct neb_regex *r); /* NULL is fine */

struct neb_regex_search {
    const struct neb_regex *regex;
    const char *text; /* UTF-8 */
    size_t n, at;     /* at: where the search goes on */
    void *match;
};

/* A successful begin owes an end. NEB_ERR_NOMEM */
neb_status neb__regex_begin(const struct neb_regex *r, const char *text, size_t n,
                            struct neb_regex_search *out);
/* *found false: there is no further match. Matches are not empty.
 *   NEB_ERR_RANGE: the expression needs too long on this text */
neb_status neb__regex_next(struct neb_regex_search *s, bool *found, size_t *start, size_t *end);
void neb__regex_end(struct neb_regex_search *s);

#endif
