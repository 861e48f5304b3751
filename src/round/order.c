/* order.c: the bytes of orders, and who may give them.
 *
 *     u8 op, u8 parts, u16 signer, u16 site, u32 flags, u64 value, u32 epoch, u64 index,
 *     hash head, roster, signature, for each part: u8 operator, signature
 *
 * A signature covers the run's genesis hash and everything before the signature, with no parts. One operator signs in the
 * field `signature`; each of several in a part of its own, so that they can sign one after the other. The operator may give any
 * order. The survivor of a run, which may go on alone anyway, may give the orders that leave the votes as
 * they are. Every site may order its own removal. */
#include "round/order.h"
#include "base/bytes.h"
#include "base/mutant.h"

static const char purpose[] = "nebula round order";

enum { SIGNED = NEB_ORDER_SIZE - NEB_SEAL_SIZE, ROSTER_AT = 62 };

size_t neb__order_put(const struct neb_order *o, uint8_t out[NEB_ORDER_MAX])
{
    memset(out, 0, NEB_ORDER_SIZE);
    out[0] = o->op;
    out[1] = o->parts;
    neb__put16(out + 2, o->signer);
    neb__put16(out + 4, o->site);
    neb__put32(out + 6, o->flags);
    neb__put64(out + 10, o->value);
    neb__put32(out + 18, o->epoch);
    neb__put64(out + 22, o->index);
    memcpy(out + 30, o->head.b, NEB_HASH_SIZE);
    neb__members_bytes(&o->roster, out + ROSTER_AT);
    memcpy(out + SIGNED, o->signature, NEB_SEAL_SIZE);
    uint8_t *p = out + NEB_ORDER_SIZE;
    for (int i = 0; i < o->parts && i < NEB_PARTS_MAX; i++, p += NEB_PART_SIZE) {
        p[0] = o->part[i].who;
        memcpy(p + 1, o->part[i].signature, NEB_SEAL_SIZE);
    }
    return (size_t)(p - out);
}

/* Several sign for the operator alone, each once, and then nobody signs for all of them. */
static bool get_parts(struct neb_reader *in, struct neb_order *o)
{
    static const uint8_t none[NEB_SEAL_SIZE];
    if (!o->parts) return true;
    if (o->parts > NEB_PARTS_MAX || o->signer != NEB_BY_OPERATOR || memcmp(o->signature, none, sizeof none))
        return false;
    int last = -1;
    for (int i = 0; i < o->parts; i++) {
        o->part[i].who = neb__read8(in);
        const uint8_t *p = neb__read(in, NEB_SEAL_SIZE);
        if (!p || o->part[i].who <= last || o->part[i].who >= NEB_PARTS_MAX) return false;
        last = o->part[i].who;
        memcpy(o->part[i].signature, p, NEB_SEAL_SIZE);
    }
    return true;
}

bool neb__order_get(struct neb_reader *in, struct neb_order *out)
{
    const uint8_t *b = neb__read(in, NEB_ORDER_SIZE);
    if (!b) return false;
    struct neb_reader roster = {b + ROSTER_AT, SIGNED - ROSTER_AT, false};
    *out = (struct neb_order){.op = b[0],
                              .parts = b[1],
                              .signer = neb__get16(b + 2),
                              .site = neb__get16(b + 4),
                              .flags = neb__get32(b + 6),
                              .value = neb__get64(b + 10),
                              .epoch = neb__get32(b + 18),
                              .index = neb__get64(b + 22)};
    memcpy(out->head.b, b + 30, NEB_HASH_SIZE);
    neb__members_get(&roster, &out->roster);
    memcpy(out->signature, b + SIGNED, NEB_SEAL_SIZE);
    return out->op && out->op < NEB_OP_ORDERS && get_parts(in, out);
}

/* Returns how many bytes are signed. */
static size_t to_sign(const struct neb_order *o, const struct neb_hash *genesis,
                      uint8_t out[NEB_HASH_SIZE + NEB_ORDER_MAX])
{
    memcpy(out, genesis->b, NEB_HASH_SIZE);
    neb__order_put(o, out + NEB_HASH_SIZE);
    out[NEB_HASH_SIZE + 1] = 0; /* parts */
    return NEB_HASH_SIZE + SIGNED;
}

