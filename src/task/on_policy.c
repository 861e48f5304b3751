/* on_policy.c: see on_policy.h.
 *
 * Samples are drawn at temperature 1 from all tokens, 64 sequences at a time, by a generator that is seeded with the job's
 * seed and the batch's number: the same parameters give the same samples, also after a restart. A translation may become
 * longer than the text's own as far as the batch has room; it ends at the end token or at any other special token. A causal
 * text keeps its length and never ends early, so its end token is not drawn.
 *
 * The judged batches are spread evenly: batch n is one where (n + 1 - first) * share passes a whole number. Shares count in
 * thousandths, in whole numbers, so that two machines agree. */
#include "task/on_policy.h"
#include "base/mem.h"
#include "base/rng.h"
#include "nn/decode.h"
#include "text/batches.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64, SHAPES = 48, IDS_MAX = 1 << 28 };

/* ---- which batches ------------------------------------------------------------------------------------- */

int64_t neb__on_policy_lag(const struct neb_job *j)
{
    return j->distill.lag * j->train.micro;
}

uint64_t neb__on_policy_before(const struct neb_job *j, int64_t n)
{
    const int64_t behind = n - neb__on_policy_lag(j), share = llround(1000 * j->distill.on_policy);
    return behind > 0 ? (uint64_t)(behind * share / 1000) : 0;
}

bool neb__on_policy_judged(const struct neb_job *j, int64_t n)
{
    return neb__on_policy_before(j, n + 1) > neb__on_policy_before(j, n);
}

/* ---- samples of a batch -------------------------------------------------------------------------------- */

neb_status neb__samples_init(struct neb_samples *s, int32_t seqs)
{
    *s = (struct neb_samples){.room = seqs, .n = NEB_NEW_ARRAY(int32_t, (size_t)seqs + 1)};
    neb__buf_init(&s->ids, IDS_MAX);
    return s->n ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for samples of %d sequences", seqs);
}

void neb__samples_free(struct neb_samples *s)
{
    neb__free(s->n);
    neb__buf_free(&s->ids);
    *s = (struct neb_samples){0};
}

