/* objective_rtd.c: replaced-token detection (ELECTRA, Clark et al. 2020).
 *
 * A generator learns to fill masks. Its choices are put into the text, and the model, the discriminator,
 * learns to find them: two runs of every batch. Both losses are normalised by one factor, so the
 * discriminator's rows carry what brings its own normalisation and weight about; that stays so when one of
 * the two lives on another site. A generator alone gives its choices away when the next run is about to
 * overwrite them, or when the step ends. */
#include "base/mem.h"
#include "task/objectives.h"
#include "task/rtd_sampler.h"
#include "task/samples.h"
#include "task/teacher.h"
#include "task/work_internal.h"

#include <stdio.h>
#include <string.h>

struct rtd {
    struct neb_model *table;       /* the generator's token table alone: the rest is on another site */
    struct neb_model_input *input; /* the discriminator's */
    neb_buffer *logits;            /* the generator's, at the masked rows */
    struct neb_sampler *sampler;
    struct neb_batch *to_give; /* relay: its choices have not gone out yet */
};

static struct rtd *own(const struct neb_work *w)
{
    return w->own;
}

static void set_batches(struct neb_batches_cfg *cfg)
{
    cfg->kind = NEB_BATCH_MLM;
    cfg->keep_share = cfg->random_share = -1; /* ELECTRA masks every chosen token */
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* The model whose embeddings the discriminator uses; NULL: it has its own. */
static neb_status find_embeddings(struct neb_work *w, const struct neb_model **out)
{
    *out = w->generator;
    if (!strcmp(w->job->train.rtd_embeddings, "separate")) *out = NULL;
    if (!strcmp(w->job->train.rtd_embeddings, "separate") || w->generator) return NEB_OK;
    if (!w->data->models.model.embedding_delta)
        return neb__doc_fail(
            &w->job->doc, "train.rtd_embeddings",
            "train.rtd_embeddings: 'shared' needs generator and discriminator on one site; on two, "
            "use 'disentangled', whose gradients go one way, or 'separate'");
    NEB_TRY(neb__model_create_table(&w->data->models.generator, "generator.", w->params, &own(w)->table));
    *out = own(w)->table;
    return NEB_OK;
}

static neb_status make_discriminator(struct neb_work *w)
{
    const struct neb_model *embeddings;
    NEB_TRY(find_embeddings(w, &embeddings));
    NEB_TRY(neb__model_create(&w->data->models.model, &w->job->peft, "", embeddings, w->params, &w->model));
    if (own(w)->table) neb_params_trainable(w->params, neb_param_name(own(w)->table->token), false);
    w->model->loss_slot = 1;
    return NEB_OK;
}

static neb_status make_models(struct neb_work *w)
{
    const struct neb_relay_ends *relay = &w->links.relay;
    if (!(w->own = NEB_NEW(struct rtd)))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for replaced-token detection");
    if (!relay->take) {
        NEB_TRY(neb__model_create(&w->data->models.generator, &w->job->peft, "generator.", NULL, w->params,
                                  &w->generator));
        neb__model_set_outputs(w->generator, neb__tok_vocab(w->data->tok));
    }
    if (!relay->give) NEB_TRY(make_discriminator(w));
    bool crosses = !strcmp(w->job->train.rtd_embeddings, "disentangled") && (relay->give || relay->take);
    if (crosses) w->table = own(w)->table ? own(w)->table->token : w->generator->token;
    return NEB_OK;
}

static neb_status make_inputs(struct neb_work *w, const struct neb_model_input_limits *limits)
{
    struct rtd *r = own(w);
    struct neb_model_input_limits l = *limits;
    struct neb_sampler_config c = {.tok = w->data->tok,
                                   .dev = w->dev,
                                   .rows = l.rows[0],
                                   .masked = l.targets,
                                   .seed = (uint32_t)w->job->seed,
                                   .threads = (int)w->job->train.threads,
                                   .draws = w->generator != NULL};
    if (w->generator) {
        size_t logits = (size_t)l.targets * (size_t)w->generator->outputs * sizeof(float);
        NEB_TRY(neb_buffer_create(w->dev, logits, &r->logits));
    }
    NEB_TRY(neb__sampler_create(&c, &r->sampler));
    l.targets = l.rows[0];
    return neb__model_input_create(w->dev, &l, &r->input);
}

static void close_rtd(struct neb_work *w)
{
    struct rtd *r = own(w);
    if (!r) return;
    neb__sampler_free(r->sampler);
    neb_buffer_destroy(r->logits);
    neb__model_input_destroy(r->input);
    neb__model_destroy(r->table);
    neb__free(r);
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

/* The choices that still lie on the device go to the other site. */
static neb_status give_choices(struct neb_work *w)
{
    struct rtd *r = own(w);
    struct neb_batch *b = r->to_give;
    int32_t *sampled;
    r->to_give = NULL;
    if (!b) return NEB_OK;
    NEB_TRY(neb__sampler_draw(r->sampler, b, r->logits, &sampled));
    return w->links.relay.give(w->links.relay.arg, b, sampled);
}

static neb_status end_step(struct neb_work *w, bool made)
{
    neb_status status = made ? give_choices(w) : NEB_OK;
    own(w)->to_give = NULL;
    return status;
}

static neb_status load_generator(void *arg)
{
    struct neb_work_part *p = arg;
    NEB_TRY(give_choices(p->work));
    NEB_TRY(neb__load_plain(arg));
    if (p->micro && p->work->links.relay.give) own(p->work)->to_give = p->batch;
    return NEB_OK;
}

static void run_generator(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    const struct neb_input *in = neb__model_input_tensors(w->input, t);
    neb_tensor *x = neb__model_run(w->generator, t, in);
    neb__model_loss(w->generator, t, x, in, NULL);
    neb_tensor *fixed = neb_op_stop_gradient(t, x);
    neb_output(t, neb__model_logits(w->generator, t, fixed, &in->side[0], in->target_row), own(w)->logits,
               NEB_F32);
}

/* The generator's choices, put into the text. */
static neb_status load_discriminator(void *arg)
{
    struct neb_work_part *p = arg;
    struct neb_work *w = p->work;
    struct rtd *r = own(w);
    struct neb_model_input_data d = neb__model_input_of(p->batch);
    float share = (float)(w->job->train.rtd_weight * p->batch->loss.used);
    int32_t *sampled = neb__sampler_room(r->sampler);
    if (w->generator)
        NEB_TRY(neb__sampler_draw(r->sampler, p->batch, r->logits, &sampled));
    else
        NEB_TRY(w->links.relay.take(w->links.relay.arg, p->batch, sampled));
    NEB_TRY(neb__sampler_replace(r->sampler, p->batch, sampled, share, &d));
    NEB_TRY(neb__model_input_load(r->input, &d));
    if (p->micro) p->micro->key = neb__model_input_key(r->input) ^ 1;
    return NEB_OK;
}

static void run_discriminator(neb_tape *t, void *arg)
{
    struct neb_work *w = ((struct neb_work_part *)arg)->work;
    const struct neb_input *in = neb__model_input_tensors(own(w)->input, t);
    neb__model_loss(w->model, t, neb__model_run(w->model, t, in), in, NULL);
}

static void add_runs(struct neb_work *w, struct neb_batch *b)
{
    double weight = b->loss.used;
    if (w->generator) neb__work_add_run(w, b, load_generator, run_generator, weight);
    if (w->model) neb__work_add_run(w, b, load_discriminator, run_discriminator, w->generator ? 0 : weight);
}

/* ---- held-out text ------------------------------------------------------------------------------------- */

/* Places of neb_work_eval.more. */
enum { LOSS, ACCURACY, RECALL }; /* recall: of the replaced tokens */

/* Places of neb_eval_sums.own. */
enum { SUM_LOSS, SUM_RIGHT, SUM_ROWS, SUM_REPLACED, SUM_FOUND };

static neb_status eval(struct neb_work *w, struct neb_batch *b, struct neb_eval_sums *s)
{
    struct neb_work_part p = {w, b, NULL};
    struct neb_ctl c;
    NEB_TRY(neb__load_plain(&p));
    NEB_TRY(neb__eval_tokens(w, run_generator, &p, s));
    if (!w->model || !b->loss.used) return NEB_OK; /* nothing masked, nothing replaced */
    NEB_TRY(load_discriminator(&p));
    NEB_TRY(neb__eval_run(w, run_discriminator, &p, neb__model_input_key(own(w)->input) ^ 1, &c));
    /* rows were weighted by rtd_weight * masked / rows: undone here */
    s->own[SUM_LOSS] += (double)c.loss[1] / (w->job->train.rtd_weight * b->loss.used) * (double)c.counts[1];
    s->own[SUM_RIGHT] += (double)c.counts[0];
    s->own[SUM_ROWS] += (double)c.counts[1];
    s->own[SUM_REPLACED] += (double)c.counts[2];
    s->own[SUM_FOUND] += (double)c.counts[3];
    return NEB_OK;
}

static double share(double part, double of)
{
    return of > 0 ? part / of : 0;
}

static void end_eval(const struct neb_eval_sums *s, struct neb_work_eval *out)
{
    out->more[LOSS] = share(s->own[SUM_LOSS], s->own[SUM_ROWS]);
    out->more[ACCURACY] = share(s->own[SUM_RIGHT], s->own[SUM_ROWS]);
    out->more[RECALL] = share(s->own[SUM_FOUND], s->own[SUM_REPLACED]);
}

static void describe(const struct neb_work_eval *e, char *out, size_t size)
{
    snprintf(
        out, size,
        "generator loss %.4f, accuracy %.1f %%; discriminator loss %.4f, accuracy %.1f %%, of the replaced "
        "%.1f %%",
        e->loss, 100 * e->accuracy, e->more[LOSS], 100 * e->more[ACCURACY], 100 * e->more[RECALL]);
}

static void describe_more(const struct neb_work_eval *e, char *out, size_t size)
{
    snprintf(out, size, "replaced tokens: loss %.4f, accuracy %.2f %%, of the replaced %.2f %%",
             e->more[LOSS], 100 * e->more[ACCURACY], 100 * e->more[RECALL]);
}

/* ---- the row ------------------------------------------------------------------------------------------- */

static const struct neb_objective_steps steps = {.make_models = make_models,
                                                 .make_inputs = make_inputs,
                                                 .close = close_rtd,
                                                 .add_runs = add_runs,
                                                 .end_step = end_step,
                                                 .eval = eval,
                                                 .end_eval = end_eval,
                                                 .sample = neb__sample_tokens};

const struct neb_objective neb__objective_rtd = {
    .name = "rtd",
    .about = "an encoder finds the tokens that a generator has replaced",
    .kind = "encoder",
    .head = "rtd",
    .family = "electra",
    .families = "bert, xlm-r, electra",
    .generator = &neb__objective_mlm,
    .sides = 1,
    .joins_pairs = true,
    .masks = true,
    .set_batches = set_batches,
    .steps = &steps,
    .losses = {"generator_loss", "discriminator_loss"},
    .metrics = {[LOSS] = "rtd_loss", [ACCURACY] = "rtd_accuracy"},
    .describe = describe,
    .describe_more = describe_more,
};
