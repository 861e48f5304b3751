/* settle.c: the sizes that a job leaves to its data. This is the one place where they are decided; the job
 * itself stays as it was read, so that everybody may hold it and nobody need ask whether it was completed.
 *
 *     vocabulary   the tokenizer's. A model that starts from a folder keeps the folder's rows beyond it
 *     positions    at least train.max_len
 *     generator    as many of both as the model: the two may share a table of tokens
 *     embeddings   a difference to the generator's, if there is one and train.rtd_embeddings says so */
#include "task/settle.h"

#include <string.h>

void neb__settle_models(const struct neb_job *job, int64_t tokens, struct neb_settled_models *out)
{
    struct neb_model_config m = job->model, g = job->generator;
    if (m.vocab < tokens || !job->init.from) m.vocab = tokens;
    if (m.max_positions < job->train.max_len) m.max_positions = job->train.max_len;
    g.vocab = m.vocab;
    g.max_positions = m.max_positions;
    if (job->objective->generator) m.embedding_delta = !strcmp(job->train.rtd_embeddings, "disentangled");
    *out = (struct neb_settled_models){m, g};
}
