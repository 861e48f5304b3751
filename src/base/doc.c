/* doc.c: libyaml's events turned into paths. Anchors, tags and aliases are refused: a job file has no use for them, and
 * aliases are how small files become large. Limits: 1 MiB, depth 8, 4096 entries. */
#include "base/doc.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/nearest.h"

#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <yaml.h>

enum { MAX_FILE = 1 << 20, MAX_DEPTH = 8, MAX_ENTRIES = 4096, PATH = 256 };

struct level {
    bool list;
    int index;
    size_t length; /* of the path outside this level */
    bool want_value;
    bool scalars; /* a list of plain values so far */
};

struct walk {
    struct neb_doc *doc;
    const char *text; /* size bytes */
    size_t size;
    yaml_parser_t parser;
    struct level levels[MAX_DEPTH];
    int depth;
    char path[PATH];
    struct neb_buf joined;
};

/* The line where the key at `path` stands, as a value or as a section; 0: nowhere yet. */
static int line_of(const struct neb_doc *d, const char *path)
{
    size_t n = strlen(path);
    for (int i = 0; i < d->n; i++)
        if (!strncmp(d->list[i].path, path, n) && strchr(".[", d->list[i].path[n])) return d->list[i].line;
    return 0;
}

neb_status neb__doc_fail(const struct neb_doc *d, const char *path, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int line = path ? line_of(d, path) : 0;
    if (line) return neb__fail(NEB_ERR_CONFIG, "%s:%d: %s", d->file, line, text);
    return neb__fail(NEB_ERR_CONFIG, "%s: %s", d->file, text);
}

static neb_status at_line(const struct neb_doc *d, int line, const char *text)
{
    return neb__fail(NEB_ERR_CONFIG, "%s:%d: %s", d->file, line, text);
}

static neb_status add(struct neb_doc *d, const char *path, const char *value, int line)
{
    if (d->n == MAX_ENTRIES) return at_line(d, line, "the file has more than 4096 values");
    if (d->n == d->cap) {
        int cap = d->cap ? d->cap * 2 : 64;
        struct neb_doc_entry *list = neb__realloc(d->list, (size_t)cap * sizeof *list);
        if (!list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", d->file);
        d->list = list;
        d->cap = cap;
    }
    struct neb_doc_entry e = {neb__strdup(path), neb__strdup(value), line, false};
    if (!e.path || !e.value) {
        neb__free(e.path);
        neb__free(e.value);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", d->file);
    }
    d->list[d->n++] = e;
    return NEB_OK;
}

static const struct neb_doc_entry *entry(const struct neb_doc *d, const char *path)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->list[i].path, path)) return &d->list[i];
    return NULL;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static struct level *top(struct walk *w)
{
    return w->depth ? &w->levels[w->depth - 1] : NULL;
}

static neb_status extend_path(struct walk *w, int line, const char *fmt, ...)
{
    size_t at = strlen(w->path);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(w->path + at, sizeof w->path - at, fmt, ap);
    va_end(ap);
    return (size_t)n < sizeof w->path - at
               ? NEB_OK
               : at_line(w->doc, line, "the keys are too long, or nested too deeply");
}

/* A node that is an item of a list gets its index into the path. */
static neb_status enter_item(struct walk *w, int line)
{
    struct level *l = top(w);
    if (!l || !l->list) return NEB_OK;
    w->path[l->length] = 0;
    return extend_path(w, line, "[%d]", l->index++);
}

static neb_status open_level(struct walk *w, bool list, int line)
{
    NEB_TRY(enter_item(w, line));
    if (top(w) && top(w)->list) top(w)->scalars = false;
    if (w->depth == MAX_DEPTH) return at_line(w->doc, line, "sections are nested more than 8 deep");
    w->levels[w->depth++] = (struct level){.list = list, .length = strlen(w->path), .scalars = true};
    neb__buf_clear(&w->joined);
    return NEB_OK;
}

static neb_status close_level(struct walk *w, int line)
{
    struct level *l = top(w);
    w->path[l->length] = 0;
    if (l->list && l->scalars && w->joined.len) {
        NEB_TRY(add(w->doc, w->path, (char *)w->joined.data, line));
    }
    w->depth--;
    struct level *outer = top(w);
    if (outer && !outer->list) {
        w->path[outer->length] = 0;
        outer->want_value = false;
    }
    return NEB_OK;
}

