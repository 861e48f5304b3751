/* offer.c: the bytes of the messages that prepare and unmask a secure sum. Little-endian:
 *
 *     keys    := u16 site · u16 attempt · u32 first cell · u64 version · u32 weight · key for sealing · key for masks · signature
 *     offer   := keys without the signature · hash of the own seed · hash of the pair seed · u16 entries · entries · signature
 *     entry   := u16 site · id of its keys (8 bytes of their hash) · hash of its share of each seed · both shares, sealed
 *     reveal  := u64 index of SURVIVORS · u16 entries · entries of u16 site, share
 *
 * Signatures are of the run's genesis and everything before them. Lists ascend by site, so a message has one form. */
#include "privacy/offer.h"
#include "base/bytes.h"

#include <string.h>

void neb__keys_put(const struct neb_sum_keys *k, uint8_t out[NEB_KEYS_BODY])
{
    neb__put16(out, k->site);
    neb__put16(out + 2, k->attempt);
    neb__put32(out + 4, k->c0);
    neb__put64(out + 8, k->version);
    neb__put32(out + 16, k->weight);
    memcpy(out + 20, k->seal, NEB_MASK_KEY);
    memcpy(out + 20 + NEB_MASK_KEY, k->mask, NEB_MASK_KEY);
}

static bool get_keys(struct neb_reader *in, struct neb_sum_keys *k)
{
    k->site = neb__read16(in);
    k->attempt = neb__read16(in);
    k->c0 = neb__read32(in);
    k->version = neb__read64(in);
    k->weight = neb__read32(in);
    const uint8_t *both = neb__read(in, 2 * NEB_MASK_KEY);
    if (!both || k->site >= NEB_SHARES_MAX || !k->attempt || !k->weight) return false;
    memcpy(k->seal, both, NEB_MASK_KEY);
    memcpy(k->mask, both + NEB_MASK_KEY, NEB_MASK_KEY);
    return true;
}

static neb_status damaged(void)
{
    return neb__quiet(NEB_ERR_CORRUPT, "a malformed message about a secure sum");
}

neb_status neb__keys_get(const uint8_t *in, size_t n, struct neb_sum_keys *out)
{
    struct neb_reader r = {in, n, false};
    return n == NEB_KEYS_SIZE && get_keys(&r, out) ? NEB_OK : damaged();
}

neb_status neb__offer_put(const struct neb_sum_offer *o, struct neb_buf *out)
{
    uint8_t head[NEB_KEYS_BODY + 2 * NEB_HASH_SIZE + 2];
    neb__keys_put(&o->keys, head);
    memcpy(head + NEB_KEYS_BODY, o->own.b, NEB_HASH_SIZE);
    memcpy(head + NEB_KEYS_BODY + NEB_HASH_SIZE, o->pair.b, NEB_HASH_SIZE);
    neb__put16(head + sizeof head - 2, (uint16_t)o->entries);
    NEB_TRY(neb__buf_append(out, head, sizeof head));
    for (uint32_t i = 0; i < o->entries; i++) {
        const struct neb_offer_entry *e = &o->entry[i];
        uint8_t b[NEB_OFFER_ENTRY];
        neb__put16(b, e->site);
        memcpy(b + 2, e->keys, NEB_KEYS_ID);
        memcpy(b + 2 + NEB_KEYS_ID, e->own.b, NEB_HASH_SIZE);
        memcpy(b + 2 + NEB_KEYS_ID + NEB_HASH_SIZE, e->pair.b, NEB_HASH_SIZE);
        memcpy(b + NEB_OFFER_ENTRY - NEB_SEALED_SHARES, e->sealed, NEB_SEALED_SHARES);
        NEB_TRY(neb__buf_append(out, b, sizeof b));
    }
    return NEB_OK;
}

static bool get_hash(struct neb_reader *in, struct neb_hash *out)
{
    const uint8_t *p = neb__read(in, NEB_HASH_SIZE);
    if (p) memcpy(out->b, p, NEB_HASH_SIZE);
    return p != NULL;
}

static bool get_entry(struct neb_reader *in, struct neb_offer_entry *e)
{
    e->site = neb__read16(in);
    const uint8_t *keys = neb__read(in, NEB_KEYS_ID);
    if (!keys || !get_hash(in, &e->own) || !get_hash(in, &e->pair)) return false;
    memcpy(e->keys, keys, NEB_KEYS_ID);
    const uint8_t *sealed = neb__read(in, NEB_SEALED_SHARES);
    if (sealed) memcpy(e->sealed, sealed, NEB_SEALED_SHARES);
    return sealed && e->site < NEB_SHARES_MAX;
}

neb_status neb__offer_get(const uint8_t *in, size_t n, struct neb_sum_offer *out)
{
    struct neb_reader r = {in, n, false};
    if (!get_keys(&r, &out->keys) || !get_hash(&r, &out->own) || !get_hash(&r, &out->pair)) return damaged();
    out->entries = neb__read16(&r);
    if (r.bad || !out->entries || out->entries > NEB_SHARES_MAX ||
        r.left != out->entries * (size_t)NEB_OFFER_ENTRY + NEB_OFFER_SIGNATURE)
        return damaged();
    for (uint32_t i = 0; i < out->entries; i++)
        if (!get_entry(&r, &out->entry[i]) || (i && out->entry[i].site <= out->entry[i - 1].site))
            return damaged();
    return NEB_OK;
}

const struct neb_offer_entry *neb__offer_entry(const struct neb_sum_offer *o, unsigned site)
{
    for (uint32_t i = 0; i < o->entries; i++)
        if (o->entry[i].site == site) return &o->entry[i];
    return NULL;
}

neb_status neb__reveal_put(const struct neb_reveal *r, struct neb_buf *out)
{
    uint8_t head[10];
    neb__put64(head, r->index);
    neb__put16(head + 8, (uint16_t)r->entries);
    NEB_TRY(neb__buf_append(out, head, sizeof head));
    for (uint32_t i = 0; i < r->entries; i++) {
        uint8_t b[2 + NEB_SHARE_SIZE];
        neb__put16(b, r->entry[i].site);
        memcpy(b + 2, r->entry[i].share, NEB_SHARE_SIZE);
        NEB_TRY(neb__buf_append(out, b, sizeof b));
    }
    return NEB_OK;
}

neb_status neb__reveal_get(const uint8_t *in, size_t n, struct neb_reveal *out)
{
    struct neb_reader r = {in, n, false};
    out->index = neb__read64(&r);
    out->entries = neb__read16(&r);
    if (r.bad || !out->entries || out->entries > NEB_SHARES_MAX ||
        r.left != out->entries * (size_t)(2 + NEB_SHARE_SIZE))
        return damaged();
    for (uint32_t i = 0; i < out->entries; i++) {
        out->entry[i].site = neb__read16(&r);
        const uint8_t *p = neb__read(&r, NEB_SHARE_SIZE);
        if (!p || out->entry[i].site >= NEB_SHARES_MAX || (i && out->entry[i].site <= out->entry[i - 1].site))
            return damaged();
        memcpy(out->entry[i].share, p, NEB_SHARE_SIZE);
    }
    return NEB_OK;
}
