/* test_chat.c: chat templates give the texts that the transformers library gives, and hostile ones end; tokens are drawn
 * with the probabilities that its warpers leave. tools/chat_parity.py recorded both. */
#include "check.h"
#include "base/buf.h"
#include "task/choose_token.h"
#include "text/jinja.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

static json_t *recorded;

static neb_status render_with(const char *text, const json_t *messages, bool answer, json_t *more,
                              struct neb_buf *out)
{
    json_t *v = json_pack("{s:O, s:b, s:s, s:s, s:n, s:n}", "messages", messages, "add_generation_prompt",
                          answer, "bos_token", "<s>", "eos_token", "</s>", "tools", "documents");
    assert_non_null(v);
    if (more) assert_int_equal(json_object_update(v, more), 0);
    neb_status status = neb__jinja_render(text, strlen(text), v, out);
    json_decref(v);
    return status;
}

static neb_status render(const char *text, const json_t *messages, bool answer, struct neb_buf *out)
{
    return render_with(text, messages, answer, NULL, out);
}

static void one_template(const json_t *t)
{
    const char *want = json_string_value(json_object_get(t, "want")),
               *refuses = json_string_value(json_object_get(t, "refuses"));
    struct neb_buf out;
    neb__buf_init(&out, 1 << 20);
    neb_status status =
        render_with(json_string_value(json_object_get(t, "template")), json_object_get(t, "messages"),
                    json_is_true(json_object_get(t, "answer")), json_object_get(t, "more"), &out);
    if (refuses) {
        assert_status(status, NEB_ERR_INVALID);
        assert_non_null(strstr(neb_last_error(), refuses));
    } else {
        assert_ok(status);
        assert_ok(neb__buf_append(&out, "", 1));
        if (strcmp((const char *)out.data, want))
            fail_msg("%s:\n'%s'\ninstead of\n'%s'", json_string_value(json_object_get(t, "name")),
                     (const char *)out.data, want);
    }
    neb__buf_free(&out);
}

static void templates_give_what_the_library_gives(void **state)
{
    (void)state;
    const json_t *list = json_object_get(recorded, "templates");
    assert_true(json_array_size(list) > 70);
    check_log_quiet();
    for (size_t i = 0; i < json_array_size(list); i++) one_template(json_array_get(list, i));
    check_log_restore();
}

static void what_is_not_known_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
        neb_status status;
    } cases[] = {
        {"{{ 'a' | shuffle }}", "filter 'shuffle'", NEB_ERR_UNSUPPORTED},
        {"\n\n{% include 'x' %}", "line 3: the statement 'include'", NEB_ERR_UNSUPPORTED},
        {"{{ 'a'.zfill(3) }}", "method 'zfill'", NEB_ERR_UNSUPPORTED},
        {"{{ lipsum() }}", "function 'lipsum'", NEB_ERR_UNSUPPORTED},
        {"{{ 1 is prime }}", "test 'prime'", NEB_ERR_UNSUPPORTED},
        {"{% if false %}{% macro f(x) %}{% endmacro %}{% endif %}{{ f(1) }}", "function 'f'",
         NEB_ERR_UNSUPPORTED},
        {"{% for a, b in [1] %}{% endfor %}", "items that are not lists", NEB_ERR_UNSUPPORTED},
        {"{% for a in 5 %}{% endfor %}", "not a list", NEB_ERR_UNSUPPORTED},
        {"{% break %}", "place of the statement 'break'", NEB_ERR_UNSUPPORTED},
        {"{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "too deep", NEB_ERR_RANGE},
        {"{% for i in range(99999999) %}{% endfor %}", "range is too long", NEB_ERR_RANGE},
        {"{% if false %}{{ 'abc }}{% endif %}", "the end of a text", NEB_ERR_CORRUPT},
        {"{% raw %}{{", "'endraw'", NEB_ERR_CORRUPT},
        {"{{ messages }}", "prints a list", NEB_ERR_UNSUPPORTED},
        {"{% if true %}", "elif", NEB_ERR_CORRUPT},
        {"{{ 'abc }}", "the end of a text", NEB_ERR_CORRUPT},
        {"{{ (1 }}", "')'", NEB_ERR_CORRUPT},
        {"{# no end", "the end of a comment", NEB_ERR_CORRUPT},
        {"{{", "a value", NEB_ERR_CORRUPT},
        {"{%", "a name", NEB_ERR_CORRUPT},
        {"{% set x = 5 % 0 %}", "division", NEB_ERR_UNSUPPORTED},
    };
    json_t *messages = json_array();
    check_log_quiet();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct neb_buf out;
        neb__buf_init(&out, 1 << 20);
        assert_status(render(cases[i].text, messages, true, &out), cases[i].status);
        if (!strstr(neb_last_error(), cases[i].word))
            fail_msg("'%s' does not say '%s'", neb_last_error(), cases[i].word);
        neb__buf_free(&out);
    }
    check_log_restore();
    json_decref(messages);
}

