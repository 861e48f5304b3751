/* chain.c: the genesis, and a run's chain as a file. epoch.c has the epochs and their rules.
 *
 *     genesis   "NEBGEN1" 0, 16 bytes run id, 32 operator key, u16 facts, for each (names ascending):
 *               u8 length, name, u16 length, value; roster
 *     file      "NEBCHN1" 0, u32 length, genesis, then epochs, each behind its u32 length
 *
 * The hash of the genesis names the run, and members compare it. The genesis never changes; every later
 * change is an epoch. */
#include "seal/chain_internal.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char genesis_magic[MAGIC] = "NEBGEN1", file_magic[MAGIC] = "NEBCHN1";
enum { CHAIN_FILE_MAX = 64 << 20 };

bool neb__chain_magic(struct neb_reader *r, const char magic[MAGIC])
{
    const uint8_t *p = neb__read(r, MAGIC);
    return p && !memcmp(p, magic, MAGIC);
}

neb_status neb__chain_no_memory(void)
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

/* ---- genesis ------------------------------------------------------------------------------------------- */

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
            return neb__fail(NEB_ERR_INVALID,
                             "fact %u of the genesis has no valid name, is too long, or occurs twice", i);
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
    if (r->bad || count > NEB_FACTS_MAX)
        return neb__quiet(NEB_ERR_CORRUPT, "a genesis claims %u facts", count);
    c->facts = NEB_NEW_ARRAY(struct neb_fact, count + 1u);
    if (!c->facts) return neb__chain_no_memory();
    c->fact_count = count;
    for (uint32_t i = 0; i < count; i++)
        if (!read_fact(r, &c->facts[i]) || (i && strcmp(c->facts[i - 1].name, c->facts[i].name) >= 0))
            return neb__quiet(NEB_ERR_CORRUPT, "fact %u of a genesis is damaged", i);
    return NEB_OK;
}

/* ---- several operators ----------------------------------------------------------------------------------- */

static const char operators_fact[] = "operators";

neb_status neb__fact_operators(const struct neb_operators *set, struct neb_fact *out)
{
    struct neb_buf b;
    *out = (struct neb_fact){.size = 0};
    memcpy(out->name, operators_fact, sizeof operators_fact);
    neb__buf_init(&b, NEB_FACT_VALUE_MAX);
    neb_status status = neb__operators_put(set, &b);
    if (status == NEB_OK) memcpy(out->value, b.data, b.len), out->size = (uint16_t)b.len;
    neb__buf_free(&b);
    return status;
}

/* The genesis binds the set twice: as a fact, and as the hash in the operator key's place. */
static neb_status read_operators(struct neb_chain *c)
{
    struct neb_public name;
    neb__operators_one(&c->operator_key, &c->operators);
    for (uint32_t i = 0; i < c->fact_count; i++) {
        const struct neb_fact *f = &c->facts[i];
        struct neb_reader r = {f->value, f->size, false};
        if (strcmp(f->name, operators_fact)) continue;
        if (!neb__operators_get(&r, &c->operators) || r.left || c->operators.count < 2)
            return neb__quiet(NEB_ERR_CORRUPT, "the operators of a genesis are damaged");
        NEB_TRY(neb__operators_name(&c->operators, &name));
        if (!neb__public_equal(&name, &c->operator_key))
            return neb__quiet(NEB_ERR_CORRUPT, "a genesis names two sets of operators");
    }
    return NEB_OK;
}

/* ---- runs of one roster ---------------------------------------------------------------------------------- */

static const char runs_fact[] = "runs", run_magic[MAGIC] = "NEBRUN1";

void neb__fact_runs(struct neb_fact *out)
{
    *out = (struct neb_fact){.size = 1, .value = {1}};
    memcpy(out->name, runs_fact, sizeof runs_fact);
}

bool neb__chain_names_runs(const struct neb_chain *chain)
{
    for (uint32_t i = 0; i < chain->fact_count; i++)
        if (!strcmp(chain->facts[i].name, runs_fact)) return true;
    return false;
}

