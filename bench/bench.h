/* bench.h: the benchmarks' frame: a list of figures, each with its target, printed as a table or as JSON.
 *
 * A machine is noisy, so a speed is a ratio to something that was measured in the same run: the median of
 * interleaved repetitions. A benchmark lives in bench/bench_NAME.c and is named in NEB_BENCHES. */
#ifndef NEB_BENCH_H
#define NEB_BENCH_H

#include <stdbool.h>
#include <stddef.h>

struct neb_opt;

struct neb_bench {
    const char *name, *help;
    int (*run)(int argc,
               char **argv);       /* 0: ran (whether or not the targets are reached); 1: failed; 2: usage */
    const struct neb_opt *options; /* NULL: --json alone */
};

/* clang-format off: one a line, so that two changes rarely meet */
#define NEB_BENCHES(X) \
    X(auto)            \
    X(base)            \
    X(codec)           \
    X(codec_training)  \
    X(decode)          \
    X(engine)          \
    X(generate)        \
    X(inversion)       \
    X(link)            \
    X(muon)            \
    X(parallel)        \
    X(pipeline)        \
    X(private)         \
    X(replica_quality) \
    X(round)           \
    X(streams)         \
    X(text)            \
    X(unequal_sites)   \
    X(wan)
/* clang-format on */

#define NEB__X(name) extern const struct neb_bench neb__bench_##name;
NEB_BENCHES(NEB__X)
#undef NEB__X

enum neb_figure_sense { NEB_AT_LEAST, NEB_AT_MOST, NEB_REPORT /* no target, only shown */ };

struct neb_figures;

/* json: only the last line goes to stdout. Owes a neb__figures_end(). NULL when out of memory. */
struct neb_figures *neb__figures_begin(const char *bench, bool json);
void neb__figures_add(struct neb_figures *f, const char *name, double value, const char *unit,
                      enum neb_figure_sense sense, double target);
/* Prints and releases. Returns the exit status 0. */
int neb__figures_end(struct neb_figures *f);

double neb__figures_median(double *values, int n); /* sorts */

/* Removes `--json` from the arguments. True: it was there. */
bool neb__bench_json(int *argc, char **argv);

#endif
