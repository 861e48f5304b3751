/* jinja_calls.c: what a template can call: filters, tests, methods of texts and tables, functions. Each is known by its name;
 * whatever is not in these lists is refused. */
#include "text/jinja_parts.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char blanks[] = " \t\n\r\f\v";

json_t *neb__jinja_arg(const struct neb_jinja_args *a, int place, const char *name)
{
    for (int i = 0; i < a->n; i++)
        if (*a->name[i] ? !strcmp(a->name[i], name) : i == place) return a->value[i];
    return NULL;
}

static const char *text_of(const json_t *v)
{
    return json_is_string(v) ? json_string_value(v) : "";
}

/* ---- texts ----------------------------------------------------------------------------------------------------- */

/* Without the characters of `set` at the sides that are asked for. */
static neb_status stripped(struct neb_jinja *r, const json_t *v, const char *set, bool left, bool right,
                           json_t **out)
{
    const char *p = text_of(v);
    size_t n = strlen(p);
    while (left && n && strchr(set, *p)) p++, n--;
    while (right && n && strchr(set, p[n - 1])) n--;
    return neb__jinja_text(r, p, n, out);
}

static neb_status cased(struct neb_jinja *r, const json_t *v, bool upper, json_t **out)
{
    char *copy = neb__strdup(text_of(v));
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    for (char *p = copy; *p; p++) { /* ASCII: roles and the like */
        if (upper && *p >= 'a' && *p <= 'z') *p = (char)(*p - 'a' + 'A');
        if (!upper && *p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
    }
    neb_status status = neb__jinja_text(r, copy, strlen(copy), out);
    neb__free(copy);
    return status;
}

static neb_status replaced(struct neb_jinja *r, const json_t *v, const char *from, const char *to,
                           json_t **out)
{
    struct neb_buf made;
    const char *p = text_of(v), *hit;
    neb_status status = NEB_OK;
    if (!*from) return neb__jinja_unknown(r, "replacement of", "nothing");
    neb__buf_init(&made, NEB_JINJA_TEXT);
    for (; status == NEB_OK && (hit = strstr(p, from)); p = hit + strlen(from)) {
        status = neb__buf_append(&made, p, (size_t)(hit - p));
        if (status == NEB_OK) status = neb__buf_append(&made, to, strlen(to));
    }
    if (status == NEB_OK) status = neb__buf_append(&made, p, strlen(p));
    if (status == NEB_OK) status = neb__jinja_text(r, made.len ? (const char *)made.data : "", made.len, out);
    neb__buf_free(&made);
    return status;
}

/* strstr() measures all of the rest for each piece where a sanitizer looks on. */
static const char *next_of(const char *p, const char *end, const char *at, size_t n)
{
    for (; (p = memchr(p, *at, (size_t)(end - p))); p++)
        if ((size_t)(end - p) >= n && !memcmp(p, at, n)) return p;
    return NULL;
}

static neb_status split(struct neb_jinja *r, const json_t *v, const char *at, json_t **out)
{
    const char *p = text_of(v), *hit;
    if (!*at) return neb__jinja_unknown(r, "split at", "white space");
    const size_t n = strlen(at);
    const char *end = p + strlen(p);
    size_t pieces = 1;
    for (const char *q = p; (hit = next_of(q, end, at, n)); q = hit + n) pieces++;
    NEB_TRY(neb__jinja_spend_list(r, pieces));
    NEB_TRY(neb__jinja_spend(r, pieces * NEB_JINJA_VALUE + (size_t)(end - p)));
    json_t *list = json_array();
    bool bad = !list;
    for (; !bad && (hit = next_of(p, end, at, n)); p = hit + n)
        bad = json_array_append_new(list, json_stringn(p, (size_t)(hit - p))) != 0;
    bad = bad || json_array_append_new(list, json_string(p));
    if (bad) json_decref(list);
    return neb__jinja_given(bad ? NULL : list, out);
}

static neb_status printed(struct neb_jinja *r, const json_t *v, json_t **out)
{
    struct neb_buf made;
    neb__buf_init(&made, NEB_JINJA_TEXT);
    neb_status status = neb__jinja_print(v, &made);
    if (status == NEB_OK) status = neb__jinja_text(r, (const char *)made.data, made.len, out);
    neb__buf_free(&made);
    return status;
}

static neb_status length(const json_t *v, json_t **out)
{
    json_int_t n = 0;
    for (const char *p = text_of(v); *p; p++) n += ((uint8_t)*p & 0xC0) != 0x80;
    if (json_is_array(v)) n = (json_int_t)json_array_size(v);
    if (json_is_object(v)) n = (json_int_t)json_object_size(v);
    return neb__jinja_given(json_integer(n), out);
}

static neb_status join(struct neb_jinja *r, const json_t *v, const char *with, json_t **out)
{
    struct neb_buf made;
    neb_status status = NEB_OK;
    neb__buf_init(&made, NEB_JINJA_TEXT);
    for (size_t i = 0; status == NEB_OK && i < json_array_size(v); i++) {
        if (i) status = neb__buf_append(&made, with, strlen(with));
        if (status == NEB_OK) status = neb__jinja_print(json_array_get(v, i), &made);
    }
    if (status == NEB_OK) status = neb__jinja_text(r, made.len ? (const char *)made.data : "", made.len, out);
    neb__buf_free(&made);
    return status;
}

static int append_json(const char *p, size_t n, void *out)
{
    return neb__buf_append(out, p, n) == NEB_OK ? 0 : -1;
}

/* As Python writes it: all of Unicode as it is, and the keys in their order. */
static neb_status as_json(struct neb_jinja *r, const json_t *v, const struct neb_jinja_args *a, json_t **out)
{
    const json_t *indent = neb__jinja_arg(a, 1, "indent");
    const json_int_t width = json_is_integer(indent) ? json_integer_value(indent) : 0;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->name[i], "indent") && (strcmp(a->name[i], "ensure_ascii") || json_is_true(a->value[i])))
            return neb__jinja_unknown(r, "argument of tojson", a->name[i]);
    if (width < 0 || width > 31) return neb__jinja_unknown(r, "argument of tojson", "indent");
    struct neb_buf made;
    neb__buf_init(&made, NEB_JINJA_TEXT);
    neb_status status = NEB_OK;
    if (json_dump_callback(v, append_json, &made, JSON_ENCODE_ANY | JSON_INDENT((size_t)width)))
        status = neb__jinja_too_much(r, "the JSON of a value becomes too long");
    if (status == NEB_OK) status = neb__jinja_text(r, (const char *)made.data, made.len, out);
    neb__buf_free(&made);
    return status;
}

