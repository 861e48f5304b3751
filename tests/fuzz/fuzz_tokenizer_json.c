/* fuzz_tokenizer_json.c: any bytes as a tokenizer.json and a text, with a zero byte between them. What is accepted
 * cuts the text into ids of the vocabulary that are not special, or refuses the text, and decodes them. */
#include "base/mem.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct neb_tok *tok, const char *text, size_t n)
{
    struct neb_buf ids, back;
    neb__buf_init(&ids, 1 << 20);
    neb__buf_init(&back, 1 << 20);
    neb_status status = neb__tok_encode(tok, text, n, &ids);
    const int32_t *id = (const int32_t *)(const void *)ids.data;
    for (size_t i = 0; status == NEB_OK && i < ids.len / 4; i++)
        if (id[i] < 0 || id[i] >= neb__tok_vocab(tok) || !neb__tok_piece(tok, id[i])) abort();
    if (status == NEB_OK) (void)neb__tok_decode(tok, id, ids.len / 4, &back);
    neb__buf_free(&ids);
    neb__buf_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char config[] =
        "{\"eos_token\": \"</s>\", \"unk_token\": \"<unk>\", \"bos_token\": \"<s>\"}";
    int64_t held = neb__mem_held();
    struct neb_tok *tok;
    neb_log_set_level(NEB_LOG_NONE);
    const uint8_t *text = size > 1 && size < 65536 ? memchr(data, 0, size) : NULL;
    if (!text) return 0;
    struct neb_tj_files f = {data, (size_t)(text - data), config, sizeof config - 1};
    if (neb__tok_open_json(&f, &tok) == NEB_OK) {
        use(tok, (const char *)text + 1, (size_t)(data + size - text - 1));
        neb__tok_close(tok);
    }
    if (neb__mem_held() != held) abort();
    return 0;
}
