/* certificate.c: signed statements and the certificates made of them.
 *
 * A statement is signed over the genesis, its kind, its author, epoch, life, view, normal view, index, record hash, a further
 * hash, and the author's durable table of the voters' lapses. The tables make forgotten promises void: a site that lost its
 * disk takes a new lapse only after enough voters have stored it, and each quorum that the site was part of contains one of
 * them. So either that voter knew of the old promise when it answered, or its own statement shows the newer lapse.
 *
 * Layout (little-endian), a statement: u8 kind, u8 site, u32 epoch, u32 life, u64 view, u64 normal, u64 index, hash, hash
 * more (VOTES and STARTS only), table, signature. A table: u8 n, then n times u8 site, u16 lapse. A certificate: u8 n, and
 * unless n is 0: u8 kind, u32 epoch, u64 view, u64 index, hash, then n times u8 site, u32 life, table, signature. */
#include "round/certificate.h"
#include "base/mutant.h"

#include <string.h>

static const char purpose[] = "nebula round statement", lapse_purpose[] = "nebula round lapse";

enum { SIGNED_MAX = 256 };

uint32_t neb__said_lapse(const struct neb_said *s, unsigned of)
{
    for (int i = 0; i < s->lapses.n; i++)
        if (s->lapses.of[i].site == of) return s->lapses.of[i].lapse;
    return 0;
}

static bool has_more(uint8_t kind)
{
    return kind == NEB_SAID_VOTES || kind == NEB_SAID_STARTS;
}

static neb_status put_hash(const struct neb_hash *h, struct neb_buf *out)
{
    return neb__buf_append(out, h->b, NEB_HASH_SIZE);
}

static neb_status put_table(const struct neb_lapse_table *t, struct neb_buf *out)
{
    uint8_t b[1 + 3 * (NEB_ROUND_VOTERS_MAX + 1)] = {t->n};
    for (int i = 0; i < t->n; i++) {
        b[1 + 3 * i] = t->of[i].site;
        neb__put16(b + 2 + 3 * i, t->of[i].lapse);
    }
    return neb__buf_append(out, b, 1 + 3 * (size_t)t->n);
}

static bool get_table(struct neb_reader *in, struct neb_lapse_table *t)
{
    int last = -1;
    t->n = neb__read8(in);
    if (t->n > NEB_ROUND_VOTERS_MAX + 1) return false;
    for (int i = 0; i < t->n; i++) {
        t->of[i].site = neb__read8(in);
        t->of[i].lapse = neb__read16(in);
        if (t->of[i].site >= NEB_SITES_MAX || t->of[i].site <= last || !t->of[i].lapse) return false;
        last = t->of[i].site;
    }
    return !in->bad;
}

static void get_bytes(struct neb_reader *in, void *out, size_t n)
{
    const uint8_t *p = neb__read(in, n);
    if (p) memcpy(out, p, n);
}

static neb_status put_fields(const struct neb_said *s, struct neb_buf *out)
{
    uint8_t b[34] = {s->kind, s->site};
    neb__put32(b + 2, s->epoch);
    neb__put32(b + 6, s->life);
    neb__put64(b + 10, s->view);
    neb__put64(b + 18, s->normal);
    neb__put64(b + 26, s->index);
    NEB_TRY(neb__buf_append(out, b, sizeof b));
    NEB_TRY(put_hash(&s->hash, out));
    if (has_more(s->kind)) NEB_TRY(put_hash(&s->more, out));
    return put_table(&s->lapses, out);
}

neb_status neb__said_put(const struct neb_said *s, struct neb_buf *out)
{
    NEB_TRY(put_fields(s, out));
    return neb__buf_append(out, s->signature, NEB_SEAL_SIZE);
}

