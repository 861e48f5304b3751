/* byte_lm.c: training, measuring and sampling a byte-level decoder.
 *
 * A batch is `sequences` windows of `context` bytes, drawn at random places of the training part; each byte predicts the
 * next. The model is a small decoder of the Llama family: rotary positions and gated units learn fastest at this size. */
#include "task/byte_lm.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "nn/decode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define OPT(field, kind, fallback, unit, help) \
    NEB_OPT(struct neb_byte_lm_config, field, kind, fallback, unit, help)

const struct neb_opt neb__byte_lm_options[] = {
    OPT(steps, NEB_OPT_INT, "900", "steps", "how long to train"),
    OPT(sequences, NEB_OPT_INT, "8", NULL, "windows of text in a step"),
    OPT(context, NEB_OPT_INT, "128", "bytes", "length of a window"),
    OPT(hidden, NEB_OPT_INT, "128", NULL, "width of the model"),
    OPT(layers, NEB_OPT_INT, "4", NULL, "layers of the model"),
    OPT(heads, NEB_OPT_INT, "4", NULL, "attention heads"),
    OPT(sample, NEB_OPT_INT, "120", "bytes", "length of the samples written at the end"),
    OPT(seed, NEB_OPT_INT, "1", NULL, "of weights, batches and the sample"),
    OPT(threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: one a core"),
    OPT(lr, NEB_OPT_REAL, "3e-3", NULL, "peak learning rate"),
    OPT(temperature, NEB_OPT_REAL, "0.6", NULL, "of the sample; 0: always the likeliest byte"),
    OPT(prompt, NEB_OPT_TEXT, "The ", NULL, "what the sample begins with"),
    OPT(device, NEB_OPT_TEXT, "cpu", NULL, "cpu, or a plug-in such as cuda"),
    NEB_OPT_END,
};

enum { BYTES = 256, SMOOTH = 20, EVAL_BATCHES = 8, SAMPLES = 3 };

struct job {
    const struct neb_byte_lm_config *c;
    const uint8_t *text;
    size_t train, n; /* bytes: training part, all */
    struct neb_rng rng;
    bool held_out;  /* windows come from the end of the text */
    int64_t window; /* held out: number of the next window */

    neb_device *device;
    neb_params *params;
    struct neb_model *model;
    neb_tape *tape;
    neb_optimizer *optimizer;
    struct neb_feed *feed;
    int32_t *ids, *position, *target, *starts;
    uint32_t *sample;
    uint32_t drawn; /* windows so far: their sample ids */
};

/* ---- set-up ----------------------------------------------------------------------------------------------------- */

static neb_status check(const struct neb_byte_lm_config *c, size_t n)
{
    static const struct {
        const char *name;
        size_t offset;
        int64_t low, high;
    } limits[] = {{"steps", offsetof(struct neb_byte_lm_config, steps), 1, 10000000},
                  {"sequences", offsetof(struct neb_byte_lm_config, sequences), 1, 65536},
                  {"context", offsetof(struct neb_byte_lm_config, context), 2, 65536},
                  {"sample", offsetof(struct neb_byte_lm_config, sample), 1, 65536},
                  {"threads", offsetof(struct neb_byte_lm_config, threads), 0, 4096}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        int64_t x = *(const int64_t *)((const char *)c + limits[i].offset);
        if (x < limits[i].low || x > limits[i].high)
            return neb__fail(NEB_ERR_CONFIG,
                             "option '%s': %" PRId64 " is not between %" PRId64 " and %" PRId64,
                             limits[i].name, x, limits[i].low, limits[i].high);
    }
    if (!(c->lr > 0 && c->lr < 10) || !(c->temperature >= 0 && c->temperature < 100))
        return neb__fail(NEB_ERR_CONFIG, "option 'lr' or 'temperature': %g and %g are not possible", c->lr,
                         c->temperature);
    if (!c->prompt || strlen(c->prompt) >= (size_t)c->context)
        return neb__fail(NEB_ERR_CONFIG, "option 'prompt': must have 1 to %" PRId64 " bytes", c->context - 1);
    if (n < 20 * (size_t)(c->context + 1))
        return neb__fail(NEB_ERR_CONFIG,
                         "a text of %zu bytes is too short for windows of %" PRId64 "; give more text", n,
                         c->context);
    return NEB_OK;
}

static neb_status make_model(struct job *j)
{
    struct neb_model_config m;
    NEB_TRY(neb__model_config_init("llama", &m));
    m.vocab = BYTES;
    m.hidden = j->c->hidden;
    m.layers = j->c->layers;
    m.heads = j->c->heads;
    m.max_positions = j->c->context;
    m.tied = true;
    m.residual_init = true;
    neb_status s = neb__model_create(&m, NULL, "", NULL, j->params, &j->model);
    neb__model_config_free(&m);
    return s;
}

static neb_status make_batch(struct job *j)
{
    size_t rows = (size_t)(j->c->sequences * j->c->context), seqs = (size_t)j->c->sequences;
    j->ids = NEB_NEW_ARRAY(int32_t, rows);
    j->position = NEB_NEW_ARRAY(int32_t, rows);
    j->target = NEB_NEW_ARRAY(int32_t, rows);
    j->sample = NEB_NEW_ARRAY(uint32_t, rows);
    j->starts = NEB_NEW_ARRAY(int32_t, seqs + 1);
    if (!j->ids || !j->position || !j->target || !j->sample || !j->starts)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a batch of %zu bytes of text", rows);
    struct neb_feed_limits f = {.rows = {(int32_t)rows}, .seqs = (int32_t)seqs, .targets = (int32_t)rows};
    return neb__feed_create(j->device, &f, &j->feed);
}

static neb_status set_up(struct job *j)
{
    struct neb_device_config config = {.threads = (int)j->c->threads};
    struct neb_optimizer_config o = neb_optimizer_defaults();
    o.beta2 = 0.95f;
    o.decay = 0.1f;
    NEB_TRY(neb_device_open(j->c->device ? j->c->device : "cpu", &config, &j->device));
    NEB_TRY(neb_params_create(&j->params));
    NEB_TRY(make_model(j));
    NEB_TRY(neb_params_ready(j->params, j->device, (uint64_t)j->c->seed));
    NEB_TRY(neb__model_ready(j->model));
    NEB_TRY(make_batch(j));
    NEB_TRY(neb_tape_create(j->device, j->params, &j->tape));
    return neb_optimizer_create(j->device, j->params, &o, &j->optimizer);
}

static void tear_down(struct job *j)
{
    neb_optimizer_destroy(j->optimizer);
    neb_tape_destroy(j->tape);
    neb__feed_destroy(j->feed);
    neb__model_destroy(j->model);
    neb_params_destroy(j->params);
    neb_device_close(j->device);
    neb__free(j->ids);
    neb__free(j->position);
    neb__free(j->target);
    neb__free(j->sample);
    neb__free(j->starts);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* Where the next window begins. Held-out windows stand one behind the other, from the start of that part again and again. */
static size_t next_window(struct job *j)
{
    size_t context = (size_t)j->c->context;
    if (!j->held_out) return (size_t)neb__rng_below(&j->rng, j->train - context);
    size_t windows = (j->n - j->train - 1) / context;
    return j->train + (size_t)(j->window++) % windows * context;
}

static neb_status load(void *arg)
{
    struct job *j = arg;
    int32_t row = 0, context = (int32_t)j->c->context;
    for (int64_t s = 0; s < j->c->sequences; s++, j->drawn++) {
        const uint8_t *from = j->text + next_window(j);
        for (int32_t i = 0; i < context; i++, row++) {
            j->ids[row] = from[i];
            j->target[row] = from[i + 1];
            j->position[row] = i;
            j->sample[row] = j->drawn;
        }
        j->starts[s + 1] = row;
    }
    struct neb_feed_data d = {.sides = 1, .targets = row, .target = j->target};
    d.side[0] = (struct neb_feed_side){
        row, (int32_t)j->c->sequences, context, j->ids, j->position, NULL, j->sample, j->starts, NULL};
    return neb__feed_load(j->feed, &d);
}

static void model_fn(neb_tape *t, void *arg)
{
    struct job *j = arg;
    const struct neb_input *in = neb__feed_input(j->feed, t);
    neb__model_loss(j->model, t, neb__model_run(j->model, t, in), in, NULL);
}

static neb_status measure(struct job *j, double *bits)
{
    double sum = 0;
    j->held_out = true;
    j->window = 0;
    for (int i = 0; i < EVAL_BATCHES; i++) {
        NEB_TRY(load(j));
        struct neb_ctl ctl = {.step = 1, .loss_scale = (float)(1 / neb__feed_weight(j->feed))};
        struct neb_run run = {.fn = model_fn, .arg = j, .key = neb__feed_key(j->feed)};
        NEB_TRY(neb_tape_begin_step(j->tape, &ctl));
        NEB_TRY(neb_tape_run(j->tape, &run));
        NEB_TRY(neb_tape_end_step(j->tape, true, &ctl));
        sum += ctl.loss[0];
    }
    j->held_out = false;
    *bits = sum / EVAL_BATCHES / log(2);
    return NEB_OK;
}

static neb_status train(struct job *j, neb_byte_lm_fn progress, void *arg, int64_t *done)
{
    int64_t steps = j->c->steps, start = neb__now_ns();
    struct neb_schedule schedule = {NEB_COSINE,     (float)j->c->lr, (float)j->c->lr / 10,
                                    steps / 15 + 1, steps,           0};
    struct neb_micro micro = {load, model_fn, j, 1, (double)(j->c->sequences * j->c->context)};
    struct neb_byte_lm_progress p = {.steps = steps, .parameters = neb_params_values(j->params, false)};
    for (*done = 0; *done < steps;) {
        struct neb_step_info info;
        float lr = neb_schedule_lr(&schedule, *done + 1);
        NEB_TRY(neb_train_step(j->optimizer, j->tape, &micro, 1, lr, (uint32_t)j->c->seed, NULL, &info));
        double bits = info.loss[0] / log(2), seconds = neb__seconds_since(start);
        p.step = ++*done;
        if (info.step == 1) p.bits = bits;
        if (info.step > 0) p.bits += (bits - p.bits) / (info.step < SMOOTH ? (double)info.step : SMOOTH);
        p.bytes_per_second = (double)p.step * micro.weight / seconds;
        p.seconds_left = seconds / (double)p.step * (double)(steps - p.step);
        if (progress && !progress(arg, &p)) break;
    }
    return NEB_OK;
}

/* ---- the sample ------------------------------------------------------------------------------------------------- */

/* Several continuations of the prompt, an empty line between them. */
static neb_status generate(struct job *j, struct neb_decoding *d, int32_t *ids, char *text)
{
    int32_t prompt = (int32_t)strlen(j->c->prompt), room = (int32_t)j->c->context - prompt, lengths[SAMPLES];
    int32_t starts[SAMPLES + 1], width = j->c->sample < room ? (int32_t)j->c->sample : room;
    struct neb_search how = {
        .max_new = width, .eos = -1, .temperature = (float)j->c->temperature, .seed = (uint64_t)j->c->seed};
    int32_t *out = ids + SAMPLES * prompt;
    for (int32_t i = 0; i <= SAMPLES; i++) starts[i] = i * prompt;
    for (int32_t i = 0; i < SAMPLES * prompt; i++) ids[i] = (uint8_t)j->c->prompt[i % prompt];
    NEB_TRY(neb__generate(d, &how, NULL, SAMPLES, ids, starts, out, lengths));
    for (int32_t i = 0; i < SAMPLES; i++) {
        text += sprintf(text, "%s%s", i ? "\n\n" : "", j->c->prompt);
        for (int32_t k = 0; k < lengths[i]; k++) {
            int32_t byte = out[i * width + k];
            *text++ = (char)(byte ? byte : ' ');
        }
        *text = 0;
    }
    return NEB_OK;
}

static neb_status write_sample(struct job *j, char **out)
{
    size_t context = (size_t)j->c->context;
    struct neb_decode_limits limits = {SAMPLES, (int32_t)context, SAMPLES * (int32_t)strlen(j->c->prompt), 0};
    struct neb_decoding *d = NULL;
    int32_t *ids = NEB_NEW_ARRAY(int32_t, SAMPLES * context);
    char *text = neb__calloc(SAMPLES, context + 3);
    neb_status s = ids && text ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a sample");
    if (s == NEB_OK) s = neb__decoding_create(j->device, j->model, &limits, &d);
    if (s == NEB_OK) s = generate(j, d, ids, text);
    neb__decoding_destroy(d);
    neb__free(ids);
    if (s == NEB_OK)
        *out = text;
    else
        neb__free(text);
    return s;
}

/* Bits per byte of [train, n) under the byte counts of [0, train). */
static double unigram_bits(const uint8_t *text, size_t train, size_t n)
{
    double count[BYTES], bits = 0;
    for (int i = 0; i < BYTES; i++) count[i] = 1;
    for (size_t i = 0; i < train; i++) count[text[i]]++;
    for (size_t i = train; i < n; i++) bits -= log2(count[text[i]] / ((double)train + BYTES));
    return bits / (double)(n - train);
}

neb_status neb__byte_lm_train(const struct neb_byte_lm_config *config, const uint8_t *text, size_t n,
                              neb_byte_lm_fn progress, void *arg, struct neb_byte_lm_result *out)
{
    NEB_TRY(check(config, n));
    struct job j = {.c = config, .text = text, .train = n / 10 * 9, .n = n, .rng = {(uint64_t)config->seed}};
    struct neb_byte_lm_result r = {.unigram = unigram_bits(text, j.train, n)};
    int64_t start = neb__now_ns();
    neb_status s = set_up(&j);
    if (s == NEB_OK) s = measure(&j, &r.before);
    if (s == NEB_OK) s = train(&j, progress, arg, &r.steps);
    if (s == NEB_OK) s = measure(&j, &r.after);
    if (s == NEB_OK) s = write_sample(&j, &r.sample);
    tear_down(&j);
    r.seconds = neb__seconds_since(start);
    if (s == NEB_OK) *out = r;
    return s;
}
