/* opts.c: the option table's parser, printer and speller. */
#include "base/opts.h"
#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

int neb__edit_distance(const char *a, const char *b)
{
    int row[64], la = (int)strlen(a), lb = (int)strlen(b);
    if (la > 62 || lb > 62) return 99;
    for (int j = 0; j <= lb; j++) row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int best = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[lb];
}

static const struct neb_opt *find(const struct neb_opt *table, const char *name)
{
    for (const struct neb_opt *o = table; o->name; o++)
        if (same_name(o->name, name)) return o;
    return NULL;
}

static neb_status unknown(const struct neb_opt_set *sets, const char *name)
{
    const char *near = NULL;
    int best = 4;
    for (; sets->table; sets++)
        for (const struct neb_opt *o = sets->table; o->name; o++) {
            int d = neb__edit_distance(o->name, name);
            if (d < best) best = d, near = o->name;
        }
    return neb__fail(NEB_ERR_CONFIG, "unknown option '%s'%s%s%s", name, near ? "; did you mean '" : "",
                     near ? near : "", near ? "'?" : "");
}

struct suffix {
    const char *text;
    double factor;
};

static const struct suffix byte_suffixes[] = {
    {"", 1},         {"b", 1},    {"k", 1e3},       {"kb", 1e3},     {"kib", 1024},
    {"m", 1e6},      {"mb", 1e6}, {"mib", 1048576}, {"g", 1e9},      {"gb", 1e9},
    {"gib", 0x1p30}, {"t", 1e12}, {"tb", 1e12},     {"tib", 0x1p40}, {NULL, 0}};
static const struct suffix time_suffixes[] = {{"", 1},   {"s", 1},    {"ms", 1e-3}, {"us", 1e-6},
                                              {"m", 60}, {"min", 60}, {"h", 3600},  {NULL, 0}};
static const struct suffix rate_suffixes[] = {{"", 1},       {"bit", 1},    {"kbit", 1e3},
                                              {"mbit", 1e6}, {"gbit", 1e9}, {NULL, 0}};
static const struct suffix share_suffixes[] = {{"", 1}, {"%", 1e-2}, {NULL, 0}};
static const struct suffix no_suffixes[] = {{"", 1}, {NULL, 0}};

static bool parse_number(const char *s, const struct suffix *suffixes, double *out)
{
    char *end;
    errno = 0;
    double x = strtod(s, &end);
    if (end == s || errno == ERANGE || !isfinite(x)) return false;
    while (*end == ' ') end++;
    for (; suffixes->text; suffixes++)
        if (!strcasecmp(end, suffixes->text)) {
            *out = x * suffixes->factor;
            return isfinite(*out);
        }
    return false;
}

static bool parse_bool(const char *s, bool *out)
{
    static const char *const words[] = {"no", "yes", "false", "true", "0", "1", "off", "on"};
    for (int i = 0; i < 8; i++)
        if (!strcasecmp(s, words[i])) {
            *out = i & 1;
            return true;
        }
    return false;
}

static bool parse_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    long long x = strtoll(s, &end, 10);
    if (end == s || *end || errno == ERANGE) return false;
    *out = x;
    return true;
}

static bool parse_bytes(const char *s, int64_t *out)
{
    double x;
    if (!parse_number(s, byte_suffixes, &x) || x < 0 || x > 0x1p62) return false;
    *out = (int64_t)x;
    return true;
}

static bool parse_share(const char *s, double *out)
{
    double x;
    if (!parse_number(s, share_suffixes, &x) || x < 0 || x > 1) return false;
    *out = x;
    return true;
}

static const char *const allowed[] = {
    [NEB_OPT_BOOL] = "yes or no",
    [NEB_OPT_INT] = "a whole number",
    [NEB_OPT_REAL] = "a finite number",
    [NEB_OPT_TEXT] = "a text",
    [NEB_OPT_BYTES] = "a size such as 64k, 16MiB or 1.5G",
    [NEB_OPT_TIME] = "a time such as 250ms, 5s, 2m or 1h",
    [NEB_OPT_RATE] = "a rate such as 500kbit, 10mbit or 1gbit",
    [NEB_OPT_SHARE] = "a share from 0 to 1, such as 0.001 or 0.1%",
};

