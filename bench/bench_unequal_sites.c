/* bench_unequal_sites.c: what sites learn together whose speeds, batches and languages differ.
 *
 * Every site trains one model on the text of its own language. Time is counted in steps of the fastest site, so no clock takes
 * part: a site of half that speed makes a step every other time. Every arm has the same time, codes updates and makes the
 * session's own outer step (outer/outer.c, outer/site.c), with one fragment, merged some time after its capture. One site
 * that draws the languages in the shares of their tokens has the batches of all sites in one, as often as the fastest steps.
 *
 *     wait    every site makes H steps, then waits for the slowest: rounds as data-parallel training has them
 *     all     nobody waits, a record closes when every site has made H steps: the slowest one paces the rounds
 *     alone   every update is a record by itself, when its site has made H steps
 *     pace    H of a site is in proportion to its speed, so that all updates of a record come at one time; the outer step takes
 *             their mean, weighted by the tokens of a step
 *     work    the same, and the outer step takes the mean of a step of each, weighted by all tokens, times the most steps
 *
 *     one.loss          mean over the languages of the held-out loss, of one site; the best of --lr and --one-lrs
 *     ARM.loss          the same of the sites' common parameters, mean of the seeds
 *     ARM.worse         per cent above one.loss
 *     ARM.than_wait     per cent below wait.loss, if there is that arm
 *
 * It needs text: NEBULA_DATA or --data names a folder with mono/eltec.LANG.txt. */
#include "bench.h"
#include "real_text.h"
#include "base/buf.h"
#include "base/clamp.h"
#include "base/mem.h"
#include "base/opts.h"
#include "codec/codec.h"
#include "outer/outer.h"
#include "outer/site.h"
#include "task/work.h"
#include "train/resume.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SITES_MAX = 6, SEEDS_MAX = 8, ARMS_MAX = 5, RATES_MAX = 6 };

struct options {
    char *data, *out, *device, *speeds, *batches, *arms, *optimizer, *rung, *one_lrs, *schedule;
    int64_t steps, seeds, seed, tokens, hidden, layers, vocab, threads, interval, delay;
    double lr, beta2, outer_lr, outer_momentum;
    bool languages, one;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, data, NEB_OPT_TEXT, "", "folder", "folder with text (default: NEBULA_DATA)"),
    NEB_OPT(struct options, out, NEB_OPT_TEXT, "out/unequal-sites", "folder", "for tokenizer and text"),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL, "cpu or cuda"),
    NEB_OPT(struct options, speeds, NEB_OPT_TEXT, "1 2 5 10", NULL, "of the sites, one number each"),
    NEB_OPT(struct options, batches, NEB_OPT_TEXT, "", NULL, "of the sites, as multiples of tokens (1)"),
    NEB_OPT(struct options, arms, NEB_OPT_TEXT, "wait all alone pace work", NULL,
            "which, separated by blanks"),
    NEB_OPT(struct options, languages, NEB_OPT_BOOL, "yes", NULL, "one language a site; no: all at each"),
    NEB_OPT(struct options, one, NEB_OPT_BOOL, "yes", NULL, "also train the one site"),
    NEB_OPT(struct options, schedule, NEB_OPT_TEXT, "run", NULL,
            "of the learning rate: by the time of the run, or by a site's own steps",
            NEB_OPT_CHOICE("run", "own")),
    NEB_OPT(struct options, optimizer, NEB_OPT_TEXT, "adamw", NULL, "of all arms",
            NEB_OPT_CHOICE("adamw", "muon")),
    NEB_OPT(struct options, rung, NEB_OPT_TEXT, "int4", NULL, "of the updates"),
    NEB_OPT(struct options, steps, NEB_OPT_INT, "2000", "steps", "of the fastest site",
            NEB_OPT_RANGE(10, 1e9)),
    NEB_OPT(struct options, interval, NEB_OPT_INT, "100", "steps", "of the fastest site",
            NEB_OPT_RANGE(2, 1e6)),
    NEB_OPT(struct options, delay, NEB_OPT_INT, "5", "steps", "of the fastest site from capture to merge",
            NEB_OPT_RANGE(1, 1e6)),
    NEB_OPT(struct options, seeds, NEB_OPT_INT, "3", NULL, "repetitions with other seeds",
            NEB_OPT_RANGE(1, SEEDS_MAX)),
    NEB_OPT(struct options, seed, NEB_OPT_INT, "1", NULL, "the first of them"),
    NEB_OPT(struct options, tokens, NEB_OPT_INT, "512", "tokens", "of a site's step",
            NEB_OPT_RANGE(64, 1 << 20)),
    NEB_OPT(struct options, hidden, NEB_OPT_INT, "64", NULL, "width"),
    NEB_OPT(struct options, layers, NEB_OPT_INT, "2", NULL, "layers"),
    NEB_OPT(struct options, vocab, NEB_OPT_INT, "2000", NULL, "pieces"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "1", NULL, "CPU threads; 0: all"),
    NEB_OPT(struct options, lr, NEB_OPT_REAL, "2e-3", NULL, "peak learning rate"),
    NEB_OPT(struct options, one_lrs, NEB_OPT_TEXT, "", NULL,
            "further learning rates of the one site, separated by blanks"),
    NEB_OPT(struct options, beta2, NEB_OPT_REAL, "0.99", NULL, "beta2 of AdamW"),
    NEB_OPT(struct options, outer_lr, NEB_OPT_REAL, "0.7", NULL, "learning rate of the outer step"),
    NEB_OPT(struct options, outer_momentum, NEB_OPT_REAL, "0.6", NULL,
            "momentum of the outer step (Nesterov)"),
    NEB_OPT_END,
};

