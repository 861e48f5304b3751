/* fuzz_offer.c: any bytes as a message about a secure sum: keys, an offer, revealed shares. What is accepted has one form. Revealed
 * shares are then joined, whatever they are. */
#include "base/mem.h"
#include "privacy/offer.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(const struct neb_buf *b, const uint8_t *data, size_t n)
{
    if (b->len != n || memcmp(b->data, data, n)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct neb_sum_offer offer;
    static struct neb_reveal reveal;
    struct neb_sum_keys keys;
    struct neb_share share[NEB_SHARES_MAX];
    uint8_t body[NEB_KEYS_BODY], secret[NEB_SECRET_SIZE];
    struct neb_buf b;
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    neb__buf_init(&b, NEB_OFFER_MAX);
    if (neb__keys_get(data, size, &keys) == NEB_OK) {
        neb__keys_put(&keys, body);
        if (memcmp(body, data, sizeof body)) abort();
    }
    if (neb__offer_get(data, size, &offer) == NEB_OK) {
        if (neb__offer_put(&offer, &b) == NEB_OK) same(&b, data, size - NEB_OFFER_SIGNATURE);
    }
    neb__buf_clear(&b);
    if (neb__reveal_get(data, size, &reveal) == NEB_OK) {
        if (neb__reveal_put(&reveal, &b) == NEB_OK) same(&b, data, size);
        for (uint32_t i = 0; i < reveal.entries; i++) {
            share[i].x = reveal.entry[i].site;
            memcpy(share[i].y, reveal.entry[i].share, NEB_SHARE_SIZE);
        }
        (void)neb__shares_join(share, (int)reveal.entries, secret);
    }
    neb__buf_free(&b);
    if (neb__mem_held() != held) abort();
    return 0;
}
