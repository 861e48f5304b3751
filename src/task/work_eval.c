/* work_eval.c: a job's model on held-out text: every batch once, without dropout, sums over all of them. */
#include "task/work_internal.h"

static neb_status eval_run(struct neb_work *w, neb_model_fn fn, struct neb_work_part *p, uint64_t key,
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
    struct neb_work_part p = {w, b, NULL};
    struct neb_ctl c;
    NEB_TRY(neb__load_plain(&p));
    NEB_TRY(eval_run(w, w->generator ? neb__run_generator : neb__run_plain, &p, neb__model_input_key(w->feed),
                     &c));
    sums[0] += (double)c.loss[0];
    sums[1] += (double)c.counts[0];
    sums[2] += (double)c.counts[1];
    e->rows += b->loss.used;
    e->batches++;
    if (!w->generator || !w->model || !b->loss.used) return NEB_OK; /* nothing masked, nothing replaced */
    NEB_TRY(neb__load_discriminator(&p));
    NEB_TRY(eval_run(w, neb__run_discriminator, &p, neb__model_input_key(w->feed2) ^ 1, &c));
    /* rows were weighted by rtd_weight * masked / rows: undone here */
    sums[3] += (double)c.loss[1] / (w->job->train.rtd_weight * b->loss.used) * (double)c.counts[1];
    sums[4] += (double)c.counts[0];
    sums[5] += (double)c.counts[1];
    e->rtd_recall += (double)c.counts[3];
    e->rtd_loss += (double)c.counts[2];
    return NEB_OK;
}

/* Batches of all the text. They come in its order, one language behind the other: some of them must be from everywhere. */
static neb_status count_batches(struct neb_work *w, const char *use, int64_t *total)
{
    struct neb_batches *stream = NULL;
    struct neb_batch *b = NULL;
    *total = 0;
    NEB_TRY(neb__data_stream(w->data, use, 0, 1, &stream));
    neb_status s = neb__batches_batch(stream, &b);
    while (s == NEB_OK && (s = neb__batches_next(stream, b)) == NEB_OK) ++*total;
    neb__batch_free(b);
    neb__batches_free(stream);
    return s == NEB_ERR_AGAIN ? NEB_OK : s;
}

neb_status neb__work_eval(struct neb_work *w, const char *use, int64_t batches, struct neb_work_eval *out)
{
    struct neb_batches *stream = NULL;
    struct neb_batch *b = NULL;
    struct neb_work_eval e = {0};
    double sums[6] = {0};
    int64_t total = 0;
    if (w->links.relay.take)
        return neb__quiet(NEB_ERR_NOTFOUND, "held-out text needs the generator, which is on another site");
    if (batches) NEB_TRY(count_batches(w, use, &total));
    if (!batches || batches > total) batches = total = 1; /* each of them */
    NEB_TRY(neb__data_stream(w->data, use, 0, 1, &stream));
    neb_status s = neb__batches_batch(stream, &b);
    for (int64_t i = 0; s == NEB_OK; i++) {
        s = neb__batches_next(stream, b);
        if (s == NEB_OK && (i + 1) * batches / total > i * batches / total) s = eval_batch(w, b, &e, sums);
    }
    neb__batch_free(b);
    neb__batches_free(stream);
    if (s != NEB_OK && s != NEB_ERR_AGAIN) return s;
    if (!e.rows)
        return neb__fail(
            NEB_ERR_RANGE,
            "the text with use: %s has no token to predict, so it has no loss: it needs more text, "
            "or shorter samples than train.max_len %" PRId64,
            use, w->job->train.max_len);
    e.loss = sums[0] / (double)e.rows;
    e.accuracy = sums[2] > 0 ? sums[1] / sums[2] : 0;
    double replaced = e.rtd_loss;
    e.rtd_loss = sums[5] > 0 ? sums[3] / sums[5] : 0;
    e.rtd_accuracy = sums[5] > 0 ? sums[4] / sums[5] : 0;
    e.rtd_recall = replaced > 0 ? e.rtd_recall / replaced : 0;
    *out = e;
    return NEB_OK;
}