bool neb__said_get(struct neb_reader *in, struct neb_said *s)
{
    memset(s, 0, sizeof *s);
    s->kind = neb__read8(in);
    s->site = neb__read8(in);
    s->epoch = neb__read32(in);
    s->life = neb__read32(in);
    s->view = neb__read64(in);
    s->normal = neb__read64(in);
    s->index = neb__read64(in);
    get_bytes(in, s->hash.b, NEB_HASH_SIZE);
    if (s->kind < NEB_SAID_HOLDS || s->kind >= NEB_SAID_KINDS || s->site >= NEB_SITES_MAX) return false;
    if (has_more(s->kind)) get_bytes(in, s->more.b, NEB_HASH_SIZE);
    if (!get_table(in, &s->lapses)) return false;
    get_bytes(in, s->signature, NEB_SEAL_SIZE);
    return !in->bad;
}

/* The bytes that are signed, in a buffer of the caller. */
static size_t to_sign(const struct neb_said *s, const struct neb_hash *genesis, uint8_t out[SIGNED_MAX])
{
    size_t n = NEB_HASH_SIZE;
    memcpy(out, genesis->b, NEB_HASH_SIZE);
    out[n] = s->kind;
    out[n + 1] = s->site;
    neb__put32(out + n + 2, s->epoch);
    neb__put32(out + n + 6, s->life);
    neb__put64(out + n + 10, s->view);
    neb__put64(out + n + 18, s->normal);
    neb__put64(out + n + 26, s->index);
    memcpy(out + n + 34, s->hash.b, NEB_HASH_SIZE);
    memcpy(out + n + 66, s->more.b, NEB_HASH_SIZE);
    out[n + 98] = s->lapses.n;
    n += 99;
    for (int i = 0; i < s->lapses.n; i++, n += 3) {
        out[n] = s->lapses.of[i].site;
        neb__put16(out + n + 1, s->lapses.of[i].lapse);
    }
    return n;
}

neb_status neb__said_sign(struct neb_said *s, const struct neb_hash *genesis, const struct neb_seal *seal)
{
    uint8_t b[SIGNED_MAX];
    if (!seal->sign) return neb__quiet(NEB_ERR_AUTH, "this site has no key to sign with");
    size_t n = to_sign(s, genesis, b);
    return seal->sign(seal->arg, purpose, b, n, s->signature);
}

static bool said_by(const struct neb_said *s, unsigned signer, const struct neb_hash *genesis,
                    const struct neb_seal *seal)
{
    uint8_t b[SIGNED_MAX];
    size_t n = to_sign(s, genesis, b);
    return seal->verify && seal->verify(seal->arg, signer, purpose, b, n, s->signature);
}

bool neb__said_genuine(const struct neb_said *s, const struct neb_hash *genesis, const struct neb_seal *seal)
{
    return said_by(s, s->site, genesis, seal);
}

bool neb__said_same_place(const struct neb_said *a, const struct neb_said *b)
{
    return a->kind == b->kind && a->epoch == b->epoch && a->view == b->view && a->index == b->index &&
           neb__hash_equal(&a->hash, &b->hash);
}

void neb__vote_set_forced(struct neb_said *vote, uint32_t epoch)
{
    memset(&vote->more, 0, sizeof vote->more);
    neb__put32(vote->more.b, epoch);
}

uint32_t neb__vote_forced(const struct neb_said *vote)
{
    return neb__get32(vote->more.b);
}

bool neb__vote_better(const struct neb_said *a, const struct neb_said *b)
{
    uint32_t fa = neb__vote_forced(a), fb = neb__vote_forced(b);
    if (fa != fb && !NEB_MUTANT(views_over_force)) return fa > fb;
    return a->normal > b->normal || (a->normal == b->normal && a->index > b->index);
}

bool neb__said_void(const struct neb_said *all, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (neb__said_lapse(&all[k], all[i].site) > neb__said_lapse(&all[i], all[i].site)) return true;
    return false;
}

enum { LAPSE_SIGNED = NEB_HASH_SIZE + 6 };

