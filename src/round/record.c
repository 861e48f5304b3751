/* record.c: the bytes of records and of update headers.
 *
 * A record is the unit of agreement, so its bytes are canonical: the decoder accepts exactly what the encoder
 * writes, and two records are equal if and only if their bytes are. Layout (little-endian):
 *
 *     u8 type, u8 format, u32 epoch, u64 view, u64 index, hash previous
 *     ROUND:          u32 c0, u32 c1, u64 v, u8 mode, u32 eta, u32 mu, u16 owner, u32 result length,
 *                     hash result, u16 updates, u8 class, u8 sum, then for each update: u16 site,
 *                     u8 reject, u64 k, u64 b, u32 weight, u32 tau, u32 length, u64 tokens, hash;
 *                     sum 1: u16 attempt, u16 seeds, seeds
 *     SURVIVORS:      as ROUND, sum 1, no seeds
 *     OPEN:           u32 c0, u32 c1, u64 v, u16 attempt, u16 threshold, u16 contributors, then for each: u16 site,
 *                     u32 weight, key, hash own, hash pair, hash offer
 *     VOID:           u32 c0, u32 c1, u64 v, u16 attempt
 *     ROSTER, FORCED: roster
 *     END, FINAL:     u64 tokens
 *     CLASS:          u64 class
 *     the others:     u8 ordered, and if it is 1 the order behind it
 */
#include "round/record.h"
#include "base/mem.h"
#include "base/mutant.h"

#include <string.h>

enum {
    FORMAT = 2,
    NAMED_SIZE = 71,
    UPDATES_AT = 54 + 63,
    CONTRIBUTOR_SIZE = 6 + NEB_SEED_SIZE + 3 * NEB_HASH_SIZE
};
enum { SIGNED = 2 * NEB_HASH_SIZE + NEB_UPDATE_HEADER_SIZE - NEB_SEAL_SIZE };

/* Signatures cover this text: another one would make every signed update invalid. */
static const char purpose[] = "nebula round parcel";

void neb__update_header_put(const struct neb_update_header *p, uint8_t out[NEB_UPDATE_HEADER_SIZE])
{
    memset(out, 0, NEB_UPDATE_HEADER_SIZE);
    neb__put16(out, p->site);
    out[2] = p->kind;
    out[3] = p->rung;
    neb__put32(out + 4, p->c0);
    neb__put32(out + 8, p->c1);
    neb__put64(out + 12, p->k);
    neb__put64(out + 20, p->b);
    neb__put32(out + 28, p->tau);
    neb__put32(out + 32, p->weight);
    neb__put64(out + 36, p->tokens);
    neb__put32(out + 44, p->epoch);
    neb__put32(out + 48, p->length);
    out[52] = p->cls;
    out[53] = p->before;
    neb__put16(out + 54, p->attempt);
    memcpy(out + 56, p->signature, NEB_SEAL_SIZE);
}

static neb_status to_sign(const struct neb_update_header *p, const void *bytes,
                          const struct neb_hash *genesis, uint8_t out[SIGNED])
{
    uint8_t header[NEB_UPDATE_HEADER_SIZE];
    struct neb_hash h;
    NEB_TRY(neb__hash(bytes, p->length, &h));
    neb__update_header_put(p, header);
    memcpy(out, genesis->b, NEB_HASH_SIZE);
    memcpy(out + NEB_HASH_SIZE, header, NEB_UPDATE_HEADER_SIZE - NEB_SEAL_SIZE);
    memcpy(out + SIGNED - NEB_HASH_SIZE, h.b, NEB_HASH_SIZE);
    return NEB_OK;
}

neb_status neb__update_header_sign(struct neb_update_header *p, const void *bytes,
                                   const struct neb_hash *genesis, const struct neb_seal *seal)
{
    uint8_t b[SIGNED];
    if (!seal->sign) return neb__fail(NEB_ERR_AUTH, "this site has no key to sign an update with");
    NEB_TRY(to_sign(p, bytes, genesis, b));
    return seal->sign(seal->arg, purpose, b, sizeof b, p->signature);
}

