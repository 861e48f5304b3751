/* stage_item.c: messages between stages as items of a stream, and back.
 *
 *     item      u32 tag of the run, u8 kind, u8 flags (1: a value was not finite, nothing follows; 2: of a run with outlines),
 *               u16 items of the same message that follow, u32 number, u32 check value of the batch · bytes
 *     outline   what the batches of a step, or one of held-out text, look like (text/batch_outline.h): ahead, to stages that
 *               have neither end of the model, before the first hidden states of these batches
 *     run       for each part of the message a frame of activations (codec/stream.h)
 *     sums      for each stage its numbers (f64); in the stream ahead those of the stages up to the sender, in the stream
 *               back those from the sender on, zeros for all others
 *
 * The stages of a line send their messages in an order that follows from the job alone. So the next message of a stream
 * is known before it comes, and whatever differs is an error. The bytes are a peer's: every length is checked before it
 * is used. */
#include "split/stage_site.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/stream.h"
#include "run/stream.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    HEAD = 16,
    PIECE = 8 << 20,
    PIECES = 1024,
    BAD = 1,
    OUTLINED = 2,
    STAGES_MAX = NEB_JOB_SITES,
    SUMS_MAX = 32
};
static const double slice = 0.2; /* seconds between two looks at the stop flag */

/* ---- items ------------------------------------------------------------------------------------------------ */

static neb_status send(struct neb_stage_site *s, struct neb_stage_end *e)
{
    for (;;) {
        neb_status status = neb_stream_put(e->stream, e->at + 1, s->item.data, s->item.len, slice);
        if (status != NEB_ERR_TIMEOUT) {
            if (status == NEB_OK) e->at++, e->all_bytes += (double)s->item.len;
            return status;
        }
        NEB_TRY(neb__stage_waits(s));
    }
}

static size_t pieces_of(size_t bytes)
{
    return bytes ? (bytes + PIECE - 1) / PIECE : 1;
}

static neb_status put_pieces(struct neb_stage_site *s, struct neb_stage_end *e,
                             const struct neb_stage_head *head, const uint8_t *bytes, size_t n, size_t pieces)
{
    const size_t each = (n + pieces - 1) / pieces;
    if (pieces > PIECES) return neb__fail(NEB_ERR_LIMIT, "a message of %zu bytes between stages", n);
    for (size_t i = 0; i < pieces; i++) {
        uint8_t h[HEAD] = {0};
        size_t part = n < each ? n : each;
        neb__put32(h, s->run);
        h[4] = (uint8_t)head->kind;
        h[5] = (uint8_t)((head->bad ? BAD : 0) | (s->outlined ? OUTLINED : 0));
        neb__put16(h + 6, (uint16_t)(pieces - 1 - i));
        neb__put32(h + 8, head->number);
        neb__put32(h + 12, head->check);
        neb__buf_clear(&s->item);
        NEB_TRY(neb__buf_append(&s->item, h, HEAD));
        if (part) NEB_TRY(neb__buf_append(&s->item, bytes, part));
        NEB_TRY(send(s, e));
        if (part) bytes += part;
        n -= part;
    }
    return NEB_OK;
}

neb_status neb__stage_put(struct neb_stage_site *s, enum neb_stage_way way, const struct neb_stage_head *head,
                          const void *bytes, size_t n)
{
    return put_pieces(s, &s->end[way], head, bytes, n, pieces_of(n));
}

/* True: the journal has the whole message already, since before a crash. It need not be made again. *begun: it has the first
 * items of it. */
static bool skip(struct neb_stage_end *e, size_t pieces, bool *begun)
{
    struct neb_stream_status st;
    neb_stream_get_status(e->stream, &st);
    *begun = e->at < st.last;
    if (e->at + pieces > st.last) return false;
    e->at += pieces;
    return true;
}

static neb_status receive(struct neb_stage_site *s, struct neb_stage_end *e, const uint8_t **bytes, size_t *n)
{
    const void *data;
    uint64_t item;
    for (;;) {
        neb_status status = neb_stream_get(e->stream, slice, &data, n, &item);
        if (status != NEB_ERR_TIMEOUT) {
            NEB_TRY(status);
            break;
        }
        NEB_TRY(neb__stage_waits(s));
    }
    if (item != ++e->at || *n < HEAD)
        return neb__fail(NEB_ERR_CORRUPT, "item %" PRIu64 " from site '%s' is cut off, or another was due",
                         item, e->other);
    e->bytes += *n;
    e->all_bytes += (double)*n;
    *bytes = data;
    return NEB_OK;
}