static void lapse_bytes(const struct neb_hash *genesis, unsigned site, uint32_t lapse,
                        uint8_t out[LAPSE_SIGNED])
{
    memcpy(out, genesis->b, NEB_HASH_SIZE);
    neb__put16(out + NEB_HASH_SIZE, (uint16_t)site);
    neb__put32(out + NEB_HASH_SIZE + 2, lapse);
}

uint32_t neb__lapse_limit(const struct neb_seal *seal, unsigned site, bool former)
{
    unsigned keys = seal->former_keys ? seal->former_keys(seal->arg, site) : 0;
    if (former && keys) keys--;
    return NEB_LAPSE_MAX - (NEB_LAPSE_MAX >> (keys < 15 ? keys + 1 : 16));
}

neb_status neb__lapse_sign(const struct neb_hash *genesis, const struct neb_seal *seal, unsigned site,
                           uint32_t lapse, uint8_t out[NEB_SEAL_SIZE])
{
    uint8_t b[LAPSE_SIGNED];
    if (!seal->sign) return neb__quiet(NEB_ERR_AUTH, "this site has no key to sign with");
    lapse_bytes(genesis, site, lapse, b);
    return seal->sign(seal->arg, lapse_purpose, b, sizeof b, out);
}

bool neb__lapse_genuine(const struct neb_hash *genesis, const struct neb_seal *seal, unsigned site,
                        uint32_t lapse, const uint8_t signature[NEB_SEAL_SIZE])
{
    uint8_t b[LAPSE_SIGNED];
    lapse_bytes(genesis, site, lapse, b);
    if (NEB_MUTANT(trust_lapses)) return true;
    if (!seal->verify || lapse > neb__lapse_limit(seal, site, false)) return false;
    if (seal->verify(seal->arg, site, lapse_purpose, b, sizeof b, signature)) return true;
    /* A site that lost its folder and got a new key must not take numbers a second time. */
    return lapse <= neb__lapse_limit(seal, site, true) &&
           seal->verify(seal->arg, site | NEB_BY_FORMER, lapse_purpose, b, sizeof b, signature);
}

/* ---- quorums ------------------------------------------------------------------------------------------- */

int neb__quorum_liars(const struct neb_members *m)
{
    return (neb__members_total(m) - 1) / 3;
}

int neb__quorum_votes(const struct neb_members *m, enum neb_quorum_rule rule)
{
    if (rule != NEB_QUORUM_BYZANTINE) return neb__members_quorum(m);
    /* Any two of them have f + 1 votes in common. */
    return (neb__members_total(m) + neb__quorum_liars(m)) / 2 + 1;
}

bool neb__quorum_has(const struct neb_members *m, enum neb_quorum_rule rule, uint64_t sites)
{
    return neb__members_votes(m, sites) >= neb__quorum_votes(m, rule);
}

/* ---- certificates -------------------------------------------------------------------------------------- */

uint64_t neb__certificate_sites(const struct neb_certificate *c)
{
    uint64_t set = 0;
    for (int i = 0; i < c->n; i++) set |= neb__bit(c->by[i].site);
    return set;
}

bool neb__certificate_add(struct neb_certificate *c, const struct neb_said *s)
{
    if (c->n == NEB_ROUND_VOTERS_MAX || (neb__certificate_sites(c) & neb__bit(s->site))) return false;
    if (!c->n) {
        c->kind = s->kind;
        c->epoch = s->epoch;
        c->view = s->view;
        c->index = s->index;
        c->hash = s->hash;
    } else if (c->kind != s->kind || c->epoch != s->epoch || c->view != s->view || c->index != s->index ||
               !neb__hash_equal(&c->hash, &s->hash))
        return false;
    c->by[c->n].site = s->site;
    c->by[c->n].life = s->life;
    c->by[c->n].lapses = s->lapses;
    memcpy(c->by[c->n++].signature, s->signature, NEB_SEAL_SIZE);
    return true;
}

