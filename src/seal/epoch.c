/* epoch.c: a signed change of the roster, and the rules by which it is valid.
 *
 *     epoch     body: "NEBEPO1" 0, 32 genesis hash, u64 number, 32 previous hash, u8 kind, u64 head index,
 *               32 head hash, roster; of kind OPERATORS also their set (operators.c)
 *               then u16 signatures, for each (signers ascending): u16 signer, 64 bytes
 *
 * The hash of an epoch is the hash of its body, so the order and number of its signatures do not change it.
 * An epoch is valid if its number and previous hash continue the chain, its roster obeys the rules of
 * roster.c, no id is given twice in the run's life, and the operator (of several: their threshold) or more than half of the
 * previous roster's votes signed it. Operators are changed by operators alone. A key expires by leaving the roster; nothing here
 * looks at a clock. */
#include "seal/chain_internal.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char epoch_magic[MAGIC] = "NEBEPO1";
static const char purpose[] = "nebula-i roster epoch";

/* ---- reading ------------------------------------------------------------------------------------------- */

static bool read_hash(struct neb_reader *r, struct neb_hash *out)
{
    const uint8_t *p = neb__read(r, NEB_HASH_SIZE);
    if (p) memcpy(out->b, p, NEB_HASH_SIZE);
    return p != NULL;
}

/* The chain's state while epochs are being added. The chain takes it over only when all of them fit. */
struct ahead {
    struct neb_roster now;
    struct neb_hash head;
    uint64_t epoch;
    uint16_t last_id;
    struct neb_operators operators;
    uint64_t operators_epoch;
};

static struct ahead state_of(const struct neb_chain *c)
{
    return (struct ahead){c->now, c->head, c->epoch, c->last_id, c->operators, c->operators_epoch};
}

struct signer {
    const struct neb_public *key; /* NULL: nobody may sign under this number */
    uint32_t votes;
    bool operates;
};

static struct signer find_signer(const struct ahead *before, uint16_t id)
{
    if (id >= NEB_SIGNER_LAST) {
        int i = NEB_SIGNER_OPERATOR - id;
        return (struct signer){i < before->operators.count ? &before->operators.key[i] : NULL, 0, true};
    }
    const struct neb_member *m = neb__roster_by_id(&before->now, id);
    return m && m->votes ? (struct signer){&m->key, m->votes, false} : (struct signer){NULL, 0, false};
}

struct support {
    uint32_t votes, operators;
};

static neb_status count_signatures(const struct ahead *before, const struct neb_hash *hash,
                                   struct neb_reader *r, struct support *out)
{
    uint32_t count = neb__read16(r);
    int last = -1;
    *out = (struct support){0, 0};
    if (r->bad || count > NEB_VOTERS_MAX + NEB_OPERATORS_MAX)
        return neb__quiet(NEB_ERR_CORRUPT, "an epoch claims %u signatures", count);
    for (uint32_t i = 0; i < count; i++) {
        struct neb_signature sig;
        uint16_t id = neb__read16(r);
        const uint8_t *p = neb__read(r, NEB_SIGNATURE_SIZE);
        if (!p || (int)id <= last) return neb__quiet(NEB_ERR_CORRUPT, "an epoch's signatures are damaged");
        last = id;
        struct signer who = find_signer(before, id);
        if (!who.key)
            return neb__quiet(NEB_ERR_AUTH, "an epoch is signed by member %u, which has no vote", id);
        memcpy(sig.b, p, NEB_SIGNATURE_SIZE);
        NEB_TRY(neb__key_verify(who.key, purpose, hash->b, NEB_HASH_SIZE, &sig));
        out->votes += who.votes;
        out->operators += who.operates;
    }
    return NEB_OK;
}

static neb_status check_signatures(const struct ahead *before, const struct neb_epoch *e,
                                   struct neb_reader *r)
{
    struct support s;
    NEB_TRY(count_signatures(before, &e->hash, r, &s));
    if (s.operators >= before->operators.threshold) return NEB_OK;
    if (e->kind == NEB_EPOCH_OPERATORS || 2 * s.votes <= neb__roster_votes(&before->now))
        return neb__quiet(NEB_ERR_AUTH,
                          "%u of the %u operators who must agree have signed an epoch, and a majority of the "
                          "votes does not replace them",
                          s.operators, before->operators.threshold);
    return NEB_OK;
}

