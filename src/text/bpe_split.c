/* bpe_split.c: the regular expression of GPT-2 (Radford et al. 2019), written by hand:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * So white space forms parts of its own, except for one plain space in front of a word. A longer stretch
 * leaves out its last character: a plain space joins the part that follows, any other character forms a part
 * of its own. A byte that is not UTF-8 counts as a symbol. */
#include "text/bpe_split.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

enum class { SPACE, LETTER, NUMBER, SYMBOL, END };

/* White_Space of Unicode. */
static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

/* The character at text[at], and its length. */
static enum class look(const char *text, size_t n, size_t at, size_t *bytes) {
    utf8proc_int32_t c; *bytes = 0; if (at >= n) return END;
    utf8proc_ssize_t step = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at),
                                             &c);
    *bytes = step > 0 ? (size_t)step : 1;
    if (step <= 0) return SYMBOL;
    if (is_space(c)) return SPACE;
    utf8proc_category_t k = utf8proc_category(c);
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) return LETTER;
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO ? NUMBER : SYMBOL;
}

static size_t contraction(const char *text, size_t n)
{
    static const char *const ends[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t len = strlen(ends[i]);
        if (len <= n && !memcmp(text, ends[i], len)) return len;
    }
    return 0;
}

/* End of the stretch of one class that begins at `at`; *last: where its last character begins. */
static size_t stretch(const char *text, size_t n, size_t at, enum class kind, size_t *last)
{
    size_t bytes;
    while (look(text, n, at, &bytes) == kind) {
        *last = at;
        at += bytes;
    }
    return at;
}

size_t neb__bpe_part(const char *text, size_t n)
{
    size_t bytes, last = 0, len = contraction(text, n);
    if (len) return len;
    size_t lead = text[0] == ' ';
    enum class kind = look(text, n, lead, &bytes);
    if (kind != SPACE && kind != END) return stretch(text, n, lead, kind, &last);
    len = stretch(text, n, 0, SPACE, &last);
    return len == n || last == 0 ? len : last;
}
