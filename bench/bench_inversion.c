/* bench_inversion.c: an attack on updates. A site makes one step on a few lines of text and sends the update in 8 bits;
 * the attacker names the tokens that stood in those lines.
 *
 * The rows of a tied token table give the text away. The gradient of a token's output row is a sum of hidden states, weighted
 * by the token's probability, and for a token that was a target the states at its places come with the opposite sign. So
 * most rows of the update point one way, the mean of all rows, and those of the tokens in the text point elsewhere. The attacker
 * ranks the tokens by how far their rows point away from the mean, and guesses as many as the text has (it is told how many).
 * Chance is the share of the vocabulary that stands in the text.
 *
 * It is tried on sums of three sites as well: what the sum tells, and whether what each site sent tells whose token it is.
 *
 * The same is tried on updates of privacy.unit: sample with the noise that makes this single step cost epsilon = 8, which is the least
 * noise that such a job could ever have. */
#include "bench.h"
#include "inversion_attack.h"
#include "inversion_plot.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opts.h"
#include "codec/codec.h"
#include "privacy/ledger.h"
#include "privacy/step_noise.h"
#include "task/work.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    char *text, *out, *plot;
    int64_t trials, lines;
    double epsilon;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, text, NEB_OPT_TEXT, "", "file", "text, a paragraph a line"),
    NEB_OPT(struct options, out, NEB_OPT_TEXT, "out/inversion", "folder",
            "for tokenizer and parts of the text"),
    NEB_OPT(struct options, plot, NEB_OPT_TEXT, "", "file", "the figures as a picture, in SVG"),
    NEB_OPT(struct options, trials, NEB_OPT_INT, "42", NULL, "updates that are attacked",
            NEB_OPT_RANGE(1, 100000)),
    NEB_OPT(struct options, lines, NEB_OPT_INT, "4", NULL, "lines of an update", NEB_OPT_RANGE(1, 1000)),
    NEB_OPT(struct options, epsilon, NEB_OPT_REAL, "8", NULL, "of the protected updates",
            NEB_OPT_ABOVE(0, 1000)),
    NEB_OPT_END,
};

struct run {
    struct options opt;
    struct neb_buf text;
    char job[PATH_MAX], part[PATH_MAX];
    double noise;
    int64_t samples; /* into which the lines of the trial are cut */
};

/* ---- the victim ---------------------------------------------------------------------------------------- */

static neb_status write_job(struct run *r)
{
    char yaml[2048];
    snprintf(r->job, sizeof r->job, "%.3000s/job.yaml", r->opt.out);
    snprintf(r->part, sizeof r->part, "%.3000s/part.txt", r->opt.out);
    NEB_TRY(neb__file_make_dir(r->opt.out, 0700));
    snprintf(yaml, sizeof yaml,
             "name: inversion\ntask: causal\nout: %.900s\n"
             "tokenizer: {type: bpe, vocab: 1000, lines: 20000}\n"
             "model: {family: gpt2, hidden: 64, layers: 2, heads: 2, dropout: 0}\n"
             "train: {steps: 1, tokens: 4096, max_len: 32, threads: 1, clip: 0}\n"
             "data: [{file: %.900s}]\n",
             r->opt.out, r->opt.text);
    return neb__file_replace(r->job, yaml, strlen(yaml), 0600);
}

/* The lines of one trial. */
static neb_status write_part(const struct run *r, int64_t trial, const char *all, size_t n)
{
    const char *p = all, *end = all + n;
    for (int64_t i = 0; i < trial * r->opt.lines && p < end; i++) {
        const char *next = memchr(p, '\n', (size_t)(end - p));
        p = next ? next + 1 : end;
    }
    const char *last = p;
    for (int64_t i = 0; i < r->opt.lines && last < end; i++) {
        const char *next = memchr(last, '\n', (size_t)(end - last));
        last = next ? next + 1 : end;
    }
    if (last == p)
        return neb__fail(NEB_ERR_NOTFOUND, "the text has too few lines for %" PRId64 " trials", trial + 1);
    return neb__file_replace(r->part, p, (size_t)(last - p), 0600);
}

/* Marks the tokens of the text. Returns how many there are. */
static neb_status mark(const struct neb_data *data, uint8_t *in, int64_t *n, int64_t *samples)
{
    struct neb_batches *s;
    struct neb_batch *b = NULL;
    NEB_TRY(neb__data_samples(data, &s));
    neb_status status = neb__batches_batch(s, &b);
    *n = 0;
    *samples = neb__batches_samples(s);
    for (int64_t i = 0; status == NEB_OK && i < *samples; i++) {
        status = neb__batches_one(s, i, (uint64_t)i, b);
        for (int32_t k = 0; status == NEB_OK && k < b->loss.used; k++)
            if (!in[b->loss.target[k]]) in[b->loss.target[k]] = 1, ++*n;
        if (status == NEB_ERR_AGAIN) status = NEB_OK;
    }
    neb__batch_free(b);
    neb__batches_free(s);
    return status;
}

