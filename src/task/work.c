/* work.c: models, data and optimizer of a job, and its step.
 *
 * A step is a list of micro-batches; each is loaded into the feed just before it runs. Replaced-token detection makes two
 * of every batch: the generator learns to fill the masks, then its choices are put into the text and the discriminator
 * learns to find them. Both losses are normalised by one factor, so the discriminator's rows carry what brings its own
 * normalisation and weight about. */
#include "task/work.h"
#include "base/mem.h"
#include "base/rng.h"
#include "task/sample.h"

#include <stdio.h>
#include <string.h>

enum { AHEAD = 4, MAX_MICRO = 1024 };

struct piece { /* one run of a step */
    struct neb_work *work;
    struct neb_batch *batch;
    struct neb_micro *micro;
};

struct neb_work {
    const struct neb_job *job;
    const struct neb_data *data;
    int64_t part, parts;
    neb_device *dev;
    neb_params *params;
    neb_tape *tape;
    neb_optimizer *opt;
    struct neb_model *model, *generator;
    struct neb_feed *feed, *feed2; /* feed2: the discriminator's */
    neb_buffer *logits;            /* rtd: the generator's, at the masked rows */
    struct neb_sampler *sampler;
    struct neb_batches *stream;
    struct neb_prefetch *ahead;
    struct piece *pieces;
    struct neb_micro *micros;
};

/* ---- feeding --------------------------------------------------------------------------------------------------- */

static struct neb_feed_side side_of(const struct neb_side *s)
{
    return (struct neb_feed_side){.rows = s->tokens,
                                  .seqs = s->nseq,
                                  .max_len = s->max_len,
                                  .ids = s->ids,
                                  .position = s->at,
                                  .type = s->type,
                                  .sample = s->sample,
                                  .starts = s->cu_seqlens};
}

static struct neb_feed_data feed_of(const struct neb_batch *b)
{
    struct neb_feed_data d = {.sides = b->sides,
                              .targets = b->loss.n,
                              .target_row = b->loss.rows,
                              .target = b->loss.target,
                              .weight = b->loss.weight};
    for (int i = 0; i < b->sides; i++) d.side[i] = side_of(&b->side[i]);
    return d;
}

static neb_status load(void *arg)
{
    struct piece *p = arg;
    struct neb_feed_data d = feed_of(p->batch);
    NEB_TRY(neb__feed_load(p->work->feed, &d));
    if (p->micro) p->micro->key = neb__feed_key(p->work->feed);
    return NEB_OK;
}

static void run_model(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct piece *)arg)->work;
    const struct neb_input *in = neb__feed_input(w->feed, t);
    neb__model_loss(w->model, t, neb__model_run(w->model, t, in), in, NULL);
}

static void run_generator(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct piece *)arg)->work;
    const struct neb_input *in = neb__feed_input(w->feed, t);
    neb_tensor *x = neb__model_run(w->generator, t, in);
    neb__model_loss(w->generator, t, x, in, NULL);
    neb_tensor *fixed = neb_op_stop_gradient(t, x);
    neb_output(t, neb__model_logits(w->generator, t, fixed, &in->side[0], in->target_row), w->logits,
               NEB_F32);
}

/* The generator's choices, put into the text. */
static neb_status load_discriminator(void *arg)
{
    struct piece *p = arg;
    struct neb_work *w = p->work;
    struct neb_feed_data d = feed_of(p->batch);
    float share = (float)(w->job->train.rtd_weight * p->batch->loss.used);
    NEB_TRY(neb__sampler_replace(w->sampler, p->batch, w->logits, share, &d));
    NEB_TRY(neb__feed_load(w->feed2, &d));
    if (p->micro) p->micro->key = neb__feed_key(w->feed2) ^ 1;
    return NEB_OK;
}

static void run_discriminator(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct piece *)arg)->work;
    const struct neb_input *in = neb__feed_input(w->feed2, t);
    neb__model_loss(w->model, t, neb__model_run(w->model, t, in), in, NULL);
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static neb_status open_device(struct neb_work *w)
{
    const struct neb_job_train *t = &w->job->train;
    struct neb_device_config c = {.compute = strcmp(t->dtype, "bf16") ? NEB_F32 : NEB_BF16,
                                  .threads = (int)t->threads,
                                  .deterministic = t->deterministic,
                                  .tf32 = 1};
    return neb_device_open(t->device, &c, &w->dev);
}

