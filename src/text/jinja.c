/* jinja.c: templates: text, tags and blocks.
 *
 * A template is text with `{{ expressions }}`, `{% statements %}` and `{# comments #}`. A block runs up to the tag that ends
 * it; a loop goes back to where its body began. White space follows what chat templates are written for: the first line end
 * behind a statement or comment vanishes, and so do blanks in front of one that begins a line; `-` takes all white space on
 * its side, `+` none. */
#include "text/jinja.h"
#include "text/jinja_parts.h"

#include <string.h>

enum { STEPS = 1 << 20 };
enum { KEEP, LINE_END, ALL }; /* neb_jinja.after */

static int line_of(const struct neb_jinja *r)
{
    int line = 1;
    for (size_t i = 0; i < r->at && i < r->n; i++) line += r->text[i] == '\n';
    return line;
}

neb_status neb__jinja_malformed(const struct neb_jinja *r, const char *expected)
{
    return neb__fail(NEB_ERR_CORRUPT, "chat template, line %d: %s expected before '%.*s'", line_of(r),
                     expected, (int)(r->n - r->at < 20 ? r->n - r->at : 20), r->text + r->at);
}

neb_status neb__jinja_unknown(const struct neb_jinja *r, const char *what, const char *name)
{
    return neb__fail(
        NEB_ERR_UNSUPPORTED,
        "chat template, line %d: the %s '%.40s' is not known here; choose a template with --template",
        line_of(r), what, name);
}

neb_status neb__jinja_step(struct neb_jinja *r)
{
    if (r->steps-- > 0) return NEB_OK;
    return neb__fail(NEB_ERR_RANGE, "chat template, line %d: it does not come to an end", line_of(r));
}

/* ---- text between tags ----------------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next tag at or behind `at`; r->n: there is none. */
static size_t next_tag(const struct neb_jinja *r)
{
    for (size_t i = r->at; i + 1 < r->n; i++)
        if (r->text[i] == '{' && strchr("{%#", r->text[i + 1])) return i;
    return r->n;
}

/* Where the text in front of a tag ends. */
static size_t text_end(const struct neb_jinja *r, size_t from, size_t tag)
{
    const char sign = tag + 2 < r->n ? r->text[tag + 2] : 0;
    size_t end = tag;
    if (tag == r->n || sign == '+') return end;
    if (sign == '-')
        while (end > from && is_space(r->text[end - 1])) end--;
    else if (r->text[tag + 1] != '{') {
        size_t k = end;
        while (k > 0 && (r->text[k - 1] == ' ' || r->text[k - 1] == '\t')) k--;
        if (!k || r->text[k - 1] == '\n') end = k > from ? k : from;
    }
    return end;
}

/* Writes the text up to the next tag and goes there. */
static neb_status plain_text(struct neb_jinja *r, bool live)
{
    const size_t tag = next_tag(r);
    size_t from = r->at;
    if (r->after == LINE_END && from < tag && r->text[from] == '\r' && from + 1 < tag &&
        r->text[from + 1] == '\n')
        from++;
    if (r->after == LINE_END && from < tag && r->text[from] == '\n') from++;
    while (r->after == ALL && from < tag && is_space(r->text[from])) from++;
    const size_t end = text_end(r, from, tag);
    r->at = tag;
    r->after = KEEP;
    return live && end > from ? neb__buf_append(r->out, r->text + from, end - from) : NEB_OK;
}

/* Takes the end of a tag: `%}` or `}}`. */
static neb_status tag_end(struct neb_jinja *r, const char *end)
{
    neb__jinja_space(r);
    r->after = *end == '%' ? LINE_END : KEEP;
    if (r->at < r->n && (r->text[r->at] == '-' || r->text[r->at] == '+') && r->at + 1 < r->n &&
        r->text[r->at + 1] == *end)
        r->after = r->text[r->at++] == '-' ? ALL : KEEP;
    return neb__jinja_take(r, end) ? NEB_OK : neb__jinja_malformed(r, end);
}

static neb_status comment(struct neb_jinja *r)
{
    size_t i = r->at + 2;
    while (i + 1 < r->n && (r->text[i] != '#' || r->text[i + 1] != '}')) i++;
    if (i + 1 >= r->n) return neb__jinja_malformed(r, "the end of a comment");
    r->after = r->text[i - 1] == '-' && i > r->at + 2 ? ALL : LINE_END;
    r->at = i + 2;
    return NEB_OK;
}

static neb_status output(struct neb_jinja *r, bool live)
{
    json_t *v;
    r->at += 2;
    if (r->at < r->n && (r->text[r->at] == '-' || r->text[r->at] == '+')) r->at++;
    NEB_TRY(neb__jinja_expression(r, live, &v));
    neb_status status = tag_end(r, "}}");
    if (status == NEB_OK && live) status = neb__jinja_print(v, r->out);
    json_decref(v);
    return status;
}

/* ---- statements --------------------------------------------------------------------------------------------------- */

static neb_status block(struct neb_jinja *r, bool live, const char *const *until, char met[NEB_JINJA_NAME]);

