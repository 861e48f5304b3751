/* tutor_item.c: a teacher's answers to bytes and back.
 *
 *     item      u32 check value of the batch, u32 number of sequences, a bit for each: the item has its
 *               answer (eight in a byte, the first lowest); then, if one is set: one frame of logits over all
 *               their rows (codec/stream.h), one frame of hidden states
 *     uneven    the same with the highest bit of the number of sequences set, where rows have different numbers of
 *               logits (a teacher with another tokenizer): in place of the logits' frame one with each row's
 *               number, as tokens, and then for every number that occurs, ascending, one with the logits of its rows
 *     cached    the rows' ids (i32) and logits (f32); the rows' hidden states (f32)
 *
 * The logits of a row are sent relative to the greatest of them (of a judged batch: as they are, log-probabilities), by
 * ascending id, and as many as the sender's code says. The cache holds the decoded values, so the second epoch learns from the same bits as the
 * first. */
#include "split/tutor_item.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/topk.h"
#include "codec/stream.h"

#include <math.h>
#include <string.h>

enum { HEAD = 8 };
#define UNEVEN 0x80000000u /* rows have different numbers of logits */

/* ---- sequences ----------------------------------------------------------------------------------------- */

neb_status neb__tutor_plan_init(struct neb_tutor_plan *p, int32_t seqs)
{
    *p = (struct neb_tutor_plan){.seq = NEB_NEW_ARRAY(struct neb_tutor_seq, (size_t)seqs), .room = seqs};
    return p->seq ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d sequences", seqs);
}

void neb__tutor_plan_free(struct neb_tutor_plan *p)
{
    neb__free(p->seq);
    *p = (struct neb_tutor_plan){0};
}

static neb_status name_sequence(const struct neb_batch *b, int32_t q, struct neb_tutor_seq *seq)
{
    struct neb_hasher h;
    struct neb_hash hash;
    int32_t from = b->side[b->sides - 1].cu_seqlens[q];
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < b->sides; i++) {
        const int32_t *cu = b->side[i].cu_seqlens;
        int32_t n = cu[q + 1] - cu[q];
        status = neb__hasher_update(&h, &n, sizeof n);
        if (status == NEB_OK && n)
            status = neb__hasher_update(&h, b->side[i].ids + cu[q], (size_t)n * sizeof n);
    }
    for (int32_t i = 0; status == NEB_OK && i < seq->count; i++) {
        int32_t at = b->loss.rows[seq->first + i] - from;
        status = neb__hasher_update(&h, &at, sizeof at);
    }
    neb_status f = neb__hasher_final(&h, status == NEB_OK ? &hash : NULL);
    if (status == NEB_OK) status = f;
    if (status == NEB_OK) memcpy(seq->key.b, hash.b, NEB_KEY);
    return status;
}

/* The loss rows are in the order of the sequences, with those that count first. */
neb_status neb__tutor_plan_make(struct neb_tutor_plan *p, const struct neb_batch *b)
{
    const struct neb_batch_side *last = &b->side[b->sides - 1];
    int32_t at = 0;
    p->seqs = b->side[0].nseq_used;
    p->check = neb__batch_check_value(b);
    p->judged = b->judged;
    if (p->seqs > p->room)
        return neb__fail(NEB_ERR_RANGE, "a batch of %d sequences; room for %d", p->seqs, p->room);
    for (int32_t q = 0; q < p->seqs; q++) {
        struct neb_tutor_seq *seq = &p->seq[q];
        *seq = (struct neb_tutor_seq){.first = at, .row = b->side[0].cu_seqlens[q]};
        seq->rows = b->side[0].cu_seqlens[q + 1] - seq->row;
        while (at < b->loss.used && b->loss.rows[at] < last->cu_seqlens[q + 1]) at++;
        seq->count = at - seq->first;
        NEB_TRY(name_sequence(b, q, seq));
    }
    return at == b->loss.used ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "a loss row outside all sequences");
}

