/* interface_text.c: see interface_text.h. Strings are UTF-8; a byte above 127 counts as part of a letter wherever only
 * ASCII matters. */
#include "text/interface_text.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_TAG = 80 };
static const double least_letters = 0.6; /* of the signs that are not white space */

struct writer {
    char *out;
    size_t size, n;
    bool full;
};

static void put(struct writer *w, const char *bytes, size_t n)
{
    if (w->n + n >= w->size) {
        w->full = true;
        return;
    }
    memcpy(w->out + w->n, bytes, n);
    w->n += n;
    w->out[w->n] = 0;
}

static void put_space(struct writer *w)
{
    if (w->n && w->out[w->n - 1] != ' ') put(w, " ", 1);
}

static void trim_end(struct writer *w)
{
    while (w->n && w->out[w->n - 1] == ' ') w->out[--w->n] = 0;
}

static bool letter_byte(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c > 127;
}

/* ---- tidy ---------------------------------------------------------------------------------------------- */

/* Bytes of the tag that begins here, such as <b>, </span> or <a href="…">; 0: none does. */
static size_t tag_length(const char *p)
{
    if (*p != '<' || !(isalpha((unsigned char)p[1]) || p[1] == '/')) return 0;
    for (size_t n = 2; p[n] && n < MAX_TAG; n++)
        if (p[n] == '>') return n + 1;
    return 0;
}

/* &amp; and its like: the string is source of a page, not text. */
static bool is_entity(const char *p)
{
    size_t n = 1;
    while (p[n] == '#' || isalnum((unsigned char)p[n])) n++;
    return *p == '&' && n > 2 && p[n] == ';';
}

static bool is_accelerator(const char *p, const char *begin)
{
    bool at_edge = p == begin || p[-1] == ' ' || p[-1] == '\n' || p[-1] == '>' || letter_byte(p[-1]);
    return strchr("_&~", *p) && at_edge && letter_byte(p[1]);
}

/* Bytes of the white space that begins here, a written-out \n and \t included; 0: none does. */
static size_t space_length(const char *p)
{
    if (strchr(" \t\r\n\v\f", *p)) return 1;
    if (!strncmp(p, "\\n", 2) || !strncmp(p, "\\t", 2) || !strncmp(p, "\xC2\xA0", 2)) return 2;
    return strncmp(p, "\xE2\x80\xAF", 3) ? 0 : 3; /* narrow no-break space */
}

static bool mostly_letters(const char *text)
{
    size_t letters = 0, signs = 0;
    for (const char *p = text; *p; p++) {
        bool follows = ((unsigned char)*p & 0xC0) == 0x80; /* a character's later bytes */
        if (*p == ' ' || follows) continue;
        signs++;
        letters += isalpha((unsigned char)*p) || (unsigned char)*p > 127;
    }
    return signs && (double)letters >= least_letters * (double)signs;
}

bool neb__interface_tidy(const char *string, char out[NEB_INTERFACE_TEXT])
{
    struct writer w = {.out = out, .size = NEB_INTERFACE_TEXT};
    out[0] = 0;
    for (const char *p = string; *p && !w.full;) {
        size_t tag = tag_length(p), space = space_length(p);
        if (is_entity(p)) return false;
        if (tag || space) {
            put_space(&w);
            p += tag ? tag : space;
        } else if (is_accelerator(p, string)) {
            p++;
        } else if (!strncmp(p, "\xE2\x80\xA6", 3)) {
            put(&w, "...", 3);
            p += 3;
        } else {
            put(&w, p++, 1);
        }
    }
    trim_end(&w);
    return !w.full && mostly_letters(out);
}

/* ---- normalise ----------------------------------------------------------------------------------------- */

/* Bytes of the placeholder that begins here; 0: none does. */
static size_t placeholder_length(const char *p)
{
    size_t n = 1;
    if (*p == '{') {
        n = strcspn(p, "} ");
        return p[n] == '}' ? n + 1 : 0;
    }
    if (*p != '%' && *p != '$') return 0;
    if (p[n] == '(' || p[n] == '{') n += strcspn(p + n, ")} ");
    if (p[n] == ')' || p[n] == '}') n++;
    while (isalnum((unsigned char)p[n]) || (p[n] && strchr("$_.#+-", p[n]))) n++;
    return n;
}

/* An apostrophe inside a word is left out, and the word stays one. */
static size_t apostrophe_length(const char *p)
{
    if (*p == '\'') return 1;
    return strncmp(p, "\xE2\x80\x99", 3) ? 0 : 3;
}

static bool is_letter(utf8proc_int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_MC;
}

int neb__interface_normalise(const char *tidy, char out[NEB_INTERFACE_FORM])
{
    struct writer w = {.out = out, .size = NEB_INTERFACE_FORM};
    int words = 0;
    bool inside = false;
    out[0] = 0;
    for (const char *p = tidy; *p;) {
        utf8proc_int32_t c = 0;
        utf8proc_ssize_t step = utf8proc_iterate((const utf8proc_uint8_t *)p, -1, &c);
        size_t other = placeholder_length(p);
        if (!other && inside) other = apostrophe_length(p);
        bool letter = !other && step > 0 && is_letter(c);
        if (letter) {
            utf8proc_uint8_t bytes[4];
            if (!inside) words++, put_space(&w);
            put(&w, (const char *)bytes, (size_t)utf8proc_encode_char(utf8proc_tolower(c), bytes));
        }
        inside = letter || (inside && other && apostrophe_length(p));
        if (!other) other = step > 0 ? (size_t)step : 1;
        p += other;
    }
    trim_end(&w);
    return words;
}