static bool genuine(const struct neb_update_header *p, const void *bytes, const struct neb_hash *genesis,
                    const struct neb_seal *seal, unsigned signer)
{
    uint8_t b[SIGNED];
    return seal->verify && to_sign(p, bytes, genesis, b) == NEB_OK &&
           seal->verify(seal->arg, signer, purpose, b, sizeof b, p->signature);
}

bool neb__update_header_genuine(const struct neb_update_header *p, const void *bytes,
                                const struct neb_hash *genesis, const struct neb_seal *seal)
{
    if (NEB_MUTANT(trust_updates)) return true;
    return genuine(p, bytes, genesis, seal, p->site);
}

bool neb__update_header_once_genuine(const struct neb_update_header *p, const void *bytes,
                                     const struct neb_hash *genesis, const struct neb_seal *seal)
{
    return genuine(p, bytes, genesis, seal, p->site) ||
           genuine(p, bytes, genesis, seal, p->site | NEB_BY_FORMER);
}

neb_status neb__update_header_get(const uint8_t *in, size_t n, struct neb_update_header *out)
{
    if (n < NEB_UPDATE_HEADER_SIZE)
        return neb__quiet(NEB_ERR_CORRUPT, "an update of %zu bytes is shorter than its header", n);
    struct neb_update_header p = {
        .site = neb__get16(in),
        .kind = in[2],
        .rung = in[3],
        .c0 = neb__get32(in + 4),
        .c1 = neb__get32(in + 8),
        .k = neb__get64(in + 12),
        .b = neb__get64(in + 20),
        .tau = neb__get32(in + 28),
        .weight = neb__get32(in + 32),
        .tokens = neb__get64(in + 36),
        .epoch = neb__get32(in + 44),
        .length = neb__get32(in + 48),
        .cls = in[52],
        .before = in[53],
        .attempt = neb__get16(in + 54),
    };
    memcpy(p.signature, in + 56, NEB_SEAL_SIZE);
    if (p.site >= NEB_SITES_MAX || p.kind > NEB_UPDATE_MASKED || p.c0 >= p.c1 || !p.k || !p.weight ||
        p.cls >= NEB_RUNG_CLASSES || p.before > NEB_UPDATE_BEFORE_MAX ||
        (p.attempt != 0) != (p.kind == NEB_UPDATE_MASKED) || p.length != n - NEB_UPDATE_HEADER_SIZE ||
        p.length < 8u * p.before)
        return neb__quiet(NEB_ERR_CORRUPT, "the fields of an update's header contradict each other");
    *out = p;
    return NEB_OK;
}

struct neb_record *neb__record_new_sum(uint32_t updates, uint32_t contributors, uint32_t seeds)
{
    if (updates > NEB_SITES_MAX || contributors > NEB_SITES_MAX || seeds > NEB_SITES_MAX) return NULL;
    bool ordered = !updates && !contributors && !seeds; /* it may carry an order */
    size_t behind = ordered ? sizeof(struct neb_order) : updates * sizeof(struct neb_named);
    size_t named = sizeof(struct neb_record) + behind;
    size_t given = named + contributors * sizeof(struct neb_contributor);
    struct neb_record *r = neb__calloc(1, given + seeds * (size_t)NEB_SEED_SIZE);
    if (!r) return NULL;
    r->updates = updates, r->contributors = contributors, r->seeds = seeds;
    r->owner = NEB_NO_SITE;
    if (ordered) r->order = (struct neb_order *)(void *)r->update;
    r->contributor = (void *)((uint8_t *)r + named);
    r->seed = (void *)((uint8_t *)r + given);
    return r;
}

struct neb_record *neb__record_new(uint32_t updates)
{
    return neb__record_new_sum(updates, 0, 0);
}

