/* chain.c: the genesis and the signed chain of epochs.
 *
 *     genesis   "NEBGEN1" 0, 16 bytes run id, 32 operator key, u16 facts, for each (names ascending):
 *               u8 length, name, u16 length, value; roster
 *     epoch     body: "NEBEPO1" 0, 32 genesis hash, u64 number, 32 previous hash, u8 kind, u64 head index, 32 head hash,
 *               roster;  then u16 signatures, for each (signers ascending): u16 signer, 64 bytes
 *     file      "NEBCHN1" 0, u32 length, genesis, then epochs, each behind its u32 length
 *
 * The hash of an epoch is that of its body: signatures gathered in another order or number do not change it. An epoch
 * is valid if its number and previous hash continue the chain, its roster fulfils the rules, no id is given twice in
 * the run's life, and it is signed by the operator or by more than half of the previous roster's votes. A key expires
 * by leaving the roster: nothing here looks at a clock. */
#include "seal/roster.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char genesis_magic[8] = "NEBGEN1", epoch_magic[8] = "NEBEPO1", file_magic[8] = "NEBCHN1";
static const char purpose[] = "nebula-i roster epoch";
enum { MAGIC = 8, CHAIN_FILE_MAX = 64 << 20 };

static bool read_magic(struct neb_reader *r, const char magic[MAGIC])
{
    const uint8_t *p = neb__read(r, MAGIC);
    return p && !memcmp(p, magic, MAGIC);
}

static bool read_hash(struct neb_reader *r, struct neb_hash *out)
{
    const uint8_t *p = neb__read(r, NEB_HASH_SIZE);
    if (p) memcpy(out->b, p, NEB_HASH_SIZE);
    return p != NULL;
}

static neb_status no_memory(void)
{
    return neb__fail(NEB_ERR_NOMEM, "out of memory for a roster chain");
}

static struct neb_chain *chain_new(void)
{
    struct neb_chain *c = NEB_NEW(struct neb_chain);
    if (!c) return NULL;
    neb__buf_init(&c->genesis, NEB_EPOCH_BYTES_MAX);
    neb__buf_init(&c->tail, CHAIN_FILE_MAX - NEB_EPOCH_BYTES_MAX);
    return c;
}

void neb__chain_free(struct neb_chain *c)
{
    if (!c) return;
    neb__buf_free(&c->genesis);
    neb__buf_free(&c->tail);
    neb__free(c->facts);
    neb__roster_free(&c->now);
    neb__free(c);
}

const struct neb_fact *neb__chain_fact(const struct neb_chain *c, const char *name)
{
    for (uint32_t i = 0; i < c->fact_count; i++)
        if (!strcmp(c->facts[i].name, name)) return &c->facts[i];
    return NULL;
}

