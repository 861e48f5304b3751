/* batches_fill.c: the rows of a batch: special tokens, positions, masks, targets, padding.
 *
 *   MLM      <s> a </s>                 pair (TLM): <s> a </s> b </s>, positions and `type` start anew at b
 *   CAUSAL   <s> a        predicts      a </s>
 *   PAIR     [lead] a </s> [tail]  and  start [first] b   predicts  [first] b </s>  (frame.h)
 *
 * Masking follows BERT: 80 % of the chosen tokens become <mask>, 10 % become another token, 10 % stay. The
 * choice and the new tokens are a function of (seed, sample id) alone, so a batch can be rebuilt elsewhere
 * from its draws. A text longer than a sequence is cropped at a place that the sample id chooses. */
#include "text/batches_internal.h"

#include <string.h>

struct cursor {
    struct neb_batch_side *side;
    int32_t row, at, pos, type, lang;
    uint32_t sample;
};

static void put(struct cursor *c, int32_t id)
{
    struct neb_batch_side *s = c->side;
    int32_t r = c->row++;
    s->ids[r] = id;
    s->at[r] = c->at++;
    s->pos[r] = c->pos++;
    s->type[r] = c->type;
    s->lang[r] = c->lang;
    s->sample[r] = c->sample;
}

static neb_status put_text(struct cursor *c, const struct neb_set *set, int64_t sample, int side,
                           int32_t from, int32_t n)
{
    NEB_TRY(neb__set_copy(set, sample, side, from, n, c->side->ids + c->row));
    for (int32_t i = 0; i < n; i++) put(c, c->side->ids[c->row]);
    return NEB_OK;
}

static struct neb_rng rng_of(const struct neb_batches *s, uint64_t sample, uint64_t purpose)
{
    return (struct neb_rng){neb__mix64(s->cfg.seed + purpose) + neb__mix64(sample)};
}

/* The place at which reading starts in a text that is too long. */
static int32_t crop(const struct neb_batches *s, const struct neb_pending *p, int32_t length, int32_t n)
{
    struct neb_rng r = rng_of(s, p->global, 0x63726F70);
    return (int32_t)neb__rng_below(&r, (uint64_t)(length - n) + 1);
}

static int32_t random_token(const struct neb_batches *s, struct neb_rng *r)
{
    for (int i = 0; i < 16; i++) {
        int32_t id = (int32_t)neb__rng_below(r, (uint64_t)s->cfg.vocab.size);
        if (!s->cfg.vocab.special[id]) return id;
    }
    return s->cfg.vocab.mask;
}

/* Masks rows [from, to): one sample. */
static void mask(const struct neb_batches *s, const struct neb_pending *p, int32_t from, int32_t to,
                 struct neb_batch *b)
{
    int32_t *ids = b->side[0].ids, *pool = s->candidates, n = 0;
    for (int32_t r = from; r < to; r++) {
        b->original[r] = ids[r];
        if (!s->cfg.vocab.special[ids[r]]) pool[n++] = r - from;
    }
    struct neb_rng rng = rng_of(s, p->global, 0x70696B);
    int32_t k = p->masks < n ? p->masks : n;
    memset(s->marks, 0, (size_t)(to - from));
    for (int32_t i = 0; i < k; i++) {
        int32_t j = i + (int32_t)neb__rng_below(&rng, (uint64_t)(n - i)), t = pool[j];
        pool[j] = pool[i];
        pool[i] = t;
        s->marks[t] = 1;
    }
    double keep = s->cfg.keep_share > 0 ? s->cfg.keep_share : 0;
    double other = s->cfg.random_share > 0 ? s->cfg.random_share : 0;
    for (int32_t r = from; r < to; r++) {
        if (!s->marks[r - from]) continue;
        struct neb_loss_rows *l = &b->loss;
        l->rows[l->used] = r;
        l->target[l->used] = ids[r];
        l->weight[l->used++] = 1;
        double u = neb__rng_uniform(&rng);
        if (u >= keep + other)
            ids[r] = s->cfg.vocab.mask;
        else if (u >= keep)
            ids[r] = random_token(s, &rng);
    }
}

static void target(struct neb_batch *b, int32_t row, int32_t id)
{
    struct neb_loss_rows *l = &b->loss;
    l->rows[row] = row;
    l->target[row] = id;
    l->weight[row] = 1;
    l->used++;
}

/* Every row predicts the token of the next row; the last row predicts </s>. */
static void predict_next(const struct neb_batches *s, struct neb_batch *b, const int32_t *ids, int32_t from,
                         int32_t to)
{
    for (int32_t r = from; r < to; r++) target(b, r, r + 1 < to ? ids[r + 1] : s->cfg.vocab.eos);
}

static neb_status fill_mlm(const struct neb_batches *s, const struct neb_pending *p, struct cursor *c,
                           struct neb_batch *b)
{
    const struct neb_source *src = &s->source[p->source];
    const struct neb_vocab *v = &s->cfg.vocab;
    bool pair = neb__set_info(src->set)->sides == 2;
    int32_t from = c->row, length = neb__set_length(src->set, p->sample, src->flip);
    int32_t n = pair ? length : p->rows[0] - 2;
    put(c, v->bos);
    NEB_TRY(put_text(c, src->set, p->sample, src->flip, n < length ? crop(s, p, length, n) : 0, n));
    put(c, v->eos);
    if (pair) {
        c->pos = 0;
        c->type = 1;
        c->lang = src->lang[1];
        NEB_TRY(put_text(c, src->set, p->sample, !src->flip, 0,
                         neb__set_length(src->set, p->sample, !src->flip)));
        put(c, v->eos);
    }
    mask(s, p, from, c->row, b);
    return NEB_OK;
}

