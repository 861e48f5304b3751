/* verb_bench.c: `nebula-i bench NAME`, from the table in bench/bench.h. */
#include "cli/verb.h"
#include "bench.h"
#include "cli/reference.h"

#include <stdio.h>
#include <string.h>

static const struct neb_bench *const benches[] = {
#define NEB__X(name) &neb__bench_##name,
    NEB_BENCHES(NEB__X)
#undef NEB__X
};

static neb_status list(FILE *to)
{
    fprintf(to, "usage: nebula-i bench NAME [--json] [options]\n\n");
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        fprintf(to, "  %-10s %s\n", benches[i]->name, benches[i]->help);
    return NEB_OK;
}

static neb_status tell(const struct neb_bench *b)
{
    printf("usage: nebula-i bench %s [--json]%s\n\n%s\n\n", b->name, b->options ? " [options]" : "", b->help);
    if (b->options) neb__opts_help(b->options, stdout);
    return NEB_OK;
}

static bool asks_for_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-h");
}

/* A benchmark parses its own options. */
static neb_status run(struct neb_call *c)
{
    bool help = false;
    for (int i = 0; i < c->n; i++) help |= asks_for_help(c->words[i]);
    if (!c->n || asks_for_help(c->words[0])) return list(stdout);
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (!strcmp(c->words[0], benches[i]->name)) {
            if (help) return tell(benches[i]);
            c->code = benches[i]->run(c->n - 1, c->words + 1);
            return NEB_OK;
        }
    fprintf(stderr, "nebula-i bench: no benchmark '%s'\n", c->words[0]);
    c->code = NEB_EXIT_USAGE;
    return list(stderr);
}

static const struct neb_verb *describe(void)
{
    static struct neb_verb parts[sizeof benches / sizeof *benches + 1];
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        parts[i] = (struct neb_verb){.name = benches[i]->name,
                                     .args = benches[i]->options ? "[--json] [options]" : "[--json]",
                                     .help = benches[i]->help,
                                     .options = {{benches[i]->options, 0}},
                                     .size = 1};
    return parts;
}

const struct neb_verb neb__verb_bench = {
    .name = "bench",
    .args = "NAME [--json] …",
    .help = "measure, and compare with the targets",
    .raw = true,
    .describe = describe,
    .run = run,
};