/* The first item that a new site takes names its run. */
static neb_status check_run(struct neb_stage_site *s, const struct neb_stage_end *e, uint32_t tag)
{
    if (!s->run_known) {
        s->run = tag;
        s->run_known = true;
        return neb__stage_write_run(s);
    }
    if (tag == s->run) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "item %" PRIu64
                     " from site '%s' and the checkpoint in %s belong to different runs: remove the folders "
                     "`out` of all sites to start from nothing",
                     e->at, e->other, s->job->out);
}

/* The numbers of the items depend on it. */
static neb_status check_version(const struct neb_stage_site *s, const struct neb_stage_end *e, uint8_t flags)
{
    if (!s->outlined == !(flags & OUTLINED)) return NEB_OK;
    return neb__fail(
        NEB_ERR_VERSION,
        "site '%s' runs a nebula-i whose stages do not say what their batches look like, or knows another "
        "number of sites: use the same release and job at all sites",
        e->other);
}

neb_status neb__stage_get(struct neb_stage_site *s, enum neb_stage_way way, struct neb_stage_head *head,
                          const uint8_t **bytes, size_t *n)
{
    struct neb_stage_end *e = &s->end[way];
    uint16_t left = 0;
    neb__buf_clear(&s->message);
    for (bool first = true;; first = false) {
        const uint8_t *p = NULL;
        size_t size = 0;
        NEB_TRY(receive(s, e, &p, &size));
        NEB_TRY(check_version(s, e, p[5]));
        NEB_TRY(check_run(s, e, neb__get32(p)));
        struct neb_stage_head h = {.kind = (enum neb_stage_kind)p[4],
                                   .bad = p[5] & BAD,
                                   .number = neb__get32(p + 8),
                                   .check = neb__get32(p + 12)};
        uint16_t follow = neb__get16(p + 6);
        if (follow >= PIECES || (!first && (h.kind != head->kind || follow + 1 != left)))
            return neb__fail(NEB_ERR_CORRUPT, "a malformed message from site '%s'", e->other);
        left = follow;
        *head = h;
        if (first && !follow) {
            *bytes = p + HEAD;
            *n = size - HEAD;
            return NEB_OK;
        }
        NEB_TRY(neb__buf_append(&s->message, p + HEAD, size - HEAD));
        if (!left) break;
    }
    *bytes = s->message.data;
    *n = s->message.len;
    return NEB_OK;
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

static enum neb_stage_kind kind_of(const struct neb_stage_message *m)
{
    return m->run == NEB_STAGE_TRAINS ? NEB_STAGE_ITEM_RUN : NEB_STAGE_ITEM_EVAL;
}

static neb_status encode(const struct neb_stage_message *m, const float *values, int bits,
                         struct neb_buf *out)
{
    for (int i = 0; i < m->parts; i++) {
        NEB_TRY(neb__activations_encode(values, (size_t)m->part[i].used, (uint32_t)m->width, bits, out));
        values += m->part[i].rows * m->width;
    }
    return NEB_OK;
}

static double size_at(const struct neb_stage_message *m, int bits)
{
    double n = HEAD;
    for (int i = 0; i < m->parts; i++)
        n += (double)neb__activations_size((size_t)m->part[i].used, (uint32_t)m->width, bits);
    return n;
}

/* The items of a message that a crash has cut off have one number of bits, also where the bits have followed the line to another one
 * since. */
static neb_status bits_of_begun(struct neb_stage_end *e, int *bits, bool *bad)
{
    const uint8_t *p;
    size_t n;
    struct neb_stream_info info;
    neb_status status = neb__stream_recall(e->stream, e->at + 1, &p, &n);
    if (status == NEB_ERR_NOTFOUND) return NEB_OK; /* the other site has it */
    NEB_TRY(status);
    *bad = n >= HEAD && p[5] & BAD;
    if (*bad || n < HEAD + NEB_STREAM_HEADER) return NEB_OK;
    size_t frame = NEB_STREAM_HEADER + (size_t)neb__get32(p + HEAD + 16);
    if (neb__stream_peek(p + HEAD, frame, &info) != NEB_OK)
        return neb__fail(NEB_ERR_CORRUPT, "the journal for site '%s' holds no hidden states", e->other);
    *bits = info.bits;
    return NEB_OK;
}

/* Two checkpoints of the receiver cover an item before the journal drops it, and one may come after every step at the soonest:
 * so three steps, and a part of the next one, must have room. */
static neb_status make_room(const struct neb_stage_site *s, struct neb_stage_end *e, double bytes)
{
    const uint64_t steps = (uint64_t)(4 * (bytes * (double)s->job->train.micro + (double)e->outline));
    if (steps <= e->allowed) return NEB_OK;
    e->allowed = steps;
    return neb__stream_allow(e->stream, steps);
}

/* A message has as many items as it would need with 32 bits. So the number of an item follows from the job alone, also
 * where the bits follow the line. */
neb_status neb__stage_give(void *site, const struct neb_stage_message *m, const float *values)
{
    struct neb_stage_site *s = site;
    struct neb_stage_end *e = &s->end[m->back ? NEB_BACK_OUT : NEB_AHEAD_OUT];
    struct neb_stage_head head = {.kind = kind_of(m), .number = m->number, .check = m->check};
    const size_t pieces = pieces_of((size_t)size_at(m, 32));
    int64_t since = neb__now_ns();
    int bits = s->bits;
    bool begun;
    if (m->run == NEB_STAGE_TRAINS) s->item_bytes = size_at(m, 8);
    NEB_TRY(make_room(s, e, size_at(m, bits)));
    if (skip(e, pieces, &begun)) return NEB_OK;
    neb__buf_clear(&s->message);
    if (begun) NEB_TRY(bits_of_begun(e, &bits, &head.bad));
    neb_status status = head.bad ? NEB_ERR_RANGE : encode(m, values, bits, &s->message);
    if (status == NEB_ERR_RANGE) { /* the receiver fills in what makes all stages skip the step */
        head.bad = true;
        neb__buf_clear(&s->message);
        status = NEB_OK;
    }
    s->code_s += neb__seconds_since(since);
    NEB_TRY(status);
    return put_pieces(s, e, &head, s->message.data, s->message.len, pieces);
}

static neb_status decode_part(const struct neb_stage_end *e, const struct neb_stage_message *m, int i,
                              struct neb_reader *r, float *to)
{
    size_t size = r->left >= NEB_STREAM_HEADER ? NEB_STREAM_HEADER + (size_t)neb__get32(r->p + 16) : 0;
    const uint8_t *frame = size ? neb__read(r, size) : NULL;
    size_t used = (size_t)(m->part[i].used * m->width), all = (size_t)(m->part[i].rows * m->width);
    if (!frame ||
        neb__activations_decode(frame, size, (size_t)m->part[i].used, (uint32_t)m->width, to) != NEB_OK)
        return neb__fail(NEB_ERR_CORRUPT, "malformed hidden states or gradients from site '%s'", e->other);
    memset(to + used, 0, (all - used) * sizeof *to);
    return NEB_OK;
}

static neb_status another_batch(const struct neb_stage_end *e)
{
    return neb__fail(
        NEB_ERR_CONFIG,
        "site '%s' has drawn another batch: data, tokenizer, seed, train.tokens, train.max_len, "
        "train.micro, train.mask and train.eval_every must be the same at all sites that have the text",
        e->other);
}

neb_status neb__stage_take(void *site, const struct neb_stage_message *m, float *values)
{
    struct neb_stage_site *s = site;
    enum neb_stage_way way = m->back ? NEB_BACK_IN : NEB_AHEAD_IN;
    struct neb_stage_end *e = &s->end[way];
    struct neb_stage_head head;
    const uint8_t *bytes;
    size_t n, all = 0;
    NEB_TRY(neb__stage_get(s, way, &head, &bytes, &n));
    int64_t since = neb__now_ns();
    if (head.kind != kind_of(m) || head.number != m->number || head.check != m->check)
        return another_batch(e);
    for (int i = 0; i < m->parts; i++) all += (size_t)(m->part[i].rows * m->width);
    for (size_t i = 0; head.bad && i < all; i++) values[i] = NAN;
    if (head.bad) return NEB_OK;
    struct neb_reader r = {bytes, n, false};
    for (int i = 0; i < m->parts; i++) {
        NEB_TRY(decode_part(e, m, i, &r, values));
        values += m->part[i].rows * m->width;
    }
    s->code_s += neb__seconds_since(since);
    return r.left ? neb__fail(NEB_ERR_CORRUPT, "bytes behind the end of a message from site '%s'", e->other)
                  : NEB_OK;
}

/* ---- outlines --------------------------------------------------------------------------------------------- */

neb_status neb__stage_take_outline(void *site, struct neb_buf *out)
{
    struct neb_stage_site *s = site;
    struct neb_stage_head head;
    const uint8_t *bytes;
    size_t n;
    NEB_TRY(neb__stage_get(s, NEB_AHEAD_IN, &head, &bytes, &n));
    if (head.kind != NEB_STAGE_ITEM_OUTLINE) return another_batch(&s->end[NEB_AHEAD_IN]);
    neb__buf_clear(out);
    return neb__buf_append(out, bytes, n);
}

neb_status neb__stage_give_outline(void *site, const void *bytes, size_t n)
{
    struct neb_stage_site *s = site;
    struct neb_stage_end *e = &s->end[NEB_AHEAD_OUT];
    const struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_OUTLINE};
    if (n > e->outline) e->outline = n;
    return neb__stage_put(s, NEB_AHEAD_OUT, &head, bytes, n);
}

