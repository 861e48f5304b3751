/* fuzz_pairing.c: what somebody sends who claims to be the other site of a pairing; and codes as people type them. */
#include "seal/pairing.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct neb_pair_code code = {4821, {1, 2, 3}};
    static const struct neb_public relay = {{1}};
    static struct neb_pairing p;
    static uint8_t out[8192];
    static bool ready;
    struct neb_pair_code parsed;
    struct neb_member m;
    char text[256];
    neb_log_set_level(NEB_LOG_NONE);
    if (!ready && neb__pairing_begin(&p, true, &code, &relay, out) != NEB_OK) abort();
    ready = true;
    if (!size || size > 4096) return 0;
    struct neb_pairing now = p;
    switch (data[0] & 7) {
    case 0: neb__pairing_hello(&now, data + 1, size - 1, out); break;
    case 1:
        if (neb__pairing_proof(&now, data + 1, size - 1) == NEB_OK) abort();
        break;
    case 2:
        if (neb__pairing_open(&now, data + 1, size - 1, out) == NEB_OK) abort();
        break;
    case 3:
        now.proved = true;
        neb__pairing_open(&now, data + 1, size - 1, out);
        break;
    case 4: neb__pair_card_read(&now, data + 1, size - 1, &m); break;
    default:
        if (size > sizeof text) break;
        memcpy(text, data + 1, size - 1);
        text[size - 1] = 0;
        if (neb__pair_code_parse(text, &parsed) == NEB_OK) {
            neb__pair_code_format(&parsed, text);
            if (neb__pair_code_parse(text, &parsed) != NEB_OK) abort();
        }
    }
    return 0;
}
