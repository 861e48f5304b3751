/* batch_outline.c: see batch_outline.h. All numbers are u32, little-endian:
 *
 *     head     version, what, kind of the batches, vocabulary; rows of the largest batch by side, its sequences, the longest
 *              sequence; batches that follow, runs, languages · the name of each language (16 bytes, zeros behind it)
 *     batch    check value, predictions that count, sequences (zero-length ones included), real ones, rows of each side
 *              · for each real sequence: sample, rows on each side, and of masked batches the row at which its second text
 *              begins (0: it has one text)
 *
 * A reader asks for nothing that it could work out: where a sequence starts, positions and padding follow from the lengths. So
 * there is little that bytes can contradict: sums must fit into the batch, the batch into the room, and the room into what the job
 * of this site allows. */
#include "text/batch_outline.h"

#include <string.h>

enum { VERSION = 1, HEAD_WORDS = 11, ROW_ALIGN = 8 };

/* ---- writing ---------------------------------------------------------------------------------------------- */

static neb_status put(struct neb_buf *out, const uint32_t *v, int n)
{
    NEB_TRY(neb__buf_reserve(out, 4 * (size_t)n));
    for (int i = 0; i < n; i++) neb__put32(out->data + out->len + 4 * (size_t)i, v[i]);
    out->len += 4 * (size_t)n;
    return NEB_OK;
}

static bool plain(char c)
{
    return c > ' ' && c < 127;
}

neb_status neb__outline_head_write(const struct neb_outline_head *h, struct neb_buf *out)
{
    const uint32_t v[HEAD_WORDS] = {VERSION,
                                    (uint32_t)h->what,
                                    (uint32_t)h->kind,
                                    (uint32_t)h->vocab,
                                    (uint32_t)h->room.rows[0],
                                    (uint32_t)h->room.rows[1],
                                    (uint32_t)h->room.seqs,
                                    (uint32_t)h->room.max_len,
                                    (uint32_t)h->batches,
                                    (uint32_t)h->runs,
                                    (uint32_t)h->names};
    NEB_TRY(put(out, v, HEAD_WORDS));
    for (int i = 0; i < h->names; i++) {
        char name[NEB_OUTLINE_NAME] = {0};
        memcpy(name, h->name[i], strnlen(h->name[i], sizeof name - 1));
        for (char *c = name; *c; c++)
            if (!plain(*c)) *c = '?';
        NEB_TRY(neb__buf_append(out, name, sizeof name));
    }
    return NEB_OK;
}

/* 0: the sequence has one text. */
static uint32_t second_text(const struct neb_batch_side *s, int32_t q)
{
    for (int32_t r = s->cu_seqlens[q]; r < s->cu_seqlens[q + 1]; r++)
        if (s->type[r]) return (uint32_t)(r - s->cu_seqlens[q]);
    return 0;
}

neb_status neb__outline_batch_write(const struct neb_batch *b, struct neb_buf *out)
{
    const struct neb_batch_side *s = b->side;
    uint32_t v[6] = {neb__batch_check_value(b), (uint32_t)b->loss.used, (uint32_t)s->nseq,
                     (uint32_t)s->nseq_used};
    int n = 4;
    for (int i = 0; i < b->sides; i++) v[n++] = (uint32_t)s[i].tokens;
    NEB_TRY(put(out, v, n));
    for (int32_t q = 0; q < s->nseq_used; q++) {
        uint32_t w[4] = {s->sample[s->cu_seqlens[q]]};
        n = 1;
        for (int i = 0; i < b->sides; i++) w[n++] = (uint32_t)(s[i].cu_seqlens[q + 1] - s[i].cu_seqlens[q]);
        if (b->kind == NEB_BATCH_MLM) w[n++] = second_text(s, q);
        NEB_TRY(put(out, w, n));
    }
    return NEB_OK;
}

/* ---- reading a head --------------------------------------------------------------------------------------- */

