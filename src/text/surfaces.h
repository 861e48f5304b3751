/* surfaces.h: the bytes that each token of a tokenizer writes inside a text, and the token that a text begins with.
 *
 * A token that begins a word has the space before it in its surface, whatever the tokenizer's own spelling of it is. So the
 * surfaces of two tokenizers can be laid side by side. A successful make owes a free. */
#ifndef NEB_TEXT_SURFACES_H
#define NEB_TEXT_SURFACES_H

#include "text/tokenizer.h"

struct neb_surfaces;

/* NEB_ERR_CONFIG: no token of the tokenizer writes anything; NEB_ERR_NOMEM */
neb_status neb__surfaces_make(const struct neb_tok *tok, struct neb_surfaces **out);
void neb__surfaces_free(struct neb_surfaces *s); /* NULL is fine */

/* *n is 0 for special tokens, for <unk> and for tokens outside the vocabulary. */
const char *neb__surface_of(const struct neb_surfaces *s, int32_t id, size_t *n);

/* The token with the longest surface that `text` begins with; -1: none. */
int32_t neb__surface_longest(const struct neb_surfaces *s, const char *text, size_t n);

/* Writes the surfaces of n tokens one after the other, with a space in front of all. ends (n + 1) gets the place after the
 * first i tokens; ends[0] is 0 if the first token brings that space itself, else 1.
 *   NEB_ERR_NOTFOUND (quiet): a token has no surface; NEB_ERR_NOMEM, NEB_ERR_NOSPACE */
neb_status neb__surfaces_join(const struct neb_surfaces *s, const int32_t *ids, int32_t n,
                              struct neb_buf *text, int32_t *ends);

#endif