/* ---- sums ------------------------------------------------------------------------------------------------- */

/* Takes a table of all stages' numbers and keeps the rows of the stages [from, to). */
static neb_status take_rows(struct neb_stage_site *s, enum neb_stage_way way, int n, int from, int to,
                            double *table)
{
    struct neb_stage_head head;
    const uint8_t *bytes;
    size_t size, row = (size_t)n * sizeof *table;
    if (!neb__stage_in_line(s, way)) return NEB_OK;
    NEB_TRY(neb__stage_get(s, way, &head, &bytes, &size));
    if (head.kind != NEB_STAGE_ITEM_SUMS || size != (size_t)s->stages * row)
        return another_batch(&s->end[way]);
    memcpy(table + (size_t)from * (size_t)n, bytes + (size_t)from * row, (size_t)(to - from) * row);
    return NEB_OK;
}

static neb_status give_rows(struct neb_stage_site *s, enum neb_stage_way way, int n, const double *table)
{
    struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_SUMS};
    if (!neb__stage_in_line(s, way)) return NEB_OK;
    return neb__stage_put(s, way, &head, table, (size_t)(s->stages * n) * sizeof *table);
}

/* The last stage ends its backwards first and says its part at once, so it has come to the first one before that ends
 * its own: the first stage goes on without waiting. What the first one says comes before its next hidden states. */