static neb_status one_step(const struct run *r, struct neb_work *w)
{
    struct neb_work_step made;
    struct neb_privacy_rule rule;
    struct neb_privacy_ledger *ledger = NULL;
    char path[PATH_MAX];
    NEB_TRY(neb__work_open_private(w));
    if (neb__work_privacy(w, &rule)) {
        struct neb_step_key key;
        snprintf(path, sizeof path, "%.3000s/privacy", r->opt.out);
        NEB_TRY(neb__privacy_ledger_open(path, &rule, &ledger));
        neb_status charged = neb__privacy_take_step(ledger);
        neb__privacy_ledger_close(ledger);
        NEB_TRY(charged);
        NEB_TRY(neb__step_key_new(&key));
        neb__work_set_key(w, &key);
    }
    return neb__work_step(w, 1e-3f, &made);
}

/* The update of the token table, as the others decode it. d: x before; it becomes the update. */
static neb_status send(float *d, const float *x, size_t n)
{
    struct neb_buf code;
    for (size_t i = 0; i < n; i++) d[i] = x[i] - d[i];
    neb__buf_init(&code, 64 << 20);
    struct neb_codec_input in = {.z = d, .n = n};
    neb_status status = neb__codec_encode(neb__rung_by_name("int8"), &in, NULL, NULL, &code);
    if (status == NEB_OK) status = neb__codec_decode(code.data, code.len, NULL, n, d);
    neb__buf_free(&code);
    return status;
}

static neb_status make_update(struct run *r, const struct neb_data *data, struct neb_work *w,
                              struct neb_inversion *out)
{
    const neb_param *table_of = neb_params_find(neb__work_params(w), "embed.token.weight");
    int64_t shape[4], all;
    if (!table_of || neb_param_shape(table_of, shape) != 2)
        return neb__fail(NEB_ERR_INTERNAL, "the model has no table of tokens");
    const size_t values = (size_t)(shape[0] * shape[1]);
    const float *x = neb__work_slab(w, &all) + neb_param_offset(table_of);
    out->vocab = shape[0], out->width = shape[1];
    out->d = NEB_NEW_ARRAY(float, values);
    out->in = NEB_NEW_ARRAY(uint8_t, (size_t)shape[0]);
    if (!out->d || !out->in) return neb__fail(NEB_ERR_NOMEM, "out of memory for an update");
    memcpy(out->d, x, values * sizeof *out->d);
    NEB_TRY(one_step(r, w));
    NEB_TRY(send(out->d, x, values));
    return mark(data, out->in, &out->tokens, &r->samples);
}

/* Sites that are in one sum begin with the same model. */
static neb_status one_trial(struct run *r, int64_t trial, bool private, struct neb_inversion *out)
{
    char words[8][PATH_MAX];
    char *list[8];
    struct neb_job job;
    struct neb_data data;
    struct neb_work *w = NULL;
    int n = 0;
    snprintf(words[n++], PATH_MAX, "data[0].file=%.3500s", r->part);
    snprintf(words[n++], PATH_MAX, "tokenizer.file=%.3000s/data/tokenizer.model", r->opt.out);
    snprintf(words[n++], PATH_MAX, "cache=%.3000s/part", r->opt.out);
    snprintf(words[n++], PATH_MAX, "seed=%" PRId64, trial / NEB_INVERSION_SITES + 1);
    if (private) {
        snprintf(words[n++], PATH_MAX, "privacy.unit=sample");
        snprintf(words[n++], PATH_MAX, "privacy.epsilon=0");
        snprintf(words[n++], PATH_MAX, "privacy.samples=%" PRId64, r->samples); /* all take part */
        snprintf(words[n++], PATH_MAX, "privacy.noise=%.9g", r->noise);
    }
    for (int i = 0; i < n; i++) list[i] = words[i];
    NEB_TRY(neb__job_read(r->job, list, n, &job));
    memset(&data, 0, sizeof data);
    neb_status status = neb__data_prepare(&job, &data);
    if (status == NEB_OK) status = neb__work_open(&data, 0, 1, NULL, &w);
    if (status == NEB_OK) status = make_update(r, &data, w, out);
    neb__work_close(w);
    neb__data_free(&data);
    neb__job_free(&job);
    return status;
}

/* ---- the result ---------------------------------------------------------------------------------------- */

/* The tokenizer is a public one: it comes from the whole text. */
static neb_status make_tokenizer(const struct run *r)
{
    struct neb_job job;
    struct neb_data data;
    NEB_TRY(neb__job_read(r->job, NULL, 0, &job));
    memset(&data, 0, sizeof data);
    neb_status status = neb__data_prepare(&job, &data);
    neb__data_free(&data);
    neb__job_free(&job);
    return status;
}