static neb_status try_assign(const struct neb_opt *o, void *obj, const char *value)
{
    void *f = field(o, obj);
    bool ok = false;
    switch (o->type) {
    case NEB_OPT_BOOL: ok = parse_bool(value, f); break;
    case NEB_OPT_INT: ok = parse_int(value, f); break;
    case NEB_OPT_REAL: ok = parse_number(value, no_suffixes, f); break;
    case NEB_OPT_BYTES: ok = parse_bytes(value, f); break;
    case NEB_OPT_TIME: ok = parse_number(value, time_suffixes, f); break;
    case NEB_OPT_RATE: ok = parse_number(value, rate_suffixes, f); break;
    case NEB_OPT_SHARE: ok = parse_share(value, f); break;
    case NEB_OPT_TEXT: {
        if (!*value && *o->fallback) return NEB_OK; /* a text that has a default is never NULL */
        char *copy = *value ? neb__strdup(value) : NULL;
        if (*value && !copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for option '%s'", o->name);
        neb__free(*(char **)f);
        *(char **)f = copy;
        ok = true;
        break;
    }
    case NEB_OPT_NONE: break;
    }
    return ok ? NEB_OK : NEB_ERR_CONFIG;
}

static neb_status assign(const struct neb_opt *o, void *obj, const char *value)
{
    neb_status s = try_assign(o, obj, value);
    if (s != NEB_ERR_CONFIG) return s;
    return neb__fail(s, "option '%s': '%s' is not %s", o->name, value, allowed[o->type]);
}

neb_status neb__opts_init(const struct neb_opt *table, void *obj)
{
    for (const struct neb_opt *o = table; o->name; o++)
        if (o->type == NEB_OPT_TEXT) *(char **)field(o, obj) = NULL;
    for (const struct neb_opt *o = table; o->name; o++) {
        neb_status s = assign(o, obj, o->fallback);
        if (s != NEB_OK) {
            neb__opts_free(table, obj);
            return s;
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
                         const char **why)
{
    const struct neb_opt *o = find(table, name);
    if (!o) return NEB_ERR_NOTFOUND;
    *why = allowed[o->type];
    return try_assign(o, obj, value);
}

neb_status neb__opts_env(const struct neb_opt *table, void *obj, const char *prefix)
{
    for (const struct neb_opt *o = table; o->name; o++) {
        char var[128];
        snprintf(var, sizeof var, "%s_%s", prefix, o->name);
        for (char *c = var; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        const char *value = getenv(var);
        if (value) NEB_TRY(assign(o, obj, value));
    }
    return NEB_OK;
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
    if (*i + 1 >= argc) return neb__fail(NEB_ERR_CONFIG, "option '%s' needs %s", name, allowed[o->type]);
    return assign(o, obj, argv[++*i]);
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

void neb__opts_help(const struct neb_opt *table, FILE *to)
{
    for (const struct neb_opt *o = table; o->name; o++) {
        char name[64];
        snprintf(name, sizeof name, "--%s", o->name);
        for (char *c = name; *c; c++)
            if (*c == '_') *c = '-';
        fprintf(to, "  %-22s %s", name, o->help);
        if (*o->fallback)
            fprintf(to, " (default %s%s%s)", o->fallback, o->unit ? " " : "", o->unit ? o->unit : "");
        fputc('\n', to);
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

static bool same_value(const struct neb_opt *o, const void *a, const void *b)
{
    switch (o->type) {
    case NEB_OPT_BOOL: return *(const bool *)a == *(const bool *)b;
    case NEB_OPT_INT:
    case NEB_OPT_BYTES: return *(const int64_t *)a == *(const int64_t *)b;
    default: return *(const double *)a == *(const double *)b;
    }
}

/* A field of its own with the default, to compare with. */
static neb_status has_default(const struct neb_opt *o, const void *value, bool *out)
{
    const char *text;
    union {
        bool truth;
        int64_t whole;
        double real;
    } fallback = {.real = 0};
    if (o->type == NEB_OPT_TEXT) {
        text = *(char *const *)value;
        *out = !strcmp(text ? text : "", o->fallback);
        return NEB_OK;
    }
    struct neb_opt alone = *o;
    alone.offset = 0;
    NEB_TRY(assign(&alone, &fallback, o->fallback));
    *out = same_value(o, value, &fallback);
    return NEB_OK;
}

neb_status neb__opts_write(const struct neb_opt *table, const void *obj, const char *indent,
                           struct neb_buf *out)
{
    for (const struct neb_opt *o = table; o->name; o++) {
        const void *value = (const char *)obj + o->offset;
        bool fallback;
        NEB_TRY(has_default(o, value, &fallback));
        if (fallback || (o->type == NEB_OPT_TEXT && !*(char *const *)value)) continue;
        NEB_TRY(neb__buf_printf(out, "%s%s: ", indent, o->name));
        NEB_TRY(write_field(o, value, out));
        NEB_TRY(neb__buf_append(out, "\n", 1));
    }
    return NEB_OK;
}
