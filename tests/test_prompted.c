/* test_prompted.c: a decoder's answers behind a prompt are the lines that it would go on with, alone or among others, and end at
 * every token that ends a text. */
#include "check.h"
#include "folders.h"
#include "base/mem.h"
#include "task/generate.h"
#include "task/prompted.h"

#include <string.h>

enum { LINES = 20, MOST = 12 };

static const char prompt[] = "ab{source}c";

/* The model has 31 tokens: letters, white space of two kinds, and three special ones. */
static void make_folder(const char *ends, const char *template, struct neb_ready *m, neb_device **device)
{
    struct neb_buf json;
    struct neb_device_config c = {.compute = NEB_F32, .threads = 1};
    const char *path = "from";
    neb__buf_init(&json, 1 << 16);
    folder_copy("llama3", "config.json", path);
    folder_copy("llama3", "model.safetensors", path);
    assert_ok(neb__buf_printf(&json, "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {"));
    for (int i = 0; i < 26; i++) assert_ok(neb__buf_printf(&json, "\"%c\": %d, ", 'a' + i, i));
    assert_ok(neb__buf_printf(
        &json, "\" \": 26, \"\\n\": 27}}, \"decoder\": {\"type\": \"Fuse\"}, \"added_tokens\": ["));
    for (int i = 28; i < 31; i++)
        assert_ok(neb__buf_printf(&json, "%s{\"id\": %d, \"content\": \"<%d>\", \"special\": true}",
                                  i > 28 ? ", " : "", i, i));
    assert_ok(neb__buf_printf(&json, "]}"));
    assert_ok(neb__buf_append(&json, "", 1));
    folder_put(path, "tokenizer.json", (const char *)json.data);
    folder_put(path, "tokenizer_config.json", "{\"eos_token\": \"<30>\", \"bos_token\": \"<28>\"}");
    folder_put(path, "generation_config.json", ends);
    folder_put(path, "chat_template.jinja", template);
    neb__buf_free(&json);
    const char *to = folder_in("to");
    assert_ok(neb__hf_import(folder_in(path), to));
    assert_ok(neb_device_open("cpu", &c, device));
    assert_ok(neb__ready_open(to, NULL, *device, m));
}

static neb_status keep(void *arg, const char *text, size_t n, int32_t id, double logp)
{
    (void)id;
    (void)logp;
    return neb__buf_append(arg, text, n);
}

/* What `generate` makes of the same tokens, up to the line's end, without white space around it. */
static char *expected(struct neb_generator *g, const char *line)
{
    struct neb_buf text;
    char whole[64];
    neb__buf_init(&text, 1 << 16);
    snprintf(whole, sizeof whole, "ab%sc", line);
    assert_ok(neb__generator_run(g, whole, strlen(whole), keep, &text));
    assert_ok(neb__buf_append(&text, "", 1));
    char *p = (char *)text.data + strspn((char *)text.data, " \n");
    size_t n = strcspn((char *)text.data, "\n") < (size_t)(p - (char *)text.data) ? 0 : strcspn(p, "\n");
    while (n && p[n - 1] == ' ') n--;
    char *copy = neb__malloc(n + 1);
    assert_non_null(copy);
    memcpy(copy, p, n);
    copy[n] = 0;
    neb__buf_free(&text);
    return copy;
}