size_t neb__tutor_item_size(const struct neb_tutor_shape *s, const struct neb_tutor_seq *q)
{
    return (size_t)q->count * (size_t)s->k * 8 + (size_t)q->rows * (size_t)s->width * 4;
}

static void count_here(const struct neb_tutor_plan *p, size_t *targets, size_t *rows)
{
    *targets = *rows = 0;
    for (int32_t q = 0; q < p->seqs; q++)
        if (p->seq[q].here) *targets += (size_t)p->seq[q].count, *rows += (size_t)p->seq[q].rows;
}

/* ---- out ----------------------------------------------------------------------------------------------- */

/* The logits of an item's rows, before they are coded. */
struct rows {
    size_t n, room; /* room: places of a row */
    int32_t *ids;   /* (n, room) */
    float *logp;
    int32_t *count; /* (n) places that are taken */
};

static neb_status rows_init(struct rows *r, size_t n, size_t room)
{
    *r = (struct rows){.n = n, .room = room};
    r->ids = NEB_NEW_ARRAY(int32_t, n * room);
    r->logp = NEB_NEW_ARRAY(float, n *room);
    r->count = NEB_NEW_ARRAY(int32_t, n);
    if (r->ids && r->logp && r->count) return NEB_OK;
    return neb__fail(NEB_ERR_NOMEM, "out of memory for answers at %zu rows", n);
}

static void rows_free(struct rows *r)
{
    neb__free(r->ids);
    neb__free(r->logp);
    neb__free(r->count);
}

/* Takes the greatest logits of a row of k, at most `room` of them: their ids ascending, their values relative to the
 * greatest, or absolute. */
static neb_status order_row(const int32_t *ids, const float *logits, int32_t k, bool absolute, struct rows *r,
                            size_t at)
{
    int32_t *to = r->ids + at * r->room, have = 0;
    float *logp = r->logp + at * r->room;
    for (int32_t j = 0; j < k; j++) {
        if (ids[j] < 0) continue;
        if (!isfinite(logits[j]))
            return neb__fail(NEB_ERR_RANGE, "the teacher gave logits that are not finite");
        neb__topk_list_offer(logp, to, (int32_t)r->room, &have, logits[j], ids[j]);
    }
    float most = have ? logp[0] : 0;
    if (absolute && most < 0) most = 0;
    for (int32_t j = 0; j < have; j++) logp[j] = logp[j] - most < -65000 ? -65000 : logp[j] - most;
    neb__topk_list_by_id(logp, to, have);
    r->count[at] = have;
    return NEB_OK;
}

static neb_status order_rows(const struct neb_tutor_shape *s, const struct neb_tutor_plan *p,
                             const struct neb_teacher_answer *from, struct rows *r)
{
    size_t k = (size_t)s->k, at = 0;
    for (int32_t q = 0; q < p->seqs; q++)
        for (int32_t i = 0; p->seq[q].here && i < p->seq[q].count; i++, at++) {
            size_t row = (size_t)(p->seq[q].first + i) * k;
            NEB_TRY(order_row(from->ids + row, from->logits + row, s->k, p->judged, r, at));
        }
    return NEB_OK;
}

static bool is_even(const struct rows *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->count[i] != (int32_t)r->room) return false;
    return true;
}

/* The rows with `count` logits, one behind the other, into the same memory of `to`. Returns how many. */
static size_t collect(const struct rows *r, int32_t count, struct rows *to)
{
    size_t n = 0, c = (size_t)count;
    for (size_t i = 0; i < r->n; i++) {
        if (r->count[i] != count) continue;
        memcpy(to->ids + n * c, r->ids + i * r->room, c * sizeof *to->ids);
        memcpy(to->logp + n++ * c, r->logp + i * r->room, c * sizeof *to->logp);
    }
    return n;
}

static neb_status put_uneven(const struct neb_tutor_shape *s, int bits, const struct rows *r,
                             struct neb_buf *out)
{
    struct rows same;
    neb_status status = rows_init(&same, r->n, r->room);
    if (status == NEB_OK) status = neb__tokens_encode(r->count, r->n, (uint32_t)s->k + 1, out);
    for (int32_t c = 1; status == NEB_OK && c <= (int32_t)r->room; c++) {
        struct neb_topk shape = {collect(r, c, &same), c, s->vocabulary};
        if (shape.rows) status = neb__logits_encode(&shape, bits, same.ids, same.logp, out);
    }
    rows_free(&same);
    return status;
}

