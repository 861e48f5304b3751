/* tokenizer_json_model.c: a piece of text to ids.
 *
 * BPE begins with characters (or, with byte_fallback, the bytes of those that are not pieces) and joins pairs
 * (merges.c). Unigram (Kudo 2018) takes the cut with the greatest sum of scores; pieces that begin at a place
 * are found by narrowing a range of the sorted pieces byte by byte. WordPiece takes the longest piece first. */
#define _GNU_SOURCE
#include "text/tokenizer_json_parts.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 128 };

static neb_status put(struct neb_buf *out, int32_t id)
{
    return neb__buf_append(out, &id, sizeof id);
}

/* The piece with this text, or -1. No text contains a control token. */
static int32_t text_piece(const struct neb_tj_model *m, const char *text, size_t n)
{
    int32_t id = neb__vocabulary_id(m->pieces, text, n);
    return id >= 0 && m->control[id] ? -1 : id;
}

/* ---- loading -------------------------------------------------------------------------------------------- */

static neb_status own_text(const json_t *j, const char *key, char **out)
{
    const char *text = json_string_value(json_object_get(j, key));
    *out = neb__strdup(text ? text : "");
    return *out ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
}

static void find_bytes(struct neb_tj_model *m)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        m->byte[i] = neb__vocabulary_id(m->pieces, name, (size_t)n); /* special or not */
    }
}

/* One merge: "left right" or ["left", "right"]. */
static neb_status merge_parts(const json_t *j, size_t at, const char *part[2], size_t n[2])
{
    const char *line = json_string_value(j), *gap = line ? strchr(line, ' ') : NULL;
    if (gap) {
        part[0] = line, n[0] = (size_t)(gap - line);
        part[1] = gap + 1, n[1] = strlen(gap + 1);
    } else {
        for (int i = 0; i < 2; i++) {
            part[i] = json_string_value(json_array_get(j, (size_t)i));
            n[i] = part[i] ? strlen(part[i]) : 0;
        }
    }
    if (n[0] && n[1]) return NEB_OK;
    return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: merge %zu is not two pieces", at + 1);
}

static neb_status read_merge(struct neb_tj_model *m, const json_t *j, size_t at, struct neb_buf *joined)
{
    const char *part[2];
    size_t n[2], prefix = strlen(m->prefix);
    NEB_TRY(merge_parts(j, at, part, n));
    size_t skip = prefix && n[1] > prefix && !strncmp(part[1], m->prefix, prefix) ? prefix : 0;
    neb__buf_clear(joined);
    NEB_TRY(neb__buf_append(joined, part[0], n[0]));
    NEB_TRY(neb__buf_append(joined, part[1] + skip, n[1] - skip));
    int32_t left = neb__vocabulary_id(m->pieces, part[0], n[0]),
            right = neb__vocabulary_id(m->pieces, part[1], n[1]),
            result = neb__vocabulary_id(m->pieces, (const char *)joined->data, joined->len);
    if (left < 0 || right < 0 || result < 0)
        return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: merge %zu uses a piece that the vocabulary lacks",
                         at + 1);
    if (!m->control[result]) neb__merges_put(m->merges, left, right, result, (int32_t)at);
    return NEB_OK;
}

static neb_status read_bpe(struct neb_tj_model *m, const json_t *j)
{
    const json_t *list = json_object_get(j, "merges"), *dropout = json_object_get(j, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) > 0)
        return neb__fail(NEB_ERR_UNSUPPORTED, "tokenizer.json: a model with dropout is not supported");
    if (!json_is_array(list) || json_array_size(list) > NEB_VOCABULARY_MAX)
        return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: the model has no list of merges, or too many");
    m->fuse_unk = json_is_true(json_object_get(j, "fuse_unk"));
    m->ignore_merges = json_is_true(json_object_get(j, "ignore_merges"));
    NEB_TRY(neb__merges_create(json_array_size(list), &m->merges));
    struct neb_buf joined;
    neb__buf_init(&joined, 1 << 20);
    neb_status status = NEB_OK;
    for (size_t i = 0; status == NEB_OK && i < json_array_size(list); i++)
        status = read_merge(m, json_array_get(list, i), i, &joined);
    neb__buf_free(&joined);
    return status;
}

static int by_bytes(const void *a, const void *b, void *pieces)
{
    return strcmp(neb__vocabulary_text(pieces, *(const int32_t *)a),
                  neb__vocabulary_text(pieces, *(const int32_t *)b));
}

