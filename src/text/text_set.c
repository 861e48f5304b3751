/* text_set.c: open addressing over hashes; the table doubles when it is half full. */
#include "text/text_set.h"
#include "base/mem.h"
#include "base/rng.h"

uint64_t neb__text_hash(const char *s)
{
    uint64_t h = 1469598103934665603u;
    for (; *s; s++) h = (h ^ (uint8_t)*s) * 1099511628211u;
    return neb__mix64(h) | 1;
}

uint64_t neb__text_pair_hash(const char *a, const char *b)
{
    return (neb__text_hash(a) ^ neb__mix64(neb__text_hash(b))) | 1;
}

bool neb__text_set_has(const struct neb_text_set *s, uint64_t hash)
{
    for (size_t i = hash & s->mask; s->slot && s->slot[i]; i = (i + 1) & s->mask)
        if (s->slot[i] == hash) return true;
    return false;
}

static void put(struct neb_text_set *s, uint64_t hash)
{
    size_t i = hash & s->mask;
    while (s->slot[i]) i = (i + 1) & s->mask;
    s->slot[i] = hash;
    s->n++;
}

static neb_status grow(struct neb_text_set *s)
{
    size_t size = s->slot ? 2 * (s->mask + 1) : 1024;
    struct neb_text_set bigger = {NEB_NEW_ARRAY(uint64_t, size), size - 1, 0};
    if (!bigger.slot) return neb__fail(NEB_ERR_NOMEM, "out of memory for a set of %zu texts", size);
    for (size_t i = 0; s->slot && i <= s->mask; i++)
        if (s->slot[i]) put(&bigger, s->slot[i]);
    neb__free(s->slot);
    *s = bigger;
    return NEB_OK;
}

neb_status neb__text_set_add(struct neb_text_set *s, uint64_t hash)
{
    if (neb__text_set_has(s, hash)) return NEB_OK;
    if (2 * s->n >= s->mask) NEB_TRY(grow(s));
    put(s, hash);
    return NEB_OK;
}

void neb__text_set_free(struct neb_text_set *s)
{
    neb__free(s->slot);
    *s = (struct neb_text_set){NULL, 0, 0};
}