/* Even statements that Jinja itself does not know. */
static void what_is_not_taken_is_not_judged(void **state)
{
    (void)state;
    static const char text[] =
        "{% if false %}{% what is this %}{{ 1 ? 2 }}{{ {'a': {}} }}{% for a %}{% else %}{% endfor %}"
        "{% elif true %}yes{% elif 3 $ 4 %}{{ '%}' }}{% else %}no{% endif %}"
        "{% for x in [] %}{% x ? %}{% endfor %}";
    struct neb_buf out;
    json_t *messages = json_array();
    neb__buf_init(&out, 1 << 20);
    assert_ok(render(text, messages, true, &out));
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.data, "yes", 3);
    neb__buf_free(&out);
    json_decref(messages);
}

/* Nor are brackets in brackets read more and more often. */
static void deep_expressions_are_read_in_time(void **state)
{
    (void)state;
    static const char *const values[] = {"1", "(2 if false else 1)", "[0, 1][1 if true else 0]",
                                         "nothing or 1"};
    struct neb_buf text, out;
    json_t *messages = json_array();
    neb__buf_init(&text, 1 << 20);
    neb__buf_init(&out, 1 << 20);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        neb__buf_clear(&text);
        neb__buf_clear(&out);
        assert_ok(neb__buf_printf(&text, "{%% for i in range(100) %%}{%% if "));
        for (int k = 0; k < 40; k++) assert_ok(neb__buf_printf(&text, "("));
        assert_ok(neb__buf_printf(&text, "%s", values[i]));
        for (int k = 0; k < 40; k++) assert_ok(neb__buf_printf(&text, ")"));
        assert_ok(neb__buf_printf(&text, " %%}a{%% endif %%}{%% endfor %%}"));
        assert_ok(neb__buf_append(&text, "", 1));
        assert_ok(render((const char *)text.data, messages, true, &out));
        assert_int_equal(out.len, 100);
    }
    json_decref(messages);
    neb__buf_free(&text);
    neb__buf_free(&out);
}

