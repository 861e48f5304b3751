/* bench_replica_quality.c: the loss and the bytes of a replica run against synchronous training of the same
 * tokens.
 *
 * Two replicas of an encoder train on real text as two sites do, with local steps. Every H steps each
 * fragment's delta is captured, coded, and some steps later (the time of the line) merged, in the session's
 * own arithmetic (outer/outer.c, outer/site.c). Synchronous training is one optimizer with the batches of
 * both in one. Both begin after the same synchronous warm-up, with the same schedule, and make the same
 * number of steps. At the end the rest is committed exactly, as at the end of a real run. One process and one
 * seed give one loss. A clock only decides whether packing an update is worth its time, so it affects the
 * bytes of dense rungs.
 *
 *     sync.loss            held-out loss of synchronous training, mean of the seeds
 *     sync.lr              its learning rate: the best one of --lr and --sync-lrs
 *     adamw.loss, .lr      the same with AdamW, if --optimizer is another one
 *     SETTING.loss         that of the replicas' common parameters
 *     SETTING.worse        per cent by which it lies above sync.loss, mean of the seeds (at most 2)
 *     loss.worse           the same of the first setting
 *     loss.worse.adamw     per cent by which it lies above adamw.loss
 *     SETTING.spread       largest less smallest of these
 *     SETTING.tokens       its tokens over those of synchronous training (at most 1.02)
 *     SETTING.fewer        bytes of fp32 gradients at every step over those of the updates, for each token
 *                          (at least 1000)
 *
 * A setting is RUNG:H; `--rung NAME` stands for the setting NAME:100. Steps and batches are those of `bench codec-training` (1024 tokens a step and replica,
 * 500 + 1500 steps). The model is small enough for two cores and some minutes a seed. `--full` also takes the
 * model of that benchmark (mlm-mini: 4 layers of 256, vocabulary 8000), for a GPU. The benchmark needs text:
 * NEBULA_DATA or --data names a folder with mono/eltec.LANG.txt.
 *
 * `--job FILE [key=value …]` takes model, text, steps, batches, learning rates and the outer step from a job
 * instead, and with them what `auto` chooses for it; outer step and beta2 are the benchmark's own otherwise. It shows what
 * the job's replica run would learn on a line of a given delay, without the line.
 * `--no-sync` leaves out the synchronous arm. */
