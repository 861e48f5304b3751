/* bench_codec_training.c: the effect of the codec alone on a training.
 *
 * Two replicas of mlm-mini (BERT, 4 layers of 256, vocabulary 8000) train on real text with local steps.
 * Every H steps their deltas go through a rung, and the class's own outer rule (dense: Nesterov 0.7 / 0.9;
 * sparse: averaging) makes the next common parameters. The part that a rung leaves out stays in the replica
 * and is committed exactly at the end. Each rung is compared with the same local-step run, with the same
 * outer rule, data and masks, but uncompressed deltas. Before that both replicas share 500 synchronous steps
 * (one optimizer, batches of both together). The figure is the held-out loss of the common parameters against
 * that of the uncompressed run, in percent, the mean over the seeds. The spread stands beside it.
 *
 * The benchmark needs text: NEBULA_DATA or --data names a folder with mono/eltec.LANG.txt, a paragraph a
 * line. The last 3 % of each file are held out. --capture FILE keeps two deltas of one replica for `nebula-i
 * bench codec --real FILE`. */
#include "bench.h"
#include "real_text.h"
#include "warm_start.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opts.h"
#include "codec/codec.h"
#include "task/work.h"
#include "train/resume.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    char *data, *out, *device, *capture, *only;
    int64_t steps, warmup, h, seeds, tokens, threads;
    double lr;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, data, NEB_OPT_TEXT, "", "folder", "folder with text (default: NEBULA_DATA)"),
    NEB_OPT(struct options, out, NEB_OPT_TEXT, "out/codec-training", "folder",
            "folder for tokenizer and tokenised text"),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL, "cpu or cuda"),
    NEB_OPT(struct options, capture, NEB_OPT_TEXT, "", "file", "keep two deltas of one replica here"),
    NEB_OPT(struct options, only, NEB_OPT_TEXT, "both", NULL, "dense, sparse or both classes"),
    NEB_OPT(struct options, steps, NEB_OPT_INT, "1500", "steps", "local steps of each replica"),
    NEB_OPT(struct options, warmup, NEB_OPT_INT, "500", "steps", "synchronous steps before"),
    NEB_OPT(struct options, h, NEB_OPT_INT, "20", "steps", "local steps between two rounds"),
    NEB_OPT(struct options, seeds, NEB_OPT_INT, "3", NULL, "repetitions with other seeds"),
    NEB_OPT(struct options, tokens, NEB_OPT_INT, "1024", "tokens", "tokens of a step and replica"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all"),
    NEB_OPT(struct options, lr, NEB_OPT_REAL, "1e-3", NULL, "peak learning rate of AdamW"),
    NEB_OPT_END,
};

enum { REPLICAS = 2, MAX_SEEDS = 8 };

/* The runs. `against` is the row of the uncompressed run for comparison. */
static const struct variant {
    const char *name, *rung;
    bool average;
    int against;
    double percent; /* at most; 0: the reference itself */
} variants[] = {
    {"none.nesterov", NULL, false, 0, 0}, {"int8", "int8", false, 0, 0.5},
    {"int4", "int4", false, 0, 0.5},      {"none.average", NULL, true, 3, 0},
    {"sparse2", "sparse2", true, 3, 1.5},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

struct run {
    struct options opt;
    struct neb_job job;
    struct neb_data data;
    size_t n; /* values */
    struct neb_warm_start warm;
    float *theta, *momentum, *sum, *x, *d, *c; /* (n) */
    float *left[REPLICAS];                     /* the part that the code left out */
    struct neb_buf code, kept;
    double loss[VARIANTS][MAX_SEEDS], bytes[VARIANTS];
};

/* ---- one seed ------------------------------------------------------------------------------------------ */

static neb_status allocate(struct run *r)
{
    if (r->n) return NEB_OK;
    r->n = r->warm.n;
    float **all[] = {&r->theta, &r->momentum, &r->sum, &r->x, &r->d, &r->c, &r->left[0], &r->left[1]};
    bool ok = true;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ok &= !!(*all[i] = neb__aligned(r->n * sizeof(float)));
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "no memory for %zu values", r->n);
}

/* The synchronous steps: one optimizer, the tokens of both replicas in one batch. */
static neb_status warm_up(struct run *r)
{
    struct neb_job job = r->job;
    struct neb_data data = r->data;
    struct neb_work *w;
    job.train.tokens = REPLICAS * r->opt.tokens;
    data.job = &job;
    NEB_TRY(neb__work_open(&data, 0, 1, NULL, &w));
    neb_status status = neb__warm_make(&r->warm, w);
    if (status == NEB_OK) status = allocate(r);
    neb__work_close(w);
    return status;
}

