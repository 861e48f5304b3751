/* samples.c: see samples.h.
 *
 * The samples are the first sequences of the first batch of held-out text. That batch comes in the order of the files, so the
 * samples of two evaluations, and of two sites with the same text, can be compared by eye. The batch's kind says what the
 * model does with them: it fills masks (MLM), continues the first half of a text (CAUSAL) or translates (PAIR). Choices are the
 * likeliest ones, so equal parameters give equal samples. The runs have a tape of their own: nothing of the training's plans
 * or recorded steps changes. */
#include "task/samples.h"
#include "base/mem.h"
#include "nn/decode.h"
#include "task/work_internal.h"

#include <string.h>

enum {
    SHOWN = 3,    /* texts */
    PROMPT = 24,  /* tokens of a text that is continued, at most half of it */
    MADE = 48,    /* tokens that are made, at most */
    WINDOW = 64,  /* tokens of a masked text that are shown */
    TARGETS = 24, /* masks that are filled */
    TEXT = 400    /* bytes of a line */
};

/* ---- lines --------------------------------------------------------------------------------------------- */

/* A line breaks nowhere, and is cut between two characters. */
static neb_status put_line(struct neb_buf *out, const char *label, struct neb_buf *text)
{
    if (!text->len) NEB_TRY(neb__buf_printf(text, "(nothing)"));
    size_t n = text->len;
    for (size_t i = 0; i < n; i++)
        if (text->data[i] < ' ') text->data[i] = ' ';
    bool cut = n > TEXT;
    if (cut)
        for (n = TEXT; n && (text->data[n] & 0xc0) == 0x80;) n--;
    return neb__buf_printf(out, "%-13s%.*s%s\n", label, (int)n, n ? (const char *)text->data : "",
                           cut ? "…" : "");
}

static neb_status put_tokens(const struct neb_tok *tok, const char *label, const int32_t *ids, int32_t n,
                             struct neb_buf *out)
{
    struct neb_buf text;
    neb__buf_init(&text, 1 << 20);
    neb_status status = neb__tok_decode(tok, ids, (size_t)n, &text);
    if (status == NEB_OK) status = put_line(out, label, &text);
    neb__buf_free(&text);
    return status;
}

static int texts_of(const struct neb_batch_side *s)
{
    return s->nseq_used < SHOWN ? s->nseq_used : SHOWN;
}

/* ---- filled masks -------------------------------------------------------------------------------------- */

struct filling {
    struct neb_work *work;
    struct neb_model *model;
    neb_buffer *logits;
    int32_t row[TARGETS], choice[TARGETS], n; /* rows of the batch; tokens */
};

static void run_filling(neb_tape *t, void *arg)
{
    struct filling *f = arg;
    const struct neb_input *in = neb__model_input_tensors(f->work->input, t);
    neb_tensor *x = neb__model_run(f->model, t, in);
    neb_output(t, neb__model_logits(f->model, t, x, &in->side[0], in->target_row), f->logits, NEB_F32);
}

