/* jinja.c: templates: text, tags and blocks.
 *
 * A template is text with `{{ expressions }}`, `{% statements %}` and `{# comments #}`. A block runs up to the tag that ends
 * it; a loop goes back to where its body began. White space follows what chat templates are written for: the first line end
 * behind a statement or comment vanishes, and so do blanks in front of one that begins a line; `-` takes all white space on
 * its side, `+` none. */
#include "text/jinja.h"
#include "text/jinja_parts.h"
#include "base/mem.h"

#include <string.h>

enum { STEPS = 1 << 20, WORK = 1 << 25, BYTES = 256 << 20 };
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

neb_status neb__jinja_too_much(const struct neb_jinja *r, const char *what)
{
    return neb__fail(NEB_ERR_RANGE, "chat template, line %d: %s", line_of(r), what);
}

neb_status neb__jinja_step(struct neb_jinja *r)
{
    return r->steps-- > 0 ? NEB_OK : neb__jinja_too_much(r, "it does not come to an end");
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

neb_status neb__jinja_plain_text(struct neb_jinja *r, bool live)
{
    const size_t tag = next_tag(r);
    size_t from = r->at;
    if (r->after == LINE_END && from < tag && r->text[from] == '\r' && from + 1 < tag &&
        r->text[from + 1] == '\n')
        from++;
    if (r->after == LINE_END && from < tag && r->text[from] == '\n') from++;
    while (r->after == ALL && from < tag && is_space(r->text[from])) from++;
    const size_t end = text_end(r, from, tag);
    NEB_TRY(neb__jinja_work(r, (tag - r->at) / 64));
    r->at = tag;
    r->after = KEEP;
    if (live) NEB_TRY(neb__jinja_spend(r, end - from));
    return live && end > from ? neb__buf_append(r->out, r->text + from, end - from) : NEB_OK;
}

neb_status neb__jinja_tag_end(struct neb_jinja *r, const char *end)
{
    neb__jinja_space(r);
    r->after = *end == '%' ? LINE_END : KEEP;
    if (r->at < r->n && (r->text[r->at] == '-' || r->text[r->at] == '+') && r->at + 1 < r->n &&
        r->text[r->at + 1] == *end)
        r->after = r->text[r->at++] == '-' ? ALL : KEEP;
    return neb__jinja_take(r, end) ? NEB_OK : neb__jinja_malformed(r, end);
}

void neb__jinja_sign(struct neb_jinja *r)
{
    if (r->at < r->n && (r->text[r->at] == '-' || r->text[r->at] == '+')) r->at++;
}

neb_status neb__jinja_comment(struct neb_jinja *r)
{
    size_t i = r->at + 2;
    while (i + 1 < r->n && (r->text[i] != '#' || r->text[i + 1] != '}')) i++;
    if (i + 1 >= r->n) return neb__jinja_malformed(r, "the end of a comment");
    r->after = r->text[i - 1] == '-' && i > r->at + 2 ? ALL : LINE_END;
    r->at = i + 2;
    return NEB_OK;
}

static neb_status output(struct neb_jinja *r)
{
    json_t *v;
    r->at += 2;
    neb__jinja_sign(r);
    NEB_TRY(neb__jinja_expression(r, true, &v));
    neb_status status = neb__jinja_tag_end(r, "}}");
    if (status == NEB_OK) status = neb__jinja_spend(r, json_string_length(v));
    if (status == NEB_OK) status = neb__jinja_print(v, r->out);
    json_decref(v);
    return status;
}

/* ---- statements --------------------------------------------------------------------------------------------------- */

static neb_status if_block(struct neb_jinja *r)
{
    static const char *const until[] = {"elif", "else", "endif", NULL};
    bool done = false;
    char met[NEB_JINJA_NAME] = "if";
    while (strcmp(met, "endif")) {
        const bool last = !strcmp(met, "else");
        bool runs = !done && last;
        if (done && !last) {
            NEB_TRY(neb__jinja_skip_tag(r, '%')); /* a condition that nobody asks for */
        } else {
            json_t *v = NULL;
            if (!last) NEB_TRY(neb__jinja_expression(r, true, &v));
            runs |= !last && neb__jinja_true(v);
            json_decref(v);
            NEB_TRY(neb__jinja_tag_end(r, "%}"));
        }
        const char *const *words = last ? until + 2 : until;
        NEB_TRY(runs ? neb__jinja_block(r, words, met) : neb__jinja_skip_block(r, words, met));
        done |= runs;
    }
    return neb__jinja_tag_end(r, "%}");
}

neb_status neb__jinja_enter(struct neb_jinja *r)
{
    if (r->scopes >= NEB_JINJA_DEPTH)
        return neb__fail(NEB_ERR_RANGE, "chat template: its loops are too deep");
    if (!(r->scope[r->scopes] = json_object()))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    r->scopes++;
    return NEB_OK;
}

void neb__jinja_leave(struct neb_jinja *r)
{
    json_decref(r->scope[--r->scopes]);
}

neb_status neb__jinja_declare(struct neb_jinja *r, const char *name, json_t *v)
{
    json_t *scope = r->scope[r->scopes - 1];
    if (v ? json_object_set(scope, name, v) : (json_object_del(scope, name), 0))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    return NEB_OK;
}

json_t *neb__jinja_find(const struct neb_jinja *r, const char *name)
{
    for (int i = r->scopes - 1; i >= r->base; i--) {
        json_t *v = json_object_get(r->scope[i], name);
        if (v) return v;
    }
    return json_object_get(r->scope[0], name);
}

/* `set a %}…{% endset`: what the block writes. */
static neb_status set_block(struct neb_jinja *r, const char *name)
{
    static const char *const until[] = {"endset", NULL};
    char met[NEB_JINJA_NAME];
    json_t *v = NULL;
    struct neb_buf made, *const outside = r->out;
    NEB_TRY(neb__jinja_tag_end(r, "%}"));
    neb__buf_init(&made, NEB_JINJA_TEXT);
    r->out = &made;
    neb_status status = neb__jinja_block(r, until, met);
    r->out = outside;
    if (status == NEB_OK) status = neb__jinja_text(r, made.len ? (const char *)made.data : "", made.len, &v);
    if (status == NEB_OK) status = neb__jinja_declare(r, name, v);
    json_decref(v);
    neb__buf_free(&made);
    return status == NEB_OK ? neb__jinja_tag_end(r, "%}") : status;
}

/* Lists and tables only for a namespace that nothing else holds, so that no value comes to contain itself. */
static neb_status set_field(struct neb_jinja *r, const char *name, const char *field, json_t *v)
{
    json_t *space = neb__jinja_find(r, name);
    if (!json_is_object(space)) return neb__jinja_unknown(r, "namespace", name);
    if (space->refcount > 1 && (json_is_array(v) || json_is_object(v)))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "chat template, line %d: the namespace '%.40s', which other values hold, is given a list "
            "or table, which is not known here; choose a template with --template",
            line_of(r), name);
    NEB_TRY(neb__jinja_check_depth(r, v, NEB_JINJA_DEPTH - 1));
    NEB_TRY(neb__jinja_spend(r, NEB_JINJA_FIELD));
    if (json_object_set_new(space, field, v ? json_incref(v) : json_null()))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    return NEB_OK;
}

