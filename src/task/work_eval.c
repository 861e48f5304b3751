/* work_eval.c: a job's model on held-out text: every batch once, without dropout, sums over all of them.
 *
 * The text comes in its order, one language behind the other, so most batches have one language, and their loss counts for it.
 * A batch with several is run again for each of them. The loss over all languages does not depend on that. Where the sites of
 * a job have a language each, the loss of a site is that of its language, and is recorded as such.
 *
 * A site without text (strategy pipeline) makes the runs that the stage before it announces, and gets the sums of the last one. */
#include "task/work_internal.h"
#include "text/batch_outline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* ---- by language --------------------------------------------------------------------------------------------- */

struct language_sums {
    struct neb_eval_sums
        of[NEB_EVAL_LANGUAGES]; /* by the index of the data's list; further ones are not told apart */
};

/* The language of loss row i, or -1. */
static int language_of(const struct neb_work *w, const struct neb_batch *b, int32_t i)
{
    const struct neb_batch_side *s = &b->side[b->sides - 1];
    const int32_t row = b->loss.rows[i];
    if (row < 0 || row >= s->tokens) return -1;
    const int32_t lang = s->lang[row];
    return lang >= 0 && lang < w->data->n_langs && lang < NEB_EVAL_LANGUAGES ? lang : -1;
}

/* Rows of each language. Returns how many languages there are; *any is one of them. */
static int count_languages(const struct neb_work *w, const struct neb_batch *b,
                           int64_t rows[NEB_EVAL_LANGUAGES], int *any)
{
    int n = 0;
    memset(rows, 0, NEB_EVAL_LANGUAGES * sizeof *rows);
    for (int32_t i = 0; i < b->loss.used; i++) {
        int lang = language_of(w, b, i);
        if (lang < 0) return 0;
        if (!rows[lang]++) n++, *any = lang;
    }
    return n;
}

/* Once more for each language, with the weights of the others 0. */
static neb_status eval_apart(struct neb_work *w, struct neb_batch *b, const int64_t rows[NEB_EVAL_LANGUAGES],
                             struct language_sums *l)
{
    neb_status status = NEB_OK;
    for (int lang = 0; lang < NEB_EVAL_LANGUAGES && status == NEB_OK; lang++) {
        struct neb_eval_sums sums = {0};
        if (!rows[lang]) continue;
        for (int32_t i = 0; i < b->loss.used; i++) b->loss.weight[i] = language_of(w, b, i) == lang;
        status = w->steps->eval(w, b, &sums);
        l->of[lang].loss += sums.loss;
        l->of[lang].rows += rows[lang];
    }
    for (int32_t i = 0; i < b->loss.used; i++) b->loss.weight[i] = 1;
    return status;
}

static neb_status eval_batch(struct neb_work *w, struct neb_batch *b, struct neb_eval_sums *sums,
                             struct language_sums *l)
{
    const struct neb_eval_sums before = *sums;
    int64_t rows[NEB_EVAL_LANGUAGES];
    int lang = 0, n = count_languages(w, b, rows, &lang);
    const bool apart = n > 1 && w->steps->loss_by_weight;
    NEB_TRY(neb__work_compare_eval(w, b, 1 + (apart ? n : 0)));
    NEB_TRY(w->steps->eval(w, b, sums));
    if (n > 1) return apart ? eval_apart(w, b, rows, l) : NEB_OK;
    if (n < 1) return NEB_OK;
    l->of[lang].loss += sums->loss - before.loss;
    l->of[lang].rows += rows[lang];
    return NEB_OK;
}

/* The job predicts more than one language, all sites and uses together. */
static bool job_has_several(const struct neb_job *j)
{
    char first[NEB_LANG_SIZE], lang[NEB_LANG_SIZE];
    for (int i = 0; i < j->n_data; i++) {
        const struct neb_job_data *c = &j->data[i];
        if (j->objective->sides == 1 && c->lang && strchr(c->lang, '-')) return true; /* text in both */
        snprintf(lang, sizeof lang, "%s", c->lang ? c->lang : "");
        if (j->objective->sides > 1) neb__data_target_lang(c, lang);
        if (!i) memcpy(first, lang, sizeof first);
        if (strcmp(lang, first) != 0) return true;
    }
    return false;
}

