/* verb_bench.c: `nebula-i bench NAME`, from the table in bench/bench.h. */
#include "cli/verb.h"
#include "bench.h"
#include "base/opts.h"

#include <stdio.h>
#include <string.h>

static const struct neb_bench *const benches[] = {
#define NEB__X(name) &neb__bench_##name,
    NEB_BENCHES(NEB__X)
#undef NEB__X
};

static int list(FILE *to)
{
    fprintf(to, "usage: nebula-i bench NAME [--json] [options]\n\n");
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        fprintf(to, "  %-10s %s\n", benches[i]->name, benches[i]->help);
    return to == stdout ? 0 : 2;
}

static int tell(const struct neb_bench *b)
{
    printf("usage: nebula-i bench %s [--json]%s\n\n%s\n\n", b->name, b->options ? " [options]" : "", b->help);
    if (b->options) neb__opts_help(b->options, stdout);
    return 0;
}

static int run(int argc, char **argv)
{
    bool help = argc && !strcmp(argv[0], "--help");
    if (argc == help) return list(stdout);
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (!strcmp(argv[help], benches[i]->name))
            return help ? tell(benches[i]) : benches[i]->run(argc - 1, argv + 1);
    fprintf(stderr, "nebula-i bench: no benchmark '%s'\n", argv[help]);
    return list(stderr);
}

const struct neb_verb neb__verb_bench = {"bench", "NAME [--json] …", "measure, and compare with the targets",
                                         run};
