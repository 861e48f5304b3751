/* bpe_dropout.c: BPE with merges left out at random.
 *
 * A word (from a piece that begins with the mark of a space up to the next such piece) is put together again,
 * split into characters, and merged as BPE does. Among all neighbours whose concatenation is a piece, the
 * pair whose piece comes first in the vocabulary is merged. In every round each candidate is left out with
 * the given probability. A word is done when no candidate is left. Only models whose pieces are numbered in
 * the order of their merges are accepted, so without dropout the result equals SentencePiece's own. Words
 * with unknown characters (special pieces, or pieces that stand for bytes) and very long words stay
 * unchanged. */
#include "text/bpe_dropout.h"
#include "base/mem.h"
#include "base/rng.h"
#include "text/vocabulary.h"

#include <stdbool.h>
#include <string.h>

enum { WORD = 256 }; /* longest word, in bytes, that is cut anew */

struct neb_bpe_dropout {
    const struct neb_tok *tok;
    struct neb_vocabulary pieces;
    double share;
};

/* ---- the vocabulary ------------------------------------------------------------------------------------ */

static neb_status take_pieces(struct neb_bpe_dropout *v)
{
    const uint8_t *special = neb__tok_special_map(v->tok);
    int32_t n = neb__tok_vocab(v->tok);
    size_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        const char *text = neb__tok_piece(v->tok, i);
        bytes += text ? strlen(text) + 1 : 1;
    }
    NEB_TRY(neb__vocabulary_init(&v->pieces, (size_t)n, bytes));
    for (int32_t i = 0; i < n; i++) {
        const char *text = neb__tok_piece(v->tok, i);
        if (text && !special[i] && !neb__tok_is_byte(v->tok, i))
            neb__vocabulary_put(&v->pieces, i, text, strlen(text));
    }
    return NEB_OK;
}

neb_status neb__bpe_dropout_create(const struct neb_tok *tok, double share, struct neb_bpe_dropout **out)
{
    if (!(share >= 0 && share <= 1))
        return neb__fail(NEB_ERR_CONFIG, "the share of merges left out is %g; it must be between 0 and 1",
                         share);
    if (!neb__tok_merges_in_order(tok))
        return neb__fail(
            NEB_ERR_CONFIG,
            "copies of a corpus use BPE-dropout, which needs a BPE tokenizer of SentencePiece without "
            "added symbols; train one (tokenizer.type: bpe), or remove copies from the job");
    struct neb_bpe_dropout *v = NEB_NEW(struct neb_bpe_dropout);
    if (!v) return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary");
    v->tok = tok;
    v->share = share;
    neb_status status = take_pieces(v);
    if (status != NEB_OK) {
        neb__bpe_dropout_free(v);
        return status;
    }
    *out = v;
    return NEB_OK;
}

void neb__bpe_dropout_free(struct neb_bpe_dropout *v)
{
    if (!v) return;
    neb__vocabulary_free(&v->pieces);
    neb__free(v);
}

/* ---- a word -------------------------------------------------------------------------------------------- */

struct word {
    char text[WORD];
    size_t bytes;
    int parts;
    size_t start[WORD + 1]; /* of each part; start[parts] = bytes */
};

static bool begins_word(const char *piece)
{
    return !strncmp(piece, "\xE2\x96\x81", 3);
}

/* Puts the text of pieces [0, n) together; false: the word must stay unchanged. */
static bool join(const struct neb_bpe_dropout *v, const int32_t *ids, size_t n, struct word *w)
{
    const uint8_t *special = neb__tok_special_map(v->tok);
    w->bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const char *text = neb__tok_piece(v->tok, ids[i]);
        size_t size = text ? strlen(text) : 0;
        if (!text || special[ids[i]] || neb__tok_is_byte(v->tok, ids[i]) || w->bytes + size > WORD)
            return false;
        memcpy(w->text + w->bytes, text, size);
        w->bytes += size;
    }
    return w->bytes > 0;
}

static void take_apart(struct word *w)
{
    w->parts = 0;
    for (size_t i = 0; i < w->bytes; i++)
        if (((unsigned char)w->text[i] & 0xC0) != 0x80) w->start[w->parts++] = i;
    w->start[w->parts] = w->bytes;
}

static int32_t piece_of(const struct neb_bpe_dropout *v, const struct word *w, int part, int parts)
{
    return neb__vocabulary_id(&v->pieces, w->text + w->start[part], w->start[part + parts] - w->start[part]);
}

static void merge(const struct neb_bpe_dropout *v, struct neb_rng *rng, struct word *w)
{
    int32_t pair[WORD + 1]; /* the piece that parts i and i + 1 would make, or -1 */
    for (int i = 0; i + 1 < w->parts; i++) pair[i] = piece_of(v, w, i, 2);
    for (;;) {
        int best = -1;
        for (int i = 0; i + 1 < w->parts; i++)
            if (pair[i] >= 0 && (best < 0 || pair[i] < pair[best]) &&
                (v->share <= 0 || neb__rng_uniform(rng) >= v->share))
                best = i;
        if (best < 0) return;
        w->parts--;
        memmove(w->start + best + 1, w->start + best + 2, (size_t)(w->parts - best) * sizeof *w->start);
        memmove(pair + best, pair + best + 1, (size_t)(w->parts - best) * sizeof *pair);
        if (best > 0) pair[best - 1] = piece_of(v, w, best - 1, 2);
        if (best + 1 < w->parts) pair[best] = piece_of(v, w, best, 2);
    }
}

static neb_status put(struct neb_buf *out, const int32_t *ids, size_t n)
{
    return neb__buf_append(out, ids, n * sizeof *ids);
}

static neb_status cut_word(const struct neb_bpe_dropout *v, const int32_t *ids, size_t n, struct neb_rng *rng,
                           struct neb_buf *out)
{
    struct word w;
    if (!join(v, ids, n, &w)) return put(out, ids, n);
    take_apart(&w);
    merge(v, rng, &w);
    int32_t pieces[WORD];
    for (int i = 0; i < w.parts; i++) {
        pieces[i] = piece_of(v, &w, i, 1);
        if (pieces[i] < 0) return put(out, ids, n); /* a character that is not a piece by itself */
    }
    return put(out, pieces, (size_t)w.parts);
}

neb_status neb__bpe_dropout_cut(const struct neb_bpe_dropout *v, const int32_t *ids, size_t n, uint64_t key,
                                struct neb_buf *out)
{
    struct neb_rng rng = {neb__mix64(key)};
    for (size_t from = 0, to; from < n; from = to) {
        const char *text;
        for (to = from + 1; to < n && (text = neb__tok_piece(v->tok, ids[to])) && !begins_word(text); to++)
            continue;
        NEB_TRY(cut_word(v, ids + from, to - from, &rng, out));
    }
    return NEB_OK;
}
