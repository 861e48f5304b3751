/* bench_engine.c: whole training steps against the speed of one large matrix product on the same threads.
 *
 * sgemm is a product of 2048 x 2048 matrices of random numbers, measured between the steps: the machine's
 * speed changes from minute to minute, but the ratio does not. `--serve` makes the process a worker for
 * bench/vs_torch.py: it reads "step N" or "memory" from its input and answers with a line.
 *
 * On other devices than the CPU the shapes are larger and the default type is bf16. A step is measured as it
 * runs in training: enqueued without waiting, with one wait at the end. */
#include "bench.h"
#include "on_device.h"
#include "shapes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "tensor/device.h"

#include <stdio.h>
#include <string.h>

enum { SIZE = 2048, MAX_STEPS = 64 };

struct options {
    char *shape, *device, *dtype;
    int64_t threads, steps, losses;
    double dropout, attention_dropout, seconds, lr;
    bool recompute, serve, deterministic, graphs, capture, reference;
};

static const struct neb_opt table[] = {
    NEB_OPT(
        struct options, shape, NEB_OPT_TEXT, "", NULL,
        "only this one: mlm-mini, mlm-base, gpt2-124m or mt-mini; on a GPU gpt2-124m, mlm-base or mt-base"),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL, "cpu, cuda or another plug-in's name"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "", NULL, "f32 or bf16; default f32 on the CPU, else bf16"),
    NEB_OPT(struct options, deterministic, NEB_OPT_BOOL, "no", NULL, "give the same bits every time"),
    NEB_OPT(struct options, graphs, NEB_OPT_BOOL, "yes", NULL, "record steps and replay them"),
    NEB_OPT(struct options, capture, NEB_OPT_BOOL, "no", NULL,
            "also measure what a capture and a merge of all parameters cost (not on the CPU)"),
    NEB_OPT(struct options, losses, NEB_OPT_INT, "0", NULL,
            "print the losses of so many steps and a hash of the parameters; measure nothing"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "0: one per core"),
    NEB_OPT(struct options, steps, NEB_OPT_INT, "9", NULL, "measured steps a shape, at most 64"),
    NEB_OPT(struct options, seconds, NEB_OPT_REAL, "25", "s", "longest time a shape"),
    NEB_OPT(struct options, dropout, NEB_OPT_REAL, "0.1", NULL, "dropout of sublayers"),
    NEB_OPT(struct options, attention_dropout, NEB_OPT_REAL, "0.1", NULL,
            "dropout of attention's probabilities"),
    NEB_OPT(struct options, lr, NEB_OPT_REAL, "1e-4", NULL, "learning rate"),
    NEB_OPT(struct options, reference, NEB_OPT_BOOL, "no", NULL, "compose ops of the device's primitives"),
    NEB_OPT(struct options, recompute, NEB_OPT_BOOL, "no", NULL, "recompute activations, keep none"),
    NEB_OPT(struct options, serve, NEB_OPT_BOOL, "no", NULL, "answer commands on the standard input"),
    NEB_OPT_END,
};

static bool on_cpu(const struct options *o)
{
    return !o->device || !strcmp(o->device, "cpu");
}

/* Other devices have the CPU's small shapes too, for comparing losses. So have tests a tiny one. */
static const struct neb_shape *find_shape(const struct options *o)
{
    const struct neb_shape *s = on_cpu(o) ? NULL : neb__shape_find(neb__gpu_shapes, o->shape);
    if (!s && o->losses) s = neb__shape_find(neb__tiny_shapes, o->shape);
    return s ? s : neb__shape_find(neb__shapes, o->shape);
}

static struct neb_shape_options shape_options(const struct options *o, bool recompute)
{
    const bool bf16 = o->dtype ? !strcmp(o->dtype, "bf16") : !on_cpu(o);
    return (struct neb_shape_options){.threads = (int)o->threads,
                                      .dropout = o->dropout,
                                      .attention_dropout = o->attention_dropout,
                                      .recompute = recompute,
                                      .device = o->device,
                                      .compute = bf16 ? NEB_BF16 : NEB_F32,
                                      .deterministic = o->deterministic,
                                      .no_graphs = !o->graphs,
                                      .reference = o->reference,
                                      .lr = o->lr};
}

