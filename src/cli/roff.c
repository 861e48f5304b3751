/* roff.c: escapes and line breaks of a man page's source.
 *
 * A line that begins with a dot or an apostrophe would be a request, a backslash begins an escape, and a plain - may be
 * printed as a hyphen, which no shell takes for an option. Other characters than ASCII go by their number, so that the page
 * reads the same whatever the encoding of the reader's formatter. Source lines are kept short, as formatters ask for. */
#include "cli/roff.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LINE = 72 };

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* The character at *text in UTF-8; *text moves behind it. */
static uint32_t next_character(const char **text)
{
    const unsigned char *p = (const unsigned char *)*text;
    int more = 0;
    uint32_t c = *p;
    if (c >= 0xf0)
        c &= 7, more = 3;
    else if (c >= 0xe0)
        c &= 15, more = 2;
    else if (c >= 0xc0)
        c &= 31, more = 1;
    for (p++; more && (*p & 0xc0) == 0x80; more--) c = c << 6 | (*p++ & 63);
    *text = (const char *)p;
    return c;
}

static void put_character(FILE *to, uint32_t c)
{
    static const char special[] = "\\-'^~`\"";
    static const char *const escaped[] = {"\\e", "\\-", "\\(aq", "\\(ha", "\\(ti", "\\(ga", "\\(dq"};
    const char *found = c < 128 && c ? strchr(special, (int)c) : NULL;
    if (found)
        fputs(escaped[found - special], to);
    else if (c < 128)
        fputc((int)c, to);
    else if (c == 0x2026)
        fputs("\\&...", to); /* a terminal without Unicode has no ellipsis */
    else
        fprintf(to, "\\[u%04X]", (unsigned)c);
}

static void put_text(FILE *to, const char *text, size_t n)
{
    for (const char *end = text + n; text < end;) put_character(to, next_character(&text));
}

/* ---- prose ------------------------------------------------------------------------------------------------------- */

struct prose {
    FILE *to;
    int column; /* 0: a line begins */
    bool bold;
};

static void end_line(struct prose *p)
{
    if (p->column) fputc('\n', p->to);
    p->column = 0;
}

static void put_word(struct prose *p, const char *word, size_t n)
{
    if (p->column && p->column + (int)n >= LINE) end_line(p);
    if (p->column) fputc(' ', p->to);
    if (!p->column && (*word == '.' || *word == '\'')) fputs("\\&", p->to);
    p->column += (int)n + 1;
    for (const char *end = word + n; word < end;) {
        if (*word != '`') {
            put_character(p->to, next_character(&word));
            continue;
        }
        p->bold = !p->bold;
        fputs(p->bold ? "\\fB" : "\\fR", p->to);
        word++;
    }
}

void neb__roff_text(FILE *to, const char *text)
{
    struct prose p = {.to = to};
    while (*text) {
        size_t space = strspn(text, " \n"), word = strcspn(text + space, " \n");
        if (p.column && space > 1 && text[0] == '\n' && text[1] == '\n') {
            end_line(&p);
            fputs(".PP\n", to);
        }
        if (word) put_word(&p, text + space, word);
        text += space + word;
    }
    end_line(&p);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static size_t length_of_name(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || (s[n] && strchr("._-", s[n]))) n++;
    return n;
}

/* How many bytes at `s` are one option or one name in capitals, and the font that they have; 0: neither. */
static size_t special_part(const char *s, const char **font)
{
    bool option = *s == '-', capitals = isupper((unsigned char)s[0]) &&
                                        (isupper((unsigned char)s[1]) || !isalnum((unsigned char)s[1]));
    *font = option ? "\\fB" : "\\fI";
    return option || capitals ? length_of_name(s) : 0;
}

static void put_command(FILE *to, const char *lead, const char *words)
{
    if (*lead) {
        fputs("\\fB", to);
        put_text(to, lead, strlen(lead));
        fputs("\\fR", to);
    }
    if (*lead && *words) fputc(' ', to);
    for (bool begins = true; *words; begins = !isalnum((unsigned char)words[-1])) {
        const char *font;
        size_t n = begins ? special_part(words, &font) : 0;
        if (n) {
            fputs(font, to);
            put_text(to, words, n);
            fputs("\\fR", to);
            words += n;
        } else {
            put_character(to, next_character(&words));
        }
    }
    fputc('\n', to);
}

void neb__roff_usage(FILE *to, const char *lead, const char *words)
{
    put_command(to, lead, words);
}

void neb__roff_break(FILE *to)
{
    fputs(".br\n", to);
}

void neb__roff_item(FILE *to, const char *lead, const char *words)
{
    fputs(".TP\n", to);
    put_command(to, lead, words);
}

/* ---- the frame --------------------------------------------------------------------------------------------------- */

void neb__roff_title(FILE *to, const char *page, int number)
{
    fprintf(to, ".\\\" Made by `nebula-i manual`.\n.TH ");
    for (; *page; page++) put_character(to, (uint32_t)toupper((unsigned char)*page));
    fprintf(to, " %d %s \"nebula\\-i %s\" \"Nebula\\-I\"\n", number, NEB_RELEASED, NEB_VERSION);
}

void neb__roff_section(FILE *to, const char *name)
{
    fprintf(to, ".SH %s\n", name);
}

void neb__roff_subsection(FILE *to, const char *name)
{
    fputs(".SS \"", to);
    put_text(to, name, strlen(name));
    fputs("\"\n", to);
}
