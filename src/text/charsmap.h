/* charsmap.h: SentencePiece's precompiled character map, as tokenizer.json carries it. A successful load owes a
 * free. */
#ifndef NEB_TEXT_CHARSMAP_H
#define NEB_TEXT_CHARSMAP_H

#include "base/buf.h"

struct neb_charsmap;

/* base64: the text of precompiled_charsmap. NEB_ERR_CORRUPT, NEB_ERR_NOMEM */
neb_status neb__charsmap_load(const char *base64, struct neb_charsmap **out);
void neb__charsmap_free(struct neb_charsmap *m); /* NULL is fine */

/* Appends the text with its characters replaced. The text is UTF-8. */
neb_status neb__charsmap_apply(const struct neb_charsmap *m, const char *text, size_t n, struct neb_buf *out);

#endif