#include "bench.h"
#include "real_text.h"
#include "warm_start.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/opts.h"
#include "codec/codec.h"
#include "outer/outer.h"
#include "outer/site.h"
#include "round/record.h"
#include "task/work.h"
#include "train/resume.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    char *data, *out, *device, *settings, *job, *optimizer, *rung, *sync_lrs;
    int64_t steps, warmup, seeds, tokens, hidden, layers, vocab, threads, fragments, delay;
    double lr, beta2, outer_lr, outer_momentum;
    bool full, sync;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, data, NEB_OPT_TEXT, "", "folder", "folder with text (default: NEBULA_DATA)"),
    NEB_OPT(struct options, out, NEB_OPT_TEXT, "out/replica-quality", "folder",
            "folder for tokenizer and tokenised text"),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL, "cpu or cuda"),
    NEB_OPT(struct options, settings, NEB_OPT_TEXT, "int4:100 sparse2.k256:100", NULL,
            "RUNG:H, separated by blanks; may be empty"),
    NEB_OPT(struct options, rung, NEB_OPT_TEXT, "", NULL, "one rung, at H 100, instead of the settings"),
    NEB_OPT(struct options, optimizer, NEB_OPT_TEXT, "adamw", NULL,
            "of the replicas and of synchronous training; another one than adamw is also compared with it",
            NEB_OPT_CHOICE("adamw", "muon")),
    NEB_OPT(
        struct options, sync_lrs, NEB_OPT_TEXT, "", NULL,
        "further learning rates of synchronous training, of which the best one counts; separated by blanks"),
    NEB_OPT(struct options, job, NEB_OPT_TEXT, "", "file", "take everything but the settings from this job"),
    NEB_OPT(struct options, sync, NEB_OPT_BOOL, "yes", NULL, "run the synchronous arm"),
    NEB_OPT(struct options, full, NEB_OPT_BOOL, "no", NULL, "the sizes of bench codec-training"),
    NEB_OPT(struct options, steps, NEB_OPT_INT, "1500", "steps", "steps of each replica"),
    NEB_OPT(struct options, warmup, NEB_OPT_INT, "500", "steps", "synchronous steps before"),
    NEB_OPT(struct options, seeds, NEB_OPT_INT, "3", NULL, "repetitions with other seeds"),
    NEB_OPT(struct options, tokens, NEB_OPT_INT, "1024", "tokens", "tokens of a step and replica"),
    NEB_OPT(struct options, hidden, NEB_OPT_INT, "128", NULL, "width"),
    NEB_OPT(struct options, layers, NEB_OPT_INT, "2", NULL, "layers"),
    NEB_OPT(struct options, vocab, NEB_OPT_INT, "4000", NULL, "pieces"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all"),
    NEB_OPT(struct options, fragments, NEB_OPT_INT, "4", NULL,
            "fragments of the parameters; never more than H"),
    NEB_OPT(struct options, delay, NEB_OPT_INT, "1", "steps", "steps from capture to merge"),
    NEB_OPT(struct options, lr, NEB_OPT_REAL, "1e-3", NULL, "peak learning rate"),
    NEB_OPT(struct options, beta2, NEB_OPT_REAL, "0.999", NULL, "beta2 of AdamW"),
    NEB_OPT(struct options, outer_lr, NEB_OPT_REAL, "0.7", NULL, "learning rate of the outer step"),
    NEB_OPT(struct options, outer_momentum, NEB_OPT_REAL, "0.6", NULL,
            "momentum of the outer step (Nesterov)"),
    NEB_OPT_END,
};

enum {
    REPLICAS = 2,
    SEEDS_MAX = 8,
    SETTINGS_MAX = 8,
    RATES_MAX = 6,
    FRAGMENTS_MAX = 64,
    EVAL = 100 /* batches, unless full */
};
static const double goodput = 100e6 / 8; /* bytes a second of the line on which the lossless stage must pay */

struct setting {
    const struct neb_rung *rung;
    int64_t h;
    double loss[SEEDS_MAX];
    double bytes;   /* sent by both replicas, last seed */
    int64_t tokens; /* of both, all seeds */
};

/* Synchronous training with one optimizer and one learning rate. */
struct arm {
    const char *optimizer;
    double lr;
    double loss[SEEDS_MAX];
};

struct site {
    struct neb_work *work;
    float *d; /* (n) deltas of open updates, then their edits */
    struct neb_buf update;
};

struct run {
    struct options opt;
    struct neb_job job;
    struct neb_data data;
    struct setting setting[SETTINGS_MAX];
    int settings;
    struct arm arm[2 * RATES_MAX]; /* the first one also makes the warm-up of the replicas */
    int arms;
    const struct arm *sync, *adamw; /* the best of the replicas' optimizer, and of AdamW */
    int64_t tokens;                 /* of the first arm, all seeds */
    size_t n;
    struct neb_warm_start warm;
    float *x, *moved, *decoded[REPLICAS]; /* (n) */
    struct site site[REPLICAS];
    struct neb_outer *outer; /* one cell a fragment */
};

