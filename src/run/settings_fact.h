/* settings_fact.h (internal): by which rules a run's jobs fill in what they leave to the program, as a fact of a roster. */
#ifndef NEB_RUN_SETTINGS_FACT_H
#define NEB_RUN_SETTINGS_FACT_H

#include "seal/roster.h"

#define NEB_SETTINGS_FACT "settings" /* its name in the genesis */

/* The number of the rules (enum neb_settings_rules); that of the oldest if the genesis has none. NEB_ERR_CONFIG: this version
 * does not know it. */
neb_status neb__settings_read(const struct neb_chain *chain, int *out);
/* The fact of a new genesis: the newest rules. */
void neb__settings_fact(struct neb_fact *out);

#endif
