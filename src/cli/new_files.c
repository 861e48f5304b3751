/* new_files.c: see new_files.h. The assembler puts the files into the program as they are; CMakeLists.txt says where they
 * lie, and makes manual.md of docs/. */
#include "cli/new_files.h"

#include <string.h>

#define FILE_AS(symbol, path)                                    \
    __asm__(".pushsection .rodata\n"                             \
            ".hidden neb__new_" #symbol "_begin\n"               \
            ".globl neb__new_" #symbol "_begin\n"                \
            "neb__new_" #symbol "_begin: .incbin \"" path "\"\n" \
            ".hidden neb__new_" #symbol "_end\n"                 \
            ".globl neb__new_" #symbol "_end\n"                  \
            "neb__new_" #symbol "_end: .byte 0\n"                \
            ".popsection");                                      \
    extern const char neb__new_##symbol##_begin[], neb__new_##symbol##_end[]

FILE_AS(causal, NEB_NEW_FOLDER "/causal.yaml");
FILE_AS(mlm, NEB_NEW_FOLDER "/mlm.yaml");
FILE_AS(translate, NEB_NEW_FOLDER "/translate.yaml");
FILE_AS(torch, NEB_NEW_FOLDER "/torch.yaml");
FILE_AS(script, NEB_NEW_FOLDER "/train.py");
FILE_AS(pairs, NEB_NEW_FOLDER "/pairs.tsv");
FILE_AS(manual, NEB_NEW_MANUAL);

#define FILE_OF(name, symbol)                                    \
    {                                                            \
        name, neb__new_##symbol##_begin, neb__new_##symbol##_end \
    }
static const struct neb_new_file files[] = {
    FILE_OF("causal.yaml", causal), FILE_OF("mlm.yaml", mlm),    FILE_OF("translate.yaml", translate),
    FILE_OF("torch.yaml", torch),   FILE_OF("train.py", script), FILE_OF("manual.md", manual),
    FILE_OF("pairs.tsv", pairs),
};

const struct neb_new_file *neb__new_file(const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].name, name)) return &files[i];
    return NULL;
}
