/* chain_internal.h (inside src/seal): shared by chain.c and epoch.c. */
#ifndef NEB_SEAL_CHAIN_INTERNAL_H
#define NEB_SEAL_CHAIN_INTERNAL_H

#include "seal/roster.h"
#include "base/bytes.h"

enum { MAGIC = 8 };

bool neb__chain_magic(struct neb_reader *r, const char magic[MAGIC]);
neb_status neb__chain_no_memory(void); /* logs it and returns NEB_ERR_NOMEM */

/* Makes a chain without epochs. Success owes a neb__chain_free(). NEB_ERR_CORRUPT, NEB_ERR_VERSION,
 * NEB_ERR_NOMEM. */
neb_status neb__chain_from_genesis(const uint8_t *p, size_t n, struct neb_chain **out);

#endif
