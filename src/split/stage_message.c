/* stage_message.c: messages between stages, as bytes and back. Pure.
 *
 *     item      u32 tag of the run, u8 kind, u8 flags (1: a value was not finite, nothing follows; 2: of a run with outlines;
 *               4: sums have the time of the line, and the first site may say what it wants), u16 items of the same message that follow, u32 number, u32 check value of the batch · bytes
 *     outline   what the batches of a step, or one of held-out text, look like (text/batch_outline.h): ahead, to stages that
 *               have neither end of the model, before the first hidden states of these batches
 *     run       for each part of the message a frame of activations (codec/stream.h)
 *     sums      for each stage its numbers (f64), in a run with outlines also the time of the line behind it; in the stream ahead those of the stages up to the sender, in the stream
 *               back those from the sender on, zeros for all others
 *
 * The stages of a line send their messages in an order that follows from the job alone. So the next message of a stream
 * is known before it comes, and whatever differs is an error. */
#include "split/stage_message.h"
#include "base/bytes.h"
#include "codec/stream.h"

#include <math.h>
#include <string.h>

enum { BAD = 1, OUTLINED = 2, LINES = 4 };

/* ---- items ------------------------------------------------------------------------------------------------ */

void neb__stage_head_write(const struct neb_stage_item_head *h, uint8_t out[NEB_STAGE_HEAD])
{
    neb__put32(out, h->run);
    out[4] = (uint8_t)h->message.kind;
    out[5] = (uint8_t)((h->message.bad ? BAD : 0) | (h->outlined ? OUTLINED : 0) | (h->third ? LINES : 0));
    neb__put16(out + 6, h->follow);
    neb__put32(out + 8, h->message.number);
    neb__put32(out + 12, h->message.check);
}

bool neb__stage_head_read(const uint8_t *item, size_t n, struct neb_stage_item_head *out)
{
    if (n < NEB_STAGE_HEAD) return false;
    out->run = neb__get32(item);
    out->message = (struct neb_stage_head){.kind = (enum neb_stage_kind)item[4],
                                           .bad = item[5] & BAD,
                                           .number = neb__get32(item + 8),
                                           .check = neb__get32(item + 12)};
    out->outlined = item[5] & OUTLINED;
    out->third = item[5] & LINES;
    out->follow = neb__get16(item + 6);
    return true;
}

size_t neb__stage_pieces(size_t bytes)
{
    return bytes ? (bytes + NEB_STAGE_PIECE - 1) / NEB_STAGE_PIECE : 1;
}

static neb_status another_batch(const char *from)
{
    return neb__fail(
        NEB_ERR_CONFIG,
        "site '%s' has drawn another batch: data, tokenizer, seed, train.tokens, train.max_len, "
        "train.micro, train.mask and train.eval_every must be the same at all sites that have the text",
        from);
}

static bool same_head(const struct neb_stage_head *a, const struct neb_stage_head *b)
{
    return a->kind == b->kind && a->bad == b->bad && a->number == b->number && a->check == b->check;
}

static neb_status check_first(const struct neb_stage_due *due, const char *from,
                              const struct neb_stage_item_head *h)
{
    const struct neb_stage_head *m = &h->message;
    const size_t pieces = (size_t)h->follow + 1;
    const bool wanted = m->kind == due->kind || (due->or_kind && m->kind == due->or_kind);
    if (!wanted || m->number != due->number || m->check != due->check) return another_batch(from);
    if (due->pieces ? pieces != due->pieces : pieces > neb__stage_pieces(due->most))
        return neb__fail(NEB_ERR_CORRUPT, "a message of %zu items from site '%s', which has %zu", pieces,
                         from, due->pieces ? due->pieces : neb__stage_pieces(due->most));
    return NEB_OK;
}

