/* decode.c: a decoder over cached keys and values.
 *
 * The cache gives every sequence `max` rows (the most that the present search can reach); the first len[s] of
 * them are in use. Attention needs sequences that lie one after the other, so the unused rows form sequences
 * of their own, without queries. With n sequences there are 2n:
 *     keys      [0, len 0) [len 0, max) [max, max + len 1) …
 *     queries   rows of 0, none, rows of 1, none, …
 * So shapes depend on neither lengths nor positions, and all single-token runs share one plan (and one
 * recording).
 *
 * A trained prompt is read at the start, as tokens like any other.
 *
 * A trained prefix occupies the first rows of every sequence in the cache. It is put there at the start and
 * never recomputed, and it has no positions of its own.
 *
 * Beams that continue from one another share their past (beam_reorder.c). If the device reads listed rows, a
 * row stays in the place where it was computed, and each sequence has a list of its rows. Single-token runs
 * then use the lists instead of the layout above. Relative positions are counted in that layout: then rows are moved.
 *
 * A search needs few of the logits. If the device finds the best tokens of each row itself, only these are
 * copied to the host. Weights do not change between two starts, so the layers read copies that are laid out
 * for products of few rows. The first run after a start makes these copies anew.
 *
 * A device that records runs should see few shapes. So lengths are rounded up generously, and rows outside
 * all sequences follow a source's rows. The runs of a whole text then replay a handful of recordings: one
 * upload, one launch and one download per token.
 *
 * New rows are added to the content of the cache, so rows not yet in use must hold zeros: the cache is
 * cleared at the start, and reordering fills unused rows with zeros. Keys and values of the memory are
 * computed once, at the start. Beams of one source are queries of one sequence in cross attention, so the
 * memory is not repeated. */
#include "nn/decode_internal.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/buffer.h"
#include "tensor/packed.h"

#include <string.h>

int64_t neb__decoding_vocab(const struct neb_decoding *d)
{
    return d->model->outputs;
}

int neb__decoding_shapes(const struct neb_decoding *d)
{
    return neb__tape_plans(d->tape);
}

/* ---- model functions ----------------------------------------------------------------------------------- */

neb_tensor *neb__decoding_ints(struct neb_decoding *d, neb_tape *t, enum neb_decode_array a, int64_t n)
{
    return neb_input_at(t, d->ints, d->at[a] * 4, NEB_I32, 1, &n);
}

static void encode_fn(neb_tape *t, void *arg)
{
    struct neb_decoding *d = arg;
    const struct neb_input *in = neb__model_input_tensors(d->source, t);
    neb_tensor *memory = neb__model_encode(d->model, t, &in->side[0]);
    for (int64_t i = 0; i < d->model->decoder.count; i++) {
        neb_tensor *kv = neb__lin_run(t, &d->model->decoder.layers[i].cross.kv, memory, NEB_ACT_NONE);
        neb_output(t, kv, d->caches[i].cross, neb_compute_type(t));
    }
}

static void describe_run(struct neb_decoding *d, neb_tape *t)
{
    int64_t n = d->seqs, max = d->max, longest = d->single ? 1 : max;
    d->side = (struct neb_input_side){.rows = d->rows,
                                      .ids = neb__decoding_ints(d, t, IDS, d->rows),
                                      .position = neb__decoding_ints(d, t, POSITION, d->rows)};
    d->side.sample = d->side.at = d->side.position; /* any tensor will do: there is no dropout */
    d->input = (struct neb_cache_input){
        .rows = n * max,
        .index = neb__decoding_ints(d, t, INDEX, d->rows),
        .q_seqs = {neb__decoding_ints(d, t, Q_STARTS, 2 * n + 1), NULL, 2 * n, longest},
        .k_seqs = {neb__decoding_ints(d, t, K_STARTS, 2 * n + 1), NULL, 2 * n, max}};
    if (d->listed && d->single) {
        d->input.key = neb_input_at(t, d->ints, d->at[KEY] * 4, NEB_I32, 2, (int64_t[]){n, max});
        d->input.count = neb__decoding_ints(d, t, COUNT, n);
    }
    if (!d->sources) return;
    const struct neb_input_side *source = &neb__model_input_tensors(d->source, t)->side[0];
    d->input.source_rows = d->steady ? d->limits.source_rows : source->rows;
    d->input.cross_q = (struct neb_seqs){neb__decoding_ints(d, t, CROSS_Q, d->sources + 1), NULL, d->sources,
                                         d->single ? d->seqs / d->sources : d->rows};
    d->input.cross_k = source->seqs;
}

