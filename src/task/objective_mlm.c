/* objective_mlm.c: masked language modelling. An encoder fills in tokens that were masked (BERT, XLM-R).
 *
 * Pairs become one sequence, <s> a </s> b </s>, so that a masked word can be found in its translation:
 * translation language modelling (TLM). That is a property of a corpus and not of the job: one job may mix
 * text and pairs, so TLM has no row. */
#include "task/objectives.h"
#include "task/work_internal.h"

static void set_batches(struct neb_batches_cfg *cfg)
{
    cfg->kind = NEB_BATCH_MLM;
}

const struct neb_objective neb__objective_mlm = {
    .name = "mlm",
    .about = "an encoder fills in masked tokens; pairs: of both languages at once (TLM)",
    .kind = "encoder",
    .head = "tokens",
    .family = "xlm-r",
    .families = "bert, xlm-r, electra",
    .sides = 1,
    .joins_pairs = true,
    .masks = true,
    .set_batches = set_batches,
    .distils = true,
    .stages = true,
    .steps = &neb__plain_steps,
    .describe = neb__describe_tokens,
};