static neb_status fill_causal(const struct neb_batches *s, const struct neb_pending *p, struct cursor *c,
                              struct neb_batch *b)
{
    const struct neb_source *src = &s->source[p->source];
    int32_t from = c->row, n = p->rows[0] - 1, length = neb__set_length(src->set, p->sample, 0);
    int32_t start = n < length ? crop(s, p, length, n) : 0;
    put(c, s->cfg.vocab.bos);
    NEB_TRY(put_text(c, src->set, p->sample, 0, start, n));
    predict_next(s, b, c->side->ids, from, c->row);
    if (start + n < length) /* the text continues after the crop */
        NEB_TRY(neb__set_copy(src->set, p->sample, 0, start + n, 1, &b->loss.target[c->row - 1]));
    return NEB_OK;
}

static neb_status fill_pair(const struct neb_batches *s, const struct neb_pending *p, struct cursor c[2],
                            struct neb_batch *b)
{
    const struct neb_source *src = &s->source[p->source];
    const struct neb_frame_tokens *f = &src->frame;
    if (f->lead >= 0) put(&c[0], f->lead);
    NEB_TRY(
        put_text(&c[0], src->set, p->sample, src->flip, 0, neb__set_length(src->set, p->sample, src->flip)));
    put(&c[0], s->cfg.vocab.eos);
    if (f->tail >= 0) put(&c[0], f->tail);
    int32_t from = c[1].row;
    put(&c[1], f->start >= 0 ? f->start : s->cfg.vocab.bos);
    if (f->first >= 0) put(&c[1], f->first);
    NEB_TRY(put_text(&c[1], src->set, p->sample, !src->flip, 0, p->rows[1] - 1 - (f->first >= 0)));
    predict_next(s, b, c[1].side->ids, from, c[1].row);
    return NEB_OK;
}

/* Padding sequences, then empty ones. */
static void finish_side(struct neb_batch_side *side, struct cursor *c, int32_t pad)
{
    side->used = c->row;
    int32_t q = side->nseq_used;
    c->type = c->lang = 0;
    c->sample = NEB_NO_SAMPLE;
    while (c->row < side->tokens) {
        c->at = c->pos = 0;
        while (c->row < side->tokens && c->at < side->max_len) put(c, pad);
        side->cu_seqlens[++q] = c->row;
    }
    while (q < side->nseq) side->cu_seqlens[++q] = c->row;
}

static void finish_loss(struct neb_batch *b, int32_t used)
{
    for (int32_t i = used; i < b->loss.n; i++) {
        b->loss.rows[i] = b->loss.target[i] = 0;
        b->loss.weight[i] = 0;
    }
}

static neb_status fill_one(struct neb_batches *s, const struct neb_pending *p, struct cursor c[2],
                           struct neb_batch *b)
{
    const struct neb_source *src = &s->source[p->source];
    for (int i = 0; i < b->sides; i++) {
        c[i].at = c[i].pos = c[i].type = 0;
        c[i].lang = src->lang[i];
        c[i].sample = (uint32_t)p->global == NEB_NO_SAMPLE ? 0 : (uint32_t)p->global;
    }
    switch (s->cfg.kind) {
    case NEB_BATCH_MLM: return fill_mlm(s, p, c, b);
    case NEB_BATCH_CAUSAL: return fill_causal(s, p, c, b);
    case NEB_BATCH_PAIR: return fill_pair(s, p, c, b);
    }
    return NEB_OK;
}

neb_status neb__batches_fill(struct neb_batches *s, int k, struct neb_batch *b)
{
    struct cursor c[2] = {{.side = &b->side[0]}, {.side = &b->side[1]}};
    if (b->kind != s->cfg.kind || b->cap_tokens[0] < s->bucket[0].tokens[0] ||
        b->cap_tokens[1] < s->bucket[0].tokens[1] || b->cap_seqs < s->nseq)
        return neb__fail(NEB_ERR_INVALID, "the batch was made for another stream");
    for (int i = 0; i < b->sides; i++) {
        b->side[i].tokens = s->bucket[k].tokens[i];
        b->side[i].nseq = s->nseq;
        b->side[i].nseq_used = s->chosen_n;
        b->side[i].max_len = s->cfg.max_len;
        b->side[i].cu_seqlens[0] = 0;
    }
    b->loss.n = s->cfg.kind == NEB_BATCH_MLM ? s->loss : b->side[b->sides - 1].tokens;
    b->loss.used = 0;
    for (int q = 0; q < s->chosen_n; q++) {
        NEB_TRY(fill_one(s, &s->chosen[q], c, b));
        for (int i = 0; i < b->sides; i++) b->side[i].cu_seqlens[q + 1] = c[i].row;
    }
    for (int i = 0; i < b->sides; i++) finish_side(&b->side[i], &c[i], s->cfg.vocab.pad);
    if (b->original)
        for (int32_t r = b->side[0].used; r < b->side[0].tokens; r++) b->original[r] = s->cfg.vocab.pad;
    finish_loss(b, b->loss.used);
    return NEB_OK;
}
