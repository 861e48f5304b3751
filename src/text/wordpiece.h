/* wordpiece.h: BERT's tokenizer: a basic split into words, then the longest known piece first. */
#ifndef NEB_TEXT_WORDPIECE_H
#define NEB_TEXT_WORDPIECE_H

#include "base/buf.h"

struct neb_wp;

/* From the bytes of a vocab.txt. A successful load owes a free. NEB_ERR_CORRUPT, NEB_ERR_NOMEM */
neb_status neb__wp_load(const void *bytes, size_t n, int cased, struct neb_wp **out);
void neb__wp_free(struct neb_wp *wp);

int32_t neb__wp_size(const struct neb_wp *wp);
int32_t neb__wp_id(const struct neb_wp *wp, const char *piece, size_t n); /* or -1 */
const char *neb__wp_piece(const struct neb_wp *wp, int32_t id);           /* or NULL */

/* As neb__tok_encode and neb__tok_decode. `unk` stands for words that have no pieces. */
neb_status neb__wp_encode(const struct neb_wp *wp, int32_t unk, const char *text, size_t n,
                          struct neb_buf *out);
neb_status neb__wp_decode(const struct neb_wp *wp, const uint8_t *special, const int32_t *ids, size_t n,
                          struct neb_buf *out);

#endif