static neb_status if_block(struct neb_jinja *r, bool live)
{
    static const char *const until[] = {"elif", "else", "endif", NULL};
    bool done = false;
    char met[NEB_JINJA_NAME] = "if";
    while (strcmp(met, "endif")) {
        json_t *v = NULL;
        const bool last = !strcmp(met, "else");
        if (!last) NEB_TRY(neb__jinja_expression(r, live && !done, &v));
        const bool runs = live && !done && (last || neb__jinja_true(v));
        json_decref(v);
        NEB_TRY(tag_end(r, "%}"));
        NEB_TRY(block(r, runs, last ? until + 2 : until, met));
        done |= runs;
    }
    return tag_end(r, "%}");
}

/* A for-loop while it is read: where its condition and body begin. */
struct loop {
    char item[NEB_JINJA_NAME];
    size_t condition, body; /* condition 0: there is none */
    int after;
    json_t *list; /* those items for which the condition holds */
};

static neb_status enter(struct neb_jinja *r)
{
    if (r->scopes >= NEB_JINJA_DEPTH)
        return neb__fail(NEB_ERR_RANGE, "chat template: its loops are too deep");
    if (!(r->scope[r->scopes] = json_object()))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    r->scopes++;
    return NEB_OK;
}

static void leave(struct neb_jinja *r)
{
    json_decref(r->scope[--r->scopes]);
}

static neb_status declare(struct neb_jinja *r, const char *name, json_t *v)
{
    json_t *scope = r->scope[r->scopes - 1];
    if (v ? json_object_set(scope, name, v) : (json_object_del(scope, name), 0))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    return NEB_OK;
}

/* Keeps the items of `all` for which the loop's condition holds. */
static neb_status choose_items(struct neb_jinja *r, struct loop *l, const json_t *all)
{
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *item = json_array_get(all, i), *v = NULL;
        bool keep = true;
        NEB_TRY(neb__jinja_step(r));
        if (l->condition) {
            NEB_TRY(enter(r));
            r->at = l->condition;
            neb_status status = declare(r, l->item, item);
            if (status == NEB_OK) status = neb__jinja_plain_expression(r, true, &v);
            leave(r);
            NEB_TRY(status);
            keep = neb__jinja_true(v);
            json_decref(v);
        }
        if (keep && json_array_append(l->list, item))
            return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    }
    return NEB_OK;
}

static neb_status loop_head(struct neb_jinja *r, bool live, struct loop *l)
{
    json_t *all = NULL, *v = NULL;
    NEB_TRY(neb__jinja_name(r, l->item));
    if (neb__jinja_take(r, ",")) return neb__jinja_unknown(r, "loop over", "several names");
    if (!neb__jinja_take_word(r, "in")) return neb__jinja_malformed(r, "'in'");
    NEB_TRY(neb__jinja_plain_expression(r, live, &all));
    neb_status status = NEB_OK;
    if (neb__jinja_take_word(r, "if")) {
        neb__jinja_space(r);
        l->condition = r->at;
        status = neb__jinja_plain_expression(r, false, &v);
    }
    if (status == NEB_OK) status = tag_end(r, "%}");
    l->body = r->at;
    l->after = r->after;
    if (status == NEB_OK && live && all && !json_is_array(all))
        status = neb__jinja_unknown(r, "loop over", "something that is not a list");
    if (status == NEB_OK && live) status = choose_items(r, l, all);
    json_decref(all);
    r->at = l->body;
    r->after = l->after;
    return status;
}

static neb_status loop_once(struct neb_jinja *r, const struct loop *l, size_t i, char met[NEB_JINJA_NAME])
{
    static const char *const until[] = {"else", "endfor", NULL};
    const size_t n = json_array_size(l->list);
    r->at = l->body;
    r->after = l->after;
    NEB_TRY(neb__jinja_step(r));
    NEB_TRY(enter(r));
    json_t *state = json_pack("{s:I, s:I, s:b, s:b, s:I}", "index", (json_int_t)i + 1, "index0",
                              (json_int_t)i, "first", i == 0, "last", i + 1 == n, "length", (json_int_t)n);
    if (state && i > 0) json_object_set(state, "previtem", json_array_get(l->list, i - 1));
    if (state && i + 1 < n) json_object_set(state, "nextitem", json_array_get(l->list, i + 1));
    neb_status status =
        state ? declare(r, "loop", state) : neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    json_decref(state);
    if (status == NEB_OK) status = declare(r, l->item, json_array_get(l->list, i));
    if (status == NEB_OK) status = block(r, true, until, met);
    leave(r);
    return status;
}

static neb_status run_loop(struct neb_jinja *r, bool live, struct loop *l)
{
    static const char *const until[] = {"else", "endfor", NULL};
    char met[NEB_JINJA_NAME] = "";
    NEB_TRY(loop_head(r, live, l));
    const size_t n = json_array_size(l->list);
    for (size_t i = 0; i < n; i++) NEB_TRY(loop_once(r, l, i, met));
    if (!n) NEB_TRY(block(r, false, until, met));
    NEB_TRY(tag_end(r, "%}"));
    if (!strcmp(met, "endfor")) return NEB_OK;
    NEB_TRY(block(r, live && !n, until + 1, met));
    return tag_end(r, "%}");
}

