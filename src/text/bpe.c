/* bpe.c: byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019).
 *
 * A text is cut into parts (bpe_split.c). A part begins as its bytes, each of which is a token; then the
 * adjacent pair that merges.txt lists first is joined (the leftmost among equal pairs), until no listed pair
 * is left. The parts of a word are a doubly linked list over its bytes. The pairs are a heap ordered by
 * (rank, place); a pair that changed after it was put there is recognised by its two tokens. So a word of n
 * bytes costs n log n with any file.
 *
 * vocab.json writes bytes as printable characters: 33–126, 161–172 and 174–255 stand for themselves, the
 * others, in order, for U+0100 and on. Pieces are kept as written; `byte` gives the token of each byte. */
#include "text/bpe.h"
#include "base/mem.h"
#include "text/bpe_split.h"
#include "text/vocabulary.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

enum { SHORT = 64 }; /* longest word, in bytes, that needs no allocation */

struct merge {
    int32_t left, right, result, rank; /* left -1: free slot */
};

struct neb_bpe {
    struct neb_vocabulary pieces;
    struct merge *merges; /* (mask + 1) open addressing by (left, right), at most half full */
    uint32_t mask;
    int32_t byte[256];      /* token, or -1 */
    int16_t printed[0x144]; /* byte of a printable character, or -1 */
};

/* ---- loading ------------------------------------------------------------------------------------------- */

static int32_t printable(int byte)
{
    static const int gaps[] = {0,   33,  127,
                               161, 173, 174}; /* [0, 33), [127, 161), 173 have other characters */
    int32_t moved = 256;
    for (int i = 0; i < 6; i += 2) {
        if (byte >= gaps[i] && byte < gaps[i + 1]) return moved + byte - gaps[i];
        moved += gaps[i + 1] - gaps[i];
    }
    return byte;
}

static void name_bytes(struct neb_bpe *b)
{
    memset(b->printed, 0xFF, sizeof b->printed);
    for (int i = 0; i < 256; i++) {
        utf8proc_uint8_t text[4];
        utf8proc_ssize_t n = utf8proc_encode_char(printable(i), text);
        b->printed[printable(i)] = (int16_t)i;
        b->byte[i] = neb__vocabulary_id(&b->pieces, (const char *)text, (size_t)n);
    }
}

static neb_status fill_pieces(struct neb_bpe *b, json_t *vocab)
{
    const char *piece;
    json_t *value;
    size_t size = json_object_size(vocab), bytes = 0;
    json_object_foreach(vocab, piece, value) bytes += strlen(piece) + 1;
    NEB_TRY(neb__vocabulary_init(&b->pieces, size, bytes));
    json_object_foreach(vocab, piece, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= (json_int_t)size || neb__vocabulary_text(&b->pieces, (int32_t)id))
            return neb__fail(NEB_ERR_CORRUPT,
                             "vocab.json: the number of piece '%.40s' is not unique or not below %zu", piece,
                             size);
        neb__vocabulary_put(&b->pieces, (int32_t)id, piece, strlen(piece));
    }
    return NEB_OK;
}

static neb_status read_vocab(struct neb_bpe *b, const struct neb_bpe_files *f)
{
    json_error_t e;
    json_t *vocab = json_loadb(f->vocab, f->vocab_bytes, JSON_REJECT_DUPLICATES, &e);
    if (!vocab) return neb__fail(NEB_ERR_CORRUPT, "vocab.json, line %d: %s", e.line, e.text);
    neb_status status =
        !json_is_object(vocab) || !json_object_size(vocab)
            ? neb__fail(NEB_ERR_CORRUPT, "vocab.json is not a list of pieces and their numbers")
            : fill_pieces(b, vocab);
    json_decref(vocab);
    return status;
}

static uint32_t hash_pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

static struct merge *find_merge(const struct neb_bpe *b, int32_t left, int32_t right)
{
    for (uint32_t at = hash_pair(left, right) & b->mask;; at = (at + 1) & b->mask) {
        struct merge *m = &b->merges[at];
        if (m->left < 0 || (m->left == left && m->right == right)) return m;
    }
}

/* A line is "left right"; both parts and their concatenation must be pieces. */
static neb_status add_merge(struct neb_bpe *b, const char *line, size_t n, int32_t rank,
                            struct neb_buf *joined)
{
    const char *gap = memchr(line, ' ', n);
    size_t first = gap ? (size_t)(gap - line) : 0, second = gap ? n - first - 1 : 0;
    if (!first || !second || memchr(gap + 1, ' ', second) || memchr(line, 0, n))
        return neb__fail(NEB_ERR_CORRUPT, "merges.txt: merge %d is not two pieces with a space between",
                         rank + 1);
    joined->len = 0;
    NEB_TRY(neb__buf_append(joined, line, first));
    NEB_TRY(neb__buf_append(joined, gap + 1, second));
    int32_t left = neb__vocabulary_id(&b->pieces, line, first),
            right = neb__vocabulary_id(&b->pieces, gap + 1, second),
            result = neb__vocabulary_id(&b->pieces, (const char *)joined->data, joined->len);
    if (left < 0 || right < 0 || result < 0)
        return neb__fail(NEB_ERR_CORRUPT, "merges.txt: merge %d ('%.*s') uses a piece that vocab.json lacks",
                         rank + 1, n < 60 ? (int)n : 60, line);
    *find_merge(b, left, right) =
        (struct merge){left, right, result, rank}; /* among equal merges the last counts */
    return NEB_OK;
}

