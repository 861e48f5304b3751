/* keyset.h: a set of 16-byte keys, each with a number. A successful add may be all that is ever allocated for it; owes a
 * free. */
#ifndef NEB_STORE_KEYSET_H
#define NEB_STORE_KEYSET_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { NEB_KEY = 16 };

struct neb_keyset_key {
    uint8_t b[NEB_KEY]; /* of a hash: any part of it is as good as random */
};

struct neb_keyset {
    struct neb_keyset_slot *slots; /* NULL: empty */
    uint64_t room, count;
};

/* NULL: not in it. The address is good until the next add. */
uint64_t *neb__keyset_find(const struct neb_keyset *s, const struct neb_keyset_key *key);
/* Of a key that is there already the number is replaced. NEB_ERR_NOMEM */
neb_status neb__keyset_add(struct neb_keyset *s, const struct neb_keyset_key *key, uint64_t value);
void neb__keyset_free(struct neb_keyset *s);

#endif
