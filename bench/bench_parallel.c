/* bench_parallel.c: layouts of two ranks, each with one thread, against one process with two.
 *
 * Ranks on GPUs share those of this machine, against one process on one of them. All arms train the same model on the same
 * tokens, in as many micro-batches. The arms of a comparison take
 * turns, step by step, and the figure is the median of the ratios: the machine's speed changes, the ratio does
 * not. A pipeline idles for (p - 1) / (m + p - 1) of a step by its nature; its ratio is taken without that, and
 * the share that it really idled stands beside it.
 *
 * A layout that shares out the state is measured by the allocator: the state that a rank holds after a step, over
 * the formula. Its buckets and gathered layers are in the memory of the runs; that memory, over the one of ranks
 * that hold everything, stands beside it.
 *
 * Ranks on several machines, and ranks on GPUs, add up gradients during the backward pass. beside2 and beside_zero1 measure that against
 * sums behind it, by the same processes in turns; bench/beside.sh makes two machines of one. On a GPU each change of the way is followed
 * by steps that record the run anew and do not count. */
#include "bench.h"
#include "parallel_arm.h"
#include "base/file.h"
#include "base/opts.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TURNS = 64 };

struct options {
    char *out, *arm, *serve, *device, *dtype;
    int64_t hidden, layers, heads, vocab, tokens, micro, length, turns, steps, bucket;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, out, NEB_OPT_TEXT, "out/parallel", "folder", "folder for the job and its text"),
    NEB_OPT(
        struct options, arm, NEB_OPT_TEXT, "", NULL,
        "only this layout: data2, tensor2, pipeline2, zero1, zero2, zero3; state: what ranks hold with zero "
        "1, "
        "2, 3; beside2, beside_zero1: data2, zero1 on two machines or on GPUs, sums beside the backward pass "
        "against sums behind it; job: "
        "write the job and end"),
    NEB_OPT(struct options, hidden, NEB_OPT_INT, "768", NULL, "width of the model; the default is gpt2-124m",
            NEB_OPT_RANGE(8, 65536)),
    NEB_OPT(struct options, layers, NEB_OPT_INT, "12", NULL, "its layers", NEB_OPT_RANGE(2, 1024)),
    NEB_OPT(struct options, heads, NEB_OPT_INT, "12", NULL, "its heads", NEB_OPT_RANGE(1, 1024)),
    NEB_OPT(struct options, vocab, NEB_OPT_INT, "50257", NULL, "tokens in its vocabulary",
            NEB_OPT_RANGE(16, 1e6)),
    NEB_OPT(struct options, tokens, NEB_OPT_INT, "4096", NULL, "tokens of a step", NEB_OPT_RANGE(16, 1e8)),
    NEB_OPT(struct options, micro, NEB_OPT_INT, "8", NULL, "micro-batches of a step", NEB_OPT_RANGE(2, 1024)),
    NEB_OPT(struct options, length, NEB_OPT_INT, "0", NULL, "tokens of a sample; 0: a micro-batch is one",
            NEB_OPT_RANGE(0, 1e8)),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "where the ranks compute: cpu, or cuda, where they share the GPUs of this machine"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "f32", NULL, "what they compute in",
            NEB_OPT_CHOICE("f32", "bf16")),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "5", NULL, "measured turns a layout",
            NEB_OPT_RANGE(1, MAX_TURNS)),
    NEB_OPT(struct options, steps, NEB_OPT_INT, "1", NULL, "steps of a turn", NEB_OPT_RANGE(1, 1e6)),
    NEB_OPT(struct options, bucket, NEB_OPT_BYTES, "0", NULL,
            "parallel.bucket: gradients that ranks add up at once beside the backward pass; 0: as a job "
            "without it",
            NEB_OPT_RANGE(0, 1e15)),
    NEB_OPT(struct options, serve, NEB_OPT_TEXT, "", NULL,
            "be a process of this layout, and make a step for each line of the standard input"),
    NEB_OPT_END,
};

struct arm {
    const char *name, *layout;
    double target; /* 0: none */
    int stages;
    bool extra; /* on the CPU only when it is asked for */
};

static const struct arm arms[] = {
    {"data2", "parallel.data=2 train.threads=1", 0.90, 1, false},
    {"tensor2", "parallel.tensor=2 train.threads=1", 0.85, 1, false},
    {"pipeline2", "parallel.pipeline=2 train.threads=1", 0.90, 2, false},
    {"zero1", "parallel.data=2 parallel.zero=1 train.threads=1", 0, 1, true},
    {"zero2", "parallel.data=2 parallel.zero=2 train.threads=1", 0, 1, true},
    {"zero3", "parallel.data=2 parallel.zero=3 train.threads=1", 0, 1, true},
};

/* A recording is made at the third run of its shape. */
static int64_t warm_steps(const struct options *o)
{
    return strcmp(o->device, "cpu") ? 4 : 1;
}