static neb_status read_lines(struct neb_bpe *b, const char *p, const char *end, struct neb_buf *joined)
{
    static const char version[] = "#version";
    bool first = true;
    for (int32_t rank = 0; p < end; first = false) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((stop ? stop : end) - p);
        size_t text = n && p[n - 1] == '\r' ? n - 1 : n;
        bool header = first && text >= sizeof version - 1 && !memcmp(p, version, sizeof version - 1);
        if (text && !header) NEB_TRY(add_merge(b, p, text, rank++, joined));
        p += n + (stop != NULL);
    }
    return NEB_OK;
}

static neb_status read_merges(struct neb_bpe *b, const struct neb_bpe_files *f)
{
    const char *text = f->merges;
    size_t lines = 1;
    for (size_t i = 0; i < f->merges_bytes; i++) lines += text[i] == '\n';
    if (lines > NEB_VOCABULARY_MAX)
        return neb__fail(NEB_ERR_CORRUPT, "merges.txt has too many lines (%zu)", lines);
    uint32_t slots = 16;
    while (slots < 2 * lines) slots *= 2;
    b->mask = slots - 1;
    b->merges = NEB_NEW_ARRAY(struct merge, slots);
    if (!b->merges) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu merges", lines);
    for (uint32_t i = 0; i < slots; i++) b->merges[i].left = -1;
    struct neb_buf joined;
    neb__buf_init(&joined, f->merges_bytes + 1);
    neb_status status = read_lines(b, text, text + f->merges_bytes, &joined);
    neb__buf_free(&joined);
    return status;
}

neb_status neb__bpe_load(const struct neb_bpe_files *files, struct neb_bpe **out)
{
    struct neb_bpe *b = NEB_NEW(struct neb_bpe);
    if (!b) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb_status status = read_vocab(b, files);
    if (status == NEB_OK) status = read_merges(b, files);
    if (status != NEB_OK) {
        neb__bpe_free(b);
        return status;
    }
    name_bytes(b);
    *out = b;
    return NEB_OK;
}

void neb__bpe_free(struct neb_bpe *b)
{
    if (!b) return;
    neb__vocabulary_free(&b->pieces);
    neb__free(b->merges);
    neb__free(b);
}

int32_t neb__bpe_size(const struct neb_bpe *b)
{
    return b->pieces.size;
}

int32_t neb__bpe_id(const struct neb_bpe *b, const char *piece, size_t n)
{
    return neb__vocabulary_id(&b->pieces, piece, n);
}

const char *neb__bpe_piece(const struct neb_bpe *b, int32_t id)
{
    return neb__vocabulary_text(&b->pieces, id);
}

/* ---- joining pairs ------------------------------------------------------------------------------------- */

struct symbol {
    int32_t token, before, behind; /* places; -1: no neighbour */
};

struct pair {
    int32_t rank, at, left, right, result;
};

struct word {
    struct symbol *symbols; /* (bytes) */
    struct pair *heap;      /* (3 bytes): every join adds two at most */
    int32_t pairs;
};

static bool sooner(const struct pair *x, const struct pair *y)
{
    return x->rank != y->rank ? x->rank < y->rank : x->at < y->at;
}