static neb_status for_block(struct neb_jinja *r, bool live)
{
    struct loop l = {.list = json_array()};
    neb_status status =
        l.list ? run_loop(r, live, &l) : neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    json_decref(l.list);
    return status;
}

json_t *neb__jinja_find(const struct neb_jinja *r, const char *name)
{
    for (int i = r->scopes - 1; i >= 0; i--) {
        json_t *v = json_object_get(r->scope[i], name);
        if (v) return v;
    }
    return NULL;
}

/* `set a = …`, or `set a.b = …` of a namespace. */
static neb_status set(struct neb_jinja *r, bool live)
{
    char name[NEB_JINJA_NAME], field[NEB_JINJA_NAME] = "";
    json_t *v;
    NEB_TRY(neb__jinja_name(r, name));
    if (neb__jinja_take(r, ".")) NEB_TRY(neb__jinja_name(r, field));
    if (!neb__jinja_take(r, "=")) return neb__jinja_unknown(r, "statement", "set of a block");
    NEB_TRY(neb__jinja_expression(r, live, &v));
    neb_status status = NEB_OK;
    json_t *space = live && *field ? neb__jinja_find(r, name) : NULL;
    if (live && *field && !json_is_object(space))
        status = neb__jinja_unknown(r, "namespace", name);
    else if (live && *field && json_object_set_new(space, field, v ? json_incref(v) : json_null()))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    else if (live && !*field)
        status = declare(r, name, v);
    json_decref(v);
    return status == NEB_OK ? tag_end(r, "%}") : status;
}

/* A macro may stand in a template; whoever calls it is refused. */
static neb_status macro(struct neb_jinja *r)
{
    static const char *const until[] = {"endmacro", NULL};
    char met[NEB_JINJA_NAME];
    while (r->at + 1 < r->n && (r->text[r->at] != '%' || r->text[r->at + 1] != '}')) r->at++;
    if (r->at > 0 && r->text[r->at - 1] == '-') r->at--;
    NEB_TRY(tag_end(r, "%}"));
    NEB_TRY(block(r, false, until, met));
    return tag_end(r, "%}");
}

static neb_status statement(struct neb_jinja *r, bool live, const char *name)
{
    if (!strcmp(name, "if")) return if_block(r, live);
    if (!strcmp(name, "for")) return for_block(r, live);
    if (!strcmp(name, "set")) return set(r, live);
    if (!strcmp(name, "macro")) return macro(r);
    if (!strcmp(name, "generation") || !strcmp(name, "endgeneration"))
        return tag_end(r, "%}"); /* marks the answers, no more */
    return neb__jinja_unknown(r, "statement", name);
}

/* Runs up to the tag of one of the words `until`, whose rest is left to the caller; NULL: to the end of the template. */
static neb_status run(struct neb_jinja *r, bool live, const char *const *until, char met[NEB_JINJA_NAME])
{
    for (;;) {
        char name[NEB_JINJA_NAME];
        NEB_TRY(plain_text(r, live));
        if (r->at >= r->n) return until ? neb__jinja_malformed(r, *until) : NEB_OK;
        NEB_TRY(neb__jinja_step(r));
        if (r->text[r->at + 1] == '#') {
            NEB_TRY(comment(r));
        } else if (r->text[r->at + 1] == '{') {
            NEB_TRY(output(r, live));
        } else {
            r->at += 2;
            if (r->at < r->n && (r->text[r->at] == '-' || r->text[r->at] == '+')) r->at++;
            NEB_TRY(neb__jinja_name(r, name));
            for (const char *const *u = until; u && *u; u++)
                if (!strcmp(*u, name)) {
                    memcpy(met, name, sizeof name);
                    return NEB_OK;
                }
            NEB_TRY(statement(r, live, name));
        }
    }
}

static neb_status block(struct neb_jinja *r, bool live, const char *const *until, char met[NEB_JINJA_NAME])
{
    if (r->depth >= NEB_JINJA_DEPTH)
        return neb__fail(NEB_ERR_RANGE, "chat template: its blocks are too deep");
    r->depth++;
    neb_status status = run(r, live, until, met);
    r->depth--;
    return status;
}

neb_status neb__jinja_render(const char *text, size_t n, const struct json_t *variables, struct neb_buf *out)
{
    struct neb_jinja r = {.text = text, .n = n, .out = out, .steps = STEPS};
    if (r.n && text[r.n - 1] == '\n') r.n--; /* the last line end of a template is not part of it */
    r.scope[0] = json_deep_copy(variables);
    if (!r.scope[0]) return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    r.scopes = 1;
    neb_status status = block(&r, true, NULL, NULL);
    while (r.scopes) leave(&r);
    return status;
}
