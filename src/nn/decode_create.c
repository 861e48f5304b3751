/* decode_create.c: the memory of a decoding: caches of every decoder layer, sized for the limits; one buffer
 * of integers with all inputs of a run, and a copy of the same layout on the host; buffers for the
 * results. */
#include "nn/decode_internal.h"
#include "base/mem.h"
#include "tensor/buffer.h"
#include "tensor/packed.h"

static void lay_out(struct neb_decoding *d)
{
    const struct neb_decode_limits *l = &d->limits;
    d->room = l->prompt_rows > l->seqs ? l->prompt_rows : l->seqs;
    int64_t cache = (int64_t)l->seqs * (l->max_len + d->prefix), moves = 64;
    while (moves < cache) moves *= 2;
    int64_t size[ARRAYS] = {d->room, d->room, d->room, l->seqs, 2 * l->seqs + 1, 2 * l->seqs + 1, l->seqs + 1,
                            l->seqs, cache,   moves,   moves};
    size_t at = 0;
    for (int a = 0; a < ARRAYS; a++) {
        d->at[a] = at;
        at += ((size_t)size[a] + 15) / 16 * 16;
    }
    d->int_bytes = at * 4;
}

static neb_status check(const struct neb_model *m, const struct neb_decode_limits *l)
{
    const struct neb_arch *a = &m->arch;
    if (a->kind == NEB_ENCODER || a->head != NEB_HEAD_TOKENS)
        return neb__fail(NEB_ERR_UNSUPPORTED, "only a decoder with a token head generates text");
    if (l->seqs < 1 || l->seqs > 1 << 20 || l->max_len < 1 || l->max_len > a->max_positions ||
        l->prompt_rows < 1 || l->prompt_rows > 1 << 28 || l->source_rows < 0 ||
        (int64_t)l->seqs * (l->max_len + m->peft.prefix_length) > 1 << 28)
        return neb__fail(
            NEB_ERR_CONFIG,
            "cannot generate %d sequences of up to %d tokens from %d prompt tokens (the model has %" PRId64
            " positions)",
            l->seqs, l->max_len, l->prompt_rows, a->max_positions);
    if ((a->kind == NEB_ENCODER_DECODER) != (l->source_rows > 0))
        return neb__fail(
            NEB_ERR_CONFIG,
            "%d source tokens given; an encoder-decoder needs source tokens, a decoder takes none",
            l->source_rows);
    return NEB_OK;
}

static neb_status create_caches(struct neb_decoding *d)
{
    size_t kv = neb__decoding_row_bytes(d);
    size_t bytes = (size_t)d->limits.seqs * (size_t)(d->limits.max_len + d->prefix) * kv;
    for (int64_t i = 0; i < d->model->decoder.count; i++) {
        NEB_TRY(neb_buffer_create(d->device, bytes, &d->caches[i].key));
        NEB_TRY(neb_buffer_create(d->device, bytes, &d->caches[i].value));
        if (d->limits.source_rows)
            NEB_TRY(
                neb_buffer_create(d->device, (size_t)d->limits.source_rows * 2 * kv, &d->caches[i].cross));
    }
    return NEB_OK;
}

static neb_status create_parts(struct neb_decoding *d)
{
    const struct neb_decode_limits *l = &d->limits;
    size_t logits = (size_t)l->seqs * (size_t)d->model->outputs * sizeof(float);
    lay_out(d);
    d->caches = NEB_NEW_ARRAY(struct neb_layer_cache, (size_t)d->model->decoder.count);
    d->host = neb__calloc(1, d->int_bytes);
    d->host_logits = neb__malloc(logits);
    d->len = NEB_NEW_ARRAY(int32_t, (size_t)l->seqs);
    d->top = NEB_NEW_ARRAY(int32_t, (size_t)l->seqs);
    size_t cache = (size_t)l->seqs * (size_t)(l->max_len + d->prefix);
    d->born = NEB_NEW_ARRAY(uint32_t, cache);
    d->old_born = NEB_NEW_ARRAY(uint32_t, cache);
    if (!d->caches || !d->host || !d->host_logits || !d->len || !d->top || !d->born || !d->old_born)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for generating %d sequences", l->seqs);
    NEB_TRY(create_caches(d));
    NEB_TRY(neb_buffer_create(d->device, d->int_bytes, &d->ints));
    NEB_TRY(neb_buffer_create(d->device, logits, &d->logits));
    NEB_TRY(neb_tape_create(d->device, d->model->params, &d->tape));
    if (!l->source_rows) return NEB_OK;
    struct neb_model_input_limits f = {.rows = {l->source_rows}, .seqs = l->seqs, .prefix = d->prefix};
    return neb__model_input_create(d->device, &f, &d->source);
}

/* The prompt's tokens come on top of the text's. */
static struct neb_decode_limits with_prompt(const struct neb_model *m, const struct neb_decode_limits *l)
{
    struct neb_decode_limits all = *l;
    const int64_t prompt = m->peft.prompt_length, rows = all.seqs * prompt;
    if (!prompt || all.max_len > m->arch.max_positions || rows > 1 << 28) return all; /* check() says why */
    all.max_len += (int32_t)prompt;
    if (all.prompt_rows < rows) all.prompt_rows = (int32_t)rows;
    return all;
}

neb_status neb__decoding_create(neb_device *device, struct neb_model *m,
                                const struct neb_decode_limits *limits, struct neb_decoding **out)
{
    const struct neb_decode_limits all = with_prompt(m, limits);
    NEB_TRY(check(m, &all));
    struct neb_decoding *d = NEB_NEW(struct neb_decoding);
    if (!d) return neb__fail(NEB_ERR_NOMEM, "out of memory for generating");
    d->device = device;
    d->model = m;
    d->limits = all;
    d->prompt = (int32_t)m->peft.prompt_length;
    d->prefix = (int32_t)m->peft.prefix_length;
    d->listed = neb__device_has_listed(device) && m->arch.positions != NEB_POSITIONS_RELATIVE;
    d->steady = neb__tape_records(device);
    neb_status status = create_parts(d);
    if (status != NEB_OK) {
        neb__decoding_destroy(d);
        return status;
    }
    *out = d;
    return NEB_OK;
}

void neb__decoding_destroy(struct neb_decoding *d)
{
    if (!d) return;
    for (int64_t i = 0; d->caches && i < d->model->decoder.count; i++) {
        neb_buffer_destroy(d->caches[i].key);
        neb_buffer_destroy(d->caches[i].value);
        neb_buffer_destroy(d->caches[i].cross);
    }
    if (d->fence) neb__buffer_fetched(d->best, d->fence); /* its result is not needed any more */
    neb_tape_destroy(d->tape);
    neb__model_input_destroy(d->source);
    neb_buffer_destroy(d->ints);
    neb_buffer_destroy(d->logits);
    neb_buffer_destroy(d->best);
    neb__host_free(d->device, d->host_best);
    neb__free(d->caches);
    neb__free(d->host);
    neb__free(d->host_logits);
    neb__free(d->len);
    neb__free(d->top);
    neb__free(d->born);
    neb__free(d->old_born);
    neb__free(d);
}
