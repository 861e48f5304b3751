/* test_hf_sentence.c: folders of the sentence-transformers library, what else a folder may have that is no plain file, and what an
 * import that fails leaves behind. */
#include "check.h"
#include "folders.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE(PATH, TYPE) "{\"path\": \"" PATH "\", \"type\": \"sentence_transformers.models." TYPE "\"}"
#define FIRST              MODULE("", "Transformer") ", " MODULE("1_Pooling", "Pooling")

/* The recorded LaBSE. */
static void put_labse(const char *folder)
{
    static const char *const files[] = {
        "config.json",         "model.safetensors",         "modules.json",          "1_Pooling/config.json",
        "2_Dense/config.json", "2_Dense/model.safetensors", "tokenizer_config.json", "vocab.txt"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[700], name[100];
        struct neb_buf bytes;
        snprintf(path, sizeof path, "%s/labse/%s", NEB_TEST_DATA, files[i]);
        folder_read(path, &bytes);
        const char *slash = strchr(files[i], '/');
        snprintf(name, sizeof name, "%s/%.*s", folder, slash ? (int)(slash - files[i]) : 0, files[i]);
        assert_ok(neb__file_make_dir(folder_in(name), 0755));
        snprintf(path, sizeof path, "%s/%s", folder_in(folder), files[i]);
        assert_ok(neb__file_replace(path, bytes.data, bytes.len, 0644));
        neb__buf_free(&bytes);
    }
}

static bool is_there(const char *folder, const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder_in(folder), name);
    return !access(path, F_OK);
}

/* folder, file, content; the import fails so, and the folder that it was to write is none. */
static const struct {
    const char *folder, *name, *content;
    neb_status status;
    const char *says;
} wrong[] = {
    {"", "modules.json", "[" MODULE("", "Transformer") "]", NEB_ERR_UNSUPPORTED, "no Pooling"},
    {"", "modules.json", "{}", NEB_ERR_UNSUPPORTED, "no Pooling"},
    {"", "modules.json", "[" FIRST ", " MODULE("3", "LayerNorm") "]", NEB_ERR_UNSUPPORTED, "LayerNorm"},
    {"", "modules.json", "[" FIRST ", " MODULE("3", "Normalize") ", " MODULE("2_Dense", "Dense") "]",
     NEB_ERR_UNSUPPORTED, "Dense' is not in its place"},
    {"", "modules.json", "[" FIRST ", " MODULE("2_Dense", "Dense") ", " MODULE("2_Dense", "Dense") "]",
     NEB_ERR_UNSUPPORTED, "Dense' is not in its place"},
    {"", "modules.json", "[" FIRST ", " MODULE("1_Pooling", "Pooling") "]", NEB_ERR_UNSUPPORTED,
     "Pooling' is not in its place"},
    {"", "modules.json", "[" MODULE("1_Pooling", "Pooling") ", " MODULE("", "Transformer") "]",
     NEB_ERR_UNSUPPORTED, "Pooling' is not in its place"},
    {"", "modules.json", "[" MODULE("", "Transformer") ", " MODULE("2_Dense", "Dense") "]",
     NEB_ERR_UNSUPPORTED, "Dense' is not in its place"},
    {"", "modules.json", "[" MODULE("0_Transformer", "Transformer") "]", NEB_ERR_UNSUPPORTED,
     "0_Transformer"},
    {"/1_Pooling", "config.json", "{\"pooling_mode_mean_tokens\": 1}", NEB_ERR_UNSUPPORTED,
     "pooling_mode_mean_tokens"},
    {"/1_Pooling", "config.json", "{\"pooling_mode\": \"lasttoken\"}", NEB_ERR_UNSUPPORTED, "lasttoken"},
    {"/1_Pooling", "config.json", "{\"pooling_mode\": [\"mean\", \"max\"]}", NEB_ERR_UNSUPPORTED,
     "pooling_mode"},
    {"/1_Pooling", "config.json", "{\"pooling_mode\": \"mean\", \"weights\": [1]}", NEB_ERR_UNSUPPORTED,
     "weights"},
    {"/2_Dense", "config.json",
     "{\"bias\": false, \"activation_function\": \"torch.nn.modules.activation.Tanh\"}", NEB_ERR_UNSUPPORTED,
     "has 'linear.bias'"},
    {"/2_Dense", "config.json",
     "{\"use_residual\": true, \"activation_function\": \"torch.nn.modules.activation.Tanh\"}",
     NEB_ERR_UNSUPPORTED, "use_residual"},
    {"/2_Dense", "config.json",
     "{\"module_input_name\": \"token_embeddings\", \"activation_function\": "
     "\"torch.nn.modules.activation.Tanh\"}",
     NEB_ERR_UNSUPPORTED, "token_embeddings"},
    {"", "config_sentence_transformers.json",
     "{\"prompts\": {\"q\": \"query: \"}, \"default_prompt_name\": \"q\"}", NEB_ERR_UNSUPPORTED,
     "default_prompt_name"},
    {"", "config_sentence_transformers.json", "{\"default_prompt_name\": \"q\"}", NEB_ERR_UNSUPPORTED,
     "default_prompt_name"},
};

