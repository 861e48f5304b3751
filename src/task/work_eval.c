/* work_eval.c: a job's model on held-out text: every batch once, without dropout, sums over all of them. */
#include "task/work_internal.h"

#include <math.h>
#include <stdio.h>

neb_status neb__eval_run(struct neb_work *w, neb_model_fn fn, struct neb_work_part *p, uint64_t key,
                         struct neb_ctl *out)
{
    *out = (struct neb_ctl){.step = 1, .seed = 1, .loss_scale = 1};
    struct neb_run run = {.fn = fn, .arg = p, .key = key};
    NEB_TRY(neb_tape_begin_step(w->tape, out));
    NEB_TRY(neb__work_stage_eval(w, &run));
    return neb_tape_end_step(w->tape, true, out);
}

neb_status neb__eval_tokens(struct neb_work *w, neb_model_fn fn, struct neb_work_part *p,
                            struct neb_eval_sums *s)
{
    struct neb_ctl c;
    NEB_TRY(neb__eval_run(w, fn, p, neb__model_input_key(w->input), &c));
    s->loss += (double)c.loss[0];
    s->right += (double)c.counts[0];
    s->counted += (double)c.counts[1];
    s->rows += p->batch->loss.used;
    s->batches++;
    return NEB_OK;
}

void neb__describe_tokens(const struct neb_work_eval *e, char *out, size_t size)
{
    snprintf(out, size, "loss %.4f, perplexity %.2f, accuracy %.1f %%", e->loss, exp(e->loss),
             100 * e->accuracy);
}

/* Counts the batches of all the text. They come in its order, one language behind the other, so a selection
 * must be spread. */
static neb_status count_batches(struct neb_work *w, const char *use, int64_t *total)
{
    struct neb_batches *stream = NULL;
    struct neb_batch *b = NULL;
    *total = 0;
    NEB_TRY(neb__data_stream(w->data, use, 0, 1, &stream));
    neb_status status = neb__batches_batch(stream, &b);
    while (status == NEB_OK && (status = neb__batches_next(stream, b)) == NEB_OK) ++*total;
    neb__batch_free(b);
    neb__batches_free(stream);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

neb_status neb__work_eval(struct neb_work *w, const char *use, int64_t batches, struct neb_work_eval *out)
{
    struct neb_batches *stream = NULL;
    struct neb_batch *b = NULL;
    struct neb_eval_sums sums = {0};
    int64_t total = 0;
    if (w->links.relay.take)
        return neb__quiet(NEB_ERR_NOTFOUND, "held-out text needs the generator, which is on another site");
    if (batches) NEB_TRY(count_batches(w, use, &total));
    if (!batches || batches > total) batches = total = 1; /* each of them */
    NEB_TRY(neb__data_stream(w->data, use, 0, 1, &stream));
    neb__work_stage_first_input(w);
    neb_status status = neb__batches_batch(stream, &b);
    for (int64_t i = 0; status == NEB_OK; i++) {
        status = neb__batches_next(stream, b);
        if (status == NEB_OK && (i + 1) * batches / total > i * batches / total)
            status = w->steps->eval(w, b, &sums);
    }
    neb__batch_free(b);
    neb__batches_free(stream);
    if (status != NEB_OK && status != NEB_ERR_AGAIN) return status;
    NEB_TRY(neb__work_stage_sums(w, &sums));
    if (!sums.rows)
        return neb__fail(
            NEB_ERR_RANGE,
            "the text with use: %s has no token to predict, so it has no loss: it needs more text, "
            "or shorter samples than train.max_len %" PRId64,
            use, w->job->train.max_len);
    struct neb_work_eval e = {.loss = sums.loss / (double)sums.rows,
                              .accuracy = sums.counted > 0 ? sums.right / sums.counted : 0,
                              .rows = sums.rows,
                              .batches = sums.batches};
    if (w->steps->end_eval) w->steps->end_eval(&sums, &e);
    *out = e;
    return NEB_OK;
}