static int32_t likeliest(const float *logits, int64_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static neb_status choose(struct filling *f)
{
    int64_t width = f->model->outputs, vocab = neb__tok_vocab(f->work->data->tok);
    size_t bytes = (size_t)f->n * (size_t)width * sizeof(float);
    float *host = neb__malloc(bytes);
    if (!host) return neb__fail(NEB_ERR_NOMEM, "out of memory for the logits of %d masks", f->n);
    neb_status status = neb_buffer_download(f->logits, host, bytes);
    for (int32_t i = 0; status == NEB_OK && i < f->n; i++)
        f->choice[i] = likeliest(host + i * width, width < vocab ? width : vocab);
    neb__free(host);
    return status;
}

static neb_status fill(struct filling *f, const struct neb_batch *b, int texts)
{
    const struct neb_batch_side *s = &b->side[0];
    int32_t target[TARGETS] = {0};
    float weight[TARGETS] = {0};
    const struct neb_model_input_data d = {.sides = 1,
                                           .side = {{.rows = s->cu_seqlens[texts],
                                                     .seqs = texts,
                                                     .max_len = s->max_len,
                                                     .ids = s->ids,
                                                     .position = s->pos,
                                                     .type = s->type,
                                                     .sample = s->sample,
                                                     .starts = s->cu_seqlens,
                                                     .at = s->at}},
                                           .targets = f->n,
                                           .target_row = f->row,
                                           .target = target,
                                           .weight = weight};
    size_t bytes = (size_t)f->n * (size_t)f->model->outputs * sizeof(float);
    neb_tape *tape = NULL;
    NEB_TRY(neb__model_input_load(f->work->input, &d));
    NEB_TRY(neb_buffer_create(f->work->dev, bytes, &f->logits));
    neb_status status = neb_tape_create(f->work->dev, f->work->params, &tape);
    const struct neb_run run = {.fn = run_filling, .arg = f, .key = 1};
    if (status == NEB_OK) status = neb_tape_run(tape, &run);
    if (status == NEB_OK) status = choose(f);
    neb_tape_destroy(tape);
    neb_buffer_destroy(f->logits);
    return status;
}

/* The place of a row among the masks that are filled, or -1. */
static int32_t mask_at(const struct filling *f, int32_t row)
{
    for (int32_t i = 0; i < f->n; i++)
        if (f->row[i] == row) return i;
    return -1;
}

static neb_status put_gaps(const struct filling *f, const int32_t *ids, int32_t first, int32_t n,
                           struct neb_buf *out)
{
    const struct neb_tok *tok = f->work->data->tok;
    struct neb_buf text;
    neb_status status = NEB_OK;
    neb__buf_init(&text, 1 << 20);
    for (int32_t i = 0, end; status == NEB_OK && i < n; i = end) {
        bool gap = mask_at(f, first + i) >= 0;
        for (end = i + 1; !gap && end < n && mask_at(f, first + end) < 0;) end++;
        if (gap)
            status = neb__buf_printf(&text, " ___ ");
        else
            status = neb__tok_decode(tok, ids + i, (size_t)(end - i), &text);
    }
    if (status == NEB_OK) status = put_line(out, "masked", &text);
    neb__buf_free(&text);
    return status;
}

static neb_status put_filled(const struct filling *f, const struct neb_batch *b, int text,
                             struct neb_buf *out)
{
    const struct neb_tok *tok = f->work->data->tok;
    int32_t first = b->side[0].cu_seqlens[text], n = b->side[0].cu_seqlens[text + 1] - first, filled[WINDOW];
    if (n > WINDOW) n = WINDOW;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = mask_at(f, first + i);
        filled[i] = at < 0 ? b->original[first + i] : f->choice[at];
    }
    NEB_TRY(put_tokens(tok, "text", b->original + first, n, out));
    NEB_TRY(put_gaps(f, b->original + first, first, n, out));
    return put_tokens(tok, "filled", filled, n, out);
}

/* Each text gets the same share of the masks. */
static neb_status sample_masks(struct neb_work *w, struct neb_model *m, const struct neb_batch *b,
                               struct neb_buf *out)
{
    struct filling f = {.work = w, .model = m};
    const struct neb_batch_side *s = &b->side[0];
    int texts = texts_of(s);
    for (int k = 0; k < texts; k++) {
        int32_t most = f.n + TARGETS / SHOWN;
        for (int32_t i = 0; i < b->loss.used && f.n < most; i++) {
            int32_t at = b->loss.rows[i] - s->cu_seqlens[k];
            if (at >= 0 && at < WINDOW && b->loss.rows[i] < s->cu_seqlens[k + 1])
                f.row[f.n++] = b->loss.rows[i];
        }
    }
    if (!f.n) return neb__quiet(NEB_ERR_NOTFOUND, "no token of the first held-out texts is masked");
    NEB_TRY(fill(&f, b, texts));
    for (int k = 0; k < texts; k++) {
        if (k) NEB_TRY(neb__buf_append(out, "\n", 1));
        NEB_TRY(put_filled(&f, b, k, out));
    }
    return NEB_OK;
}

/* ---- continuations and translations -------------------------------------------------------------------- */

struct making {
    const struct neb_model_input_side *source; /* NULL: a decoder alone */
    int texts, text[SHOWN];                    /* sequences of the batch */
    int32_t prompt[SHOWN * PROMPT], starts[SHOWN + 1];
    int32_t most; /* tokens to make */
    int32_t made[SHOWN * MADE], lengths[SHOWN];
};

static neb_status make(struct neb_work *w, struct neb_model *m, struct making *a)
{
    const struct neb_decode_limits limits = {.seqs = a->texts,
                                             .max_len = a->most + (a->source ? 1 : PROMPT),
                                             .prompt_rows = a->starts[a->texts],
                                             .source_rows = a->source ? a->source->rows : 0};
    const struct neb_search how = {
        .max_new = a->most, .eos = neb__tok_special(w->data->tok, NEB_TOK_EOS), .beams = 1};
    struct neb_decoding *d = NULL;
    NEB_TRY(neb__decoding_create(w->dev, m, &limits, &d));
    neb_status status =
        neb__decoding_generate(d, &how, a->source, a->texts, a->prompt, a->starts, a->made, a->lengths);
    neb__decoding_destroy(d);
    return status;
}

static int32_t room_for(const struct neb_model *m, int32_t prompt)
{
    int64_t room = m->arch.max_positions - m->peft.prompt_length - prompt;
    return (int32_t)(room < MADE ? room : MADE);
}