enum how { WAIT, ALL, ALONE, PACE, WORK, ONE };
static const char *const names[] = {"wait", "all", "alone", "pace", "work"};

struct site {
    struct neb_job job;
    struct neb_data data;
    struct neb_work *work;
    double speed, batch, ahead; /* ahead: of its next step */
    int64_t interval, made, since, took, base, tokens;
    int64_t ready; /* time of its open update; 0: none is open */
    float *d;      /* (n) of the open update, then the edit */
    float *decoded;
};

struct run {
    struct options opt;
    struct neb_job job;
    struct neb_data data;
    const struct neb_rung *rung;
    struct neb_schedule schedule;
    struct site site[SITES_MAX];
    int sites;
    enum how arm[ARMS_MAX];
    int arms;
    double lr[RATES_MAX], one[RATES_MAX][SEEDS_MAX], loss[ARMS_MAX][SEEDS_MAX];
    int rates;
    size_t n;
    float *x, *moved, *first; /* (n); first: the initial values */
    struct neb_outer *outer;
    struct neb_buf code;
};

/* ---- options ------------------------------------------------------------------------------------------- */

static int numbers(const char *text, double *out, int most)
{
    char copy[200], *rest = copy, *word;
    int n = 0;
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    while ((word = strsep(&rest, " "))) {
        if (!*word) continue;
        if (n == most || !((out[n++] = strtod(word, NULL)) > 0)) return -1;
    }
    return n;
}