static neb_status read_unigram(struct neb_tj_model *m, const json_t *j)
{
    const json_t *vocab = json_object_get(j, "vocab");
    size_t n = json_array_size(vocab);
    m->score = NEB_NEW_ARRAY(double, n);
    m->sorted = NEB_NEW_ARRAY(int32_t, n);
    if (!m->score || !m->sorted) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    double least = 0;
    for (size_t i = 0; i < n; i++) {
        const char *text = neb__vocabulary_text(m->pieces, (int32_t)i);
        m->score[i] = json_number_value(json_array_get(json_array_get(vocab, i), 1));
        if (!isfinite(m->score[i]))
            return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: the score of piece %zu is not a number", i);
        if (!i || m->score[i] < least) least = m->score[i];
        /* among equal pieces the first is found; no text contains a control token */
        if (*text && !m->control[i] && neb__vocabulary_id(m->pieces, text, strlen(text)) == (int32_t)i)
            m->sorted[m->n_sorted++] = (int32_t)i;
    }
    const json_t *unk = json_object_get(j, "unk_id");
    m->unk = json_is_integer(unk) ? (int32_t)json_integer_value(unk) : -1;
    if (m->unk >= (int32_t)n || m->unk < -1)
        return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: unk_id is not in the vocabulary");
    m->unk_score = least - 10;
    m->fuse_unk = true;
    qsort_r(m->sorted, (size_t)m->n_sorted, sizeof *m->sorted, by_bytes, (void *)m->pieces);
    return NEB_OK;
}

static neb_status read_wordpiece(struct neb_tj_model *m, const json_t *j)
{
    const json_t *limit = json_object_get(j, "max_input_chars_per_word");
    m->max_chars = json_is_integer(limit) ? json_integer_value(limit) : 100;
    if (m->unk < 0) return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: WordPiece needs an unknown token");
    if (*m->prefix) return NEB_OK;
    neb__free(m->prefix);
    m->prefix = neb__strdup("##");
    return m->prefix ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
}

neb_status neb__tj_model_read(const json_t *j, struct neb_tj_model *m)
{
    static const char *const names[] = {"BPE", "Unigram", "WordPiece"};
    const char *type = json_string_value(json_object_get(j, "type"));
    const char *unk = json_string_value(json_object_get(j, "unk_token"));
    /* files from before there was a type */
    if (!type) type = json_object_get(j, "merges") ? "BPE" : "WordPiece";
    int kind = 0;
    while (kind < 3 && strcmp(type, names[kind])) kind++;
    if (kind == 3)
        return neb__fail(NEB_ERR_UNSUPPORTED, "tokenizer.json: the model '%.40s' is not supported", type);
    m->kind = (enum neb_tj_model_kind)kind;
    m->unk = unk ? neb__vocabulary_id(m->pieces, unk, strlen(unk)) : -1;
    if (unk && *unk && m->unk < 0)
        return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: the unk_token '%.40s' is not in the vocabulary",
                         unk);
    m->byte_fallback = json_is_true(json_object_get(j, "byte_fallback"));
    NEB_TRY(own_text(j, "continuing_subword_prefix", &m->prefix));
    NEB_TRY(own_text(j, "end_of_word_suffix", &m->suffix));
    if (m->byte_fallback) find_bytes(m);
    if (m->kind == NEB_TJ_BPE) return read_bpe(m, j);
    return m->kind == NEB_TJ_UNIGRAM ? read_unigram(m, j) : read_wordpiece(m, j);
}

void neb__tj_model_free(struct neb_tj_model *m)
{
    neb__merges_free(m->merges);
    neb__free(m->prefix);
    neb__free(m->suffix);
    neb__free(m->score);
    neb__free(m->sorted);
}

/* ---- characters without a piece -------------------------------------------------------------------------- */

static bool has_bytes(const struct neb_tj_model *m, const char *p, size_t n)
{
    if (!m->byte_fallback) return false;
    for (size_t i = 0; i < n; i++)
        if (m->byte[(uint8_t)p[i]] < 0) return false;
    return true;
}

static size_t char_bytes(const char *p, size_t n)
{
    size_t k = 1;
    while (k < n && ((uint8_t)p[k] & 0xC0) == 0x80) k++;
    return k;
}

/* ---- BPE -------------------------------------------------------------------------------------------------- */