struct sgemm {
    neb_device *d;
    float *a, *b, *c;
};

static neb_status sgemm_init(neb_device *d, struct sgemm *g)
{
    const size_t bytes = (size_t)SIZE * SIZE * sizeof(float);
    *g = (struct sgemm){.d = d};
    void **to[] = {(void **)&g->a, (void **)&g->b, (void **)&g->c};
    for (int i = 0; i < 3; i++) NEB_TRY(d->ops->alloc(d->ctx, bytes, to[i]));
    struct neb_rng rng = {3};
    for (int64_t i = 0; i < (int64_t)SIZE * SIZE; i++)
        g->a[i] = (float)neb__rng_uniform(&rng) - 0.5f, g->b[i] = (float)neb__rng_uniform(&rng) - 0.5f;
    return NEB_OK;
}

static void sgemm_free(struct sgemm *g)
{
    if (!g->d) return;
    g->d->ops->free(g->d->ctx, g->a);
    g->d->ops->free(g->d->ctx, g->b);
    g->d->ops->free(g->d->ctx, g->c);
}

/* GFLOP/s */
static neb_status sgemm_rate(struct sgemm *g, double *out)
{
    struct neb_gemm p = {.a = g->a,
                         .b = g->b,
                         .c = g->c,
                         .m = SIZE,
                         .n = SIZE,
                         .k = SIZE,
                         .lda = SIZE,
                         .ldb = SIZE,
                         .ldc = SIZE,
                         .batch = 1,
                         .alpha = 1};
    int64_t start = neb__now_ns();
    NEB_TRY(g->d->ops->gemm(g->d->ctx, &p));
    *out = 2.0 * SIZE * SIZE * SIZE / neb__seconds_since(start) * 1e-9;
    return NEB_OK;
}

struct result {
    double share, seconds, gflops, sgemm;
    struct neb_memory memory;
};

static neb_status measure(const struct neb_shape *s, const struct options *o, bool recompute,
                          struct result *out)
{
    struct neb_shape_options options = shape_options(o, recompute);
    struct neb_shape_run *r = NULL;
    struct sgemm g = {0};
    double time[MAX_STEPS], rate[MAX_STEPS];
    float loss;
    int n = 0;
    NEB_TRY(neb__shape_create(s, &options, &r));
    neb_status status = sgemm_init(neb__shape_device(r), &g);
    for (int i = 0; status == NEB_OK && i < 2; i++) status = neb__shape_step(r, &loss); /* plans, warms up */
    int64_t begin = neb__now_ns();
    while (status == NEB_OK && n < o->steps && n < MAX_STEPS &&
           (n < 3 || neb__seconds_since(begin) < o->seconds)) {
        status = sgemm_rate(&g, &rate[n]);
        int64_t start = neb__now_ns();
        if (status == NEB_OK) status = neb__shape_step(r, &loss);
        time[n++] = neb__seconds_since(start);
    }
    if (status == NEB_OK) {
        out->seconds = neb__figures_median(time, n);
        out->sgemm = neb__figures_median(rate, n);
        out->gflops = neb__shape_flops(s) / out->seconds * 1e-9;
        out->share = out->gflops / out->sgemm;
        neb__shape_memory(r, &out->memory);
    }
    sgemm_free(&g);
    neb__shape_destroy(r);
    return status;
}

static void report(struct neb_figures *f, const struct neb_shape *s, const struct result *r)
{
    char name[64];
#define FIGURE(prefix, value, unit, sense, target)          \
    (snprintf(name, sizeof name, "%s.%s", prefix, s->name), \
     neb__figures_add(f, name, value, unit, sense, target))
    FIGURE("sgemm_share", r->share, "", NEB_AT_LEAST, s->share_target);
    FIGURE("tokens_per_second", (double)neb__shape_tokens(s) / r->seconds, "1/s", NEB_REPORT, 0);
    FIGURE("step", r->seconds * 1e3, "ms", NEB_REPORT, 0);
    FIGURE("sgemm", r->sgemm, "GFLOP/s", NEB_REPORT, 0);
    FIGURE("arena", (double)r->memory.planned / 1048576, "MiB", NEB_REPORT, 0);
    FIGURE("arena_bound", (double)r->memory.lower_bound / 1048576, "MiB", NEB_REPORT, 0);
#undef FIGURE
}