/* ---- genesis ----------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct neb_fact *)a)->name, ((const struct neb_fact *)b)->name);
}

static neb_status append_facts(const struct neb_fact *facts, uint32_t count, struct neb_buf *out)
{
    uint8_t h[2];
    neb__put16(h, (uint16_t)count);
    NEB_TRY(neb__buf_append(out, h, 2));
    for (uint32_t i = 0; i < count; i++) {
        uint8_t n = (uint8_t)strnlen(facts[i].name, NEB_FACT_NAME_SIZE);
        if (n < 1 || n >= NEB_FACT_NAME_SIZE || facts[i].size > NEB_FACT_VALUE_MAX ||
            (i && strcmp(facts[i - 1].name, facts[i].name) >= 0))
            return neb__fail(NEB_ERR_INVALID, "fact %u of the genesis has no proper name, or occurs twice",
                             i);
        NEB_TRY(neb__buf_append(out, &n, 1));
        NEB_TRY(neb__buf_append(out, facts[i].name, n));
        neb__put16(h, facts[i].size);
        NEB_TRY(neb__buf_append(out, h, 2));
        NEB_TRY(neb__buf_append(out, facts[i].value, facts[i].size));
    }
    return NEB_OK;
}

static bool read_fact(struct neb_reader *r, struct neb_fact *f)
{
    uint8_t n = neb__read8(r);
    const uint8_t *name = neb__read(r, n);
    f->size = neb__read16(r);
    const uint8_t *value = neb__read(r, f->size);
    if (!name || !value || n < 1 || n >= NEB_FACT_NAME_SIZE || f->size > NEB_FACT_VALUE_MAX ||
        memchr(name, 0, n))
        return false;
    memcpy(f->name, name, n);
    f->name[n] = 0;
    memcpy(f->value, value, f->size);
    return true;
}

static neb_status read_facts(struct neb_reader *r, struct neb_chain *c)
{
    uint16_t count = neb__read16(r);
    if (r->bad || count > NEB_FACTS_MAX) return neb__quiet(NEB_ERR_CORRUPT, "a genesis with %u facts", count);
    c->facts = NEB_NEW_ARRAY(struct neb_fact, count + 1u);
    if (!c->facts) return no_memory();
    c->fact_count = count;
    for (uint32_t i = 0; i < count; i++)
        if (!read_fact(r, &c->facts[i]) || (i && strcmp(c->facts[i - 1].name, c->facts[i].name) >= 0))
            return neb__quiet(NEB_ERR_CORRUPT, "fact %u of a genesis is damaged", i);
    return NEB_OK;
}

/* Fills a fresh chain from its encoded genesis. */
static neb_status load_genesis(struct neb_chain *c, const uint8_t *p, size_t n)
{
    struct neb_reader r = {p, n, false};
    if (n > NEB_EPOCH_BYTES_MAX) return neb__quiet(NEB_ERR_CORRUPT, "a genesis of %zu bytes", n);
    if (!read_magic(&r, genesis_magic)) return neb__quiet(NEB_ERR_VERSION, "not a genesis of this version");
    const uint8_t *run = neb__read(&r, NEB_RUN_ID_SIZE), *key = neb__read(&r, NEB_PUBLIC_SIZE);
    if (!run || !key) return neb__quiet(NEB_ERR_CORRUPT, "a genesis that ends too early");
    memcpy(c->run_id, run, NEB_RUN_ID_SIZE);
    memcpy(c->operator_key.b, key, NEB_PUBLIC_SIZE);
    NEB_TRY(read_facts(&r, c));
    NEB_TRY(neb__roster_decode(&r, &c->now));
    if (r.left) return neb__quiet(NEB_ERR_CORRUPT, "%zu bytes behind a genesis", r.left);
    c->last_id = c->now.members[c->now.count - 1].id;
    NEB_TRY(neb__buf_append(&c->genesis, p, n));
    NEB_TRY(neb__hash(p, n, &c->genesis_hash));
    c->head = c->genesis_hash;
    return NEB_OK;
}

static neb_status encode_genesis(const struct neb_public *operator_key, const struct neb_fact *facts,
                                 uint32_t count, const struct neb_roster *roster, struct neb_buf *out)
{
    uint8_t run[NEB_RUN_ID_SIZE];
    NEB_TRY(neb__random(run, sizeof run));
    NEB_TRY(neb__buf_append(out, genesis_magic, MAGIC));
    NEB_TRY(neb__buf_append(out, run, sizeof run));
    NEB_TRY(neb__buf_append(out, operator_key->b, NEB_PUBLIC_SIZE));
    struct neb_fact *sorted = NEB_NEW_ARRAY(struct neb_fact, count + 1u);
    if (!sorted) return no_memory();
    if (count) memcpy(sorted, facts, count * sizeof *facts);
    qsort(sorted, count, sizeof *sorted, by_name);
    neb_status s = append_facts(sorted, count, out);
    neb__free(sorted);
    NEB_TRY(s);
    return neb__roster_encode(roster, out);
}

