/* verb_export.c: `nebula-i export FROM TO [--adapter]`. */
#include "cli/verb.h"
#include "task/hf.h"

struct options {
    bool adapter;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, adapter, NEB_OPT_BOOL, "no", NULL,
            "only LoRA, as a folder that PeftModel.from_pretrained() of the peft library loads"),
    NEB_OPT_END,
};

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    if (o->adapter) return neb__hf_export_adapter(c->words[0], c->words[1]);
    return neb__hf_export(c->words[0], c->words[1]);
}

const struct neb_verb neb__verb_export = {
    .name = "export",
    .args = "FROM TO [--adapter]",
    .help = "a model as a Hugging Face folder",
    .about = "Writes the model folder FROM as TO, which from_pretrained() of the transformers library loads.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 2,
    .missing = "give the folder of a trained model and one to write",
    .most = 2,
    .run = run,
};