/* An id must not come back after it left, nor change its site. `last_id` is the largest id given so far. */
static neb_status check_ids(const struct neb_roster *before, const struct neb_roster *after, uint16_t last_id)
{
    for (uint32_t i = 0; i < after->count; i++) {
        const struct neb_member *m = &after->members[i], *old = neb__roster_by_id(before, m->id);
        if (old ? strcmp(old->name, m->name) != 0 : m->id <= last_id)
            return neb__quiet(NEB_ERR_CORRUPT, "an epoch gives the id %u to another site", m->id);
    }
    return NEB_OK;
}

/* Reads the body of the epoch that follows `before`, up to its signatures. On success `after` owes a free. */
static neb_status read_body(const struct neb_chain *c, const struct ahead *before, struct neb_reader *r,
                            struct neb_epoch *e, struct ahead *after)
{
    const uint8_t *p = r->p;
    struct neb_hash genesis;
    uint64_t number = before->epoch + 1;
    if (r->left > NEB_EPOCH_BYTES_MAX)
        return neb__quiet(NEB_ERR_CORRUPT, "an epoch is too long: %zu bytes", r->left);
    if (!neb__chain_magic(r, epoch_magic)) return neb__quiet(NEB_ERR_VERSION, "not an epoch of this version");
    if (!read_hash(r, &genesis) || !neb__hash_equal(&genesis, &c->genesis_hash))
        return neb__quiet(NEB_ERR_CORRUPT, "an epoch belongs to another run");
    e->number = neb__read64(r);
    read_hash(r, &e->previous);
    e->kind = neb__read8(r);
    e->head_index = neb__read64(r);
    if (!read_hash(r, &e->head_hash) || e->number != number ||
        !neb__hash_equal(&e->previous, &before->head) || e->kind < NEB_EPOCH_CHANGE ||
        e->kind > NEB_EPOCH_OPERATORS)
        return neb__quiet(NEB_ERR_CORRUPT, "epoch %" PRIu64 " does not follow the one before", number);
    *after = *before;
    NEB_TRY(neb__roster_decode(r, &after->now));
    if (e->kind == NEB_EPOCH_OPERATORS) {
        after->operators_epoch = number;
        if (!neb__operators_get(r, &after->operators)) {
            neb__roster_free(&after->now);
            return neb__quiet(NEB_ERR_CORRUPT, "the operators of epoch %" PRIu64 " are damaged", number);
        }
    }
    neb_status status = neb__hash(p, (size_t)(r->p - p), &e->hash);
    after->epoch = number;
    after->head = e->hash;
    uint16_t top = after->now.members[after->now.count - 1].id;
    if (top > after->last_id) after->last_id = top;
    if (status != NEB_OK) neb__roster_free(&after->now);
    return status;
}

/* Decodes one epoch and checks it against the state before it. On success after->now owes a free. */
static neb_status open_epoch(const struct neb_chain *c, const struct ahead *before, const uint8_t *p,
                             size_t n, struct neb_epoch *e, struct ahead *after)
{
    struct neb_reader r = {p, n, false};
    NEB_TRY(read_body(c, before, &r, e, after));
    neb_status status = check_signatures(before, e, &r);
    if (status == NEB_OK && r.left)
        status = neb__quiet(NEB_ERR_CORRUPT, "%zu extra bytes behind an epoch", r.left);
    if (status == NEB_OK) status = check_ids(&before->now, &after->now, before->last_id);
    if (status != NEB_OK) neb__roster_free(&after->now);
    return status;
}

/* Returns the number that an encoded epoch claims, before anything is checked; 0: it is too short. */
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

/* The hash is read from the next epoch, which names the one before it. */
void neb__chain_hash_of(const struct neb_chain *c, uint64_t epoch, struct neb_hash *out)
{
    enum { PREVIOUS_AT = 4 + MAGIC + NEB_HASH_SIZE + 8 }; /* behind the length */
    const uint8_t *p;
    size_t n;
    *out = c->head;
    if (epoch >= c->epoch) return;
    neb__chain_tail(c, epoch, 1, &p, &n);
    memcpy(out->b, p + PREVIOUS_AT, NEB_HASH_SIZE);
}

/* Compares an epoch with ours of the same number. The same body brings nothing new; a different body with
 * valid signatures is a fork. */