/* Everything that is found out: in single updates (plain, of unit: sample), and in sums. */
struct findings {
    struct neb_found plain, sample;
    struct neb_inversion_sums sums;
};

static neb_status attack_all(struct run *r, struct findings *out)
{
    struct neb_inversion site[NEB_INVERSION_SITES] = {{0}}, private = {0};
    neb_status status = NEB_OK;
    for (int64_t i = 0; status == NEB_OK && i < r->opt.trials; i++) {
        struct neb_inversion *u = &site[i % NEB_INVERSION_SITES];
        neb__inversion_free(u);
        neb__inversion_free(&private);
        status = write_part(r, i, (const char *)r->text.data, r->text.len);
        if (status == NEB_OK) status = one_trial(r, i, false, u);
        if (status == NEB_OK) status = one_trial(r, i, true, &private);
        if (status == NEB_OK) status = neb__inversion_attack(u, &out->plain);
        if (status == NEB_OK) status = neb__inversion_attack(&private, &out->sample);
        if (status == NEB_OK && i % NEB_INVERSION_SITES == NEB_INVERSION_SITES - 1)
            status = neb__inversion_sum(site, &out->sums);
    }
    for (int i = 0; i < NEB_INVERSION_SITES; i++) neb__inversion_free(&site[i]);
    neb__inversion_free(&private);
    return status;
}

static double share(const struct neb_found *f)
{
    return 100 * f->right / f->guessed;
}

static double chance(const struct neb_found *f)
{
    return 100 * f->chance / f->guessed;
}

static neb_status measure(struct run *r, struct neb_figures *f)
{
    struct findings all = {0};
    const struct neb_inversion_sums *sums = &all.sums;
    NEB_TRY(neb__privacy_noise(r->opt.epsilon, 1, 1, 1e-5, &r->noise));
    NEB_TRY(write_job(r));
    NEB_TRY(make_tokenizer(r));
    NEB_TRY(neb__file_read(r->opt.text, &r->text));
    NEB_TRY(attack_all(r, &all));
    neb__figures_add(f, "chance", chance(&all.plain), "%", NEB_REPORT, 0);
    neb__figures_add(f, "plain.found", share(&all.plain), "%", NEB_AT_LEAST, 3 * chance(&all.plain));
    neb__figures_add(f, "plain.attributed", share(&sums->plain), "%", NEB_REPORT, 0);
    neb__figures_add(f, "sum.found", share(&sums->sum), "%", NEB_REPORT, 0);
    neb__figures_add(f, "sum.chance", chance(&sums->sum), "%", NEB_REPORT, 0);
    neb__figures_add(f, "secure.attributed", share(&sums->secure), "%", NEB_REPORT, 0);
    neb__figures_add(f, "secure.over_chance", share(&sums->secure) - chance(&sums->secure), "points",
                     NEB_AT_MOST, 2);
    neb__figures_add(f, "sample.found", share(&all.sample), "%", NEB_REPORT, 0);
    neb__figures_add(f, "sample.over_chance", share(&all.sample) - chance(&all.sample), "points", NEB_AT_MOST,
                     2);
    if (!r->opt.plot) return NEB_OK;
    const struct neb_inversion_bar bars[] = {
        {"unit: none", "tokens found", share(&all.plain), chance(&all.plain)},
        {"unit: none", "right site named", share(&sums->plain), chance(&sums->plain)},
        {"aggregate: secure", "tokens found in the sum", share(&sums->sum), chance(&sums->sum)},
        {"aggregate: secure", "right site named", share(&sums->secure), chance(&sums->secure)},
        {"unit: sample", "tokens found", share(&all.sample), chance(&all.sample)},
    };
    return neb__inversion_plot(r->opt.plot, bars, (int)(sizeof bars / sizeof *bars), r->opt.epsilon);
}

static int run(int argc, char **argv)
{
    struct run r = {0};
    int positional = 0;
    bool json = neb__bench_json(&argc, argv);
    if (neb__opts_init(table, &r.opt) != NEB_OK) return 1;
    neb__buf_init(&r.text, (size_t)1 << 30);
    int status = 0;
    struct neb_figures *f = NULL;
    if (neb__opts_args(table, &r.opt, argc, argv, &positional) != NEB_OK || positional || !r.opt.text) {
        if (!r.opt.text) fprintf(stderr, "--text FILE is missing\n");
        neb__opts_help(table, stderr);
        status = 2;
    } else if (!(f = neb__figures_begin("inversion", json)) || measure(&r, f) != NEB_OK) {
        status = 1;
    }
    if (f) neb__figures_end(f);
    neb__buf_free(&r.text);
    neb__opts_free(table, &r.opt);
    return status;
}

const struct neb_bench neb__bench_inversion = {"inversion", "an attack that reads text from updates", run,
                                               table};
