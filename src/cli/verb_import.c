/* verb_import.c: `nebula-i import FROM TO`. */
#include "cli/verb.h"
#include "task/hf.h"

static neb_status run(struct neb_call *c)
{
    return neb__hf_import(c->words[0], c->words[1]);
}

const struct neb_verb neb__verb_import = {
    .name = "import",
    .args = "FROM TO",
    .help = "take over a Hugging Face model",
    .about = "Turns the folder FROM of a Hugging Face model (BERT, MiniLM, RoBERTa, XLM-R, ELECTRA, GPT-2: "
             "config.json,\n"
             "safetensors, tokenizer files) into the model folder TO.",
    .least = 2,
    .missing = "give a Hugging Face folder and one to write",
    .most = 2,
    .run = run,
};
