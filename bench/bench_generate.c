/* bench_generate.c: tokens over the cache against running everything again for every token, as a search
 * without a cache would. Both arms have the same model and code, weights packed once, the same number of
 * sequences, and logits of the last rows only. Over the cache the whole beam search is timed, with choosing
 * tokens and reordering beams. Running again is timed at every SAMPLE-th length and counted for those
 * between; choosing tokens is not counted. The two take turns after a first turn that plans their memory. The
 * median of the turns counts. */
#include "bench.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"
#include "nn/decode.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 16, TURNS = 5 };

struct options {
    int64_t seqs, beams, length, prefix, hidden, layers, vocab, threads;
    char *device;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, seqs, NEB_OPT_INT, "40", NULL, "sequences at once, all beams counted"),
    NEB_OPT(struct options, beams, NEB_OPT_INT, "5", NULL, "beams of a sentence"),
    NEB_OPT(struct options, length, NEB_OPT_INT, "128", "tokens", "tokens generated for each"),
    NEB_OPT(struct options, prefix, NEB_OPT_INT, "32", "rows", "length of a trained prefix; 0: none"),
    NEB_OPT(struct options, hidden, NEB_OPT_INT, "256", NULL, "width of the model"),
    NEB_OPT(struct options, layers, NEB_OPT_INT, "4", NULL, "layers"),
    NEB_OPT(struct options, vocab, NEB_OPT_INT, "8000", "tokens", "vocabulary"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores"),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT_END,
};

struct rig {
    neb_device *device;
    neb_params *params;
    struct neb_model *model;
    struct neb_decoding *decoding;
    int32_t *ids, *counts, *out;
};

static neb_status make_model(struct rig *r, const struct options *o)
{
    struct neb_model_config c;
    struct neb_peft_config p;
    NEB_TRY(neb__model_config_init("gpt2", &c));
    c.hidden = o->hidden;
    c.layers = o->layers;
    c.vocab = o->vocab;
    c.max_positions = o->length;
    neb_status status = neb__peft_config_init(&p);
    if (status == NEB_OK && o->prefix) status = neb__opts_set(neb__peft_options, &p, "method", "prefix");
    p.prefix_length = o->prefix;
    if (status == NEB_OK) status = neb_params_create(&r->params);
    if (status == NEB_OK) status = neb__model_create(&c, &p, "", NULL, r->params, &r->model);
    neb__peft_config_free(&p);
    neb__model_config_free(&c);
    NEB_TRY(status);
    return neb_params_ready(r->params, r->device, 1);
}

static neb_status open_rig(struct rig *r, const struct options *o)
{
    struct neb_device_config config = {.threads = (int)o->threads};
    int32_t seqs = (int32_t)o->seqs, n = seqs * (int32_t)o->length;
    NEB_TRY(neb_device_open(o->device, &config, &r->device));
    NEB_TRY(make_model(r, o));
    struct neb_decode_limits l = {seqs, (int32_t)o->length, n, 0};
    r->ids = NEB_NEW_ARRAY(int32_t, (size_t)n);
    r->counts = NEB_NEW_ARRAY(int32_t, (size_t)seqs);
    r->out = NEB_NEW_ARRAY(int32_t, (size_t)n);
    if (!r->ids || !r->counts || !r->out) return neb__fail(NEB_ERR_NOMEM, "out of memory for the benchmark");
    for (int32_t i = 0; i < n; i++) r->ids[i] = (int32_t)((i * 7919) % o->vocab);
    return neb__decoding_create(r->device, r->model, &l, &r->decoding);
}

static void close_rig(struct rig *r)
{
    neb__decoding_destroy(r->decoding);
    neb__model_destroy(r->model);
    neb_params_destroy(r->params);
    neb_device_close(r->device);
    neb__free(r->ids);
    neb__free(r->counts);
    neb__free(r->out);
}

static neb_status feed(struct rig *r, const struct options *o, int32_t tokens)
{
    const float *logits;
    for (int32_t s = 0; s < o->seqs; s++) r->counts[s] = tokens;
    return neb__decoding_step(r->decoding, r->counts, r->ids, &logits);
}

static neb_status cached(struct rig *r, const struct options *o, double *seconds)
{
    int32_t prompts = (int32_t)(o->seqs / o->beams), starts[4097];
    struct neb_search how = {.max_new = (int32_t)o->length - 1, .eos = -1, .beams = (int32_t)o->beams};
    for (int32_t i = 0; i <= prompts; i++) starts[i] = i;
    int64_t start = neb__now_ns();
    NEB_TRY(neb__decoding_generate(r->decoding, &how, NULL, prompts, r->ids, starts, r->out, r->counts));
    *seconds = neb__seconds_since(start);
    return NEB_OK;
}

static neb_status again(struct rig *r, const struct options *o, double *seconds)
{
    *seconds = 0;
    for (int32_t n = SAMPLE / 2; n <= o->length; n += SAMPLE) {
        NEB_TRY(neb__decoding_start_short(r->decoding, (int32_t)o->seqs, n, NULL));
        NEB_TRY(feed(r, o, 1)); /* packs the weights; neither that nor this token is counted */
        int64_t start = neb__now_ns();
        NEB_TRY(feed(r, o, n - 1));
        *seconds += neb__seconds_since(start) * SAMPLE;
    }
    return NEB_OK;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct turns {
    double with[TURNS], without[TURNS], ratio[TURNS];
};

static neb_status take_turns(struct rig *r, const struct options *o, struct turns *t)
{
    double with, without;
    for (int i = -1; i < TURNS; i++) {
        NEB_TRY(cached(r, o, &with));
        NEB_TRY(again(r, o, &without));
        if (i < 0) continue;
        t->with[i] = with, t->without[i] = without, t->ratio[i] = without / with;
    }
    qsort(t->with, TURNS, sizeof *t->with, by_size);
    qsort(t->without, TURNS, sizeof *t->without, by_size);
    qsort(t->ratio, TURNS, sizeof *t->ratio, by_size);
    return NEB_OK;
}

static int measure(const struct options *o, bool json)
{
    struct rig r = {0};
    struct turns t;
    neb_status status = open_rig(&r, o);
    if (status == NEB_OK) status = take_turns(&r, o, &t);
    close_rig(&r);
    struct neb_figures *f = status == NEB_OK ? neb__figures_begin("generate", json) : NULL;
    if (!f) return 1;
    const double tokens = (double)(o->seqs * o->length);
    neb__figures_add(f, "generate.cached", tokens / t.with[TURNS / 2], "tokens/s", NEB_REPORT, 0);
    neb__figures_add(f, "generate.again", tokens / t.without[TURNS / 2], "tokens/s", NEB_REPORT, 0);
    neb__figures_add(f, "generate.ratio.least", t.ratio[0], "x", NEB_REPORT, 0);
    neb__figures_add(f, "generate.ratio", t.ratio[TURNS / 2], "x", NEB_AT_LEAST, 20);
    return neb__figures_end(f);
}

static int run(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    struct options o;
    int n = 0, status = 2;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &n) == NEB_OK && !n && o.seqs > 0 && o.seqs <= 4096 &&
        o.beams > 1 && o.seqs % o.beams == 0 && o.length >= SAMPLE && o.length <= 8192) {
        status = measure(&o, json);
    }
    neb__opts_free(table, &o);
    return status;
}

const struct neb_bench neb__bench_generate = {"generate", "tokens over the cache against running all again",
                                              run, table};