static int32_t aligned(int64_t rows)
{
    return (int32_t)((rows + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN);
}

struct neb_outline_room neb__outline_most(enum neb_batch_kind kind, int64_t tokens, int64_t max_len)
{
    struct neb_outline_room m = {.rows = {aligned(tokens)}, .max_len = (int32_t)max_len};
    if (kind == NEB_BATCH_PAIR) m.rows[1] = aligned(4 * tokens > max_len ? 4 * tokens : max_len);
    const int32_t widest = m.rows[0] > m.rows[1] ? m.rows[0] : m.rows[1];
    m.seqs = (int32_t)(tokens / 4 + widest / max_len + 1);
    return m;
}

static neb_status malformed(const char *what)
{
    return neb__fail(NEB_ERR_CORRUPT, "a malformed outline of a batch: %s", what);
}

static bool in_room(uint32_t v, int32_t least, int32_t most)
{
    return v >= (uint32_t)least && v <= (uint32_t)most;
}

static neb_status check_room(const uint32_t *v, const struct neb_outline_room *most)
{
    const bool pair = most->rows[1] > 0;
    if (v[3] != (uint32_t)most->max_len)
        return neb__fail(NEB_ERR_CONFIG,
                         "the sites before this one have sequences of up to %u tokens, this one of up to %d: "
                         "train.max_len "
                         "must be the same at all sites",
                         v[3], most->max_len);
    if (in_room(v[0], 1, most->rows[0]) && in_room(v[1], pair, most->rows[1]) && in_room(v[2], 1, most->seqs))
        return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "the sites before this one have batches of up to %u+%u rows and %u sequences; by this "
                     "site's job %d+%d and %d are possible: train.tokens must be the same at all sites",
                     v[0], v[1], v[2], most->rows[0], most->rows[1], most->seqs);
}

static neb_status read_names(struct neb_reader *r, struct neb_outline_head *h)
{
    for (int i = 0; i < h->names; i++) {
        const uint8_t *name = neb__read(r, NEB_OUTLINE_NAME);
        if (!name || name[NEB_OUTLINE_NAME - 1]) return malformed("a language without a name");
        for (const char *c = (const char *)name; *c; c++)
            if (!plain(*c)) return malformed("the name of a language");
        memcpy(h->name[i], name, NEB_OUTLINE_NAME);
    }
    return NEB_OK;
}

/* How many batches, runs and languages belong to what comes. */
static bool counts_fit(const struct neb_outline_head *h, const uint32_t *v)
{
    const bool eval = h->what == NEB_OUTLINE_EVAL;
    if (h->what == NEB_OUTLINE_STEP) return v[8] >= 1 && v[8] <= INT32_MAX && !v[9] && !v[10];
    if (eval) return v[8] == 1 && v[9] >= 1 && v[9] <= NEB_OUTLINE_NAMES + 1 && !v[10];
    return !v[8] && !v[9] && v[10] <= (h->what == NEB_OUTLINE_EVAL_END ? NEB_OUTLINE_NAMES : 0);
}

neb_status neb__outline_head_read(struct neb_reader *r, enum neb_batch_kind kind,
                                  const struct neb_outline_room *most, struct neb_outline_head *out)
{
    uint32_t v[HEAD_WORDS];
    struct neb_outline_head h = {0};
    for (int i = 0; i < HEAD_WORDS; i++) v[i] = neb__read32(r);
    if (r->bad) return malformed("it is cut off");
    if (v[0] != VERSION)
        return neb__fail(
            NEB_ERR_VERSION,
            "the outlines of batches that come have version %u, this nebula-i reads %d: use the same "
            "release at all sites",
            v[0], VERSION);
    if (v[1] < NEB_OUTLINE_STEP || v[1] > NEB_OUTLINE_EVAL_NONE) return malformed("an unknown kind");
    h.what = (enum neb_outline_what)v[1];
    h.kind = kind;
    if (v[2] != (uint32_t)kind)
        return neb__fail(NEB_ERR_CONFIG, "the sites before this one have another `task`");
    if (v[3] < 1 || v[3] > INT32_MAX) return malformed("a vocabulary that cannot be");
    if (!counts_fit(&h, v)) return malformed("counts that cannot be");
    NEB_TRY(check_room(v + 4, most));
    h.vocab = (int32_t)v[3];
    h.room = (struct neb_outline_room){{(int32_t)v[4], (int32_t)v[5]}, (int32_t)v[6], (int32_t)v[7]};
    h.batches = (int32_t)v[8], h.runs = (int32_t)v[9], h.names = (int32_t)v[10];
    NEB_TRY(read_names(r, &h));
    *out = h;
    return NEB_OK;
}

/* ---- reading a batch -------------------------------------------------------------------------------------- */

neb_status neb__outline_batch_create(enum neb_batch_kind kind, const struct neb_outline_room *room,
                                     struct neb_batch **out)
{
    NEB_TRY(neb__batch_create(kind, room->rows, room->seqs, 1, out));
    (*out)->bare = true;
    return NEB_OK;
}