static neb_status parse_settings(struct run *r)
{
    char text[400], *rest = text, *word;
    snprintf(text, sizeof text, "%s", r->opt.settings ? r->opt.settings : "");
    if (r->opt.rung) snprintf(text, sizeof text, "%s:100", r->opt.rung);
    while ((word = strsep(&rest, " "))) {
        if (!*word) continue;
        char *colon = strchr(word, ':');
        if (colon) *colon = 0;
        const struct neb_rung *rung = neb__rung_by_name(word);
        long h = colon ? atol(colon + 1) : 0;
        if (!rung || rung->outside_scales || h < 1 || r->settings == SETTINGS_MAX)
            return neb__fail(NEB_ERR_INVALID, "--settings: at most %d of the form RUNG:H, such as sparse2:20",
                             SETTINGS_MAX);
        r->setting[r->settings++] = (struct setting){.rung = rung, .h = h};
    }
    if (r->settings || r->opt.sync) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "--settings is empty and --no-sync is set: there is nothing to run");
}

/* Every learning rate with the replicas' optimizer, and with AdamW. */
static neb_status list_arms(struct run *r)
{
    const char *optimizer[] = {r->job.train.optimizer, "adamw"};
    const bool same = !strcmp(optimizer[0], optimizer[1]);
    for (int i = 0; i < (same || !r->opt.sync ? 1 : 2); i++) {
        char text[200], *rest = text, *word;
        r->arm[r->arms++] = (struct arm){.optimizer = optimizer[i], .lr = r->opt.lr};
        snprintf(text, sizeof text, "%s", r->opt.sync && r->opt.sync_lrs ? r->opt.sync_lrs : "");
        for (int n = 1; (word = strsep(&rest, " "));) {
            if (!*word) continue;
            double lr = strtod(word, NULL);
            if (!(lr > 0) || n++ == RATES_MAX)
                return neb__fail(NEB_ERR_INVALID,
                                 "--sync-lrs: at most %d numbers above 0, such as \"5e-4 2e-3\"",
                                 RATES_MAX - 1);
            r->arm[r->arms++] = (struct arm){.optimizer = optimizer[i], .lr = lr};
        }
    }
    return NEB_OK;
}

static const struct arm *best_arm(const struct run *r, const char *optimizer)
{
    const struct arm *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < r->arms; i++) {
        double sum = 0;
        for (int k = 0; k < r->opt.seeds; k++) sum += r->arm[i].loss[k];
        if (strcmp(r->arm[i].optimizer, optimizer) || !(sum < least)) continue;
        least = sum;
        best = &r->arm[i];
    }
    return best;
}

static int64_t eval_batches(const struct run *r)
{
    return r->opt.full || r->opt.job ? 0 : EVAL;
}

/* ---- synchronous --------------------------------------------------------------------------------------- */

static neb_status allocate(struct run *r)
{
    if (r->n) return NEB_OK;
    r->n = r->warm.n;
    float **all[] = {&r->x, &r->moved, &r->decoded[0], &r->decoded[1], &r->site[0].d, &r->site[1].d};
    bool ok = true;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ok &= !!(*all[i] = neb__aligned(r->n * sizeof(float)));
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "no memory for %zu values", r->n);
}

/* Goes on from the end of the warm-up, or from the beginning. */
static neb_status to_the_end(struct run *r, struct arm *a, int k, const struct neb_warm_start *plan,
                             int64_t from, struct neb_work *w)
{
    struct neb_work_eval eval;
    NEB_TRY(neb__warm_steps(plan, w, from, r->opt.warmup + r->opt.steps, a == r->arm ? &r->tokens : NULL));
    NEB_TRY(neb__work_eval(w, "valid", eval_batches(r), &eval));
    a->loss[k] = eval.loss;
    fprintf(stderr, "seed %d: synchronous, %s, learning rate %g: %.4f\n", (int)r->job.seed, a->optimizer,
            a->lr, eval.loss);
    return NEB_OK;
}

/* The first arm makes the warm-up and keeps its end. It goes on to the end of training if the synchronous arm is
 * wanted. */
