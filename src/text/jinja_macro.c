/* jinja_macro.c: macros: a block with parameters, whose output is the value of a call. A macro sees its parameters and the
 * variables of the whole template, not those of the place that calls it. Each call reads the body again; the depth of blocks and the
 * steps of the run limit macros that call themselves. */
#include "text/jinja_parts.h"

#include <string.h>

static const char *const end[] = {"endmacro", NULL};

neb_status neb__jinja_define(struct neb_jinja *r)
{
    struct neb_jinja_macro m;
    char met[NEB_JINJA_NAME];
    NEB_TRY(neb__jinja_name(r, m.name));
    if (!neb__jinja_take(r, "(")) return neb__jinja_malformed(r, "'('");
    m.params = r->at;
    NEB_TRY(neb__jinja_skip_tag(r, '%'));
    m.body = r->at;
    m.after = r->after;
    NEB_TRY(neb__jinja_skip_block(r, end, met));
    NEB_TRY(neb__jinja_tag_end(r, "%}"));
    if (r->macros == NEB_JINJA_MACROS)
        return neb__fail(NEB_ERR_RANGE, "chat template: it has too many macros");
    r->macro[r->macros++] = m;
    return NEB_OK;
}

const struct neb_jinja_macro *neb__jinja_macro(const struct neb_jinja *r, const char *name)
{
    for (int i = r->macros - 1; i >= 0; i--)
        if (!strcmp(r->macro[i].name, name)) return &r->macro[i];
    return NULL;
}

/* The parameters at r->at, which are given by their places or their names, or have a value of their own. */
static neb_status take_params(struct neb_jinja *r, const struct neb_jinja_args *a)
{
    for (int i = 0; !neb__jinja_take(r, ")"); i++) {
        char name[NEB_JINJA_NAME];
        json_t *own = NULL;
        if (i == NEB_JINJA_ARGS) return neb__jinja_unknown(r, "macro", "with so many parameters");
        NEB_TRY(neb__jinja_name(r, name));
        json_t *given = neb__jinja_arg(a, i, name);
        if (neb__jinja_take(r, "=")) NEB_TRY(neb__jinja_expression(r, !given, &own));
        neb_status status = neb__jinja_declare(r, name, given ? given : own);
        json_decref(own);
        NEB_TRY(status);
        if (!neb__jinja_take(r, ",") && (r->at >= r->n || r->text[r->at] != ')'))
            return neb__jinja_malformed(r, "')'");
    }
    return NEB_OK;
}

static neb_status run(struct neb_jinja *r, const struct neb_jinja_macro *m, const struct neb_jinja_args *a)
{
    char met[NEB_JINJA_NAME];
    NEB_TRY(neb__jinja_enter(r));
    r->at = m->params;
    neb_status status = take_params(r, a);
    r->at = m->body;
    r->after = m->after;
    if (status == NEB_OK) status = neb__jinja_block(r, end, met);
    neb__jinja_leave(r);
    return status;
}

neb_status neb__jinja_call(struct neb_jinja *r, const struct neb_jinja_macro *m,
                           const struct neb_jinja_args *a, json_t **out)
{
    struct neb_buf made, *const outside = r->out;
    const struct neb_jinja_macro copy = *m;
    const size_t at = r->at;
    const int after = r->after, base = r->base, loops = r->loops;
    neb__buf_init(&made, NEB_JINJA_TEXT);
    r->out = &made;
    r->base = r->scopes;
    r->loops = 0;
    neb_status status = run(r, &copy, a);
    r->out = outside;
    r->base = base;
    r->loops = loops;
    if (status == NEB_OK) {
        r->at = at;
        r->after = after;
        status = neb__jinja_text(r, made.len ? (const char *)made.data : "", made.len, out);
    }
    neb__buf_free(&made);
    return status;
}