/* Values that contain themselves, share their parts or fill the memory; what they would need is far beyond a test's time. */
static void hostile_values_are_refused(void **state)
{
    (void)state;
#define LOOP(n, body) "{% for i in range(" n ") %}" body "{% endfor %}"
    static const struct {
        const char *text, *word; /* of the error; NULL: there is none, and the text becomes "ok" */
    } cases[] = {
        {"{% set a = namespace(l=1) %}{% set a.l = [a] %}{% set b = namespace(l=1) %}{% set b.l = [b] %}"
         "{% if a == b %}x{% endif %}",
         "which other values hold"},
        {"{% set a = namespace() %}{% set b = [a] %}{% set a.b = b %}{{ b | tojson }}",
         "which other values hold"},
        {"{% set a = namespace() %}{% set b = a %}{% set b.x = 'ok' %}{{ a.x }}", NULL},
        {"{% set a = namespace(l=[]) %}" LOOP("9",
                                              "{% set a.l = a.l + [i] %}") "{{ 'ok' if a.l | length == 9 }}",
         NULL},
        {"{% set a = namespace(l=[]) %}" LOOP("300", "{% set a.l = [a.l] %}"), "too deep"},
        {"{% set a = namespace(l=[1]) %}{% set b = namespace(l=[1]) %}" LOOP(
             "20", "{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}") "{% if a.l == b.l %}ok{% endif %}",
         NULL},
        {"{% set a = namespace(l=[1]) %}" LOOP("60", "{% set a.l = [a.l, a.l] %}"), "looks through too much"},
        {"{% set a = namespace(l=[1]) %}" LOOP("20", "{% set a.l = [a.l, a.l] %}") "{% set b = [a.l] * 2 %}",
         "do not go together"},
        {"{% set t = namespace(t='aaaaaaaa', l=[]) %}" LOOP("20", "{% set t.t = t.t ~ t.t %}")
             LOOP("1000", "{% set t.l = t.l + [t.t ~ i] %}"),
         "more than 256 MiB"},
        {"{% set t = namespace(t='aaaaaaaa') %}" LOOP(
             "20", "{% set t.t = t.t ~ t.t %}") "{{ t.t | list | length }}",
         "more than 256 MiB"},
        {"{% set t = namespace(t='aaaaaaaa') %}" LOOP(
             "20", "{% set t.t = t.t ~ t.t %}") "{{ t.t.split('a') | length }}",
         "more than 256 MiB"},
        {"{% set t = namespace(t='aaaaaaaa') %}" LOOP(
             "20", "{% set t.t = t.t ~ t.t %}") "{{ [t.t, t.t, t.t] | tojson | length }}",
         "JSON of a value becomes too long"},
        {"{% set t = namespace(t='aaaaaaaa') %}" LOOP("20", "{% set t.t = t.t ~ t.t %}")
             LOOP("60000", "{% if 'b' in t.t %}{% endif %}"),
         "looks through too much"},
        {"{% set t = namespace(l=[1]) %}" LOOP("30", "{% set t.l = t.l + t.l %}"), "a list becomes too long"},
    };
#undef LOOP
    json_t *messages = json_array();
    check_log_quiet();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct neb_buf out;
        neb__buf_init(&out, 1 << 20);
        neb_status status = render(cases[i].text, messages, true, &out);
        if (cases[i].word) {
            if (status == NEB_OK || !strstr(neb_last_error(), cases[i].word))
                fail_msg("%s: '%s' does not say '%s'", cases[i].text, neb_last_error(), cases[i].word);
        } else {
            assert_ok(status);
            assert_int_equal(out.len, 2);
            assert_memory_equal(out.data, "ok", 2);
        }
        neb__buf_free(&out);
    }
    check_log_restore();
    json_decref(messages);
}

/* Many times ten items, texts that double, brackets without end, and every beginning of a real template. */
static void hostile_templates_end(void **state)
{
    (void)state;
    struct neb_buf text, out;
    json_t *messages = json_array();
    neb__buf_init(&text, 1 << 20);
    neb__buf_init(&out, 1 << 24);
    check_log_quiet();
    for (int i = 0; i < 9; i++)
        assert_ok(neb__buf_printf(&text, "{%% for i%d in [1,2,3,4,5,6,7,8,9,0] %%}", i));
    for (int i = 0; i < 9; i++) assert_ok(neb__buf_printf(&text, "{%% endfor %%}"));
    assert_ok(neb__buf_append(&text, "", 1));
    assert_status(render((const char *)text.data, messages, true, &out), NEB_ERR_RANGE);
    neb__buf_clear(&text);
    assert_ok(neb__buf_printf(&text, "{%% set a = 'aaaaaaaaaaaaaaaa' %%}"));
    for (int i = 0; i < 40; i++) assert_ok(neb__buf_printf(&text, "{%% set a = a + a %%}"));
    assert_ok(neb__buf_append(&text, "", 1));
    assert_int_not_equal(render((const char *)text.data, messages, true, &out), NEB_OK);
    neb__buf_clear(&text);
    for (int i = 0; i < 5000; i++) assert_ok(neb__buf_printf(&text, i ? "(" : "{{"));
    assert_ok(neb__buf_append(&text, "", 1));
    assert_status(render((const char *)text.data, messages, true, &out), NEB_ERR_RANGE);
    const char *macros = NULL;
    for (size_t i = 0; i < json_array_size(json_object_get(recorded, "templates")); i++) {
        const json_t *t = json_array_get(json_object_get(recorded, "templates"), i);
        if (!strcmp(json_string_value(json_object_get(t, "name")), "macros"))
            macros = json_string_value(json_object_get(t, "template"));
    }
    for (size_t n = 0; n < strlen(macros); n++) {
        neb__buf_clear(&text);
        neb__buf_clear(&out);
        assert_ok(neb__buf_append(&text, macros, n));
        assert_ok(neb__buf_append(&text, "", 1));
        (void)render((const char *)text.data, messages, true, &out); /* whatever it says, it comes back */
    }
    check_log_restore();
    json_decref(messages);
    neb__buf_free(&text);
    neb__buf_free(&out);
}

