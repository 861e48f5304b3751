/* objective_causal.c: causal language modelling. A decoder predicts each next token (GPT-2, Llama). Both
 * texts of a pair are sequences of their own. */
#include "task/objectives.h"
#include "task/work_internal.h"

static void set_batches(struct neb_batches_cfg *cfg)
{
    cfg->kind = NEB_BATCH_CAUSAL;
}

const struct neb_objective neb__objective_causal = {
    .name = "causal",
    .about = "a decoder predicts the next token",
    .kind = "decoder",
    .head = "tokens",
    .family = "gpt2",
    .families = "gpt2, llama",
    .sides = 1,
    .set_batches = set_batches,
    .distils = true,
    .stages = true,
    .steps = &neb__plain_steps,
    .describe = neb__describe_tokens,
};