static neb_status refuse_twice(const struct walk *w, int line)
{
    char text[PATH + 120];
    int first = line_of(w->doc, w->path);
    if (!first) return NEB_OK;
    snprintf(text, sizeof text, "the key '%s' stands already in line %d; a key may stand only once", w->path,
             first);
    return at_line(w->doc, line, text);
}

static neb_status scalar(struct walk *w, const char *text, size_t n, int line)
{
    struct level *l = top(w);
    if (!l) return at_line(w->doc, line, "a file of 'key: value' lines is needed");
    if (memchr(text, 0, n)) return at_line(w->doc, line, "the value holds a zero byte");
    if (l->list) {
        if (!l->scalars) return at_line(w->doc, line, "a list holds plain values or sections, not both");
        return neb__buf_printf(&w->joined, "%s%s", w->joined.len ? "," : "", text);
    }
    if (!l->want_value) {
        if (!n) return at_line(w->doc, line, "the key is empty");
        NEB_TRY(extend_path(w, line, "%s%s", *w->path ? "." : "", text));
        NEB_TRY(refuse_twice(w, line));
        l->want_value = true;
        return NEB_OK;
    }
    NEB_TRY(add(w->doc, w->path, text, line));
    w->path[l->length] = 0;
    l->want_value = false;
    return NEB_OK;
}

static neb_status event(struct walk *w, const yaml_event_t *e)
{
    int line = (int)e->start_mark.line + 1;
    switch (e->type) {
    case YAML_ALIAS_EVENT: return at_line(w->doc, line, "aliases are not allowed");
    case YAML_SCALAR_EVENT:
        if (e->data.scalar.anchor) return at_line(w->doc, line, "anchors are not allowed");
        return scalar(w, (const char *)e->data.scalar.value, e->data.scalar.length, line);
    case YAML_MAPPING_START_EVENT: return open_level(w, false, line);
    case YAML_SEQUENCE_START_EVENT: return open_level(w, true, line);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT: return close_level(w, line);
    default: return NEB_OK;
    }
}

/* ---- text that is not YAML --------------------------------------------------------------------------------------- */

/* What libyaml says, and what it means for the person who wrote the line. */
static const struct {
    const char *problem, *meaning;
} problems[] = {
    {"mapping values are not allowed in this context",
     "a ':' too many: indent this line as the ones beside it, or put quotes around a text that holds ': '"},
    {"could not find expected ':'", "this is not `key: value`: a ':' and a space are missing behind the key"},
    {"did not find expected key",
     "this line does not stand below the ones above it: give all keys of a section the same indentation"},
    {"did not find expected '-' indicator",
     "this line does not stand below the list above it: every item begins with '- ' in the same column"},
    {"did not find expected ',' or '}'",
     "a '{' is not closed: write '}' behind its last value, and ',' between them"},
    {"did not find expected ',' or ']'",
     "a '[' is not closed: write ']' behind its last value, and ',' between them"},
    {"found unexpected end of stream", "a quote is opened and never closed"},
    {"found character that cannot start any token",
     "a value cannot begin with this character: put quotes around the value"},
    {"did not find expected <document start>",
     "the file goes on behind its end: it must be one list of keys"},
};

/* The line has a tab among the blanks that it begins with. */
static bool tab_in_front(const struct walk *w, size_t line)
{
    const char *p = w->text, *end = w->text + w->size;
    for (; p && line; line--) {
        p = memchr(p, '\n', (size_t)(end - p));
        if (p) p++;
    }
    for (; p && p < end && (*p == ' ' || *p == '\t'); p++)
        if (*p == '\t') return true;
    return false;
}

/* The problem was noticed at the end of something: the line where that began is the one to mend. */
static bool names_its_end(const char *problem)
{
    return strstr(problem, "expected ','") || strstr(problem, "end of stream") ||
           strstr(problem, "expected ':'");
}

