/* tokenizer_json_decode.c: decoders: pieces to text, step after step, as the tokenizers library does it. */
#include "text/tokenizer_json_parts.h"
#include "base/mem.h"
#include "text/byte_chars.h"

#include <string.h>

/* Removes up to `start` times the character at the front and `stop` times at the end. */
static neb_status strip(const struct neb_tj_step *s, const char *p, size_t n, struct neb_tj_pieces *out)
{
    size_t m = strlen(s->text), from = 0, end = n;
    for (int64_t i = 0; m && i < s->number[0] && end - from >= m && !memcmp(p + from, s->text, m); i++)
        from += m;
    for (int64_t i = 0; m && i < s->number[1] && end - from >= m && !memcmp(p + end - m, s->text, m); i++)
        end -= m;
    return neb__tj_pieces_add(out, p + from, end - from);
}

static neb_status metaspace(const struct neb_tj_step *s, bool first, const char *p, size_t n,
                            struct neb_tj_pieces *out)
{
    size_t m = strlen(s->text);
    struct neb_tj_step marks = {.text = s->text, .by = (char *)" "};
    if (first && s->prepend != NEB_TJ_NEVER && n >= m && !memcmp(p, s->text, m)) p += m, n -= m;
    NEB_TRY(neb__tj_replace(&marks, p, n, &out->text));
    return neb__buf_append(&out->ends, &out->text.len, sizeof out->text.len);
}

/* The signs that English does not put a space before. */
static neb_status clean_up(struct neb_buf *b, size_t from)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    struct neb_buf next;
    neb_status status = NEB_OK;
    neb__buf_init(&next, NEB_TJ_TEXT);
    for (size_t i = 0; status == NEB_OK && i < sizeof pairs / sizeof *pairs; i++) {
        struct neb_tj_step s = {.text = (char *)pairs[i][0], .by = (char *)pairs[i][1]};
        neb__buf_clear(&next);
        status = neb__tj_replace(&s, (const char *)b->data + from, b->len - from, &next);
        b->len = from;
        if (status == NEB_OK) status = neb__buf_append(b, next.data, next.len);
    }
    neb__buf_free(&next);
    return status;
}

static neb_status wordpiece(const struct neb_tj_step *s, bool first, const char *p, size_t n,
                            struct neb_tj_pieces *out)
{
    size_t m = strlen(s->text), from = out->text.len;
    bool inside = n >= m && !memcmp(p, s->text, m);
    if (!first && inside) p += m, n -= m;
    if (!first && !inside) NEB_TRY(neb__buf_append(&out->text, " ", 1));
    NEB_TRY(neb__buf_append(&out->text, p, n));
    if (s->flag[0]) NEB_TRY(clean_up(&out->text, from));
    return neb__buf_append(&out->ends, &out->text.len, sizeof out->text.len);
}

static neb_status suffix(const struct neb_tj_step *s, bool last, const char *p, size_t n,
                         struct neb_tj_pieces *out)
{
    struct neb_tj_step ends = {.text = s->text, .by = (char *)(last ? "" : " ")};
    NEB_TRY(neb__tj_replace(&ends, p, n, &out->text));
    return neb__buf_append(&out->ends, &out->text.len, sizeof out->text.len);
}

static int byte_of(const char *p, size_t n)
{
    static const char hex[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(p, "<0x", 3) || p[5] != '>') return -1;
    const char *high = memchr(hex, p[3], 16), *low = memchr(hex, p[4], 16);
    return high && low ? (int)((high - hex) * 16 + (low - hex)) : -1;
}

static bool is_text(const uint8_t *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k = utf8proc_iterate(p + at, (utf8proc_ssize_t)(n - at), &c);
        if (k <= 0) return false;
        at += (size_t)k;
    }
    return true;
}

/* A run of bytes becomes their text, or one U+FFFD a byte. */
static neb_status give_bytes(struct neb_buf *bytes, struct neb_tj_pieces *out)
{
    if (is_text(bytes->data, bytes->len)) {
        if (bytes->len) NEB_TRY(neb__tj_pieces_add(out, (const char *)bytes->data, bytes->len));
    } else {
        for (size_t i = 0; i < bytes->len; i++) NEB_TRY(neb__tj_pieces_add(out, "\xEF\xBF\xBD", 3));
    }
    neb__buf_clear(bytes);
    return NEB_OK;
}