static void step_fn(neb_tape *t, void *arg)
{
    struct neb_decoding *d = arg;
    describe_run(d, t);
    neb_tensor *x = neb__model_decode_cached(d->model, t, &d->side, d->caches, &d->input);
    neb_tensor *last = d->single ? NULL : neb__decoding_ints(d, t, LAST, d->seqs);
    neb_tensor *logits = neb__model_logits(d->model, t, x, &d->side, last);
    if (d->k && neb__device_has_topk(d->device))
        neb__output_best(t, logits, d->k, d->best);
    else
        neb_output(t, logits, d->logits, NEB_F32);
}

/* The content of the cache at the start: the prefix in front of every sequence, zeros elsewhere. */
static void prefix_fn(neb_tape *t, void *arg)
{
    struct neb_decoding *d = arg;
    neb_tensor *id = neb__decoding_ints(d, t, REORDER, (int64_t)d->seqs * d->max);
    for (int64_t i = 0; i < d->model->decoder.count; i++) {
        const struct neb_attn_layer *a = &d->model->decoder.layers[i].attention;
        neb_param *key = a->prefix_key, *value = a->prefix_value;
        neb_output(t, neb_op_embed(t, 1, &key, &id, 1), d->caches[i].key, neb_compute_type(t));
        neb_output(t, neb_op_embed(t, 1, &value, &id, 1), d->caches[i].value, neb_compute_type(t));
    }
}

neb_status neb__decoding_run(struct neb_decoding *d, neb_model_fn fn, uint64_t key)
{
    struct neb_run r = {.fn = fn, .arg = d, .key = key};
    return neb_tape_run(d->tape, &r);
}

static uint64_t run_key(const struct neb_decoding *d)
{
    uint64_t key = neb__mix64((uint64_t)d->rows << 32 | (uint64_t)d->seqs << 1 | d->single);
    key = neb__mix64(key ^ ((uint64_t)d->k << 32 | (uint64_t)d->max));
    if (d->k) key = neb__mix64(key ^ (uint64_t)d->best_room); /* a recording fixes where its results go */
    if (!d->sources) return key;
    return neb__mix64(key ^ (d->steady ? (uint64_t)d->sources << 32 | (uint64_t)d->source_len
                                       : neb__model_input_key(d->source)));
}

/* ---- one run after the other --------------------------------------------------------------------------- */

static neb_status empty_cache(struct neb_decoding *d)
{
    memset(d->born, 0, (size_t)d->seqs * (size_t)d->max * sizeof *d->born);
    memset(d->top, 0, (size_t)d->seqs * sizeof *d->top);
    d->scattered = false;
    for (int32_t r = 0; r < d->seqs * d->max; r++)
        if (r % d->max < d->prefix) d->born[r] = (uint32_t)r + 1;
    const size_t used = (size_t)d->seqs * (size_t)d->max * neb__decoding_row_bytes(d);
    for (int64_t i = 0; !d->prefix && i < d->model->decoder.count; i++) {
        NEB_TRY(neb__buffer_clear_front(d->caches[i].key, used));
        NEB_TRY(neb__buffer_clear_front(d->caches[i].value, used));
    }
    if (!d->prefix) return NEB_OK;
    int32_t *id = d->host + d->at[REORDER];
    for (int64_t r = 0; r < (int64_t)d->seqs * d->max; r++)
        id[r] = r % d->max < d->prefix ? (int32_t)(r % d->max) : -1;
    NEB_TRY(neb_buffer_upload(d->ints, d->host, d->int_bytes));
    return neb__decoding_run(d, prefix_fn, neb__mix64((uint64_t)d->seqs << 32 | (uint64_t)d->max) ^ 1);
}

neb_status neb__decoding_start(struct neb_decoding *d, int32_t seqs,
                               const struct neb_model_input_side *source)
{
    return neb__decoding_start_short(d, seqs, d->limits.max_len - d->prompt, source);
}

/* Rounds sources of about the same size to the same size, because every size costs a choice of kernels, a
 * plan and a recording. */
static void steady_shape(const struct neb_decoding *d, struct neb_model_input_side *s)
{
    int32_t rows = 64;
    while (rows < s->rows) rows += rows / 8 / 16 * 16 + 16;
    if (rows > d->limits.source_rows) rows = d->limits.source_rows;
    if (rows > s->rows) s->spare = rows - s->rows;
    s->max_len = (s->max_len + 31) / 32 * 32;
}