static neb_status compare_held(const struct neb_chain *c, uint64_t number, const uint8_t *p, size_t n)
{
    const uint8_t *mine;
    size_t mine_n;
    neb__chain_tail(c, number - 1, 1, &mine, &mine_n);
    if (mine_n == n + 4 && !memcmp(mine + 4, p, n)) return NEB_OK;
    struct neb_chain *at;
    struct neb_epoch theirs = {0}, ours = {0};
    struct ahead before, after;
    NEB_TRY(neb__chain_from_genesis(c->genesis.data, c->genesis.len, &at));
    neb_status status = NEB_OK;
    if (number > 1) {
        size_t upto = (size_t)(mine - c->tail.data);
        status = neb__chain_extend(at, c->tail.data, upto);
    }
    before = state_of(at);
    if (status == NEB_OK && (status = open_epoch(at, &before, p, n, &theirs, &after)) == NEB_OK)
        neb__roster_free(&after.now);
    if (status == NEB_OK && (status = open_epoch(at, &before, mine + 4, mine_n - 4, &ours, &after)) == NEB_OK)
        neb__roster_free(&after.now);
    neb__chain_free(at);
    if (status == NEB_OK && !neb__hash_equal(&ours.hash, &theirs.hash))
        status = neb__fail(NEB_ERR_EXISTS,
                           "two different rosters are signed for epoch %" PRIu64
                           "; the operator must choose one (nebula-i adopt)",
                           number);
    return status;
}

static neb_status extend_one(struct neb_chain *c, struct ahead *a, const uint8_t *p, size_t n)
{
    struct neb_epoch e = {0};
    struct ahead after;
    uint64_t number = claimed_number(p, n);
    if (number && number <= c->epoch) return compare_held(c, number, p, n);
    if (number > a->epoch + 1)
        return neb__quiet(NEB_ERR_STATE, "epoch %" PRIu64 " was sent, but %" PRIu64 " comes next", number,
                          a->epoch + 1);
    NEB_TRY(open_epoch(c, a, p, n, &e, &after));
    neb__roster_free(&a->now);
    *a = after;
    uint8_t len[4];
    neb__put32(len, (uint32_t)n);
    NEB_TRY(neb__buf_append(&c->tail, len, 4));
    return neb__buf_append(&c->tail, p, n);
}

neb_status neb__chain_extend(struct neb_chain *c, const uint8_t *p, size_t n)
{
    struct neb_reader r = {p, n, false};
    struct ahead a = state_of(c);
    size_t was = c->tail.len;
    NEB_TRY(neb__roster_copy(&c->now, &a.now));
    neb_status status = NEB_OK;
    while (status == NEB_OK && r.left) {
        uint32_t len = neb__read32(&r);
        const uint8_t *e = neb__read(&r, len);
        status =
            e ? extend_one(c, &a, e, len) : neb__quiet(NEB_ERR_CORRUPT, "a chain of epochs ends too early");
    }
    if (status != NEB_OK) {
        c->tail.len = was;
        neb__roster_free(&a.now);
        return status;
    }
    neb__roster_free(&c->now);
    c->now = a.now;
    c->head = a.head;
    c->epoch = a.epoch;
    c->last_id = a.last_id;
    c->operators = a.operators;
    c->operators_epoch = a.operators_epoch;
    return NEB_OK;
}

enum {
    KIND_AT = MAGIC + NEB_HASH_SIZE + 8 + NEB_HASH_SIZE,
    HEAD_AT = KIND_AT + 1,
    ROSTER_AT = HEAD_AT + 8 + NEB_HASH_SIZE
};

/* The roster of an epoch that the chain holds: its signatures were checked when it came. Its operators follow in `r`. */
static neb_status held_roster(struct neb_reader *r, struct neb_roster *out)
{
    neb__read(r, ROSTER_AT);
    return neb__roster_decode(r, out);
}

neb_status neb__epoch_peek(const uint8_t *epoch, size_t n, struct neb_roster *roster,
                           struct neb_operators *set)
{
    struct neb_reader r = {epoch + 4, n - 4, false};
    struct neb_operators said;
    if (n < 4 + ROSTER_AT) return neb__quiet(NEB_ERR_CORRUPT, "an epoch ends too early");
    NEB_TRY(held_roster(&r, roster));
    if (epoch[4 + KIND_AT] != NEB_EPOCH_OPERATORS) return NEB_OK;
    if (neb__operators_get(&r, &said)) {
        *set = said;
        return NEB_OK;
    }
    neb__roster_free(roster);
    return neb__quiet(NEB_ERR_CORRUPT, "the operators of an epoch are damaged");
}

struct walker {
    neb_roster_fn roster;
    neb_operators_fn operators;
    void *arg;
};

