/* work_private.c: steps of `privacy.unit: sample`: samples are drawn by Poisson sampling, and each has a micro-batch of its own.
 *
 * Every sample of this site takes part in a step with the same probability, independently of the others and of other
 * steps. The account counts on that: it is what a shuffled order would not give. The draw is secret, so it comes from the
 * system's generator and not from the job's seed. Gaps between drawn samples are geometric, so a step costs a number for
 * each sample drawn and none for the others.
 *
 * The draw follows from the step's key. Ranks have the same key, draw the same samples, and run every n-th of them. Whoever gives the key
 * has charged the step before (privacy/ledger.h); a key serves for one step. The tokens of a step are told to other sites, so
 * the number is that of a full step and not that of the draw. */
#include "task/work_internal.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "optim/optimizer.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 16 }; /* steps that are charged at a time */

struct neb_work_private {
    struct neb_work *work;
    struct neb_batches *samples;
    struct neb_batch *batch;
    struct neb_secret_bits bits;
    struct neb_private_step step;
    struct neb_privacy_rule rule;
    bool keyed;                 /* step.key is that of the next step */
    int64_t first, every, last; /* the samples of this site: first, first + every, … */
    int64_t at;                 /* the next one that may be drawn, counted among these */
    int64_t count;              /* of these */
    int64_t drawn;              /* in this step, by all ranks */
    uint64_t salt;
};

/* ---- drawing ------------------------------------------------------------------------------------------- */

