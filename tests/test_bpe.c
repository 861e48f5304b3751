/* test_bpe.c: byte-level BPE gives what GPT2Tokenizer gives on the recorded cases (tools/record_bpe.py), files that lie are
 * answered, and a model folder carries its two files from import to export. */
#include "check.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/safetensors.h"
#include "task/folder.h"
#include "task/hf.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BPE NEB_TEST_DATA "/bpe/"

static json_t *cases(const char *kind)
{
    json_error_t e;
    json_t *all = json_load_file(BPE "cases.json", JSON_ALLOW_NUL, &e);
    assert_non_null(all);
    json_t *list = json_incref(json_object_get(all, kind));
    json_decref(all);
    assert_true(json_array_size(list) > 100);
    return list;
}

static int32_t *ids_of(json_t *c, size_t *n)
{
    json_t *list = json_object_get(c, "ids");
    *n = json_array_size(list);
    int32_t *ids = calloc(*n + 1, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static void texts_become_gpt2_tokens(void **state)
{
    (void)state;
    struct neb_tok *tok;
    json_t *list = cases("encode"), *c;
    size_t i, n;
    assert_ok(neb__tok_open(BPE "vocab.json", NULL, &tok));
    assert_int_equal(neb__tok_vocab(tok), 900);
    assert_int_equal(neb__tok_special(tok, NEB_TOK_EOS), 0);
    assert_int_equal(neb__tok_special(tok, NEB_TOK_PAD), -1);
    json_array_foreach(list, i, c)
    {
        struct neb_buf got, back;
        json_t *text = json_object_get(c, "text");
        int32_t *want = ids_of(c, &n);
        neb__buf_init(&got, 1 << 20);
        neb__buf_init(&back, 1 << 20);
        assert_ok(neb__tok_encode(tok, json_string_value(text), json_string_length(text), &got));
        if (got.len != n * sizeof *want || (n && memcmp(got.data, want, got.len)))
            fail_msg("text %zu is cut otherwise: %s", i, json_string_value(text));
        assert_ok(neb__tok_decode(tok, want, n, &back));
        assert_int_equal(back.len, json_string_length(text));
        if (back.len) assert_memory_equal(back.data, json_string_value(text), back.len);
        neb__buf_free(&got);
        neb__buf_free(&back);
        free(want);
    }
    json_decref(list);
    neb__tok_close(tok);
}

static void tokens_become_text(void **state)
{
    (void)state;
    struct neb_tok *tok;
    json_t *list = cases("decode"), *c;
    size_t i, n;
    assert_ok(neb__tok_open(BPE "vocab.json", NULL, &tok));
    json_array_foreach(list, i, c)
    {
        struct neb_buf got;
        json_t *text = json_object_get(c, "text");
        int32_t *ids = ids_of(c, &n);
        neb__buf_init(&got, 1 << 20);
        assert_ok(neb__tok_decode(tok, ids, n, &got));
        if (got.len != json_string_length(text) ||
            (got.len && memcmp(got.data, json_string_value(text), got.len)))
            fail_msg("decoding %zu is not: %s", i, json_string_value(text));
        neb__buf_free(&got);
        free(ids);
    }
    json_decref(list);
    neb__tok_close(tok);
}

/* 128 KiB without a space, and bytes that are no UTF-8, come back as they were. */
static void any_bytes_come_back(void **state)
{
    (void)state;
    enum { LONG = 1 << 17 };
    struct neb_tok *tok;
    struct neb_buf ids, back;
    char *text = malloc(LONG);
    assert_non_null(text);
    assert_ok(neb__tok_open(BPE "vocab.json", NULL, &tok));
    neb__buf_init(&ids, 8 * LONG);
    neb__buf_init(&back, 2 * LONG);
    for (int i = 0; i < LONG; i++) text[i] = (char)('a' + i / 3 % 2);
    assert_ok(neb__tok_encode(tok, text, LONG, &ids));
    assert_ok(neb__tok_decode(tok, (int32_t *)(void *)ids.data, ids.len / 4, &back));
    assert_int_equal(back.len, LONG);
    assert_memory_equal(back.data, text, LONG);
    ids.len = back.len = 0;
    assert_ok(neb__tok_encode(tok, "x\xFF\xC3 \x80", 5, &ids));
    assert_ok(neb__tok_decode(tok, (int32_t *)(void *)ids.data, ids.len / 4, &back));
    assert_int_equal(back.len, 11);
    assert_memory_equal(back.data, "x\xEF\xBF\xBD\xEF\xBF\xBD \xEF\xBF\xBD", 11);
    int32_t beyond = 900;
    check_log_quiet();
    assert_status(neb__tok_decode(tok, &beyond, 1, &back), NEB_ERR_RANGE);
    check_log_restore();
    neb__buf_free(&ids);
    neb__buf_free(&back);
    neb__tok_close(tok);
    free(text);
}

static void files_that_lie(void **state)
{
    (void)state;
    static const struct {
        const char *vocab, *merges;
    } bad[] = {
        {"", ""},
        {"[]", ""},
        {"{}", ""},
        {"{\"a\": 0", ""},
        {"{\"a\": 0, \"a\": 1}", ""},
        {"{\"a\": 1}", ""},
        {"{\"a\": -1}", ""},
        {"{\"a\": 0.5}", ""},
        {"{\"a\": 0, \"b\": 0}", ""},
        {"{\"a\": 0, \"b\": 1099511627776}", ""},
        {"{\"a\\u0000b\": 0}", ""},
        {"{\"a\": 0, \"b\": 1, \"<|endoftext|>\": 2}", "a b"},        /* ab is no piece */
        {"{\"a\": 0, \"ab\": 1, \"<|endoftext|>\": 2}", "a b"},       /* b is none */
        {"{\"a\": 0, \"aa\": 1, \"<|endoftext|>\": 2}", "aa\n"},      /* one piece */
        {"{\"a\": 0, \"aa\": 1, \"<|endoftext|>\": 2}", "a a a\n"},   /* three */
        {"{\"a\": 0, \"aa\": 1, \"<|endoftext|>\": 2}", "a a\n a\n"}, /* an empty one */
        {"{\"a\": 0, \"aa\": 1}", "#version: 0.2\na a\n"},            /* no token for the end */
    };
    struct neb_tok *tok;
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct neb_bpe_files f = {bad[i].vocab, strlen(bad[i].vocab), bad[i].merges, strlen(bad[i].merges)};
        if (neb__tok_open_bpe(&f, &tok) != NEB_ERR_CORRUPT) fail_msg("pair %zu of files is accepted", i);
    }
    assert_status(neb__tok_open("/nowhere/vocab.json", NULL, &tok), NEB_ERR_NOTFOUND);
    check_log_restore();
}

/* Bytes without a token become unknown; RoBERTa's names are known, too. */
static void a_vocabulary_with_holes(void **state)
{
    (void)state;
    static const char vocab[] = "{\"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, \"<unk>\": 3, \"a\": 4, \"b\": 5, "
                                "\"ab\": 6, \"\\u0120a\": 7, \"\\u0120\": 8, \"<mask>\": 9}";
    static const char merges[] = "#version: 0.2\r\na b\r\n\xC4\xA0 a\r\n";
    struct neb_bpe_files f = {vocab, sizeof vocab - 1, merges, sizeof merges - 1};
    struct neb_tok *tok;
    struct neb_buf ids;
    const int32_t want[] = {6, 8, 6, 3, 8, 3, 4, 7};
    assert_ok(neb__tok_open_bpe(&f, &tok));
    assert_int_equal(neb__tok_special(tok, NEB_TOK_MASK), 9);
    assert_int_equal(neb__tok_special(tok, NEB_TOK_PAD), 1);
    neb__buf_init(&ids, 1000);
    assert_ok(neb__tok_encode(tok, "ab abc <a a", 11, &ids));
    assert_int_equal(ids.len, sizeof want);
    assert_memory_equal(ids.data, want, sizeof want);
    neb__buf_free(&ids);
    neb__tok_close(tok);
}

static neb_status whole_life(void)
{
    struct neb_tok *tok;
    struct neb_buf ids, text;
    char word[200];
    memset(word, 'x', sizeof word);
    NEB_TRY(neb__tok_open(BPE "vocab.json", NULL, &tok));
    neb__buf_init(&ids, 4096);
    neb__buf_init(&text, 4096);
    neb_status status = neb__tok_encode(tok, word, sizeof word, &ids);
    if (status == NEB_OK) status = neb__tok_decode(tok, (int32_t *)(void *)ids.data, ids.len / 4, &text);
    neb__buf_free(&ids);
    neb__buf_free(&text);
    neb__tok_close(tok);
    return status;
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    assert_ok(whole_life());
    int64_t held = neb__mem_held();
    check_log_quiet();
    for (int64_t n = 1;; n++) {
        neb__mem_fail_at(n);
        neb_status status = whole_life();
        bool reached = neb__mem_count() >= n;
        neb__mem_fail_at(0);
        assert_int_equal(neb__mem_held(), held);
        assert_true(status == NEB_OK || status == NEB_ERR_NOMEM);
        if (!reached) break;
    }
    check_log_restore();
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

static void copy_to(const char *folder, const char *from, const char *name)
{
    char path[512];
    struct neb_buf b;
    neb__buf_init(&b, 1 << 24);
    snprintf(path, sizeof path, "%s/%s", from, name);
    assert_ok(neb__file_read(path, &b));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(neb__file_replace(path, b.data, b.len, 0644));
    neb__buf_free(&b);
}

/* The recorded GPT-2 with a table of so many tokens. */
static void write_gpt2(const char *folder, int64_t vocab)
{
    char path[512];
    struct neb_st *st;
    struct neb_st_tensor list[64];
    json_t *config = json_load_file(NEB_TEST_DATA "/hf/gpt2/config.json", 0, NULL);
    assert_ok(neb__st_open(NEB_TEST_DATA "/hf/gpt2/model.safetensors", &st));
    const int n = neb__st_count(st);
    float *table = NULL;
    assert_true(config && n <= 64);
    for (int i = 0; i < n; i++) {
        list[i] = *neb__st_at(st, i);
        if (!strstr(list[i].name, "wte.weight")) continue;
        list[i].shape[0] = vocab;
        list[i].size = (uint64_t)(vocab * list[i].shape[1]) * sizeof *table;
        list[i].data = table = calloc(1, list[i].size);
    }
    assert_non_null(table);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(neb__st_write(path, list, n, NULL, 0644));
    json_object_set_new(config, "vocab_size", json_integer(vocab));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    free(table);
    neb__st_close(st);
}

static void assert_same_file(const char *folder, const char *name, const char *as)
{
    char path[512];
    struct neb_buf a, b;
    neb__buf_init(&a, 1 << 24);
    neb__buf_init(&b, 1 << 24);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(neb__file_read(path, &a));
    assert_ok(neb__file_read(as, &b));
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    neb__buf_free(&a);
    neb__buf_free(&b);
}

static void both_files_go_along(void **state)
{
    (void)state;
    char dir[256], from[300], to[300], out[300], path[400];
    struct neb_model_yaml f;
    struct neb_tok *tok;
    struct neb_buf text;
    check_make_dir(dir, sizeof dir);
    snprintf(from, sizeof from, "%s/from", dir);
    snprintf(to, sizeof to, "%s/to", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    assert_ok(neb__file_make_dir(from, 0755));
    write_gpt2(from, 900);
    copy_to(from, NEB_TEST_DATA "/bpe", "vocab.json");
    copy_to(from, NEB_TEST_DATA "/bpe", "merges.txt");
    assert_ok(neb__hf_import(from, to));
    assert_ok(neb__model_yaml_read(to, &f));
    assert_string_equal(f.tokenizer, "vocab.json");
    assert_ok(neb__folder_tokenizer(&f, &tok));
    assert_int_equal(neb__tok_vocab(tok), 900);
    neb__tok_close(tok);
    neb__model_yaml_free(&f);
    assert_ok(neb__hf_export(to, out));
    assert_same_file(out, "vocab.json", BPE "vocab.json");
    assert_same_file(out, "merges.txt", BPE "merges.txt");
    neb__buf_init(&text, 1 << 16);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", out);
    assert_ok(neb__file_read(path, &text));
    assert_ok(neb__buf_append(&text, "", 1));
    assert_non_null(strstr((char *)text.data, "GPT2Tokenizer"));
    neb__buf_free(&text);
    check_remove_dir(dir);
}

/* The files of transformers 5: tokenizer.json and tokenizer_config.json, and no other. */
static void a_tokenizer_json_goes_along(void **state)
{
    (void)state;
    static const char data[] = NEB_TEST_DATA "/tokenizer_json/gpt2";
    char dir[256], from[300], to[300], out[300], path[400];
    struct neb_model_yaml f;
    struct neb_tok *tok;
    struct neb_buf bytes;
    check_make_dir(dir, sizeof dir);
    snprintf(from, sizeof from, "%s/from", dir);
    snprintf(to, sizeof to, "%s/to", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    assert_ok(neb__file_make_dir(from, 0755));
    write_gpt2(from, 400);
    for (int i = 0; i < 2; i++) {
        neb__buf_init(&bytes, 1 << 20);
        snprintf(path, sizeof path, "%s%s", data, i ? ".config.json" : ".json");
        assert_ok(neb__file_read(path, &bytes));
        snprintf(path, sizeof path, "%s/%s", from, i ? "tokenizer_config.json" : "tokenizer.json");
        assert_ok(neb__file_replace(path, bytes.data, bytes.len, 0600));
        neb__buf_free(&bytes);
    }
    assert_ok(neb__hf_import(from, to));
    assert_ok(neb__model_yaml_read(to, &f));
    assert_string_equal(f.tokenizer, "tokenizer.json");
    assert_ok(neb__folder_tokenizer(&f, &tok));
    assert_int_equal(neb__tok_vocab(tok), 400);
    neb__tok_close(tok);
    neb__model_yaml_free(&f);
    assert_ok(neb__hf_export(to, out));
    assert_same_file(out, "tokenizer.json", NEB_TEST_DATA "/tokenizer_json/gpt2.json");
    assert_same_file(out, "tokenizer_config.json", NEB_TEST_DATA "/tokenizer_json/gpt2.config.json");
    check_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_become_gpt2_tokens), cmocka_unit_test(tokens_become_text),
        cmocka_unit_test(any_bytes_come_back),      cmocka_unit_test(files_that_lie),
        cmocka_unit_test(a_vocabulary_with_holes),  cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(both_files_go_along),      cmocka_unit_test(a_tokenizer_json_goes_along)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