/* Rows [from, to) are one sequence. second: where its second text begins, or `to`. */
static void fill(struct neb_batch_side *s, int32_t from, int32_t to, int32_t second, uint32_t sample)
{
    for (int32_t r = from; r < to; r++) {
        s->ids[r] = s->lang[r] = 0;
        s->at[r] = r - from;
        s->type[r] = r >= second;
        s->pos[r] = r >= second ? r - second : r - from;
        s->sample[r] = sample;
    }
}

/* Padding sequences, then empty ones, as the packer has them. */
static neb_status pad_out(struct neb_batch_side *s)
{
    int32_t row = s->used, q = s->nseq_used;
    if ((s->tokens - row + s->max_len - 1) / s->max_len > s->nseq - q)
        return malformed("there is no room for its padding");
    while (row < s->tokens) {
        const int32_t n = s->tokens - row < s->max_len ? s->tokens - row : s->max_len;
        fill(s, row, row + n, row + n, NEB_NO_SAMPLE);
        s->cu_seqlens[++q] = row += n;
    }
    while (q < s->nseq) s->cu_seqlens[++q] = row;
    return NEB_OK;
}

static neb_status read_length(struct neb_reader *r, struct neb_batch_side *s, int32_t *to)
{
    const uint32_t n = neb__read32(r);
    if (n < 1 || n > (uint32_t)s->max_len) return malformed("a sequence that is empty or too long");
    if (n > (uint32_t)(s->tokens - s->used)) return malformed("its sequences have more rows than it has");
    *to = s->used + (int32_t)n;
    return NEB_OK;
}

static neb_status read_sequence(struct neb_reader *r, struct neb_batch *b, int32_t q)
{
    const uint32_t sample = neb__read32(r);
    int32_t to[2] = {0};
    if (sample == NEB_NO_SAMPLE) return malformed("a sequence of no sample");
    for (int i = 0; i < b->sides; i++) NEB_TRY(read_length(r, &b->side[i], &to[i]));
    const int32_t from = b->side[0].used;
    const uint32_t second = b->kind == NEB_BATCH_MLM ? neb__read32(r) : 0;
    if (second >= (uint32_t)(to[0] - from)) return malformed("a second text behind its sequence");
    for (int i = 0; i < b->sides; i++) {
        struct neb_batch_side *s = &b->side[i];
        fill(s, s->used, to[i], i || !second ? to[i] : from + (int32_t)second, sample);
        s->used = s->cu_seqlens[q + 1] = to[i];
    }
    return NEB_OK;
}

static neb_status read_shape(struct neb_reader *r, const struct neb_outline_head *h, struct neb_batch *b,
                             uint32_t *predictions)
{
    b->check = neb__read32(r);
    *predictions = neb__read32(r);
    const uint32_t nseq = neb__read32(r), used = neb__read32(r);
    if (!in_room(nseq, 1, h->room.seqs) || !in_room(used, 1, (int32_t)nseq))
        return malformed("more sequences than there is room for, or none");
    for (int i = 0; i < b->sides; i++) {
        struct neb_batch_side *s = &b->side[i];
        const uint32_t rows = neb__read32(r);
        if (!in_room(rows, 1, h->room.rows[i])) return malformed("more rows than there is room for, or none");
        s->tokens = (int32_t)rows;
        s->used = 0;
        s->nseq = (int32_t)nseq;
        s->nseq_used = (int32_t)used;
        s->max_len = h->room.max_len;
        s->cu_seqlens[0] = 0;
    }
    return NEB_OK;
}

neb_status neb__outline_batch_read(struct neb_reader *r, const struct neb_outline_head *h,
                                   struct neb_batch *b)
{
    uint32_t predictions;
    if (b->kind != h->kind || b->cap_tokens[0] < h->room.rows[0] || b->cap_tokens[1] < h->room.rows[1] ||
        b->cap_seqs < h->room.seqs)
        return malformed("it is larger than those before it");
    NEB_TRY(read_shape(r, h, b, &predictions));
    for (int32_t q = 0; q < b->side[0].nseq_used; q++) NEB_TRY(read_sequence(r, b, q));
    if (r->bad) return malformed("it is cut off");
    for (int i = 0; i < b->sides; i++) NEB_TRY(pad_out(&b->side[i]));
    if (predictions > (uint32_t)b->side[b->sides - 1].used)
        return malformed("more predictions than it has rows");
    b->loss.n = 0;
    b->loss.used = (int32_t)predictions;
    return NEB_OK;
}

neb_status neb__outline_end_read(const struct neb_reader *r)
{
    return r->bad || r->left ? malformed("bytes behind its end") : NEB_OK;
}
