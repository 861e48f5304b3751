/* objective_translate.c: translation. An encoder reads the source, a decoder predicts the target (Vaswani et
 * al. 2017, Marian).
 *
 * Every corpus has pairs. If a job has several target languages, a source begins with the token of its own
 * (data.c). A model that starts from an encoder's folder becomes an encoder and a decoder without
 * segments. */
#include "task/objectives.h"
#include "task/work_internal.h"

static const char *const options[][2] = {
    {"kind", "encoder-decoder"}, {"types", "0"}, {"label_smoothing", "0.1"}, {NULL, NULL}};

static void set_batches(struct neb_batches_cfg *cfg)
{
    cfg->kind = NEB_BATCH_PAIR;
}

const struct neb_objective neb__objective_translate = {
    .name = "translate",
    .about = "an encoder reads one side of pairs, a decoder predicts the other",
    .kind = "encoder-decoder",
    .head = "tokens",
    .family = "transformer",
    .families = "transformer, marian, m2m100, bart, mbart",
    .options = options,
    .sides = 2,
    .needs_pairs = true,
    .set_batches = set_batches,
    .distils = true,
    .stages = true,
    .steps = &neb__plain_steps,
    .describe = neb__describe_tokens,
};
