/* verb_export.c: `nebula-i export FROM TO`. */
#include "cli/verb.h"
#include "task/hf.h"

static neb_status run(struct neb_call *c)
{
    return neb__hf_export(c->words[0], c->words[1]);
}

const struct neb_verb neb__verb_export = {
    .name = "export",
    .args = "FROM TO",
    .help = "a model as a Hugging Face folder",
    .about = "Writes the model folder FROM as TO, which from_pretrained() of the transformers library loads.",
    .least = 2,
    .missing = "give the folder of a trained model and one to write",
    .most = 2,
    .run = run,
};