static neb_status not_yaml(const struct walk *w)
{
    const yaml_parser_t *p = &w->parser;
    size_t line = p->problem_mark.line;
    const char *problem = p->problem ? p->problem : "this is not YAML";
    if (p->error == YAML_READER_ERROR)
        return neb__fail(NEB_ERR_CONFIG, "%s: the file is not UTF-8 text: %s at byte %zu", w->doc->file,
                         problem, p->problem_offset);
    if (tab_in_front(w, line))
        return at_line(w->doc, (int)line + 1,
                       "a tab is in front of this line: YAML allows only spaces there");
    if (p->context && names_its_end(problem)) line = p->context_mark.line;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        if (!strcmp(problem, problems[i].problem)) problem = problems[i].meaning;
    return at_line(w->doc, (int)line + 1, problem);
}

static neb_status walk(struct walk *w)
{
    for (bool done = false; !done;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&w->parser, &e)) return not_yaml(w);
        done = e.type == YAML_STREAM_END_EVENT;
        neb_status status = event(w, &e);
        yaml_event_delete(&e);
        NEB_TRY(status);
    }
    return NEB_OK;
}

neb_status neb__doc_parse(const char *name, const char *text, size_t n, struct neb_doc *out)
{
    struct neb_doc d = {.file = neb__strdup(name)};
    struct walk w = {.doc = &d, .text = text, .size = n};
    if (!d.file || !yaml_parser_initialize(&w.parser)) {
        neb__free(d.file);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", name);
    }
    neb__buf_init(&w.joined, MAX_FILE);
    yaml_parser_set_input_string(&w.parser, (const unsigned char *)text, n);
    neb_status status = n > MAX_FILE ? at_line(&d, 1, "the file is larger than a megabyte") : walk(&w);
    yaml_parser_delete(&w.parser);
    neb__buf_free(&w.joined);
    if (status != NEB_OK)
        neb__doc_free(&d);
    else
        *out = d;
    return status;
}

neb_status neb__doc_read(const char *file, struct neb_doc *out)
{
    struct neb_buf b;
    neb__buf_init(&b, MAX_FILE);
    neb_status status = neb__file_read(file, &b);
    if (status == NEB_OK) status = neb__doc_parse(file, b.data ? (char *)b.data : "", b.len, out);
    neb__buf_free(&b);
    return status;
}

void neb__doc_free(struct neb_doc *d)
{
    for (int i = 0; i < d->n; i++) {
        neb__free(d->list[i].path);
        neb__free(d->list[i].value);
    }
    neb__free(d->list);
    neb__free(d->file);
    *d = (struct neb_doc){0};
}

/* ---- use ------------------------------------------------------------------------------------------------------- */

neb_status neb__doc_override(struct neb_doc *d, const char *assignment)
{
    const char *eq = strchr(assignment, '=');
    char path[PATH];
    if (!eq || eq == assignment || (size_t)(eq - assignment) >= sizeof path)
        return neb__fail(NEB_ERR_CONFIG, "'%s' is not key=value, such as train.steps=100", assignment);
    snprintf(path, sizeof path, "%.*s", (int)(eq - assignment), assignment);
    struct neb_doc_entry *e = (struct neb_doc_entry *)(uintptr_t)entry(d, path);
    if (!e) return add(d, path, eq + 1, 0);
    char *value = neb__strdup(eq + 1);
    if (!value) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", assignment);
    neb__free(e->value);
    e->value = value;
    e->line = 0;
    return NEB_OK;
}

int neb__doc_items(const struct neb_doc *d, const char *path)
{
    int count = 0;
    size_t n = strlen(path);
    for (int i = 0; i < d->n; i++) {
        int index;
        if (!strncmp(d->list[i].path, path, n) && sscanf(d->list[i].path + n, "[%d]", &index) == 1 &&
            index >= count && index < INT_MAX)
            count = index + 1;
    }
    return count;
}

const char *neb__doc_get(struct neb_doc *d, const char *path)
{
    struct neb_doc_entry *e = (struct neb_doc_entry *)(uintptr_t)entry(d, path);
    if (!e) return NULL;
    e->used = true;
    return e->value;
}