neb_status neb__chain_create(const struct neb_public *operator_key, const struct neb_fact *facts,
                             uint32_t fact_count, const struct neb_roster *roster, struct neb_chain **out)
{
    struct neb_roster numbered;
    struct neb_buf b;
    neb_status s;
    if (fact_count > NEB_FACTS_MAX || roster->count > NEB_MEMBERS_MAX)
        return neb__fail(NEB_ERR_INVALID, "at most %d facts and %d members", NEB_FACTS_MAX, NEB_MEMBERS_MAX);
    struct neb_chain *c = chain_new();
    if (!c) return no_memory();
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX);
    NEB_TRY_GOTO(s, neb__roster_copy(roster, &numbered), fail);
    for (uint32_t i = 0; i < numbered.count; i++) numbered.members[i].id = (uint16_t)(i + 1);
    s = neb__roster_check(&numbered);
    if (s != NEB_OK) neb__fail(s, "%s", neb_last_error());
    if (s == NEB_OK) s = encode_genesis(operator_key, facts, fact_count, &numbered, &b);
    if (s == NEB_OK) s = load_genesis(c, b.data, b.len);
    neb__roster_free(&numbered);
    if (s != NEB_OK) goto fail;
    neb__buf_free(&b);
    *out = c;
    return NEB_OK;
fail:
    neb__buf_free(&b);
    neb__chain_free(c);
    return s;
}

/* ---- epochs ------------------------------------------------------------------------------------------------------ */

struct signer {
    const struct neb_public *key; /* NULL: nobody may sign under this number */
    uint32_t votes;
};

static struct signer find_signer(const struct neb_chain *c, const struct neb_roster *r, uint16_t id)
{
    if (id == NEB_SIGNER_OPERATOR) return (struct signer){&c->operator_key, UINT16_MAX};
    const struct neb_member *m = neb__roster_by_id(r, id);
    return m && m->votes ? (struct signer){&m->key, m->votes} : (struct signer){NULL, 0};
}

static neb_status check_signatures(const struct neb_chain *c, const struct neb_roster *before,
                                   const struct neb_hash *hash, struct neb_reader *r)
{
    uint32_t have = 0, count = neb__read16(r);
    int last = -1;
    if (r->bad || count > NEB_VOTERS_MAX + 1u) return neb__quiet(NEB_ERR_CORRUPT, "%u signatures", count);
    for (uint32_t i = 0; i < count; i++) {
        struct neb_signature sig;
        uint16_t id = neb__read16(r);
        const uint8_t *p = neb__read(r, NEB_SIGNATURE_SIZE);
        if (!p || (int)id <= last) return neb__quiet(NEB_ERR_CORRUPT, "an epoch's signatures are damaged");
        last = id;
        struct signer who = find_signer(c, before, id);
        if (!who.key) return neb__quiet(NEB_ERR_AUTH, "an epoch is signed by %u, who has no vote", id);
        memcpy(sig.b, p, NEB_SIGNATURE_SIZE);
        NEB_TRY(neb__key_verify(who.key, purpose, hash->b, NEB_HASH_SIZE, &sig));
        have += who.votes;
    }
    if (2 * have <= neb__roster_votes(before))
        return neb__quiet(NEB_ERR_AUTH,
                          "an epoch is signed by neither the operator nor a majority of the votes");
    return NEB_OK;
}

/* No id may come back or change its site: `last_id` is the largest given before. */
static neb_status check_ids(const struct neb_roster *before, const struct neb_roster *after, uint16_t last_id)
{
    for (uint32_t i = 0; i < after->count; i++) {
        const struct neb_member *m = &after->members[i], *old = neb__roster_by_id(before, m->id);
        if (old ? strcmp(old->name, m->name) != 0 : m->id <= last_id)
            return neb__quiet(NEB_ERR_CORRUPT, "an epoch gives the id %u to another site", m->id);
    }
    return NEB_OK;
}