static neb_status start(const struct options *o, const char *folder, const char *layout, struct neb_arm *out)
{
    char all[192];
    snprintf(all, sizeof all, "%s parallel.bucket=%" PRId64, layout, o->bucket);
    return neb__arm_start(folder, all, 2, out);
}

static neb_status measure(const struct options *o, const char *folder, struct neb_arm *one,
                          const struct arm *a, double *ratio, double *idle)
{
    struct neb_arm two;
    struct neb_arm_step x, y;
    double ratios[MAX_TURNS], shares[MAX_TURNS];
    NEB_TRY(start(o, folder, a->layout, &two));
    neb_status status = neb__arm_step(&two, warm_steps(o), &y); /* plans, records and warms up */
    for (int i = 0; status == NEB_OK && i < o->turns; i++) {
        status = neb__arm_step(one, o->steps, &x);
        if (status == NEB_OK) status = neb__arm_step(&two, o->steps, &y);
        ratios[i] = x.seconds / y.seconds;
        shares[i] = y.idle;
        fprintf(stderr, "%s: one process %.4g s, two ranks %.4g s, %.1f %% idle\n", a->name, x.seconds,
                y.seconds, 100 * y.idle);
    }
    neb__arm_stop(&two);
    NEB_TRY(status);
    *ratio = neb__figures_median(ratios, (int)o->turns);
    *idle = neb__figures_median(shares, (int)o->turns);
    return NEB_OK;
}

static neb_status report(struct neb_figures *f, const struct options *o, const char *folder,
                         struct neb_arm *one, const struct arm *a)
{
    char name[64];
    double ratio, idle, bubble = (double)(a->stages - 1) / (double)(o->micro + a->stages - 1);
    NEB_TRY(measure(o, folder, one, a, &ratio, &idle));
    snprintf(name, sizeof name, "ratio.%s", a->name);
    neb__figures_add(f, name, ratio / (1 - bubble), "", a->target > 0 ? NEB_AT_LEAST : NEB_REPORT, a->target);
    if (a->stages < 2 || !(idle > 0)) return NEB_OK; /* GPUs that send by themselves do not tell */
    snprintf(name, sizeof name, "bubble.%s", a->name);
    neb__figures_add(f, name, idle - bubble, "", NEB_AT_MOST, 0.05);
    snprintf(name, sizeof name, "idle.%s", a->name);
    neb__figures_add(f, name, idle, "", NEB_REPORT, 0);
    return NEB_OK;
}

/* ---- sums beside the backward pass ------------------------------------------------------------------------- */

static const struct beside {
    const char *name, *layout;
} besides[] = {{"beside2", "parallel.data=2 train.threads=1 parallel.timeout=10m"},
               {"beside_zero1", "parallel.data=2 parallel.zero=1 train.threads=1 parallel.timeout=10m"}};

static const struct beside *find_beside(const char *arm)
{
    for (size_t i = 0; arm && i < sizeof besides / sizeof *besides; i++)
        if (!strcmp(besides[i].name, arm)) return &besides[i];
    return NULL;
}

/* The way changes, and with it what is recorded. */
static neb_status half_turn(const struct options *o, struct neb_arm *a,
                            neb_status (*step)(struct neb_arm *, int64_t, struct neb_arm_step *),
                            struct neb_arm_step *out)
{
    if (strcmp(o->device, "cpu")) NEB_TRY(step(a, warm_steps(o), out));
    return step(a, o->steps, out);
}

static neb_status report_beside(const struct options *o, struct neb_figures *f, const char *folder)
{
    struct neb_arm arm;
    struct neb_arm_step behind, beside;
    const struct beside *b = find_beside(o->arm);
    char name[64];
    double ratios[MAX_TURNS], seconds[2][MAX_TURNS];
    NEB_TRY(start(o, folder, b->layout, &arm));
    neb_status status = neb__arm_step(&arm, 1, &beside); /* plans and warms up */
    for (int i = 0; status == NEB_OK && i < o->turns; i++) {
        status = half_turn(o, &arm, neb__arm_step_behind, &behind);
        if (status == NEB_OK) status = half_turn(o, &arm, neb__arm_step, &beside);
        seconds[0][i] = behind.seconds;
        seconds[1][i] = beside.seconds;
        ratios[i] = behind.seconds / beside.seconds;
        fprintf(stderr, "%s: sums behind the backward pass %.4g s, beside it %.4g s\n", b->name,
                behind.seconds, beside.seconds);
    }
    neb__arm_stop(&arm);
    NEB_TRY(status);
    neb__figures_add(f, "step.behind", neb__figures_median(seconds[0], (int)o->turns), "s", NEB_REPORT, 0);
    neb__figures_add(f, "step.beside", neb__figures_median(seconds[1], (int)o->turns), "s", NEB_REPORT, 0);
    snprintf(name, sizeof name, "ratio.%s", b->name);
    neb__figures_add(f, name, neb__figures_median(ratios, (int)o->turns), "", NEB_REPORT, 0);
    return NEB_OK;
}