static void push(struct word *w, struct pair p)
{
    int32_t i = w->pairs++;
    for (; i > 0 && sooner(&p, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = p;
}

static struct pair pop(struct word *w)
{
    struct pair top = w->heap[0], last = w->heap[--w->pairs];
    int32_t i = 0;
    for (int32_t child; (child = 2 * i + 1) < w->pairs; i = child) {
        if (child + 1 < w->pairs && sooner(&w->heap[child + 1], &w->heap[child])) child++;
        if (!sooner(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

/* Puts the symbol at `at` and the next one into the heap if they are a listed pair. */
static void offer(const struct neb_bpe *b, struct word *w, int32_t at)
{
    if (at < 0 || w->symbols[at].behind < 0) return;
    int32_t left = w->symbols[at].token, right = w->symbols[w->symbols[at].behind].token;
    const struct merge *m = find_merge(b, left, right);
    if (m->left >= 0) push(w, (struct pair){m->rank, at, left, right, m->result});
}

static void join(const struct neb_bpe *b, struct word *w, const struct pair *p)
{
    struct symbol *left = &w->symbols[p->at];
    if (left->token != p->left || left->behind < 0 || w->symbols[left->behind].token != p->right) return;
    struct symbol *right = &w->symbols[left->behind];
    left->token = p->result;
    left->behind = right->behind;
    if (right->behind >= 0) w->symbols[right->behind].before = p->at;
    right->token = -2; /* no pair contains -2 */
    offer(b, w, left->before);
    offer(b, w, p->at);
}

static neb_status join_all(const struct neb_bpe *b, int32_t unk, struct word *w, const char *text, int32_t n,
                           struct neb_buf *out)
{
    for (int32_t i = 0; i < n; i++)
        w->symbols[i] = (struct symbol){b->byte[(uint8_t)text[i]], i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i < n; i++) offer(b, w, i);
    while (w->pairs) {
        struct pair p = pop(w);
        join(b, w, &p);
    }
    for (int32_t i = 0; i >= 0; i = w->symbols[i].behind) {
        int32_t id = w->symbols[i].token >= 0 ? w->symbols[i].token : unk;
        NEB_TRY(neb__buf_append(out, &id, sizeof id));
    }
    return NEB_OK;
}

static neb_status encode_part(const struct neb_bpe *b, int32_t unk, const char *text, size_t n,
                              struct neb_buf *out)
{
    struct symbol symbols[SHORT];
    struct pair heap[3 * SHORT];
    struct word w = {symbols, heap, 0};
    if (n <= SHORT) return join_all(b, unk, &w, text, (int32_t)n, out);
    if (n > INT32_MAX / 4) return neb__fail(NEB_ERR_NOSPACE, "a word of %zu bytes is too long to encode", n);
    w.symbols = NEB_NEW_ARRAY(struct symbol, n);
    w.heap = NEB_NEW_ARRAY(struct pair, 3 * n);
    neb_status status = w.symbols && w.heap
                            ? join_all(b, unk, &w, text, (int32_t)n, out)
                            : neb__fail(NEB_ERR_NOMEM, "not enough memory to encode a word of %zu bytes", n);
    neb__free(w.symbols);
    neb__free(w.heap);
    return status;
}

neb_status neb__bpe_encode(const struct neb_bpe *b, int32_t unk, const char *text, size_t n,
                           struct neb_buf *out)
{
    for (size_t at = 0; at < n;) {
        size_t part = neb__bpe_part(text + at, n - at);
        NEB_TRY(encode_part(b, unk, text + at, part, out));
        at += part;
    }
    return NEB_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

/* Appends a piece's bytes. A piece with characters that stand for no byte is appended as it is written. */
static neb_status append_bytes(const struct neb_bpe *b, const char *piece, struct neb_buf *out)
{
    size_t mark = out->len, n = strlen(piece);
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const utf8proc_uint8_t *)piece + at, (utf8proc_ssize_t)(n - at), &c);
        if (step <= 0 || c >= 0x144 || b->printed[c] < 0) {
            out->len = mark;
            return neb__buf_append(out, piece, n);
        }
        uint8_t byte = (uint8_t)b->printed[c];
        NEB_TRY(neb__buf_append(out, &byte, 1));
        at += (size_t)step;
    }
    return NEB_OK;
}

/* How many bytes at p become one U+FFFD: the longest available prefix of a valid character (Unicode, chapter
 * 3.9). */
static size_t broken(const uint8_t *p, size_t n)
{
    size_t length = 1, i = 1;
    uint8_t low = 0x80, high = 0xBF; /* of the second byte: some first bytes allow fewer */
    if (p[0] >= 0xC2 && p[0] <= 0xDF) length = 2;
    if (p[0] >= 0xE0 && p[0] <= 0xEF) length = 3;
    if (p[0] >= 0xF0 && p[0] <= 0xF4) length = 4;
    if (p[0] == 0xE0) low = 0xA0;
    if (p[0] == 0xF0) low = 0x90;
    if (p[0] == 0xED) high = 0x9F;
    if (p[0] == 0xF4) high = 0x8F;
    for (; i < length && i < n && p[i] >= low && p[i] <= high; i++) low = 0x80, high = 0xBF;
    return i;
}

static neb_status append_text(const uint8_t *p, size_t n, struct neb_buf *out)
{
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t step = utf8proc_iterate(p + at, (utf8proc_ssize_t)(n - at), &c);
        if (step > 0) {
            NEB_TRY(neb__buf_append(out, p + at, (size_t)step));
            at += (size_t)step;
        } else {
            NEB_TRY(neb__buf_append(out, "\xEF\xBF\xBD", 3));
            at += broken(p + at, n - at);
        }
    }
    return NEB_OK;
}

neb_status neb__bpe_decode(const struct neb_bpe *b, const uint8_t *special, const int32_t *ids, size_t n,
                           struct neb_buf *out)
{
    struct neb_buf bytes;
    neb_status status = NEB_OK;
    neb__buf_init(&bytes, out->max);
    for (size_t i = 0; i < n && status == NEB_OK; i++) {
        const char *piece = neb__bpe_piece(b, ids[i]);
        if (!piece)
            status = neb__fail(NEB_ERR_RANGE, "token %d is not in the vocabulary", (int)ids[i]);
        else if (!special[ids[i]])
            status = append_bytes(b, piece, &bytes);
    }
    if (status == NEB_OK) status = append_text(bytes.data, bytes.len, out);
    neb__buf_free(&bytes);
    return status;
}
