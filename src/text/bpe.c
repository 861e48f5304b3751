/* bpe.c: byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019).
 *
 * A text is cut into parts (bpe_split.c). A part begins as its bytes, each of which is a token, and is joined
 * by the merges in the order of merges.txt (merges.c).
 * vocab.json writes bytes as printable characters (byte_chars.h). Pieces are kept as written; `byte` gives the
 * token of each byte. */
#include "text/bpe.h"
#include "base/mem.h"
#include "text/bpe_split.h"
#include "text/byte_chars.h"
#include "text/merges.h"
#include "text/vocabulary.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

enum { SHORT = 256 }; /* longest part, in bytes, that needs no allocation */

struct neb_bpe {
    struct neb_vocabulary pieces;
    struct neb_merges *merges;
    int32_t byte[256]; /* token, or -1 */
};

/* ---- loading ------------------------------------------------------------------------------------------- */

static void name_bytes(struct neb_bpe *b)
{
    for (int i = 0; i < 256; i++) {
        utf8proc_uint8_t text[4];
        utf8proc_ssize_t n = utf8proc_encode_char(neb__byte_char(i), text);
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
    neb__merges_put(b->merges, left, right, result, rank);
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
    NEB_TRY(neb__merges_create(lines, &b->merges));
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
    neb__merges_free(b->merges);
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

/* ---- encoding ------------------------------------------------------------------------------------------ */

static neb_status encode_part(const struct neb_bpe *b, int32_t unk, const char *text, size_t n,
                              struct neb_buf *out)
{
    int32_t few[SHORT], *tokens = n <= SHORT ? few : NEB_NEW_ARRAY(int32_t, n);
    if (!tokens) return neb__fail(NEB_ERR_NOMEM, "not enough memory to encode a word of %zu bytes", n);
    for (size_t i = 0; i < n; i++) tokens[i] = b->byte[(uint8_t)text[i]];
    neb_status status = neb__merges_join(b->merges, tokens, &n);
    for (size_t i = 0; status == NEB_OK && i < n; i++)
        if (tokens[i] < 0) tokens[i] = unk;
    if (status == NEB_OK) status = neb__buf_append(out, tokens, n * sizeof *tokens);
    if (tokens != few) neb__free(tokens);
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
            status = neb__byte_chars_decode(piece, strlen(piece), &bytes);
    }
    if (status == NEB_OK) status = neb__utf8_repair(bytes.data, bytes.len, out);
    neb__buf_free(&bytes);
    return status;
}
