/* work_step.c: the step: micro-batches in, one update out.
 *
 * A step is a list of runs; each loads its batch just before it computes. Replaced-token detection makes two runs of
 * every batch: the generator learns to fill the masks, then its choices are put into the text and the discriminator
 * learns to find them. Both losses are normalised by one factor, so the discriminator's rows carry what brings its own
 * normalisation and weight about; that stays so when one of the two lives on another site. A generator alone gives its
 * choices away when the next run is about to overwrite them, or the step ends. */
#include "task/work_internal.h"
#include "task/teacher.h"

enum { AHEAD = 4 };

/* ---- runs ------------------------------------------------------------------------------------------------------- */

neb_status neb__load_plain(void *arg)
{
    struct neb_work_part *p = arg;
    struct neb_work *w = p->work;
    struct neb_model_input_data d = neb__model_input_of(p->batch);
    NEB_TRY(neb__model_input_load(w->feed, &d));
    if (!p->micro) return NEB_OK;
    p->micro->key = neb__model_input_key(w->feed);
    return w->distill ? neb__distill_load(w->distill, p->batch) : NEB_OK;
}

void neb__run_plain(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    const struct neb_input *in = neb__model_input_tensors(w->feed, t);
    neb__model_loss(w->model, t, neb__model_run(w->model, t, in), in, NULL);
}

void neb__run_student(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    neb__distill_run(w->distill, w->model, t, neb__model_input_tensors(w->feed, t));
}

/* The choices that still lie on the device go to the other site. */
static neb_status give_choices(struct neb_work *w)
{
    struct neb_batch *b = w->to_give;
    int32_t *sampled;
    w->to_give = NULL;
    if (!b) return NEB_OK;
    NEB_TRY(neb__sampler_draw(w->sampler, b, w->logits, &sampled));
    return w->links.relay.give(w->links.relay.arg, b, sampled);
}

neb_status neb__load_generator(void *arg)
{
    struct neb_work_part *p = arg;
    NEB_TRY(give_choices(p->work));
    NEB_TRY(neb__load_plain(arg));
    if (p->micro && p->work->links.relay.give) p->work->to_give = p->batch;
    return NEB_OK;
}

void neb__run_generator(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    const struct neb_input *in = neb__model_input_tensors(w->feed, t);
    neb_tensor *x = neb__model_run(w->generator, t, in);
    neb__model_loss(w->generator, t, x, in, NULL);
    neb_tensor *fixed = neb_op_stop_gradient(t, x);
    neb_output(t, neb__model_logits(w->generator, t, fixed, &in->side[0], in->target_row), w->logits,
               NEB_F32);
}

/* The generator's choices, put into the text. */
neb_status neb__load_discriminator(void *arg)
{
    struct neb_work_part *p = arg;
    struct neb_work *w = p->work;
    struct neb_model_input_data d = neb__model_input_of(p->batch);
    float share = (float)(w->job->train.rtd_weight * p->batch->loss.used);
    int32_t *sampled = neb__sampler_room(w->sampler);
    if (w->generator)
        NEB_TRY(neb__sampler_draw(w->sampler, p->batch, w->logits, &sampled));
    else
        NEB_TRY(w->links.relay.take(w->links.relay.arg, p->batch, sampled));
    NEB_TRY(neb__sampler_replace(w->sampler, p->batch, sampled, share, &d));
    NEB_TRY(neb__model_input_load(w->feed2, &d));
    if (p->micro) p->micro->key = neb__model_input_key(w->feed2) ^ 1;
    return NEB_OK;
}

void neb__run_discriminator(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    const struct neb_input *in = neb__model_input_tensors(w->feed2, t);
    neb__model_loss(w->model, t, neb__model_run(w->model, t, in), in, NULL);
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

static int64_t rows_of(const struct neb_batch *b)
{
    return (int64_t)b->side[0].used + (b->sides > 1 ? b->side[1].used : 0);
}

static void add_run(struct neb_work *w, struct neb_batch *b, neb_status (*load)(void *), neb_model_fn fn,
                    double weight, int *runs)
{
    int at = (*runs)++;
    w->pieces[at] = (struct neb_work_part){w, b, &w->micros[at]};
    w->micros[at] = (struct neb_micro){load, fn, &w->pieces[at], 0, weight};
}

/* The runs of the next micro-batches. */
static neb_status gather(struct neb_work *w, int *runs, int64_t *tokens)
{
    bool rtd = w->job->kind == NEB_TASK_RTD;
    *runs = 0;
    *tokens = 0;
    for (int64_t i = 0; i < w->job->train.micro; i++) {
        struct neb_batch *b;
        NEB_TRY(neb__prefetch_get(w->ahead, &b));
        w->batches++;
        double weight = b->loss.used;
        *tokens += rows_of(b);
        if (w->generator) add_run(w, b, neb__load_generator, neb__run_generator, weight, runs);
        if (w->model && rtd)
            add_run(w, b, neb__load_discriminator, neb__run_discriminator, w->generator ? 0 : weight, runs);
        if (!rtd)
            add_run(w, b, neb__load_plain, w->distill ? neb__run_student : neb__run_plain, weight, runs);
    }
    return NEB_OK;
}

/* Few tokens are masked, and in some batches none: there is nothing to learn then. */
static bool nothing_to_predict(const struct neb_work *w, int runs)
{
    for (int i = 0; i < runs; i++)
        if (w->micros[i].weight > 0) return false;
    return true;
}

static void give_back(struct neb_work *w, int runs)
{
    for (int i = 0; i < runs; i++)
        if (!i || w->pieces[i].batch != w->pieces[i - 1].batch)
            neb__prefetch_done(w->ahead, w->pieces[i].batch);
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
    bool done = s == NEB_OK || s == NEB_ERR_NONFINITE;
    neb_status given = done ? give_choices(w) : NEB_OK;
    w->to_give = NULL;
    give_back(w, runs);
    if (!done) return s;
    NEB_TRY(given);
    *out = (struct neb_work_step){
        .step = info.step,
        .loss = (double)info.loss[0] + (double)info.loss[1] + (double)info.loss[NEB_DISTILL_SLOT],
        .parts = {(double)info.loss[0], (double)info.loss[1], (double)info.loss[NEB_DISTILL_SLOT]},
        .grad_norm = (double)info.grad_norm,
        .tokens = tokens,
        .skipped = info.skipped,
        .empty = nothing_to_predict(w, runs)};
    return s;
}
