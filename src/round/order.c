/* order.c: the bytes of orders, and who may give them.
 *
 *     u8 op, u8 0, u16 signer, u16 site, u32 flags, u64 value, u32 epoch, u64 index,
 *     hash head, roster, signature
 *
 * The signature covers the run's genesis hash and everything before the signature. The operator may give any
 * order. The survivor of a run, which may go on alone anyway, may give the orders that leave the votes as
 * they are. Every site may order its own removal. */
#include "round/order.h"
#include "base/bytes.h"
#include "base/mutant.h"

static const char purpose[] = "nebula round order";

enum { SIGNED = NEB_ORDER_SIZE - NEB_SEAL_SIZE, ROSTER_AT = 62 };

void neb__order_put(const struct neb_order *o, uint8_t out[NEB_ORDER_SIZE])
{
    memset(out, 0, NEB_ORDER_SIZE);
    out[0] = o->op;
    neb__put16(out + 2, o->signer);
    neb__put16(out + 4, o->site);
    neb__put32(out + 6, o->flags);
    neb__put64(out + 10, o->value);
    neb__put32(out + 18, o->epoch);
    neb__put64(out + 22, o->index);
    memcpy(out + 30, o->head.b, NEB_HASH_SIZE);
    neb__members_bytes(&o->roster, out + ROSTER_AT);
    memcpy(out + SIGNED, o->signature, NEB_SEAL_SIZE);
}

bool neb__order_get(const uint8_t in[NEB_ORDER_SIZE], struct neb_order *out)
{
    struct neb_reader roster = {in + ROSTER_AT, SIGNED - ROSTER_AT, false};
    *out = (struct neb_order){.op = in[0],
                              .signer = neb__get16(in + 2),
                              .site = neb__get16(in + 4),
                              .flags = neb__get32(in + 6),
                              .value = neb__get64(in + 10),
                              .epoch = neb__get32(in + 18),
                              .index = neb__get64(in + 22)};
    memcpy(out->head.b, in + 30, NEB_HASH_SIZE);
    neb__members_get(&roster, &out->roster);
    memcpy(out->signature, in + SIGNED, NEB_SEAL_SIZE);
    return !in[1] && out->op && out->op < NEB_OP_ORDERS;
}

static void to_sign(const struct neb_order *o, const struct neb_hash *genesis,
                    uint8_t out[NEB_HASH_SIZE + NEB_ORDER_SIZE])
{
    memcpy(out, genesis->b, NEB_HASH_SIZE);
    neb__order_put(o, out + NEB_HASH_SIZE);
}

neb_status neb__order_sign(struct neb_order *o, const struct neb_hash *genesis, const struct neb_seal *seal)
{
    uint8_t b[NEB_HASH_SIZE + NEB_ORDER_SIZE];
    if (!seal->sign) return neb__quiet(NEB_ERR_AUTH, "this site has no key to sign with");
    to_sign(o, genesis, b);
    return seal->sign(seal->arg, purpose, b, NEB_HASH_SIZE + SIGNED, o->signature);
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
    return o->op == NEB_OP_END || o->site < NEB_SITES_MAX;
}

bool neb__order_genuine(const struct neb_order *o, const struct neb_hash *genesis,
                        const struct neb_seal *seal)
{
    uint8_t b[NEB_HASH_SIZE + NEB_ORDER_SIZE];
    if (!well_formed(o)) return false;
    if (NEB_MUTANT(trust_orders)) return true;
    if (!seal->verify) return false;
    to_sign(o, genesis, b);
    return seal->verify(seal->arg, o->signer, purpose, b, NEB_HASH_SIZE + SIGNED, o->signature);
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
    default: return false;
    }
}
