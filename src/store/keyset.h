/* keyset.h: a set of 16-byte keys, each with a number. Only adding allocates
 * memory. A successful add owes a free. */
#ifndef NEB_STORE_KEYSET_H
#define NEB_STORE_KEYSET_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { NEB_KEY = 16 };

struct neb_keyset_key {
    uint8_t b[NEB_KEY]; /* part of a hash: any part is as good as random */
};

struct neb_keyset {
    struct neb_keyset_slot *slots; /* NULL: empty */
    uint64_t room, count;
};

/* NULL: the key is not in the set. The address is valid until the next add. */
uint64_t *neb__keyset_find(const struct neb_keyset *s, const struct neb_keyset_key *key);
/* Replaces the number of a key that is already there. NEB_ERR_NOMEM */
neb_status neb__keyset_add(struct neb_keyset *s, const struct neb_keyset_key *key, uint64_t value);
void neb__keyset_free(struct neb_keyset *s);

#endif
