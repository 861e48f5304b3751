/* verb_bench.c: `nebula-i bench NAME`, from the table in bench/bench.h. */
#include "cli/verb.h"
#include "bench.h"

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

static int run(int argc, char **argv)
{
    if (argc < 1) return list(stdout);
    if (!strcmp(argv[0], "--help")) return list(stdout);
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (!strcmp(argv[0], benches[i]->name)) return benches[i]->run(argc - 1, argv + 1);
    fprintf(stderr, "nebula-i bench: no benchmark '%s'\n", argv[0]);
    return list(stderr);
}

const struct neb_verb neb__verb_bench = {"bench", "NAME [--json] …", "measure, and compare with the targets",
                                         run};
