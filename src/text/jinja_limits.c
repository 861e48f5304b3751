/* jinja_limits.c: what a template may take beside its steps: the bytes of the values that it makes, the parts and text that it
 * looks at, and the depth of a variable.
 *
 * Values are shared, so a short template can name a tree of 2^60 parts: whoever walks one counts each part as it comes. Only
 * `set a.b = …` changes a value. It gives lists and tables to namespaces that nothing else holds, so no value contains itself. */
#include "text/jinja_parts.h"

enum { TEXT_A_PART = 64 }; /* bytes of text that are looked at as fast as a part of a list */

neb_status neb__jinja_spend(struct neb_jinja *r, size_t bytes)
{
    if (bytes <= r->bytes) {
        r->bytes -= bytes;
        return NEB_OK;
    }
    r->bytes = 0;
    return neb__jinja_too_much(r, "its texts and lists take more than 256 MiB");
}

neb_status neb__jinja_spend_list(struct neb_jinja *r, size_t items)
{
    return neb__jinja_spend(r, NEB_JINJA_VALUE + 2 * sizeof(json_t *) * items);
}

neb_status neb__jinja_work(struct neb_jinja *r, size_t parts)
{
    if (parts <= r->work) {
        r->work -= parts;
        return NEB_OK;
    }
    r->work = 0;
    return neb__jinja_too_much(r, "it looks through too much");
}

neb_status neb__jinja_look(struct neb_jinja *r, const json_t *v)
{
    return neb__jinja_work(r, 1 + json_string_length(v) / TEXT_A_PART);
}

neb_status neb__jinja_check_depth(struct neb_jinja *r, const json_t *v, int most)
{
    const char *key;
    json_t *part;
    NEB_TRY(neb__jinja_work(r, 1));
    if (!json_is_array(v) && !json_is_object(v)) return NEB_OK;
    if (most < 1) return neb__jinja_too_much(r, "its lists and tables are too deep");
    for (size_t i = 0; i < json_array_size(v); i++)
        NEB_TRY(neb__jinja_check_depth(r, json_array_get(v, i), most - 1));
    json_object_foreach((json_t *)v, key, part)
    {
        NEB_TRY(neb__jinja_check_depth(r, part, most - 1));
    }
    return NEB_OK;
}

static neb_status same_items(struct neb_jinja *r, const json_t *a, const json_t *b, bool *same)
{
    *same = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; *same && i < json_array_size(a); i++)
        NEB_TRY(neb__jinja_equal(r, json_array_get(a, i), json_array_get(b, i), same));
    return NEB_OK;
}

static neb_status same_fields(struct neb_jinja *r, const json_t *a, const json_t *b, bool *same)
{
    const char *key;
    json_t *part;
    *same = json_object_size(a) == json_object_size(b);
    json_object_foreach((json_t *)a, key, part)
    {
        if (*same) NEB_TRY(neb__jinja_equal(r, part, json_object_get(b, key), same));
    }
    return NEB_OK;
}

neb_status neb__jinja_equal(struct neb_jinja *r, const json_t *a, const json_t *b, bool *same)
{
    NEB_TRY(neb__jinja_look(r, a));
    if (a && a != b && json_is_array(a) && json_is_array(b)) return same_items(r, a, b, same);
    if (a && a != b && json_is_object(a) && json_is_object(b)) return same_fields(r, a, b, same);
    *same = json_equal(a, b);
    return NEB_OK;
}
