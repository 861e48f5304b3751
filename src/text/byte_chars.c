/* byte_chars.c: bytes as printable characters, as byte-level vocabularies write them (Radford et al. 2019), and
 * text from bytes that may not be UTF-8. */
#include "text/byte_chars.h"

#include <utf8proc.h>

int32_t neb__byte_char(int byte)
{
    static const int gaps[] = {0, 33, 127, 161, 173, 174}; /* pairs: [0, 33), [127, 161), 173 are moved */
    int32_t moved = 256;
    for (int i = 0; i < 6; i += 2) {
        if (byte >= gaps[i] && byte < gaps[i + 1]) return moved + byte - gaps[i];
        moved += gaps[i + 1] - gaps[i];
    }
    return byte;
}

/* The inverse of neb__byte_char(), or -1. */
static int byte_of(int32_t c)
{
    static const int first[] = {0, 127, 173}, count[] = {33, 34, 1};
    if (c >= 0 && c < 256) return neb__byte_char(c) == c ? c : -1;
    c -= 256;
    for (int i = 0; i < 3; c -= count[i++])
        if (c >= 0 && c < count[i]) return first[i] + c;
    return -1;
}

neb_status neb__byte_chars_encode(const char *text, size_t n, struct neb_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        utf8proc_uint8_t c[4];
        utf8proc_ssize_t bytes = utf8proc_encode_char(neb__byte_char((uint8_t)text[i]), c);
        NEB_TRY(neb__buf_append(out, c, (size_t)bytes));
    }
    return NEB_OK;
}

neb_status neb__byte_chars_decode(const char *piece, size_t n, struct neb_buf *out)
{
    size_t mark = out->len;
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t step =
            utf8proc_iterate((const utf8proc_uint8_t *)piece + at, (utf8proc_ssize_t)(n - at), &c);
        int byte = step > 0 ? byte_of(c) : -1;
        if (byte < 0) {
            out->len = mark;
            return neb__buf_append(out, piece, n);
        }
        NEB_TRY(neb__buf_append(out, &(uint8_t){(uint8_t)byte}, 1));
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

neb_status neb__utf8_repair(const uint8_t *p, size_t n, struct neb_buf *out)
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
