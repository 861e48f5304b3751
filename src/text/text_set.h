/* text_set.h: a set of texts, kept as 64-bit hashes. Two texts of one hash count as one, which a corpus of millions
 * meets about once in a million. */
#ifndef NEB_TEXT_TEXT_SET_H
#define NEB_TEXT_TEXT_SET_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero: empty. Owes a neb__text_set_free(). */
struct neb_text_set {
    uint64_t *slot;
    size_t mask, n;
};

uint64_t neb__text_hash(const char *s);                     /* never 0 */
uint64_t neb__text_pair_hash(const char *a, const char *b); /* likewise; of the two in this order */

bool neb__text_set_has(const struct neb_text_set *s, uint64_t hash);
neb_status neb__text_set_add(struct neb_text_set *s, uint64_t hash); /* NEB_ERR_NOMEM */
void neb__text_set_free(struct neb_text_set *s);

#endif
