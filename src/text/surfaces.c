/* surfaces.c: what each token writes, found by decoding it behind another token.
 *
 * A decoder drops the space of a text's first word, and WordPiece writes spaces that are in no piece. So a token is decoded
 * behind an anchor, a token that writes something, and its surface is what it adds. A byte of a character without a piece
 * (<0xE4>) stands for that byte. A hash table from surfaces to tokens finds the longest one that a text begins with: the
 * hashes of all beginnings of the text come out of one pass. Of two tokens with one surface the first in the vocabulary is
 * found, and a byte only where no piece is. */
#include "text/surfaces.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST = 256, BYTES_MAX = 1 << 28, TRIES = 4096 };

struct neb_surfaces {
    int32_t vocab;
    uint32_t *start; /* (vocab + 1) in bytes */
    struct neb_buf bytes;
    int32_t *table; /* (places) token, or -1 */
    uint32_t places;
    size_t longest;
};

static uint32_t hash_next(uint32_t h, char c)
{
    return (h ^ (uint8_t)c) * 16777619u;
}

static uint32_t hash_all(const char *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = hash_next(h, p[i]);
    return h;
}

const char *neb__surface_of(const struct neb_surfaces *s, int32_t id, size_t *n)
{
    if (id < 0 || id >= s->vocab) {
        *n = 0;
        return "";
    }
    *n = s->start[id + 1] - s->start[id];
    return *n ? (const char *)s->bytes.data + s->start[id] : "";
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static int32_t *place_of(const struct neb_surfaces *s, uint32_t h, const char *p, size_t n)
{
    uint32_t at = h & (s->places - 1);
    for (; s->table[at] >= 0; at = (at + 1) & (s->places - 1)) {
        size_t m;
        const char *q = neb__surface_of(s, s->table[at], &m);
        if (m == n && !memcmp(p, q, n)) break;
    }
    return &s->table[at];
}

static bool is_byte(const struct neb_tok *tok, int32_t id)
{
    const char *piece = neb__tok_piece(tok, id);
    return piece && strlen(piece) == 6 && !strncmp(piece, "<0x", 3) && piece[5] == '>';
}

static neb_status make_table(struct neb_surfaces *s, const struct neb_tok *tok)
{
    for (s->places = 64; s->places < 2 * (uint32_t)s->vocab;) s->places *= 2;
    s->table = NEB_NEW_ARRAY(int32_t, s->places);
    if (!s->table)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the surfaces of %d tokens", (int)s->vocab);
    memset(s->table, 0xFF, s->places * sizeof *s->table);
    for (int bytes = 0; bytes < 2; bytes++)
        for (int32_t id = 0; id < s->vocab; id++) {
            size_t n;
            const char *p = neb__surface_of(s, id, &n);
            if (!n || is_byte(tok, id) != (bytes == 1)) continue;
            int32_t *place = place_of(s, hash_all(p, n), p, n);
            if (*place < 0) *place = id;
            if (n > s->longest) s->longest = n;
        }
    return s->longest ? NEB_OK : neb__fail(NEB_ERR_CONFIG, "no token of the tokenizer writes any text");
}

int32_t neb__surface_longest(const struct neb_surfaces *s, const char *text, size_t n)
{
    int32_t best = -1;
    uint32_t h = 2166136261u;
    if (n > s->longest) n = s->longest;
    for (size_t i = 0; i < n; i++) {
        h = hash_next(h, text[i]);
        int32_t found = *place_of(s, h, text, i + 1);
        if (found >= 0) best = found;
    }
    return best;
}

/* ---- making -------------------------------------------------------------------------------------------- */

static bool writes(const struct neb_tok *tok, int32_t id)
{
    return !neb__tok_special_map(tok)[id] && id != neb__tok_special(tok, NEB_TOK_UNK) && !is_byte(tok, id);
}

/* A token behind which others can be decoded; `base` gets what it writes. */
static neb_status find_anchor(const struct neb_tok *tok, int32_t vocab, struct neb_buf *base, int32_t *anchor)
{
    struct neb_buf twice;
    neb__buf_init(&twice, 1 << 20);
    neb_status status = NEB_OK;
    bool found = false;
    for (int32_t id = 0, tries = 0; status == NEB_OK && !found && id < vocab && tries < TRIES; id++) {
        if (!writes(tok, id)) continue;
        const int32_t pair[2] = {id, id};
        neb__buf_clear(base);
        neb__buf_clear(&twice);
        tries++;
        status = neb__tok_decode(tok, pair, 1, base);
        if (status == NEB_OK) status = neb__tok_decode(tok, pair, 2, &twice);
        /* a letter or more, plain enough for every decoder to leave it alone */
        found = status == NEB_OK && base->len && base->data[0] >= 'A' && base->data[0] <= 'z' &&
                twice.len > base->len && !memcmp(twice.data, base->data, base->len);
        *anchor = id;
    }
    neb__buf_free(&twice);
    if (status == NEB_OK && !found)
        status = neb__fail(NEB_ERR_CONFIG,
                           "the tokenizer has no token of Latin letters to find what others write");
    return status;
}

static neb_status add(struct neb_surfaces *s, const struct neb_tok *tok, int32_t anchor,
                      const struct neb_buf *base, int32_t id, struct neb_buf *scratch)
{
    const int32_t pair[2] = {anchor, id};
    if (is_byte(tok, id)) {
        uint8_t byte = (uint8_t)strtoul(neb__tok_piece(tok, id) + 3, NULL, 16);
        return neb__buf_append(&s->bytes, &byte, 1);
    }
    if (!writes(tok, id)) return NEB_OK;
    neb__buf_clear(scratch);
    NEB_TRY(neb__tok_decode(tok, pair, 2, scratch));
    if (scratch->len <= base->len || scratch->len - base->len > LONGEST ||
        memcmp(scratch->data, base->data, base->len) != 0)
        return NEB_OK;
    return neb__buf_append(&s->bytes, scratch->data + base->len, scratch->len - base->len);
}

static neb_status make(struct neb_surfaces *s, const struct neb_tok *tok, struct neb_buf *base,
                       struct neb_buf *scratch)
{
    int32_t anchor = 0;
    s->start = NEB_NEW_ARRAY(uint32_t, (size_t)s->vocab + 1);
    if (!s->start)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the surfaces of %d tokens", (int)s->vocab);
    NEB_TRY(find_anchor(tok, s->vocab, base, &anchor));
    for (int32_t id = 0; id < s->vocab; id++) {
        s->start[id] = (uint32_t)s->bytes.len;
        NEB_TRY(add(s, tok, anchor, base, id, scratch));
    }
    s->start[s->vocab] = (uint32_t)s->bytes.len;
    return make_table(s, tok);
}

neb_status neb__surfaces_make(const struct neb_tok *tok, struct neb_surfaces **out)
{
    struct neb_surfaces *s = NEB_NEW(struct neb_surfaces);
    struct neb_buf base, scratch;
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for the surfaces of tokens");
    s->vocab = neb__tok_vocab(tok);
    neb__buf_init(&s->bytes, BYTES_MAX);
    neb__buf_init(&base, 1 << 20);
    neb__buf_init(&scratch, 1 << 20);
    neb_status status = make(s, tok, &base, &scratch);
    neb__buf_free(&base);
    neb__buf_free(&scratch);
    if (status != NEB_OK) {
        neb__surfaces_free(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

void neb__surfaces_free(struct neb_surfaces *s)
{
    if (!s) return;
    neb__free(s->start);
    neb__free(s->table);
    neb__buf_free(&s->bytes);
    neb__free(s);
}

neb_status neb__surfaces_join(const struct neb_surfaces *s, const int32_t *ids, int32_t n,
                              struct neb_buf *text, int32_t *ends)
{
    size_t m, from = text->len;
    const char *p = n ? neb__surface_of(s, ids[0], &m) : "";
    ends[0] = !n || !m || *p != ' ';
    if (ends[0]) NEB_TRY(neb__buf_append(text, " ", 1));
    for (int32_t i = 0; i < n; i++) {
        p = neb__surface_of(s, ids[i], &m);
        if (!m) return neb__quiet(NEB_ERR_NOTFOUND, "token %d writes nothing", (int)ids[i]);
        NEB_TRY(neb__buf_append(text, p, m));
        ends[i + 1] = (int32_t)(text->len - from);
    }
    return NEB_OK;
}