/* head: of the item, in `out`. */
static neb_status put_logits(const struct neb_tutor_shape *s, const struct neb_tutor_code *code,
                             const struct neb_tutor_plan *p, const struct neb_teacher_answer *from,
                             size_t targets, size_t head, struct neb_buf *out)
{
    struct rows r;
    neb_status status = rows_init(&r, targets, (size_t)code->k);
    if (status == NEB_OK) status = order_rows(s, p, from, &r);
    if (status == NEB_OK && is_even(&r)) {
        struct neb_topk shape = {targets, code->k, s->vocabulary};
        status = neb__logits_encode(&shape, code->bits, r.ids, r.logp, out);
    } else if (status == NEB_OK) {
        neb__put32(out->data + head + 4, (uint32_t)p->seqs | UNEVEN);
        status = put_uneven(s, code->bits, &r, out);
    }
    rows_free(&r);
    return status;
}

static neb_status put_hidden(const struct neb_tutor_shape *s, int bits, const struct neb_tutor_plan *p,
                             const struct neb_teacher_answer *from, size_t rows, struct neb_buf *out)
{
    size_t width = (size_t)s->width, at = 0;
    float *x = NEB_NEW_ARRAY(float, rows *width);
    if (!x) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu hidden states", rows);
    for (int32_t q = 0; q < p->seqs; q++) {
        const struct neb_tutor_seq *seq = &p->seq[q];
        if (!seq->here) continue;
        memcpy(x + at * width, from->hidden + (size_t)seq->row * width,
               (size_t)seq->rows * width * sizeof *x);
        at += (size_t)seq->rows;
    }
    neb_status status = neb__hidden_encode(x, rows, (uint32_t)s->width, bits, out);
    neb__free(x);
    return status;
}

neb_status neb__tutor_item_encode(const struct neb_tutor_shape *s, const struct neb_tutor_code *code,
                                  const struct neb_tutor_plan *p, const struct neb_teacher_answer *logits,
                                  const struct neb_teacher_answer *hidden, struct neb_buf *out)
{
    if (s->k && (code->k < 1 || code->k > s->k))
        return neb__fail(NEB_ERR_INVALID, "cannot send %d of %d logits", code->k, s->k);
    size_t map = ((size_t)p->seqs + 7) / 8, targets, rows, start = out->len;
    NEB_TRY(neb__buf_reserve(out, HEAD + map));
    uint8_t *head = out->data + out->len;
    memset(head, 0, HEAD + map);
    neb__put32(head, p->check);
    neb__put32(head + 4, (uint32_t)p->seqs);
    for (int32_t q = 0; q < p->seqs; q++)
        if (p->seq[q].here) head[HEAD + q / 8] |= (uint8_t)(1 << q % 8);
    out->len += HEAD + map;
    count_here(p, &targets, &rows);
    if (s->k && targets) NEB_TRY(put_logits(s, code, p, logits, targets, start, out));
    return s->width && rows ? put_hidden(s, code->hidden_bits, p, hidden, rows, out) : NEB_OK;
}

/* ---- in ------------------------------------------------------------------------------------------------ */

static neb_status corrupt(const char *what)
{
    return neb__fail(NEB_ERR_CORRUPT, "malformed answers from the teacher's site: %s", what);
}

const uint8_t *neb__tutor_item_frame(struct neb_reader *r, size_t *n)
{
    if (r->left < NEB_STREAM_HEADER) return NULL;
    *n = NEB_STREAM_HEADER + (size_t)neb__get32(r->p + NEB_STREAM_HEADER - 4);
    return neb__read(r, *n);
}