/* One encoded epoch against the roster it follows. On success `after` owes a free. */
static neb_status open_epoch(const struct neb_chain *c, const struct neb_roster *before,
                             const struct neb_hash *previous, uint64_t number, uint16_t last_id,
                             const uint8_t *p, size_t n, struct neb_epoch *e, struct neb_roster *after)
{
    struct neb_reader r = {p, n, false};
    struct neb_hash genesis;
    if (n > NEB_EPOCH_BYTES_MAX) return neb__quiet(NEB_ERR_CORRUPT, "an epoch of %zu bytes", n);
    if (!read_magic(&r, epoch_magic)) return neb__quiet(NEB_ERR_VERSION, "not an epoch of this version");
    if (!read_hash(&r, &genesis) || !neb__hash_equal(&genesis, &c->genesis_hash))
        return neb__quiet(NEB_ERR_CORRUPT, "an epoch of another run");
    e->number = neb__read64(&r);
    read_hash(&r, &e->previous);
    e->kind = neb__read8(&r);
    e->head_index = neb__read64(&r);
    if (!read_hash(&r, &e->head_hash) || e->number != number || !neb__hash_equal(&e->previous, previous) ||
        (e->kind != NEB_EPOCH_CHANGE && e->kind != NEB_EPOCH_EVICT))
        return neb__quiet(NEB_ERR_CORRUPT, "epoch %" PRIu64 " does not follow from the one before", number);
    NEB_TRY(neb__roster_decode(&r, after));
    neb_status s = neb__hash(p, n - r.left, &e->hash);
    if (s == NEB_OK) s = check_signatures(c, before, &e->hash, &r);
    if (s == NEB_OK && r.left) s = neb__quiet(NEB_ERR_CORRUPT, "%zu bytes behind an epoch", r.left);
    if (s == NEB_OK) s = check_ids(before, after, last_id);
    if (s != NEB_OK) neb__roster_free(after);
    return s;
}

/* The number an encoded epoch claims, before anything is checked; 0 when it is too short. */
static uint64_t claimed_number(const uint8_t *p, size_t n)
{
    return n >= MAGIC + NEB_HASH_SIZE + 8 ? neb__get64(p + MAGIC + NEB_HASH_SIZE) : 0;
}

uint64_t neb__chain_tail(const struct neb_chain *c, uint64_t after, size_t max, const uint8_t **p, size_t *n)
{
    size_t at = 0, from, end;
    uint64_t number = 0, count = 0;
    while (at < c->tail.len && number < after) at += 4 + neb__get32(c->tail.data + at), number++;
    for (from = end = at; at < c->tail.len; end = at, count++) {
        at += 4 + neb__get32(c->tail.data + at);
        if (end > from && at - from > max) break;
    }
    *p = c->tail.data ? c->tail.data + from : NULL;
    *n = end - from;
    return count;
}

/* An epoch of a number we hold: the same body is nothing new; another one, validly signed, is a fork. */
static neb_status compare_held(const struct neb_chain *c, uint64_t number, const uint8_t *p, size_t n)
{
    const uint8_t *mine;
    size_t mine_n;
    neb__chain_tail(c, number - 1, 1, &mine, &mine_n);
    if (mine_n == n + 4 && !memcmp(mine + 4, p, n)) return NEB_OK;
    struct neb_chain *at = chain_new();
    struct neb_epoch theirs = {0}, ours = {0};
    struct neb_roster after = {0};
    if (!at) return no_memory();
    neb_status s = load_genesis(at, c->genesis.data, c->genesis.len);
    if (s == NEB_OK && number > 1) {
        size_t upto = (size_t)(mine - c->tail.data);
        s = neb__chain_extend(at, c->tail.data, upto);
    }
    if (s == NEB_OK) s = open_epoch(at, &at->now, &at->head, number, at->last_id, p, n, &theirs, &after);
    neb__roster_free(&after);
    if (s == NEB_OK)
        s = open_epoch(at, &at->now, &at->head, number, at->last_id, mine + 4, mine_n - 4, &ours, &after);
    neb__roster_free(&after);
    neb__chain_free(at);
    if (s == NEB_OK && !neb__hash_equal(&ours.hash, &theirs.hash))
        s = neb__fail(NEB_ERR_EXISTS,
                      "two different rosters are signed for epoch %" PRIu64
                      ": the operator must choose one (nebula-i adopt)",
                      number);
    return s;
}

/* The chain's state while epochs are being added; becomes the chain's only when all fit. */
struct ahead {
    struct neb_roster now;
    struct neb_hash head;
    uint64_t epoch;
    uint16_t last_id;
};