static neb_status sample_pairs(struct neb_work *w, struct neb_model *m, const struct neb_batch *b,
                               struct neb_buf *out)
{
    const struct neb_batch_side *s = &b->side[0], *t = &b->side[1];
    const struct neb_tok *tok = w->data->tok;
    int texts = texts_of(s);
    const struct neb_model_input_side source = {.rows = s->cu_seqlens[texts],
                                                .seqs = texts,
                                                .max_len = s->max_len,
                                                .ids = s->ids,
                                                .position = s->pos,
                                                .type = s->type,
                                                .sample = s->sample,
                                                .starts = s->cu_seqlens,
                                                .at = s->at};
    struct making a = {.source = &source, .texts = texts, .most = room_for(m, 1)};
    for (int k = 0; k < texts; k++) {
        a.prompt[k] = t->ids[t->cu_seqlens[k]]; /* what a target starts with */
        a.starts[k + 1] = k + 1;
    }
    if (a.most < 1) return neb__quiet(NEB_ERR_UNSUPPORTED, "the model has no room for a translation");
    NEB_TRY(make(w, m, &a));
    for (int k = 0; k < texts; k++) {
        const int32_t *source_ids = s->ids + s->cu_seqlens[k], *target_ids = t->ids + t->cu_seqlens[k];
        if (k) NEB_TRY(neb__buf_append(out, "\n", 1));
        NEB_TRY(put_tokens(tok, "source", source_ids, s->cu_seqlens[k + 1] - s->cu_seqlens[k], out));
        NEB_TRY(put_tokens(tok, "reference", target_ids, t->cu_seqlens[k + 1] - t->cu_seqlens[k], out));
        NEB_TRY(put_tokens(tok, "translation", a.made + (size_t)k * (size_t)a.most, a.lengths[k], out));
    }
    return NEB_OK;
}

static neb_status sample_texts(struct neb_work *w, struct neb_model *m, const struct neb_batch *b,
                               struct neb_buf *out)
{
    const struct neb_batch_side *s = &b->side[0];
    const struct neb_tok *tok = w->data->tok;
    struct making a = {.most = room_for(m, PROMPT)};
    for (int k = 0; k < s->nseq_used && a.texts < SHOWN; k++) {
        const int32_t *ids = s->ids + s->cu_seqlens[k];
        int32_t n = s->cu_seqlens[k + 1] - s->cu_seqlens[k], used = n / 2 < PROMPT ? n / 2 : PROMPT;
        if (used < 2) continue; /* too short to be continued */
        memcpy(a.prompt + a.starts[a.texts], ids, (size_t)used * sizeof *ids);
        a.starts[a.texts + 1] = a.starts[a.texts] + used;
        a.text[a.texts++] = k;
    }
    if (!a.texts || a.most < 1)
        return neb__quiet(NEB_ERR_NOTFOUND, "the first held-out texts are too short to be continued");
    NEB_TRY(make(w, m, &a));
    for (int k = 0; k < a.texts; k++) {
        int32_t used = a.starts[k + 1] - a.starts[k], at = s->cu_seqlens[a.text[k]] + used,
                rest = s->cu_seqlens[a.text[k] + 1] - at;
        if (k) NEB_TRY(neb__buf_append(out, "\n", 1));
        NEB_TRY(put_tokens(tok, "text", a.prompt + a.starts[k], used, out));
        NEB_TRY(put_tokens(tok, "reference", s->ids + at, rest < a.most ? rest : a.most, out));
        NEB_TRY(put_tokens(tok, "continued", a.made + (size_t)k * (size_t)a.most, a.lengths[k], out));
    }
    return NEB_OK;
}

/* ---- both ---------------------------------------------------------------------------------------------- */

neb_status neb__sample_tokens(struct neb_work *w, const struct neb_batch *b, struct neb_buf *out)
{
    struct neb_model *m = w->generator ? w->generator : w->model;
    if (!m || m->arch.head != NEB_HEAD_TOKENS)
        return neb__quiet(NEB_ERR_UNSUPPORTED, "the model that predicts tokens is on another site");
    switch (b->kind) {
    case NEB_BATCH_MLM: return sample_masks(w, m, b, out);
    case NEB_BATCH_PAIR: return sample_pairs(w, m, b, out);
    default: return sample_texts(w, m, b, out);
    }
}

neb_status neb__work_samples(struct neb_work *w, const char *use, struct neb_buf *out)
{
    struct neb_batches *stream = NULL;
    struct neb_batch *b = NULL;
    if (!w->steps->sample || neb__work_is_split(w) || neb__work_gathers(w))
        return neb__quiet(NEB_ERR_UNSUPPORTED, "there are no samples of this model");
    NEB_TRY(neb__data_stream(w->data, use, 0, 1, &stream));
    neb_status status = neb__batches_batch(stream, &b);
    if (status == NEB_OK) status = neb__batches_next(stream, b);
    if (status == NEB_OK) status = w->steps->sample(w, b, out);
    neb__batch_free(b);
    neb__batches_free(stream);
    return status == NEB_ERR_AGAIN ? neb__quiet(NEB_ERR_NOTFOUND, "there is no held-out text") : status;
}