static neb_status make_models(struct neb_work *w)
{
    struct neb_model_config *m = (struct neb_model_config *)(uintptr_t)&w->job->model, g;
    NEB_TRY(neb_params_create(&w->params));
    m->vocab = neb__tok_vocab(w->data->tok);
    if (m->max_positions < w->job->train.max_len) m->max_positions = w->job->train.max_len;
    if (w->job->kind == NEB_TASK_RTD) {
        g = w->job->generator;
        g.vocab = m->vocab;
        g.max_positions = m->max_positions;
        NEB_TRY(neb__model_create(&g, &w->job->peft, "generator.", NULL, w->params, &w->generator));
    }
    NEB_TRY(neb__model_create(m, &w->job->peft, "", NULL, w->params, &w->model));
    if (w->generator) w->model->loss_slot = 1;
    NEB_TRY(neb_params_ready(w->params, w->dev, (uint64_t)w->job->seed));
    NEB_TRY(neb__model_ready(w->model));
    return w->generator ? neb__model_ready(w->generator) : NEB_OK;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* The largest batch of any stream of the job: evaluation uses the same feeds. */
static neb_status largest(struct neb_work *w, struct neb_feed_limits *l)
{
    static const char *const uses[] = {"train", "valid", "test"};
    for (int i = 0; i < 3; i++) {
        struct neb_batches *s;
        struct neb_batch *b;
        neb_status found = neb__data_stream(w->data, uses[i], 0, 1, &s);
        if (found == NEB_ERR_NOTFOUND) continue;
        NEB_TRY(found);
        neb_status made = neb__batches_batch(s, &b);
        neb__batches_free(s);
        NEB_TRY(made);
        for (int k = 0; k < 2; k++) l->rows[k] = larger(l->rows[k], b->cap_tokens[k]);
        l->seqs = larger(l->seqs, b->cap_seqs);
        l->targets = larger(l->targets, b->cap_loss);
        neb__batch_free(b);
    }
    return NEB_OK;
}

static neb_status make_feeds(struct neb_work *w)
{
    struct neb_feed_limits l = {.prefix = (int32_t)w->model->peft.prefix_length};
    NEB_TRY(largest(w, &l));
    NEB_TRY(neb__feed_create(w->dev, &l, &w->feed));
    if (!w->generator) return NEB_OK;
    size_t logits = (size_t)l.targets * (size_t)neb__tok_vocab(w->data->tok) * sizeof(float);
    NEB_TRY(neb_buffer_create(w->dev, logits, &w->logits));
    NEB_TRY(neb__sampler_create(w->data->tok, l.rows[0], l.targets, (uint32_t)w->job->seed, &w->sampler));
    l.targets = l.rows[0];
    return neb__feed_create(w->dev, &l, &w->feed2);
}

static neb_status make_optimizer(struct neb_work *w)
{
    const struct neb_job_train *t = &w->job->train;
    struct neb_optimizer_config c = {.kind = NEB_ADAMW,
                                     .beta1 = (float)t->beta1,
                                     .beta2 = (float)t->beta2,
                                     .eps = 1e-8f,
                                     .decay = (float)t->weight_decay,
                                     .max_norm = (float)t->clip};
    return neb_optimizer_create(w->dev, w->params, &c, &w->opt);
}

static neb_status open_all(struct neb_work *w)
{
    NEB_TRY(open_device(w));
    NEB_TRY(make_models(w));
    NEB_TRY(neb_tape_create(w->dev, w->params, &w->tape));
    neb_tape_allow_fallback(w->tape, w->job->train.fallback);
    NEB_TRY(make_optimizer(w));
    neb_status s = neb__data_stream(w->data, "train", w->part, w->parts, &w->stream);
    if (s == NEB_ERR_NOTFOUND)
        return neb__doc_fail(&w->job->doc, "data", "no corpus to train on (use: train)");
    NEB_TRY(s);
    NEB_TRY(make_feeds(w));
    size_t runs = (size_t)w->job->train.micro * 2;
    w->pieces = NEB_NEW_ARRAY(struct piece, runs);
    w->micros = NEB_NEW_ARRAY(struct neb_micro, runs);
    if (!w->pieces || !w->micros)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu micro-batches", runs);
    return NEB_OK;
}

neb_status neb__work_open(const struct neb_job *job, const struct neb_data *data, int64_t part, int64_t parts,
                          struct neb_work **out)
{
    struct neb_work *w = NEB_NEW(struct neb_work);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "out of memory for a job");
    w->job = job;
    w->data = data;
    w->part = part;
    w->parts = parts;
    neb_status s = open_all(w);
    if (s != NEB_OK) {
        neb__work_close(w);
        return s;
    }
    *out = w;
    return NEB_OK;
}

