/* score_words.c: sacreBLEU's tokenizers, rule by rule.
 *
 * Each rule of the original is a regular expression applied to the whole line; here it is one pass over code
 * points that rewrites into a second array. A pass consumes its matches, as re.sub does: a character is the
 * second of one match or the first of the next, never both. */
#include "text/score_words.h"
#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

void neb__chars_free(struct neb_chars *t)
{
    neb__free(t->c);
    *t = (struct neb_chars){0};
}

static neb_status room(struct neb_chars *t, size_t n)
{
    if (t->c && n <= t->cap) return NEB_OK; /* an empty text has an array, too */
    size_t cap = n + n / 2 + 64;
    int32_t *c = neb__realloc(t->c, cap * sizeof *c);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for a text of %zu characters", n);
    t->c = c;
    t->cap = cap;
    return NEB_OK;
}

bool neb__chars_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

static bool is_letter(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static neb_status lower_case(struct neb_chars *t)
{
    size_t dots = 0, at = 0, n = t->n;
    for (size_t i = 0; i < n; i++) dots += t->c[i] == 0x130;
    NEB_TRY(room(t, n + dots));
    memmove(t->c + dots, t->c, n * sizeof *t->c); /* reads further back than it writes */
    const int32_t *in = t->c + dots;
    for (size_t i = 0; i < n; i++) {
        int32_t c = in[i];
        bool after = i && is_letter(in[i - 1]), before = i + 1 < n && is_letter(in[i + 1]);
        if (c == 0x130) { /* a capital I with a dot becomes two characters */
            t->c[at++] = 'i';
            t->c[at++] = 0x307;
        } else {
            t->c[at++] = c == 0x3A3 && after && !before ? 0x3C2 : utf8proc_tolower(c);
        }
    }
    t->n = at;
    return NEB_OK;
}

neb_status neb__chars_decode(struct neb_chars *t, const char *text, bool lower)
{
    size_t n = strlen(text), at = 0;
    NEB_TRY(room(t, n));
    t->n = 0;
    while (at < n) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        t->c[t->n++] = k > 0 ? c : 0xFFFD;
        at += k > 0 ? (size_t)k : 1;
    }
    return lower ? lower_case(t) : NEB_OK;
}

/* ---- rules --------------------------------------------------------------------------------------------- */

typedef bool (*char_class)(int32_t c);

