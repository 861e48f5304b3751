/* verb_export.c: `nebula-i export FROM TO [--adapter]`, `nebula-i export --join PART… TO`. */
#include "cli/verb.h"
#include "task/folder.h"
#include "task/hf.h"

struct options {
    bool adapter, join;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, adapter, NEB_OPT_BOOL, "no", NULL,
            "only LoRA, as a folder that PeftModel.from_pretrained() of the peft library loads"),
    NEB_OPT(struct options, join, NEB_OPT_BOOL, "no", NULL,
            "FROM… are the folders `out` of all sites of a pipeline: their parts become the model folder TO"),
    NEB_OPT_END,
};

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    if (o->adapter && o->join) return neb__fail(NEB_ERR_INVALID, "--adapter and --join: give one of them");
    if (o->join) return neb__folder_join((const char *const *)c->words, c->n - 1, c->words[c->n - 1]);
    if (c->n > 2)
        return neb__fail(NEB_ERR_INVALID, "several folders to export: --join makes one model of parts");
    if (o->adapter) return neb__hf_export_adapter(c->words[0], c->words[1]);
    return neb__hf_export(c->words[0], c->words[1]);
}

const struct neb_verb neb__verb_export = {
    .name = "export",
    .args = "FROM… TO [--adapter | --join]",
    .help = "a model as a Hugging Face folder",
    .about =
        "Writes the model folder FROM as TO, which from_pretrained() of the transformers library loads. With "
        "--join "
        "the parts of a model that several sites have trained (strategy: pipeline) become one model folder.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 2,
    .missing = "give the folder of a trained model and one to write",
    .most = NEB_ANY_NUMBER,
    .run = run,
};
