/* operators.c: sets of operators: their rules and their bytes (operators.h). */
#include "seal/operators.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static int by_key(const void *a, const void *b)
{
    return memcmp(a, b, NEB_PUBLIC_SIZE);
}

static bool ascending(const struct neb_operators *set)
{
    for (int i = 1; i < set->count; i++)
        if (by_key(&set->key[i - 1], &set->key[i]) >= 0) return false;
    return true;
}

neb_status neb__operators_make(struct neb_operators *set)
{
    if (set->count < 1 || set->count > NEB_OPERATORS_MAX)
        return neb__fail(NEB_ERR_INVALID, "a run has 1 to %d operators, not %u", NEB_OPERATORS_MAX,
                         set->count);
    if (set->threshold < 1 || set->threshold > set->count)
        return neb__fail(NEB_ERR_INVALID, "%u of %u operators cannot agree: --threshold is 1 to %u",
                         set->threshold, set->count, set->count);
    qsort(set->key, set->count, sizeof *set->key, by_key);
    if (!ascending(set)) return neb__fail(NEB_ERR_INVALID, "one operator's key was given twice");
    return NEB_OK;
}

void neb__operators_one(const struct neb_public *key, struct neb_operators *out)
{
    *out = (struct neb_operators){.threshold = 1, .count = 1, .key = {*key}};
}

bool neb__operators_equal(const struct neb_operators *a, const struct neb_operators *b)
{
    return a->threshold == b->threshold && a->count == b->count &&
           !memcmp(a->key, b->key, a->count * sizeof *a->key);
}

int neb__operators_find(const struct neb_operators *set, const struct neb_public *key)
{
    for (int i = 0; i < set->count; i++)
        if (neb__public_equal(&set->key[i], key)) return i;
    return -1;
}

neb_status neb__operators_put(const struct neb_operators *set, struct neb_buf *out)
{
    const uint8_t head[2] = {set->threshold, set->count};
    NEB_TRY(neb__buf_append(out, head, sizeof head));
    return neb__buf_append(out, set->key, set->count * sizeof *set->key);
}

bool neb__operators_get(struct neb_reader *in, struct neb_operators *out)
{
    *out = (struct neb_operators){.threshold = neb__read8(in)};
    out->count = neb__read8(in);
    if (in->bad || out->count < 1 || out->count > NEB_OPERATORS_MAX || out->threshold < 1 ||
        out->threshold > out->count)
        return false;
    const uint8_t *keys = neb__read(in, out->count * sizeof *out->key);
    if (keys) memcpy(out->key, keys, out->count * sizeof *out->key);
    return keys && ascending(out);
}

neb_status neb__operators_name(const struct neb_operators *set, struct neb_public *out)
{
    struct neb_buf b;
    struct neb_hash hash;
    *out = set->key[0];
    if (set->count == 1) return NEB_OK;
    neb__buf_init(&b, 2 + sizeof set->key);
    neb_status status = neb__operators_put(set, &b);
    if (status == NEB_OK) status = neb__hash(b.data, b.len, &hash);
    neb__buf_free(&b);
    if (status == NEB_OK) memcpy(out->b, hash.b, NEB_PUBLIC_SIZE);
    return status;
}