static neb_status byte_fallback(const struct neb_tj_pieces *in, struct neb_tj_pieces *out)
{
    struct neb_buf bytes;
    neb__buf_init(&bytes, NEB_TJ_TEXT);
    neb_status status = NEB_OK;
    for (size_t i = 0; status == NEB_OK && i < neb__tj_pieces_count(in); i++) {
        size_t n;
        const char *p = neb__tj_pieces_at(in, i, &n);
        int byte = byte_of(p, n);
        if (byte >= 0) {
            status = neb__buf_append(&bytes, &(uint8_t){(uint8_t)byte}, 1);
            continue;
        }
        status = give_bytes(&bytes, out);
        if (status == NEB_OK) status = neb__tj_pieces_add(out, p, n);
    }
    if (status == NEB_OK) status = give_bytes(&bytes, out);
    neb__buf_free(&bytes);
    return status;
}

/* All pieces as one. */
static neb_status fuse(const struct neb_tj_pieces *in, struct neb_tj_pieces *out)
{
    return neb__tj_pieces_add(out, (const char *)in->text.data, in->text.len);
}

static neb_status byte_level(const struct neb_tj_pieces *in, struct neb_tj_pieces *out)
{
    struct neb_buf bytes;
    neb__buf_init(&bytes, NEB_TJ_TEXT);
    neb_status status = NEB_OK;
    for (size_t i = 0; status == NEB_OK && i < neb__tj_pieces_count(in); i++) {
        size_t n;
        const char *p = neb__tj_pieces_at(in, i, &n);
        status = neb__byte_chars_decode(p, n, &bytes);
    }
    if (status == NEB_OK) status = neb__utf8_repair(bytes.data, bytes.len, &out->text);
    if (status == NEB_OK) status = neb__buf_append(&out->ends, &out->text.len, sizeof out->text.len);
    neb__buf_free(&bytes);
    return status;
}

static neb_status each(const struct neb_tj_step *s, const struct neb_tj_pieces *in, struct neb_tj_pieces *out)
{
    size_t count = neb__tj_pieces_count(in);
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const char *p = neb__tj_pieces_at(in, i, &n);
        switch (s->kind) {
        case NEB_TJ_STRIP_DECODER: NEB_TRY(strip(s, p, n, out)); break;
        case NEB_TJ_METASPACE: NEB_TRY(metaspace(s, i == 0, p, n, out)); break;
        case NEB_TJ_WORDPIECE_DECODER: NEB_TRY(wordpiece(s, i == 0, p, n, out)); break;
        case NEB_TJ_SUFFIX_DECODER: NEB_TRY(suffix(s, i + 1 == count, p, n, out)); break;
        default:
            NEB_TRY(neb__tj_replace(s, p, n, &out->text));
            NEB_TRY(neb__buf_append(&out->ends, &out->text.len, sizeof out->text.len));
        }
    }
    return NEB_OK;
}

static neb_status one(const struct neb_tj_step *s, const struct neb_tj_pieces *in, struct neb_tj_pieces *out)
{
    switch (s->kind) {
    case NEB_TJ_BYTE_FALLBACK: return byte_fallback(in, out);
    case NEB_TJ_FUSE: return fuse(in, out);
    case NEB_TJ_BYTE_LEVEL: return byte_level(in, out);
    default: return each(s, in, out);
    }
}

neb_status neb__tj_join(const struct neb_tj_steps *s, struct neb_tj_pieces *p, struct neb_buf *out)
{
    for (int i = 0; i < s->n; i++) {
        struct neb_tj_pieces next;
        neb__tj_pieces_init(&next);
        neb_status status = one(&s->step[i], p, &next);
        neb__tj_pieces_free(p);
        *p = next;
        if (status != NEB_OK) return status;
    }
    if (s->n) return neb__buf_append(out, p->text.data, p->text.len);
    for (size_t i = 0; i < neb__tj_pieces_count(p); i++) { /* no decoder: spaces between the pieces */
        size_t n;
        const char *text = neb__tj_pieces_at(p, i, &n);
        if (i) NEB_TRY(neb__buf_append(out, " ", 1));
        NEB_TRY(neb__buf_append(out, text, n));
    }
    return NEB_OK;
}