static neb_status synchronous(struct run *r, struct arm *a, int k)
{
    struct neb_job job = r->job;
    char optimizer[16];
    struct neb_data data = r->data;
    struct neb_work *w;
    snprintf(optimizer, sizeof optimizer, "%s", a->optimizer);
    job.train.tokens = REPLICAS * r->opt.tokens;
    job.train.optimizer = optimizer;
    data.job = &job;
    NEB_TRY(neb__work_open(&data, 0, 1, NULL, &w));
    struct neb_warm_start other = {.steps = 0, .schedule = r->warm.schedule};
    const float ratio = (float)a->lr / other.schedule.peak;
    other.schedule.peak *= ratio;
    other.schedule.floor *= ratio;
    neb_status status = NEB_OK;
    if (a == r->arm) {
        status = neb__warm_make(&r->warm, w);
        if (status == NEB_OK) status = allocate(r);
        if (status == NEB_OK && r->opt.sync) status = to_the_end(r, a, k, &r->warm, r->opt.warmup, w);
    } else {
        status = to_the_end(r, a, k, &other, 0, w);
    }
    neb__work_close(w);
    return status;
}

/* ---- replicas ------------------------------------------------------------------------------------------ */

/* A site's update of a fragment; x holds its parameters. */
static neb_status capture(struct run *r, struct setting *t, int i, uint32_t f)
{
    size_t first, n = neb__outer_cell(r->outer, f, &first), gain;
    struct site *s = &r->site[i];
    memcpy(s->d + first, r->x + first, n * sizeof(float));
    (void)neb__site_delta(s->d + first, r->outer->theta + first, n);
    struct neb_codec_input in = {.z = s->d + first, .n = n};
    neb__buf_clear(&s->update);
    NEB_TRY(neb__codec_encode(t->rung, &in, NULL, NULL, &s->update));
    NEB_TRY(neb__codec_squeeze(&s->update, 0, goodput, &gain));
    t->bytes += (double)s->update.len + NEB_UPDATE_HEADER_SIZE;
    return neb__codec_decode(s->update.data, s->update.len, NULL, n, r->decoded[i] + first);
}

/* Moves the fragment for everybody. `moved` tells by how much. */
static void outer_step(struct run *r, uint32_t f, bool average)
{
    static const uint32_t weight[REPLICAS] = {1, 1};
    size_t first;
    (void)neb__outer_cell(r->outer, f, &first);
    const float *values[REPLICAS] = {r->decoded[0] + first, r->decoded[1] + first};
    struct neb_outer_step step = {.mode = average ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .eta = (float)r->opt.outer_lr,
                                  .mu = (float)r->opt.outer_momentum,
                                  .updates = REPLICAS,
                                  .weight = weight,
                                  .values = values,
                                  .moved = r->moved + first};
    bool finite;
    neb__outer_apply(r->outer, f, &step, &finite);
}

static void merge(struct run *r, int i, uint32_t f)
{
    size_t first, n = neb__outer_cell(r->outer, f, &first);
    struct site *s = &r->site[i];
    neb__site_take(s->d + first, r->moved + first, r->decoded[i] + first, n);
    for (size_t k = first; k < first + n; k++) r->x[k] += s->d[k];
}

/* At the end of a run the rest is committed exactly. */
static neb_status flush(struct run *r)
{
    for (uint32_t f = 0; f < r->outer->cells; f++) {
        size_t first, n = neb__outer_cell(r->outer, f, &first);
        for (int i = 0; i < REPLICAS; i++) {
            struct site *s = &r->site[i];
            NEB_TRY(neb__work_read_params(s->work, r->x));
            for (size_t k = first; k < first + n; k++) r->decoded[i][k] = r->x[k] - r->outer->theta[k];
        }
        outer_step(r, f, true);
    }
    return NEB_OK;
}

/* Fragment f is captured at steps that are f * H / fragments above a multiple of H, and merged `delay`
 * later. */
