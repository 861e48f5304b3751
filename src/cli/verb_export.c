/* verb_export.c: `nebula-i export FROM TO [--adapter]`, `nebula-i export --join PART… TO`. */
#include "cli/reference.h"
#include "cli/verb.h"
#include "task/folder.h"
#include "task/hf.h"

#include <stdio.h>

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

static neb_status too_many(struct neb_call *c)
{
    fprintf(stderr, "nebula-i export: '%s' is one word too many; --join alone takes several folders\n",
            c->words[2]);
    c->code = NEB_EXIT_USAGE;
    return NEB_OK;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    if (o->adapter && o->join) return neb__fail(NEB_ERR_CONFIG, "--adapter and --join: give one of them");
    if (o->join) return neb__folder_join((const char *const *)c->words, c->n - 1, c->words[c->n - 1]);
    if (c->n > 2) return too_many(c);
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