void neb__work_close(struct neb_work *w)
{
    if (!w) return;
    neb__prefetch_stop(w->ahead);
    neb__batches_free(w->stream);
    neb__sampler_free(w->sampler);
    neb_buffer_destroy(w->logits);
    neb__feed_destroy(w->feed);
    neb__feed_destroy(w->feed2);
    neb_optimizer_destroy(w->opt);
    neb_tape_destroy(w->tape);
    neb__model_destroy(w->model);
    neb__model_destroy(w->generator);
    neb_params_destroy(w->params);
    neb_device_close(w->dev);
    neb__free(w->pieces);
    neb__free(w->micros);
    neb__free(w);
}

/* ---- stepping -------------------------------------------------------------------------------------------------- */

static int64_t rows_of(const struct neb_batch *b)
{
    return (int64_t)b->side[0].used + (b->sides > 1 ? b->side[1].used : 0);
}

/* Fills pieces and micros from the batches ahead; returns how many runs there are. */
static neb_status gather(struct neb_work *w, int *runs, int64_t *tokens)
{
    *runs = 0;
    *tokens = 0;
    for (int64_t i = 0; i < w->job->train.micro; i++) {
        struct neb_batch *b;
        NEB_TRY(neb__prefetch_get(w->ahead, &b));
        int at = (*runs)++;
        w->pieces[at] = (struct piece){w, b, &w->micros[at]};
        w->micros[at] = (struct neb_micro){load, w->generator ? run_generator : run_model, &w->pieces[at], 0,
                                           (double)b->loss.used};
        *tokens += rows_of(b);
        if (!w->generator) continue;
        at = (*runs)++;
        w->pieces[at] = (struct piece){w, b, &w->micros[at]};
        w->micros[at] = (struct neb_micro){load_discriminator, run_discriminator, &w->pieces[at], 0, 0};
    }
    return NEB_OK;
}

static void give_back(struct neb_work *w, int runs)
{
    for (int i = 0; i < runs; i += w->generator ? 2 : 1) neb__prefetch_done(w->ahead, w->pieces[i].batch);
}

neb_status neb__work_step(struct neb_work *w, float lr, struct neb_work_step *out)
{
    if (!w->ahead) NEB_TRY(neb__prefetch_start(w->stream, AHEAD + (int)w->job->train.micro, &w->ahead));
    int runs;
    int64_t tokens;
    struct neb_step_info info = {0};
    neb_status s = gather(w, &runs, &tokens);
    if (s == NEB_OK)
        s = neb_train_step(w->opt, w->tape, w->micros, runs, lr, (uint32_t)w->job->seed, NULL, &info);
    give_back(w, runs);
    if (s != NEB_OK && s != NEB_ERR_NONFINITE) return s;
    *out = (struct neb_work_step){.step = info.step,
                                  .loss = (double)info.loss[0] + (double)info.loss[1],
                                  .parts = {(double)info.loss[0], (double)info.loss[1]},
                                  .grad_norm = (double)info.grad_norm,
                                  .tokens = tokens,
                                  .skipped = info.skipped};
    return s;
}

/* ---- evaluation ------------------------------------------------------------------------------------------------ */

static neb_status eval_run(struct neb_work *w, neb_model_fn fn, struct piece *p, uint64_t key,
                           struct neb_ctl *c)
{
    *c = (struct neb_ctl){.step = 1, .seed = 1, .loss_scale = 1};
    struct neb_run run = {.fn = fn, .arg = p, .key = key};
    NEB_TRY(neb_tape_begin_step(w->tape, c));
    NEB_TRY(neb_tape_run(w->tape, &run));
    return neb_tape_end_step(w->tape, true, c);
}

