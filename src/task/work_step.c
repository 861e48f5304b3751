/* work_step.c: the step: micro-batches in, one update of the parameters out.
 *
 * A step is a list of runs, which the objective makes of its batches; each loads its batch just before it
 * computes. A site without text has batches without their ids, filled by work_outline.c. Here are also the runs of the objectives with one model. */
#include "task/work_internal.h"
#include "base/mem.h"
#include "optim/optimizer.h"
#include "task/samples.h"
#include "task/teacher.h"

#include <string.h>

enum { AHEAD = 4 };

/* ---- runs ---------------------------------------------------------------------------------------------- */

neb_status neb__load_plain(void *arg)
{
    struct neb_work_part *p = arg;
    struct neb_work *w = p->work;
    struct neb_model_input_data d = neb__model_input_of(p->batch);
    NEB_TRY(neb__model_input_load(w->input, &d));
    if (!p->micro) return NEB_OK;
    p->micro->key = neb__model_input_key(w->input) ^ (p->batch->judged ? 1ull << 62 : 0); /* another loss */
    return w->distill ? neb__distill_load(w->distill, p->batch) : NEB_OK;
}

static void run_plain(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    const struct neb_input *in = neb__model_input_tensors(w->input, t);
    neb__model_loss(w->model, t, neb__model_run(w->model, t, in), in, NULL);
}

static void run_student(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    neb__distill_run(w->distill, w->model, t, neb__model_input_tensors(w->input, t));
}

/* ---- one model ----------------------------------------------------------------------------------------- */

static neb_status make_model(struct neb_work *w)
{
    if (neb__work_is_staged(w) || neb__work_has_stage(w)) return neb__work_make_stage(w);
    return neb__model_create(&w->data->models.model, &w->job->peft, "", NULL, w->params, &w->model);
}

static void add_plain(struct neb_work *w, struct neb_batch *b)
{
    neb__work_add_run(w, b, neb__load_plain, w->distill ? run_student : run_plain, b->loss.used);
}

static neb_status eval_plain(struct neb_work *w, struct neb_batch *b, struct neb_eval_sums *s)
{
    struct neb_work_part p = {w, b, NULL};
    NEB_TRY(neb__load_plain(&p));
    return neb__eval_tokens(w, run_plain, &p, s);
}

const struct neb_objective_steps neb__plain_steps = {
    .make_models = make_model,
    .add_runs = add_plain,
    .eval = eval_plain,
    .sample = neb__sample_tokens,
    .loss_by_weight = true,
};

/* ---- the step ------------------------------------------------------------------------------------------ */

static int64_t rows_of(const struct neb_batch *b)
{
    return (int64_t)b->side[0].used + (b->sides > 1 ? b->side[1].used : 0);
}

static neb_status load_or_give_up(void *piece)
{
    struct neb_work_part *p = piece;
    struct neb_work *w = p->work;
    w->gave_up = w->gave_up || w->asks(w->asks_arg);
    return w->gave_up ? neb__quiet(NEB_ERR_CANCELLED, "the step was given up") : w->load[p - w->pieces](p);
}

bool neb__work_may_give_up(struct neb_work *w, bool (*asks)(void *arg), void *arg)
{
    const bool alone = !neb__work_is_split(w) && neb__group_size(neb__layout_data(w->layout)) == 1 &&
                       !neb__work_has_stage(w) && !w->links.retarget && !w->links.sampled;
    if (strcmp(w->job->parallel.offload, "none") != 0)
        return false; /* its values are on their way meanwhile */
    if (!alone || neb__work_wants_privacy(w)) return false;
    w->load = neb__calloc((size_t)(NEB_WORK_RUNS * w->job->train.micro), sizeof *w->load);
    if (!w->load) return false;
    neb__buf_init(&w->before, 64u << 20);
    w->asks = asks;
    w->asks_arg = arg;
    return true;
}

bool neb__work_gave_up(const struct neb_work *w)
{
    return w->gave_up;
}

/* The micro-batches of the step that was given up come once more. */
static neb_status go_back(struct neb_work *w)
{
    NEB_TRY(neb__work_load_position(w, w->before.data, w->before.len));
    return NEB_ERR_CANCELLED;
}

void neb__work_add_run(struct neb_work *w, struct neb_batch *b, neb_status (*load)(void *), neb_model_fn fn,
                       double weight)
{
    int at = w->runs++;
    w->pieces[at] = (struct neb_work_part){w, b, &w->micros[at]};
    if (w->asks) w->load[at] = load;
    w->micros[at] = (struct neb_micro){w->asks ? load_or_give_up : load, fn, &w->pieces[at], 0, weight};
}