static void wrong_modules_leave_no_model(void **state)
{
    (void)state;
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char folder[100];
        const int64_t held = neb__mem_held();
        check_remove_dir(folder_in("odd"));
        put_labse("odd");
        snprintf(folder, sizeof folder, "odd%s", wrong[i].folder);
        folder_put(folder, wrong[i].name, wrong[i].content);
        assert_status(neb__hf_import(folder_in("odd"), folder_in("none")), wrong[i].status);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i].says);
        assert_false(is_there("none", "model.safetensors"));
        assert_int_equal(neb__mem_held(), held);
    }
    /* an error behind the first file: what was a model before is none any more */
    put_labse("late");
    assert_ok(neb__hf_import(folder_in("late"), folder_in("was")));
    assert_true(is_there("was", "model.yaml"));
    char path[700];
    snprintf(path, sizeof path, "%s/special_tokens_map.json", folder_in("late"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_status(neb__hf_import(folder_in("late"), folder_in("was")), NEB_ERR_IO);
    assert_false(is_there("was", "model.yaml"));
    check_log_restore();
}

/* Whether there is a module that makes vectors as long as 1, stays. */
static void normalize_goes_out_where_it_came_in(void **state)
{
    (void)state;
    static const char *const modules[] = {"[" FIRST "]", "[" FIRST ", " MODULE("3", "Normalize") "]",
                                          "[" FIRST ", " MODULE("2_Dense", "Dense") "]",
                                          "[" FIRST
                                          ", " MODULE("2_Dense", "Dense") ", " MODULE("3", "Normalize") "]"};
    static const char *const poolings[] = {
        "{\"pooling_mode\": \"cls\", \"include_prompt\": true}",
        "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_cls_token\": false}",
        "{\"pooling_mode\": [\"mean\"]}"};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            char path[700];
            struct neb_buf text;
            put_labse("labse");
            folder_put("labse", "modules.json", modules[i]);
            folder_put("labse/1_Pooling", "config.json", poolings[k]);
            folder_put("labse", "config_sentence_transformers.json",
                       "{\"prompts\": {\"query\": \"q: \"}, \"default_prompt_name\": null}");
            assert_ok(neb__hf_import(folder_in("labse"), folder_in("ours")));
            check_remove_dir(folder_in("out"));
            assert_ok(neb__hf_export(folder_in("ours"), folder_in("out")));
            assert_int_equal(is_there("out", "modules.json"), i || !k); /* a plain mean needs none */
            if (!i && k) continue;
            snprintf(path, sizeof path, "%s/modules.json", folder_in("out"));
            folder_read(path, &text);
            assert_ok(neb__buf_append(&text, "", 1));
            assert_int_equal(strstr((const char *)text.data, "Normalize") != NULL, i % 2);
            assert_int_equal(strstr((const char *)text.data, "Dense") != NULL, i > 1);
            neb__buf_free(&text);
        }
}

/* The library makes texts small before its tokenizer; the tokenizer here must do so. */
static void small_letters_are_the_tokenizers(void **state)
{
    (void)state;
    check_log_quiet();
    put_labse("small");
    folder_put("small", "sentence_bert_config.json", "{\"max_seq_length\": 32, \"do_lower_case\": true}");
    assert_ok(neb__hf_import(folder_in("small"), folder_in("ours")));
    folder_put("small", "tokenizer_config.json",
               "{\"tokenizer_class\": \"BertTokenizer\", \"do_lower_case\": false}");
    assert_status(neb__hf_import(folder_in("small"), folder_in("never")), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(neb_last_error(), "do_lower_case"));
    folder_put("small", "sentence_bert_config.json", "{\"max_seq_length\": 32, \"do_lower_case\": false}");
    assert_ok(neb__hf_import(folder_in("small"), folder_in("ours")));
    check_log_restore();
}

/* Opening a pipe would wait for somebody who writes into it. */
static void pipes_are_no_files(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors", "modules.json", "vocab.txt"};
    check_log_quiet();
    alarm(60);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[700];
        check_remove_dir(folder_in("pipes"));
        put_labse("pipes");
        snprintf(path, sizeof path, "%s/%s", folder_in("pipes"), names[i]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_status(neb__hf_import(folder_in("pipes"), folder_in("never")), NEB_ERR_IO);
        assert_non_null(strstr(neb_last_error(), "is not a plain file"));
        assert_false(is_there("never", "model.yaml"));
    }
    alarm(0);
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_modules_leave_no_model),
        cmocka_unit_test(normalize_goes_out_where_it_came_in),
        cmocka_unit_test(small_letters_are_the_tokenizers),
        cmocka_unit_test(pipes_are_no_files),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
