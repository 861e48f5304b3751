/* opts.c: option tables: setting fields from words and arguments, help, writing fields back, and the nearest
 * name for a wrong one. opts_value.c has one value. */
#include "base/opts.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/opts_value.h"

#include <stdlib.h>
#include <string.h>

static void *field(const struct neb_opt *o, void *obj)
{
    return (char *)obj + o->offset;
}

static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
    return *a == *b;
}

static const struct neb_opt *find(const struct neb_opt *table, const char *name)
{
    for (const struct neb_opt *o = table; o->name; o++)
        if (same_name(o->name, name)) return o;
    return NULL;
}

static neb_status unknown(const struct neb_opt_set *sets, const char *name)
{
    struct neb_nearest n = {.word = name, .within = 4};
    char hint[NEB_HINT];
    for (; sets->table; sets++)
        for (const struct neb_opt *o = sets->table; o->name; o++) neb__nearest_try(&n, o->name);
    neb__nearest_hint(&n, hint);
    return neb__fail(NEB_ERR_CONFIG, "unknown option '%s'%s", name, hint);
}

int neb__opts_choice(const struct neb_opt *table, const void *obj, const char *name)
{
    const struct neb_opt *o = find(table, name);
    if (!o) return -1;
    const void *f = (const char *)obj + o->offset;
    return o->type == NEB_OPT_TEXT ? neb__opt_word_at(o, *(char *const *)f)
                                   : neb__opt_number_at(o, *(const int64_t *)f);
}

/* ---- setting --------------------------------------------------------------------------------------------------- */