neb_status neb__order_sign(struct neb_order *o, const struct neb_hash *genesis, const struct neb_seal *seal)
{
    uint8_t b[NEB_HASH_SIZE + NEB_ORDER_MAX];
    if (!seal->sign) return neb__quiet(NEB_ERR_AUTH, "this site has no key to sign with");
    return seal->sign(seal->arg, purpose, b, to_sign(o, genesis, b), o->signature);
}

neb_status neb__order_sign_part(struct neb_order *o, uint8_t who, const struct neb_hash *genesis,
                                const struct neb_seal *seal)
{
    uint8_t b[NEB_HASH_SIZE + NEB_ORDER_MAX];
    struct neb_order_part mine = {.who = who};
    int at = 0;
    while (at < o->parts && o->part[at].who < who) at++;
    if (at < o->parts && o->part[at].who == who)
        return neb__quiet(NEB_ERR_EXISTS, "this operator has signed already");
    if (o->parts >= NEB_PARTS_MAX || who >= NEB_PARTS_MAX)
        return neb__quiet(NEB_ERR_LIMIT, "an order has at most %d signatures", NEB_PARTS_MAX);
    NEB_TRY(seal->sign(seal->arg, purpose, b, to_sign(o, genesis, b), mine.signature));
    memmove(&o->part[at + 1], &o->part[at], (size_t)(o->parts - at) * sizeof mine);
    o->part[at] = mine;
    o->parts++;
    return NEB_OK;
}

bool neb__order_same(const struct neb_order *a, const struct neb_order *b)
{
    uint8_t x[NEB_ORDER_MAX], y[NEB_ORDER_MAX];
    neb__order_put(a, x);
    neb__order_put(b, y);
    x[1] = y[1] = 0; /* parts */
    return !memcmp(x, y, SIGNED);
}

static bool names_roster(const struct neb_order *o)
{
    return o->op == NEB_OP_FORCE || o->op == NEB_OP_ADOPT;
}

static bool well_formed(const struct neb_order *o)
{
    if (!o->op || o->op >= NEB_OP_ORDERS) return false;
    if (names_roster(o)) return neb__members_valid(&o->roster) && o->roster.epoch == o->epoch;
    if (o->op == NEB_OP_BUDGET) return o->value >= 1 && o->value <= 1000;
    if (o->op == NEB_OP_BOUND) return o->value < 0x7f800000u; /* a finite number, not negative */
    if (o->op == NEB_OP_SURVIVOR && o->site == NEB_NO_SITE) return true;
    return o->op == NEB_OP_END || o->op == NEB_OP_OPERATORS || o->site < NEB_SITES_MAX;
}

bool neb__order_genuine(const struct neb_order *o, const struct neb_hash *genesis,
                        const struct neb_seal *seal, uint64_t since)
{
    uint8_t b[NEB_HASH_SIZE + NEB_ORDER_MAX];
    if (!well_formed(o)) return false;
    if (NEB_MUTANT(trust_orders)) return true;
    size_t n = to_sign(o, genesis, b);
    if (o->signer == NEB_BY_OPERATOR && seal->by_operators)
        return seal->by_operators(seal->arg, since, purpose, b, n, o);
    return seal->verify && !o->parts && seal->verify(seal->arg, o->signer, purpose, b, n, o->signature);
}

bool neb__order_may(const struct neb_order *o, const struct neb_members *roster)
{
    if (o->op == NEB_OP_LEAVE) return o->signer == o->site;
    if (o->signer == NEB_BY_OPERATOR) return true;
    bool harmless = o->op == NEB_OP_ADMIT || o->op == NEB_OP_EVICT || o->op == NEB_OP_END ||
                    o->op == NEB_OP_BUDGET || o->op == NEB_OP_BOUND;
    return harmless && roster->heavy != NEB_NO_SITE && o->signer == roster->heavy;
}

bool neb__order_roster(const struct neb_order *o, const struct neb_members *from, struct neb_members *out)
{
    uint64_t bit = neb__bit(o->site);
    *out = *from;
    out->epoch = from->epoch + 1;
    switch (o->op) {
    case NEB_OP_ADMIT:
        out->members |= bit;
        if (o->flags & 1) out->trains |= bit;
        return true;
    case NEB_OP_EVICT:
    case NEB_OP_LEAVE: out->members &= ~bit, out->voters &= ~bit, out->trains &= ~bit; return true;
    case NEB_OP_SURVIVOR: out->heavy = o->site; return true;
    case NEB_OP_REKEY: return true; /* the same members, of whom one has another key */
    default: return false;
    }
}
