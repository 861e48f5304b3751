/* tokenizer_json.h: tokenizers from tokenizer.json, the file of the tokenizers library: a normaliser,
 * pre-tokenisers, a model (BPE, Unigram or WordPiece) and decoders, all described by the file. A successful load
 * owes a free. Encoding and decoding are safe from several threads at once. */
#ifndef NEB_TEXT_TOKENIZER_JSON_H
#define NEB_TEXT_TOKENIZER_JSON_H

#include "text/tokenizer.h"

struct neb_tj;

struct neb_tj_files {
    const void *json; /* tokenizer.json */
    size_t json_bytes;
    const void *config; /* tokenizer_config.json, which says which token begins a text, ends it and so on */
    size_t config_bytes;
};

/* NEB_ERR_CORRUPT: the message says where; NEB_ERR_UNSUPPORTED: a part that would give other ids; NEB_ERR_NOMEM */
neb_status neb__tj_load(const struct neb_tj_files *files, struct neb_tj **out);
void neb__tj_free(struct neb_tj *t); /* NULL is fine */

int32_t neb__tj_size(const struct neb_tj *t);
int32_t neb__tj_id(const struct neb_tj *t, const char *piece, size_t n); /* or -1 */
const char *neb__tj_piece(const struct neb_tj *t, int32_t id);           /* or NULL */
int32_t neb__tj_special(const struct neb_tj *t, enum neb_special which); /* or -1 */
int neb__tj_adds_start(const struct neb_tj *t);             /* a text begins with the start token */
int neb__tj_is_control(const struct neb_tj *t, int32_t id); /* an added special token */

/* As neb__tok_encode and neb__tok_decode. Text that looks like a special token stays text. */
neb_status neb__tj_encode(const struct neb_tj *t, const char *text, size_t n, struct neb_buf *out);
/* As neb__tok_encode_special. */
neb_status neb__tj_encode_special(const struct neb_tj *t, const char *text, size_t n, const uint8_t *plain,
                                  struct neb_buf *out);
neb_status neb__tj_decode(const struct neb_tj *t, const int32_t *ids, size_t n, struct neb_buf *out);

#endif
