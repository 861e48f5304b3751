/* quorum_fact.h (internal): how many voters decide, as a fact of a roster. */
#ifndef NEB_RUN_QUORUM_FACT_H
#define NEB_RUN_QUORUM_FACT_H

#include "round/certificate.h"
#include "seal/roster.h"

#define NEB_QUORUM_FACT "quorum" /* its name in the genesis */

/* The rule of a run; NEB_QUORUM_OLD if its genesis has none. NEB_ERR_CONFIG: this version does not know it. */
neb_status neb__quorum_read(const struct neb_chain *chain, enum neb_quorum_rule *out);
/* The fact of a new genesis: `majority` or `byzantine`, for so many voters. NEB_ERR_CONFIG */
neb_status neb__quorum_fact(const char *text, uint32_t voters, struct neb_fact *out);

#endif