/* ---- filters and tests ------------------------------------------------------------------------------------- */

neb_status neb__jinja_filter(struct neb_jinja *r, const char *name, json_t *v, const struct neb_jinja_args *a,
                             json_t **out)
{
    const size_t n = json_array_size(v);
    bool known;
    if (!strcmp(name, "trim") && !a->n) return stripped(r, v, blanks, true, true, out);
    if (!strcmp(name, "length") || !strcmp(name, "count")) return length(v, out);
    if (!strcmp(name, "upper")) return cased(r, v, true, out);
    if (!strcmp(name, "lower")) return cased(r, v, false, out);
    if (!strcmp(name, "join")) return join(r, v, text_of(neb__jinja_arg(a, 0, "d")), out);
    if (!strcmp(name, "replace"))
        return replaced(r, v, text_of(neb__jinja_arg(a, 0, "old")), text_of(neb__jinja_arg(a, 1, "new")),
                        out);
    if (!strcmp(name, "tojson") && v) return as_json(r, v, a, out);
    NEB_TRY(neb__jinja_list_filter(r, name, v, a, &known, out));
    if (known) return NEB_OK;
    if ((!strcmp(name, "first") || !strcmp(name, "last")) && json_is_array(v)) {
        *out = n ? json_incref(json_array_get(v, *name == 'f' ? 0 : n - 1)) : NULL;
        return NEB_OK;
    }
    if (!strcmp(name, "default") || !strcmp(name, "d")) {
        const bool falsy = neb__jinja_true(neb__jinja_arg(a, 1, "boolean"));
        *out =
            json_incref((falsy ? neb__jinja_true(v) : v != NULL) ? v : neb__jinja_arg(a, 0, "default_value"));
        return NEB_OK;
    }
    if (!strcmp(name, "string") && (json_is_integer(v) || json_is_boolean(v) || json_is_null(v)))
        return printed(r, v, out);
    if (!strcmp(name, "safe") || (!strcmp(name, "string") && json_is_string(v))) {
        *out = json_incref(v);
        return NEB_OK;
    }
    return neb__jinja_unknown(r, "filter", name);
}

