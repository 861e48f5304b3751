/* charsmap.c: the character map of a SentencePiece model.
 *
 * Bytes: the size of a trie (u32, little-endian), the trie, then the replacements, each ended by 0. The trie is
 * a double array of u32 units (Darts-clone). A unit has its label in bits 0 to 7 and 31, "has a leaf" in bit 8,
 * and the distance to its children in bits 10 to 30, times 256 if bit 9 is set. A leaf's unit has the offset of
 * the replacement in bits 0 to 30.
 *
 * A grapheme of fewer than six bytes is looked up whole; else, and if it is not there, each of its characters
 * is. A lookup takes the shortest key that is a prefix. This is how the tokenizers library applies the map. */
#include "text/charsmap.h"
#include "base/mem.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_MAP = 64 << 20 };

struct neb_charsmap {
    uint8_t *bytes;
    size_t units;     /* of the trie */
    const char *text; /* replacements, the last one ended by 0 */
    size_t text_bytes;
};

static uint32_t unit(const struct neb_charsmap *m, size_t at)
{
    const uint8_t *p = m->bytes + 4 + 4 * at;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool is_utf8(const char *p, size_t n)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t step = 0;
    for (size_t at = 0; at < n; at += (size_t)step)
        if ((step = utf8proc_iterate((const utf8proc_uint8_t *)p + at, (utf8proc_ssize_t)(n - at), &c)) <= 0)
            return false;
    return true;
}

static neb_status decode(struct neb_charsmap *m, const char *base64)
{
    size_t n = strlen(base64), pad = 0;
    if (n % 4 || n < 8 || n > MAX_MAP)
        return neb__fail(NEB_ERR_CORRUPT, "precompiled_charsmap is not base64");
    while (pad < 2 && base64[n - 1 - pad] == '=') pad++;
    m->bytes = neb__malloc(n / 4 * 3 + 1);
    if (!m->bytes) return neb__fail(NEB_ERR_NOMEM, "out of memory for a character map");
    int got = EVP_DecodeBlock(m->bytes, (const unsigned char *)base64, (int)n);
    if (got < 4 + (int)pad) return neb__fail(NEB_ERR_CORRUPT, "precompiled_charsmap is not base64");
    size_t all = (size_t)got - pad;
    uint32_t trie = (uint32_t)m->bytes[0] | (uint32_t)m->bytes[1] << 8 | (uint32_t)m->bytes[2] << 16 |
                    (uint32_t)m->bytes[3] << 24;
    if (trie % 4 || !trie || trie > all - 4)
        return neb__fail(NEB_ERR_CORRUPT, "precompiled_charsmap names a trie of %u bytes in %zu", trie, all);
    m->units = trie / 4;
    m->text = (const char *)m->bytes + 4 + trie;
    m->text_bytes = all - 4 - trie;
    m->bytes[all] = 0;
    /* what follows a normaliser relies on it */
    if (!is_utf8(m->text, m->text_bytes))
        return neb__fail(NEB_ERR_CORRUPT, "precompiled_charsmap has replacements that are not UTF-8");
    return NEB_OK;
}

neb_status neb__charsmap_load(const char *base64, struct neb_charsmap **out)
{
    struct neb_charsmap *m = NEB_NEW(struct neb_charsmap);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a character map");
    neb_status status = decode(m, base64);
    if (status != NEB_OK) {
        neb__charsmap_free(m);
        return status;
    }
    *out = m;
    return NEB_OK;
}

void neb__charsmap_free(struct neb_charsmap *m)
{
    if (!m) return;
    neb__free(m->bytes);
    neb__free(m);
}

/* The replacement of the shortest key that is a prefix of the bytes, or NULL. */
static const char *find(const struct neb_charsmap *m, const char *p, size_t n)
{
    size_t at = 0;
    uint32_t u = unit(m, 0);
    at ^= (size_t)(u >> 10) << ((u & 512) >> 6);
    for (size_t i = 0; i < n && p[i]; i++) {
        at ^= (uint8_t)p[i];
        if (at >= m->units) return NULL;
        u = unit(m, at);
        if ((u & (1u << 31 | 0xFF)) != (uint8_t)p[i]) return NULL;
        at ^= (size_t)(u >> 10) << ((u & 512) >> 6);
        if (!(u >> 8 & 1)) continue;
        size_t offset = at < m->units ? unit(m, at) & ~(1u << 31) : m->text_bytes;
        if (offset >= m->text_bytes || ((uint8_t)m->text[offset] & 0xC0) == 0x80) return NULL;
        return m->text + offset;
    }
    return NULL;
}

static neb_status replace(const struct neb_charsmap *m, const char *p, size_t n, struct neb_buf *out,
                          bool *done)
{
    const char *by = find(m, p, n);
    *done = by != NULL;
    return by ? neb__buf_append(out, by, strlen(by)) : NEB_OK;
}

static neb_status grapheme(const struct neb_charsmap *m, const char *p, size_t n, struct neb_buf *out)
{
    bool done = false;
    if (n < 6) NEB_TRY(replace(m, p, n, out, &done));
    for (size_t at = 0, step; !done && at < n; at += step) {
        bool one;
        for (step = 1; at + step < n && ((uint8_t)p[at + step] & 0xC0) == 0x80;) step++;
        NEB_TRY(replace(m, p + at, step, out, &one));
        if (!one) NEB_TRY(neb__buf_append(out, p + at, step));
    }
    return NEB_OK;
}

neb_status neb__charsmap_apply(const struct neb_charsmap *m, const char *text, size_t n, struct neb_buf *out)
{
    utf8proc_int32_t before = -1, c, state = 0;
    size_t start = 0;
    for (size_t at = 0; at < n; before = c) {
        utf8proc_ssize_t step =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        if (step <= 0) return neb__fail(NEB_ERR_CORRUPT, "the text is not UTF-8");
        if (before >= 0 && utf8proc_grapheme_break_stateful(before, c, &state)) {
            NEB_TRY(grapheme(m, text + start, at - start, out));
            start = at;
        }
        at += (size_t)step;
    }
    return grapheme(m, text + start, n - start, out);
}
