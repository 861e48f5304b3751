/* keyset.c: open addressing with linear probing, at most two thirds full. Keys are hashes already, so their
 * first bytes choose the slot. Nobody can choose keys that collide without breaking SHA-256. */
#include "store/keyset.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <string.h>

struct neb_keyset_slot {
    struct neb_keyset_key key;
    uint64_t value;
    bool taken;
};

static struct neb_keyset_slot *slot_of(const struct neb_keyset *s, const struct neb_keyset_key *key)
{
    uint64_t at = neb__get64(key->b) & (s->room - 1);
    while (s->slots[at].taken && memcmp(&s->slots[at].key, key, sizeof *key)) at = (at + 1) & (s->room - 1);
    return &s->slots[at];
}

uint64_t *neb__keyset_find(const struct neb_keyset *s, const struct neb_keyset_key *key)
{
    if (!s->slots) return NULL;
    struct neb_keyset_slot *slot = slot_of(s, key);
    return slot->taken ? &slot->value : NULL;
}

static neb_status grow(struct neb_keyset *s)
{
    struct neb_keyset more = {.room = s->room ? 2 * s->room : 1024, .count = s->count};
    more.slots = NEB_NEW_ARRAY(struct neb_keyset_slot, more.room);
    if (!more.slots) return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRIu64 " keys", s->count);
    for (uint64_t i = 0; i < s->room; i++)
        if (s->slots[i].taken) *slot_of(&more, &s->slots[i].key) = s->slots[i];
    neb__free(s->slots);
    *s = more;
    return NEB_OK;
}

neb_status neb__keyset_add(struct neb_keyset *s, const struct neb_keyset_key *key, uint64_t value)
{
    if (3 * (s->count + 1) > 2 * s->room) NEB_TRY(grow(s));
    struct neb_keyset_slot *slot = slot_of(s, key);
    if (!slot->taken) s->count++;
    *slot = (struct neb_keyset_slot){*key, value, true};
    return NEB_OK;
}

void neb__keyset_free(struct neb_keyset *s)
{
    neb__free(s->slots);
    *s = (struct neb_keyset){0};
}
