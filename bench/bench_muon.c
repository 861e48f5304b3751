/* bench_muon.c: what Muon costs.
 *
 *     newton_schulz.RxC.share   speed of the iteration on the CPU against a product of 2048 x 2048 matrices on the same
 *                               threads, in turns with it (at least 0.8)
 *     step.adamw, step.muon     milliseconds of a training step of the shape, in turns
 *     cost                      per cent that Muon's step takes longer
 *     tokens                    tokens of that step
 *     tokens.percent            tokens a step from which on Muon costs at most 1 %: its work does not grow with them
 *
 * On a GPU the shapes are larger, and a turn is enqueued without waiting, with one wait at its end. */
#include "bench.h"
#include "shapes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "optim/orthogonal.h"

#include <stdio.h>
#include <string.h>

enum { SIZE = 2048, TURNS_MAX = 32 };

struct options {
    char *device, *shape, *dtype;
    int64_t threads, steps, turns, micro;
    bool products;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL, "cpu, cuda or another plug-in's name"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "", NULL, "f32 or bf16; default f32 on the CPU, else bf16"),
    NEB_OPT(struct options, shape, NEB_OPT_TEXT, "", NULL,
            "mlm-mini (default), mlm-base, gpt2-124m or mt-mini; on a GPU gpt2-124m (default), mlm-base or "
            "mt-base"),
    NEB_OPT(struct options, micro, NEB_OPT_INT, "1", NULL, "micro-batches a step",
            NEB_OPT_RANGE(1, NEB_SHAPE_MICROS)),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "0: one per core"),
    NEB_OPT(struct options, steps, NEB_OPT_INT, "4", NULL, "steps a turn", NEB_OPT_RANGE(1, 1000)),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "5", NULL, "turns of each", NEB_OPT_RANGE(1, TURNS_MAX)),
    NEB_OPT(struct options, products, NEB_OPT_BOOL, "yes", NULL, "measure the iteration (CPU)"),
    NEB_OPT_END,
};

static bool on_cpu(const struct options *o)
{
    return !strcmp(o->device, "cpu");
}

/* ---- the iteration ----------------------------------------------------------------------------------------------- */

static double iteration_flops(int64_t rows, int64_t cols)
{
    double s = (double)(rows < cols ? rows : cols), l = (double)(rows < cols ? cols : rows);
    return NEB_ORTHOGONAL_STEPS * 2 * s * s * (2 * l + s);
}

static neb_status random_values(neb_device *d, int64_t n, float **out)
{
    NEB_TRY(d->ops->alloc(d->ctx, (size_t)n * sizeof(float), (void **)out));
    struct neb_rng rng = {3};
    for (int64_t i = 0; i < n; i++) (*out)[i] = (float)neb__rng_uniform(&rng) - 0.5f; /* the CPU's memory */
    return NEB_OK;
}

static neb_status time_product(neb_device *d, float *const x[3], double *rate)
{
    struct neb_gemm g = {.a = x[0],
                         .b = x[1],
                         .c = x[2],
                         .m = SIZE,
                         .n = SIZE,
                         .k = SIZE,
                         .lda = SIZE,
                         .ldb = SIZE,
                         .ldc = SIZE,
                         .batch = 1,
                         .alpha = 1};
    int64_t start = neb__now_ns();
    NEB_TRY(d->ops->gemm(d->ctx, &g));
    *rate = 2.0 * SIZE * SIZE * SIZE / neb__seconds_since(start);
    return NEB_OK;
}

static neb_status compare_products(neb_device *d, const struct options *o, int64_t rows, int64_t cols,
                                   float *const x[3], double *share)
{
    const int64_t shape[1][2] = {{rows, cols}};
    struct neb_orthogonal work;
    double ratio[TURNS_MAX], rate = 1;
    neb_status status = neb__orthogonal_create(d, NEB_F32, shape, 1, &work);
    if (status == NEB_OK) status = neb__orthogonal_run(&work, 0, x[0], 1, x[2]); /* warms up */
    for (int t = 0; status == NEB_OK && t < o->turns; t++) {
        status = time_product(d, x, &rate);
        int64_t start = neb__now_ns();
        if (status == NEB_OK) status = neb__orthogonal_run(&work, 0, x[0], 1, x[2]);
        ratio[t] = iteration_flops(rows, cols) / neb__seconds_since(start) / rate;
    }
    neb__orthogonal_free(&work);
    *share = status == NEB_OK ? neb__figures_median(ratio, (int)o->turns) : 0;
    return status;
}

