/* test_tokenizer_json.c: tokenizer.json gives what the tokenizers library gives on the recorded cases
 * (tools/record_tokenizers.py), files that lie are answered, special tokens stay text, and failing allocations
 * leave nothing behind. */
#include "check.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER NEB_TEST_DATA "/tokenizer_json/"

static const char *const kinds[] = {"llama3", "qwen2", "gpt2", "roberta",    "llama2",   "mistral", "xlm-r",
                                    "t5",     "nmt",   "bert", "bert-cased", "suffixes", "phi3"};

struct files {
    struct neb_buf json, config;
    struct neb_tj_files f;
};

static void load_files(const char *kind, struct files *x)
{
    char path[512];
    neb__buf_init(&x->json, 1 << 22);
    neb__buf_init(&x->config, 1 << 20);
    snprintf(path, sizeof path, FOLDER "%s.json", kind);
    assert_ok(neb__file_read(path, &x->json));
    snprintf(path, sizeof path, FOLDER "%s.config.json", kind);
    assert_ok(neb__file_read(path, &x->config));
    x->f = (struct neb_tj_files){x->json.data, x->json.len, x->config.data, x->config.len};
}

static void free_files(struct files *x)
{
    neb__buf_free(&x->json);
    neb__buf_free(&x->config);
}

static void compare(const struct neb_tok *tok, const char *kind, const json_t *c)
{
    struct neb_buf got, back;
    const json_t *text = json_object_get(c, "text"), *list = json_object_get(c, "ids"),
                 *decoded = json_object_get(c, "decoded");
    size_t n = json_array_size(list);
    neb__buf_init(&got, 1 << 20);
    neb__buf_init(&back, 1 << 20);
    assert_ok(neb__tok_encode(tok, json_string_value(text), json_string_length(text), &got));
    bool same = got.len == n * sizeof(int32_t);
    for (size_t i = 0; same && i < n; i++)
        same = ((const int32_t *)(const void *)got.data)[i] == json_integer_value(json_array_get(list, i));
    if (!same) fail_msg("%s cuts otherwise: %s", kind, json_string_value(text));
    assert_ok(neb__tok_decode(tok, (const int32_t *)(const void *)got.data, n, &back));
    if (back.len != json_string_length(decoded) ||
        (back.len && memcmp(back.data, json_string_value(decoded), back.len)))
        fail_msg("%s decodes otherwise: '%.*s', not '%s'", kind, (int)back.len, (const char *)back.data,
                 json_string_value(decoded));
    neb__buf_free(&got);
    neb__buf_free(&back);
}

static void every_kind_cuts_as_the_library_does(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct files x;
        struct neb_tok *tok;
        char path[512];
        json_error_t e;
        size_t i;
        json_t *c;
        load_files(kinds[k], &x);
        assert_ok(neb__tok_open_json(&x.f, &tok));
        snprintf(path, sizeof path, FOLDER "%s.cases.json", kinds[k]);
        json_t *list = json_load_file(path, 0, &e);
        assert_true(json_array_size(list) > 90);
        json_array_foreach(list, i, c) compare(tok, kinds[k], c);
        json_decref(list);
        neb__tok_close(tok);
        free_files(&x);
    }
}

/* A text that names a special token is text: nobody can put an end of sentence into a sentence. */
static void special_tokens_stay_text(void **state)
{
    (void)state;
    static const char text[] = "a <s> b </s> [SEP] [MASK] <unk> <|end|> <|endoftext|>";
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct files x;
        struct neb_tok *tok;
        struct neb_buf got;
        load_files(kinds[k], &x);
        neb__buf_init(&got, 1 << 20);
        assert_ok(neb__tok_open_json(&x.f, &tok));
        assert_ok(neb__tok_encode(tok, text, sizeof text - 1, &got));
        assert_true(neb__tok_special(tok, NEB_TOK_EOS) >= 0 && neb__tok_special(tok, NEB_TOK_BOS) >= 0);
        for (size_t i = 0; i < got.len / sizeof(int32_t); i++) {
            int32_t id = ((const int32_t *)(const void *)got.data)[i];
            if (neb__tok_special_map(tok)[id] && id != neb__tok_special(tok, NEB_TOK_UNK))
                fail_msg("%s makes the special token %d of a text", kinds[k], (int)id);
        }
        neb__tok_close(tok);
        neb__buf_free(&got);
        free_files(&x);
    }
}

static neb_status open_text(const char *json, const char *config)
{
    struct neb_tj_files f = {json, strlen(json), config, strlen(config)};
    struct neb_tok *tok;
    neb_status status = neb__tok_open_json(&f, &tok);
    if (status == NEB_OK) neb__tok_close(tok);
    return status;
}

