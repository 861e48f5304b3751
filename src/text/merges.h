/* merges.h: the merges of byte-pair encoding, and joining the tokens of a word by them. */
#ifndef NEB_TEXT_MERGES_H
#define NEB_TEXT_MERGES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct neb_merges;

/* For up to `count` merges. A successful create owes a free. NEB_ERR_NOMEM */
neb_status neb__merges_create(size_t count, struct neb_merges **out);
void neb__merges_free(struct neb_merges *m); /* NULL is fine */

/* The pair (left, right), both not negative, becomes `result`; a smaller rank comes first. Among equal pairs
 * the last one put counts. */
void neb__merges_put(struct neb_merges *m, int32_t left, int32_t right, int32_t result, int32_t rank);

/* Joins the tokens of one word in place; *n becomes the number that is left. A negative token is in no pair.
 * NEB_ERR_NOSPACE: the word is too long; NEB_ERR_NOMEM */
neb_status neb__merges_join(const struct neb_merges *m, int32_t *tokens, size_t *n);

#endif