static neb_status exchange(struct run *r, struct setting *t, int64_t at)
{
    int64_t delay = r->opt.delay < t->h ? r->opt.delay : t->h - 1;
    uint64_t captures = 0, merges = 0;
    for (uint32_t f = 0; f < r->outer->cells; f++) {
        int64_t since = at - (int64_t)f * t->h / r->outer->cells - t->h; /* its first capture */
        if (since >= 0 && since % t->h == 0) captures |= (uint64_t)1 << f;
        if (since >= delay && (since - delay) % t->h == 0) merges |= (uint64_t)1 << f;
    }
    if (!captures && !merges) return NEB_OK;
    for (uint32_t f = 0; f < r->outer->cells; f++)
        if (merges >> f & 1) outer_step(r, f, false);
    for (int i = 0; i < REPLICAS; i++) {
        NEB_TRY(neb__work_read_params(r->site[i].work, r->x));
        for (uint32_t f = 0; f < r->outer->cells; f++) {
            if (merges >> f & 1) merge(r, i, f);
            if (captures >> f & 1) NEB_TRY(capture(r, t, i, f));
        }
        if (merges) NEB_TRY(neb__work_write_params(r->site[i].work, r->x));
    }
    return NEB_OK;
}

static neb_status train(struct run *r, struct setting *t)
{
    for (int64_t at = 1; at <= r->opt.steps; at++) {
        for (int i = 0; i < REPLICAS; i++)
            NEB_TRY(neb__warm_steps(&r->warm, r->site[i].work, r->opt.warmup + at - 1, r->opt.warmup + at,
                                    &t->tokens));
        NEB_TRY(exchange(r, t, at));
    }
    return NEB_OK;
}

static neb_status begin(struct run *r, struct setting *t, uint32_t fragments)
{
    t->bytes = 0;
    NEB_TRY(neb__outer_create((uint32_t)((r->n + fragments - 1) / fragments), r->warm.x, r->n, &r->outer));
    for (int i = 0; i < REPLICAS; i++) {
        struct site *s = &r->site[i];
        NEB_TRY(neb__work_open(&r->data, i, REPLICAS, NULL, &s->work));
        NEB_TRY(neb__warm_load(&r->warm, s->work));
    }
    return NEB_OK;
}

