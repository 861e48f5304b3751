/* figures.c: collecting and printing a benchmark's figures. */
#include "bench.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct figure {
    char name[96], unit[24];
    double value, target;
    enum neb_figure_sense sense;
};

struct neb_figures {
    const char *bench;
    bool json;
    int n, cap;
    struct figure *list;
};

struct neb_figures *neb__figures_begin(const char *bench, bool json)
{
    struct neb_figures *f = NEB_NEW(struct neb_figures);
    if (!f) return NULL;
    f->bench = bench;
    f->json = json;
    return f;
}

static bool reached(const struct figure *g)
{
    if (g->sense == NEB_REPORT) return true;
    return g->sense == NEB_AT_LEAST ? g->value >= g->target : g->value <= g->target;
}

void neb__figures_add(struct neb_figures *f, const char *name, double value, const char *unit,
                      enum neb_figure_sense sense, double target)
{
    if (f->n == f->cap) {
        int cap = f->cap ? f->cap * 2 : 32;
        struct figure *list = neb__realloc(f->list, (size_t)cap * sizeof *list);
        if (!list) {
            fprintf(stderr, "out of memory: figure %s is lost\n", name);
            return;
        }
        f->list = list;
        f->cap = cap;
    }
    struct figure *g = &f->list[f->n++];
    *g = (struct figure){.value = value, .target = target, .sense = sense};
    snprintf(g->name, sizeof g->name, "%s", name);
    snprintf(g->unit, sizeof g->unit, "%s", unit);
}

static void print_table(const struct neb_figures *f)
{
    printf("%-44s %14s %-10s %14s  %s\n", "figure", "value", "unit", "target", "reached");
    for (int i = 0; i < f->n; i++) {
        const struct figure *g = &f->list[i];
        char target[32] = "";
        const char *answer = "";
        if (g->sense != NEB_REPORT) {
            snprintf(target, sizeof target, "%s %.4g", g->sense == NEB_AT_LEAST ? ">=" : "<=", g->target);
            answer = reached(g) ? "yes" : "NO";
        }
        printf("%-44s %14.5g %-10s %14s  %s\n", g->name, g->value, g->unit, target, answer);
    }
}

static void print_number(double x)
{
    if (isfinite(x))
        printf("%.9g", x);
    else
        printf("null");
}

static void print_json(const struct neb_figures *f)
{
    printf("{\"bench\":\"%s\",\"figures\":[", f->bench);
    for (int i = 0; i < f->n; i++) {
        const struct figure *g = &f->list[i];
        printf("%s{\"name\":\"%s\",\"value\":", i ? "," : "", g->name);
        print_number(g->value);
        printf(",\"unit\":\"%s\",\"target\":", g->unit);
        if (g->sense == NEB_REPORT)
            printf("null");
        else
            print_number(g->target);
        printf(",\"ok\":%s}", reached(g) ? "true" : "false");
    }
    printf("]}\n");
}

int neb__figures_end(struct neb_figures *f)
{
    if (f->json)
        print_json(f);
    else
        print_table(f);
    neb__free(f->list);
    neb__free(f);
    return 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double neb__figures_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

bool neb__bench_json(int *argc, char **argv)
{
    bool found = false;
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        if (!strcmp(argv[i], "--json"))
            found = true;
        else
            argv[kept++] = argv[i];
    }
    *argc = kept;
    return found;
}
