/* bpe_dropout.h: other ways to cut a text into the pieces of a vocabulary, so that a small corpus teaches
 * more about its pieces (BPE-dropout, Provilkov et al. 2020). A successful create owes a free. */
#ifndef NEB_TEXT_BPE_DROPOUT_H
#define NEB_TEXT_BPE_DROPOUT_H

#include "text/tokenizer.h"

struct neb_bpe_dropout;

/* `share`: share of the merges that are left out, from 0 (the tokenizer's own cut) to 1 (single characters).
 * For BPE models of SentencePiece. NEB_ERR_CONFIG: another kind of tokenizer, one with added symbols, or an
 * impossible share; NEB_ERR_NOMEM */
neb_status neb__bpe_dropout_create(const struct neb_tok *tok, double share, struct neb_bpe_dropout **out);
void neb__bpe_dropout_free(struct neb_bpe_dropout *v); /* NULL is fine */

/* Cuts the text of `ids` anew and appends the new ids (int32_t). The result is a function of the ids, the
 * share and the key. Safe from several threads at once. NEB_ERR_NOSPACE: out->max; NEB_ERR_NOMEM */
neb_status neb__bpe_dropout_cut(const struct neb_bpe_dropout *v, const int32_t *ids, size_t n, uint64_t key,
                                struct neb_buf *out);

#endif