#define BPE(more) \
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"</s>\": 3}, " more "}"
#define GOOD BPE("\"merges\": [\"a b\"]}")
#define WITH(more) \
    "{" more ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"</s>\": 1}, \"merges\": []}}"

static void files_that_lie(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        neb_status status;
    } bad[] = {
        {"[]", NEB_ERR_CORRUPT},
        {"{", NEB_ERR_CORRUPT},
        {"{}", NEB_ERR_CORRUPT},
        {BPE("\"merges\": [\"a c\"]}"), NEB_ERR_CORRUPT},
        {BPE("\"merges\": [\"ab\"]}"), NEB_ERR_CORRUPT},
        {BPE("\"merges\": [[\"a\"]]}"), NEB_ERR_CORRUPT},
        {BPE("\"merges\": 3}"), NEB_ERR_CORRUPT},
        {BPE("\"merges\": [], \"dropout\": 0.5}"), NEB_ERR_UNSUPPORTED},
        {"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}}", NEB_ERR_UNSUPPORTED},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\"]]}}", NEB_ERR_CORRUPT}, /* no end token */
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[3, 1]]}}", NEB_ERR_CORRUPT},
        {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 7, \"vocab\": [[\"a\", 1]]}}", NEB_ERR_CORRUPT},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}", NEB_ERR_CORRUPT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999}, \"merges\": []}}", NEB_ERR_CORRUPT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}",
         NEB_ERR_CORRUPT},
        {WITH("\"normalizer\": {\"type\": \"Sorcery\"}"), NEB_ERR_UNSUPPORTED},
        {WITH("\"normalizer\": {}"), NEB_ERR_CORRUPT},
        {WITH("\"normalizer\": {\"type\": \"Sequence\"}"), NEB_ERR_CORRUPT},
        {WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"////\"}"),
         NEB_ERR_CORRUPT},
        {WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"/////////w==\"}"),
         NEB_ERR_CORRUPT},
        {WITH("\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}"), NEB_ERR_UNSUPPORTED},
        {WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": "
              "\"(\"}}"),
         NEB_ERR_UNSUPPORTED},
        {WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": "
              "\"\\\\h\"}}"),
         NEB_ERR_UNSUPPORTED},
        {WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": "
              "\"[a-c&&[^b]]\"}}"),
         NEB_ERR_UNSUPPORTED},
        /* a replacement that is not UTF-8 */
        {WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"BAAAAAAAAAD/AA==\"}"),
         NEB_ERR_CORRUPT},
        {WITH("\"added_tokens\": [{\"id\": 1, \"content\": \"other\"}]"), NEB_ERR_CORRUPT},
        {WITH("\"added_tokens\": [{\"id\": -1, \"content\": \"x\"}]"), NEB_ERR_CORRUPT},
    };
    static const char config[] = "{\"eos_token\": \"</s>\"}";
    assert_ok(open_text(GOOD, config));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (open_text(bad[i].json, config) != bad[i].status) fail_msg("file %zu: %s", i, bad[i].json);
    assert_int_equal(open_text(GOOD, "{}"), NEB_ERR_CORRUPT); /* nobody says how a text ends */
    assert_int_equal(open_text(GOOD, "nonsense"), NEB_ERR_CORRUPT);
}

/* A pattern that takes for ever on some text is stopped. */
static void slow_patterns_are_stopped(void **state)
{
    (void)state;
    static const char json[] = WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", "
                                    "\"pattern\": {\"Regex\": \"(a+)+$\"}}");
    struct neb_tj_files f = {json, sizeof json - 1, "{\"eos_token\": \"</s>\"}", 21};
    struct neb_tok *tok;
    struct neb_buf got;
    char text[80];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    neb__buf_init(&got, 1 << 20);
    assert_ok(neb__tok_open_json(&f, &tok));
    assert_int_equal(neb__tok_encode(tok, text, sizeof text, &got), NEB_ERR_RANGE);
    neb__tok_close(tok);
    neb__buf_free(&got);
}

/* Steps that write many letters for one fill no memory, and the message says which part it was. */
static void texts_that_grow_are_refused(void **state)
{
    (void)state;
#define SIXTEEN "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aaaaaaaaaaaaaaaa\"}"
    static const char json[] = WITH("\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [" SIXTEEN
                                    ", " SIXTEEN ", " SIXTEEN ", " SIXTEEN ", " SIXTEEN ", " SIXTEEN "]}");
    struct neb_tj_files f = {json, sizeof json - 1, "{\"eos_token\": \"</s>\"}", 21};
    struct neb_tok *tok;
    struct neb_buf got;
    neb__buf_init(&got, 1 << 20);
    assert_ok(neb__tok_open_json(&f, &tok));
    check_log_quiet();
    assert_status(neb__tok_encode(tok, "ab", 2, &got), NEB_ERR_NOSPACE);
    check_log_restore();
    assert_non_null(strstr(neb_last_error(), "the normalizer of tokenizer.json makes a text of"));
    neb__tok_close(tok);
    neb__buf_free(&got);
}