static neb_status replicas(struct run *r, struct setting *t, double *loss)
{
    uint32_t fragments = (uint32_t)(r->opt.fragments < t->h ? r->opt.fragments : t->h);
    struct neb_work_eval eval;
    neb_status status = begin(r, t, fragments);
    if (status == NEB_OK) status = train(r, t);
    if (status == NEB_OK) status = flush(r);
    if (status == NEB_OK) status = neb__work_write_params(r->site[0].work, r->outer->theta);
    if (status == NEB_OK) status = neb__work_eval(r->site[0].work, "valid", eval_batches(r), &eval);
    if (status == NEB_OK) *loss = eval.loss;
    for (int i = 0; i < REPLICAS; i++) {
        neb__work_close(r->site[i].work);
        r->site[i].work = NULL;
    }
    neb__outer_destroy(r->outer);
    r->outer = NULL;
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* The job over novels, of the size asked for. */
static neb_status open_text(struct run *r)
{
    struct options *o = &r->opt;
    if (o->full)
        o->hidden = 256, o->layers = 4, o->vocab = 8000, o->tokens = 1024, o->warmup = 500, o->steps = 1500;
    struct neb_real_text t = {.name = "replica-quality",
                              .data = o->data,
                              .out = o->out,
                              .device = o->device,
                              .optimizer = o->optimizer,
                              .vocab = (int)o->vocab,
                              .lines = o->full ? 60000 : 6000,
                              .hidden = (int)o->hidden,
                              .layers = (int)o->layers,
                              .steps = o->warmup + o->steps,
                              .tokens = o->tokens,
                              .max_len = 128,
                              .threads = o->threads,
                              .lr = o->lr,
                              .beta2 = o->beta2};
    NEB_TRY(neb__real_text_open(&t, &r->job, &r->data));
    neb__warm_plan(&r->warm, o->warmup, o->steps, o->lr);
    return NEB_OK;
}

/* The user's own job. Its first --warmup steps are synchronous. */
static neb_status open_job(struct run *r, char *const *words, int n)
{
    struct options *o = &r->opt;
    NEB_TRY(neb__job_read(o->job, words, n, &r->job));
    struct neb_job *j = &r->job;
    neb_status status = neb__train_schedule(j, &r->warm.schedule);
    if (status == NEB_OK && o->warmup >= j->train.steps)
        status = neb__fail(NEB_ERR_INVALID, "--warmup %d leaves no steps of the job's %d", (int)o->warmup,
                           (int)j->train.steps);
    if (status == NEB_OK && (j->wan.fragments < 1 || j->wan.fragments > FRAGMENTS_MAX))
        status = neb__fail(NEB_ERR_INVALID, "the job has %d fragments; this benchmark takes 1 to %d",
                           (int)j->wan.fragments, FRAGMENTS_MAX);
    if (status == NEB_OK) status = neb__data_prepare(j, &r->data);
    if (status != NEB_OK) {
        neb__job_free(j);
        return status;
    }
    r->warm.steps = o->warmup;
    o->steps = j->train.steps - o->warmup;
    o->tokens = j->train.tokens;
    o->fragments = j->wan.fragments;
    o->lr = j->train.lr;
    o->outer_lr = j->wan.outer_lr;
    o->outer_momentum = j->wan.outer_momentum;
    return NEB_OK;
}

static neb_status measure(struct run *r, char *const *words, int n)
{
    struct options *o = &r->opt;
    NEB_TRY(parse_settings(r));
    NEB_TRY(o->job ? open_job(r, words, n) : open_text(r));
    int64_t first = r->job.seed;
    neb_status status = NEB_OK;
    status = list_arms(r);
    for (int k = 0; k < o->seeds && status == NEB_OK; k++) {
        r->job.seed = o->job ? first + k : k + 1;
        for (int i = 0; i < r->arms && status == NEB_OK; i++) status = synchronous(r, &r->arm[i], k);
        for (int i = 0; i < r->settings && status == NEB_OK; i++) {
            struct setting *x = &r->setting[i];
            status = replicas(r, x, &x->loss[k]);
            if (status != NEB_OK) break;
            fprintf(stderr, "  %s at H %d: %.4f", x->rung->name, (int)x->h, x->loss[k]);
            if (o->sync) fprintf(stderr, " (%+.2f %%)", 100 * (x->loss[k] / r->arm[0].loss[k] - 1));
            fputc('\n', stderr);
        }
    }
    r->sync = best_arm(r, r->arm[0].optimizer);
    r->adamw = best_arm(r, "adamw");
    neb__data_free(&r->data);
    neb__job_free(&r->job);
    return status;
}

/* Mean over the seeds, in per cent. */
static double above(const struct run *r, const struct setting *t, const struct arm *a)
{
    double sum = 0;
    for (int k = 0; k < r->opt.seeds; k++) sum += 100 * (t->loss[k] / a->loss[k] - 1);
    return sum / (double)r->opt.seeds;
}

static void report_arm(const struct run *r, const struct arm *a, const char *name, struct neb_figures *f)
{
    char full[96];
    double loss = 0;
    for (int k = 0; k < r->opt.seeds; k++) loss += a->loss[k] / (double)r->opt.seeds;
    snprintf(full, sizeof full, "%s.loss", name);
    neb__figures_add(f, full, loss, "nats", NEB_REPORT, 0);
    snprintf(full, sizeof full, "%s.lr", name);
    neb__figures_add(f, full, a->lr, "", NEB_REPORT, 0);
}

static void report(const struct run *r, struct neb_figures *f)
{
    int n = (int)r->opt.seeds;
    char name[96];
    if (r->opt.sync) report_arm(r, r->sync, "sync", f);
    if (r->opt.sync && r->adamw && r->adamw != r->sync) report_arm(r, r->adamw, "adamw", f);
    for (int i = 0; i < r->settings; i++) {
        const struct setting *t = &r->setting[i];
        double loss = 0, mean = 0, least = INFINITY, most = -INFINITY;
        for (int k = 0; k < n; k++) {
            loss += t->loss[k] / n;
            double worse = 100 * (t->loss[k] / r->sync->loss[k] - 1);
            mean += worse / n;
            least = fmin(least, worse);
            most = fmax(most, worse);
        }
        double gradients = 4.0 * (double)r->n * REPLICAS * (double)r->opt.steps;
        snprintf(name, sizeof name, "%s.h%d.loss", t->rung->name, (int)t->h);
        neb__figures_add(f, name, loss, "nats", NEB_REPORT, 0);
        if (r->opt.sync) {
            snprintf(name, sizeof name, "%s.h%d.worse", t->rung->name, (int)t->h);
            neb__figures_add(f, name, mean, "%", NEB_AT_MOST, 2);
            snprintf(name, sizeof name, "%s.h%d.spread", t->rung->name, (int)t->h);
            neb__figures_add(f, name, most - least, "%", NEB_REPORT, 0);
            snprintf(name, sizeof name, "%s.h%d.tokens", t->rung->name, (int)t->h);
            neb__figures_add(f, name, (double)t->tokens / (double)r->tokens, "times", NEB_AT_MOST, 1.02);
        }
        snprintf(name, sizeof name, "%s.h%d.fewer", t->rung->name, (int)t->h);
        neb__figures_add(f, name, gradients / t->bytes, "times", NEB_AT_LEAST, 1000);
    }
    if (!r->opt.sync || !r->settings) return;
    neb__figures_add(f, "loss.worse", above(r, r->setting, r->sync), "%", NEB_REPORT, 0);
    if (r->adamw) neb__figures_add(f, "loss.worse.adamw", above(r, r->setting, r->adamw), "%", NEB_REPORT, 0);
}

static void release(struct run *r)
{
    float *all[] = {r->x, r->moved, r->decoded[0], r->decoded[1], r->site[0].d, r->site[1].d};
    neb__warm_free(&r->warm);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) neb__free(all[i]);
    for (int i = 0; i < REPLICAS; i++) neb__buf_free(&r->site[i].update);
    neb__opts_free(table, &r->opt);
}