static neb_status walk_epoch(const uint8_t *p, size_t n, uint64_t epoch, const struct walker *w)
{
    struct neb_reader r = {p, n, false};
    struct neb_roster roster = {0};
    struct neb_operators set;
    NEB_TRY(held_roster(&r, &roster));
    if (w->roster) w->roster(w->arg, epoch, neb__get64(p + HEAD_AT), &roster);
    if (w->operators && p[KIND_AT] == NEB_EPOCH_OPERATORS && neb__operators_get(&r, &set))
        w->operators(w->arg, epoch, neb__get64(p + HEAD_AT), &set);
    neb__roster_free(&roster);
    return NEB_OK;
}

static neb_status walk(const struct neb_chain *c, const struct walker *w)
{
    struct neb_chain *first;
    NEB_TRY(neb__chain_from_genesis(c->genesis.data, c->genesis.len, &first));
    if (w->roster) w->roster(w->arg, 0, 0, &first->now);
    if (w->operators) w->operators(w->arg, 0, 0, &first->operators);
    neb__chain_free(first);
    uint64_t epoch = 1;
    for (size_t at = 0; at < c->tail.len; epoch++) {
        size_t n = neb__get32(c->tail.data + at);
        NEB_TRY(walk_epoch(c->tail.data + at + 4, n, epoch, w));
        at += 4 + n;
    }
    return NEB_OK;
}

neb_status neb__chain_walk(const struct neb_chain *c, neb_roster_fn fn, void *arg)
{
    return walk(c, &(struct walker){.roster = fn, .arg = arg});
}

neb_status neb__chain_walk_operators(const struct neb_chain *c, neb_operators_fn fn, void *arg)
{
    return walk(c, &(struct walker){.operators = fn, .arg = arg});
}

struct removal {
    const struct neb_public *key;
    uint64_t after, at; /* at: the first epoch behind `after` without the key; 0: none */
    bool member;        /* in epoch `after` */
};

static void look_for_removal(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *roster)
{
    struct removal *r = arg;
    bool member = neb__roster_by_key(roster, r->key) != NULL;
    (void)head;
    if (epoch == r->after) r->member = member;
    if (epoch > r->after && !member && !r->at) r->at = epoch;
}