/* `set a = …`, or `set a.b = …` of a namespace. */
static neb_status set(struct neb_jinja *r)
{
    char name[NEB_JINJA_NAME], field[NEB_JINJA_NAME] = "";
    json_t *v;
    NEB_TRY(neb__jinja_name(r, name));
    if (neb__jinja_take(r, ".")) NEB_TRY(neb__jinja_name(r, field));
    if (!neb__jinja_take(r, "=")) return set_block(r, name);
    NEB_TRY(neb__jinja_expression(r, true, &v));
    neb_status status = *field ? set_field(r, name, field, v) : neb__jinja_check_depth(r, v, NEB_JINJA_DEPTH);
    if (status == NEB_OK && !*field) status = neb__jinja_declare(r, name, v);
    json_decref(v);
    return status == NEB_OK ? neb__jinja_tag_end(r, "%}") : status;
}

/* What stands behind it in the loop's body is skipped. */
static neb_status leave_loop(struct neb_jinja *r, const char *name)
{
    if (!r->loops) return neb__jinja_unknown(r, "place of the statement", name);
    r->leaving = *name == 'b' ? NEB_JINJA_BREAK : NEB_JINJA_CONTINUE;
    return neb__jinja_tag_end(r, "%}");
}

static neb_status statement(struct neb_jinja *r, const char *name)
{
    if (!strcmp(name, "if")) return if_block(r);
    if (!strcmp(name, "for")) return neb__jinja_for(r);
    if (!strcmp(name, "set")) return set(r);
    if (!strcmp(name, "macro")) return neb__jinja_define(r);
    if (!strcmp(name, "raw")) return neb__jinja_raw(r, r->out);
    if (!strcmp(name, "break") || !strcmp(name, "continue")) return leave_loop(r, name);
    if (!strcmp(name, "generation") || !strcmp(name, "endgeneration"))
        return neb__jinja_tag_end(r, "%}"); /* marks the answers, no more */
    return neb__jinja_unknown(r, "statement", name);
}

static neb_status run(struct neb_jinja *r, const char *const *until, char met[NEB_JINJA_NAME])
{
    for (;;) {
        char name[NEB_JINJA_NAME];
        if (r->leaving) return neb__jinja_skip_block(r, until, met);
        NEB_TRY(neb__jinja_plain_text(r, true));
        if (r->at >= r->n) return until ? neb__jinja_malformed(r, *until) : NEB_OK;
        NEB_TRY(neb__jinja_step(r));
        if (r->text[r->at + 1] == '#') {
            NEB_TRY(neb__jinja_comment(r));
        } else if (r->text[r->at + 1] == '{') {
            NEB_TRY(output(r));
        } else {
            r->at += 2;
            neb__jinja_sign(r);
            NEB_TRY(neb__jinja_name(r, name));
            for (const char *const *u = until; u && *u; u++)
                if (!strcmp(*u, name)) {
                    memcpy(met, name, sizeof name);
                    return NEB_OK;
                }
            NEB_TRY(statement(r, name));
        }
    }
}

neb_status neb__jinja_block(struct neb_jinja *r, const char *const *until, char met[NEB_JINJA_NAME])
{
    if (r->depth >= NEB_JINJA_DEPTH)
        return neb__fail(NEB_ERR_RANGE, "chat template: its blocks are too deep");
    r->depth++;
    neb_status status = run(r, until, met);
    r->depth--;
    return status;
}

neb_status neb__jinja_render(const char *text, size_t n, const struct json_t *variables, struct neb_buf *out)
{
    struct neb_jinja r = {.text = text, .n = n, .out = out, .steps = STEPS, .bytes = BYTES, .work = WORK};
    if (r.n && text[r.n - 1] == '\n') r.n--; /* the last line end of a template is not part of it */
    r.behind_if = NEB_NEW_ARRAY(size_t, r.n + 1);
    r.scope[0] = json_deep_copy(variables);
    r.scopes = 1;
    neb_status status = r.behind_if && r.scope[0]
                            ? neb__jinja_block(&r, NULL, NULL)
                            : neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    while (r.scopes) neb__jinja_leave(&r);
    neb__free(r.behind_if);
    return status;
}