static neb_status put_round(const struct neb_record *r, struct neb_buf *out)
{
    uint8_t b[67];
    neb__put32(b, r->c0);
    neb__put32(b + 4, r->c1);
    neb__put64(b + 8, r->v);
    b[16] = r->mode;
    neb__put32(b + 17, r->eta);
    neb__put32(b + 21, r->mu);
    neb__put16(b + 25, r->owner);
    neb__put32(b + 27, r->result_length);
    memcpy(b + 31, r->result.b, NEB_HASH_SIZE);
    neb__put16(b + 63, (uint16_t)r->updates);
    b[65] = r->cls;
    b[66] = r->attempt != 0;
    NEB_TRY(neb__buf_append(out, b, sizeof b));
    for (uint32_t i = 0; i < r->updates; i++) {
        const struct neb_named *p = &r->update[i];
        uint8_t e[NAMED_SIZE];
        neb__put16(e, p->site);
        e[2] = p->reject;
        neb__put64(e + 3, p->k);
        neb__put64(e + 11, p->b);
        neb__put32(e + 19, p->weight);
        neb__put32(e + 23, p->tau);
        neb__put32(e + 27, p->length);
        neb__put64(e + 31, p->tokens);
        memcpy(e + 39, p->hash.b, NEB_HASH_SIZE);
        NEB_TRY(neb__buf_append(out, e, sizeof e));
    }
    if (!r->attempt) return NEB_OK;
    uint8_t t[4];
    neb__put16(t, r->attempt);
    neb__put16(t + 2, (uint16_t)r->seeds);
    NEB_TRY(neb__buf_append(out, t, sizeof t));
    return neb__buf_append(out, r->seed, r->seeds * (size_t)NEB_SEED_SIZE);
}

/* OPEN, VOID */
static neb_status put_attempt(const struct neb_record *r, struct neb_buf *out)
{
    uint8_t b[22];
    neb__put32(b, r->c0);
    neb__put32(b + 4, r->c1);
    neb__put64(b + 8, r->v);
    neb__put16(b + 16, r->attempt);
    neb__put16(b + 18, r->threshold);
    neb__put16(b + 20, (uint16_t)r->contributors);
    NEB_TRY(neb__buf_append(out, b, r->type == NEB_RECORD_OPEN ? 22 : 18));
    for (uint32_t i = 0; i < r->contributors; i++) {
        const struct neb_contributor *c = &r->contributor[i];
        uint8_t e[CONTRIBUTOR_SIZE];
        neb__put16(e, c->site);
        neb__put32(e + 2, c->weight);
        memcpy(e + 6, c->key, NEB_SEED_SIZE);
        memcpy(e + 38, c->own.b, NEB_HASH_SIZE);
        memcpy(e + 70, c->pair.b, NEB_HASH_SIZE);
        memcpy(e + 102, c->offer.b, NEB_HASH_SIZE);
        NEB_TRY(neb__buf_append(out, e, sizeof e));
    }
    return NEB_OK;
}

static neb_status put_order(const struct neb_record *r, struct neb_buf *out)
{
    uint8_t b[1 + NEB_ORDER_MAX] = {r->ordered};
    size_t n = r->ordered ? neb__order_put(r->order, b + 1) : 0;
    return neb__buf_append(out, b, 1 + n);
}

