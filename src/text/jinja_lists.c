/* jinja_lists.c: lists of templates: what a loop goes through, pairs of tables, ranges, slices, and the filters that make a
 * list from another. A text is a list of its characters. */
#include "text/jinja_parts.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static neb_status no_memory(void)
{
    return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
}

static const char *text_of(const json_t *v)
{
    return json_is_string(v) ? json_string_value(v) : "";
}

static size_t char_bytes(const char *p)
{
    size_t n = 1;
    while (((uint8_t)p[n] & 0xC0) == 0x80) n++;
    return n;
}

static neb_status characters(struct neb_jinja *r, const char *p, json_t **out)
{
    json_t *list = json_array();
    bool bad = !list;
    for (size_t n; !bad && *p; p += n) {
        n = char_bytes(p);
        neb_status status = neb__jinja_spend(r, 2 * NEB_JINJA_VALUE);
        if (status != NEB_OK) {
            json_decref(list);
            return status;
        }
        bad = json_array_append_new(list, json_stringn(p, n)) != 0;
    }
    if (bad) json_decref(list);
    return neb__jinja_given(bad ? NULL : list, out);
}

/* The bytes of the keys of a table, and of `each` beside. */
static neb_status spend_keys(struct neb_jinja *r, const json_t *v, size_t each)
{
    size_t bytes = NEB_JINJA_VALUE;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        bytes += each + strlen(key);
    }
    return neb__jinja_spend(r, bytes);
}

static neb_status keys(struct neb_jinja *r, const json_t *v, json_t **out)
{
    NEB_TRY(spend_keys(r, v, 2 * NEB_JINJA_VALUE));
    json_t *list = json_array(), *value;
    const char *key;
    bool bad = !list;
    json_object_foreach((json_t *)v, key, value)
    {
        bad = bad || json_array_append_new(list, json_string(key));
    }
    if (bad) json_decref(list);
    return neb__jinja_given(bad ? NULL : list, out);
}

neb_status neb__jinja_list(struct neb_jinja *r, const json_t *v, json_t **out)
{
    if (!v) return neb__jinja_given(json_array(), out);
    if (json_is_array(v)) NEB_TRY(neb__jinja_spend_list(r, json_array_size(v)));
    if (json_is_array(v)) return neb__jinja_given(json_copy((json_t *)v), out);
    if (json_is_object(v)) return keys(r, v, out);
    if (json_is_string(v)) return characters(r, json_string_value(v), out);
    return neb__jinja_unknown(r, "loop over", "something that is not a list");
}

static int by_key(const void *a, const void *b)
{
    const json_t *x = json_array_get(*(json_t *const *)a, 0), *y = json_array_get(*(json_t *const *)b, 0);
    const int c = strcasecmp(json_string_value(x), json_string_value(y));
    return c ? c : strcmp(json_string_value(x), json_string_value(y));
}

static neb_status sort_pairs(json_t *list)
{
    const size_t n = json_array_size(list);
    json_t **at = NEB_NEW_ARRAY(json_t *, n + 1);
    if (!at) return no_memory();
    for (size_t i = 0; i < n; i++) at[i] = json_incref(json_array_get(list, i));
    qsort(at, n, sizeof *at, by_key);
    bool bad = json_array_clear(list) != 0;
    for (size_t i = 0; i < n; i++) bad = json_array_append_new(list, at[i]) || bad;
    neb__free(at);
    return bad ? no_memory() : NEB_OK;
}