neb_status neb__stage_inbox_add(struct neb_stage_inbox *in, const struct neb_stage_due *due, const char *from,
                                const uint8_t *item, size_t size, const uint8_t **bytes, size_t *n)
{
    struct neb_stage_item_head h;
    *bytes = NULL;
    if (!neb__stage_head_read(item, size, &h))
        return neb__fail(NEB_ERR_CORRUPT, "an item from site '%s' is cut off", from);
    const size_t part = size - NEB_STAGE_HEAD;
    if (!in->begun) {
        NEB_TRY(check_first(due, from, &h));
        neb__buf_clear(&in->bytes);
        in->head = h.message;
    } else if (!same_head(&h.message, &in->head) || h.follow + 1 != in->left) {
        return neb__fail(NEB_ERR_CORRUPT, "a malformed message from site '%s'", from);
    }
    if (part > due->most - in->bytes.len || (h.message.bad && part))
        return neb__fail(NEB_ERR_CORRUPT, "a message from site '%s' has more than the %zu bytes that are due",
                         from, h.message.bad ? 0 : due->most);
    in->left = h.follow;
    const bool alone = !in->begun && !h.follow;
    in->begun = h.follow > 0;
    if (!alone) NEB_TRY(neb__buf_append(&in->bytes, item + NEB_STAGE_HEAD, part));
    if (h.follow) return NEB_OK;
    *bytes = alone ? item + NEB_STAGE_HEAD : in->bytes.data;
    *n = alone ? part : in->bytes.len;
    if (!*bytes) *bytes = item + NEB_STAGE_HEAD; /* several items without a byte */
    return NEB_OK;
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

enum neb_stage_kind neb__stage_kind_of(const struct neb_stage_message *m)
{
    return m->run == NEB_STAGE_TRAINS ? NEB_STAGE_ITEM_RUN : NEB_STAGE_ITEM_EVAL;
}

double neb__stage_run_size(const struct neb_stage_message *m, int bits)
{
    double n = NEB_STAGE_HEAD;
    for (int i = 0; i < m->parts; i++)
        n += (double)neb__activations_size((size_t)m->part[i].used, (uint32_t)m->width, bits);
    return n;
}

/* A message has as many items as it would need with 32 bits, whatever it has. */
struct neb_stage_due neb__stage_due_run(const struct neb_stage_message *m)
{
    static const int bits[] = {32, 16, 8, 4};
    struct neb_stage_due due = {.kind = neb__stage_kind_of(m),
                                .pieces = neb__stage_pieces((size_t)neb__stage_run_size(m, 32)),
                                .number = m->number,
                                .check = m->check};
    for (int i = 0; i < 4; i++) { /* a few rows take the more with 4 bits, which send a mean beside them */
        size_t n = (size_t)neb__stage_run_size(m, bits[i]) - NEB_STAGE_HEAD;
        if (n > due.most) due.most = n;
    }
    return due;
}

neb_status neb__stage_run_encode(const struct neb_stage_message *m, const float *values, int bits,
                                 struct neb_buf *out)
{
    for (int i = 0; i < m->parts; i++) {
        NEB_TRY(neb__activations_encode(values, (size_t)m->part[i].used, (uint32_t)m->width, bits, out));
        values += m->part[i].rows * m->width;
    }
    return NEB_OK;
}

static neb_status decode_part(const struct neb_stage_message *m, int i, const char *from,
                              struct neb_reader *r, float *to)
{
    size_t size = r->left >= NEB_STREAM_HEADER ? NEB_STREAM_HEADER + (size_t)neb__get32(r->p + 16) : 0;
    const uint8_t *frame = size ? neb__read(r, size) : NULL;
    size_t used = (size_t)(m->part[i].used * m->width), all = (size_t)(m->part[i].rows * m->width);
    if (!frame ||
        neb__activations_decode(frame, size, (size_t)m->part[i].used, (uint32_t)m->width, to) != NEB_OK)
        return neb__fail(NEB_ERR_CORRUPT, "malformed hidden states or gradients from site '%s'", from);
    memset(to + used, 0, (all - used) * sizeof *to);
    return NEB_OK;
}

neb_status neb__stage_run_decode(const struct neb_stage_message *m, const char *from, const uint8_t *bytes,
                                 size_t n, float *values)
{
    struct neb_reader r = {bytes, n, false};
    for (int i = 0; i < m->parts; i++) {
        NEB_TRY(decode_part(m, i, from, &r, values));
        values += m->part[i].rows * m->width;
    }
    return r.left ? neb__fail(NEB_ERR_CORRUPT, "bytes behind the end of a message from site '%s'", from)
                  : NEB_OK;
}

/* ---- parameters at the end ---------------------------------------------------------------------------------- */

neb_status neb__stage_check_values(const char *from, bool end, size_t n)
{
    const size_t values = n > NEB_STAGE_VALUES_HEAD ? (n - NEB_STAGE_VALUES_HEAD) / sizeof(float) : 0;
    if (end ? !n : values && values <= NEB_STAGE_CHUNK && n == NEB_STAGE_VALUES_HEAD + values * sizeof(float))
        return NEB_OK;
    return neb__fail(NEB_ERR_CORRUPT, "malformed parameters from site '%s'", from);
}

/* ---- sums ------------------------------------------------------------------------------------------------- */

static bool counts(double x)
{
    return isfinite(x) && x >= 0;
}

static bool can_be(const struct neb_stage_sums *v)
{
    bool ok = counts(v->nonfinite) && !(v->norm2 < 0);
    for (int i = 0; i < NEB_STAGE_COUNTS; i++) ok &= counts(v->counts[i]);
    return ok;
}

static size_t row_size(bool lines)
{
    return sizeof(struct neb_stage_sums) + (lines ? sizeof(double) : 0);
}

size_t neb__stage_rows_size(int stages, bool lines)
{
    return (size_t)stages * row_size(lines);
}

void neb__stage_rows_encode(const struct neb_stage_row *table, int stages, bool lines, uint8_t *out)
{
    for (int k = 0; k < stages; k++, out += row_size(lines)) {
        memcpy(out, &table[k].sums, sizeof table[k].sums);
        if (lines) memcpy(out + sizeof table[k].sums, &table[k].line_s, sizeof table[k].line_s);
    }
}

neb_status neb__stage_rows_decode(const char *site, const uint8_t *bytes, size_t n, int stages, bool lines,
                                  int from, int to, struct neb_stage_row *table)
{
    if (n != neb__stage_rows_size(stages, lines))
        return neb__fail(NEB_ERR_CORRUPT, "site '%s' sent the numbers of another number of stages", site);
    for (int k = from; k < to; k++) {
        struct neb_stage_row *r = &table[k];
        const uint8_t *at = bytes + (size_t)k * row_size(lines);
        memcpy(&r->sums, at, sizeof r->sums);
        if (lines) memcpy(&r->line_s, at + sizeof r->sums, sizeof r->line_s);
        if (!counts(r->line_s)) r->line_s = 0;
        if (!can_be(&r->sums))
            return neb__fail(NEB_ERR_CORRUPT,
                             "site '%s' sent a squared norm, a count or a flag of stage %d that cannot be: "
                             "%g, %g, %g",
                             site, k + 1, r->sums.norm2, r->sums.counts[0], r->sums.nonfinite);
    }
    return NEB_OK;
}

void neb__stage_sums_total(const struct neb_stage_row *table, int stages, struct neb_stage_sums *out)
{
    *out = (struct neb_stage_sums){0};
    for (int k = 0; k < stages; k++) {
        const struct neb_stage_sums *v = &table[k].sums;
        for (int i = 0; i < NEB_STAGE_LOSSES; i++) out->loss[i] += v->loss[i];
        for (int i = 0; i < NEB_STAGE_COUNTS; i++) out->counts[i] += v->counts[i];
        out->norm2 += v->norm2;
        out->nonfinite += v->nonfinite;
    }
}
