/* jinja_skip.c: what does not run. A branch that is not taken is another model's, another tool's: its tags are counted, so that
 * its end is found, and nothing in them is judged. In a tag, texts and brackets are respected: a `%}` in them ends nothing. */
#include "text/jinja_parts.h"

#include <string.h>

enum { KEEP, LINE_END, ALL }; /* neb_jinja.after */

static neb_status skip_text(struct neb_jinja *r)
{
    const char quote = r->text[r->at++];
    while (r->at < r->n && r->text[r->at] != quote) r->at += r->text[r->at] == '\\' ? 2 : 1;
    if (r->at < r->n) {
        r->at++;
        return NEB_OK;
    }
    r->at = r->n;
    return neb__jinja_malformed(r, "the end of a text");
}

neb_status neb__jinja_skip_tag(struct neb_jinja *r, char end)
{
    const size_t begin = r->at;
    int open = 0;
    while (r->at + 1 < r->n) {
        const char c = r->text[r->at];
        if (c == '\'' || c == '"') {
            NEB_TRY(skip_text(r));
            continue;
        }
        if (!open && c == end && r->text[r->at + 1] == '}') {
            const char sign = r->at > begin ? r->text[r->at - 1] : 0;
            r->after = sign == '-' ? ALL : end == '%' && sign != '+' ? LINE_END : KEEP;
            r->at += 2;
            return NEB_OK;
        }
        if (strchr("([{", c)) open++;
        if (open && strchr(")]}", c)) open--;
        r->at++;
    }
    return neb__jinja_malformed(r, end == '%' ? "'%}'" : "'}}'");
}

neb_status neb__jinja_raw(struct neb_jinja *r, struct neb_buf *out)
{
    NEB_TRY(neb__jinja_tag_end(r, "%}"));
    for (size_t from = r->at; r->at + 1 < r->n; r->at++) {
        const size_t at = r->at;
        if (r->text[at] != '{' || r->text[at + 1] != '%') continue;
        r->at += 2;
        neb__jinja_sign(r);
        if (neb__jinja_take_word(r, "endraw")) {
            if (out) NEB_TRY(neb__buf_append(out, r->text + from, at - from));
            return neb__jinja_tag_end(r, "%}");
        }
        r->at = at;
    }
    return neb__jinja_malformed(r, "'endraw'");
}

static bool opens(const char *name)
{
    static const char *const words[] = {"if",     "for",  "macro",      "call",
                                        "filter", "with", "autoescape", "block"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i], name)) return true;
    return false;
}

/* A statement, behind its name; *open: blocks that it is in. */
static neb_status skip_statement(struct neb_jinja *r, const char *name, int *open)
{
    const size_t begin = r->at;
    if (!strcmp(name, "raw")) return neb__jinja_raw(r, NULL);
    NEB_TRY(neb__jinja_skip_tag(r, '%'));
    const bool assigns = memchr(r->text + begin, '=', r->at - begin) != NULL;
    if (opens(name) || (!strcmp(name, "set") && !assigns))
        ++*open;
    else if (!strncmp(name, "end", 3) && strcmp(name, "endgeneration"))
        --*open;
    return NEB_OK;
}

neb_status neb__jinja_skip_block(struct neb_jinja *r, const char *const *until, char met[NEB_JINJA_NAME])
{
    for (int open = 0;;) {
        char name[NEB_JINJA_NAME];
        NEB_TRY(neb__jinja_plain_text(r, false));
        if (r->at >= r->n || open < 0) return neb__jinja_malformed(r, *until);
        NEB_TRY(neb__jinja_step(r));
        if (r->text[r->at + 1] == '#') {
            NEB_TRY(neb__jinja_comment(r));
            continue;
        }
        const bool output = r->text[r->at + 1] == '{';
        r->at += 2;
        neb__jinja_sign(r);
        if (output) {
            NEB_TRY(neb__jinja_skip_tag(r, '}'));
            continue;
        }
        NEB_TRY(neb__jinja_name(r, name));
        for (const char *const *u = until; !open && *u; u++)
            if (!strcmp(*u, name)) {
                memcpy(met, name, sizeof name);
                return NEB_OK;
            }
        NEB_TRY(skip_statement(r, name, &open));
    }
}
