/* settings_fact.c: by which rules a run's jobs fill in what they leave to the program, as a fact of the genesis.
 *
 * The outer step is a fact of a run: all sites must make the same one, and a log goes on with the one it began with. A job that
 * leaves it to the program would mean another one under another program. So the roster says by which rules it was meant, and
 * a roster without a word by those of the programs before there was a choice. The value is one byte. */
#include "run/settings_fact.h"
#include "job/job.h"

#include <string.h>

neb_status neb__settings_read(const struct neb_chain *chain, int *out)
{
    *out = NEB_SETTINGS_OLD;
    for (uint32_t i = 0; i < chain->fact_count; i++) {
        const struct neb_fact *f = &chain->facts[i];
        if (strcmp(f->name, NEB_SETTINGS_FACT)) continue;
        if (f->size != 1 || f->value[0] > NEB_SETTINGS_NOW)
            return neb__fail(NEB_ERR_CONFIG,
                             "the roster's genesis names rules for automatic settings that this version does "
                             "not know: use the version that sealed it");
        *out = f->value[0];
    }
    return NEB_OK;
}

void neb__settings_fact(struct neb_fact *out)
{
    *out = (struct neb_fact){.name = NEB_SETTINGS_FACT, .size = 1, .value = {NEB_SETTINGS_NOW}};
}