neb_status neb__chain_removal(const struct neb_chain *c, uint64_t after, const struct neb_public *key,
                              size_t max, const uint8_t **p, size_t *n)
{
    struct removal r = {.key = key, .after = after};
    const uint8_t *last;
    size_t last_n;
    *n = 0;
    NEB_TRY(neb__chain_walk(c, look_for_removal, &r));
    if (!r.member || !r.at) return NEB_OK;
    neb__chain_tail(c, after, max, p, n);
    neb__chain_tail(c, r.at - 1, 1, &last, &last_n);
    if (last + last_n < *p + *n) *n = (size_t)(last + last_n - *p);
    return NEB_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

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

/* Returns the number that this key signs under: an operator's, its voter's id, or -1: it may not sign. */
static int signer_id(const struct neb_chain *c, const struct neb_public *key)
{
    const struct neb_member *m = neb__roster_by_key(&c->now, key);
    int operates = neb__operators_find(&c->operators, key);
    if (operates >= 0) return NEB_SIGNER_OPERATOR - operates;
    return m && m->votes ? m->id : -1;
}

enum { SIGNATURE = 2 + NEB_SIGNATURE_SIZE };

/* Puts one more signature among those behind the body of `body` bytes, at its place. */
static neb_status add_signature(const struct neb_chain *c, const struct neb_key *key, size_t body,
                                const struct neb_hash *hash, struct neb_buf *epoch)
{
    struct neb_public public;
    struct neb_signature sig;
    uint8_t one[SIGNATURE];
    neb__key_public(key, &public);
    int id = signer_id(c, &public);
    if (id < 0)
        return neb__fail(NEB_ERR_AUTH, "a signer is neither an operator of the run nor one of its voters");
    uint32_t count = neb__get16(epoch->data + body), at = 0;
    while (at < count && neb__get16(epoch->data + body + 2 + at * SIGNATURE) < id) at++;
    size_t place = body + 2 + at * SIGNATURE;
    if (at < count && neb__get16(epoch->data + place) == id)
        return neb__fail(NEB_ERR_INVALID, "a signer was given twice, or has signed already");
    NEB_TRY(neb__key_sign(key, purpose, hash->b, NEB_HASH_SIZE, &sig));
    neb__put16(one, (uint16_t)id);
    memcpy(one + 2, sig.b, NEB_SIGNATURE_SIZE);
    NEB_TRY(neb__buf_append(epoch, one, sizeof one)); /* makes room */
    memmove(epoch->data + place + SIGNATURE, epoch->data + place, epoch->len - SIGNATURE - place);
    memcpy(epoch->data + place, one, sizeof one);
    neb__put16(epoch->data + body, (uint16_t)(count + 1));
    return NEB_OK;
}

/* `out` gets the epoch behind its length, with its signatures. `b` holds the body. */
static neb_status finish(const struct neb_chain *c, struct neb_buf *b, const struct neb_key *const *signers,
                         uint32_t count, struct neb_buf *out)
{
    struct neb_hash hash;
    const uint8_t none[2] = {0, 0};
    uint8_t len[4];
    size_t body = b->len;
    NEB_TRY(neb__hash(b->data, body, &hash));
    NEB_TRY(neb__buf_append(b, none, sizeof none));
    for (uint32_t i = 0; i < count; i++) NEB_TRY(add_signature(c, signers[i], body, &hash, b));
    neb__put32(len, (uint32_t)b->len);
    NEB_TRY(neb__buf_append(out, len, 4));
    return neb__buf_append(out, b->data, b->len);
}

neb_status neb__chain_propose(const struct neb_chain *c, enum neb_epoch_kind kind, uint64_t head_index,
                              const struct neb_hash *head_hash, const struct neb_roster *roster,
                              const struct neb_key *const *signers, uint32_t signer_count,
                              struct neb_buf *out)
{
    struct neb_roster next;
    struct neb_buf b;
    uint16_t id = c->last_id;
    NEB_TRY(neb__roster_copy(roster, &next));
    for (uint32_t i = 0; i < next.count; i++)
        if (!next.members[i].id) next.members[i].id = ++id;
    qsort(next.members, next.count, sizeof *next.members, by_id);
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX);
    neb_status status = neb__roster_check(&next);
    if (status != NEB_OK) neb__fail(status, "%s", neb_last_error());
    if (status == NEB_OK) status = epoch_body(c, kind, head_index, head_hash, &next, &b);
    if (status == NEB_OK) status = finish(c, &b, signers, signer_count, out);
    neb__buf_free(&b);
    neb__roster_free(&next);
    return status;
}

neb_status neb__chain_propose_operators(const struct neb_chain *c, const struct neb_operators *set,
                                        uint64_t head_index, const struct neb_hash *head_hash,
                                        const struct neb_key *const *signers, uint32_t signer_count,
                                        struct neb_buf *out)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX);
    neb_status status = epoch_body(c, NEB_EPOCH_OPERATORS, head_index, head_hash, &c->now, &b);
    if (status == NEB_OK) status = neb__operators_put(set, &b);
    if (status == NEB_OK) status = finish(c, &b, signers, signer_count, out);
    neb__buf_free(&b);
    return status;
}

neb_status neb__chain_cosign(const struct neb_chain *c, const struct neb_key *key, struct neb_buf *epoch,
                             unsigned *signed_by)
{
    struct neb_reader r = {epoch->data, epoch->len, false};
    const struct ahead before = state_of(c);
    struct ahead after;
    struct neb_epoch e = {0};
    struct support have;
    struct neb_buf b;
    if (neb__read32(&r) != r.left || r.bad) return neb__quiet(NEB_ERR_CORRUPT, "not one epoch");
    NEB_TRY(read_body(c, &before, &r, &e, &after));
    neb__roster_free(&after.now);
    size_t body = epoch->len - 4 - r.left;
    NEB_TRY(count_signatures(&before, &e.hash, &r, &have));
    if (r.left) return neb__quiet(NEB_ERR_CORRUPT, "%zu extra bytes behind an epoch", r.left);
    *signed_by = have.operators;
    if (!key) return NEB_OK;
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX);
    neb_status status = neb__buf_append(&b, epoch->data + 4, epoch->len - 4);
    if (status == NEB_OK) status = add_signature(c, key, body, &e.hash, &b);
    if (status == NEB_OK) status = neb__buf_append(epoch, b.data, b.len - (epoch->len - 4)); /* room */
    if (status == NEB_OK) {
        memcpy(epoch->data + 4, b.data, b.len);
        neb__put32(epoch->data, (uint32_t)b.len);
        ++*signed_by;
    }
    neb__buf_free(&b);
    return status;
}