void neb__certificate_said(const struct neb_certificate *c, int i, struct neb_said *out)
{
    *out = (struct neb_said){.kind = c->kind,
                             .site = c->by[i].site,
                             .epoch = c->epoch,
                             .life = c->by[i].life,
                             .view = c->view,
                             .normal = c->view,
                             .index = c->index,
                             .hash = c->hash,
                             .lapses = c->by[i].lapses};
    memcpy(out->signature, c->by[i].signature, NEB_SEAL_SIZE);
}

bool neb__certificate_valid(const struct neb_certificate *c, const struct neb_members *m,
                            enum neb_quorum_rule rule, const struct neb_hash *genesis,
                            const struct neb_seal *seal)
{
    struct neb_said all[NEB_ROUND_VOTERS_MAX];
    if (NEB_MUTANT(trust_certificates)) return c->n > 0;
    uint64_t sites = neb__certificate_sites(c);
    if (!c->n || c->epoch != m->epoch || !neb__quorum_has(m, rule, sites)) return false;
    for (int i = 0; i < c->n; i++) neb__certificate_said(c, i, &all[i]);
    if (neb__said_void(all, c->n) && !NEB_MUTANT(count_void)) return false;
    for (int i = 0; i < c->n; i++)
        if (!neb__said_genuine(&all[i], genesis, seal) &&
            !said_by(&all[i], all[i].site | NEB_BY_FORMER, genesis,
                     seal)) /* certificates stay, keys may not */
            return false;
    return true;
}

neb_status neb__certificate_put(const struct neb_certificate *c, struct neb_buf *out)
{
    uint8_t b[22] = {c->n, c->kind};
    neb__put32(b + 2, c->epoch);
    neb__put64(b + 6, c->view);
    neb__put64(b + 14, c->index);
    if (!c->n) return neb__buf_append(out, b, 1);
    NEB_TRY(neb__buf_append(out, b, sizeof b));
    NEB_TRY(put_hash(&c->hash, out));
    for (int i = 0; i < c->n; i++) {
        uint8_t by[5] = {c->by[i].site};
        neb__put32(by + 1, c->by[i].life);
        NEB_TRY(neb__buf_append(out, by, sizeof by));
        NEB_TRY(put_table(&c->by[i].lapses, out));
        NEB_TRY(neb__buf_append(out, c->by[i].signature, NEB_SEAL_SIZE));
    }
    return NEB_OK;
}

bool neb__certificate_get(struct neb_reader *in, struct neb_certificate *c)
{
    int last = -1;
    memset(c, 0, sizeof *c);
    uint8_t n = neb__read8(in);
    if (!n || in->bad) return !in->bad;
    c->kind = neb__read8(in);
    c->epoch = neb__read32(in);
    c->view = neb__read64(in);
    c->index = neb__read64(in);
    get_bytes(in, c->hash.b, NEB_HASH_SIZE);
    if (n > NEB_ROUND_VOTERS_MAX || (c->kind != NEB_SAID_HOLDS && c->kind != NEB_SAID_PREPARED) || !c->index)
        return false;
    for (int i = 0; i < n; i++) {
        c->by[i].site = neb__read8(in);
        c->by[i].life = neb__read32(in);
        if (c->by[i].site >= NEB_SITES_MAX || c->by[i].site <= last || !get_table(in, &c->by[i].lapses))
            return false;
        get_bytes(in, c->by[i].signature, NEB_SEAL_SIZE);
        last = c->by[i].site;
    }
    c->n = n;
    return !in->bad;
}

neb_status neb__certificate_hash(const struct neb_certificate *c, struct neb_hash *out)
{
    struct neb_buf b;
    memset(out, 0, sizeof *out);
    if (!c->n) return NEB_OK;
    neb__buf_init(&b, NEB_CERTIFICATE_MAX);
    neb_status status = neb__certificate_put(c, &b);
    if (status == NEB_OK) status = neb__hash(b.data, b.len, out);
    neb__buf_free(&b);
    return status;
}