static neb_status assign_text(const struct neb_opt *o, char **f, const char *value)
{
    if (!*value && *o->fallback) return NEB_OK; /* a text that has a default is never NULL */
    if (*value && !neb__opt_word_fits(o, value)) return NEB_ERR_CONFIG;
    char *copy = *value ? neb__strdup(value) : NULL;
    if (*value && !copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for option '%s'", o->name);
    neb__free(*f);
    *f = copy;
    return NEB_OK;
}

static neb_status try_assign(const struct neb_opt *o, void *obj, const char *value)
{
    union neb_opt_value v;
    if (o->type == NEB_OPT_TEXT) return assign_text(o, field(o, obj), value);
    if (!neb__opt_parse(o, value, &v) || !neb__opt_number_fits(o, &v)) return NEB_ERR_CONFIG;
    neb__opt_store(o, &v, field(o, obj));
    return NEB_OK;
}

static neb_status refuse(const struct neb_opt *o, const char *value)
{
    char why[NEB_OPT_WHY];
    neb__opt_write_allowed(o, why);
    return neb__fail(NEB_ERR_CONFIG, "option '%s': '%s' is not %s", o->name, value, why);
}

static neb_status assign(const struct neb_opt *o, void *obj, const char *value)
{
    neb_status status = try_assign(o, obj, value);
    return status == NEB_ERR_CONFIG ? refuse(o, value) : status;
}

neb_status neb__opts_check(const struct neb_opt *table, const void *obj)
{
    for (const struct neb_opt *o = table; o->name; o++) {
        const void *f = (const char *)obj + o->offset;
        union neb_opt_value v;
        char text[40];
        if (o->type == NEB_OPT_TEXT) {
            const char *word = *(char *const *)f;
            if ((word || *o->fallback) && !neb__opt_word_fits(o, word)) return refuse(o, word ? word : "");
            continue;
        }
        neb__opt_load(o, f, &v);
        if (neb__opt_number_fits(o, &v)) continue;
        if (neb__opt_is_whole(o))
            snprintf(text, sizeof text, "%" PRId64, v.whole);
        else
            snprintf(text, sizeof text, "%g", v.real);
        return refuse(o, text);
    }
    return NEB_OK;
}

neb_status neb__opts_init(const struct neb_opt *table, void *obj)
{
    for (const struct neb_opt *o = table; o->name; o++)
        if (o->type == NEB_OPT_TEXT) *(char **)field(o, obj) = NULL;
    for (const struct neb_opt *o = table; o->name; o++) {
        neb_status status = assign(o, obj, o->fallback);
        if (status != NEB_OK) {
            neb__opts_free(table, obj);
            return status;
        }
    }
    return NEB_OK;
}

void neb__opts_free(const struct neb_opt *table, void *obj)
{
    for (const struct neb_opt *o = table; o->name; o++)
        if (o->type == NEB_OPT_TEXT) {
            neb__free(*(char **)field(o, obj));
            *(char **)field(o, obj) = NULL;
        }
}

neb_status neb__opts_set(const struct neb_opt *table, void *obj, const char *name, const char *value)
{
    const struct neb_opt *o = find(table, name);
    return o ? assign(o, obj, value) : unknown((struct neb_opt_set[]){{table, obj}, {NULL, NULL}}, name);
}

neb_status neb__opts_try(const struct neb_opt *table, void *obj, const char *name, const char *value,
                         char why[NEB_OPT_WHY])
{
    const struct neb_opt *o = find(table, name);
    if (!o) return NEB_ERR_NOTFOUND;
    neb_status status = try_assign(o, obj, value);
    if (status == NEB_ERR_CONFIG) neb__opt_write_allowed(o, why);
    return status;
}

/* The option of that name in the first table that has it, and its object. */
static const struct neb_opt *find_in(const struct neb_opt_set *sets, const char *name, void **obj)
{
    const struct neb_opt *o = NULL;
    for (; !o && sets->table; sets++) {
        o = find(sets->table, name);
        *obj = sets->obj;
    }
    return o;
}

/* One `--…` argument; *i moves on when its value is the next word. */
static neb_status take(const struct neb_opt_set *sets, int argc, char **argv, int *i)
{
    char name[128];
    void *obj;
    const char *word = argv[*i] + 2, *eq = strchr(word, '=');
    snprintf(name, sizeof name, "%.*s", eq ? (int)(eq - word) : (int)strlen(word), word);
    const struct neb_opt *o = find_in(sets, name, &obj);
    if (!o && !eq && !strncmp(name, "no-", 3) && (o = find_in(sets, name + 3, &obj)) &&
        o->type == NEB_OPT_BOOL)
        return assign(o, obj, "no");
    if (!o) return unknown(sets, name);
    if (eq) return assign(o, obj, eq + 1);
    if (o->type == NEB_OPT_BOOL) return assign(o, obj, "yes");
    if (*i + 1 < argc) return assign(o, obj, argv[++*i]);
    char why[NEB_OPT_WHY];
    neb__opt_write_allowed(o, why);
    return neb__fail(NEB_ERR_CONFIG, "option '%s' needs %s", name, why);
}

neb_status neb__opts_args(const struct neb_opt *table, void *obj, int argc, char **argv, int *positional)
{
    return neb__opts_args_of((struct neb_opt_set[]){{table, obj}, {NULL, NULL}}, argc, argv, positional);
}

neb_status neb__opts_args_of(const struct neb_opt_set *sets, int argc, char **argv, int *positional)
{
    int kept = 0, i = 0;
    for (; i < argc; i++) {
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        if (strncmp(argv[i], "--", 2))
            argv[kept++] = argv[i];
        else
            NEB_TRY(take(sets, argc, argv, &i));
    }
    for (; i < argc; i++) argv[kept++] = argv[i];
    *positional = kept;
    return NEB_OK;
}

void neb__opts_help_of(const struct neb_opt *o, FILE *to)
{
    char text[NEB_OPT_WHY];
    if (o->choices) {
        neb__opt_write_choices(o, text, sizeof text);
        fprintf(to, "%s%s", text, *o->help ? ": " : "");
    }
    fprintf(to, "%s", o->help);
    bool several = *o->fallback && o->range;
    if (*o->fallback || o->range) fputs(" (", to);
    if (*o->fallback) fprintf(to, "default %s%s%s", o->fallback, o->unit ? " " : "", o->unit ? o->unit : "");
    if (o->range) {
        neb__opt_write_range(o, text, sizeof text);
        fprintf(to, "%s%s%s", several ? "; " : "", text, neb__opt_or(o));
    }
    fputs(*o->fallback || o->range ? ")\n" : "\n", to);
}

void neb__opts_help(const struct neb_opt *table, FILE *to)
{
    for (const struct neb_opt *o = table; o->name; o++) {
        char name[64];
        snprintf(name, sizeof name, "--%s", o->name);
        for (char *c = name; *c; c++)
            if (*c == '_') *c = '-';
        fprintf(to, "  %-22s ", name);
        neb__opts_help_of(o, to);
    }
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* YAML's double-quoted form: what a text may hold, it may hold there. */
static neb_status write_text(const struct neb_opt *o, const char *text, struct neb_buf *out)
{
    NEB_TRY(neb__buf_append(out, "\"", 1));
    for (; *text; text++) {
        if ((unsigned char)*text < 32)
            return neb__fail(NEB_ERR_INVALID, "option '%s' holds a control character", o->name);
        if (*text == '"' || *text == '\\') NEB_TRY(neb__buf_append(out, "\\", 1));
        NEB_TRY(neb__buf_append(out, text, 1));
    }
    return neb__buf_append(out, "\"", 1);
}

/* A field that is `auto` is not written: that is its default. */
static neb_status write_field(const struct neb_opt *o, const void *field, struct neb_buf *out)
{
    switch (o->type) {
    case NEB_OPT_BOOL: return neb__buf_printf(out, "%s", *(const bool *)field ? "yes" : "no");
    case NEB_OPT_INT:
    case NEB_OPT_BYTES: return neb__buf_printf(out, "%" PRId64, *(const int64_t *)field);
    case NEB_OPT_TEXT: return write_text(o, *(char *const *)field, out);
    case NEB_OPT_REAL:
    case NEB_OPT_TIME:
    case NEB_OPT_RATE:
    case NEB_OPT_SHARE: return neb__buf_printf(out, "%.17g", *(const double *)field);
    case NEB_OPT_NONE: break;
    }
    return NEB_OK;
}

static bool has_default(const struct neb_opt *o, const void *f)
{
    union neb_opt_value now, fallback;
    if (o->type == NEB_OPT_TEXT) {
        const char *text = *(char *const *)f;
        return !strcmp(text ? text : "", o->fallback);
    }
    neb__opt_load(o, f, &now);
    if (!neb__opt_parse(o, o->fallback, &fallback)) return false;
    if (o->type == NEB_OPT_BOOL) return now.truth == fallback.truth;
    return neb__opt_is_whole(o) ? now.whole == fallback.whole : now.real == fallback.real;
}

neb_status neb__opts_write(const struct neb_opt *table, const void *obj, const char *indent,
                           struct neb_buf *out)
{
    for (const struct neb_opt *o = table; o->name; o++) {
        const void *value = (const char *)obj + o->offset;
        if (has_default(o, value) || (o->type == NEB_OPT_TEXT && !*(char *const *)value)) continue;
        NEB_TRY(neb__buf_printf(out, "%s%s: ", indent, o->name));
        NEB_TRY(write_field(o, value, out));
        NEB_TRY(neb__buf_append(out, "\n", 1));
    }
    return NEB_OK;
}
