/* new_text.c: see new_text.h.
 *
 * Without a file of the user's, the text is the manual of this program: 300 KB of English prose that every machine with
 * the program has. It is Markdown, so paragraphs are put together from their lines, and tables, code and headings are left
 * out. */
#include "cli/new_text.h"
#include "base/buf.h"
#include "cli/new_files.h"
#include "cli/new_parts.h"
#include "text/line_reader.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PARAGRAPH_LEAST = 40, PARAGRAPH_MAX = 1 << 16 };

/* ---- the manual -------------------------------------------------------------------------------------------------- */

/* Leaves out the marks of Markdown: * and `, and of [text](address) the address. */
static void append_plain(struct neb_buf *b, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strchr("*`[", p[i])) continue;
        if (p[i] == ']' && i + 1 < n && p[i + 1] == '(') {
            while (i < n && p[i] != ')') i++;
            continue;
        }
        (void)neb__buf_append(b, p + i, 1); /* at its limit a paragraph is cut */
    }
}

static void end_paragraph(struct neb_new_parts *s, struct neb_buf *b)
{
    if (b->len >= PARAGRAPH_LEAST && !memchr(b->data, '\t', b->len))
        neb__new_parts_line(s, (const char *)b->data, b->len);
    neb__buf_clear(b);
}

/* The length of "- " or "12. " at the start of a list's item, or 0. */
static size_t marker(const char *p, size_t n)
{
    size_t k = 0;
    if (n > 2 && p[0] == '-' && p[1] == ' ') return 2;
    while (k < n && isdigit((unsigned char)p[k])) k++;
    return k && k + 1 < n && p[k] == '.' && p[k + 1] == ' ' ? k + 2 : 0;
}

static void markdown_line(struct neb_new_parts *s, struct neb_buf *b, const char *p, size_t n)
{
    size_t indent = 0;
    while (indent < n && p[indent] == ' ') indent++;
    p += indent;
    n -= indent;
    if (!n || strchr("|#<!>", *p) || (indent >= 4 && !b->len)) {
        end_paragraph(s, b);
        return;
    }
    size_t mark = marker(p, n);
    if (mark) end_paragraph(s, b);
    if (b->len) (void)neb__buf_append(b, " ", 1);
    append_plain(b, p + mark, n - mark);
}

static void write_manual(struct neb_new_parts *s, const struct neb_new_file *manual)
{
    struct neb_buf b;
    bool code = false;
    neb__buf_init(&b, PARAGRAPH_MAX);
    for (const char *p = manual->bytes, *end = manual->end; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((stop ? stop : end) - p);
        bool fence = n >= 3 && !memcmp(p, "```", 3);
        code ^= fence;
        if (fence || code)
            end_paragraph(s, &b);
        else
            markdown_line(s, &b, p, n);
        p += n + 1;
    }
    end_paragraph(s, &b);
    neb__buf_free(&b);
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */

static neb_status write_file(struct neb_new_parts *s, const char *file)
{
    struct neb_line_reader *r;
    const char *line;
    size_t n;
    NEB_TRY(neb__line_reader_open(file, &r));
    neb_status status;
    while ((status = neb__line_reader_next(r, &line, &n)) == NEB_OK)
        if (n) neb__new_parts_line(s, line, n);
    neb__line_reader_close(r);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

neb_status neb__new_text(const char *dir, const char *file, struct neb_new_text *out)
{
    struct neb_new_parts s = {.out = out};
    *out = (struct neb_new_text){0};
    snprintf(out->source, sizeof out->source, "%s", file ? file : "the manual of nebula-i");
    neb_status status = neb__new_parts_open(&s, dir, "txt");
    if (status == NEB_OK && file) status = write_file(&s, file);
    if (status == NEB_OK && !file) write_manual(&s, neb__new_file("manual.md"));
    return neb__new_parts_close(&s, status);
}
