/* tutor_item.c: a teacher's answers to bytes and back.
 *
 *     item      u32 check value of the batch, u32 number of sequences, a bit for each: the item has its
 *               answer (eight in a byte, the first lowest); then, if one is set: one frame of logits over all
 *               their rows (codec/stream.h), one frame of hidden states
 *     cached    the rows' ids (i32) and logits (f32); the rows' hidden states (f32)
 *
 * The logits of a row are sent relative to the greatest of them, by ascending id, and as many as the sender's
 * code says. The cache holds the decoded values, so the second epoch learns from the same bits as the
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

/* Takes the n greatest logits of a row of k.
 * `to` gets their ids, ascending; logp their values relative to the greatest. */
static neb_status order_row(const int32_t *ids, const float *logits, int32_t k, int32_t n, int32_t *to,
                            float *logp)
{
    int32_t have = 0;
    for (int32_t j = 0; j < k; j++) {
        if (ids[j] < 0 || !isfinite(logits[j]))
            return neb__fail(NEB_ERR_RANGE,
                             "the teacher gave fewer than %d tokens for a row, or logits that are not finite",
                             k);
        neb__topk_list_offer(logp, to, n, &have, logits[j], ids[j]);
    }
    const float most = logp[0];
    for (int32_t j = 0; j < n; j++) logp[j] = logp[j] - most < -65000 ? -65000 : logp[j] - most;
    neb__topk_list_by_id(logp, to, n);
    return NEB_OK;
}

static neb_status put_logits(const struct neb_tutor_shape *s, const struct neb_tutor_code *code,
                             const struct neb_tutor_plan *p, const struct neb_teacher_answer *from,
                             size_t targets, struct neb_buf *out)
{
    size_t k = (size_t)s->k, n = (size_t)code->k, at = 0;
    int32_t *ids = NEB_NEW_ARRAY(int32_t, targets * n);
    float *logp = NEB_NEW_ARRAY(float, targets *n);
    neb_status status =
        ids && logp ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for answers at %zu rows", targets);
    for (int32_t q = 0; q < p->seqs; q++)
        for (int32_t i = 0; status == NEB_OK && p->seq[q].here && i < p->seq[q].count; i++, at++) {
            size_t row = (size_t)(p->seq[q].first + i) * k;
            status =
                order_row(from->ids + row, from->logits + row, s->k, code->k, ids + at * n, logp + at * n);
        }
    struct neb_topk shape = {targets, code->k, s->vocabulary};
    if (status == NEB_OK) status = neb__logits_encode(&shape, code->bits, ids, logp, out);
    neb__free(ids);
    neb__free(logp);
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
    size_t map = ((size_t)p->seqs + 7) / 8, targets, rows;
    NEB_TRY(neb__buf_reserve(out, HEAD + map));
    uint8_t *head = out->data + out->len;
    memset(head, 0, HEAD + map);
    neb__put32(head, p->check);
    neb__put32(head + 4, (uint32_t)p->seqs);
    for (int32_t q = 0; q < p->seqs; q++)
        if (p->seq[q].here) head[HEAD + q / 8] |= (uint8_t)(1 << q % 8);
    out->len += HEAD + map;
    count_here(p, &targets, &rows);
    if (s->k && targets) NEB_TRY(put_logits(s, code, p, logits, targets, out));
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

static neb_status take_logits(const struct neb_tutor_shape *s, const struct neb_tutor_plan *p, size_t targets,
                              struct neb_reader *r, const struct neb_tutor_room *room)
{
    struct neb_stream_info info;
    size_t n, k, at = 0;
    const uint8_t *frame = neb__tutor_item_frame(r, &n);
    if (!frame) return corrupt("logits are cut off");
    NEB_TRY(neb__stream_peek(frame, n, &info));
    if (info.k < 1 || info.k > s->k) return corrupt("more logits a row than the job says");
    k = (size_t)info.k;
    int32_t *ids = NEB_NEW_ARRAY(int32_t, targets * k);
    float *logp = NEB_NEW_ARRAY(float, targets *k);
    struct neb_topk shape = {targets, info.k, s->vocabulary};
    neb_status status = ids && logp
                            ? neb__logits_decode(frame, n, &shape, ids, logp)
                            : neb__fail(NEB_ERR_NOMEM, "out of memory for answers at %zu rows", targets);
    for (int32_t q = 0; status == NEB_OK && q < p->seqs; q++) {
        const struct neb_tutor_seq *seq = &p->seq[q];
        for (int32_t i = 0; seq->here && i < seq->count; i++, at += k)
            place_row(room, (size_t)(seq->first + i), (size_t)s->k, ids + at, logp + at, k);
    }
    neb__free(ids);
    neb__free(logp);
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
    if (check != p->check || seqs != (uint32_t)p->seqs)
        return neb__fail(NEB_ERR_CONFIG,
                         "the teacher's site has drawn another batch: data, tokenizer, seed, train.tokens, "
                         "train.max_len and train.mask must be the same at both sites");
    const uint8_t *map = neb__read(&r, ((size_t)p->seqs + 7) / 8);
    if (!map) return corrupt("too short");
    for (int32_t q = 0; q < p->seqs; q++) p->seq[q].here = map[q / 8] >> q % 8 & 1;
    count_here(p, &targets, &rows);
    if (s->k && targets) NEB_TRY(take_logits(s, p, targets, &r, room));
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