static neb_status parse(struct run *r)
{
    char copy[100], *rest = copy, *word;
    double speed[SITES_MAX], batch[SITES_MAX];
    r->sites = numbers(r->opt.speeds, speed, SITES_MAX);
    int batches = numbers(r->opt.batches, batch, SITES_MAX);
    if (r->sites < 2 || (batches && batches != r->sites))
        return neb__fail(NEB_ERR_INVALID, "--speeds, --batches: 2 to %d numbers above 0, as many of each",
                         SITES_MAX);
    for (int i = 0; i < r->sites; i++) {
        r->site[i].speed = speed[i];
        r->site[i].batch = batches ? batch[i] : 1;
    }
    r->rung = neb__rung_by_name(r->opt.rung ? r->opt.rung : "");
    if (!r->rung || r->rung->outside_scales)
        return neb__fail(NEB_ERR_INVALID, "--rung: no rung has that name");
    snprintf(copy, sizeof copy, "%s", r->opt.arms ? r->opt.arms : "");
    while ((word = strsep(&rest, " "))) {
        int a = 0;
        while (a < ARMS_MAX && strcmp(word, names[a])) a++;
        if (*word && (a == ARMS_MAX || r->arms == ARMS_MAX))
            return neb__fail(NEB_ERR_INVALID, "--arms: there is no '%.20s'", word);
        if (*word) r->arm[r->arms++] = (enum how)a;
    }
    r->lr[0] = r->opt.lr;
    int more = numbers(r->opt.one_lrs, r->lr + 1, RATES_MAX - 1);
    r->rates = r->opt.one ? 1 + more : 0;
    return more >= 0 ? NEB_OK : neb__fail(NEB_ERR_INVALID, "--one-lrs: at most %d numbers", RATES_MAX - 1);
}

static double fastest(const struct run *r)
{
    double most = 0;
    for (int i = 0; i < r->sites; i++) most = fmax(most, r->site[i].speed);
    return most;
}