neb_status neb__samples_apply(const struct neb_samples *s, const struct neb_data *data, struct neb_batch *b,
                              int32_t *taken)
{
    const int32_t *at = (const int32_t *)s->ids.data;
    struct neb_batch_target *list = NEB_NEW_ARRAY(struct neb_batch_target, (size_t)s->seqs + 1);
    struct neb_vocab v;
    *taken = 0;
    if (!list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d targets", s->seqs);
    neb_status status =
        s->seqs == b->side[0].nseq_used ? NEB_OK : neb__fail(NEB_ERR_CORRUPT, "samples of another batch");
    for (int32_t q = 0; q < s->seqs; q++) {
        list[q] = (struct neb_batch_target){at, s->n[q]};
        at += s->n[q];
    }
    neb__vocab_of(data->tok, &v);
    if (status == NEB_OK && b->kind == NEB_BATCH_PAIR) {
        status = neb__batch_retarget(b, list, v.special, v.eos, v.pad, taken);
    } else if (status == NEB_OK) {
        for (int32_t q = 0; q < s->seqs; q++) *taken += list[q].n > 0;
        if (neb__batch_continue(b, list) != NEB_OK)
            status = neb__fail(NEB_ERR_CORRUPT, "samples longer than the text that they continue");
    }
    neb__free(list);
    return status;
}

/* ---- drawing them -------------------------------------------------------------------------------------- */

struct neb_own_sampler {
    const struct neb_data *data;
    const struct neb_job *job;
    neb_device *device;
    struct neb_model *model;
    struct neb_batches *stream; /* lag batches ahead of the training's */
    struct neb_batch *batch;
    struct neb_decoding *decoding;
    struct neb_samples samples;
    struct neb_vocab vocab;
    int32_t longest; /* sequence */
    int32_t *prompt; /* (CHUNK, longest) */
    int32_t starts[CHUNK + 1], source_starts[CHUNK + 1], room[CHUNK], most[CHUNK], lengths[CHUNK];
    int32_t *made; /* (CHUNK, longest) */
};

static neb_status make_decoding(struct neb_own_sampler *s)
{
    const bool pairs = s->batch->kind == NEB_BATCH_PAIR;
    const struct neb_decode_limits limits = {.seqs = CHUNK,
                                             .max_len = s->longest,
                                             .prompt_rows = CHUNK * (pairs ? 2 : s->longest),
                                             .source_rows = pairs ? s->batch->cap_tokens[0] : 0};
    neb__decoding_destroy(s->decoding);
    s->decoding = NULL;
    return neb__decoding_create(s->device, s->model, &limits, &s->decoding);
}

static neb_status open_sampler(struct neb_own_sampler *s, int64_t batch)
{
    int64_t room = s->model->arch.max_positions - s->model->peft.prompt_length;
    NEB_TRY(neb__data_stream(s->data, "train", 0, 1, &s->stream));
    NEB_TRY(neb__batches_batch(s->stream, &s->batch));
    NEB_TRY(neb__batches_seek(s->stream, batch + neb__on_policy_lag(s->job)));
    NEB_TRY(neb__samples_init(&s->samples, s->batch->cap_seqs));
    if (s->job->train.max_len < room) room = s->job->train.max_len;
    s->longest = (int32_t)room;
    s->prompt = NEB_NEW_ARRAY(int32_t, CHUNK * (size_t)room);
    s->made = NEB_NEW_ARRAY(int32_t, CHUNK * (size_t)room);
    if (!s->prompt || !s->made) return neb__fail(NEB_ERR_NOMEM, "out of memory for samples");
    neb__vocab_of(s->data->tok, &s->vocab);
    neb__model_set_outputs(s->model, neb__tok_vocab(s->data->tok)); /* no row of padding is ever drawn */
    return make_decoding(s);
}

neb_status neb__own_sampler_open(const struct neb_data *data, neb_device *device, struct neb_model *m,
                                 int64_t batch, struct neb_own_sampler **out)
{
    struct neb_own_sampler *s = NEB_NEW(struct neb_own_sampler);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a sampler");
    *s = (struct neb_own_sampler){.data = data, .job = data->job, .device = device, .model = m};
    neb_status status = open_sampler(s, batch);
    if (status != NEB_OK) {
        neb__own_sampler_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

void neb__own_sampler_close(struct neb_own_sampler *s)
{
    if (!s) return;
    neb__decoding_destroy(s->decoding);
    neb__samples_free(&s->samples);
    neb__batch_free(s->batch);
    neb__batches_free(s->stream);
    neb__free(s->prompt);
    neb__free(s->made);
    neb__free(s);
}

/* The prompt of sequence q and how much may follow: a translation's frame, or half of a causal text. */
static void prepare(struct neb_own_sampler *s, int32_t q, int32_t i)
{
    const struct neb_batch *b = s->batch;
    const struct neb_batch_side *side = &b->side[b->sides - 1];
    const int32_t from = side->cu_seqlens[q], rows = side->cu_seqlens[q + 1] - from;
    const bool pairs = b->kind == NEB_BATCH_PAIR;
    const int32_t given = pairs ? neb__batch_lead(b, q, s->vocab.special, s->vocab.eos) : (rows + 1) / 2;
    int32_t most = rows - given;
    if (pairs) {
        const int32_t spare = (b->cap_tokens[1] - side->used) / side->nseq_used, more = most / 2 + 2;
        most += spare < more ? spare : more;
    }
    if (most > s->longest - given) most = s->longest - given;
    memcpy(s->prompt + s->starts[i], side->ids + from, (size_t)given * sizeof *s->prompt);
    s->starts[i + 1] = s->starts[i] + given;
    s->room[i] = most > 0 ? most : 0;
    s->most[i] = most > 0 ? most : 1; /* a search makes at least one */
}

/* Tokens of the text: up to the first special one. */
static int32_t text_length(const struct neb_own_sampler *s, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (s->vocab.special[ids[i]] && s->batch->kind == NEB_BATCH_PAIR) return i;
    return n;
}

static neb_status write_chunk(struct neb_own_sampler *s, int32_t first, int32_t n, int32_t width)
{
    const struct neb_batch_side *a = &s->batch->side[0];
    const bool pairs = s->batch->kind == NEB_BATCH_PAIR;
    const int32_t from = a->cu_seqlens[first];
    struct neb_search how = {.max_new = width,
                             .most = s->most,
                             .eos = pairs ? s->vocab.eos : -1,
                             .bans = !pairs,
                             .never = s->vocab.eos,
                             .temperature = 1,
                             .seed = neb__mix64((uint64_t)s->job->seed + 0x6f776e) +
                                     neb__mix64((uint64_t)s->batch->step) + (uint64_t)first};
    for (int32_t i = 0; i <= n; i++) s->source_starts[i] = a->cu_seqlens[first + i] - from;
    const struct neb_model_input_side source = {.rows = s->source_starts[n],
                                                .seqs = n,
                                                .max_len = a->max_len,
                                                .ids = a->ids + from,
                                                .position = a->pos + from,
                                                .type = a->type + from,
                                                .sample = a->sample + from,
                                                .starts = s->source_starts,
                                                .at = a->at + from};
    if (neb__decoding_shapes(s->decoding) >= SHAPES) NEB_TRY(make_decoding(s));
    return neb__decoding_generate(s->decoding, &how, pairs ? &source : NULL, n, s->prompt, s->starts, s->made,
                                  s->lengths);
}

static neb_status sample_batch(struct neb_own_sampler *s)
{
    struct neb_samples *out = &s->samples;
    out->seqs = s->batch->side[0].nseq_used;
    neb__buf_clear(&out->ids);
    for (int32_t first = 0; first < out->seqs; first += CHUNK) {
        const int32_t n = out->seqs - first < CHUNK ? out->seqs - first : CHUNK;
        int32_t width = 1;
        for (int32_t i = 0; i < n; i++) {
            prepare(s, first + i, i);
            if (s->most[i] > width) width = s->most[i];
        }
        NEB_TRY(write_chunk(s, first, n, width));
        for (int32_t i = 0; i < n; i++) {
            const int32_t *ids = s->made + (size_t)i * (size_t)width;
            const int32_t n_ids = s->lengths[i] < s->room[i] ? s->lengths[i] : s->room[i];
            out->n[first + i] = text_length(s, ids, n_ids);
            NEB_TRY(neb__buf_append(&out->ids, ids, (size_t)out->n[first + i] * sizeof *ids));
        }
    }
    return NEB_OK;
}

neb_status neb__own_sampler_step(struct neb_own_sampler *s, neb_own_sampler_fn give, void *arg)
{
    /* Also those behind the last step: a checkpoint counts on samples for lag batches more, and the run may be made longer. */
    for (int64_t i = 0; i < s->job->train.micro; i++) {
        NEB_TRY(neb__batches_next(s->stream, s->batch));
        if (!neb__on_policy_judged(s->job, s->batch->step)) continue;
        NEB_TRY(sample_batch(s));
        NEB_TRY(give(arg, s->batch, &s->samples));
    }
    return NEB_OK;
}