neb_status neb__stage_add_up(void *site, double *own, int n)
{
    struct neb_stage_site *s = site;
    double table[STAGES_MAX * SUMS_MAX] = {0};
    if (n > SUMS_MAX || s->stages > STAGES_MAX)
        return neb__fail(NEB_ERR_LIMIT, "%d sums of %d stages", n, s->stages);
    memcpy(table + s->stage * n, own, (size_t)n * sizeof *own);
    NEB_TRY(take_rows(s, NEB_BACK_IN, n, s->stage + 1, s->stages, table));
    NEB_TRY(give_rows(s, NEB_BACK_OUT, n, table));
    NEB_TRY(take_rows(s, NEB_AHEAD_IN, n, 0, s->stage, table));
    NEB_TRY(give_rows(s, NEB_AHEAD_OUT, n, table));
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < s->stages; k++) sum += table[k * n + i];
        own[i] = sum;
    }
    return NEB_OK;
}

neb_status neb__stage_spread(void *site, void *bytes, size_t n)
{
    struct neb_stage_site *s = site;
    struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_SPREAD};
    const enum neb_stage_way in = s->place.ring ? NEB_AHEAD_IN : NEB_BACK_IN,
                             out = s->place.ring ? NEB_AHEAD_OUT : NEB_BACK_OUT;
    const uint8_t *from;
    size_t size;
    if (neb__stage_in_line(s, in)) {
        NEB_TRY(neb__stage_get(s, in, &head, &from, &size));
        if (head.kind != NEB_STAGE_ITEM_SPREAD || size != n) return another_batch(&s->end[in]);
        memcpy(bytes, from, n);
    }
    head = (struct neb_stage_head){.kind = NEB_STAGE_ITEM_SPREAD};
    return neb__stage_in_line(s, out) ? neb__stage_put(s, out, &head, bytes, n) : NEB_OK;
}