/* Every rank looks at all draws, so that the salts, and with them masks and dropout, do not depend on who runs a sample. */
static neb_status next_sample(void *arg, struct neb_micro *out)
{
    struct neb_work_private *p = arg;
    struct neb_work *w = p->work;
    const struct neb_group *copies = neb__layout_data(w->layout);
    for (;;) {
        neb_status status = NEB_OK;
        p->at = neb__secret_bits_taken(&p->bits, p->rule.step.rate, p->at, p->count, &status);
        NEB_TRY(status);
        if (p->at >= p->count) return NEB_ERR_AGAIN;
        const int64_t sample = p->first + p->at++ * p->every, nth = p->drawn++;
        p->step.order = neb__mix64(p->step.order ^ (uint64_t)sample);
        if (nth % neb__group_size(copies) != neb__group_rank(copies)) continue;
        status = neb__batches_one(p->samples, sample, p->salt + (uint64_t)nth, p->batch);
        if (status == NEB_ERR_AGAIN) continue; /* too long: it takes part with nothing */
        NEB_TRY(status);
        break;
    }
    w->runs = 0;
    w->steps->add_runs(w, p->batch);
    *out = w->micros[0];
    NEB_TRY(out->load(out->arg));
    *out = w->micros[0]; /* loading has set the key */
    out->load = NULL;
    return NEB_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static neb_status check(const struct neb_work *w)
{
    const struct neb_job *j = w->job;
    if (j->objective->generator)
        return neb__doc_fail(&j->doc, "privacy.unit",
                             "privacy.unit: sample does not work with task %s, whose steps have two models",
                             j->task);
    if (w->distill)
        return neb__doc_fail(&j->doc, "privacy.unit",
                             "privacy.unit: sample does not work with `distill` yet");
    for (int i = 0; i < j->n_data; i++) {
        const struct neb_job_data *d = &j->data[i];
        if (strcmp(d->use, "train") || (d->copies == 1 && d->weight == 1)) continue;
        return neb__doc_fail(&j->doc, "data",
                             "privacy.unit: sample draws every sample alike: leave out data[].copies and "
                             "data[].weight");
    }
    return neb__private_step_check(w->opt);
}

/* Noise for the budget: the planned steps, and two blocks for starts again. */
neb_status neb__work_sample_rule(const struct neb_job *j, int64_t samples, struct neb_privacy_rule *out)
{
    const struct neb_job_privacy *c = &j->privacy;
    double rate = fmin(1, (double)c->samples / (double)samples), noise = c->noise, cost;
    double steps = (double)j->train.steps + 2 * BLOCK;
    if (!(noise > 0) && !(c->epsilon > 0))
        return neb__doc_fail(&j->doc, "privacy.noise", "privacy: name epsilon or noise");
    if (!(noise > 0)) NEB_TRY(neb__privacy_noise(c->epsilon, rate, steps, c->delta, &noise));
    *out = (struct neb_privacy_rule){.unit = NEB_PRIVACY_SAMPLE,
                                     .step = {noise, rate},
                                     .clip = c->clip,
                                     .delta = c->delta,
                                     .limit = c->epsilon,
                                     .block = BLOCK};
    NEB_TRY(neb__privacy_epsilon(&out->step, (double)j->train.steps, c->delta, &cost));
    if (c->epsilon > 0 && cost > c->epsilon)
        return neb__doc_fail(&j->doc, "privacy.noise",
                             "privacy: %" PRId64
                             " steps with noise %.4g would cost epsilon %.4g, more than %.4g; "
                             "leave `noise` out, or make fewer steps",
                             j->train.steps, noise, cost, c->epsilon);
    return NEB_OK;
}

static void say_rule(const struct neb_work_private *p)
{
    const struct neb_job *j = p->work->job;
    double cost = 0;
    if (neb__group_rank(neb__layout_world(p->work->layout))) return;
    (void)neb__privacy_epsilon(&p->rule.step, (double)j->train.steps, p->rule.delta, &cost);
    neb__info("privacy: %" PRId64 " steps will cost epsilon %.4g at delta %.3g: a sample of %" PRId64
              " takes part with probability %.4g, noise %.4g times the clip",
              j->train.steps, cost, p->rule.delta, p->count, p->rule.step.rate, p->rule.step.noise);
    if (p->rule.delta * (double)p->count > 1)
        neb__warn("privacy.delta %.3g is more than one in the %" PRId64 " samples: one of them may be laid "
                  "open within it",
                  p->rule.delta, p->count);
}

static neb_status make_parts(struct neb_work_private *p)
{
    struct neb_work *w = p->work;
    NEB_TRY(neb__data_samples(w->data, &p->samples));
    NEB_TRY(neb__batches_batch(p->samples, &p->batch));
    int64_t all = neb__batches_samples(p->samples);
    p->first = w->part;
    p->every = w->parts;
    p->count = all > p->first ? (all - p->first + p->every - 1) / p->every : 0;
    if (!p->count) return neb__doc_fail(&w->job->doc, "data", "privacy: this site has no sample of its own");
    NEB_TRY(neb__work_sample_rule(w->job, p->count, &p->rule));
    say_rule(p);
    p->step = (struct neb_private_step){
        .clip = p->rule.clip, .samples = (double)w->job->privacy.samples, .next = next_sample, .arg = p};
    p->step.sum = NEB_NEW_ARRAY(int64_t, (size_t)w->params->trainable_values);
    if (!p->step.sum) return neb__fail(NEB_ERR_NOMEM, "out of memory for the sum of gradients");
    return neb__noise_create(p->rule.step.noise * NEB_PRIVACY_UNITS, &p->step.noise);
}

bool neb__work_wants_privacy(const struct neb_work *w)
{
    return !strcmp(w->job->privacy.unit, "sample");
}

neb_status neb__work_open_private(struct neb_work *w)
{
    if (!neb__work_wants_privacy(w)) return NEB_OK;
    NEB_TRY(check(w));
    w->privacy = NEB_NEW(struct neb_work_private);
    if (!w->privacy) return neb__fail(NEB_ERR_NOMEM, "out of memory for private steps");
    w->privacy->work = w;
    return make_parts(w->privacy);
}

void neb__work_close_private(struct neb_work *w)
{
    struct neb_work_private *p = w->privacy;
    if (!p) return;
    neb__batches_free(p->samples);
    neb__batch_free(p->batch);
    neb__secret_bits_close(&p->bits);
    neb__step_key_wipe(&p->step.key);
    neb__noise_free(p->step.noise);
    neb__free(p->step.sum);
    neb__free(p);
    w->privacy = NULL;
}

bool neb__work_privacy(const struct neb_work *w, struct neb_privacy_rule *out)
{
    if (w->privacy && out) *out = w->privacy->rule;
    return w->privacy;
}

int64_t neb__work_private_samples(const struct neb_work *w)
{
    return w->privacy ? w->privacy->count : 0;
}

void neb__work_set_key(struct neb_work *w, const struct neb_step_key *key)
{
    if (!w->privacy) return;
    w->privacy->step.key = *key;
    w->privacy->keyed = true;
}

/* ---- a step -------------------------------------------------------------------------------------------- */

static neb_status begin_draw(struct neb_work_private *p)
{
    neb_status status = NEB_OK;
    p->keyed = false;
    p->at = p->drawn = 0;
    NEB_TRY(neb__step_draw(&p->step.key, &p->bits));
    p->salt = neb__secret_bits_next(&p->bits, &status);
    return status;
}

neb_status neb__work_private_step(struct neb_work *w, float lr, struct neb_work_step *out)
{
    struct neb_work_private *p = w->privacy;
    struct neb_step_info info = {0};
    neb_status status = NEB_OK;
    if (!p || !p->keyed)
        status =
            neb__fail(NEB_ERR_STATE, "a private step needs a key, which comes with its charge to an account");
    if (status == NEB_OK) status = begin_draw(p);
    if (status != NEB_OK) return neb__ranks_run_over(w->opt, status);
    neb__work_forget(w);
    status = neb__private_step(w->opt, w->tape, &p->step, lr, (uint32_t)w->job->seed, &info);
    neb__step_key_wipe(&p->step.key);
    if (status != NEB_OK && status != NEB_ERR_NONFINITE) return status;
    w->batches++;
    *out = (struct neb_work_step){.step = info.step,
                                  .loss = (double)info.loss[0] + (double)info.loss[1],
                                  .parts = {(double)info.loss[0], (double)info.loss[1]},
                                  .grad_norm = (double)info.grad_norm,
                                  .tokens = w->job->privacy.samples * w->job->train.max_len,
                                  .skipped = info.skipped,
                                  .mark = p->step.mark};
    return status;
}