neb_status neb__jinja_pairs(struct neb_jinja *r, const json_t *v, bool sorted, json_t **out)
{
    if (v && !json_is_object(v)) return neb__jinja_unknown(r, "pairs of", "something that is not a table");
    NEB_TRY(spend_keys(r, v, (size_t)4 * NEB_JINJA_VALUE));
    json_t *list = json_array(), *value;
    const char *key;
    neb_status status = list ? NEB_OK : no_memory();
    json_object_foreach((json_t *)v, key, value)
    {
        if (status == NEB_OK && json_array_append_new(list, json_pack("[s, O]", key, value)))
            status = no_memory();
    }
    if (status == NEB_OK && sorted) status = sort_pairs(list);
    if (status == NEB_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

neb_status neb__jinja_range(struct neb_jinja *r, const struct neb_jinja_args *a, json_t **out)
{
    json_int_t v[3] = {0, 0, 1};
    for (int i = 0; i < a->n && i < 3; i++) {
        if (!json_is_integer(a->value[i]))
            return neb__jinja_unknown(r, "range of", "something that is not a number");
        v[a->n == 1 ? 1 : i] = json_integer_value(a->value[i]);
    }
    if (a->n < 1 || a->n > 3 || !v[2]) return neb__jinja_unknown(r, "range of", "such arguments");
    json_t *list = json_array();
    bool bad = !list;
    size_t n = 0;
    for (json_int_t i = v[0]; !bad && (v[2] > 0 ? i < v[1] : i > v[1]); i += v[2]) {
        if (n++ >= NEB_JINJA_LIST) {
            json_decref(list);
            return neb__fail(NEB_ERR_RANGE, "chat template: a range is too long");
        }
        bad = json_array_append_new(list, json_integer(i)) != 0;
        if (__builtin_add_overflow(i, v[2], &(json_int_t){0})) break;
    }
    neb_status status = bad ? no_memory() : neb__jinja_spend(r, (n + 1) * NEB_JINJA_VALUE);
    if (status == NEB_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

/* ---- slices ---------------------------------------------------------------------------------------------------- */

/* The bound of a slice; not given: `fallback`. */
static json_int_t bound(const json_t *v, json_int_t size, json_int_t fallback)
{
    if (!json_is_integer(v)) return fallback;
    json_int_t i = json_integer_value(v);
    if (i < 0) i += size;
    return i < 0 ? -1 : i > size ? size : i;
}

static neb_status slice_list(struct neb_jinja *r, const json_t *v, json_t *const part[3], json_t **out)
{
    const json_int_t size = (json_int_t)json_array_size(v),
                     step = json_is_integer(part[2]) ? json_integer_value(part[2]) : 1;
    if (!step || step > INT32_MAX || step < -INT32_MAX)
        return neb__jinja_malformed(r, "a step that is not 0");
    json_int_t from = bound(part[0], size, step > 0 ? 0 : size - 1),
               to = bound(part[1], size, step > 0 ? size : -1);
    if (step < 0 && from >= size) from = size - 1;
    if (step > 0 && from < 0) from = 0;
    NEB_TRY(neb__jinja_spend_list(r, (size_t)size));
    json_t *made = json_array();
    for (json_int_t i = from; made && (step > 0 ? i < to : i > to); i += step)
        if (json_array_append(made, json_array_get(v, (size_t)i))) {
            json_decref(made);
            made = NULL;
        }
    return neb__jinja_given(made, out);
}

static neb_status slice_text(struct neb_jinja *r, const json_t *v, json_t *const part[3], json_t **out)
{
    json_t *all, *some = NULL;
    struct neb_buf made;
    const size_t bytes = r->bytes;
    NEB_TRY(characters(r, json_string_value(v), &all));
    neb__buf_init(&made, NEB_JINJA_TEXT);
    neb_status status = slice_list(r, all, part, &some);
    r->bytes = bytes; /* of the characters, which are dropped */
    for (size_t i = 0; status == NEB_OK && i < json_array_size(some); i++) {
        const json_t *c = json_array_get(some, i);
        status = neb__buf_append(&made, json_string_value(c), json_string_length(c));
    }
    if (status == NEB_OK) status = neb__jinja_text(r, made.len ? (const char *)made.data : "", made.len, out);
    neb__buf_free(&made);
    json_decref(some);
    json_decref(all);
    return status;
}

neb_status neb__jinja_slice(struct neb_jinja *r, const json_t *v, json_t *const part[3], json_t **out)
{
    if (json_is_string(v)) return slice_text(r, v, part, out);
    if (json_is_array(v)) return slice_list(r, v, part, out);
    return neb__jinja_unknown(r, "slice", "of something that is not a list");
}

/* ---- filters --------------------------------------------------------------------------------------------------- */

/* Items that pass a test, or whose field does: reject("equalto", "x"), selectattr("role", "equalto", "user"). */
static neb_status choose(struct neb_jinja *r, const json_t *v, const struct neb_jinja_args *a, bool by_field,
                         bool wanted, json_t **out)
{
    const char *field = text_of(neb__jinja_arg(a, 0, "")), *test = text_of(neb__jinja_arg(a, by_field, ""));
    struct neb_jinja_args rest = {.value = {neb__jinja_arg(a, by_field + 1, "")}, .n = a->n > by_field + 1};
    NEB_TRY(neb__jinja_spend_list(r, json_array_size(v)));
    json_t *list = json_array();
    neb_status status = list ? NEB_OK : no_memory();
    for (size_t i = 0; status == NEB_OK && i < json_array_size(v); i++) {
        json_t *item = json_array_get(v, i), *at = by_field ? json_object_get(item, field) : item;
        bool is = neb__jinja_true(at);
        if (*test) status = neb__jinja_test(r, test, at, &rest, &is);
        if (status == NEB_OK && is == wanted && json_array_append(list, item)) status = no_memory();
    }
    if (status == NEB_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

/* map(attribute="name", default=…), or map("filter", arguments…) */
static neb_status map(struct neb_jinja *r, const json_t *v, const struct neb_jinja_args *a, json_t **out)
{
    const char *field = text_of(neb__jinja_arg(a, NEB_JINJA_ARGS, "attribute")),
               *filter = text_of(neb__jinja_arg(a, 0, ""));
    NEB_TRY(neb__jinja_spend(r, (json_array_size(v) + 1) * NEB_JINJA_VALUE));
    json_t *other = neb__jinja_arg(a, NEB_JINJA_ARGS, "default"), *list = json_array();
    struct neb_jinja_args rest = {.n = 0};
    for (int i = 1; i < a->n; i++) {
        rest.value[rest.n] = a->value[i];
        memcpy(rest.name[rest.n++], a->name[i], NEB_JINJA_NAME);
    }
    neb_status status = list ? NEB_OK : no_memory();
    for (size_t i = 0; status == NEB_OK && i < json_array_size(v); i++) {
        json_t *item = json_array_get(v, i), *made = NULL;
        if (*field)
            made = json_incref(json_object_get(item, field) ? json_object_get(item, field) : other);
        else
            status = neb__jinja_filter(r, filter, item, &rest, &made);
        if (status == NEB_OK && json_array_append_new(list, made ? made : json_null())) status = no_memory();
    }
    if (status == NEB_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

static neb_status reversed(struct neb_jinja *r, const json_t *v, json_t **out)
{
    NEB_TRY(neb__jinja_spend_list(r, json_array_size(v)));
    json_t *list = json_array();
    bool bad = !list;
    for (size_t i = json_array_size(v); !bad && i > 0; i--)
        bad = json_array_append(list, json_array_get(v, i - 1)) != 0;
    if (bad) json_decref(list);
    return neb__jinja_given(bad ? NULL : list, out);
}

static neb_status unique(struct neb_jinja *r, const json_t *v, json_t **out)
{
    NEB_TRY(neb__jinja_spend_list(r, json_array_size(v)));
    json_t *list = json_array();
    neb_status status = list ? NEB_OK : no_memory();
    for (size_t i = 0; status == NEB_OK && i < json_array_size(v); i++) {
        bool there = false;
        for (size_t k = 0; status == NEB_OK && !there && k < json_array_size(list); k++)
            status = neb__jinja_equal(r, json_array_get(list, k), json_array_get(v, i), &there);
        if (status == NEB_OK && !there && json_array_append(list, json_array_get(v, i))) status = no_memory();
    }
    if (status == NEB_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

neb_status neb__jinja_list_filter(struct neb_jinja *r, const char *name, json_t *v,
                                  const struct neb_jinja_args *a, bool *known, json_t **out)
{
    *known = true;
    NEB_TRY(neb__jinja_work(r, json_array_size(v)));
    if (!strcmp(name, "items")) return neb__jinja_pairs(r, v, false, out);
    if (!strcmp(name, "dictsort") && !a->n) return neb__jinja_pairs(r, v, true, out);
    if (!strcmp(name, "list")) return neb__jinja_list(r, v, out);
    if (!strcmp(name, "map")) return map(r, v, a, out);
    if (!strcmp(name, "select")) return choose(r, v, a, false, true, out);
    if (!strcmp(name, "reject")) return choose(r, v, a, false, false, out);
    if (!strcmp(name, "selectattr")) return choose(r, v, a, true, true, out);
    if (!strcmp(name, "rejectattr")) return choose(r, v, a, true, false, out);
    if (!strcmp(name, "reverse") && json_is_array(v)) return reversed(r, v, out);
    if (!strcmp(name, "unique") && json_is_array(v)) return unique(r, v, out);
    *known = false;
    return NEB_OK;
}
