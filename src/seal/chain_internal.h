/* chain_internal.h (inside src/seal): what chain.c and epoch.c share. */
#ifndef NEB_SEAL_CHAIN_INTERNAL_H
#define NEB_SEAL_CHAIN_INTERNAL_H

#include "seal/roster.h"
#include "base/bytes.h"

enum { MAGIC = 8 };

bool neb__chain_magic(struct neb_reader *r, const char magic[MAGIC]);
neb_status neb__chain_no_memory(void); /* says so, and returns NEB_ERR_NOMEM */

/* A chain without epochs. Owes a neb__chain_free(). NEB_ERR_CORRUPT, NEB_ERR_VERSION, NEB_ERR_NOMEM. */
neb_status neb__chain_from_genesis(const uint8_t *p, size_t n, struct neb_chain **out);

#endif
