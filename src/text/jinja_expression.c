/* jinja_expression.c: expressions of templates, by recursive descent, from the loosest to the tightest:
 *
 *     a if b else c · or · and · not · == != < <= > >= in · + - · ~ · * // % · unary - · .name [index] [from:to:step] (call) |filter
 *     is test
 *
 * Every level reads its operands and computes at once. In `a if b else c`, b decides whether a runs, so a is first read dead: once
 * in the run of a template, which notes for each expression where its `if` stands. Brackets in brackets are read twice, not 2^depth
 * times. */
#include "text/jinja_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words and signs ---------------------------------------------------------------------------------------------- */

void neb__jinja_space(struct neb_jinja *r)
{
    while (r->at < r->n && strchr(" \t\n\r\f\v", r->text[r->at]) && r->text[r->at]) r->at++;
}

static bool stands(const struct neb_jinja *r, const char *sign)
{
    const size_t n = strlen(sign);
    return r->n - r->at >= n && !memcmp(r->text + r->at, sign, n);
}

bool neb__jinja_take(struct neb_jinja *r, const char *sign)
{
    neb__jinja_space(r);
    if (!stands(r, sign)) return false;
    r->at += strlen(sign);
    return true;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool neb__jinja_take_word(struct neb_jinja *r, const char *word)
{
    const size_t n = strlen(word);
    neb__jinja_space(r);
    if (!stands(r, word)) return false;
    if (r->at + n < r->n && (is_letter(r->text[r->at + n]) || is_digit(r->text[r->at + n]))) return false;
    r->at += n;
    return true;
}

neb_status neb__jinja_name(struct neb_jinja *r, char out[NEB_JINJA_NAME])
{
    size_t n = 0;
    neb__jinja_space(r);
    while (r->at + n < r->n && (is_letter(r->text[r->at + n]) || (n && is_digit(r->text[r->at + n])))) n++;
    if (!n || n >= NEB_JINJA_NAME) return neb__jinja_malformed(r, "a name");
    memcpy(out, r->text + r->at, n);
    out[n] = 0;
    r->at += n;
    return NEB_OK;
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

bool neb__jinja_true(const json_t *v)
{
    if (json_is_string(v)) return json_string_length(v) > 0;
    if (json_is_integer(v)) return json_integer_value(v) != 0;
    if (json_is_array(v)) return json_array_size(v) > 0;
    if (json_is_object(v)) return json_object_size(v) > 0;
    return json_is_true(v) || (json_is_real(v) && json_real_value(v) != 0);
}

neb_status neb__jinja_print(const json_t *v, struct neb_buf *out)
{
    if (!v) return NEB_OK;
    if (json_is_string(v)) return neb__buf_append(out, json_string_value(v), json_string_length(v));
    if (json_is_integer(v)) return neb__buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    if (json_is_boolean(v)) return neb__buf_printf(out, "%s", json_is_true(v) ? "True" : "False");
    if (json_is_null(v)) return neb__buf_printf(out, "None");
    return neb__fail(NEB_ERR_UNSUPPORTED,
                     "chat template: it prints a list, a table or a fraction, which is not known here; "
                     "choose a template with --template");
}

neb_status neb__jinja_given(json_t *v, json_t **out)
{
    if (!v) return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    *out = v;
    return NEB_OK;
}

neb_status neb__jinja_text(struct neb_jinja *r, const char *p, size_t n, json_t **out)
{
    if (n > NEB_JINJA_TEXT) return neb__fail(NEB_ERR_RANGE, "chat template: a text becomes too long");
    NEB_TRY(neb__jinja_spend(r, NEB_JINJA_VALUE + n));
    return neb__jinja_given(json_stringn(p, n), out);
}

static neb_status truth(bool is, json_t **out)
{
    return neb__jinja_given(json_boolean(is), out);
}

/* ---- literals ------------------------------------------------------------------------------------------------------ */

static neb_status text_literal(struct neb_jinja *r, bool live, json_t **out)
{
    const char quote = r->text[r->at++];
    struct neb_buf made;
    neb_status status = NEB_OK;
    neb__buf_init(&made, NEB_JINJA_TEXT);
    while (status == NEB_OK && r->at < r->n && r->text[r->at] != quote) {
        char c = r->text[r->at++];
        if (c == '\\' && r->at < r->n) {
            static const char from[] = "ntr\\'\"", to[] = "\n\t\r\\'\"";
            const char *known = strchr(from, r->text[r->at]);
            if (!known || !*known)
                status = !live ? NEB_OK : neb__jinja_unknown(r, "escape", (char[]){'\\', r->text[r->at], 0});
            else
                c = to[known - from], r->at++;
        }
        if (status == NEB_OK) status = neb__buf_append(&made, &c, 1);
    }
    if (status == NEB_OK && r->at++ >= r->n) status = neb__jinja_malformed(r, "the end of a text");
    if (status == NEB_OK && live)
        status = neb__jinja_text(r, made.len ? (const char *)made.data : "", made.len, out);
    neb__buf_free(&made);
    return status;
}

static neb_status skip_digits(struct neb_jinja *r)
{
    for (r->at++; r->at < r->n && is_digit(r->text[r->at]);) r->at++;
    return NEB_OK;
}

static neb_status number_literal(struct neb_jinja *r, bool live, json_t **out)
{
    json_int_t v = 0;
    for (; r->at < r->n && is_digit(r->text[r->at]); r->at++) {
        if (v > INT32_MAX) return neb__fail(NEB_ERR_RANGE, "chat template: a number is too large");
        v = v * 10 + (r->text[r->at] - '0');
    }
    if (r->at + 1 < r->n && r->text[r->at] == '.' && is_digit(r->text[r->at + 1]))
        return live ? neb__jinja_unknown(r, "number", "with a fraction") : skip_digits(r);
    return live ? neb__jinja_given(json_integer(v), out) : NEB_OK;
}

static neb_status list_literal(struct neb_jinja *r, bool live, const char *end, json_t **out)
{
    NEB_TRY(neb__jinja_spend(r, NEB_JINJA_VALUE));
    json_t *list = json_array();
    neb_status status = list ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    while (status == NEB_OK && !neb__jinja_take(r, end)) {
        json_t *v = NULL;
        status = neb__jinja_expression(r, live, &v);
        if (status == NEB_OK && live) status = neb__jinja_spend(r, NEB_JINJA_VALUE);
        if (status != NEB_OK)
            json_decref(v);
        else if (live && json_array_append_new(list, v ? v : json_null()))
            status = neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
        if (status == NEB_OK && !neb__jinja_take(r, ",") && !stands(r, end))
            status = neb__jinja_malformed(r, end);
    }
    if (status == NEB_OK && live)
        *out = list;
    else
        json_decref(list);
    return status;
}

static neb_status table_literal(struct neb_jinja *r, bool live, json_t **out)
{
    NEB_TRY(neb__jinja_spend(r, NEB_JINJA_FIELD));
    json_t *table = json_object();
    neb_status status = table ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    while (status == NEB_OK && !neb__jinja_take(r, "}")) {
        json_t *key = NULL, *v = NULL;
        status = neb__jinja_expression(r, live, &key);
        if (status == NEB_OK && !neb__jinja_take(r, ":")) status = neb__jinja_malformed(r, "':'");
        if (status == NEB_OK) status = neb__jinja_expression(r, live, &v);
        if (status == NEB_OK && live) status = neb__jinja_spend(r, NEB_JINJA_FIELD + json_string_length(key));
        if (status == NEB_OK && live &&
            (!json_is_string(key) || json_object_set(table, json_string_value(key), v ? v : json_null())))
            status = neb__jinja_unknown(r, "key", "that is not a text");
        json_decref(key);
        json_decref(v);
        if (status == NEB_OK && !neb__jinja_take(r, ",") && !stands(r, "}"))
            status = neb__jinja_malformed(r, "'}'");
    }
    if (status == NEB_OK && live)
        *out = table;
    else
        json_decref(table);
    return status;
}

/* ---- what stands behind a value -------------------------------------------------------------------------------- */

static void drop_args(struct neb_jinja_args *a)
{
    while (a->n) json_decref(a->value[--a->n]);
}

/* name=value, but not name==value */
static bool is_named(struct neb_jinja *r, char name[NEB_JINJA_NAME])
{
    const size_t at = r->at;
    neb__jinja_space(r);
    *name = 0;
    if (r->at < r->n && is_letter(r->text[r->at]) && neb__jinja_name(r, name) == NEB_OK) {
        neb__jinja_space(r);
        if (stands(r, "=") && !stands(r, "==")) {
            r->at++;
            return true;
        }
    }
    *name = 0;
    r->at = at;
    return false;
}

/* Behind the opening bracket. */
static neb_status read_args(struct neb_jinja *r, bool live, struct neb_jinja_args *a)
{
    while (!neb__jinja_take(r, ")")) {
        if (a->n == NEB_JINJA_ARGS) return neb__jinja_unknown(r, "call", "with so many arguments");
        is_named(r, a->name[a->n]);
        NEB_TRY(neb__jinja_expression(r, live, &a->value[a->n]));
        a->n++;
        if (!neb__jinja_take(r, ",") && !stands(r, ")")) return neb__jinja_malformed(r, "')'");
    }
    return NEB_OK;
}

static neb_status field(json_t *v, const char *name, json_t **out)
{
    *out = json_incref(json_object_get(v, name));
    return NEB_OK;
}

static neb_status member(struct neb_jinja *r, bool live, json_t *v, json_t **out)
{
    char name[NEB_JINJA_NAME];
    struct neb_jinja_args a = {.n = 0};
    NEB_TRY(neb__jinja_name(r, name));
    neb__jinja_space(r);
    if (!stands(r, "(")) return live ? field(v, name, out) : NEB_OK;
    r->at++;
    neb_status status = read_args(r, live, &a);
    if (status == NEB_OK && live) status = neb__jinja_method(r, name, v, &a, out);
    drop_args(&a);
    return status;
}

static neb_status item(struct neb_jinja *r, json_t *v, const json_t *at, json_t **out)
{
    if (json_is_string(at)) return field(v, json_string_value(at), out);
    if (json_is_string(v) && json_is_integer(at)) { /* one character is a slice */
        const json_int_t i = json_integer_value(at);
        json_t *part[3] = {json_integer(i), i == -1 ? NULL : json_integer(i + 1), NULL};
        neb_status status = neb__jinja_slice(r, v, part, out);
        json_decref(part[0]);
        json_decref(part[1]);
        return status;
    }
    if (!json_is_integer(at) || (v && !json_is_array(v)))
        return neb__jinja_unknown(r, "index", "that is neither a name nor the number of an item");
    json_int_t i = json_integer_value(at);
    if (i < 0) i += (json_int_t)json_array_size(v);
    *out = i < 0 ? NULL : json_incref(json_array_get(v, (size_t)i));
    return NEB_OK;
}

/* Behind `[`. */
static neb_status subscript(struct neb_jinja *r, bool live, json_t *v, json_t **out)
{
    json_t *part[3] = {NULL};
    int n = 0;
    neb_status status = NEB_OK;
    bool sliced = false;
    while (status == NEB_OK && n < 3) {
        neb__jinja_space(r);
        if (!stands(r, ":") && !stands(r, "]")) status = neb__jinja_expression(r, live, &part[n]);
        if (status != NEB_OK || !neb__jinja_take(r, ":")) break;
        sliced = true;
        n++;
    }
    if (status == NEB_OK && !neb__jinja_take(r, "]")) status = neb__jinja_malformed(r, "']'");
    if (status == NEB_OK && live)
        status = sliced ? neb__jinja_slice(r, v, part, out) : item(r, v, part[0], out);
    for (int i = 0; i < 3; i++) json_decref(part[i]);
    return status;
}

/* `| name` or `is [not] name`, each with arguments or without. */
static neb_status filtered(struct neb_jinja *r, bool live, json_t *v, json_t **out)
{
    char name[NEB_JINJA_NAME];
    struct neb_jinja_args a = {.n = 0};
    NEB_TRY(neb__jinja_name(r, name));
    neb_status status = neb__jinja_take(r, "(") ? read_args(r, live, &a) : NEB_OK;
    if (status == NEB_OK && live) status = neb__jinja_filter(r, name, v, &a, out);
    drop_args(&a);
    return status;
}

static neb_status tested(struct neb_jinja *r, bool live, json_t *v, json_t **out)
{
    char name[NEB_JINJA_NAME];
    struct neb_jinja_args a = {.n = 0};
    bool is = false;
    const bool negated = neb__jinja_take_word(r, "not");
    NEB_TRY(neb__jinja_name(r, name));
    neb_status status = neb__jinja_take(r, "(") ? read_args(r, live, &a) : NEB_OK;
    if (status == NEB_OK && live) status = neb__jinja_test(r, name, v, &a, &is);
    drop_args(&a);
    return status == NEB_OK && live ? truth(is != negated, out) : status;
}

/* Goes on from *v, which is replaced; *more: there was something. */
static neb_status suffix(struct neb_jinja *r, bool live, json_t **v, bool *more)
{
    json_t *made = NULL;
    neb_status status;
    *more = true;
    NEB_TRY(neb__jinja_step(r));
    if (neb__jinja_take(r, "."))
        status = member(r, live, *v, &made);
    else if (neb__jinja_take(r, "["))
        status = subscript(r, live, *v, &made);
    else if (neb__jinja_take(r, "|"))
        status = filtered(r, live, *v, &made);
    else if (neb__jinja_take_word(r, "is"))
        status = tested(r, live, *v, &made);
    else {
        *more = false;
        return NEB_OK;
    }
    if (status == NEB_OK) status = neb__jinja_look(r, live ? *v : NULL);
    if (status != NEB_OK) {
        json_decref(made);
        return status;
    }
    json_decref(*v);
    *v = made;
    return NEB_OK;
}

/* ---- the levels ---------------------------------------------------------------------------------------------------- */

static neb_status named_value(struct neb_jinja *r, bool live, json_t **out)
{
    char name[NEB_JINJA_NAME];
    struct neb_jinja_args a = {.n = 0};
    NEB_TRY(neb__jinja_name(r, name));
    if (!strcmp(name, "true") || !strcmp(name, "True")) return live ? truth(true, out) : NEB_OK;
    if (!strcmp(name, "false") || !strcmp(name, "False")) return live ? truth(false, out) : NEB_OK;
    if (!strcmp(name, "none") || !strcmp(name, "None"))
        return live ? neb__jinja_given(json_null(), out) : NEB_OK;
    if (neb__jinja_take(r, "(")) {
        neb_status status = read_args(r, live, &a);
        const struct neb_jinja_macro *m = neb__jinja_macro(r, name);
        if (status == NEB_OK && live)
            status = m ? neb__jinja_call(r, m, &a, out) : neb__jinja_function(r, name, &a, out);
        drop_args(&a);
        return status;
    }
    *out = live ? json_incref(neb__jinja_find(r, name)) : NULL;
    if (live && !*out && !strcmp(name, "strftime_now"))
        return truth(true, out); /* a function that is there */
    return NEB_OK;
}

static neb_status primary(struct neb_jinja *r, bool live, json_t **out)
{
    neb__jinja_space(r);
    const char c = r->at < r->n ? r->text[r->at] : 0;
    if (c == '\'' || c == '"') return text_literal(r, live, out);
    if (is_digit(c)) return number_literal(r, live, out);
    if (neb__jinja_take(r, "[")) return list_literal(r, live, "]", out);
    if (neb__jinja_take(r, "{")) return table_literal(r, live, out);
    if (is_letter(c)) return named_value(r, live, out);
    if (!neb__jinja_take(r, "(")) return neb__jinja_malformed(r, "a value");
    NEB_TRY(neb__jinja_expression(r, live, out));
    if (neb__jinja_take(r, ")")) return NEB_OK;
    json_decref(*out);
    *out = NULL;
    return neb__jinja_malformed(r, "')'");
}

static neb_status negative(struct neb_jinja *r, json_t **v)
{
    if (!json_is_integer(*v)) return neb__jinja_unknown(r, "sign", "- before something that is not a number");
    json_t *made = json_integer(-json_integer_value(*v));
    json_decref(*v);
    *v = NULL;
    return neb__jinja_given(made, v);
}

static neb_status unary(struct neb_jinja *r, bool live, json_t **out)
{
    neb__jinja_space(r);
    const bool minus = stands(r, "-") && !stands(r, "-%}") && !stands(r, "-}}");
    bool more = true;
    if (minus) r->at++;
    NEB_TRY(primary(r, live, out));
    neb_status status = minus && live ? negative(r, out) : NEB_OK;
    while (status == NEB_OK && more) status = suffix(r, live, out, &more);
    if (status == NEB_OK) return NEB_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}

/* One operation: a is replaced by the result, b is dropped. */
typedef neb_status (*operate_fn)(struct neb_jinja *r, const char *sign, json_t *a, json_t *b, json_t **out);

static neb_status joined(struct neb_jinja *r, json_t *a, json_t *b, json_t **out)
{
    struct neb_buf made;
    neb__buf_init(&made, NEB_JINJA_TEXT);
    neb_status status = neb__jinja_print(a, &made);
    if (status == NEB_OK) status = neb__jinja_print(b, &made);
    if (status == NEB_OK) status = neb__jinja_text(r, made.len ? (const char *)made.data : "", made.len, out);
    neb__buf_free(&made);
    return status;
}

static neb_status lists_joined(struct neb_jinja *r, json_t *a, json_t *b, json_t **out)
{
    const size_t n = json_array_size(a) + json_array_size(b);
    if (n > NEB_JINJA_LIST) return neb__jinja_too_much(r, "a list becomes too long");
    NEB_TRY(neb__jinja_spend_list(r, n));
    json_t *made = json_copy(a);
    if (made && json_array_extend(made, b)) {
        json_decref(made);
        made = NULL;
    }
    return neb__jinja_given(made, out);
}

static neb_status arithmetic(struct neb_jinja *r, const char *sign, json_t *a, json_t *b, json_t **out)
{
    if (*sign == '~' || (*sign == '+' && json_is_string(a) && json_is_string(b))) return joined(r, a, b, out);
    if (*sign == '+' && json_is_array(a) && json_is_array(b)) return lists_joined(r, a, b, out);
    if (!json_is_integer(a) || !json_is_integer(b))
        return neb__jinja_unknown(r, "operation on values that do not go together", sign);
    const json_int_t x = json_integer_value(a), y = json_integer_value(b);
    json_int_t z = 0;
    bool lost = false;
    if (*sign == '+') lost = __builtin_add_overflow(x, y, &z);
    if (*sign == '-') lost = __builtin_sub_overflow(x, y, &z);
    if (*sign == '*') lost = __builtin_mul_overflow(x, y, &z);
    if (*sign == '%' || *sign == '/') {
        if (y <= 0) return neb__jinja_unknown(r, "division by", "a number below 1");
        z = *sign == '%' ? (x % y + y) % y : (x - (x % y + y) % y) / y;
    }
    return lost ? neb__fail(NEB_ERR_RANGE, "chat template: a number is too large")
                : neb__jinja_given(json_integer(z), out);
}

static neb_status contains(struct neb_jinja *r, const json_t *all, const json_t *one, bool *is)
{
    *is = false;
    NEB_TRY(neb__jinja_look(r, all));
    if (json_is_string(all) && json_is_string(one))
        *is = strstr(json_string_value(all), json_string_value(one)) != NULL;
    if (json_is_object(all) && json_is_string(one))
        *is = json_object_get(all, json_string_value(one)) != NULL;
    for (size_t i = 0; !*is && i < json_array_size(all); i++)
        NEB_TRY(neb__jinja_equal(r, json_array_get(all, i), one, is));
    return NEB_OK;
}

static neb_status compared(struct neb_jinja *r, const char *sign, json_t *a, json_t *b, json_t **out)
{
    bool is = !a && !b;
    if (!strcmp(sign, "in") || !strcmp(sign, "not in")) {
        NEB_TRY(contains(r, b, a, &is));
        return truth(is == (*sign == 'i'), out);
    }
    if (!strcmp(sign, "==") || !strcmp(sign, "!=")) {
        if (!is) NEB_TRY(neb__jinja_equal(r, a, b, &is));
        return truth(is == (*sign == '='), out);
    }
    if (!json_is_integer(a) || !json_is_integer(b))
        return neb__jinja_unknown(r, "comparison of values that are not whole numbers", sign);
    const json_int_t x = json_integer_value(a), y = json_integer_value(b);
    const bool less = *sign == '<' ? x < y : x > y;
    return truth(less || (sign[1] == '=' && x == y), out);
}

/* The sign of `list` that stands here, or NULL. A `-` that belongs to the end of the tag is none. */
static const char *sign_of(struct neb_jinja *r, const char *const *list)
{
    for (; *list; list++) {
        const bool word = is_letter(**list);
        neb__jinja_space(r);
        if (!word && (stands(r, "-%}") || stands(r, "-}}") || stands(r, "%}") || stands(r, "+%}"))) continue;
        if (!strcmp(*list, "not in")) {
            const size_t at = r->at;
            if (neb__jinja_take_word(r, "not") && neb__jinja_take_word(r, "in")) return *list;
            r->at = at;
        } else if (word ? neb__jinja_take_word(r, *list) : neb__jinja_take(r, *list))
            return *list;
    }
    return NULL;
}

struct level {
    const char *signs[9];
    operate_fn operate;
};
static const struct level levels[] = {
    {{"==", "!=", "<=", ">=", "<", ">", "not in", "in", NULL}, compared},
    {{"+", "-", NULL}, arithmetic},
    {{"~", NULL}, arithmetic},
    {{"*", "//", "%", NULL}, arithmetic},
};
enum { LEVELS = sizeof levels / sizeof *levels };

static neb_status binary(struct neb_jinja *r, bool live, int level, json_t **out)
{
    const char *sign;
    if (level == LEVELS) return unary(r, live, out);
    NEB_TRY(binary(r, live, level + 1, out));
    while ((sign = sign_of(r, levels[level].signs))) {
        json_t *b = NULL, *made = NULL;
        neb_status status = binary(r, live, level + 1, &b);
        if (status == NEB_OK && live) status = levels[level].operate(r, sign, *out, b, &made);
        json_decref(*out);
        json_decref(b);
        *out = made;
        if (status != NEB_OK) return status;
    }
    return NEB_OK;
}

static neb_status negation(struct neb_jinja *r, bool live, json_t **out)
{
    bool negated = false, any = false;
    while (neb__jinja_take_word(r, "not")) negated = !negated, any = true;
    NEB_TRY(binary(r, live, 0, out));
    if (!any || !live) return NEB_OK;
    const bool is = neb__jinja_true(*out) != negated;
    json_decref(*out);
    *out = NULL;
    return truth(is, out);
}

/* `and` binds tighter than `or`. The value of both is that of the operand that decides. */
static neb_status logical(struct neb_jinja *r, bool live, bool or, json_t **out)
{
    NEB_TRY(or ? logical(r, live, false, out) : negation(r, live, out));
    while (neb__jinja_take_word(r, or ? "or" : "and")) {
        json_t *b = NULL;
        const bool goes_on = live && neb__jinja_true(*out) != or ;
        neb_status status = or ? logical(r, goes_on, false, &b) : negation(r, goes_on, &b);
        if (goes_on || status != NEB_OK) {
            json_decref(*out);
            *out = status == NEB_OK ? b : NULL;
        }
        NEB_TRY(status);
    }
    return NEB_OK;
}

neb_status neb__jinja_plain_expression(struct neb_jinja *r, bool live, json_t **out)
{
    *out = NULL;
    NEB_TRY(neb__jinja_step(r));
    if (r->depth >= NEB_JINJA_DEPTH)
        return neb__fail(NEB_ERR_RANGE, "chat template: an expression is too deep");
    r->depth++;
    neb_status status = logical(r, live, true, out);
    r->depth--;
    return status;
}

/* Reads a dead expression up to its `if`, and takes that. NEB_JINJA_NO_IF: none follows */
static neb_status read_dead(struct neb_jinja *r, size_t *behind_if)
{
    json_t *none;
    NEB_TRY(neb__jinja_plain_expression(r, false, &none));
    *behind_if = neb__jinja_take_word(r, "if") ? r->at : NEB_JINJA_NO_IF;
    return NEB_OK;
}

neb_status neb__jinja_expression(struct neb_jinja *r, bool live, json_t **out)
{
    const size_t begin = r->at;
    size_t *const behind_if = &r->behind_if[begin];
    json_t *v;
    *out = NULL;
    if (!live || !*behind_if) NEB_TRY(read_dead(r, behind_if));
    if (*behind_if == NEB_JINJA_NO_IF) {
        if (!live) return NEB_OK;
        r->at = begin;
        return neb__jinja_plain_expression(r, true, out);
    }
    r->at = *behind_if;
    NEB_TRY(neb__jinja_plain_expression(r, live, &v));
    const bool first = neb__jinja_true(v);
    json_decref(v);
    if (neb__jinja_take_word(r, "else")) NEB_TRY(neb__jinja_expression(r, live && !first, out));
    if (!live || !first) return NEB_OK;
    const size_t end = r->at;
    r->at = begin;
    neb_status status = neb__jinja_plain_expression(r, true, out);
    r->at = end;
    return status;
}