/* Puts the n received logits of a row into its k places. The remaining places stay empty. */
static void place_row(const struct neb_tutor_room *room, size_t row, size_t k, const int32_t *ids,
                      const float *logp, size_t n)
{
    int32_t *to = room->ids + row * k;
    float *value = room->logits + row * k;
    memcpy(to, ids, n * sizeof *ids);
    memcpy(value, logp, n * sizeof *logp);
    for (size_t j = n; j < k; j++) to[j] = -1, value[j] = 0;
}

static neb_status take_even(const struct neb_tutor_shape *s, struct neb_reader *r, struct rows *out)
{
    struct neb_stream_info info;
    size_t n;
    const uint8_t *frame = neb__tutor_item_frame(r, &n);
    if (!frame) return corrupt("logits are cut off");
    NEB_TRY(neb__stream_peek(frame, n, &info));
    if (info.k < 1 || info.k > s->k) return corrupt("more logits a row than the job says");
    out->room = (size_t)info.k;
    struct neb_topk shape = {out->n, info.k, s->vocabulary};
    NEB_TRY(neb__logits_decode(frame, n, &shape, out->ids, out->logp));
    for (size_t i = 0; i < out->n; i++) out->count[i] = info.k;
    return NEB_OK;
}

/* The rows with `count` logits. */
static neb_status take_same(const struct neb_tutor_shape *s, struct neb_reader *r, int32_t count,
                            struct rows *same, struct rows *out)
{
    size_t n, rows = 0, c = (size_t)count;
    for (size_t i = 0; i < out->n; i++) rows += out->count[i] == count;
    if (!rows) return NEB_OK;
    const uint8_t *frame = neb__tutor_item_frame(r, &n);
    if (!frame) return corrupt("logits are cut off");
    struct neb_topk shape = {rows, count, s->vocabulary};
    NEB_TRY(neb__logits_decode(frame, n, &shape, same->ids, same->logp));
    for (size_t i = 0, at = 0; i < out->n; i++) {
        if (out->count[i] != count) continue;
        memcpy(out->ids + i * out->room, same->ids + at * c, c * sizeof *out->ids);
        memcpy(out->logp + i * out->room, same->logp + at++ * c, c * sizeof *out->logp);
    }
    return NEB_OK;
}

static neb_status take_uneven(const struct neb_tutor_shape *s, struct neb_reader *r, struct rows *out)
{
    struct rows same;
    size_t n;
    const uint8_t *frame = neb__tutor_item_frame(r, &n);
    if (!frame) return corrupt("numbers of logits are cut off");
    NEB_TRY(neb__tokens_decode(frame, n, (uint32_t)s->k + 1, out->n, out->count));
    neb_status status = rows_init(&same, out->n, out->room);
    for (int32_t c = 1; status == NEB_OK && c <= s->k; c++) status = take_same(s, r, c, &same, out);
    rows_free(&same);
    return status;
}

static neb_status take_logits(const struct neb_tutor_shape *s, const struct neb_tutor_plan *p, size_t targets,
                              bool uneven, struct neb_reader *r, const struct neb_tutor_room *room)
{
    struct rows rows;
    size_t at = 0;
    neb_status status = rows_init(&rows, targets, (size_t)s->k);
    if (status == NEB_OK) status = uneven ? take_uneven(s, r, &rows) : take_even(s, r, &rows);
    for (int32_t q = 0; status == NEB_OK && q < p->seqs; q++) {
        const struct neb_tutor_seq *seq = &p->seq[q];
        for (int32_t i = 0; seq->here && i < seq->count; i++, at++)
            place_row(room, (size_t)(seq->first + i), (size_t)s->k, rows.ids + at * rows.room,
                      rows.logp + at * rows.room, (size_t)rows.count[at]);
    }
    rows_free(&rows);
    return status;
}

