/* gate_private.c: private steps (privacy.unit: sample) of a gateway's ranks.
 *
 * The gateway has the account and charges each step before it orders it. What a step makes may leave the site from then on, as an update.
 * Ranks that were lost make the steps since their checkpoint again. With the same key on the same values that is the same result, to
 * the bit: nobody learns anything new, and it costs nothing. The gateway does not rely on it: a rank that computed wrong before, or
 * computes otherwise now, makes a second release. So the journal has a mark of every result, and another mark is charged. */
#include "base/log.h"
#include "privacy/ledger.h"
#include "train/gate.h"

neb_status neb__gate_step_order(const struct neb_step_key *secret, const struct neb_gate_entry *step,
                                int depth, struct neb_gate_order *out)
{
    *out = (struct neb_gate_order){.op = NEB_GATE_STEP, .lr = step->lr, .depth = depth, .keyed = step->keyed};
    return step->keyed ? neb__step_key_of(secret, &step->salt, &out->key) : NEB_OK;
}

neb_status neb__gate_charge_repeated(struct neb_privacy_ledger *account, const struct neb_gate_entry *step,
                                     const struct neb_gate_answer *made)
{
    if (!step->keyed || neb__hash_equal(&step->mark, &made->step.mark)) return NEB_OK;
    neb__warn("a private step that the ranks repeated came out differently: it is charged once more");
    neb_status status = neb__privacy_take_step(account);
    if (status != NEB_ERR_LIMIT) return status;
    return neb__fail(NEB_ERR_STATE, "%s: the ranks cannot repeat their steps", neb_last_error());
}