static neb_status eval_batch(struct neb_work *w, struct neb_batch *b, struct neb_work_eval *e, double sums[6])
{
    struct piece p = {w, b, NULL};
    struct neb_ctl c;
    NEB_TRY(load(&p));
    NEB_TRY(eval_run(w, w->generator ? run_generator : run_model, &p, neb__feed_key(w->feed), &c));
    sums[0] += (double)c.loss[0];
    sums[1] += (double)c.counts[0];
    sums[2] += (double)c.counts[1];
    e->rows += b->loss.used;
    e->batches++;
    if (!w->generator) return NEB_OK;
    NEB_TRY(load_discriminator(&p));
    NEB_TRY(eval_run(w, run_discriminator, &p, neb__feed_key(w->feed2) ^ 1, &c));
    /* rows were weighted by rtd_weight * masked / rows: undone here */
    sums[3] += (double)c.loss[1] / (w->job->train.rtd_weight * b->loss.used) * (double)c.counts[1];
    sums[4] += (double)c.counts[0];
    sums[5] += (double)c.counts[1];
    e->rtd_recall += (double)c.counts[3];
    e->rtd_loss += (double)c.counts[2];
    return NEB_OK;
}

neb_status neb__work_eval(struct neb_work *w, const char *use, int64_t batches, struct neb_work_eval *out)
{
    struct neb_batches *stream = NULL;
    struct neb_batch *b = NULL;
    struct neb_work_eval e = {0};
    double sums[6] = {0};
    NEB_TRY(neb__data_stream(w->data, use, 0, 1, &stream));
    neb_status s = neb__batches_batch(stream, &b);
    while (s == NEB_OK && (!batches || e.batches < batches)) {
        s = neb__batches_next(stream, b);
        if (s == NEB_OK) s = eval_batch(w, b, &e, sums);
    }
    neb__batch_free(b);
    neb__batches_free(stream);
    if (s != NEB_OK && s != NEB_ERR_AGAIN) return s;
    e.loss = sums[0] / (double)(e.rows ? e.rows : 1);
    e.accuracy = sums[2] > 0 ? sums[1] / sums[2] : 0;
    double replaced = e.rtd_loss;
    e.rtd_loss = sums[5] > 0 ? sums[3] / sums[5] : 0;
    e.rtd_accuracy = sums[5] > 0 ? sums[4] / sums[5] : 0;
    e.rtd_recall = replaced > 0 ? e.rtd_recall / replaced : 0;
    *out = e;
    return NEB_OK;
}

/* ---- parts ----------------------------------------------------------------------------------------------------- */

neb_params *neb__work_params(struct neb_work *w)
{
    return w->params;
}

neb_device *neb__work_device(struct neb_work *w)
{
    return w->dev;
}

neb_tape *neb__work_tape(struct neb_work *w)
{
    return w->tape;
}

neb_optimizer *neb__work_optimizer(struct neb_work *w)
{
    return w->opt;
}

struct neb_model *neb__work_model(struct neb_work *w)
{
    return w->model;
}

double neb__work_waited(const struct neb_work *w)
{
    return w->ahead ? neb__prefetch_waited(w->ahead) : 0;
}

neb_status neb__work_identity(const struct neb_work *w, struct neb_hash *out)
{
    struct neb_hasher h;
    NEB_TRY(neb__hasher_init(&h));
    neb_status s = NEB_OK;
    for (int i = 0; s == NEB_OK && i < neb_params_count(w->params); i++) {
        const neb_param *p = neb_params_at(w->params, i);
        int64_t shape[4] = {0};
        int n = neb_param_shape(p, shape);
        char text[320];
        int len = snprintf(text, sizeof text, "%s %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d\n",
                           neb_param_name(p), n, shape[0], n > 1 ? shape[1] : 0, n > 2 ? shape[2] : 0,
                           n > 3 ? shape[3] : 0, neb_param_trainable(p));
        s = neb__hasher_update(&h, text, (size_t)len);
    }
    neb_status f = neb__hasher_final(&h, s == NEB_OK ? out : NULL);
    return s != NEB_OK ? s : f;
}

neb_status neb__work_save_position(struct neb_work *w, struct neb_buf *out)
{
    return w->ahead ? neb__prefetch_save(w->ahead, out) : neb__batches_save(w->stream, out);
}

neb_status neb__work_load_position(struct neb_work *w, const void *bytes, size_t n)
{
    if (w->ahead) {
        neb_status s = neb__prefetch_stop(w->ahead);
        w->ahead = NULL;
        NEB_TRY(s);
    }
    return neb__batches_restore(w->stream, bytes, n);
}