static neb_status everything(const struct neb_tj_files *f)
{
    static const char text[] = "Größe e\xCC\x81  x½ 12 eng_Latn y\xFF \xE4\xBD\xA0";
    struct neb_tok *tok;
    struct neb_buf got, back;
    NEB_TRY(neb__tok_open_json(f, &tok));
    neb__buf_init(&got, 1 << 20);
    neb__buf_init(&back, 1 << 20);
    neb_status status = neb__tok_encode(tok, text, sizeof text - 1, &got);
    if (status == NEB_OK)
        status =
            neb__tok_decode(tok, (const int32_t *)(const void *)got.data, got.len / sizeof(int32_t), &back);
    neb__buf_free(&got);
    neb__buf_free(&back);
    neb__tok_close(tok);
    return status;
}

static void each_allocation_fails(void **state)
{
    (void)state;
    static const char *const some[] = {"llama3", "t5", "bert", "suffixes"};
    for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
        struct files x;
        load_files(some[k], &x);
        int64_t held = neb__mem_held(), n = 1;
        for (;; n++) {
            neb__mem_fail_at(n);
            neb_status status = everything(&x.f);
            neb__mem_fail_at(0);
            assert_int_equal(neb__mem_held(), held);
            if (status == NEB_OK) break;
            assert_int_equal(status, NEB_ERR_NOMEM);
        }
        assert_true(n > 10);
        free_files(&x);
    }
}

/* The ids of a text; at most `room`. */
static size_t ids_of(const char *json, const char *text, size_t n, int32_t *ids, size_t room)
{
    static const char config[] = "{\"eos_token\": \"</s>\"}";
    struct neb_tj_files f = {json, strlen(json), config, sizeof config - 1};
    struct neb_tok *tok;
    struct neb_buf got;
    neb__buf_init(&got, 1 << 24);
    assert_ok(neb__tok_open_json(&f, &tok));
    assert_ok(neb__tok_encode(tok, text, n, &got));
    size_t count = got.len / sizeof *ids;
    for (size_t i = 0; i < count && i < room; i++) memcpy(&ids[i], got.data + i * sizeof *ids, sizeof *ids);
    neb__tok_close(tok);
    neb__buf_free(&got);
    return count;
}

#define SPLIT(regex)                                                                                       \
    "{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": "      \
    "\"" regex "\"}}, \"model\": {\"type\": \"BPE\", \"ignore_merges\": true, \"unk_token\": \"?\", "      \
    "\"fuse_unk\": true, "                                                                                 \
    "\"vocab\": {\"?\": 0, \"</s>\": 1, \"a\": 2, \"b\": 3, \"\\u180e\": 4, \"\\u6f22\": 5, \"\\u3001\": " \
    "6, "                                                                                                  \
    "\"\\n\": 7, \"a\\u180eb\": 8, \"\\u6f22\\u3001\": 9}, \"merges\": []}}"

/* A zero byte in a text ends no piece and matches none. */
static void zero_bytes_are_text(void **state)
{
    (void)state;
    static const char unigram[] =
        "{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], "
        "[\"</s>\", 0], [\"a\", -1], [\"b\", -1]]}}";
    static const char wordpiece[] = "{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"?\", \"vocab\": "
                                    "{\"?\": 0, \"</s>\": 1, \"a\": 2}}}";
    int32_t ids[8];
    assert_int_equal(ids_of(unigram, "a\0b", 3, ids, 8), 3);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 0);
    assert_int_equal(ids[2], 3);
    for (size_t n = 2; n < 64; n++) {
        char text[64] = "a";
        assert_int_equal(ids_of(wordpiece, text, n, ids, 8), 1);
        assert_int_equal(ids[0], 0);
    }
}

/* One letter with very many marks, in the wrong order: they are ordered in linear time, and none is lost. */
static void many_marks_take_no_time(void **state)
{
    (void)state;
    enum { MARKS = 200000 };
    static const char json[] =
        "{\"normalizer\": {\"type\": \"NFD\"}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", "
        "\"vocab\": {\"?\": 0, \"</s>\": 1, \"a\": 2, \"\\u0301\": 3, \"\\u0323\": 4}, \"merges\": []}}";
    int32_t *ids = malloc((MARKS + 1) * sizeof *ids);
    char *text = malloc(2 * MARKS + 1);
    assert_true(ids && text);
    text[0] = 'a';
    for (size_t i = 0; i < MARKS; i++) memcpy(text + 1 + 2 * i, i % 2 ? "\xCC\xA3" : "\xCC\x81", 2);
    assert_int_equal(ids_of(json, text, 2 * MARKS + 1, ids, MARKS + 1), MARKS + 1);
    for (size_t i = 1; i <= MARKS; i++)
        assert_int_equal(ids[i], i <= MARKS / 2 ? 4 : 3); /* below comes before above */
    free(text);
    free(ids);
}

