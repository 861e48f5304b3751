/* influence.h (internal): the rule about what one site can do to the model, as a fact of a roster. */
#ifndef NEB_RUN_INFLUENCE_H
#define NEB_RUN_INFLUENCE_H

#include "round/influence.h"
#include "seal/roster.h"

/* The rule of a run; off if its genesis has none. NEB_ERR_CONFIG: this version does not know it. */
neb_status neb__influence_read(const struct neb_chain *chain, struct neb_influence *out);
/* The fact of a new genesis, for a run of so many sites that train. NEB_ERR_CONFIG: not a rule, or too few sites */
neb_status neb__influence_fact(const char *text, uint32_t sites, struct neb_fact *out);

#endif
