/* wordpiece.c: BERT's tokenizer (Devlin et al. 2018; Schuster and Nakajima 2012).
 *
 * First comes the basic split: control characters are dropped, white space separates, Chinese characters and
 * punctuation stand alone; uncased models lower-case, decompose (NFD) and drop accents (Mn). Then every word
 * is cut greedily, the longest piece of the vocabulary first, with continuations marked by ##. A word that
 * cannot be cut, or is longer than 100 characters, is unknown. Character classes come from utf8proc, so the
 * Unicode version is the library's. */
#include "text/wordpiece.h"
#include "base/mem.h"
#include "text/vocabulary.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_WORD_CHARS = 100, MAX_WORD_BYTES = 4 * MAX_WORD_CHARS };

struct neb_wp {
    struct neb_vocabulary pieces;
    bool cased;
};

int32_t neb__wp_id(const struct neb_wp *wp, const char *piece, size_t n)
{
    return neb__vocabulary_id(&wp->pieces, piece, n);
}

/* One piece a line. */
static neb_status index_pieces(struct neb_wp *wp, const char *p, size_t n)
{
    const char *end = p + n;
    int32_t id = 0;
    for (; p < end; id++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        size_t len = (size_t)(stop - p);
        if (len && p[len - 1] == '\r') len--;
        if (memchr(p, 0, len))
            return neb__fail(NEB_ERR_CORRUPT, "line %d of the vocabulary contains a zero byte", (int)id + 1);
        neb__vocabulary_put(&wp->pieces, id, p, len);
        p = stop + 1;
    }
    return id ? NEB_OK : neb__fail(NEB_ERR_CORRUPT, "the vocabulary is empty");
}

neb_status neb__wp_load(const void *bytes, size_t n, int cased, struct neb_wp **out)
{
    const char *text = bytes;
    size_t lines = n && text[n - 1] != '\n';
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    struct neb_wp *wp = NEB_NEW(struct neb_wp);
    if (!wp) return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary");
    wp->cased = cased;
    neb_status status = neb__vocabulary_init(&wp->pieces, lines, n + 1);
    if (status == NEB_OK) status = index_pieces(wp, text, n);
    if (status != NEB_OK) {
        neb__wp_free(wp);
        return status;
    }
    *out = wp;
    return NEB_OK;
}

void neb__wp_free(struct neb_wp *wp)
{
    if (!wp) return;
    neb__vocabulary_free(&wp->pieces);
    neb__free(wp);
}

int32_t neb__wp_size(const struct neb_wp *wp)
{
    return wp->pieces.size;
}

const char *neb__wp_piece(const struct neb_wp *wp, int32_t id)
{
    return neb__vocabulary_text(&wp->pieces, id);
}

/* ---- the basic split ----------------------------------------------------------------------------------- */

static bool is_chinese(int32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B820 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool is_punctuation(int32_t c)
{
    if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126))
        return true;
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

enum what { DROP, SPACE, ALONE, LETTER };

static enum what classify(int32_t c)
{
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return SPACE;
    if (c == 0 || c == 0xFFFD) return DROP;
    utf8proc_category_t k = utf8proc_category(c);
    if (k == UTF8PROC_CATEGORY_ZS) return SPACE;
    if (k == UTF8PROC_CATEGORY_CN || k >= UTF8PROC_CATEGORY_CC) return DROP; /* Cn, Cc, Cf, Cs, Co */
    return is_chinese(c) || is_punctuation(c) ? ALONE : LETTER;
}

struct word {
    char bytes[MAX_WORD_BYTES + 8];
    size_t n;
    int chars; /* may exceed the limit; the word is unknown then */
};

static void add_char(struct word *w, int32_t c)
{
    if (++w->chars > MAX_WORD_CHARS) return;
    w->n += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)w->bytes + w->n);
}

static neb_status put(struct neb_buf *out, int32_t id)
{
    return neb__buf_append(out, &id, sizeof id);
}

static neb_status cut_word(const struct neb_wp *wp, int32_t unk, struct word *w, struct neb_buf *out)
{
    size_t mark = out->len, from = 0;
    if (!w->chars) return NEB_OK;
    bool known = w->chars <= MAX_WORD_CHARS;
    while (known && from < w->n) {
        char piece[MAX_WORD_BYTES + 16] = "##";
        size_t head = from ? 2 : 0, n = w->n - from;
        memcpy(piece + head, w->bytes + from, n);
        int32_t id = -1;
        while (n && (id = neb__wp_id(wp, piece, head + n)) < 0) {
            do n--; /* back to the start of a character */
            while (n && ((uint8_t)w->bytes[from + n] & 0xC0) == 0x80);
        }
        known = id >= 0;
        if (known) NEB_TRY(put(out, id));
        from += n;
    }
    w->n = 0;
    w->chars = 0;
    if (known) return NEB_OK;
    out->len = mark;
    return put(out, unk);
}

static neb_status feed(const struct neb_wp *wp, int32_t unk, int32_t c, struct word *w, struct neb_buf *out)
{
    switch (classify(c)) {
    case DROP: return NEB_OK;
    case SPACE: return cut_word(wp, unk, w, out);
    case LETTER: add_char(w, c); return NEB_OK;
    case ALONE: break;
    }
    NEB_TRY(cut_word(wp, unk, w, out));
    add_char(w, c);
    return cut_word(wp, unk, w, out);
}

/* Lower-cases, decomposes and drops accents. The character classes are looked up again afterwards, as BERT
 * does. */
static neb_status feed_folded(const struct neb_wp *wp, int32_t unk, int32_t c, struct word *w,
                              struct neb_buf *out)
{
    if (classify(c) == DROP) return NEB_OK;
    utf8proc_int32_t parts[24];
    int last = UTF8PROC_BOUNDCLASS_START;
    utf8proc_ssize_t n = utf8proc_decompose_char(utf8proc_tolower(c), parts, 24, UTF8PROC_DECOMPOSE, &last);
    if (n < 0 || n > 24) return feed(wp, unk, c, w, out);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        if (utf8proc_category(parts[i]) != UTF8PROC_CATEGORY_MN) NEB_TRY(feed(wp, unk, parts[i], w, out));
    return NEB_OK;
}

neb_status neb__wp_encode(const struct neb_wp *wp, int32_t unk, const char *text, size_t n,
                          struct neb_buf *out)
{
    struct word w = {.n = 0};
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        if (step <= 0) {
            at++; /* not UTF-8: BERT drops the replacement character */
            continue;
        }
        NEB_TRY(wp->cased ? feed(wp, unk, c, &w, out) : feed_folded(wp, unk, c, &w, out));
        at += (size_t)step;
    }
    return cut_word(wp, unk, &w, out);
}

neb_status neb__wp_decode(const struct neb_wp *wp, const uint8_t *special, const int32_t *ids, size_t n,
                          struct neb_buf *out)
{
    size_t start = out->len;
    for (size_t i = 0; i < n; i++) {
        const char *piece = neb__wp_piece(wp, ids[i]);
        if (!piece) return neb__fail(NEB_ERR_RANGE, "token %d is not in the vocabulary", (int)ids[i]);
        if (special[ids[i]]) continue;
        bool joined = !strncmp(piece, "##", 2);
        if (!joined && out->len > start) NEB_TRY(neb__buf_append(out, " ", 1));
        NEB_TRY(neb__buf_append(out, piece + 2 * joined, strlen(piece + 2 * joined)));
    }
    return NEB_OK;
}
