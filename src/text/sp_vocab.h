/* sp_vocab.h: SentencePiece models whose pieces another file numbers: Marian's source.spm, target.spm and vocab.json;
 * M2M100's, whose one model serves both sides. A successful load owes a free. Encoding and decoding are safe from
 * several threads at once. */
#ifndef NEB_TEXT_SP_VOCAB_H
#define NEB_TEXT_SP_VOCAB_H

#include "base/buf.h"

struct neb_spv;

struct neb_spv_files {
    const void *source, *target, *vocab; /* target NULL: the source's serves both sides */
    size_t source_bytes, target_bytes, vocab_bytes;
};

/* NEB_ERR_CORRUPT: the message says where; NEB_ERR_NOMEM */
neb_status neb__spv_load(const struct neb_spv_files *files, struct neb_spv **out);
void neb__spv_free(struct neb_spv *v); /* NULL is fine */

int32_t neb__spv_size(const struct neb_spv *v);
int32_t neb__spv_id(const struct neb_spv *v, const char *piece); /* or -1 */
const char *neb__spv_piece(const struct neb_spv *v, int32_t id); /* or NULL */
int neb__spv_is_language(const struct neb_spv *v, int32_t id);   /* >>fra<<, __fr__ */
int neb__spv_two(const struct neb_spv *v);                       /* the two sides have models of their own */

/* As neb__tok_encode and neb__tok_decode. side: 0 the source's model, 1 the target's. A source may begin with a
 * language in Marian's notation, >>fra<<. */
neb_status neb__spv_encode(const struct neb_spv *v, int side, int32_t unk, const char *text, size_t n,
                           struct neb_buf *out);
neb_status neb__spv_decode(const struct neb_spv *v, const uint8_t *control, const int32_t *ids, size_t n,
                           struct neb_buf *out);

#endif