/* ---- state ------------------------------------------------------------------------------------------------- */

enum { RANKS = 2 };

/* Bytes a trained parameter. */
static double formula(const struct options *o, int zero)
{
    const double d = RANKS, of[] = {16, 8 + 8 / d, 4 + 12 / d, 16 / d};
    const double half[] = {18, 6 + 12 / d, 2 + 16 / d, 18 / d};
    return strcmp(o->dtype, "bf16") ? of[zero] : half[zero];
}

static neb_status held(const char *folder, int zero, struct neb_arm_step *out)
{
    char layout[96];
    struct neb_arm arm;
    snprintf(layout, sizeof layout, "parallel.data=%d parallel.zero=%d train.threads=1", RANKS, zero);
    NEB_TRY(neb__arm_start(folder, layout, RANKS, &arm));
    neb_status status = neb__arm_step(&arm, 1, out);
    neb__arm_stop(&arm);
    return status;
}

static neb_status report_state(const struct options *o, struct neb_figures *f, const char *folder)
{
    struct neb_arm_step all, x;
    char name[64];
    NEB_TRY(held(folder, 0, &all));
    neb__figures_add(f, "state.data2", all.state / (formula(o, 0) * all.values), "", NEB_REPORT, 0);
    for (int zero = 1; zero <= 3; zero++) {
        NEB_TRY(held(folder, zero, &x));
        snprintf(name, sizeof name, "state.zero%d", zero);
        neb__figures_add(f, name, x.state / (formula(o, zero) * x.values), "", NEB_AT_MOST, 1.03);
        snprintf(name, sizeof name, "runs.zero%d", zero);
        neb__figures_add(f, name, (x.runs - all.runs) / 1e6, "MB", NEB_REPORT, 0);
    }
    return NEB_OK;
}

static neb_status run_turns(const struct options *o, struct neb_figures *f, const char *folder)
{
    struct neb_arm one;
    struct neb_arm_step warm;
    NEB_TRY(neb__arm_start(folder, "train.threads=2", 1, &one));
    neb_status status = neb__arm_step(&one, warm_steps(o), &warm);
    const bool all = !o->arm, gpu = strcmp(o->device, "cpu") != 0;
    for (size_t i = 0; status == NEB_OK && i < sizeof arms / sizeof *arms; i++)
        if (all ? gpu || !arms[i].extra : !strcmp(o->arm, arms[i].name))
            status = report(f, o, folder, &one, &arms[i]);
    neb__arm_stop(&one);
    return status;
}

static neb_status run_arms(const struct options *o, struct neb_figures *f)
{
    struct neb_arm_job job = {.hidden = o->hidden,
                              .layers = o->layers,
                              .heads = o->heads,
                              .vocab = o->vocab,
                              .tokens = o->tokens / o->micro,
                              .micro = o->micro,
                              .max_len = o->length ? o->length : o->tokens / o->micro,
                              .device = o->device,
                              .dtype = o->dtype};
    const bool state = o->arm && !strcmp(o->arm, "state");
    char folder[PATH_MAX];
    NEB_TRY(neb__file_make_dir(o->out, 0755));
    if (!realpath(o->out, folder)) return neb__fail(NEB_ERR_IO, "%s: %s", o->out, strerror(errno));
    job.folder = folder;
    NEB_TRY(neb__arm_job_make(&job));
    if (o->arm && !strcmp(o->arm, "job")) return NEB_OK;
    if (find_beside(o->arm)) return report_beside(o, f, folder);
    if (!state) NEB_TRY(run_turns(o, f, folder));
    return state || !o->arm ? report_state(o, f, folder) : NEB_OK;
}

static bool known(const char *name)
{
    if (!strcmp(name, "state") || !strcmp(name, "job") || find_beside(name)) return true;
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++)
        if (!strcmp(name, arms[i].name)) return true;
    return false;
}

static int run(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    struct options o = {0};
    int n = 0, code = 2;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    const bool parsed = neb__opts_args(table, &o, argc, argv, &n) == NEB_OK && n == 0;
    if (!parsed || (o.arm && !known(o.arm))) {
        fprintf(stderr, "usage: nebula-i bench parallel [--json] [options]\n\n");
        neb__opts_help(table, stderr);
    } else if (o.serve) {
        code = neb__arm_serve(o.out, o.serve);
    } else {
        struct neb_figures *f = neb__figures_begin("parallel", json);
        code = f && run_arms(&o, f) == NEB_OK ? neb__figures_end(f) : 1;
    }
    neb__opts_free(table, &o);
    return code;
}

const struct neb_bench neb__bench_parallel = {
    "parallel", "layouts of two ranks against one process with two threads", run, table};