static neb_status read_prompt(struct neb_decoding *d);

neb_status neb__decoding_start_short(struct neb_decoding *d, int32_t seqs, int32_t max_len,
                                     const struct neb_model_input_side *source)
{
    if (seqs < 1 || seqs > d->limits.seqs)
        return neb__fail(NEB_ERR_RANGE, "cannot generate %d sequences: there is room for %d", seqs,
                         d->limits.seqs);
    if (!source != !d->source || (source && (source->seqs < 1 || seqs % source->seqs)))
        return neb__fail(NEB_ERR_RANGE, "cannot generate %d sequences from %d sources", seqs,
                         source ? source->seqs : 0);
    max_len += d->prompt;
    int32_t stride = d->steady ? 64 : 16, /* few strides mean few memory plans and recordings */
        rounded = (max_len + stride - 1) / stride * stride;
    d->max = d->prefix + (rounded < d->limits.max_len ? rounded : d->limits.max_len);
    d->seqs = seqs;
    neb__tape_weights_changed(d->tape);
    NEB_TRY(empty_cache(d));
    d->sources = source ? source->seqs : 0;
    memset(d->len, 0, (size_t)seqs * sizeof *d->len);
    if (d->prompt) NEB_TRY(read_prompt(d));
    if (!source) return NEB_OK;
    struct neb_model_input_data data = {.sides = 1, .side = {*source}};
    if (d->steady) steady_shape(d, &data.side[0]);
    d->source_len = data.side[0].max_len;
    NEB_TRY(neb__model_input_load(d->source, &data));
    return neb__decoding_run(d, encode_fn, neb__model_input_key(d->source));
}

static void place_rows(struct neb_decoding *d, const int32_t *counts, const int32_t *ids)
{
    int32_t *position = d->host + d->at[POSITION], *index = d->host + d->at[INDEX],
            *last = d->host + d->at[LAST], *q = d->host + d->at[Q_STARTS], *k = d->host + d->at[K_STARTS],
            *cross = d->host + d->at[CROSS_Q];
    int32_t max = d->max, row = 0;
    for (int32_t s = 0; s < d->seqs; s++) {
        q[2 * s] = row;
        if (d->sources && s % (d->seqs / d->sources) == 0) cross[s / (d->seqs / d->sources)] = row;
        for (int32_t i = 0; i < counts[s]; i++, row++) {
            position[row] = d->len[s] + i;
            index[row] = s * max + d->prefix + d->len[s] + i;
            d->born[index[row]] = d->listed ? (uint32_t)index[row] + 1 : ++d->births;
        }
        last[s] = row - 1;
        d->len[s] += counts[s];
        d->top[s] = d->len[s];
        q[2 * s + 1] = row;
        k[2 * s] = s * max;
        k[2 * s + 1] = s * max + d->prefix + d->len[s];
    }
    q[2 * d->seqs] = row;
    k[2 * d->seqs] = d->seqs * max;
    if (d->sources) cross[d->sources] = row;
    memcpy(d->host + d->at[IDS], ids, (size_t)row * sizeof *ids);
    d->rows = row;
}

/* The rows of every sequence, for a run of one token each. */
static void list_rows(struct neb_decoding *d)
{
    int32_t *key = d->host + d->at[KEY], *count = d->host + d->at[COUNT];
    for (int32_t s = 0; s < d->seqs; s++) {
        const int64_t first = (int64_t)s * d->max;
        count[s] = d->prefix + d->len[s];
        for (int32_t i = 0; i < count[s]; i++) key[first + i] = (int32_t)d->born[first + i] - 1;
    }
}

/* True when rows must be put in order first: a run of several tokens needs sequences in one piece, and no
 * place may be written twice. */
static bool must_settle(const struct neb_decoding *d)
{
    bool again = d->scattered && !d->single;
    for (int32_t s = 0; s < d->seqs; s++) again = again || d->len[s] < d->top[s];
    return d->listed && again;
}

