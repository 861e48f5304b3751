/* sp_vocab.c: pieces from SentencePiece, numbers from vocab.json.
 *
 * The numbers are found by the text of a piece, because vocab.json may have pieces that a model lacks: it holds those
 * of both sides, so a character that the source's model does not know may still have a number. */
#include "text/sp_vocab.h"
#include "base/mem.h"
#include "text/sp_shim.h"
#include "text/vocabulary.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

struct neb_spv {
    struct neb_sp *model[2]; /* [1] NULL: as [0] */
    struct neb_vocabulary pieces;
};

/* ---- loading ---------------------------------------------------------------------------------------------- */

static neb_status fill(struct neb_vocabulary *pieces, json_t *vocab)
{
    const char *piece;
    json_t *value;
    size_t size = json_object_size(vocab), bytes = 0;
    json_object_foreach(vocab, piece, value) bytes += strlen(piece) + 1;
    NEB_TRY(neb__vocabulary_init(pieces, size, bytes));
    json_object_foreach(vocab, piece, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= (json_int_t)size || neb__vocabulary_text(pieces, (int32_t)id))
            return neb__fail(NEB_ERR_CORRUPT,
                             "vocab.json: the number of piece '%.40s' is not unique or not below %zu", piece,
                             size);
        neb__vocabulary_put(pieces, (int32_t)id, piece, strlen(piece));
    }
    return NEB_OK;
}

static neb_status read_vocab(const struct neb_spv_files *f, struct neb_vocabulary *pieces)
{
    json_error_t e;
    json_t *vocab = json_loadb(f->vocab, f->vocab_bytes, JSON_REJECT_DUPLICATES, &e);
    if (!vocab) return neb__fail(NEB_ERR_CORRUPT, "vocab.json, line %d: %s", e.line, e.text);
    neb_status status =
        json_object_size(vocab)
            ? fill(pieces, vocab)
            : neb__fail(NEB_ERR_CORRUPT, "vocab.json is not a list of pieces and their numbers");
    json_decref(vocab);
    return status;
}

static neb_status read_model(const void *bytes, size_t n, const char *name, struct neb_sp **out)
{
    char error[NEB_SP_ERROR];
    neb_status status = neb__sp_load(bytes, n, out, error);
    return status == NEB_OK ? NEB_OK : neb__fail(status, "%s is not a SentencePiece model: %s", name, error);
}

neb_status neb__spv_load(const struct neb_spv_files *f, struct neb_spv **out)
{
    struct neb_spv *v = NEB_NEW(struct neb_spv);
    if (!v) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb_status status = read_model(f->source, f->source_bytes, "source.spm", &v->model[0]);
    if (status == NEB_OK && f->target)
        status = read_model(f->target, f->target_bytes, "target.spm", &v->model[1]);
    if (status == NEB_OK) status = read_vocab(f, &v->pieces);
    if (status != NEB_OK) {
        neb__spv_free(v);
        return status;
    }
    *out = v;
    return NEB_OK;
}

void neb__spv_free(struct neb_spv *v)
{
    if (!v) return;
    neb__sp_free(v->model[0]);
    neb__sp_free(v->model[1]);
    neb__vocabulary_free(&v->pieces);
    neb__free(v);
}

int32_t neb__spv_size(const struct neb_spv *v)
{
    return v->pieces.size;
}

int32_t neb__spv_id(const struct neb_spv *v, const char *piece)
{
    return neb__vocabulary_id(&v->pieces, piece, strlen(piece));
}

const char *neb__spv_piece(const struct neb_spv *v, int32_t id)
{
    return id >= 0 && id < v->pieces.size ? neb__vocabulary_text(&v->pieces, id) : NULL;
}

static bool all_of(const char *p, const char *end)
{
    for (; p < end; p++)
        if (!(*p >= 'a' && *p <= 'z') && !(*p >= 'A' && *p <= 'Z') && *p != '_' && *p != '-') return false;
    return true;
}

int neb__spv_is_language(const struct neb_spv *v, int32_t id)
{
    static const char *const marks[][2] = {{">>", "<<"}, {"__", "__"}};
    const char *piece = neb__spv_piece(v, id);
    size_t n = piece ? strlen(piece) : 0;
    for (int i = 0; n > 5 && i < 2; i++)
        if (!strncmp(piece, marks[i][0], 2) && !strcmp(piece + n - 2, marks[i][1]) &&
            all_of(piece + 2, piece + n - 2) && piece[2] != '_' && piece[n - 3] != '_')
            return 1;
    return 0;
}

int neb__spv_two(const struct neb_spv *v)
{
    return v->model[1] != NULL;
}

/* ---- encoding ---------------------------------------------------------------------------------------------- */

struct numbering {
    const struct neb_spv *v;
    int32_t unk;
    struct neb_buf *out;
};

static neb_status number(void *arg, const char *piece, size_t n)
{
    const struct numbering *m = arg;
    int32_t id = neb__vocabulary_id(&m->v->pieces, piece, n);
    if (id < 0) id = m->unk;
    return neb__buf_append(m->out, &id, sizeof id);
}

/* Bytes of the language at the beginning; 0: there is none. */
static size_t language_length(const char *text, size_t n)
{
    if (n < 4 || memcmp(text, ">>", 2)) return 0;
    for (size_t i = 2; i + 1 < n; i++)
        if (text[i] == '<' && text[i + 1] == '<') return i + 2;
    return 0;
}

neb_status neb__spv_encode(const struct neb_spv *v, int side, int32_t unk, const char *text, size_t n,
                           struct neb_buf *out)
{
    struct numbering m = {v, unk, out};
    char error[NEB_SP_ERROR];
    size_t lead = v->model[1] ? language_length(text, n) : 0; /* M2M100 has another notation */
    if (lead) NEB_TRY(number(&m, text, lead));
    neb_status status =
        neb__sp_pieces(v->model[side && v->model[1]], text + lead, n - lead, number, &m, error);
    return status == NEB_OK ? NEB_OK : neb__fail(status, "cannot encode: %s", error);
}

/* A piece that the target's model lacks, such as one of the source's, still has U+2581 for a space. */
static void make_spaces(struct neb_buf *text, size_t from)
{
    static const char mark[] = "\xE2\x96\x81";
    size_t at = from;
    for (size_t i = from; i < text->len; at++) {
        const bool space = i + 3 <= text->len && !memcmp(text->data + i, mark, 3);
        text->data[at] = space ? ' ' : text->data[i];
        i += space ? 3 : 1;
    }
    text->len = at;
}

neb_status neb__spv_decode(const struct neb_spv *v, const uint8_t *control, const int32_t *ids, size_t n,
                           struct neb_buf *out)
{
    const char **kept = NEB_NEW_ARRAY(const char *, n + 1);
    char error[NEB_SP_ERROR];
    neb_status status = kept ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "not enough memory to decode %zu tokens", n);
    size_t m = 0, from = out->len;
    for (size_t i = 0; i < n && status == NEB_OK; i++) {
        if (ids[i] < 0 || ids[i] >= v->pieces.size)
            status = neb__fail(NEB_ERR_RANGE, "token %d is not in the vocabulary of %d", (int)ids[i],
                               (int)v->pieces.size);
        else if (!control[ids[i]])
            kept[m++] = neb__vocabulary_text(&v->pieces, ids[i]);
    }
    if (status == NEB_OK &&
        (status = neb__sp_join(v->model[v->model[1] != NULL], kept, m, out, error)) != NEB_OK)
        neb__fail(status, "cannot decode: %s", error);
    if (status == NEB_OK) make_spaces(out, from);
    neb__free(kept);
    return status;
}