static neb_status extend_one(struct neb_chain *c, struct ahead *a, const uint8_t *p, size_t n)
{
    struct neb_epoch e = {0};
    struct neb_roster after = {0};
    uint64_t number = claimed_number(p, n);
    if (number && number <= c->epoch) return compare_held(c, number, p, n);
    if (number > a->epoch + 1)
        return neb__quiet(NEB_ERR_STATE, "epoch %" PRIu64 " was sent, %" PRIu64 " is the next", number,
                          a->epoch + 1);
    NEB_TRY(open_epoch(c, &a->now, &a->head, a->epoch + 1, a->last_id, p, n, &e, &after));
    neb__roster_free(&a->now);
    a->now = after;
    a->head = e.hash;
    a->epoch++;
    uint16_t top = after.members[after.count - 1].id;
    if (top > a->last_id) a->last_id = top;
    uint8_t len[4];
    neb__put32(len, (uint32_t)n);
    NEB_TRY(neb__buf_append(&c->tail, len, 4));
    return neb__buf_append(&c->tail, p, n);
}

neb_status neb__chain_extend(struct neb_chain *c, const uint8_t *p, size_t n)
{
    struct neb_reader r = {p, n, false};
    struct ahead a = {{0}, c->head, c->epoch, c->last_id};
    size_t was = c->tail.len;
    NEB_TRY(neb__roster_copy(&c->now, &a.now));
    neb_status s = NEB_OK;
    while (s == NEB_OK && r.left) {
        uint32_t len = neb__read32(&r);
        const uint8_t *e = neb__read(&r, len);
        s = e ? extend_one(c, &a, e, len)
              : neb__quiet(NEB_ERR_CORRUPT, "a chain of epochs that ends too early");
    }
    if (s != NEB_OK) {
        c->tail.len = was;
        neb__roster_free(&a.now);
        return s;
    }
    neb__roster_free(&c->now);
    c->now = a.now;
    c->head = a.head;
    c->epoch = a.epoch;
    c->last_id = a.last_id;
    return NEB_OK;
}

static int by_id(const void *a, const void *b)
{
    return (int)((const struct neb_member *)a)->id - (int)((const struct neb_member *)b)->id;
}

static neb_status epoch_body(const struct neb_chain *c, enum neb_epoch_kind kind, uint64_t head_index,
                             const struct neb_hash *head_hash, const struct neb_roster *roster,
                             struct neb_buf *out)
{
    uint8_t number[8], mid[9];
    neb__put64(number, c->epoch + 1);
    mid[0] = (uint8_t)kind;
    neb__put64(mid + 1, head_index);
    NEB_TRY(neb__buf_append(out, epoch_magic, MAGIC));
    NEB_TRY(neb__buf_append(out, c->genesis_hash.b, NEB_HASH_SIZE));
    NEB_TRY(neb__buf_append(out, number, 8));
    NEB_TRY(neb__buf_append(out, c->head.b, NEB_HASH_SIZE));
    NEB_TRY(neb__buf_append(out, mid, 9));
    NEB_TRY(neb__buf_append(out, head_hash->b, NEB_HASH_SIZE));
    return neb__roster_encode(roster, out);
}

static neb_status append_signatures(const struct neb_chain *c, const struct neb_hash *hash,
                                    const struct neb_key *const *signers, uint32_t count, struct neb_buf *out)
{
    uint8_t h[2];
    neb__put16(h, (uint16_t)count);
    NEB_TRY(neb__buf_append(out, h, 2));
    int last = -1;
    for (uint32_t done = 0; done < count; done++) { /* ascending ids, the operator last */
        const struct neb_key *best = NULL;
        int best_id = INT32_MAX;
        for (uint32_t i = 0; i < count; i++) {
            struct neb_public key;
            neb__key_public(signers[i], &key);
            const struct neb_member *m = neb__roster_by_key(&c->now, &key);
            int id = m && m->votes                               ? m->id
                     : neb__public_equal(&key, &c->operator_key) ? NEB_SIGNER_OPERATOR
                                                                 : -1;
            if (id < 0)
                return neb__fail(NEB_ERR_AUTH,
                                 "a signer is neither the run's operator nor one of its voters");
            if (id > last && id < best_id) best = signers[i], best_id = id;
        }
        if (!best) return neb__fail(NEB_ERR_INVALID, "a signer was given twice");
        struct neb_signature sig;
        NEB_TRY(neb__key_sign(best, purpose, hash->b, NEB_HASH_SIZE, &sig));
        last = best_id;
        neb__put16(h, (uint16_t)best_id);
        NEB_TRY(neb__buf_append(out, h, 2));
        NEB_TRY(neb__buf_append(out, sig.b, NEB_SIGNATURE_SIZE));
    }
    return NEB_OK;
}

