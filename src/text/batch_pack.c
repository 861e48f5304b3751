/* batch_pack.c: sequences into rows, padding behind them.
 *
 * While sequences are added, a side's `used` counts its rows and nseq_used its sequences. The end rounds the rows up and lays
 * padding sequences of at most max_len rows behind the real ones; empty sequences follow up to the batch's room. Both sides have
 * the same number of sequences. */
#include "text/batch_pack.h"
#include "base/mem.h"

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

/* ---- other targets ------------------------------------------------------------------------------------- */

struct rewrite {
    struct neb_batch *b;
    const uint8_t *special;
    int32_t eos, rows; /* rows: written so far */
    int32_t *ids, *target, *lang, *starts;
    uint32_t *sample;
};

int32_t neb__batch_lead(const struct neb_batch *b, int32_t q, const uint8_t *special, int32_t eos)
{
    int32_t from = b->side[1].cu_seqlens[q];
    int32_t first = b->loss.target[from]; /* a pair's row r is prediction r */
    return 1 + (special[first] && first != eos);
}

static int32_t lead_of(const struct rewrite *w, int32_t q)
{
    return neb__batch_lead(w->b, q, w->special, w->eos);
}

static void put_row(struct rewrite *w, int32_t q, int32_t id)
{
    const struct neb_batch_side *s = &w->b->side[1];
    int32_t from = s->cu_seqlens[q], r = w->rows++;
    w->ids[r] = id;
    w->lang[r] = s->lang[from];
    w->sample[r] = s->sample[from];
}

static void put_sequence(struct rewrite *w, int32_t q, const struct neb_batch_target *t)
{
    const struct neb_batch_side *s = &w->b->side[1];
    int32_t from = s->cu_seqlens[q], to = s->cu_seqlens[q + 1], first = w->rows,
            lead = t ? lead_of(w, q) : to - from;
    for (int32_t r = from; r < from + lead; r++) put_row(w, q, s->ids[r]);
    for (int32_t i = 0; t && i < t->n; i++) put_row(w, q, t->ids[i]);
    for (int32_t r = first; r + 1 < w->rows; r++) w->target[r] = w->ids[r + 1];
    w->target[w->rows - 1] = w->eos;
    w->starts[q + 1] = w->rows;
}

static void write_back(const struct rewrite *w, int32_t pad)
{
    struct neb_batch *b = w->b;
    struct neb_batch_side *s = &b->side[1];
    const int32_t seqs = s->nseq_used;
    const size_t n = (size_t)w->rows * sizeof *w->ids;
    if (w->rows > s->tokens) s->tokens = b->cap_tokens[1];
    memcpy(s->ids, w->ids, n);
    memcpy(s->lang, w->lang, n);
    memcpy(s->sample, w->sample, n);
    memcpy(s->cu_seqlens, w->starts, ((size_t)seqs + 1) * sizeof *w->starts);
    memset(s->type, 0, n);
    for (int32_t q = 0; q < seqs; q++)
        for (int32_t r = s->cu_seqlens[q]; r < s->cu_seqlens[q + 1]; r++)
            s->at[r] = s->pos[r] = r - s->cu_seqlens[q];
    s->used = w->rows;
    pad_side(s, pad, s->max_len, w->rows);
    b->loss.n = s->tokens;
    b->loss.used = w->rows;
    for (int32_t i = 0; i < s->tokens; i++) {
        const bool real = i < w->rows;
        b->loss.rows[i] = real ? i : 0;
        b->loss.target[i] = real ? w->target[i] : 0;
        b->loss.weight[i] = real;
    }
}

static int32_t rewrite_all(struct rewrite *w, const struct neb_batch_target *texts)
{
    const struct neb_batch_side *s = &w->b->side[1];
    int32_t taken = 0;
    for (int32_t q = 0; q < s->nseq_used; q++) {
        const int32_t rows = lead_of(w, q) + texts[q].n, behind = s->used - s->cu_seqlens[q + 1];
        bool takes = texts[q].n > 0 && rows <= s->max_len && w->rows + rows + behind <= w->b->cap_tokens[1];
        put_sequence(w, q, takes ? &texts[q] : NULL);
        taken += takes;
    }
    return taken;
}

neb_status neb__batch_retarget(struct neb_batch *b, const struct neb_batch_target *texts,
                               const uint8_t *special, int32_t eos, int32_t pad, int32_t *taken)
{
    const size_t n = (size_t)b->cap_tokens[1];
    struct rewrite w = {.b = b, .special = special, .eos = eos};
    w.ids = NEB_NEW_ARRAY(int32_t, n);
    w.target = NEB_NEW_ARRAY(int32_t, n);
    w.lang = NEB_NEW_ARRAY(int32_t, n);
    w.sample = NEB_NEW_ARRAY(uint32_t, n);
    w.starts = NEB_NEW_ARRAY(int32_t, (size_t)b->cap_seqs + 1);
    neb_status status = w.ids && w.target && w.lang && w.sample && w.starts
                            ? NEB_OK
                            : neb__fail(NEB_ERR_NOMEM, "out of memory for other targets of %zu rows", n);
    if (status == NEB_OK) {
        *taken = rewrite_all(&w, texts);
        write_back(&w, pad);
    }
    neb__free(w.ids);
    neb__free(w.target);
    neb__free(w.lang);
    neb__free(w.sample);
    neb__free(w.starts);
    return status;
}

neb_status neb__batch_continue(struct neb_batch *b, const struct neb_batch_target *texts)
{
    struct neb_batch_side *s = &b->side[0];
    int32_t q = 0;
    for (int32_t i = 0; i < s->nseq_used; i++)
        if (texts[i].n < 0 || texts[i].n >= s->cu_seqlens[i + 1] - s->cu_seqlens[i])
            return neb__fail(NEB_ERR_RANGE, "%d tokens continue a sequence of %d", texts[i].n,
                             s->cu_seqlens[i + 1] - s->cu_seqlens[i]);
    for (int32_t i = 0; i < s->nseq_used; i++)
        for (int32_t j = 0; j < texts[i].n; j++)
            s->ids[s->cu_seqlens[i + 1] - texts[i].n + j] = texts[i].ids[j];
    for (int32_t i = 0; i < b->loss.used;
         i++) { /* a row predicts the next one's token; the last one keeps its target */
        const int32_t next = b->loss.rows[i] + 1;
        while (next > s->cu_seqlens[q + 1]) q++;
        if (next < s->cu_seqlens[q + 1]) b->loss.target[i] = s->ids[next];
    }
    return NEB_OK;
}