/* Another rank makes these runs; here only their weights count. */
static void leave_to_others(struct neb_work *w, int first)
{
    for (int i = first; i < w->runs; i++) w->micros[i].fn = NULL;
}

/* The samples that a later step learns from are written by the model as it is before this one. */
static neb_status sample_ahead(struct neb_work *w)
{
    if (!w->links.sampled) return NEB_OK;
    if (!w->sampler) NEB_TRY(neb__own_sampler_open(w->data, w->dev, w->model, w->batches, &w->sampler));
    return neb__own_sampler_step(w->sampler, w->links.sampled, w->links.sampled_arg);
}

static neb_status next_batch(struct neb_work *w, int64_t i, struct neb_batch **out)
{
    if (w->ahead) return neb__prefetch_get(w->ahead, out);
    *out = neb__work_bare_batch(w, i);
    return NEB_OK;
}

/* The runs of the next micro-batches. Every copy of the model draws all of them and makes every copies-th: so a step learns
 * from the same samples under every layout, and no rank needs to ask for the others' weights. */
static neb_status gather(struct neb_work *w, int64_t *tokens)
{
    struct neb_group *copies = neb__layout_data(w->layout);
    const int64_t ranks = neb__group_size(copies);
    w->runs = 0;
    *tokens = 0;
    /* all of them are there, or the step has taken none and the position is that before it */
    neb_status ready = w->ahead ? neb__prefetch_await(w->ahead, (int)w->job->train.micro) : NEB_OK;
    w->text_failed = ready != NEB_OK;
    NEB_TRY(ready);
    NEB_TRY(sample_ahead(w));
    if (!w->ahead) NEB_TRY(neb__work_take_step(w));
    for (int64_t i = 0; i < w->job->train.micro; i++) {
        struct neb_batch *b;
        NEB_TRY(next_batch(w, i, &b));
        if (w->links.retarget) NEB_TRY(w->links.retarget(w->links.retarget_arg, b));
        w->batches++;
        *tokens += rows_of(b);
        int first = w->runs;
        w->steps->add_runs(w, b);
        if (i % ranks != neb__group_rank(copies)) leave_to_others(w, first);
    }
    return w->ahead ? neb__work_compare_step(w) : NEB_OK;
}

bool neb__work_text_failed(const struct neb_work *w)
{
    return w->text_failed;
}

/* Few tokens are masked, and in some batches none: there is nothing to learn then. */
static bool nothing_to_predict(const struct neb_work *w)
{
    for (int i = 0; i < w->runs; i++)
        if (w->micros[i].weight > 0) return false;
    return true;
}

static void give_back(struct neb_work *w)
{
    for (int i = 0; w->ahead && i < w->runs; i++)
        if (!i || w->pieces[i].batch != w->pieces[i - 1].batch)
            neb__prefetch_done(w->ahead, w->pieces[i].batch);
}

neb_status neb__work_step(struct neb_work *w, float lr, struct neb_work_step *out)
{
    if (neb__work_wants_privacy(w)) return neb__work_private_step(w, lr, out);
    if (!w->ahead && neb__work_has_text(w))
        NEB_TRY(neb__prefetch_start(w->stream, AHEAD + (int)w->job->train.micro, &w->ahead));
    if (w->asks) {
        neb__buf_clear(&w->before);
        NEB_TRY(neb__work_save_position(w, &w->before));
    }
    int64_t tokens;
    struct neb_step_info info = {0};
    struct neb_reduce space;
    neb_status status = gather(w, &tokens);
    neb__work_forget(w);
    if (status == NEB_OK)
        status = neb_train_step(w->opt, w->tape, w->micros, w->runs, lr, (uint32_t)w->job->seed,
                                neb__work_reduce(w, &space), &info);
    else
        status = neb__ranks_run_over(w->opt, status);
    bool done = status == NEB_OK || status == NEB_ERR_NONFINITE;
    neb_status ended = w->steps->end_step ? w->steps->end_step(w, done) : NEB_OK;
    give_back(w);
    if (w->gave_up) return go_back(w);
    if (!done) return status;
    NEB_TRY(ended);
    *out = (struct neb_work_step){
        .step = info.step,
        .loss = (double)info.loss[0] + (double)info.loss[1] + (double)info.loss[NEB_DISTILL_SLOT],
        .parts = {(double)info.loss[0], (double)info.loss[1], (double)info.loss[NEB_DISTILL_SLOT]},
        .grad_norm = (double)info.grad_norm,
        .tokens = tokens,
        .skipped = info.skipped,
        .empty = nothing_to_predict(w)};
    return status;
}