neb_status neb__chain_propose(const struct neb_chain *c, enum neb_epoch_kind kind, uint64_t head_index,
                              const struct neb_hash *head_hash, const struct neb_roster *roster,
                              const struct neb_key *const *signers, uint32_t signer_count,
                              struct neb_buf *out)
{
    struct neb_roster next;
    struct neb_buf b;
    struct neb_hash hash;
    uint8_t len[4];
    uint16_t id = c->last_id;
    NEB_TRY(neb__roster_copy(roster, &next));
    for (uint32_t i = 0; i < next.count; i++)
        if (!next.members[i].id) next.members[i].id = ++id;
    qsort(next.members, next.count, sizeof *next.members, by_id);
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX);
    neb_status s = neb__roster_check(&next);
    if (s != NEB_OK) neb__fail(s, "%s", neb_last_error());
    if (s == NEB_OK) s = epoch_body(c, kind, head_index, head_hash, &next, &b);
    if (s == NEB_OK) s = neb__hash(b.data, b.len, &hash);
    if (s == NEB_OK) s = append_signatures(c, &hash, signers, signer_count, &b);
    neb__put32(len, (uint32_t)b.len);
    if (s == NEB_OK) s = neb__buf_append(out, len, 4);
    if (s == NEB_OK) s = neb__buf_append(out, b.data, b.len);
    neb__buf_free(&b);
    neb__roster_free(&next);
    return s;
}

/* ---- whole chains ------------------------------------------------------------------------------------------------ */

neb_status neb__chain_encode(const struct neb_chain *c, struct neb_buf *out)
{
    uint8_t len[4];
    neb__put32(len, (uint32_t)c->genesis.len);
    NEB_TRY(neb__buf_append(out, file_magic, MAGIC));
    NEB_TRY(neb__buf_append(out, len, 4));
    NEB_TRY(neb__buf_append(out, c->genesis.data, c->genesis.len));
    return c->tail.len ? neb__buf_append(out, c->tail.data, c->tail.len) : NEB_OK;
}

neb_status neb__chain_decode(const uint8_t *p, size_t n, struct neb_chain **out)
{
    struct neb_reader r = {p, n, false};
    if (!read_magic(&r, file_magic)) return neb__quiet(NEB_ERR_VERSION, "not a roster of this version");
    uint32_t len = neb__read32(&r);
    const uint8_t *genesis = neb__read(&r, len);
    if (!genesis) return neb__quiet(NEB_ERR_CORRUPT, "a roster that ends too early");
    struct neb_chain *c = chain_new();
    if (!c) return no_memory();
    neb_status s = load_genesis(c, genesis, len);
    if (s == NEB_OK) s = neb__chain_extend(c, r.p, r.left);
    if (s != NEB_OK) {
        neb__chain_free(c);
        return s;
    }
    *out = c;
    return NEB_OK;
}

neb_status neb__chain_read(const char *path, struct neb_chain **out)
{
    struct neb_buf b;
    neb__buf_init(&b, CHAIN_FILE_MAX);
    neb_status s = neb__file_read(path, &b);
    if (s == NEB_OK) {
        s = neb__chain_decode(b.data, b.len, out);
        if (s != NEB_OK) neb__fail(s, "%s: %s", path, neb_last_error());
    }
    neb__buf_free(&b);
    return s;
}

neb_status neb__chain_write(const struct neb_chain *c, const char *path)
{
    struct neb_buf b;
    neb__buf_init(&b, CHAIN_FILE_MAX);
    neb_status s = neb__chain_encode(c, &b);
    if (s == NEB_OK) s = neb__file_replace(path, b.data, b.len, 0644);
    neb__buf_free(&b);
    return s;
}
