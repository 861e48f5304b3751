/* fuzz_wordpiece.c: any bytes as a vocab.txt and a text, with a zero byte between them; the first byte says whether case
 * counts. What is accepted encodes the text to ids of the vocabulary, and decodes them. */
#include "base/mem.h"
#include "text/tokenizer.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct neb_tok *tok, const char *text, size_t n)
{
    struct neb_buf ids, back;
    neb__buf_init(&ids, 1 << 20);
    neb__buf_init(&back, 1 << 20);
    if (neb__tok_encode(tok, text, n, &ids) != NEB_OK) abort();
    const int32_t *id = (const int32_t *)(const void *)ids.data;
    for (size_t i = 0; i < ids.len / 4; i++) {
        if (id[i] < 0 || id[i] >= neb__tok_vocab(tok)) abort();
        const char *piece = neb__tok_piece(tok, id[i]);
        if (!piece || neb__tok_id(tok, piece) < 0) abort();
    }
    if (neb__tok_decode(tok, id, ids.len / 4, &back) != NEB_OK) abort();
    neb__buf_free(&ids);
    neb__buf_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t held = neb__mem_held();
    struct neb_tok *tok;
    neb_log_set_level(NEB_LOG_NONE);
    const uint8_t *text = size > 1 && size < 4096 ? memchr(data + 1, 0, size - 1) : NULL;
    if (!text) return 0;
    struct neb_tok_cfg cfg = {.cased = data[0] & 1};
    if (neb__tok_open_bytes(data + 1, (size_t)(text - data - 1), 1, &cfg, &tok) == NEB_OK) {
        use(tok, (const char *)text + 1, (size_t)(data + size - text - 1));
        neb__tok_close(tok);
    }
    if (neb__mem_held() != held) abort();
    return 0;
}