neb_status neb__chain_run_genesis(const struct neb_chain *chain, const char *name, struct neb_hash *out)
{
    struct neb_buf b;
    *out = chain->genesis_hash;
    if (!*name) return NEB_OK;
    neb__buf_init(&b, 1 << 12);
    neb_status status = neb__buf_append(&b, run_magic, MAGIC);
    if (status == NEB_OK) status = neb__buf_append(&b, chain->genesis_hash.b, NEB_HASH_SIZE);
    if (status == NEB_OK) status = neb__buf_append(&b, name, strlen(name));
    if (status == NEB_OK) status = neb__hash(b.data, b.len, out);
    neb__buf_free(&b);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------------------- */

/* Fills a fresh chain from its encoded genesis. */
static neb_status load_genesis(struct neb_chain *c, const uint8_t *p, size_t n)
{
    struct neb_reader r = {p, n, false};
    if (n > NEB_EPOCH_BYTES_MAX) return neb__quiet(NEB_ERR_CORRUPT, "a genesis is too long: %zu bytes", n);
    if (!neb__chain_magic(&r, genesis_magic))
        return neb__quiet(NEB_ERR_VERSION, "not a genesis of this version");
    const uint8_t *run = neb__read(&r, NEB_RUN_ID_SIZE), *key = neb__read(&r, NEB_PUBLIC_SIZE);
    if (!run || !key) return neb__quiet(NEB_ERR_CORRUPT, "a genesis ends too early");
    memcpy(c->run_id, run, NEB_RUN_ID_SIZE);
    memcpy(c->operator_key.b, key, NEB_PUBLIC_SIZE);
    NEB_TRY(read_facts(&r, c));
    NEB_TRY(read_operators(c));
    NEB_TRY(neb__roster_decode(&r, &c->now));
    if (r.left) return neb__quiet(NEB_ERR_CORRUPT, "%zu extra bytes behind a genesis", r.left);
    c->last_id = c->now.members[c->now.count - 1].id;
    NEB_TRY(neb__buf_append(&c->genesis, p, n));
    NEB_TRY(neb__hash(p, n, &c->genesis_hash));
    c->head = c->genesis_hash;
    return NEB_OK;
}

neb_status neb__chain_from_genesis(const uint8_t *p, size_t n, struct neb_chain **out)
{
    struct neb_chain *c = chain_new();
    neb_status status = c ? load_genesis(c, p, n) : neb__chain_no_memory();
    if (status == NEB_OK)
        *out = c;
    else
        neb__chain_free(c);
    return status;
}

static neb_status encode_genesis(const struct neb_public *operator_key, const struct neb_fact *facts,
                                 uint32_t count, const struct neb_roster *roster, struct neb_buf *out)
{
    uint8_t run[NEB_RUN_ID_SIZE];
    NEB_TRY(neb__random_bytes(run, sizeof run));
    NEB_TRY(neb__buf_append(out, genesis_magic, MAGIC));
    NEB_TRY(neb__buf_append(out, run, sizeof run));
    NEB_TRY(neb__buf_append(out, operator_key->b, NEB_PUBLIC_SIZE));
    struct neb_fact *sorted = NEB_NEW_ARRAY(struct neb_fact, count + 1u);
    if (!sorted) return neb__chain_no_memory();
    if (count) memcpy(sorted, facts, count * sizeof *facts);
    qsort(sorted, count, sizeof *sorted, by_name);
    neb_status status = append_facts(sorted, count, out);
    neb__free(sorted);
    NEB_TRY(status);
    return neb__roster_encode(roster, out);
}

neb_status neb__chain_create(const struct neb_public *operator_key, const struct neb_fact *facts,
                             uint32_t fact_count, const struct neb_roster *roster, struct neb_chain **out)
{
    struct neb_roster numbered;
    struct neb_buf b;
    if (fact_count > NEB_FACTS_MAX || roster->count > NEB_MEMBERS_MAX)
        return neb__fail(NEB_ERR_INVALID, "a run has at most %d facts and %d members", NEB_FACTS_MAX,
                         NEB_MEMBERS_MAX);
    NEB_TRY(neb__roster_copy(roster, &numbered));
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX);
    for (uint32_t i = 0; i < numbered.count; i++) numbered.members[i].id = (uint16_t)(i + 1);
    neb_status status = neb__roster_check(&numbered);
    if (status != NEB_OK) neb__fail(status, "%s", neb_last_error());
    if (status == NEB_OK) status = encode_genesis(operator_key, facts, fact_count, &numbered, &b);
    if (status == NEB_OK) status = neb__chain_from_genesis(b.data, b.len, out);
    neb__roster_free(&numbered);
    neb__buf_free(&b);
    return status;
}

/* ---- whole chains -------------------------------------------------------------------------------------- */

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
    if (!neb__chain_magic(&r, file_magic))
        return neb__quiet(NEB_ERR_VERSION, "not a roster file of this version");
    uint32_t len = neb__read32(&r);
    const uint8_t *genesis = neb__read(&r, len);
    if (!genesis) return neb__quiet(NEB_ERR_CORRUPT, "a roster ends too early");
    struct neb_chain *c;
    NEB_TRY(neb__chain_from_genesis(genesis, len, &c));
    neb_status status = neb__chain_extend(c, r.p, r.left);
    if (status != NEB_OK) {
        neb__chain_free(c);
        return status;
    }
    *out = c;
    return NEB_OK;
}

/* A file of text: perhaps the draft from which a roster is sealed. */
static bool is_text(const struct neb_buf *b)
{
    for (size_t i = 0; i < b->len; i++)
        if (b->data[i] < ' ' && b->data[i] != '\n' && b->data[i] != '\t' && b->data[i] != '\r') return false;
    return b->len > 0;
}

static void cannot_use(neb_status status, const char *path, const struct neb_buf *b)
{
    if (status == NEB_ERR_VERSION && is_text(b))
        neb__fail(
            status,
            "%s is a text, not a sealed roster; if it is the draft of one, seal it: nebula-i roster seal %s "
            "FILE --operator DIR",
            path, path);
    else if (status == NEB_ERR_CORRUPT || status == NEB_ERR_AUTH)
        neb__fail(status,
                  "%s: %s; the file is damaged: copy it once more from the operator, or from another "
                  "site's folder (FOLDER/roster)",
                  path, neb_last_error());
    else
        neb__fail(status, "%s: %s", path, neb_last_error());
}

neb_status neb__chain_read(const char *path, struct neb_chain **out)
{
    struct neb_buf b;
    neb__buf_init(&b, CHAIN_FILE_MAX);
    neb_status status = neb__file_read(path, &b);
    if (status == NEB_OK) {
        status = neb__chain_decode(b.data, b.len, out);
        if (status != NEB_OK) cannot_use(status, path, &b);
    }
    neb__buf_free(&b);
    return status;
}

neb_status neb__chain_write(const struct neb_chain *c, const char *path, mode_t mode)
{
    struct neb_buf b;
    neb__buf_init(&b, CHAIN_FILE_MAX);
    neb_status status = neb__chain_encode(c, &b);
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, mode);
    neb__buf_free(&b);
    return status;
}