static neb_status measure_products(const struct options *o, struct neb_figures *f)
{
    static const int64_t shapes[][2] = {{256, 256}, {768, 768}, {768, 3072}, {3072, 768}};
    struct neb_device_config c = {.threads = (int)o->threads};
    neb_device *d;
    float *x[3] = {0};
    NEB_TRY(neb_device_open("cpu", &c, &d));
    neb_status status = NEB_OK;
    for (int i = 0; i < 3 && status == NEB_OK; i++) status = random_values(d, (int64_t)SIZE * SIZE, &x[i]);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && status == NEB_OK; i++) {
        char name[64];
        double share;
        status = compare_products(d, o, shapes[i][0], shapes[i][1], x, &share);
        snprintf(name, sizeof name, "newton_schulz.%dx%d.share", (int)shapes[i][0], (int)shapes[i][1]);
        if (status == NEB_OK && shapes[i][0] < 768)
            neb__figures_add(f, name, share, "", NEB_REPORT, 0);
        else if (status == NEB_OK)
            neb__figures_add(f, name, share, "", NEB_AT_LEAST, 0.8);
    }
    for (int i = 0; i < 3; i++)
        if (x[i]) d->ops->free(d->ctx, x[i]);
    neb_device_close(d);
    return status;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static neb_status turn(struct neb_shape_run *r, int64_t steps, double *seconds)
{
    float loss;
    int64_t start = neb__now_ns();
    for (int64_t i = 0; i < steps; i++) NEB_TRY(neb__shape_step(r, &loss));
    NEB_TRY(neb_device_sync(neb__shape_device(r)));
    *seconds = neb__seconds_since(start) / (double)steps;
    return NEB_OK;
}

static neb_status measure_step(const struct neb_shape *s, const struct options *o, struct neb_figures *f)
{
    struct neb_shape_run *r[2] = {0};
    double time[2][TURNS_MAX], ignored;
    const bool bf16 = o->dtype ? !strcmp(o->dtype, "bf16") : !on_cpu(o);
    neb_status status = NEB_OK;
    for (int k = 0; k < 2 && status == NEB_OK; k++) {
        struct neb_shape_options x = {.threads = (int)o->threads,
                                      .dropout = 0.1,
                                      .attention_dropout = 0.1,
                                      .device = o->device,
                                      .compute = bf16 ? NEB_BF16 : NEB_F32,
                                      .lr = 1e-4,
                                      .optimizer = k ? NEB_MUON : NEB_ADAMW,
                                      .micro = (int)o->micro};
        status = neb__shape_create(s, &x, &r[k]);
        if (status == NEB_OK) status = turn(r[k], 2, &ignored); /* plans, warms up */
    }
    for (int t = 0; t < o->turns; t++)
        for (int k = 0; k < 2 && status == NEB_OK; k++) status = turn(r[k], o->steps, &time[k][t]);
    if (status == NEB_OK) {
        double adamw = neb__figures_median(time[0], (int)o->turns),
               muon = neb__figures_median(time[1], (int)o->turns);
        double cost = 100 * (muon / adamw - 1), tokens = (double)(neb__shape_tokens(s) * o->micro);
        neb__figures_add(f, "step.adamw", 1e3 * adamw, "ms", NEB_REPORT, 0);
        neb__figures_add(f, "step.muon", 1e3 * muon, "ms", NEB_REPORT, 0);
        neb__figures_add(f, "cost", cost, "%", NEB_REPORT, 0);
        neb__figures_add(f, "tokens", tokens, "", NEB_REPORT, 0);
        neb__figures_add(f, "tokens.percent", cost > 0 ? cost * tokens : 0, "", NEB_REPORT, 0);
    }
    neb__shape_destroy(r[0]);
    neb__shape_destroy(r[1]);
    return status;
}

static const struct neb_shape *shape_of(const struct options *o)
{
    if (on_cpu(o)) return neb__shape_find(neb__shapes, o->shape ? o->shape : "mlm-mini");
    return neb__shape_find(neb__gpu_shapes, o->shape ? o->shape : "gpt2-124m");
}

static int run(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    struct options o = {0};
    int n = 0, rc = 2;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    const bool parsed = neb__opts_args(table, &o, argc, argv, &n) == NEB_OK && n == 0;
    const struct neb_shape *s = parsed ? shape_of(&o) : NULL;
    if (!s) {
        fprintf(stderr, "usage: nebula-i bench muon [--shape NAME] [options]\n\n");
        neb__opts_help(table, stderr);
    } else {
        struct neb_figures *f = neb__figures_begin("muon", json);
        neb_status status = f ? NEB_OK : NEB_ERR_NOMEM;
        if (status == NEB_OK && on_cpu(&o) && o.products) status = measure_products(&o, f);
        if (status == NEB_OK) status = measure_step(s, &o, f);
        rc = f ? neb__figures_end(f) : 1;
        if (status != NEB_OK) rc = 1;
    }
    neb__opts_free(table, &o);
    return rc;
}

const struct neb_bench neb__bench_muon = {"muon", "what Muon costs: its products, and a training step", run,
                                          table};
