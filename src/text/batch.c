/* batch.c: the memory of a batch, its invariants, and the inputs of replaced-token detection.
 *
 * All arrays of a batch lie in one block of 64-byte aligned pieces, cut for the largest bucket at creation.
 * The packing thread and the trainer pass a batch back and forth, so a step allocates nothing. */
#include "text/batch.h"
#include "base/crc32c.h"
#include "base/mem.h"

#include <string.h>

enum { MAX_ROWS = 1 << 28 };

struct cutter {
    uint8_t *base; /* NULL while measuring */
    size_t at;
};

static void *cut(struct cutter *c, size_t count)
{
    void *p = c->base ? c->base + c->at : NULL;
    c->at += (count * 4 + 63) & ~(size_t)63; /* every element has four bytes */
    return p;
}

static void lay_out(struct neb_batch *b, struct cutter *c)
{
    for (int s = 0; s < b->sides; s++) {
        struct neb_batch_side *side = &b->side[s];
        size_t n = (size_t)b->cap_tokens[s];
        side->ids = cut(c, n);
        side->at = cut(c, n);
        side->pos = cut(c, n);
        side->type = cut(c, n);
        side->lang = cut(c, n);
        side->sample = cut(c, n);
        side->cu_seqlens = cut(c, (size_t)b->cap_seqs + 1);
    }
    b->loss.rows = cut(c, (size_t)b->cap_loss);
    b->loss.target = cut(c, (size_t)b->cap_loss);
    b->loss.weight = cut(c, (size_t)b->cap_loss);
    b->original = b->kind == NEB_BATCH_MLM ? cut(c, (size_t)b->cap_tokens[0]) : NULL;
}

static int usable(int32_t n)
{
    return n > 0 && n <= MAX_ROWS;
}

neb_status neb__batch_create(enum neb_batch_kind kind, const int32_t tokens[2], int32_t seqs, int32_t loss,
                             struct neb_batch **out)
{
    int sides = kind == NEB_BATCH_PAIR ? 2 : 1;
    if (!usable(tokens[0]) || (sides == 2 && !usable(tokens[1])) || !usable(seqs) || !usable(loss))
        return neb__fail(NEB_ERR_INVALID, "a batch of %d+%d rows, %d sequences, %d loss rows is not possible",
                         (int)tokens[0], (int)tokens[1], (int)seqs, (int)loss);
    struct neb_batch *b = NEB_NEW(struct neb_batch);
    if (!b) return neb__fail(NEB_ERR_NOMEM, "out of memory for a batch");
    b->kind = kind;
    b->sides = sides;
    b->cap_tokens[0] = tokens[0];
    b->cap_tokens[1] = sides == 2 ? tokens[1] : 0;
    b->cap_seqs = seqs;
    b->cap_loss = loss;
    struct cutter c = {0};
    lay_out(b, &c);
    c.base = b->memory = neb__aligned(c.at);
    if (!c.base) {
        neb__free(b);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a batch of %d rows", (int)tokens[0]);
    }
    memset(c.base, 0, c.at);
    c.at = 0;
    lay_out(b, &c);
    *out = b;
    return NEB_OK;
}

void neb__batch_free(struct neb_batch *b)
{
    if (!b) return;
    neb__free(b->memory);
    neb__free(b);
}

neb_status neb__batch_rtd(const struct neb_batch *b, const int32_t *sampled, const uint8_t *special,
                          int32_t *input, int32_t *label, float *weight)
{
    if (b->kind != NEB_BATCH_MLM)
        return neb__fail(NEB_ERR_STATE, "replaced-token detection needs a batch with masked positions");
    for (int32_t i = 0; i < b->loss.n; i++)
        if (b->loss.weight[i] != 0 && sampled[i] < 0)
            return neb__fail(NEB_ERR_RANGE,
                             "the generator's token at loss row %d is %d; it must not be negative", (int)i,
                             (int)sampled[i]);
    const struct neb_batch_side *s = &b->side[0];
    for (int32_t r = 0; r < s->tokens; r++) {
        input[r] = b->original[r];
        label[r] = 0;
        weight[r] = r < s->used && !special[b->original[r]] ? 1.0f : 0.0f;
    }
    for (int32_t i = 0; i < b->loss.n; i++) {
        if (b->loss.weight[i] == 0) continue;
        int32_t r = b->loss.rows[i];
        input[r] = sampled[i];
        label[r] = sampled[i] != b->original[r];
    }
    return NEB_OK;
}

#define PROMISE(condition)                                                                          \
    do {                                                                                            \
        if (!(condition))                                                                           \
            return neb__fail(NEB_ERR_INTERNAL, "batch %" PRId64 " breaks %s", b->step, #condition); \
    } while (0)

static neb_status check_side(const struct neb_batch *b, const struct neb_batch_side *s, int32_t vocab)
{
    PROMISE(s->used >= 0 && s->used <= s->tokens && s->nseq_used <= s->nseq);
    PROMISE(s->cu_seqlens[0] == 0 && s->cu_seqlens[s->nseq] == s->tokens);
    PROMISE(s->cu_seqlens[s->nseq_used] == s->used);
    for (int32_t q = 0; q < s->nseq; q++) {
        int32_t from = s->cu_seqlens[q], to = s->cu_seqlens[q + 1];
        PROMISE(to >= from && to - from <= s->max_len);
        PROMISE(q >= s->nseq_used || to > from);
        for (int32_t r = from; r < to; r++) {
            PROMISE(s->ids[r] >= 0 && s->ids[r] < vocab);
            PROMISE(s->at[r] == r - from);
            PROMISE(s->pos[r] >= 0 && s->pos[r] < s->max_len);
            PROMISE((s->sample[r] == NEB_NO_SAMPLE) == (q >= s->nseq_used));
            PROMISE(s->sample[r] == s->sample[from]);
        }
    }
    return NEB_OK;
}

neb_status neb__batch_check(const struct neb_batch *b, int32_t vocab)
{
    for (int s = 0; s < b->sides; s++) NEB_TRY(check_side(b, &b->side[s], vocab));
    const struct neb_batch_side *last = &b->side[b->sides - 1];
    PROMISE(b->sides == 1 || (b->side[0].nseq_used == last->nseq_used && b->side[0].nseq == last->nseq));
    for (int32_t q = 0; b->sides == 2 && q < last->nseq_used; q++)
        PROMISE(b->side[0].sample[b->side[0].cu_seqlens[q]] == last->sample[last->cu_seqlens[q]]);
    int32_t used = 0;
    for (int32_t i = 0; i < b->loss.n; i++) {
        PROMISE(b->loss.rows[i] >= 0 && b->loss.rows[i] < last->tokens);
        PROMISE(b->loss.target[i] >= 0 && b->loss.target[i] < vocab);
        PROMISE(b->loss.weight[i] == 0 || b->loss.rows[i] < last->used);
        used += b->loss.weight[i] != 0;
    }
    PROMISE(b->bare || used == b->loss.used);
    return NEB_OK;
}

uint32_t neb__batch_check_value(const struct neb_batch *b)
{
    uint32_t crc = 0;
    if (b->bare) return b->check;
    for (int i = 0; i < b->sides; i++) {
        const struct neb_batch_side *s = &b->side[i];
        crc = neb__crc32c(crc, s->ids, (size_t)s->used * sizeof *s->ids);
        crc = neb__crc32c(crc, s->cu_seqlens, (size_t)(s->nseq_used + 1) * sizeof *s->cu_seqlens);
    }
    return crc;
}
