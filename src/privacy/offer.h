/* offer.h: the messages in which sites prepare and unmask a secure sum. They come from members, so nothing in them is believed: the
 * readers check every length, the callers every signature and hash. */
#ifndef NEB_PRIVACY_OFFER_H
#define NEB_PRIVACY_OFFER_H

#include "base/buf.h"
#include "privacy/masks.h"

enum {
    NEB_OFFER_SIGNATURE = 64,
    NEB_KEYS_BODY = 20 + 2 * NEB_MASK_KEY,
    NEB_KEYS_SIZE = NEB_KEYS_BODY + NEB_OFFER_SIGNATURE,
    NEB_KEYS_ID = 8,
    NEB_SEALED_SHARES = 2 * NEB_SHARE_SIZE + NEB_SEALED_MORE,
    NEB_OFFER_ENTRY = 2 + NEB_KEYS_ID + 2 * NEB_HASH_SIZE + NEB_SEALED_SHARES,
    NEB_OFFER_MAX =
        NEB_KEYS_BODY + 2 * NEB_HASH_SIZE + 2 + NEB_SHARES_MAX * NEB_OFFER_ENTRY + NEB_OFFER_SIGNATURE,
    NEB_REVEAL_MAX = 10 + NEB_SHARES_MAX * (2 + NEB_SHARE_SIZE),
};

/* The keys that a site would use in an attempt. */
struct neb_sum_keys {
    uint16_t site, attempt;
    uint32_t c0, weight; /* of the fragment; tokens per step */
    uint64_t version;
    uint8_t seal[NEB_MASK_KEY], mask[NEB_MASK_KEY]; /* public */
};
void neb__keys_put(const struct neb_sum_keys *k, uint8_t out[NEB_KEYS_BODY]);
/* NEB_ERR_CORRUPT. The signature is behind the body. */
neb_status neb__keys_get(const uint8_t *in, size_t n, struct neb_sum_keys *out);

/* The shares of one member: sealed, with their hashes. `keys` names the keys that they are sealed for. */
struct neb_offer_entry {
    uint16_t site;
    uint8_t keys[NEB_KEYS_ID];
    struct neb_hash own, pair; /* of the two shares in the clear */
    uint8_t sealed[NEB_SEALED_SHARES];
};
struct neb_sum_offer {
    struct neb_sum_keys keys;
    struct neb_hash own, pair; /* of the two seeds */
    uint32_t entries;
    struct neb_offer_entry entry[NEB_SHARES_MAX]; /* ascending by site */
};
/* Without the signature, which goes behind it. */
neb_status neb__offer_put(const struct neb_sum_offer *o, struct neb_buf *out);
/* With it. NEB_ERR_CORRUPT */
neb_status neb__offer_get(const uint8_t *in, size_t n, struct neb_sum_offer *out);
const struct neb_offer_entry *neb__offer_entry(const struct neb_sum_offer *o, unsigned site); /* or NULL */

/* The shares that a member reveals for a SURVIVORS record: one of each contributor whose shares it has. */
struct neb_reveal {
    uint64_t index;
    uint32_t entries;
    struct {
        uint16_t site; /* whose secret it is of */
        uint8_t share[NEB_SHARE_SIZE];
    } entry[NEB_SHARES_MAX];
};
neb_status neb__reveal_put(const struct neb_reveal *r, struct neb_buf *out);
neb_status neb__reveal_get(const uint8_t *in, size_t n, struct neb_reveal *out); /* NEB_ERR_CORRUPT */

#endif