static int run(int argc, char **argv)
{
    struct run r = {0};
    int positional = 0, status = 0;
    bool json = neb__bench_json(&argc, argv);
    for (int i = 0; i < REPLICAS; i++) neb__buf_init(&r.site[i].update, (size_t)1 << 30);
    if (neb__opts_init(table, &r.opt) != NEB_OK) return 1;
    const char *folder = getenv("NEBULA_DATA");
    const struct options *o = &r.opt;
    if (neb__opts_args(table, &r.opt, argc, argv, &positional) != NEB_OK || (positional && !o->job) ||
        o->seeds < 1 || o->seeds > SEEDS_MAX || o->steps < 1 || o->warmup < !o->job || o->fragments < 1 ||
        o->fragments > FRAGMENTS_MAX || o->delay < 1) {
        neb__opts_help(table, stderr);
        release(&r);
        return 2;
    }
    if (!r.opt.data && folder) neb__opts_set(table, &r.opt, "data", folder);
    if (!r.opt.data && !r.opt.job) {
        release(&r);
        return neb__real_text_missing();
    }
    struct neb_figures *f = neb__figures_begin("replica-quality", json);
    if (!f || measure(&r, argv, positional) != NEB_OK)
        status = 1;
    else
        report(&r, f);
    if (f) neb__figures_end(f);
    release(&r);
    return status;
}

const struct neb_bench neb__bench_replica_quality = {
    "replica-quality", "loss and bytes of two replicas against synchronous training", run, table};
