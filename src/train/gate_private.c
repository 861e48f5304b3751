/* gate_private.c: private steps (privacy.unit: sample) of a gateway's ranks.
 *
 * The gateway has the account and charges each step before it orders it. What a step makes may leave the site from then on, as an update.
 * Ranks that were lost make the steps since their checkpoint again. With the same key on the same values that is the same result, to
 * the bit: nobody learns anything new, and it costs nothing. The gateway does not rely on it: a rank that computed wrong before, or
 * computes otherwise now, would make a second release of the same draw, which tells more than two steps of different draws do. So the
 * journal has a mark of every result, and at another mark the site ends before anything leaves it. Its next start draws anew. */
#include "train/gate.h"

neb_status neb__gate_step_order(const struct neb_step_key *secret, const struct neb_gate_entry *step,
                                int depth, struct neb_gate_order *out)
{
    *out = (struct neb_gate_order){.op = NEB_GATE_STEP, .lr = step->lr, .depth = depth, .keyed = step->keyed};
    return step->keyed ? neb__step_key_of(secret, &step->salt, &out->key) : NEB_OK;
}

neb_status neb__gate_check_repeated(const struct neb_gate_entry *step, const struct neb_gate_answer *made)
{
    if (!step->keyed || neb__hash_equal(&step->mark, &made->step.mark)) return NEB_OK;
    return neb__fail(
        NEB_ERR_STATE,
        "a private step that the ranks repeated came out differently: a machine computes wrong or is "
        "of another kind, and two results of one draw would tell more than was charged; start the "
        "site again, it goes on from its checkpoint with new draws");
}