/* The rest of the path behind the prefix; NULL when the path is not under it. */
static const char *under(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);
    if (!n) return path;
    return !strncmp(path, prefix, n) && path[n] == '.' ? path + n + 1 : NULL;
}

static bool listed(const char *const *names, const char *key, size_t n)
{
    for (; names && *names; names++)
        if (strlen(*names) == n && !strncmp(*names, key, n)) return true;
    return false;
}

static neb_status unknown(const struct neb_doc *d, const struct neb_doc_entry *e, const char *key,
                          const struct neb_opt *table, const char *const *others)
{
    char word[PATH], hint[NEB_HINT], text[400];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(key, ".["), key);
    struct neb_nearest n = {.word = word, .within = 4};
    for (const struct neb_opt *o = table; o->name; o++) neb__nearest_try(&n, o->name);
    for (; others && *others; others++) neb__nearest_try(&n, *others);
    neb__nearest_hint(&n, hint);
    snprintf(text, sizeof text, "unknown key '%.100s'%s", e->path, hint);
    return e->line ? at_line(d, e->line, text) : neb__fail(NEB_ERR_CONFIG, "%s", text);
}

neb_status neb__doc_bind(struct neb_doc *d, const char *prefix, const struct neb_opt *table, void *obj,
                         const char *const *others)
{
    for (int i = 0; i < d->n; i++) {
        struct neb_doc_entry *e = &d->list[i];
        const char *key = under(e->path, prefix);
        if (!key) continue;
        size_t n = strcspn(key, ".[");
        if (listed(others, key, n)) continue;
        const struct neb_opt *o = table;
        while (o->name && (strlen(o->name) != n || strncmp(o->name, key, n))) o++;
        if (!o->name || key[n]) return unknown(d, e, key, table, others);
        char why[NEB_OPT_WHY];
        neb_status status = neb__opts_try(table, obj, o->name, e->value, why);
        if (status == NEB_ERR_CONFIG) {
            char text[480];
            snprintf(text, sizeof text, "%.100s: '%.100s' is not %s", e->path, e->value, why);
            return e->line ? at_line(d, e->line, text) : neb__fail(status, "%s", text);
        }
        NEB_TRY(status);
        e->used = true;
    }
    return NEB_OK;
}

static neb_status wrong_shape(const struct neb_doc *d, const char *path, bool list,
                              const struct neb_doc_entry *e)
{
    const char *needed =
        list ? "a list of sections, each `- key: value …`," : "a section of `key: value` lines";
    bool plain = !e->path[strlen(path)];
    if (plain)
        return neb__doc_fail(d, e->path, "%s: %s is needed here, not '%.100s'", path, needed, e->value);
    return neb__doc_fail(d, e->path, "%s: %s is needed here", path, needed);
}

neb_status neb__doc_section(struct neb_doc *d, const char *path, bool list)
{
    size_t n = strlen(path);
    for (int i = 0; i < d->n; i++) {
        struct neb_doc_entry *e = &d->list[i];
        if (strncmp(e->path, path, n) || !strchr(".[", e->path[n])) continue;
        if (!e->path[n] && !*e->value)
            e->used = true; /* a section without keys */
        else if (e->path[n] != (list ? '[' : '.'))
            return wrong_shape(d, path, list, e);
    }
    return NEB_OK;
}

neb_status neb__doc_all_used(const struct neb_doc *d)
{
    for (int i = 0; i < d->n; i++)
        if (!d->list[i].used) return neb__doc_fail(d, d->list[i].path, "unknown key '%s'", d->list[i].path);
    return NEB_OK;
}

neb_status neb__doc_copy(const struct neb_opt *table, const void *from, void *to)
{
    struct neb_doc doc = {0};
    struct neb_buf text; /* as in a file: one parser, and texts become owned copies */
    neb__buf_init(&text, 1 << 20);
    neb_status status = neb__opts_write(table, from, "", &text);
    if (status == NEB_OK && text.len)
        status = neb__doc_parse("options", (const char *)text.data, text.len, &doc);
    if (status == NEB_OK) status = neb__doc_bind(&doc, "", table, to, NULL);
    neb__doc_free(&doc);
    neb__buf_free(&text);
    return status;
}
