/* verb_export.c: `nebula-i export FROM TO`. */
#include "cli/verb.h"
#include "task/hf.h"

#include <stdio.h>
#include <string.h>

static int run(int argc, char **argv)
{
    bool help = argc && !strcmp(argv[0], "--help");
    if (argc != 2 || help) {
        fprintf(help ? stdout : stderr, "usage: nebula-i export FROM TO\n"
                                        "Writes the model folder FROM as TO, which from_pretrained() of the "
                                        "transformers library loads.\n");
        return help ? 0 : 2;
    }
    return neb__hf_export(argv[0], argv[1]) == NEB_OK ? 0 : 1;
}

const struct neb_verb neb__verb_export = {"export", "FROM TO", "a model as a Hugging Face folder", run};