static neb_status keep_delta(struct run *r, int round)
{
    if (!r->opt.capture || (round != 10 && round != 11) || r->kept.len >= 2 * NEB_CELL * sizeof(float))
        return NEB_OK;
    /* The sample begins a quarter of the way in: after the first rows of the embeddings. It reaches into the
     * first layer. */
    size_t first = r->n / 4 > NEB_CELL ? r->n / 4 : 0;
    if (first + NEB_CELL > r->n) return neb__fail(NEB_ERR_INVALID, "the model is too small for a sample");
    return neb__buf_append(&r->kept, r->d + first, NEB_CELL * sizeof(float));
}

/* theta from the replicas' parameters: delta, code, mean, outer rule. */
static neb_status outer_round(struct run *r, int v, int round, struct neb_work *const w[REPLICAS])
{
    const struct variant *var = &variants[v];
    memset(r->sum, 0, r->n * sizeof(float));
    for (int i = 0; i < REPLICAS; i++) {
        NEB_TRY(neb__work_read_params(w[i], r->x));
        for (size_t j = 0; j < r->n; j++) r->d[j] = r->x[j] - r->theta[j];
        const float *sent = r->d;
        if (var->rung) {
            struct neb_codec_input in = {.z = r->d, .n = r->n};
            neb__buf_clear(&r->code);
            NEB_TRY(neb__codec_encode(neb__rung_by_name(var->rung), &in, r->left[i], NULL, &r->code));
            NEB_TRY(neb__codec_decode(r->code.data, r->code.len, NULL, r->n, r->c));
            sent = r->c;
            r->bytes[v] = (double)r->code.len;
        } else if (i == 0 && v == 0) {
            NEB_TRY(keep_delta(r, round));
        }
        for (size_t j = 0; j < r->n; j++) r->sum[j] += 0.5f * sent[j];
    }
    for (size_t j = 0; j < r->n; j++) {
        float g = r->sum[j], m = r->momentum[j] = var->average ? 0 : 0.9f * r->momentum[j] + g;
        r->theta[j] += var->average ? g : 0.7f * (g + 0.9f * m);
    }
    for (int i = 0; i < REPLICAS; i++) {
        for (size_t j = 0; j < r->n; j++) r->x[j] = r->theta[j] + r->left[i][j];
        NEB_TRY(neb__work_write_params(w[i], r->x));
    }
    return NEB_OK;
}

static neb_status train_variant(struct run *r, int v, struct neb_work *const w[REPLICAS], double *loss)
{
    struct neb_work_eval eval;
    memcpy(r->theta, r->warm.x, r->n * sizeof(float));
    memset(r->momentum, 0, r->n * sizeof(float));
    for (int i = 0; i < REPLICAS; i++) {
        memset(r->left[i], 0, r->n * sizeof(float));
        NEB_TRY(neb__warm_load(&r->warm, w[i]));
    }
    for (int64_t at = 0; at < r->opt.steps; at += r->opt.h) {
        int64_t from = r->opt.warmup + at;
        for (int i = 0; i < REPLICAS; i++)
            NEB_TRY(neb__warm_steps(&r->warm, w[i], from, from + r->opt.h, NULL));
        NEB_TRY(outer_round(r, v, (int)(at / r->opt.h), w));
    }
    for (size_t j = 0; j < r->n; j++) /* at the end of a run the rest is committed exactly */
        r->theta[j] += 0.5f * (r->left[0][j] + r->left[1][j]);
    NEB_TRY(neb__work_write_params(w[0], r->theta));
    NEB_TRY(neb__work_eval(w[0], "valid", 0, &eval));
    *loss = eval.loss;
    return NEB_OK;
}

static bool wanted(const struct run *r, int v)
{
    return strcmp(r->opt.only, variants[v].average ? "dense" : "sparse") != 0;
}

static neb_status one_seed(struct run *r, int seed)
{
    r->job.seed = seed + 1;
    fprintf(stderr, "seed %d\n", seed + 1);
    NEB_TRY(warm_up(r));
    for (int v = 0; v < VARIANTS; v++) {
        if (!wanted(r, v)) continue;
        struct neb_work *w[REPLICAS] = {0};
        neb_status status = NEB_OK;
        for (int i = 0; status == NEB_OK && i < REPLICAS; i++)
            status = neb__work_open(&r->data, i, REPLICAS, NULL, &w[i]);
        if (status == NEB_OK) status = train_variant(r, v, w, &r->loss[v][seed]);
        for (int i = 0; i < REPLICAS; i++) neb__work_close(w[i]);
        NEB_TRY(status);
        fprintf(stderr, "  %-14s held-out loss %.4f (%+.2f %%)\n", variants[v].name, r->loss[v][seed],
                100 * (r->loss[v][seed] / r->loss[variants[v].against][seed] - 1));
    }
    return NEB_OK;
}

/* ---- the result ---------------------------------------------------------------------------------------- */