static neb_status take_hidden(const struct neb_tutor_shape *s, const struct neb_tutor_plan *p, size_t rows,
                              struct neb_reader *r, const struct neb_tutor_room *room)
{
    size_t n, width = (size_t)s->width, at = 0;
    const uint8_t *frame = neb__tutor_item_frame(r, &n);
    if (!frame) return corrupt("hidden states are cut off");
    float *x = NEB_NEW_ARRAY(float, rows *width);
    neb_status status = x ? neb__hidden_decode(frame, n, rows, (uint32_t)s->width, x)
                          : neb__fail(NEB_ERR_NOMEM, "out of memory for %zu hidden states", rows);
    for (int32_t q = 0; status == NEB_OK && q < p->seqs; q++) {
        const struct neb_tutor_seq *seq = &p->seq[q];
        if (!seq->here) continue;
        memcpy(room->hidden + (size_t)seq->row * width, x + at, (size_t)seq->rows * width * sizeof *x);
        at += (size_t)seq->rows * width;
    }
    neb__free(x);
    return status;
}

neb_status neb__tutor_item_decode(const struct neb_tutor_shape *s, struct neb_tutor_plan *p,
                                  const uint8_t *bytes, size_t n, const struct neb_tutor_room *room)
{
    struct neb_reader r = {bytes, n, false};
    size_t targets, rows;
    uint32_t check = neb__read32(&r), seqs = neb__read32(&r);
    if (r.bad) return corrupt("too short");
    const bool uneven = seqs & UNEVEN;
    seqs &= ~UNEVEN;
    if (check != p->check || seqs != (uint32_t)p->seqs)
        return neb__fail(NEB_ERR_CONFIG,
                         "the teacher's site has drawn another batch: data, tokenizer, seed, train.tokens, "
                         "train.max_len and train.mask must be the same at both sites");
    const uint8_t *map = neb__read(&r, ((size_t)p->seqs + 7) / 8);
    if (!map) return corrupt("too short");
    for (int32_t q = 0; q < p->seqs; q++) p->seq[q].here = map[q / 8] >> q % 8 & 1;
    count_here(p, &targets, &rows);
    if (s->k && targets) NEB_TRY(take_logits(s, p, targets, uneven, &r, room));
    if (s->width && rows) NEB_TRY(take_hidden(s, p, rows, &r, room));
    return r.left ? corrupt("bytes after the end") : NEB_OK;
}

/* ---- in the cache -------------------------------------------------------------------------------------- */

neb_status neb__tutor_item_pack(const struct neb_tutor_shape *s, const struct neb_tutor_seq *q,
                                const struct neb_tutor_room *room, struct neb_buf *out)
{
    size_t k = (size_t)s->k, first = (size_t)q->first * k, n = (size_t)q->count * k;
    if (n) NEB_TRY(neb__buf_append(out, room->ids + first, n * sizeof *room->ids));
    if (n) NEB_TRY(neb__buf_append(out, room->logits + first, n * sizeof *room->logits));
    size_t states = (size_t)q->rows * (size_t)s->width;
    if (!states) return NEB_OK;
    return neb__buf_append(out, room->hidden + (size_t)q->row * (size_t)s->width,
                           states * sizeof *room->hidden);
}

neb_status neb__tutor_item_unpack(const struct neb_tutor_shape *s, const struct neb_tutor_seq *q,
                                  const uint8_t *bytes, size_t n, const struct neb_tutor_room *room)
{
    size_t k = (size_t)s->k, first = (size_t)q->first * k, m = (size_t)q->count * k;
    if (n != neb__tutor_item_size(s, q))
        return neb__fail(NEB_ERR_CORRUPT, "a cached answer has %zu bytes", n);
    if (m) memcpy(room->ids + first, bytes, m * sizeof *room->ids);
    if (m) memcpy(room->logits + first, bytes + 4 * m, m * sizeof *room->logits);
    for (size_t i = 0; i < m; i++)
        if (room->ids[first + i] != -1 && (uint32_t)room->ids[first + i] >= s->vocabulary)
            return neb__fail(NEB_ERR_CORRUPT, "a cached answer has a token outside the vocabulary");
    size_t states = (size_t)q->rows * (size_t)s->width;
    if (states)
        memcpy(room->hidden + (size_t)q->row * (size_t)s->width, bytes + 8 * m, states * sizeof(float));
    return NEB_OK;
}
