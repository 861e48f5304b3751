/* verb_completion.c: `nebula-i completion SHELL`: a script with which the shell completes the verbs, their options, the values
 * of options and the keys of a job. The build installs all three. */
#include "cli/verb.h"
#include "cli/completion.h"

enum { BASH, ZSH, FISH };

static neb_status run(struct neb_call *c)
{
    static void (*const make[])(FILE * to) = {neb__completion_bash, neb__completion_zsh,
                                              neb__completion_fish};
    make[c->tag](stdout);
    return fflush(stdout) || ferror(stdout) ? neb__fail(NEB_ERR_IO, "cannot write the script") : NEB_OK;
}

static const struct neb_verb parts[] = {
    {.name = "bash",
     .args = "",
     .help = "in ~/.bashrc: source <(nebula-i completion bash)",
     .tag = BASH,
     .run = run},
    {.name = "zsh", .args = "", .help = "in a folder of $fpath, as _nebula-i", .tag = ZSH, .run = run},
    {.name = "fish",
     .args = "",
     .help = "in ~/.config/fish/completions/nebula-i.fish",
     .tag = FISH,
     .run = run},
    {0},
};

const struct neb_verb neb__verb_completion = {
    .name = "completion",
    .args = "",
    .help = "a script that completes commands in a shell",
    .about = "Prints the script. `cmake --install` puts all three where the shells look for them.",
    .parts = parts,
};