neb_status neb__jinja_test(struct neb_jinja *r, const char *name, const json_t *v,
                           const struct neb_jinja_args *a, bool *out)
{
    if (!strcmp(name, "defined"))
        *out = v != NULL;
    else if (!strcmp(name, "undefined"))
        *out = v == NULL;
    else if (!strcmp(name, "none"))
        *out = json_is_null(v);
    else if (!strcmp(name, "string"))
        *out = json_is_string(v);
    else if (!strcmp(name, "mapping"))
        *out = json_is_object(v);
    else if (!strcmp(name, "number"))
        *out = json_is_number(v);
    else if (!strcmp(name, "integer"))
        *out = json_is_integer(v);
    else if ((!strcmp(name, "even") || !strcmp(name, "odd")) && json_is_integer(v))
        *out = (json_integer_value(v) % 2 != 0) == (*name == 'o');
    else if (!strcmp(name, "boolean"))
        *out = json_is_boolean(v);
    else if (!strcmp(name, "true"))
        *out = json_is_true(v);
    else if (!strcmp(name, "false"))
        *out = json_is_false(v);
    else if (!strcmp(name, "sequence") || !strcmp(name, "iterable"))
        *out = json_is_array(v) || json_is_string(v) || json_is_object(v);
    else if ((!strcmp(name, "equalto") || !strcmp(name, "eq")) && a->n == 1)
        return neb__jinja_equal(r, v, a->value[0], out);
    else if (!strcmp(name, "ne") && a->n == 1) {
        NEB_TRY(neb__jinja_equal(r, v, a->value[0], out));
        *out = !*out;
    } else
        return neb__jinja_unknown(r, "test", name);
    return NEB_OK;
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

static bool ends(const char *text, const char *with)
{
    const size_t n = strlen(text), m = strlen(with);
    return n >= m && !memcmp(text + n - m, with, m);
}

static neb_status values(struct neb_jinja *r, json_t *v, json_t **out)
{
    NEB_TRY(neb__jinja_spend_list(r, json_object_size(v)));
    json_t *list = json_array(), *one;
    const char *key;
    bool bad = !list;
    json_object_foreach(v, key, one)
    {
        bad = bad || json_array_append(list, one);
    }
    if (bad) json_decref(list);
    return neb__jinja_given(bad ? NULL : list, out);
}

neb_status neb__jinja_method(struct neb_jinja *r, const char *name, json_t *v, const struct neb_jinja_args *a,
                             json_t **out)
{
    const char *first = text_of(neb__jinja_arg(a, 0, "")), *set = a->n ? first : blanks;
    if (json_is_object(v) && !strcmp(name, "get") && a->n) {
        json_t *there = json_object_get(v, first), *other = neb__jinja_arg(a, 1, "");
        return neb__jinja_given(there ? json_incref(there) : other ? json_incref(other) : json_null(), out);
    }
    if (json_is_object(v) && !strcmp(name, "items")) return neb__jinja_pairs(r, v, false, out);
    if (json_is_object(v) && !strcmp(name, "keys")) return neb__jinja_list(r, v, out);
    if (json_is_object(v) && !strcmp(name, "values")) return values(r, v, out);
    if (!json_is_string(v)) return neb__jinja_unknown(r, "method", name);
    if (!strcmp(name, "strip")) return stripped(r, v, set, true, true, out);
    if (!strcmp(name, "lstrip")) return stripped(r, v, set, true, false, out);
    if (!strcmp(name, "rstrip")) return stripped(r, v, set, false, true, out);
    if (!strcmp(name, "upper")) return cased(r, v, true, out);
    if (!strcmp(name, "lower")) return cased(r, v, false, out);
    if (!strcmp(name, "split") && a->n == 1) return split(r, v, first, out);
    if (!strcmp(name, "replace") && a->n == 2) return replaced(r, v, first, text_of(a->value[1]), out);
    if (!strcmp(name, "startswith") && a->n == 1)
        return neb__jinja_given(json_boolean(begins(text_of(v), first)), out);
    if (!strcmp(name, "endswith") && a->n == 1)
        return neb__jinja_given(json_boolean(ends(text_of(v), first)), out);
    return neb__jinja_unknown(r, "method", name);
}

static neb_status namespace(struct neb_jinja *r, const struct neb_jinja_args *a, json_t **out)
{
    NEB_TRY(neb__jinja_spend(r, (size_t)(a->n + 1) * NEB_JINJA_FIELD));
    json_t *made = json_object();
    bool bad = !made;
    for (int i = 0; !bad && i < a->n; i++)
        bad = *a->name[i] && json_object_set(made, a->name[i], a->value[i] ? a->value[i] : json_null());
    if (bad) json_decref(made);
    return neb__jinja_given(bad ? NULL : made, out);
}

static neb_status today(struct neb_jinja *r, const char *format, json_t **out)
{
    char text[256];
    const time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    return neb__jinja_text(r, text, strftime(text, sizeof text, format, &tm), out);
}

neb_status neb__jinja_function(struct neb_jinja *r, const char *name, const struct neb_jinja_args *a,
                               json_t **out)
{
    if (!strcmp(name, "namespace") || !strcmp(name, "dict")) return namespace(r, a, out);
    if (!strcmp(name, "range")) return neb__jinja_range(r, a, out);
    if (!strcmp(name, "strftime_now") && a->n == 1) return today(r, text_of(a->value[0]), out);
    if (!strcmp(name, "raise_exception"))
        return neb__fail(NEB_ERR_INVALID, "the chat template refuses this conversation: %.200s",
                         text_of(neb__jinja_arg(a, 0, "message")));
    return neb__jinja_unknown(r, "function", name);
}