/* What Oniguruma and PCRE2 disagree on; the pieces are those of tokenizers 0.23. */
static void patterns_mean_what_oniguruma_means(void **state)
{
    (void)state;
    int32_t ids[8];
    assert_int_equal(ids_of(SPLIT("\\\\s+"),
                            "a\xE1\xA0\x8E"
                            "b",
                            5, ids, 8),
                     1); /* U+180E is no space */
    assert_int_equal(ids[0], 8);
    assert_int_equal(ids_of(SPLIT("\\\\p{Han}+"), "\xE6\xBC\xA2\xE3\x80\x81", 6, ids, 8), 2);
    assert_int_equal(ids[0], 5);
    assert_int_equal(ids_of(SPLIT("^a"), "a\na", 3, ids, 8), 3); /* ^ begins a line */
    char *text = malloc(1 << 20);                                /* more than the stack of the JIT holds */
    assert_non_null(text);
    for (size_t i = 0; i < 1 << 20; i++) text[i] = i % 2 ? 'b' : 'a';
    assert_true(ids_of(SPLIT("(?:a|b)*?\\\\n|(?:ab?)+"), text, 4096, ids, 8) > 0);
    free(text);
}

/* A special token is not found in a text, whichever way the model looks for pieces. */
static void no_model_makes_special_tokens(void **state)
{
    (void)state;
    static const char whole[] =
        "{\"added_tokens\": [{\"id\": 1, \"content\": \"</s>\", \"special\": true}], \"model\": {\"type\": "
        "\"BPE\", "
        "\"ignore_merges\": true, \"vocab\": {\"<\": 2, \"/\": 3, \"s\": 4, \">\": 5}, \"merges\": []}}";
    static const char word[] =
        "{\"added_tokens\": [{\"id\": 1, \"content\": \"</s>\", \"special\": true}], \"model\": {\"type\": "
        "\"WordPiece\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"</s>\": 1}}}";
    static const char bytes[] = "{\"added_tokens\": [{\"id\": 2, \"content\": \"<0x61>\", \"special\": "
                                "true}], \"model\": {\"type\": \"BPE\", "
                                "\"byte_fallback\": true, \"unk_token\": \"?\", \"vocab\": {\"?\": 0, "
                                "\"</s>\": 1, \"<0x61>\": 2}, \"merges\": []}}";
    int32_t ids[8];
    assert_int_equal(ids_of(bytes, "a", 1, ids, 8), 1); /* the byte itself, which a file may call special */
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids_of(whole, "</s>", 4, ids, 8), 4);
    assert_int_equal(ids_of(word, "</s>", 4, ids, 8), 1);
    assert_int_equal(ids[0], 0);
}

/* As many added tokens as Gemma has, the longest of which counts. */
static void many_added_tokens(void **state)
{
    (void)state;
    struct neb_buf json;
    int32_t ids[8];
    neb__buf_init(&json, 1 << 20);
    assert_ok(neb__buf_printf(&json, "{\"added_tokens\": ["));
    for (int i = 0; i < 6000; i++)
        assert_ok(neb__buf_printf(
            &json, "%s{\"id\": %d, \"content\": \"<x%d\", \"special\": false, \"normalized\": %s}",
            i ? ", " : "", 10 + i, i, i % 2 ? "true" : "false"));
    assert_ok(neb__buf_printf(&json, "], \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"</s>\": 1, "
                                     "\"<\": 2}, \"merges\": []}}"));
    assert_ok(neb__buf_append(&json, "", 1));
    assert_int_equal(ids_of((const char *)json.data, "a<x59a<<x5900", 13, ids, 8), 5);
    assert_int_equal(ids[1], 10 + 59);
    assert_int_equal(ids[3], 2);
    assert_int_equal(ids[4], 10 + 5900);
    size_t n = 1 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, '<', n);
    assert_int_equal(ids_of((const char *)json.data, text, n, ids, 8), n);
    free(text);
    neb__buf_free(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_cuts_as_the_library_does),
        cmocka_unit_test(special_tokens_stay_text),
        cmocka_unit_test(files_that_lie),
        cmocka_unit_test(slow_patterns_are_stopped),
        cmocka_unit_test(texts_that_grow_are_refused),
        cmocka_unit_test(zero_bytes_are_text),
        cmocka_unit_test(many_marks_take_no_time),
        cmocka_unit_test(patterns_mean_what_oniguruma_means),
        cmocka_unit_test(no_model_makes_special_tokens),
        cmocka_unit_test(many_added_tokens),
        cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
