/* tutor_samples.c: a student's own samples on their way to the teacher, and back as a part of its answers.
 *
 *     item      u32 tag of the student's run, u32 check value of the batch as it was drawn, then
 *     samples   u32 sequences, a frame with the number of tokens of each, a frame with the tokens of all (codec/stream.h);
 *               the second one only if there are tokens
 *
 * Item i is about the i-th judged batch. The student's journal has every item until the teacher's answer is at the student's
 * site, and the answer carries the samples back: a student that goes on from a checkpoint learns from what was judged, and
 * needs no memory of what it wrote. It makes the samples of the steps that it repeats again; the journal has them already. The
 * credit covers all samples that can be on their way, so a student never waits here. */
#include "base/bytes.h"
#include "base/mem.h"
#include "codec/stream.h"
#include "run/stream.h"
#include "split/split_site.h"

#include <stdio.h>

enum { SPARE = 64 };

/* ---- bytes --------------------------------------------------------------------------------------------- */

neb_status neb__samples_encode(const struct neb_samples *s, const struct neb_split_site *at,
                               struct neb_buf *out)
{
    uint8_t head[4];
    const size_t tokens = s->ids.len / sizeof(int32_t);
    neb__put32(head, (uint32_t)s->seqs);
    NEB_TRY(neb__buf_append(out, head, sizeof head));
    if (!s->seqs) return NEB_OK;
    NEB_TRY(neb__tokens_encode(s->n, (size_t)s->seqs, (uint32_t)at->job->train.max_len + 1, out));
    if (!tokens) return NEB_OK;
    return neb__tokens_encode((const int32_t *)s->ids.data, tokens, at->shape.vocabulary, out);
}

static neb_status corrupt(const struct neb_split_site *at)
{
    return neb__fail(NEB_ERR_CORRUPT, "malformed samples from site '%s'", at->other);
}

neb_status neb__samples_decode(struct neb_samples *s, const struct neb_split_site *at, struct neb_reader *r)
{
    const uint32_t seqs = neb__read32(r);
    size_t size = 0, tokens = 0;
    s->seqs = 0;
    neb__buf_clear(&s->ids);
    if (r->bad || seqs > (uint32_t)s->room) return corrupt(at);
    if (!seqs) return NEB_OK;
    const uint8_t *frame = neb__tutor_item_frame(r, &size);
    if (!frame || neb__tokens_decode(frame, size, (uint32_t)at->job->train.max_len + 1, seqs, s->n) != NEB_OK)
        return corrupt(at);
    for (uint32_t q = 0; q < seqs; q++) tokens += (size_t)s->n[q];
    if (tokens) {
        frame = neb__tutor_item_frame(r, &size);
        NEB_TRY(neb__buf_reserve(&s->ids, tokens * sizeof(int32_t)));
        if (!frame ||
            neb__tokens_decode(frame, size, at->shape.vocabulary, tokens, (int32_t *)s->ids.data) != NEB_OK)
            return corrupt(at);
        s->ids.len = tokens * sizeof(int32_t);
    }
    s->seqs = (int32_t)seqs;
    return NEB_OK;
}

/* ---- the stream ---------------------------------------------------------------------------------------- */

static neb_status give(void *arg, const struct neb_batch *b, const struct neb_samples *samples)
{
    struct neb_split_site *s = arg;
    uint8_t check[4];
    NEB_TRY(neb__split_item_begin(s));
    neb__put32(check, neb__batch_check_value(b));
    NEB_TRY(neb__buf_append(&s->item, check, sizeof check));
    NEB_TRY(neb__samples_encode(samples, s, &s->item));
    s->rows += (int64_t)(samples->ids.len / sizeof(int32_t));
    return neb_stream_put(s->stream, neb__on_policy_before(s->job, b->step + 1), s->item.data, s->item.len,
                          -1);
}

neb_status neb__split_open_samples(struct neb_split_site *s, const struct neb_data *data)
{
    struct neb_split_site *e = NEB_NEW(struct neb_split_site);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stream of samples");
    s->samples = e;
    e->job = s->job;
    e->role = s->role;
    e->other = s->other;
    e->shape = s->shape;
    e->produces = s->role == NEB_ROLE_STUDENT;
    e->sampling = true;
    snprintf(e->label, sizeof e->label, ".samples");
    neb__buf_init(&e->item, NEB_STREAM_ITEM_MAX);
    if (!e->produces) return NEB_OK;
    s->links.sampled = give, s->links.sampled_arg = e;
    return neb__split_identify(e, data);
}

neb_status neb__split_start_samples(struct neb_split_site *s, neb_session *session, uint64_t batches)
{
    const int64_t lag = neb__on_policy_lag(s->job), covered = (int64_t)batches + (s->produces ? lag : 0);
    struct neb_stream_config c = {.site = s->other,
                                  .number = neb__split_number(s),
                                  .produce = s->produces,
                                  .mark = neb__on_policy_before(s->job, covered),
                                  .items = lag + s->job->train.micro + SPARE,
                                  .bytes = 64 << 20};
    NEB_TRY(neb__split_run_begin(s, c.number, c.mark));
    s->saved[0].mark = c.mark;
    return neb_stream_open(session, &c, &s->stream);
}

neb_status neb__samples_take(struct neb_split_site *s, const struct neb_batch *b, struct neb_samples *out)
{
    const void *bytes;
    size_t n;
    uint64_t item;
    NEB_TRY(neb_stream_get(s->stream, -1, &bytes, &n, &item));
    NEB_TRY(neb__split_item_open(s, item, &bytes, &n));
    struct neb_reader r = {bytes, n, false};
    if (item != neb__on_policy_before(s->job, b->step + 1) || neb__read32(&r) != neb__batch_check_value(b))
        return neb__fail(
            NEB_ERR_CONFIG,
            "site '%s' wrote samples for another batch %" PRId64
            ": data, tokenizer, seed, train.tokens, train.max_len, train.micro, distill.on_policy and "
            "distill.lag must be the same at both sites",
            s->other, b->step + 1);
    NEB_TRY(neb__samples_decode(out, s, &r));
    return r.left ? corrupt(s) : NEB_OK;
}

void neb__samples_done(struct neb_split_site *s, uint64_t batches)
{
    const uint64_t item = neb__on_policy_before(s->job, (int64_t)batches);
    if (item <= s->saved[0].mark) return;
    s->saved[0].mark = item;
    (void)neb_stream_retain(s->stream, item);
}
