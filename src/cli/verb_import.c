/* verb_import.c: `nebula-i import FROM TO [--base FOLDER]`. */
#include "cli/verb.h"
#include "task/hf.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct options {
    char *base;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, base, NEB_OPT_TEXT, "", NULL,
            "FROM is an adapter of the peft library: the model folder that it was made for"),
    NEB_OPT_END,
};

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    char path[NEB_MODEL_PATH + 64];
    if (o->base && *o->base) return neb__hf_import_adapter(c->words[0], o->base, c->words[1]);
    snprintf(path, sizeof path, "%.500s/adapter_config.json", c->words[0]);
    if (!access(path, F_OK))
        return neb__fail(NEB_ERR_CONFIG,
                         "%s is an adapter: name the model folder that it was made for with --base",
                         c->words[0]);
    return neb__hf_import(c->words[0], c->words[1]);
}

const struct neb_verb neb__verb_import = {
    .name = "import",
    .args = "FROM TO [--base FOLDER]",
    .help = "take over a Hugging Face model",
    .about = "Turns the folder FROM of a Hugging Face model (BERT, MiniLM, LaBSE, RoBERTa, XLM-R, ELECTRA,\n"
             "DistilBERT, GPT-2, Llama, Mistral, Qwen, Gemma, Marian, M2M100, NLLB, BART, mBART, T5, mT5:\n"
             "config.json, safetensors, tokenizer files) into the model folder TO. With --base, FROM is an\n"
             "adapter of the peft library.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 2,
    .missing = "give a Hugging Face folder and one to write",
    .most = 2,
    .run = run,
};