static neb_status append(struct neb_decoding *d, const int32_t *counts, const int32_t *ids)
{
    int64_t rows = 0;
    d->single = true;
    for (int32_t s = 0; s < d->seqs; s++) {
        if (counts[s] < 1 || counts[s] > d->max - d->prefix - d->len[s])
            return neb__fail(NEB_ERR_RANGE, "sequence %d has %d tokens and room for %d; %d more do not fit",
                             s, d->len[s], d->max - d->prefix, counts[s]);
        rows += counts[s];
        d->single = d->single && counts[s] == 1;
    }
    if (rows > d->room)
        return neb__fail(NEB_ERR_RANGE, "%" PRId64 " tokens in one run, there is room for %" PRId64, rows,
                         d->room);
    if (must_settle(d)) NEB_TRY(neb__decoding_settle(d));
    place_rows(d, counts, ids);
    if (d->listed && d->single) list_rows(d);
    const size_t lists = d->listed && d->single ? (size_t)d->seqs * (size_t)d->max : 0;
    NEB_TRY(neb_buffer_upload(d->ints, d->host, (d->at[KEY] + lists) * 4));
    neb__tape_keep_packed(d->tape, true);
    neb_status s = neb__decoding_run(d, step_fn, run_key(d));
    neb__tape_keep_packed(d->tape, false);
    return s;
}

/* Every sequence begins with the model's virtual tokens; what is said after them is of no interest. */
static neb_status read_prompt(struct neb_decoding *d)
{
    const size_t all = (size_t)d->seqs * (size_t)d->prompt;
    int32_t *ids = NEB_NEW_ARRAY(int32_t, all), *counts = NEB_NEW_ARRAY(int32_t, (size_t)d->seqs);
    neb_status status = ids && counts ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a prompt");
    for (size_t i = 0; status == NEB_OK && i < all; i++)
        ids[i] = (int32_t)(d->model->arch.vocab + (int64_t)(i % (size_t)d->prompt));
    for (int32_t s = 0; status == NEB_OK && s < d->seqs; s++) counts[s] = d->prompt;
    d->k = 0;
    if (status == NEB_OK) status = append(d, counts, ids);
    neb__free(ids);
    neb__free(counts);
    return status;
}

static neb_status fetch_logits(struct neb_decoding *d, const float **logits)
{
    NEB_TRY(neb_buffer_download(d->logits, d->host_logits,
                                (size_t)d->seqs * (size_t)d->model->outputs * sizeof(float)));
    *logits = d->host_logits;
    return NEB_OK;
}

neb_status neb__decoding_step(struct neb_decoding *d, const int32_t *counts, const int32_t *ids,
                              const float **logits)
{
    d->k = 0;
    NEB_TRY(append(d, counts, ids));
    return fetch_logits(d, logits);
}

static neb_status make_best(struct neb_decoding *d, int32_t k)
{
    if (k <= d->best_room) return NEB_OK;
    size_t bytes = (size_t)d->limits.seqs * (2 * (size_t)k + 1) * 4;
    neb_buffer_destroy(d->best);
    neb__host_free(d->device, d->host_best);
    d->best = NULL;
    d->host_best = NULL;
    d->best_room = 0;
    void *host;
    NEB_TRY(neb__host_alloc(d->device, bytes, &host));
    d->host_best = host;
    NEB_TRY(neb_buffer_create(d->device, bytes, &d->best));
    d->best_room = k;
    return NEB_OK;
}

neb_status neb__decoding_ask(struct neb_decoding *d, const int32_t *counts, const int32_t *ids, int32_t k)
{
    if (d->fence) NEB_TRY(neb__buffer_fetched(d->best, d->fence)); /* an abandoned search left it behind */
    d->fence = 0;
    NEB_TRY(make_best(d, k));
    d->k = k;
    NEB_TRY(append(d, counts, ids));
    if (!neb__device_has_topk(d->device)) return NEB_OK;
    const size_t bytes = (size_t)d->seqs * (2 * (size_t)k + 1) * 4;
    return neb__buffer_fetch(d->best, d->host_best, bytes, &d->fence);
}

neb_status neb__decoding_answer(struct neb_decoding *d, struct neb_best_tokens *out)
{
    const float *logits;
    const size_t all = (size_t)d->seqs * (size_t)d->k;
    *out = (struct neb_best_tokens){d->host_best, (int32_t *)(d->host_best + all), d->host_best + 2 * all};
    if (neb__device_has_topk(d->device)) {
        const uint64_t fence = d->fence;
        d->fence = 0;
        return neb__buffer_fetched(d->best, fence);
    }
    NEB_TRY(fetch_logits(d, &logits));
    neb__topk_on_host(logits, d->seqs, d->model->outputs, d->k, out);
    return NEB_OK;
}

neb_status neb__decoding_step_best(struct neb_decoding *d, const int32_t *counts, const int32_t *ids,
                                   int32_t k, struct neb_best_tokens *out)
{
    NEB_TRY(neb__decoding_ask(d, counts, ids, k));
    return neb__decoding_answer(d, out);
}