static int64_t answer_like_generate(const char *ends, const char *template)
{
    struct neb_ready m;
    neb_device *device;
    char start[] = "yes";
    struct neb_generate_config how = {
        .max_new = MOST, .temperature = 0, .top_p = 1, .repetition = 1, .start = start, .stop = NULL};
    const struct neb_prompted_config c = {.prompt = prompt, .beams = 1, .results = 1, .max_new = MOST};
    struct neb_generator *g;
    struct neb_prompted *p;
    char text[LINES][8], *got[LINES] = {NULL};
    const char *lines[LINES];
    int64_t letters = 0;
    make_folder(ends, template, &m, &device);
    assert_ok(neb__generator_open(&m, &how, &g));
    assert_ok(neb__prompted_open(&m, &c, &p));
    for (int i = 0; i < LINES; i++) {
        snprintf(text[i], sizeof text[i], "%.*s%c", i % 4, "xyz", 'a' + i);
        lines[i] = text[i];
    }
    assert_ok(neb__prompted_answer(p, lines, LINES, got));
    for (int i = 0; i < LINES; i++) {
        char *want = expected(g, lines[i]);
        if (strcmp(got[i], want)) fail_msg("line %d, '%s': '%s' instead of '%s'", i, lines[i], got[i], want);
        letters += (int64_t)strlen(want);
        neb__free(want);
        neb__free(got[i]);
    }
    neb__prompted_close(p);
    neb__generator_close(g);
    neb__ready_close(&m);
    neb_device_close(device);
    return letters;
}

static const char none[] = "{% for m in messages %}<29>{{ m.content }}{% endfor %}";

static void answers_are_the_lines_of_generate(void **state)
{
    (void)state;
    const int64_t all = answer_like_generate("{\"eos_token_id\": 30}", none);
    assert_true(all > LINES);
    /* letters that end a text, too */
    assert_true(answer_like_generate(
                    "{\"eos_token_id\": [30, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]}", none) < all);
}

static void several_answers_come_best_first(void **state)
{
    (void)state;
    struct neb_ready m;
    neb_device *device;
    const struct neb_prompted_config c = {.prompt = prompt, .beams = 4, .results = 3, .max_new = MOST};
    struct neb_prompted *p;
    const char *lines[] = {"x", "", "yz",
                           "a line that is very much too long for so small a model of so few positions"};
    char *got[4 * 3] = {NULL};
    make_folder("{\"eos_token_id\": [30, 3]}", none, &m, &device);
    assert_ok(neb__prompted_open(&m, &c, &p));
    assert_ok(neb__prompted_answer(p, lines, 4, got));
    for (int i = 0; i < 4; i++) assert_non_null(got[3 * i]);
    assert_non_null(got[1]);
    assert_string_equal(got[3], "");
    assert_string_equal(got[9], "");
    assert_null(got[4]);
    for (int i = 0; i < 12; i++) {
        if (got[i] && (strchr(got[i], '\n') || strchr(got[i], 'd')))
            fail_msg("'%s' goes on behind its end", got[i]);
        neb__free(got[i]);
    }
    neb__prompted_close(p);
    neb__ready_close(&m);
    neb_device_close(device);
}

/* The long line's answer has room for three tokens; the others' have room for all. */
static void an_answer_does_not_depend_on_the_batch(void **state)
{
    (void)state;
    enum { N = 8 };
    struct neb_ready m;
    neb_device *device;
    const struct neb_prompted_config c = {.prompt = prompt, .beams = 1, .results = 1, .max_new = MOST};
    struct neb_prompted *p;
    char longest[58];
    const char *lines[N] = {"x", "xy", "e", longest, "yz", "k", "xyz", "m"};
    char *got[N] = {NULL};
    size_t most = 0;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    make_folder("{\"eos_token_id\": 30}", none, &m, &device);
    assert_ok(neb__prompted_open(&m, &c, &p));
    assert_ok(neb__prompted_answer(p, lines, N, got));
    for (int i = 0; i < N; i++) {
        char *alone = NULL;
        assert_ok(neb__prompted_answer(p, &lines[i], 1, &alone));
        assert_string_equal(got[i], alone);
        if (strlen(alone) > most) most = strlen(alone);
        neb__free(alone);
        neb__free(got[i]);
    }
    assert_true(most > 3);
    neb__prompted_close(p);
    neb__ready_close(&m);
    neb_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_lines_of_generate),
        cmocka_unit_test(several_answers_come_best_first),
        cmocka_unit_test(an_answer_does_not_depend_on_the_batch),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