static bool symbol_13a(int32_t c) /* [\{-\~\[-\` -\&\(-\+\:-\@\/] */
{
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
           (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

static bool digit(int32_t c)
{
    return c >= '0' && c <= '9';
}

static bool no_digit(int32_t c)
{
    return !digit(c);
}

static bool stop(int32_t c)
{
    return c == '.' || c == ',';
}

static bool dash(int32_t c)
{
    return c == '-';
}

static bool punctuation(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

static bool no_number(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k < UTF8PROC_CATEGORY_ND || k > UTF8PROC_CATEGORY_NO;
}

static bool symbol(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_SM && k <= UTF8PROC_CATEGORY_SO;
}

/* (a)(b) -> "\1 \2 " when `behind`, else " \1 \2"; b NULL: (a) -> " \1 ". */
static neb_status rule(struct neb_chars *t, char_class a, char_class b, bool behind)
{
    struct neb_chars out = {0};
    NEB_TRY(room(&out, 3 * t->n + 1));
    for (size_t i = 0; i < t->n; i++) {
        int32_t c = t->c[i], next = i + 1 < t->n ? t->c[i + 1] : 0;
        bool hit = a(c) && (!b || (i + 1 < t->n && b(next)));
        if (!hit) {
            out.c[out.n++] = c;
            continue;
        }
        if (!b || !behind) out.c[out.n++] = ' ';
        out.c[out.n++] = c;
        out.c[out.n++] = ' ';
        if (!b) continue;
        out.c[out.n++] = next;
        if (behind) out.c[out.n++] = ' ';
        i++;
    }
    neb__free(t->c);
    *t = out;
    return NEB_OK;
}

/* Every occurrence of `from` becomes `to` (at most one character). */
static void replace(struct neb_chars *t, const char *from, int32_t to)
{
    size_t k = strlen(from), at = 0;
    for (size_t i = 0; i < t->n;) {
        size_t m = 0;
        while (m < k && i + m < t->n && t->c[i + m] == from[m]) m++;
        if (m < k) {
            t->c[at++] = t->c[i++];
            continue;
        }
        if (to) t->c[at++] = to;
        i += k;
    }
    t->n = at;
}

static neb_status rules_13a(struct neb_chars *t)
{
    NEB_TRY(rule(t, symbol_13a, NULL, false));
    NEB_TRY(rule(t, no_digit, stop, true));
    NEB_TRY(rule(t, stop, no_digit, false));
    return rule(t, digit, dash, true);
}

static neb_status split_13a(struct neb_chars *t)
{
    replace(t, "<skipped>", 0);
    replace(t, "-\n", 0);
    replace(t, "\n", ' ');
    replace(t, "&quot;", '"');
    replace(t, "&amp;", '&');
    replace(t, "&lt;", '<');
    replace(t, "&gt;", '>');
    NEB_TRY(room(t, t->n + 2));
    memmove(t->c + 1, t->c, t->n * sizeof *t->c);
    t->c[0] = t->c[t->n + 1] = ' ';
    t->n += 2;
    return rules_13a(t);
}

static neb_status split_intl(struct neb_chars *t)
{
    NEB_TRY(rule(t, no_number, punctuation, true));
    NEB_TRY(rule(t, punctuation, no_number, false));
    return rule(t, symbol, NULL, false);
}

/* sacreBLEU's table. Two of its ranges were meant to be U+20000 to U+2A6D6 and U+2F800 to U+2FA1D; as Python reads them they
 * are U+2001 to U+2A6D and U+2F81 to U+2FA1, and so they are here. */
static bool chinese(int32_t c)
{
    static const int32_t ranges[][2] = {
        {0x3400, 0x4DB5}, {0x4E00, 0x9FBB}, {0xF900, 0xFA2D}, {0xFA30, 0xFA6A}, {0xFA70, 0xFAD9},
        {0x2001, 0x2A6D}, {0x2F81, 0x2FA1}, {0xFF00, 0xFFEF}, {0x2E80, 0x2EFF}, {0x3000, 0x303F},
        {0x31C0, 0x31EF}, {0x2F00, 0x2FDF}, {0x2FF0, 0x2FFF}, {0x3100, 0x312F}, {0x31A0, 0x31BF},
        {0xFE10, 0xFE1F}, {0xFE30, 0xFE4F}, {0x3200, 0x33FF}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
    return false;
}

static neb_status split_zh(struct neb_chars *t)
{
    size_t front = 0;
    while (front < t->n && neb__chars_is_space(t->c[front])) front++;
    t->n -= front;
    memmove(t->c, t->c + front, t->n * sizeof *t->c);
    NEB_TRY(rule(t, chinese, NULL, false));
    return rules_13a(t);
}

static bool any(int32_t c)
{
    (void)c;
    return true;
}

neb_status neb__chars_split(struct neb_chars *t, enum neb_word_split split)
{
    while (t->n && neb__chars_is_space(t->c[t->n - 1])) t->n--;
    switch (split) {
    case NEB_WORDS_13A: return split_13a(t);
    case NEB_WORDS_INTL: return split_intl(t);
    case NEB_WORDS_ZH: return split_zh(t);
    case NEB_WORDS_CHAR: return rule(t, any, NULL, false);
    case NEB_WORDS_SPACE: break;
    }
    return NEB_OK;
}

neb_status neb__chars_split_parse(const char *name, enum neb_word_split *out)
{
    static const char *const names[] = {"none", "13a", "intl", "zh", "char"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum neb_word_split)i;
            return NEB_OK;
        }
    return neb__fail(NEB_ERR_CONFIG, "unknown tokenizer '%s' for scoring; use none, 13a, intl, zh or char",
                     name);
}
