/* bpe.h: GPT-2's tokenizer: byte-level byte-pair encoding, from vocab.json and merges.txt. */
#ifndef NEB_TEXT_BPE_H
#define NEB_TEXT_BPE_H

#include "base/buf.h"

struct neb_bpe;

struct neb_bpe_files {
    const void *vocab; /* vocab.json */
    size_t vocab_bytes;
    const void *merges; /* merges.txt */
    size_t merges_bytes;
};

/* A successful load owes a free. The message of NEB_ERR_CORRUPT says what is wrong and where;
 * NEB_ERR_NOMEM */
neb_status neb__bpe_load(const struct neb_bpe_files *files, struct neb_bpe **out);
void neb__bpe_free(struct neb_bpe *b);

int32_t neb__bpe_size(const struct neb_bpe *b);
int32_t neb__bpe_id(const struct neb_bpe *b, const char *piece, size_t n); /* as in vocab.json, or -1 */
const char *neb__bpe_piece(const struct neb_bpe *b, int32_t id);           /* or NULL */

/* As neb__tok_encode and neb__tok_decode. `unk` stands for bytes that are not in the vocabulary. Text that
 * looks like a special token stays text. Decoded bytes that are not UTF-8 become U+FFFD. */
neb_status neb__bpe_encode(const struct neb_bpe *b, int32_t unk, const char *text, size_t n,
                           struct neb_buf *out);
neb_status neb__bpe_decode(const struct neb_bpe *b, const uint8_t *special, const int32_t *ids, size_t n,
                           struct neb_buf *out);

#endif