enum { UNKNOWN = -1 }; /* in the list of tokens; becomes m->unk, or vanishes */

/* The piece of the character at p, with what the model writes in front of it or behind it. */
static int32_t char_piece(const struct neb_tj_model *m, const char *p, size_t n, bool first, bool last)
{
    char text[300];
    size_t before = first ? 0 : strlen(m->prefix), behind = last ? strlen(m->suffix) : 0;
    if (!before && !behind) return text_piece(m, p, n);
    if (before + n + behind > sizeof text) return UNKNOWN;
    memcpy(text, m->prefix, before);
    memcpy(text + before, p, n);
    memcpy(text + before + n, m->suffix, behind);
    return text_piece(m, text, before + n + behind);
}

static size_t first_tokens(const struct neb_tj_model *m, const char *text, size_t n, int32_t *tokens)
{
    size_t count = 0;
    for (size_t at = 0, step; at < n; at += step) {
        step = char_bytes(text + at, n - at);
        int32_t id = char_piece(m, text + at, step, at == 0, at + step == n);
        if (id >= 0)
            tokens[count++] = id;
        else if (has_bytes(m, text + at, step))
            for (size_t i = 0; i < step; i++) tokens[count++] = m->byte[(uint8_t)text[at + i]];
        else if (!m->fuse_unk || !count || tokens[count - 1] != UNKNOWN)
            tokens[count++] = UNKNOWN;
    }
    return count;
}

static neb_status cut_bpe(const struct neb_tj_model *m, const char *text, size_t n, struct neb_buf *out)
{
    int32_t few[FEW], *tokens = few;
    int32_t whole = m->ignore_merges ? text_piece(m, text, n) : -1;
    if (whole >= 0) return put(out, whole);
    if (n > FEW && !(tokens = NEB_NEW_ARRAY(int32_t, n)))
        return neb__fail(NEB_ERR_NOMEM, "not enough memory to encode a word of %zu bytes", n);
    size_t count = first_tokens(m, text, n, tokens);
    neb_status status = neb__merges_join(m->merges, tokens, &count);
    for (size_t i = 0; status == NEB_OK && i < count; i++) {
        int32_t id = tokens[i] == UNKNOWN ? m->unk : tokens[i];
        if (id >= 0) status = put(out, id);
    }
    if (tokens != few) neb__free(tokens);
    return status;
}

/* ---- Unigram ---------------------------------------------------------------------------------------------- */

struct best {
    double score;
    int32_t id; /* of the piece that ends here; UNKNOWN: a character without one; -2: no way leads here */
    uint32_t from;
};

/* The range of sorted pieces whose byte `depth` is c, inside [*lo, *hi). */
static void narrow(const struct neb_tj_model *m, size_t depth, uint8_t c, int32_t *lo, int32_t *hi)
{
    int32_t a = *lo, b = *hi;
    while (a < b) {
        int32_t mid = a + (b - a) / 2;
        if ((uint8_t)neb__vocabulary_text(m->pieces, m->sorted[mid])[depth] < c)
            a = mid + 1;
        else
            b = mid;
    }
    int32_t end = *hi;
    *lo = b = a;
    while (b < end) {
        int32_t mid = b + (end - b) / 2;
        if ((uint8_t)neb__vocabulary_text(m->pieces, m->sorted[mid])[depth] <= c)
            b = mid + 1;
        else
            end = mid;
    }
    *hi = b;
}

static void offer(struct best *b, double score, int32_t id, size_t from)
{
    if (b->id != -2 && !(score > b->score)) return;
    *b = (struct best){score, id, (uint32_t)from};
}

/* All pieces that begin at `at`. */
static void extend(const struct neb_tj_model *m, const char *text, size_t n, size_t at, struct best *best)
{
    int32_t lo = 0, hi = m->n_sorted;
    size_t one = char_bytes(text + at, n - at);
    bool single = false;
    for (size_t k = 0; at + k < n && text[at + k]; k++) { /* a zero byte would match the end of a piece */
        narrow(m, k, (uint8_t)text[at + k], &lo, &hi);
        if (lo == hi) break;
        int32_t id = m->sorted[lo];
        if (neb__vocabulary_text(m->pieces, id)[k + 1]) continue; /* the shortest one comes first */
        offer(&best[at + k + 1], best[at].score + m->score[id], id, at);
        single |= k + 1 == one;
    }
    if (!single) offer(&best[at + one], best[at].score + m->unk_score, UNKNOWN, at);
}

