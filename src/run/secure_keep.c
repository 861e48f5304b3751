/* secure_keep.c: what a start needs of an attempt at a secure sum that is under way, in `sum-<first cell>` beside the ledger:
 *
 *     u16 attempt, u64 version, u64 index of the SURVIVORS for which shares were revealed (0: none), u64 its sites, three secrets
 *     of 32 bytes, u16 offers, then each offer that OPEN names: u32 length, bytes
 *
 * It is on disk before the masked update is, and again before a share leaves. So a site that was killed can still reveal its shares, does
 * not reveal any for a second set, and never makes a second update under the same masks. The file is removed when the attempt has ended. */
#include "run/secure.h"
#include "base/log.h"
#include "base/mem.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

enum { SECRETS = 2 + 8 + 8 + 8, HEAD = SECRETS + 3 * NEB_MASK_KEY + 2 };

static void file_of(const struct neb_sum_attempt *a, char name[32])
{
    snprintf(name, 32, "sum-%u", a->c0);
}

neb_status neb__sums_keep(neb_session *s, const struct neb_sum_attempt *a, const struct neb_record *open)
{
    uint8_t head[HEAD], length[4];
    char name[32];
    struct neb_buf b;
    uint16_t offers = 0;
    neb__buf_init(&b, HEAD + NEB_SITES_MAX * (size_t)(NEB_OFFER_MAX + 4));
    for (uint32_t i = 0; i < open->contributors; i++)
        offers = (uint16_t)(offers + (neb__sums_offer_of(a, &open->contributor[i]) != NULL));
    neb__put16(head, a->attempt);
    neb__put64(head + 2, a->version);
    neb__put64(head + 10, a->revealed);
    neb__put64(head + 18, a->revealed_set);
    memcpy(head + SECRETS, a->seal.secret, NEB_MASK_KEY);
    memcpy(head + SECRETS + NEB_MASK_KEY, a->mask.secret, NEB_MASK_KEY);
    memcpy(head + SECRETS + 2 * NEB_MASK_KEY, a->own, NEB_MASK_KEY);
    neb__put16(head + HEAD - 2, offers);
    neb_status status = neb__buf_append(&b, head, sizeof head);
    for (uint32_t i = 0; status == NEB_OK && i < open->contributors; i++) {
        const struct neb_buf *o = neb__sums_offer_of(a, &open->contributor[i]);
        if (!o) continue;
        neb__put32(length, (uint32_t)o->len);
        status = neb__buf_append(&b, length, sizeof length);
        if (status == NEB_OK) status = neb__buf_append(&b, o->data, o->len);
    }
    file_of(a, name);
    if (status == NEB_OK) status = neb__blob_save(&s->disk, name, b.data, b.len, true);
    OPENSSL_cleanse(head, sizeof head);
    if (b.data) OPENSSL_cleanse(b.data, b.len);
    neb__buf_free(&b);
    return status;
}

static bool read_offers(struct neb_reader *in, uint16_t offers, struct neb_sum_attempt *a)
{
    struct neb_sum_offer *o = NEB_NEW(struct neb_sum_offer);
    bool ok = o != NULL;
    for (uint16_t i = 0; ok && i < offers; i++) {
        size_t n = neb__read32(in);
        const uint8_t *p = neb__read(in, n);
        ok = p && neb__offer_get(p, n, o) == NEB_OK &&
             neb__buf_append(&a->offer[o->keys.site][0], p, n) == NEB_OK;
    }
    neb__free(o);
    return ok && !in->left;
}

static bool read_attempt(const neb_session *s, const struct neb_buf *b, uint16_t attempt,
                         struct neb_sum_attempt *a)
{
    struct neb_reader in = {b->data, b->len, false};
    uint8_t id[NEB_HASH_SIZE + 14];
    uint16_t kept = neb__read16(&in);
    uint64_t version = neb__read64(&in), revealed = neb__read64(&in), set = neb__read64(&in);
    const uint8_t *secrets = neb__read(&in, 3 * NEB_MASK_KEY);
    uint16_t offers = neb__read16(&in);
    if (in.bad || kept != attempt || offers > NEB_SITES_MAX) return false;
    neb__sum_attempt_forget(a);
    a->attempt = attempt, a->version = version, a->revealed = revealed, a->revealed_set = set;
    memcpy(id, s->genesis.b, NEB_HASH_SIZE);
    neb__put32(id + NEB_HASH_SIZE, a->c0);
    neb__put64(id + NEB_HASH_SIZE + 4, version);
    neb__put16(id + NEB_HASH_SIZE + 12, attempt);
    memcpy(a->own, secrets + 2 * NEB_MASK_KEY, NEB_MASK_KEY);
    a->keyed = a->used =
        neb__hash(id, sizeof id, &a->id) == NEB_OK && neb__mask_pair_from(secrets, &a->seal) == NEB_OK &&
        neb__mask_pair_from(secrets + NEB_MASK_KEY, &a->mask) == NEB_OK && read_offers(&in, offers, a);
    if (!a->used) neb__sum_attempt_forget(a);
    return a->used;
}

bool neb__sums_load(neb_session *s, struct neb_sum_attempt *a, uint16_t attempt)
{
    char name[32];
    struct neb_buf b;
    file_of(a, name);
    neb__buf_init(&b, HEAD + NEB_SITES_MAX * (size_t)(NEB_OFFER_MAX + 4));
    neb_status status = neb__blob_load(&s->disk, name, &b);
    bool ok = status == NEB_OK && read_attempt(s, &b, attempt, a);
    if (status != NEB_OK && status != NEB_ERR_NOTFOUND)
        neb__warn("%s cannot be read: %s; this site does not help to unmask that sum", name,
                  neb_last_error());
    if (b.data) OPENSSL_cleanse(b.data, b.len);
    neb__buf_free(&b);
    return ok;
}

void neb__sums_remove(neb_session *s, const struct neb_sum_attempt *a)
{
    char name[32];
    file_of(a, name);
    (void)s->disk.ops->remove(s->disk.ctx, name);
}
