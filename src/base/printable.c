/* printable.c: see printable.h.
 *
 * A terminal obeys more than the escape byte: in UTF-8 U+009B begins a command as well, and a terminal that is set to
 * another character set takes the bare byte 0x9b for it. A character such as U+202E shows the rest of a line backwards,
 * so that a name can be made to look like another one. */
#include "base/printable.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The length of the character at p and its number; 0: these bytes are not UTF-8. */
static size_t decode(const unsigned char *p, uint32_t *out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = 0;
    if (*p < 0x80) n = 1;
    if (*p >= 0xc2 && *p < 0xe0) n = 2;
    if (*p >= 0xe0 && *p < 0xf0) n = 3;
    if (*p >= 0xf0 && *p < 0xf5) n = 4;
    if (n < 2) {
        *out = *p;
        return n;
    }
    uint32_t c = *p & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0; /* also the text's end */
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *out = c;
    return n;
}

static bool is_unsafe(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},   {0x200b, 0x200f},  {0x2028, 0x202e},
                  {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i].first && c <= ranges[i].last) return true;
    return false;
}

void neb__text_clean(char *text)
{
    unsigned char *p = (unsigned char *)text;
    while (*p) {
        uint32_t c;
        size_t n = decode(p, &c);
        if (!n || is_unsafe(c)) memset(p, '?', n ? n : 1);
        p += n ? n : 1;
    }
}