/* Losses are at the last stage of a pipeline; every rank knows the rows. name: of language i. */
static neb_status end_languages(struct neb_work *w, struct language_sums *l, const char *const *name,
                                struct neb_work_eval *e)
{
    for (int i = 0; i < NEB_EVAL_LANGUAGES && job_has_several(w->job); i++) {
        struct neb_eval_sums *s = &l->of[i];
        if (!s->rows || !*name[i]) continue; /* a language has a name */
        NEB_TRY(neb__work_stage_sums(w, s));
        struct neb_language_loss *to = &e->language[e->languages++];
        to->loss = s->rows > 0 ? s->loss / (double)s->rows : 0;
        to->rows = s->rows;
        snprintf(to->name, sizeof to->name, "%s", name[i]);
    }
    return NEB_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

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

/* What follows from the sums of all stages. */
static neb_status conclude(struct neb_work *w, const char *use, struct neb_eval_sums *sums,
                           struct language_sums *languages, const char *const *names,
                           struct neb_work_eval *out)
{
    NEB_TRY(neb__work_stage_sums(w, sums));
    if (!sums->rows)
        return neb__fail(
            NEB_ERR_RANGE,
            "the text with use: %s has no token to predict, so it has no loss: it needs more text, "
            "or shorter samples than train.max_len %" PRId64,
            use, w->job->train.max_len);
    struct neb_work_eval e = {.loss = sums->loss / (double)sums->rows,
                              .accuracy = sums->counted > 0 ? sums->right / sums->counted : 0,
                              .rows = sums->rows,
                              .batches = sums->batches};
    if (w->steps->end_eval) w->steps->end_eval(sums, &e);
    NEB_TRY(end_languages(w, languages, names, &e));
    *out = e;
    return NEB_OK;
}

/* The stages behind this one hear how it ends, and which languages there are. */
static neb_status say_end(struct neb_work *w, const struct language_sums *l, const char *const *names)
{
    const char *list[NEB_EVAL_LANGUAGES];
    int n = 0;
    for (int i = 0; i < NEB_EVAL_LANGUAGES; i++)
        if (l->of[i].rows > 0 && *names[i]) list[n++] = names[i];
    return neb__work_compare_eval_end(w, list, n);
}

static neb_status eval_bare(struct neb_work *w, const char *use, struct neb_work_eval *out)
{
    struct neb_eval_sums sums = {0};
    struct language_sums languages = {0};
    struct neb_outline_head head;
    const char *names[NEB_EVAL_LANGUAGES];
    neb__work_stage_first_input(w);
    for (;;) {
        struct neb_batch *b;
        NEB_TRY(neb__work_take_eval(w, &b, &head));
        if (head.what == NEB_OUTLINE_EVAL_NONE)
            return neb__quiet(NEB_ERR_NOTFOUND, "no corpus with use: %s", use);
        if (!b) break;
        for (int i = 0; i < head.runs; i++) NEB_TRY(w->steps->eval(w, b, &sums));
    }
    for (int i = 0; i < head.names; i++) names[i] = head.name[i], languages.of[i].rows = 1;
    return conclude(w, use, &sums, &languages, names, out);
}

/* *batches of *total are to be run. */
static neb_status open_text(struct neb_work *w, const char *use, int64_t *batches, int64_t *total,
                            struct neb_batches **stream)
{
    *total = 0;
    if (*batches) NEB_TRY(count_batches(w, use, total));
    if (!*batches || *batches > *total) *batches = *total = 1; /* each of them */
    return neb__data_stream(w->data, use, 0, 1, stream);
}

neb_status neb__work_eval(struct neb_work *w, const char *use, int64_t batches, struct neb_work_eval *out)
{
    struct neb_batches *stream = NULL;
    struct neb_batch *b = NULL;
    struct neb_eval_sums sums = {0};
    struct language_sums languages = {0};
    const char *names[NEB_EVAL_LANGUAGES] = {0};
    int64_t total;
    if (w->links.relay.take)
        return neb__quiet(NEB_ERR_NOTFOUND, "held-out text needs the generator, which is on another site");
    if (!neb__work_has_text(w)) return eval_bare(w, use, out);
    neb_status status = open_text(w, use, &batches, &total, &stream);
    if (status == NEB_ERR_NOTFOUND) NEB_TRY(neb__work_compare_eval_end(w, NULL, -1));
    if (status == NEB_ERR_NOTFOUND) return neb__quiet(status, "no corpus with use: %s", use);
    NEB_TRY(status);
    for (int i = 0; i < NEB_EVAL_LANGUAGES && i < w->data->n_langs; i++) names[i] = w->data->langs[i];
    neb__work_stage_first_input(w);
    bool ended = false; /* NEB_ERR_AGAIN may also be a stage that was asked to stop */
    status = neb__batches_batch(stream, &b);
    for (int64_t i = 0; status == NEB_OK; i++) {
        status = neb__batches_next(stream, b);
        ended = status == NEB_ERR_AGAIN;
        if (status == NEB_OK && (i + 1) * batches / total > i * batches / total)
            status = eval_batch(w, b, &sums, &languages);
    }
    neb__batch_free(b);
    neb__batches_free(stream);
    if (!ended) return status;
    NEB_TRY(say_end(w, &languages, names));
    return conclude(w, use, &sums, &languages, names, out);
}