/* ---- drawing ------------------------------------------------------------------------------------------------------- */

enum { VOCAB = 31, DRAWS = 200000 };

static double number(const json_t *s, const char *key, double fallback)
{
    const json_t *v = json_object_get(s, key);
    return v ? json_number_value(v) : fallback;
}

/* A chi-squared value of so many degrees as a standard normal one (Wilson and Hilferty 1931). */
static double as_normal(double chi2, int degrees)
{
    const double k = 2.0 / (9 * degrees);
    return (cbrt(chi2 / degrees) - (1 - k)) / sqrt(k);
}

static void one_setting(const json_t *s, const float *logits, int skip)
{
    static const uint8_t absent[VOCAB];
    const json_t *want = json_object_get(s, "probabilities"), *seen = json_object_get(recorded, "seen");
    struct neb_token_chooser c = {.temperature = number(s, "temperature", 1),
                                  .top_p = number(s, "top_p", 1),
                                  .repetition = number(s, "repetition", 1),
                                  .top_k = (int64_t)number(s, "top_k", 0),
                                  .vocab = VOCAB,
                                  .absent = absent,
                                  .rng.state = 5};
    int64_t count[VOCAB] = {0};
    double chi2 = 0;
    int kept = 0;
    assert_ok(neb__token_chooser_init(&c));
    for (size_t i = 0; i < json_array_size(seen); i++)
        c.seen[json_integer_value(json_array_get(seen, i))] = 1;
    for (int i = 0; i < DRAWS; i++) count[neb__token_choose(&c, logits)]++;
    for (int i = 0; i < VOCAB; i++) {
        const double p = json_number_value(json_array_get(want, (size_t)(i + skip) % VOCAB)), e = p * DRAWS;
        if (p <= 0) {
            if (!skip) assert_int_equal(count[i], 0);
            continue;
        }
        chi2 += ((double)count[i] - e) * ((double)count[i] - e) / e;
        kept++;
    }
    const double z = kept > 1 ? as_normal(chi2, kept - 1) : 0;
    if (!skip && z > 4)
        fail_msg("temperature %g, top_k %d, top_p %g, repetition %g: z = %g", c.temperature, (int)c.top_k,
                 c.top_p, c.repetition, z);
    if (skip && z < 50) fail_msg("other probabilities pass as well: z = %g", z);
    neb__token_chooser_free(&c);
}

static void tokens_are_drawn_with_the_librarys_probabilities(void **state)
{
    (void)state;
    float logits[VOCAB];
    const json_t *list = json_object_get(recorded, "settings");
    for (size_t i = 0; i < VOCAB; i++)
        logits[i] = (float)json_number_value(json_array_get(json_object_get(recorded, "logits"), i));
    assert_true(json_array_size(list) >= 8);
    for (size_t i = 0; i < json_array_size(list); i++) one_setting(json_array_get(list, i), logits, 0);
    one_setting(json_array_get(list, 0), logits, 1); /* the test can tell */
}

static int open_recorded(void **state)
{
    json_error_t e;
    (void)state;
    recorded = json_load_file(NEB_TEST_DATA "/chat.json", 0, &e);
    return recorded ? 0 : -1;
}

static int close_recorded(void **state)
{
    (void)state;
    json_decref(recorded);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_give_what_the_library_gives),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
        cmocka_unit_test(what_is_not_taken_is_not_judged),
        cmocka_unit_test(deep_expressions_are_read_in_time),
        cmocka_unit_test(hostile_values_are_refused),
        cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(tokens_are_drawn_with_the_librarys_probabilities),
    };
    return cmocka_run_group_tests(tests, open_recorded, close_recorded);
}