neb_status neb__record_encode(const struct neb_record *r, struct neb_buf *out)
{
    uint8_t b[54];
    b[0] = r->type;
    b[1] = FORMAT;
    neb__put32(b + 2, r->epoch);
    neb__put64(b + 6, r->view);
    neb__put64(b + 14, r->index);
    memcpy(b + 22, r->prev.b, NEB_HASH_SIZE);
    NEB_TRY(neb__buf_append(out, b, sizeof b));
    if (r->type == NEB_RECORD_ROUND || r->type == NEB_RECORD_SURVIVORS) return put_round(r, out);
    if (r->type == NEB_RECORD_OPEN || r->type == NEB_RECORD_VOID) return put_attempt(r, out);
    uint8_t t[8];
    neb__put64(t, r->tokens);
    if (r->type == NEB_RECORD_ROSTER || r->type == NEB_RECORD_FORCED)
        NEB_TRY(neb__members_put(&r->roster, out));
    else if (r->type != NEB_RECORD_ORDER)
        NEB_TRY(neb__buf_append(out, t, sizeof t));
    return put_order(r, out);
}

static void get_hash(struct neb_reader *in, struct neb_hash *h)
{
    const uint8_t *p = neb__read(in, NEB_HASH_SIZE);
    if (p) memcpy(h->b, p, NEB_HASH_SIZE);
}

static bool get_seeds(struct neb_reader *in, struct neb_record *r)
{
    r->attempt = neb__read16(in);
    if (!r->attempt || neb__read16(in) != r->seeds || (r->type == NEB_RECORD_SURVIVORS && r->seeds))
        return false;
    const uint8_t *seed = neb__read(in, r->seeds * (size_t)NEB_SEED_SIZE);
    if (seed) memcpy(r->seed, seed, r->seeds * (size_t)NEB_SEED_SIZE);
    return seed != NULL;
}

static bool get_round(struct neb_reader *in, struct neb_record *r)
{
    r->c0 = neb__read32(in);
    r->c1 = neb__read32(in);
    r->v = neb__read64(in);
    r->mode = neb__read8(in);
    r->eta = neb__read32(in);
    r->mu = neb__read32(in);
    r->owner = neb__read16(in);
    r->result_length = neb__read32(in);
    get_hash(in, &r->result);
    uint16_t n = neb__read16(in);
    r->cls = neb__read8(in);
    uint8_t sum = neb__read8(in);
    if (sum > 1 || r->cls >= NEB_RUNG_CLASSES || n != r->updates || r->c0 >= r->c1 ||
        r->mode > NEB_MODE_AVERAGE)
        return false;
    int last = -1;
    for (uint32_t i = 0; i < n; i++) {
        struct neb_named *p = &r->update[i];
        p->site = neb__read16(in);
        p->reject = neb__read8(in);
        p->k = neb__read64(in);
        p->b = neb__read64(in);
        p->weight = neb__read32(in);
        p->tau = neb__read32(in);
        p->length = neb__read32(in);
        p->tokens = neb__read64(in);
        get_hash(in, &p->hash);
        if (p->site >= NEB_SITES_MAX || p->site <= last || !p->k || !p->weight || p->reject > NEB_REJECT_VOID)
            return false;
        last = p->site;
    }
    return n > 0 && (sum ? get_seeds(in, r) : r->type == NEB_RECORD_ROUND && !r->seeds);
}

static bool get_attempt(struct neb_reader *in, struct neb_record *r)
{
    r->c0 = neb__read32(in);
    r->c1 = neb__read32(in);
    r->v = neb__read64(in);
    r->attempt = neb__read16(in);
    if (r->c0 >= r->c1 || !r->attempt) return false;
    if (r->type == NEB_RECORD_VOID) return true;
    r->threshold = neb__read16(in);
    if (neb__read16(in) != r->contributors || !r->contributors) return false;
    int last = -1;
    for (uint32_t i = 0; i < r->contributors; i++) {
        struct neb_contributor *c = &r->contributor[i];
        c->site = neb__read16(in);
        c->weight = neb__read32(in);
        const uint8_t *key = neb__read(in, NEB_SEED_SIZE);
        if (key) memcpy(c->key, key, NEB_SEED_SIZE);
        get_hash(in, &c->own);
        get_hash(in, &c->pair);
        get_hash(in, &c->offer);
        if (c->site >= NEB_SITES_MAX || c->site <= last || !c->weight) return false;
        last = c->site;
    }
    return true;
}

