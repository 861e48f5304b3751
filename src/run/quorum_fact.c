/* quorum_fact.c: how many voters decide, as a fact of the genesis.
 *
 * `majority` is more than half of the votes, and one phase: it outlives crashes, and a liar can be proven guilty. `byzantine`
 * needs 2f + 1 of 3f + 1 votes in two phases, and then f liars cannot make two histories. A genesis without the fact is of a
 * run that began before there were certificates: majority, and its first records have none. */
#include "run/quorum_fact.h"

#include <string.h>

static bool is(const struct neb_fact *f, const char *word)
{
    return f->size == strlen(word) && !memcmp(f->value, word, f->size);
}

neb_status neb__quorum_read(const struct neb_chain *chain, enum neb_quorum_rule *out)
{
    *out = NEB_QUORUM_OLD;
    for (uint32_t i = 0; i < chain->fact_count; i++) {
        const struct neb_fact *f = &chain->facts[i];
        if (strcmp(f->name, NEB_QUORUM_FACT)) continue;
        if (is(f, "majority"))
            *out = NEB_QUORUM_MAJORITY;
        else if (is(f, "byzantine"))
            *out = NEB_QUORUM_BYZANTINE;
        else
            return neb__fail(NEB_ERR_CONFIG,
                             "the roster's genesis names a quorum that this version does not know: use the "
                             "version that sealed it");
    }
    return NEB_OK;
}

neb_status neb__quorum_fact(const char *text, uint32_t voters, struct neb_fact *out)
{
    bool byzantine = !strcmp(text, "byzantine");
    if (!byzantine && strcmp(text, "majority"))
        return neb__fail(NEB_ERR_CONFIG, "quorum '%s': majority or byzantine", text);
    if (byzantine && voters < 4)
        return neb__fail(
            NEB_ERR_CONFIG,
            "quorum 'byzantine' needs four voters, so that three can outvote one that lies; there are %u",
            voters);
    *out = (struct neb_fact){.name = NEB_QUORUM_FACT, .size = (uint16_t)strlen(text)};
    memcpy(out->value, text, strlen(text));
    return NEB_OK;
}