static neb_status give_unknown(const struct neb_tj_model *m, const char *p, size_t n, struct neb_buf *out)
{
    if (has_bytes(m, p, n)) {
        for (size_t i = 0; i < n; i++) NEB_TRY(put(out, m->byte[(uint8_t)p[i]]));
        return NEB_OK;
    }
    if (m->unk >= 0) return put(out, m->unk);
    return neb__fail(NEB_ERR_RANGE, "the tokenizer has neither a piece nor an unknown token for '%.*s'",
                     n < 40 ? (int)n : 40, p);
}

/* Follows the best way back, then gives the pieces from the front; unknown neighbours are one. */
static neb_status give_best(const struct neb_tj_model *m, const char *text, size_t n, struct best *best,
                            struct neb_buf *out)
{
    for (size_t at = n, next = n; at;) { /* turn the links round: from[start] = end */
        size_t before = best[at].from;
        best[at].from = (uint32_t)next;
        next = at;
        at = before;
        if (!at) best[0].from = (uint32_t)next;
    }
    for (size_t at = 0; at < n;) {
        size_t end = best[at].from;
        if (best[end].id != UNKNOWN) {
            NEB_TRY(put(out, best[end].id));
            at = end;
            continue;
        }
        size_t start = at;
        for (at = end; at < n && best[best[at].from].id == UNKNOWN;) at = best[at].from;
        NEB_TRY(give_unknown(m, text + start, at - start, out));
    }
    return NEB_OK;
}

static neb_status cut_unigram(const struct neb_tj_model *m, const char *text, size_t n, struct neb_buf *out)
{
    struct best few[FEW], *best = few;
    if (n >= UINT32_MAX) return neb__fail(NEB_ERR_NOSPACE, "a word of %zu bytes is too long to encode", n);
    if (n + 1 > FEW && !(best = NEB_NEW_ARRAY(struct best, n + 1)))
        return neb__fail(NEB_ERR_NOMEM, "not enough memory to encode %zu bytes", n);
    for (size_t i = 0; i <= n; i++) best[i] = (struct best){0, i ? -2 : UNKNOWN, 0};
    for (size_t at = 0; at < n; at++)
        if (best[at].id != -2 && ((uint8_t)text[at] & 0xC0) != 0x80) extend(m, text, n, at, best);
    neb_status status = give_best(m, text, n, best, out);
    if (best != few) neb__free(best);
    return status;
}

/* ---- WordPiece -------------------------------------------------------------------------------------------- */

static neb_status cut_wordpiece(const struct neb_tj_model *m, const char *text, size_t n, struct neb_buf *out)
{
    size_t mark = out->len, from = 0, prefix = strlen(m->prefix);
    int64_t chars = 0;
    struct neb_buf piece;
    for (size_t i = 0; i < n; i++) chars += ((uint8_t)text[i] & 0xC0) != 0x80;
    if (chars > m->max_chars) return put(out, m->unk);
    neb__buf_init(&piece, NEB_TJ_TEXT);
    neb_status status = neb__buf_append(&piece, m->prefix, prefix);
    if (status == NEB_OK) status = neb__buf_append(&piece, text, n);
    while (status == NEB_OK && from < n) {
        size_t k = n - from, head = from ? prefix : 0;
        const char *p = (const char *)piece.data + prefix + from - head;
        if (from) memcpy(piece.data + from, m->prefix, prefix); /* over the part that is cut already */
        int32_t id = -1;
        while (k && (id = text_piece(m, p, head + k)) < 0) {
            do k--; /* back to the start of a character */
            while (k && ((uint8_t)text[from + k] & 0xC0) == 0x80);
        }
        if (id < 0) {
            out->len = mark;
            status = put(out, m->unk);
            break;
        }
        status = put(out, id);
        from += k;
    }
    neb__buf_free(&piece);
    return status;
}

neb_status neb__tj_model_cut(const struct neb_tj_model *m, const char *text, size_t n, struct neb_buf *out)
{
    if (!n) return NEB_OK;
    switch (m->kind) {
    case NEB_TJ_BPE: return cut_bpe(m, text, n, out);
    case NEB_TJ_UNIGRAM: return cut_unigram(m, text, n, out);
    default: return cut_wordpiece(m, text, n, out);
    }
}