/* Memory of activations against the least that any plan could take; savings and cost of recomputation. */
static neb_status report_memory(struct neb_figures *f, const struct options *o, const struct neb_shape *s,
                                const struct result *base)
{
    struct result again;
    NEB_TRY(measure(s, o, true, &again));
    neb__figures_add(f, "memory_over_bound.mlm-base",
                     (double)base->memory.planned / (double)base->memory.lower_bound, "", NEB_AT_MOST, 1.10);
    neb__figures_add(f, "recompute_memory.mlm-base",
                     (double)again.memory.planned / (double)base->memory.planned, "", NEB_AT_MOST, 0.5);
    /* both as multiples of sgemm: the two runs are minutes apart */
    neb__figures_add(f, "recompute_time.mlm-base", base->share / again.share, "", NEB_AT_MOST, 1.35);
    return NEB_OK;
}

static int serve(const struct neb_shape *s, const struct options *o)
{
    struct neb_shape_options options = shape_options(o, o->recompute);
    struct neb_shape_run *r = NULL;
    char line[64];
    float loss = 0;
    int steps;
    if (neb__shape_create(s, &options, &r) != NEB_OK) return 1;
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "step %d", &steps) != 1) continue;
        int64_t start = neb__now_ns();
        for (int i = 0; i < steps; i++)
            if (neb__shape_step(r, &loss) != NEB_OK) return 1;
        if (neb_device_sync(neb__shape_device(r)) != NEB_OK) return 1;
        printf("%.6f %.6f\n", neb__seconds_since(start) / steps, (double)loss);
        fflush(stdout);
    }
    neb__shape_destroy(r);
    return 0;
}

static int run_all(const struct options *o, bool json)
{
    struct neb_figures *f = neb__figures_begin("engine", json);
    if (!f) return 1;
    const struct neb_shape_options options = shape_options(o, o->recompute);
    for (const struct neb_shape *s = neb__gpu_shapes; !on_cpu(o) && s->name; s++)
        if ((!o->shape || !strcmp(o->shape, s->name)) &&
            neb__bench_on_device(s, &options, o->steps, o->capture, f) != NEB_OK)
            return 1;
    if (!on_cpu(o)) return neb__figures_end(f);
    for (const struct neb_shape *s = neb__shapes; s->name; s++) {
        if (o->shape && strcmp(o->shape, s->name)) continue;
        struct result r;
        if (measure(s, o, o->recompute, &r) != NEB_OK) return 1;
        report(f, s, &r);
        if (!strcmp(s->name, "mlm-base") && !o->recompute && report_memory(f, o, s, &r) != NEB_OK) return 1;
    }
    return neb__figures_end(f);
}

static int run(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    struct options o = {0};
    int n = 0, rc = 2;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    const bool parsed = neb__opts_args(table, &o, argc, argv, &n) == NEB_OK && n == 0;
    const struct neb_shape *s = o.shape ? find_shape(&o) : NULL;
    if (!parsed || (o.shape && !s) || ((o.serve || o.losses) && !s)) {
        fprintf(stderr, "usage: nebula-i bench engine [--shape NAME] [options]\n\n");
        neb__opts_help(table, stderr);
    } else {
        const struct neb_shape_options options = shape_options(&o, o.recompute);
        rc = o.losses ? neb__bench_losses(s, &options, o.losses) : o.serve ? serve(s, &o) : run_all(&o, json);
    }
    neb__opts_free(table, &o);
    return rc;
}

const struct neb_bench neb__bench_engine = {"engine", "training steps against the speed of matrix products",
                                            run, table};
