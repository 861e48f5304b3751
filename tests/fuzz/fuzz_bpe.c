/* fuzz_bpe.c: any bytes as a vocab.json, a merges.txt and a text, with zero bytes between them. What is accepted encodes the
 * text, and ASCII of which every byte has a token is decoded to itself. */
#include "base/mem.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

#include <nebula/log.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct neb_tok *tok, const char *text, size_t n)
{
    const uint8_t *special = neb__tok_special_map(tok);
    struct neb_buf ids, back;
    bool plain = true;
    neb__buf_init(&ids, 1 << 20);
    neb__buf_init(&back, 1 << 20);
    if (neb__tok_encode(tok, text, n, &ids) != NEB_OK) abort();
    const int32_t *id = (const int32_t *)(const void *)ids.data;
    for (size_t i = 0; i < ids.len / 4; i++) {
        if (id[i] < 0 || id[i] >= neb__tok_vocab(tok)) abort();
        plain = plain && !special[id[i]];
    }
    for (size_t i = 0; i < n; i++) plain = plain && !(text[i] & 0x80);
    if (neb__tok_decode(tok, id, ids.len / 4, &back) != NEB_OK) abort();
    if (plain && (back.len != n || (n && memcmp(back.data, text, n)))) abort();
    neb__buf_free(&ids);
    neb__buf_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t held = neb__mem_held();
    const uint8_t *end = data + size, *merges = memchr(data, 0, size);
    const uint8_t *text = merges ? memchr(merges + 1, 0, (size_t)(end - merges - 1)) : NULL;
    struct neb_tok *tok;
    neb_log_set_level(NEB_LOG_NONE);
    if (!text || size > 4096) return 0;
    struct neb_bpe_files f = {data, (size_t)(merges - data), merges + 1, (size_t)(text - merges - 1)};
    if (neb__tok_open_bpe(&f, &tok) == NEB_OK) {
        use(tok, (const char *)text + 1, (size_t)(end - text - 1));
        neb__tok_close(tok);
    }
    if (neb__mem_held() != held) abort();
    return 0;
}