static double slowest(const struct run *r)
{
    double least = INFINITY;
    for (int i = 0; i < r->sites; i++) least = fmin(least, r->site[i].speed);
    return least;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static neb_status open_text(struct run *r)
{
    const struct options *o = &r->opt;
    struct neb_real_text t = {.name = "unequal-sites",
                              .data = o->data,
                              .out = o->out,
                              .device = o->device,
                              .optimizer = o->optimizer,
                              .vocab = (int)o->vocab,
                              .lines = 6000,
                              .languages = r->sites,
                              .hidden = (int)o->hidden,
                              .layers = (int)o->layers,
                              .steps = o->steps,
                              .tokens = o->tokens,
                              .max_len = 64,
                              .threads = o->threads,
                              .lr = o->lr,
                              .beta2 = o->beta2};
    return neb__real_text_open(&t, &r->job, &r->data);
}

/* A copy of the job that draws language i alone; i < 0: every language by its sites' tokens. The corpora of the job stand in
 * the order of the sites, each followed by its held-out text. */
static void draw(const struct run *r, int i, double batch, struct site *s)
{
    static const double never = 1e-9;
    s->job = r->job;
    s->data = r->data;
    s->data.job = &s->job;
    s->job.train.tokens = (int64_t)llround(batch * (double)r->opt.tokens);
    s->job.train.temperature = 1000; /* the weights alone count */
    for (int k = 0; k < r->sites; k++) {
        const struct site *of = &r->site[k];
        double share = of->speed * of->batch;
        if (i >= 0 && r->opt.languages) share = k == i ? 1 : never;
        s->job.data[2 * k].weight = share;
    }
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

static neb_status capture(struct run *r, struct site *s, int64_t now)
{
    struct neb_codec_input in = {.z = s->d, .n = r->n};
    NEB_TRY(neb__work_read_params(s->work, s->d));
    (void)neb__site_delta(s->d, r->outer->theta, r->n);
    neb__buf_clear(&r->code);
    NEB_TRY(neb__codec_encode(r->rung, &in, NULL, NULL, &r->code));
    s->ready = now + r->opt.delay;
    s->since = s->made;
    s->took = s->made - s->base;
    return neb__codec_decode(r->code.data, r->code.len, NULL, r->n, s->decoded);
}

/* The mean of a step of each, weighted by the tokens of all its steps, times the most steps: the sum of the updates times
 * most / (all tokens) for each token of a step. The updates of a record are scaled so that their weighted mean is that. */
static float stretch(const struct run *r, enum how how, const bool *named)
{
    double batches = 0, tokens = 0, most = 0;
    if (how != WORK) return 1;
    for (int i = 0; i < r->sites; i++) {
        const struct site *s = &r->site[i];
        if (!named[i]) continue;
        batches += s->batch;
        tokens += s->batch * (double)s->took;
        most = fmax(most, (double)s->took);
    }
    return tokens > 0 ? (float)(most * batches / tokens) : 1;
}

/* Makes the outer step of one record and merges it everywhere. */
static neb_status commit(struct run *r, enum how how, const bool *named, bool last)
{
    uint32_t weight[SITES_MAX], n = 0;
    const float *values[SITES_MAX];
    const float by = stretch(r, how, named);
    bool finite;
    for (int i = 0; i < r->sites; i++) {
        if (!named[i]) continue;
        weight[n] = (uint32_t)fmax(1, 1000 * r->site[i].batch);
        values[n++] = r->site[i].decoded;
    }
    struct neb_outer_step step = {.mode = last ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .eta = (float)r->opt.outer_lr * by,
                                  .mu = (float)r->opt.outer_momentum,
                                  .updates = n,
                                  .weight = weight,
                                  .values = values,
                                  .moved = r->moved};
    neb__outer_apply(r->outer, 0, &step, &finite);
    for (int i = 0; i < r->sites; i++) {
        struct site *s = &r->site[i];
        NEB_TRY(neb__work_read_params(s->work, r->x));
        for (size_t k = 0; k < r->n; k++) r->x[k] += r->moved[k] - (named[i] ? s->decoded[k] : 0);
        NEB_TRY(neb__work_write_params(s->work, r->x));
        if (!named[i]) continue;
        s->base = s->since;
        s->ready = 0;
    }
    return NEB_OK;
}

/* Closes what may be closed at this time. */
static neb_status close_rounds(struct run *r, enum how how, int64_t now)
{
    bool all = true;
    for (int i = 0; i < r->sites; i++) {
        const struct site *s = &r->site[i];
        bool named[SITES_MAX] = {false}, there = s->ready && now >= s->ready;
        all &= there;
        named[i] = true;
        if (how == ALONE && there) NEB_TRY(commit(r, how, named, false));
    }
    bool everybody[SITES_MAX];
    for (int i = 0; i < r->sites; i++) everybody[i] = true;
    return all && how != ALONE ? commit(r, how, everybody, false) : NEB_OK;
}

static neb_status step_site(struct run *r, struct site *s, double part)
{
    struct neb_work_step info;
    int64_t at = (int64_t)(part * (double)r->opt.steps);
    if (!strcmp(r->opt.schedule, "own")) at = s->made;
    s->made++;
    NEB_TRY(neb__work_step(s->work, neb_schedule_lr(&r->schedule, at), &info));
    s->tokens += info.tokens;
    return NEB_OK;
}

/* A site that waits for a round makes no step. */
static bool waits(enum how how, const struct site *s)
{
    return how == WAIT && s->ready;
}

static neb_status one_moment(struct run *r, enum how how, int64_t now)
{
    const double most = fastest(r);
    for (int i = 0; i < r->sites; i++) {
        struct site *s = &r->site[i];
        s->ahead += s->speed / most;
        if (s->ahead < 1 - 1e-9) continue;
        s->ahead -= 1;
        if (!waits(how, s)) NEB_TRY(step_site(r, s, (double)now / (double)r->opt.steps));
        if (!s->ready && s->made - s->since >= s->interval) NEB_TRY(capture(r, s, now));
    }
    return close_rounds(r, how, now);
}

/* ---- arms ---------------------------------------------------------------------------------------------- */

static neb_status loss_of(struct neb_work *w, double *out)
{
    struct neb_work_eval e;
    NEB_TRY(neb__work_eval(w, "valid", 0, &e));
    double sum = 0;
    for (int i = 0; i < e.languages; i++) sum += e.language[i].loss;
    *out = e.languages ? sum / e.languages : e.loss;
    return NEB_OK;
}

static neb_status make_room(struct run *r, struct neb_work *w)
{
    bool ok = true;
    if (r->n) return NEB_OK;
    r->n = (size_t)neb__resume_values(w);
    float **all[3 + 2 * SITES_MAX] = {&r->x, &r->moved, &r->first};
    int n = 3;
    for (int i = 0; i < r->sites; i++) all[n++] = &r->site[i].d, all[n++] = &r->site[i].decoded;
    for (int i = 0; i < n; i++) ok &= !!(*all[i] = neb__aligned(r->n * sizeof(float)));
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "no memory for %zu values", r->n);
}

static neb_status one_site(struct run *r, double lr, double *loss)
{
    struct site s = {0};
    struct neb_schedule plan = r->schedule;
    struct neb_work_step info;
    double batch = 0;
    for (int i = 0; i < r->sites; i++) batch += r->site[i].batch * r->site[i].speed / fastest(r);
    plan.peak = (float)lr;
    plan.floor = (float)(0.1 * lr);
    draw(r, -1, batch, &s);
    NEB_TRY(neb__work_open(&s.data, 0, 1, NULL, &s.work));
    neb_status status = NEB_OK;
    for (int64_t k = 0; k < r->opt.steps && status == NEB_OK; k++)
        status = neb__work_step(s.work, neb_schedule_lr(&plan, k), &info);
    if (status == NEB_OK) status = loss_of(s.work, loss);
    neb__work_close(s.work);
    return status;
}

static neb_status open_sites(struct run *r, enum how how)
{
    for (int i = 0; i < r->sites; i++) {
        struct site *s = &r->site[i];
        int64_t part = r->opt.languages ? 0 : i, parts = r->opt.languages ? 1 : r->sites;
        double pace = how == PACE || how == WORK ? s->speed / fastest(r) : 1;
        draw(r, i, s->batch, s);
        s->interval = (int64_t)neb__clamp(round(pace * (double)r->opt.interval), 1, 1e9);
        s->made = s->since = s->took = s->base = s->ready = s->tokens = 0;
        s->ahead = 0;
        NEB_TRY(neb__work_open(&s->data, part, parts, NULL, &s->work));
        NEB_TRY(make_room(r, s->work));
        if (!i) NEB_TRY(neb__work_read_params(s->work, r->first));
        NEB_TRY(neb__work_write_params(s->work, r->first));
    }
    return neb__outer_create((uint32_t)r->n, r->first, r->n, &r->outer);
}

/* At the end of a run the rest is committed. */
static neb_status finish(struct run *r, enum how how)
{
    bool named[SITES_MAX];
    for (int i = 0; i < r->sites; i++) {
        struct site *s = &r->site[i];
        NEB_TRY(capture(r, s, r->opt.steps));
        named[i] = true;
    }
    return commit(r, how, named, true);
}

static neb_status train(struct run *r, enum how how, double *loss)
{
    neb_status status = open_sites(r, how);
    for (int64_t now = 1; now <= r->opt.steps && status == NEB_OK; now++) status = one_moment(r, how, now);
    if (status == NEB_OK) status = finish(r, how);
    if (status == NEB_OK) status = neb__work_write_params(r->site[0].work, r->outer->theta);
    if (status == NEB_OK) status = loss_of(r->site[0].work, loss);
    for (int i = 0; i < r->sites; i++) {
        neb__work_close(r->site[i].work);
        r->site[i].work = NULL;
    }
    neb__outer_destroy(r->outer);
    r->outer = NULL;
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static neb_status one_seed(struct run *r, int k)
{
    const int seed = (int)r->opt.seed + k;
    r->job.seed = seed;
    for (int i = 0; i < r->rates; i++) {
        NEB_TRY(one_site(r, r->lr[i], &r->one[i][k]));
        fprintf(stderr, "seed %d: one site, learning rate %g: %.4f\n", seed, r->lr[i], r->one[i][k]);
    }
    for (int i = 0; i < r->arms; i++) {
        NEB_TRY(train(r, r->arm[i], &r->loss[i][k]));
        fprintf(stderr, "seed %d: %s: %.4f; tokens", seed, names[r->arm[i]], r->loss[i][k]);
        for (int j = 0; j < r->sites; j++) fprintf(stderr, " %lld", (long long)r->site[j].tokens);
        fprintf(stderr, "\n");
    }
    return NEB_OK;
}

static neb_status measure(struct run *r)
{
    const struct options *o = &r->opt;
    NEB_TRY(parse(r));
    NEB_TRY(open_text(r));
    r->schedule = (struct neb_schedule){.kind = NEB_COSINE,
                                        .peak = (float)o->lr,
                                        .floor = (float)(0.1 * o->lr),
                                        .warmup = o->steps / 10,
                                        .total = o->steps};
    neb_status status = NEB_OK;
    for (int k = 0; k < o->seeds && status == NEB_OK; k++) status = one_seed(r, k);
    neb__data_free(&r->data);
    neb__job_free(&r->job);
    return status;
}

static double mean(const struct run *r, const double *of)
{
    double sum = 0;
    for (int k = 0; k < r->opt.seeds; k++) sum += of[k];
    return sum / (double)r->opt.seeds;
}

static void report(const struct run *r, struct neb_figures *f)
{
    char name[64];
    double one = INFINITY, wait = 0;
    for (int i = 0; i < r->rates; i++) one = fmin(one, mean(r, r->one[i]));
    for (int i = 0; i < r->arms; i++)
        if (r->arm[i] == WAIT) wait = mean(r, r->loss[i]);
    if (r->rates) neb__figures_add(f, "one.loss", one, "nats", NEB_REPORT, 0);
    neb__figures_add(f, "speed.ratio", fastest(r) / slowest(r), "times", NEB_REPORT, 0);
    for (int i = 0; i < r->arms; i++) {
        const char *arm = names[r->arm[i]];
        const double loss = mean(r, r->loss[i]);
        snprintf(name, sizeof name, "%s.loss", arm);
        neb__figures_add(f, name, loss, "nats", NEB_REPORT, 0);
        snprintf(name, sizeof name, "%s.worse", arm);
        if (r->rates) neb__figures_add(f, name, 100 * (loss / one - 1), "%", NEB_REPORT, 0);
        snprintf(name, sizeof name, "%s.than_wait", arm);
        if (wait > 0 && r->arm[i] != WAIT)
            neb__figures_add(f, name, 100 * (1 - loss / wait), "%", NEB_REPORT, 0);
    }
}

static void release(struct run *r)
{
    neb__free(r->x);
    neb__free(r->moved);
    neb__free(r->first);
    for (int i = 0; i < SITES_MAX; i++) {
        neb__free(r->site[i].d);
        neb__free(r->site[i].decoded);
    }
    neb__buf_free(&r->code);
    neb__opts_free(table, &r->opt);
}

static int run(int argc, char **argv)
{
    struct run r = {0};
    int positional = 0, status = 0;
    bool json = neb__bench_json(&argc, argv);
    const char *folder = getenv("NEBULA_DATA");
    neb__buf_init(&r.code, (size_t)1 << 30);
    if (neb__opts_init(table, &r.opt) != NEB_OK) return 1;
    if (neb__opts_args(table, &r.opt, argc, argv, &positional) != NEB_OK || positional) {
        neb__opts_help(table, stderr);
        release(&r);
        return 2;
    }
    if (!r.opt.data && folder) neb__opts_set(table, &r.opt, "data", folder);
    if (!r.opt.data) {
        release(&r);
        return neb__real_text_missing();
    }
    struct neb_figures *f = neb__figures_begin("unequal-sites", json);
    if (!f || measure(&r) != NEB_OK)
        status = 1;
    else
        report(&r, f);
    if (f) neb__figures_end(f);
    release(&r);
    return status;
}

const struct neb_bench neb__bench_unequal_sites = {
    "unequal-sites", "what sites of unequal speed and language learn together", run, table};
