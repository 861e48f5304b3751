/* verb_import.c: `nebula-i import FROM TO`. */
#include "cli/verb.h"
#include "task/hf.h"

#include <stdio.h>
#include <string.h>

static int run(int argc, char **argv)
{
    bool help = argc && !strcmp(argv[0], "--help");
    if (argc != 2 || help) {
        fprintf(help ? stdout : stderr, "usage: nebula-i import FROM TO\n"
                                        "Turns the folder FROM of a Hugging Face model (BERT, MiniLM, "
                                        "RoBERTa, XLM-R, ELECTRA, GPT-2: config.json,\n"
                                        "safetensors, tokenizer files) into the model folder TO.\n");
        return help ? 0 : 2;
    }
    return neb__hf_import(argv[0], argv[1]) == NEB_OK ? 0 : 1;
}

const struct neb_verb neb__verb_import = {"import", "FROM TO", "take over a Hugging Face model", run};
