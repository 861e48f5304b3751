/* help_pages_parse.c: extracts paragraphs from the help pages that LibreOffice ships in every language.
 *
 * A page's text lies in <div id="DisplayArea">. The translations of a page differ in text only: paragraphs
 * (p) and headings (h1 … h6) carry the same ids. A phrase that depends on the operating system has several
 * hidden variants; the one whose id starts with "default" is taken. */
#include "text/help_pages_parse.h"
#include "base/buf.h"
#include "base/file.h"

#include <libxml/HTMLparser.h>
#include <stdbool.h>
#include <string.h>

enum { MAX_PAGE = 16 << 20, MAX_TEXT = 1 << 16, MAX_DEPTH = 200 };

struct walk {
    neb_paragraph_fn fn;
    void *arg;
    struct neb_buf text;
};

static const char *attribute(const xmlNode *node, const char *name)
{
    for (const xmlAttr *a = node->properties; a; a = a->next)
        if (!strcmp((const char *)a->name, name) && a->children && a->children->content)
            return (const char *)a->children->content;
    return NULL;
}

static bool is_variant(const xmlNode *node)
{
    const char *hidden = attribute(node, "hidden"), *id = attribute(node, "id");
    return hidden && !(id && !strncmp(id, "default", 7));
}

/* Appends the text below `node`, white space folded into single spaces. */
static neb_status gather(struct neb_buf *out, const xmlNode *node, int depth)
{
    for (const xmlNode *c = node->children; c; c = c->next) {
        if (c->type == XML_ELEMENT_NODE) {
            bool line_break = !strcmp((const char *)c->name, "br");
            if (line_break && out->len && out->data[out->len - 1] != ' ')
                NEB_TRY(neb__buf_append(out, " ", 1));
            if (depth < MAX_DEPTH && !is_variant(c)) NEB_TRY(gather(out, c, depth + 1));
        }
        if (c->type != XML_TEXT_NODE || !c->content) continue;
        for (const char *p = (const char *)c->content; *p; p++) {
            bool nbsp = !strncmp(p, "\xC2\xA0", 2), space = nbsp || strchr(" \t\r\n\v\f", *p);
            if (space && (!out->len || out->data[out->len - 1] == ' ')) {
                p += nbsp;
                continue;
            }
            NEB_TRY(neb__buf_append(out, space ? " " : p, 1));
            p += nbsp;
        }
    }
    return NEB_OK;
}

static bool is_paragraph(const xmlNode *node)
{
    const char *n = (const char *)node->name;
    return !strcmp(n, "p") || (n[0] == 'h' && n[1] >= '1' && n[1] <= '6' && !n[2]);
}

static neb_status paragraph(struct walk *w, const xmlNode *node, const char *id)
{
    neb__buf_clear(&w->text);
    neb_status status = gather(&w->text, node, 0);
    if (status == NEB_ERR_NOSPACE) return NEB_OK; /* longer than any sentence */
    NEB_TRY(status);
    while (w->text.len && w->text.data[w->text.len - 1] == ' ') w->text.len--;
    if (!w->text.len) return NEB_OK;
    NEB_TRY(neb__buf_append(&w->text, "", 1));
    return w->fn(w->arg, id, (const char *)w->text.data);
}

static neb_status visit(struct walk *w, const xmlNode *node, int depth)
{
    for (; node; node = node->next) {
        if (node->type != XML_ELEMENT_NODE) continue;
        const char *id = attribute(node, "id");
        if (id && is_paragraph(node))
            NEB_TRY(paragraph(w, node, id));
        else if (depth < MAX_DEPTH)
            NEB_TRY(visit(w, node->children, depth + 1));
    }
    return NEB_OK;
}

static const xmlNode *find_area(const xmlNode *node, int depth)
{
    for (; node; node = node->next) {
        if (node->type != XML_ELEMENT_NODE) continue;
        const char *id = attribute(node, "id");
        if (id && !strcmp(id, "DisplayArea")) return node;
        const xmlNode *found = depth < MAX_DEPTH ? find_area(node->children, depth + 1) : NULL;
        if (found) return found;
    }
    return NULL;
}

neb_status neb__help_page_bytes(const char *html, size_t n, neb_paragraph_fn fn, void *arg)
{
    if (n > MAX_PAGE) return neb__fail(NEB_ERR_LIMIT, "the page is too large (%zu bytes)", n);
    int quiet = HTML_PARSE_RECOVER | HTML_PARSE_NOERROR | HTML_PARSE_NOWARNING | HTML_PARSE_NONET;
    htmlDocPtr doc = htmlReadMemory(html, (int)n, NULL, "UTF-8", quiet);
    if (!doc) return neb__fail(NEB_ERR_CORRUPT, "not an HTML page");
    struct walk w = {.fn = fn, .arg = arg};
    neb__buf_init(&w.text, MAX_TEXT);
    const xmlNode *area = find_area(xmlDocGetRootElement(doc), 0);
    neb_status status = area ? visit(&w, area->children, 0) : NEB_OK;
    neb__buf_free(&w.text);
    xmlFreeDoc(doc);
    return status;
}

neb_status neb__help_page(const char *path, neb_paragraph_fn fn, void *arg)
{
    struct neb_buf file;
    neb__buf_init(&file, MAX_PAGE);
    neb_status status = neb__file_read(path, &file);
    if (status == NEB_OK) status = neb__help_page_bytes((const char *)file.data, file.len, fn, arg);
    neb__buf_free(&file);
    return status;
}