static void report(const struct run *r, struct neb_figures *f)
{
    int n = (int)r->opt.seeds;
    char name[96];
    for (int v = 0; v < VARIANTS; v++) {
        if (!wanted(r, v)) continue;
        double sum = 0, least = INFINITY, most = -INFINITY, loss = 0;
        for (int s = 0; s < n; s++) {
            double percent = 100 * (r->loss[v][s] / r->loss[variants[v].against][s] - 1);
            double shown = variants[v].percent != 0 ? percent : r->loss[v][s];
            sum += percent / n;
            loss += r->loss[v][s] / n;
            least = fmin(least, shown);
            most = fmax(most, shown);
        }
        snprintf(name, sizeof name, "%s.loss", variants[v].name);
        neb__figures_add(f, name, loss, "nats", NEB_REPORT, 0);
        if (variants[v].percent != 0) {
            snprintf(name, sizeof name, "%s.worse", variants[v].name);
            neb__figures_add(f, name, sum, "%", variants[v].percent > 0 ? NEB_AT_MOST : NEB_REPORT,
                             variants[v].percent);
            snprintf(name, sizeof name, "%s.compression", variants[v].name);
            neb__figures_add(f, name, 4 * (double)r->n / r->bytes[v], "x", NEB_REPORT, 0);
        }
        snprintf(name, sizeof name, "%s.spread", variants[v].name);
        neb__figures_add(f, name, most - least, variants[v].percent != 0 ? "%" : "nats", NEB_REPORT, 0);
    }
}

/* Two deltas as one bf16 code, half a megabyte each: `bench codec` reads this format. */
static neb_status write_capture(struct run *r)
{
    if (!r->kept.len) return NEB_OK;
    struct neb_codec_input in = {.z = (const float *)(const void *)r->kept.data,
                                 .n = r->kept.len / sizeof(float)};
    neb__buf_clear(&r->code);
    NEB_TRY(neb__codec_encode(neb__rung_by_name("bf16"), &in, NULL, NULL, &r->code));
    return neb__file_replace(r->opt.capture, r->code.data, r->code.len, 0644);
}

static neb_status measure(struct run *r)
{
    struct neb_real_text t = {.name = "codec-training",
                              .data = r->opt.data,
                              .out = r->opt.out,
                              .device = r->opt.device,
                              .vocab = 8000,
                              .lines = 60000,
                              .hidden = 256,
                              .layers = 4,
                              .steps = r->opt.warmup + r->opt.steps,
                              .tokens = r->opt.tokens,
                              .max_len = 128,
                              .threads = r->opt.threads,
                              .lr = r->opt.lr,
                              .beta2 = 0.98};
    NEB_TRY(neb__real_text_open(&t, &r->job, &r->data));
    neb__warm_plan(&r->warm, r->opt.warmup, r->opt.steps, r->opt.lr);
    neb_status status = NEB_OK;
    for (int seed = 0; status == NEB_OK && seed < r->opt.seeds; seed++) status = one_seed(r, seed);
    if (status == NEB_OK) status = write_capture(r);
    neb__data_free(&r->data);
    neb__job_free(&r->job);
    return status;
}

static void release(struct run *r)
{
    float *all[] = {r->theta, r->momentum, r->sum, r->x, r->d, r->c, r->left[0], r->left[1]};
    neb__warm_free(&r->warm);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) neb__free(all[i]);
    neb__buf_free(&r->code);
    neb__buf_free(&r->kept);
    neb__opts_free(table, &r->opt);
}

static int run(int argc, char **argv)
{
    struct run r = {0};
    int positional = 0;
    bool json = neb__bench_json(&argc, argv);
    neb__buf_init(&r.code, (size_t)1 << 30);
    neb__buf_init(&r.kept, (size_t)16 << 20);
    if (neb__opts_init(table, &r.opt) != NEB_OK) return 1;
    const char *folder = getenv("NEBULA_DATA");
    if (neb__opts_args(table, &r.opt, argc, argv, &positional) != NEB_OK || positional || r.opt.seeds < 1 ||
        !r.opt.only || r.opt.seeds > MAX_SEEDS || r.opt.h < 1 || r.opt.steps < r.opt.h || r.opt.warmup < 1) {
        neb__opts_help(table, stderr);
        release(&r);
        return 2;
    }
    if (!r.opt.data && folder) neb__opts_set(table, &r.opt, "data", folder);
    if (!r.opt.data) {
        release(&r);
        return neb__real_text_missing();
    }
    struct neb_figures *f = neb__figures_begin("codec-training", json);
    int status = 0;
    if (!f || measure(&r) != NEB_OK)
        status = 1;
    else
        report(&r, f);
    if (f) neb__figures_end(f);
    release(&r);
    return status;
}

const struct neb_bench neb__bench_codec_training = {"codec-training", "the codec's own effect on a training",
                                                    run, table};