/* Reads the fields of any record but a ROUND, its order included. */
static bool get_other(struct neb_reader *in, struct neb_record *r)
{
    if (r->type == NEB_RECORD_ROSTER || r->type == NEB_RECORD_FORCED) {
        neb__members_get(in, &r->roster);
        if (!neb__members_valid(&r->roster)) return false;
    } else if (r->type != NEB_RECORD_ORDER)
        r->tokens = neb__read64(in);
    uint8_t ordered = neb__read8(in);
    r->ordered = ordered == 1;
    if (ordered > 1 || (r->ordered && !neb__order_get(in, r->order))) return false;
    if (r->type == NEB_RECORD_CLASS && r->tokens >= NEB_RUNG_CLASSES) return false;
    bool may = r->type != NEB_RECORD_CLASS && r->type != NEB_RECORD_FINAL;
    bool must = r->type == NEB_RECORD_FORCED || r->type == NEB_RECORD_ORDER;
    return r->ordered ? may : !must;
}

/* What the bytes say of their lists: how much to allocate. Reading checks it. */
static void count_round(const uint8_t *bytes, size_t n, uint32_t *updates, uint32_t *seeds)
{
    if (n < UPDATES_AT + 4) return;
    *updates = neb__get16(bytes + UPDATES_AT);
    size_t behind = UPDATES_AT + 4 + *updates * (size_t)NAMED_SIZE;
    if (bytes[UPDATES_AT + 3] && n >= behind + 4) *seeds = neb__get16(bytes + behind + 2);
}

neb_status neb__record_decode(const uint8_t *bytes, size_t n, struct neb_record **out)
{
    struct neb_reader in = {bytes, n, false};
    uint8_t type = neb__read8(&in), format = neb__read8(&in);
    bool round = type == NEB_RECORD_ROUND || type == NEB_RECORD_SURVIVORS;
    bool attempt = type == NEB_RECORD_OPEN || type == NEB_RECORD_VOID;
    uint32_t updates = 0, contributors = 0, seeds = 0;
    if (round) count_round(bytes, n, &updates, &seeds);
    if (type == NEB_RECORD_OPEN && n >= 76) contributors = neb__get16(bytes + 74);
    if (format != FORMAT || type < NEB_RECORD_ROUND || type > NEB_RECORD_VOID || updates > NEB_SITES_MAX ||
        contributors > NEB_SITES_MAX || seeds > NEB_SITES_MAX)
        return neb__quiet(NEB_ERR_CORRUPT, "not a record: type %u, format %u, %zu bytes", type, format, n);
    struct neb_record *r = neb__record_new_sum(updates, contributors, seeds);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for a record");
    r->type = type;
    r->epoch = neb__read32(&in);
    r->view = neb__read64(&in);
    r->index = neb__read64(&in);
    get_hash(&in, &r->prev);
    bool ok;
    if (round)
        ok = get_round(&in, r);
    else
        ok = attempt ? get_attempt(&in, r) : get_other(&in, r);
    if (!ok || in.bad || in.left || !r->index) {
        neb__free(r);
        return neb__quiet(NEB_ERR_CORRUPT, "the fields of a record contradict each other");
    }
    *out = r;
    return NEB_OK;
}

const struct neb_named *neb__record_of(const struct neb_record *r, unsigned site)
{
    for (uint32_t i = 0; i < r->updates; i++)
        if (r->update[i].site == site) return &r->update[i];
    return NULL;
}

const struct neb_contributor *neb__record_contributor(const struct neb_record *open, unsigned site)
{
    for (uint32_t i = 0; i < open->contributors; i++)
        if (open->contributor[i].site == site) return &open->contributor[i];
    return NULL;
}

bool neb__record_is_change(const struct neb_record *rec)
{
    return rec->type == NEB_RECORD_ROSTER || rec->type == NEB_RECORD_FORCED;
}
