/* batch_pack.c: sequences into rows, padding behind them.
 *
 * While sequences are added, a side's `used` counts its rows and nseq_used its sequences. The end rounds the rows up and lays
 * padding sequences of at most max_len rows behind the real ones; empty sequences follow up to the batch's room. Both sides have
 * the same number of sequences. */
#include "text/batch_pack.h"

#include <string.h>

enum { ALIGN = 8 };

void neb__batch_pack_begin(struct neb_batch *b)
{
    for (int i = 0; i < b->sides; i++) {
        struct neb_batch_side *s = &b->side[i];
        s->tokens = s->used = s->nseq = s->nseq_used = 0;
        s->cu_seqlens[0] = 0;
    }
    b->loss.n = b->loss.used = 0;
}

static int32_t padding_seqs(int32_t rows, int32_t max_len)
{
    return (rows + max_len - 1) / max_len;
}

int32_t neb__batch_pack_seqs(int32_t seqs, int32_t rows, int32_t max_len)
{
    return seqs + padding_seqs(rows, max_len) + 1;
}

bool neb__batch_pack_fits(const struct neb_batch *b, int32_t rows0, int32_t rows1, int32_t predicted,
                          int32_t max_len)
{
    const int32_t rows[2] = {rows0, rows1};
    for (int i = 0; i < b->sides; i++) {
        const struct neb_batch_side *s = &b->side[i];
        if (rows[i] > b->cap_tokens[i] - s->used) return false;
        if (s->nseq_used + 1 + padding_seqs(b->cap_tokens[i] - s->used - rows[i], max_len) > b->cap_seqs)
            return false;
    }
    return predicted <= b->cap_loss - b->loss.used;
}

static void put(struct neb_batch_side *s, int32_t id, int32_t at, int32_t lang, uint32_t sample)
{
    int32_t r = s->used++;
    s->ids[r] = id;
    s->at[r] = s->pos[r] = at;
    s->type[r] = 0;
    s->lang[r] = lang;
    s->sample[r] = sample;
}

void neb__batch_pack_add(struct neb_batch *b, const struct neb_batch_seq *seq)
{
    const int last = b->sides - 1;
    struct neb_loss_rows *l = &b->loss;
    for (int i = 0; i < b->sides; i++) {
        struct neb_batch_side *s = &b->side[i];
        int32_t first = s->used;
        for (int32_t r = 0; r < seq->n[i]; r++) put(s, seq->ids[i][r], r, seq->lang[i], seq->sample);
        s->cu_seqlens[++s->nseq_used] = s->used;
        for (int32_t r = seq->from; i == last && r < seq->n[i]; r++) {
            l->rows[l->used] = first + r;
            l->target[l->used] = seq->target[r - seq->from];
            l->weight[l->used++] = 1;
        }
    }
}

/* The smallest of a few shares of `cap` that holds n. */
static int32_t rounded(int32_t n, int32_t cap)
{
    for (int eighths = 1; eighths < 8; eighths += eighths < 4 ? eighths : 2) {
        int32_t size = (int32_t)((int64_t)cap * eighths / 8 + ALIGN - 1) / ALIGN * ALIGN;
        if (n <= size && size <= cap) return size;
    }
    return cap;
}

static void pad_side(struct neb_batch_side *s, int32_t pad, int32_t max_len, int32_t used)
{
    int32_t q = s->nseq_used;
    while (s->used < s->tokens) {
        for (int32_t at = 0; s->used < s->tokens && at < max_len; at++) put(s, pad, at, 0, NEB_NO_SAMPLE);
        s->cu_seqlens[++q] = s->used;
    }
    while (q < s->nseq) s->cu_seqlens[++q] = s->tokens;
    s->used = used;
}

void neb__batch_pack_end(struct neb_batch *b, int32_t pad, int32_t max_len)
{
    struct neb_loss_rows *l = &b->loss;
    for (int i = 0; i < b->sides; i++) {
        struct neb_batch_side *s = &b->side[i];
        s->tokens = rounded(s->used, b->cap_tokens[i]);
        s->nseq = b->cap_seqs;
        s->max_len = max_len;
        pad_side(s, pad, max_len, s->used);
    }
    l->n = rounded(l->used, b->cap_loss);
    for (int32_t i = l->used; i < l->n; i++) l->rows[i] = l->target[i] = 0, l->weight[i] = 0;
}
