/* test_hf.c: models of the Hugging Face world: what they compute here and there, and export as the inverse of
 * import. tools/hf_parity.py recorded the models and their logits with the transformers library. */
#include "check.h"
#include "folders.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/safetensors.h"
#include "task/hf.h"
#include "task/line_batches.h"
#include "task/translate.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const kinds[] = {"bert_mlm",          "bert",       "bert_class", "xlmr",   "electra",
                                    "electra_generator", "distilbert", "gpt2",       "llama2", "llama3",
                                    "llama_linear",      "mistral",    "qwen2",      "qwen3",  "gemma"};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Encoder-decoders with their tokenizers, and the languages in which they are asked. */
static const struct {
    const char *name, *from, *to;
} pairs[] = {{"marian", NULL, NULL},
             {"m2m100", "en", "de"},
             {"nllb", "eng_Latn", "deu_Latn"},
             {"nllb-tail", "eng_Latn", "deu_Latn"},
             {"bart", NULL, NULL},
             {"mbart", "en_XX", "de_DE"},
             {"mbart50", "en_XX", "de_DE"},
             {"t5", NULL, NULL},
             {"mt5", NULL, NULL}};
enum { PAIRS = sizeof pairs / sizeof *pairs, LINES = 4 };

/* ---- the same numbers ------------------------------------------------------------------------------------------- */

static void logits_are_those_of_transformers(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int k = 0; k < KINDS; k++) {
        struct vectors v;
        struct neb_ready m;
        char path[700];
        assert_ok(neb__hf_import(folder_recorded(kinds[k]), folder_in("ours")));
        assert_ok(neb__ready_open(folder_in("ours"), NULL, device, &m));
        snprintf(path, sizeof path, "%s/expect.bin", folder_recorded(kinds[k]));
        vectors_load(path, &v);
        for (int i = 0; i < 2; i++) folder_compare(&m, kinds[k], &v, i);
        vectors_free(&v);
        neb__ready_close(&m);
    }
    neb_device_close(device);
}

/* ---- translation ------------------------------------------------------------------------------------------------- */

/* What the model reads of a line: as the command line makes it. */
static void line_is_read_as_there(const struct neb_ready *m, const struct neb_frame_tokens *f,
                                  const char *line, const struct vector *want)
{
    struct neb_line_batches *p;
    struct neb_model_input_side side;
    const int *numbers;
    struct neb_line_batches_config c = {
        .tok = m->tok, .lead = f->lead, .tail = f->tail, .max_len = 64, .rows = 64, .seqs = 1};
    assert_ok(neb__line_batches_create(&c, &p));
    assert_ok(neb__line_batches_add(p, line, NULL, 0));
    neb__line_batches_order(p, 0);
    assert_int_equal(neb__line_batches_next(p, &side, &numbers), 1);
    assert_int_equal(side.rows, (int)want->n);
    assert_memory_equal(side.ids, want->data.i, want->n * sizeof *side.ids);
    neb__line_batches_destroy(p);
}

static void compare_pair(struct neb_ready *m, const char *kind, const struct vectors *v, int i,
                         const struct neb_frame_tokens *f)
{
    char name[32];
    static float got[16 * 512];
    int32_t position[64], starts[2][2] = {{0}};
    uint32_t sample[64] = {0};
    neb_tape *tape;
    struct folder_run r = {.m = m};
    struct neb_model_input_limits limits = {.rows = {64, 64}, .seqs = 1};
    struct neb_model_input_data d = {.sides = 2};
    for (int32_t k = 0; k < 64; k++) position[k] = k;
    for (int s = 0; s < 2; s++) {
        snprintf(name, sizeof name, s ? "target%d" : "ids%d", i);
        struct vector *ids = vectors_need(v, name);
        starts[s][1] = (int32_t)ids->n;
        d.side[s] = (struct neb_model_input_side){.rows = (int32_t)ids->n,
                                                  .seqs = 1,
                                                  .max_len = (int32_t)ids->n,
                                                  .ids = ids->data.i,
                                                  .position = position,
                                                  .sample = sample,
                                                  .starts = starts[s]};
    }
    assert_int_equal(d.side[1].ids[0], f->start);
    if (f->first >= 0) assert_int_equal(d.side[1].ids[1], f->first);
    snprintf(name, sizeof name, "logits%d", i);
    struct vector *want = vectors_need(v, name);
    const int64_t wide = (int64_t)want->n / d.side[1].rows, here = m->model->outputs;
    assert_true(want->n <= sizeof got / sizeof *got && here <= wide);
    assert_ok(neb__model_input_create(m->device, &limits, &r.feed));
    assert_ok(neb_buffer_create(m->device, sizeof got, &r.out));
    assert_ok(neb_tape_create(m->device, m->params, &tape));
    assert_ok(neb__model_input_load(r.feed, &d));
    struct neb_run run = {.fn = folder_run, .arg = &r, .key = 1};
    assert_ok(neb_tape_run(tape, &run));
    assert_ok(neb_buffer_download(r.out, got, (size_t)(d.side[1].rows * here) * sizeof *got));
    for (int64_t row = 0; row < d.side[1].rows; row++)
        for (int64_t k = 0; k < here; k++) {
            float x = got[row * here + k], y = want->data.f[row * wide + k];
            if (!(fabsf(x - y) <= 1e-4f * fmaxf(1, fabsf(y))))
                fail_msg("%s, line %d, token %d, logit %d is %.7g, transformers has %.7g", kind, i, (int)row,
                         (int)k, x, y);
        }
    neb_tape_destroy(tape);
    neb_buffer_destroy(r.out);
    neb__model_input_destroy(r.feed);
}

/* The text of the recorded target. */
static void target_says_the_same(const struct neb_ready *m, const struct vector *target, const char *want)
{
    struct neb_buf text;
    neb__buf_init(&text, 1 << 16);
    assert_ok(neb__tok_decode(m->tok, target->data.i, target->n, &text));
    assert_ok(neb__buf_append(&text, "", 1));
    const char *got = (const char *)text.data;
    while (*got == ' ') got++;
    while (*want == ' ') want++;
    assert_string_equal(got, want);
    neb__buf_free(&text);
}

static json_t *recorded_lines(const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/lines.json", folder_recorded(name));
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

static void translations_are_those_of_transformers(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int k = 0; k < PAIRS; k++) {
        struct vectors v;
        struct neb_ready m;
        const struct neb_frame *frame;
        struct neb_frame_tokens f;
        char path[700], name[32];
        json_t *j = recorded_lines(pairs[k].name);
        assert_ok(neb__hf_import(folder_recorded(pairs[k].name), folder_in("pair")));
        assert_ok(neb__ready_open(folder_in("pair"), NULL, device, &m));
        assert_ok(neb__folder_frame(&m.folder, &frame));
        assert_ok(neb__frame_find(frame, m.tok, pairs[k].from, pairs[k].to, &f));
        snprintf(path, sizeof path, "%s/expect.bin", folder_recorded(pairs[k].name));
        vectors_load(path, &v);
        for (int i = 0; i < LINES; i++) {
            const char *line = json_string_value(json_array_get(json_object_get(j, "lines"), (size_t)i));
            const char *text = json_string_value(json_array_get(json_object_get(j, "texts"), (size_t)i));
            snprintf(name, sizeof name, "ids%d", i);
            line_is_read_as_there(&m, &f, line, vectors_need(&v, name));
            snprintf(name, sizeof name, "target%d", i);
            target_says_the_same(&m, vectors_need(&v, name), text);
            compare_pair(&m, pairs[k].name, &v, i, &f);
        }
        json_decref(j);
        vectors_free(&v);
        neb__ready_close(&m);
        check_remove_dir(folder_in("pair"));
    }
    neb_device_close(device);
}

/* Import, export, import: the same bytes, tokenizer and all. */
static void translators_go_out_as_they_came(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "model.yaml",     "source.spm",
                                        "target.spm",        "tokenizer.json", "tokenizer.model"};
    for (int k = 0; k < PAIRS; k++) {
        assert_ok(neb__hf_import(folder_recorded(pairs[k].name), folder_in("there")));
        assert_ok(neb__hf_export(folder_in("there"), folder_in("out")));
        assert_ok(neb__hf_import(folder_in("out"), folder_in("back again")));
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            struct neb_buf a, b;
            char path[500], other[500];
            snprintf(path, sizeof path, "%s/%s", folder_in("there"), files[i]);
            snprintf(other, sizeof other, "%s/%s", folder_in("back again"), files[i]);
            assert_int_equal(access(path, F_OK), access(other, F_OK));
            if (access(path, F_OK)) continue;
            folder_read(path, &a);
            folder_read(other, &b);
            assert_int_equal(a.len, b.len);
            assert_memory_equal(a.data, b.data, a.len);
            neb__buf_free(&a);
            neb__buf_free(&b);
        }
        check_remove_dir(folder_in("there"));
        check_remove_dir(folder_in("out"));
        check_remove_dir(folder_in("back again"));
    }
}

/* T5 reads and writes its sentinels as a part of the text, from either kind of file. */
static void sentinels_are_part_of_a_text(void **state)
{
    (void)state;
    static const char *const names[] = {"t5", "mt5"};
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int k = 0; k < 2; k++) {
        struct neb_ready m;
        struct neb_buf ids, text;
        static const char line[] = "A <extra_id_0> in the<extra_id_12> snow";
        assert_ok(neb__hf_import(folder_recorded(names[k]), folder_in("sentinels")));
        assert_ok(neb__ready_open(folder_in("sentinels"), NULL, device, &m));
        neb__buf_init(&ids, 1 << 16);
        neb__buf_init(&text, 1 << 16);
        assert_ok(neb__tok_encode(m.tok, line, sizeof line - 1, &ids));
        const int32_t *id = (const int32_t *)(const void *)ids.data;
        int found[2] = {0};
        for (size_t i = 0; i < ids.len / sizeof *id; i++) {
            found[0] += id[i] == neb__tok_id(m.tok, "<extra_id_0>");
            found[1] += id[i] == neb__tok_id(m.tok, "<extra_id_12>");
        }
        assert_int_equal(found[0], 1);
        assert_int_equal(found[1], 1);
        assert_true(neb__tok_id(m.tok, "<extra_id_0>") > neb__tok_id(m.tok, "<extra_id_12>"));
        assert_ok(neb__tok_decode(m.tok, id, ids.len / sizeof *id, &text));
        assert_ok(neb__buf_append(&text, "", 1));
        assert_non_null(strstr((const char *)text.data, "<extra_id_0>"));
        assert_non_null(strstr((const char *)text.data, "<extra_id_12>"));
        assert_int_equal(neb__tok_id(m.tok, "<extra_id_100>"), -1);
        neb__buf_free(&ids);
        neb__buf_free(&text);
        neb__ready_close(&m);
        check_remove_dir(folder_in("sentinels"));
    }
    neb_device_close(device);
}

/* Marian's language token, a line that brings its own, and lines that have to name what they lack. */
static void languages_are_asked_for(void **state)
{
    (void)state;
    neb_device *device;
    struct neb_ready m;
    struct neb_translator *t;
    struct neb_translate_config c = {.beams = 2, .batch = 2, .max_len = 12, .length_penalty = 1};
    char *text[2];
    assert_ok(neb_device_open("cpu", NULL, &device));
    assert_ok(neb__hf_import(folder_recorded("marian"), folder_in("asked")));
    assert_ok(neb__ready_open(folder_in("asked"), NULL, device, &m));
    const char *tagged[] = {">>deu<< A man.", " A man."};
    struct neb_buf ids;
    neb__buf_init(&ids, 1 << 16);
    assert_ok(neb__tok_encode(m.tok, tagged[0], strlen(tagged[0]), &ids));
    assert_int_equal(((const int32_t *)(const void *)ids.data)[0], neb__tok_id(m.tok, ">>deu<<"));
    neb__buf_free(&ids);
    c.to = (char[]){"deu"};
    assert_ok(neb__translator_open(&m, &c, &t));
    assert_ok(neb__translator_translate(t, tagged + 1, 1, text));
    neb__free(text[0]);
    neb__translator_close(t);
    check_log_quiet();
    c.to = (char[]){"xxx"};
    assert_status(neb__translator_open(&m, &c, &t), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), ">>xxx<<"));
    neb__ready_close(&m);
    assert_ok(neb__hf_import(folder_recorded("nllb"), folder_in("asked")));
    assert_ok(neb__ready_open(folder_in("asked"), NULL, device, &m));
    c.to = (char[]){"deu_Latn"};
    assert_status(neb__translator_open(&m, &c, &t), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "--from"));
    check_log_restore();
    neb__ready_close(&m);
    neb_device_close(device);
}

/* ---- out again -------------------------------------------------------------------------------------------------- */

/* Gemma multiplies by 1 + w. That number is kept, to the bit; bits of w that it does not have are not. */
static void assert_same_plus_one(const struct neb_st_tensor *x, const struct neb_st_tensor *y)
{
    const float *a = x->data, *b = y->data;
    for (size_t i = 0; i < x->size / sizeof *a; i++) {
        const float one[2] = {1 + a[i], 1 + b[i]};
        assert_memory_equal(&one[0], &one[1], sizeof *one);
    }
}

static void export_is_the_inverse_of_import(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct neb_buf a, b;
        assert_ok(neb__hf_import(folder_recorded(kinds[k]), folder_in("ours")));
        assert_ok(neb__hf_export(folder_in("ours"), folder_in("back")));
        assert_ok(neb__hf_import(folder_in("back"), folder_in("again")));
        static const char *const files[] = {"model.safetensors", "model.yaml"};
        for (int i = 0; i < 2; i++) {
            char path[500];
            snprintf(path, sizeof path, "%s/%s", folder_in("ours"), files[i]);
            folder_read(path, &a);
            snprintf(path, sizeof path, "%s/%s", folder_in("again"), files[i]);
            folder_read(path, &b);
            assert_int_equal(a.len, b.len);
            assert_memory_equal(a.data, b.data, a.len);
            neb__buf_free(&a);
            neb__buf_free(&b);
        }
        if (!strcmp(kinds[k], "bert_mlm")) continue; /* that one lies in several files */
        char path[700];
        struct neb_st *was, *is;
        snprintf(path, sizeof path, "%s/model.safetensors", folder_recorded(kinds[k]));
        assert_ok(neb__st_open(path, &was));
        snprintf(path, sizeof path, "%s/model.safetensors", folder_in("back"));
        assert_ok(neb__st_open(path, &is));
        for (int i = 0; i < neb__st_count(is); i++) {
            const struct neb_st_tensor *x = neb__st_at(is, i), *y = neb__st_find(was, x->name);
            if (!y) fail_msg("%s: export wrote '%s', which transformers did not", kinds[k], x->name);
            assert_int_equal(x->size, y->size);
            bool padded = !strcmp(kinds[k], "xlmr") && strstr(x->name, "position_embeddings");
            size_t skip = padded ? 2 * 12 * sizeof(float) : 0; /* rows that are never read */
            if (!strcmp(kinds[k], "gemma") && strstr(x->name, "norm"))
                assert_same_plus_one(x, y);
            else
                assert_memory_equal((const char *)x->data + skip, (const char *)y->data + skip,
                                    x->size - skip);
        }
        neb__st_close(was);
        neb__st_close(is);
    }
}

/* ---- tokenizers ------------------------------------------------------------------------------------------------- */

/* The tokenizer, not the kind of the model, says how ids are numbered. */
static void numbering_is_the_tokenizers(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *file, *config, *numbering;
    } list[] = {
        {"bert", "sentencepiece.bpe.model", "{\"tokenizer_class\": \"XLMRobertaTokenizer\"}", "xlm-r"},
        {"bert", "sentencepiece.bpe.model", "{}", "xlm-r"},
        {"bert", "tokenizer.model", "{\"tokenizer_class\": \"XLMRobertaTokenizerFast\"}", "xlm-r"},
        {"bert", "spiece.model", "{}", "plain"},
        {"bert", "vocab.txt", "{\"do_lower_case\": false}", "plain"},
        {"xlmr", "sentencepiece.bpe.model", "{}", "xlm-r"},
        {"xlmr", "spiece.model", "{}", "xlm-r"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct neb_model_yaml f;
        char name[16];
        snprintf(name, sizeof name, "numbers%zu", i);
        folder_copy(list[i].kind, "config.json", name);
        folder_copy(list[i].kind, "model.safetensors", name);
        folder_put(name, list[i].file, "the bytes of a tokenizer");
        folder_put(name, "tokenizer_config.json", list[i].config);
        assert_ok(neb__hf_import(folder_in(name), folder_in("numbered")));
        assert_ok(neb__model_yaml_read(folder_in("numbered"), &f));
        if (strcmp(f.numbering, list[i].numbering)) fail_msg("%zu: %s", i, f.numbering);
        assert_int_equal(f.cased, strstr(list[i].config, "false") != NULL);
        neb__model_yaml_free(&f);
    }
}

static void a_file_shortened_while_it_is_read_is_an_error(void **state)
{
    (void)state;
    char path[700];
    struct neb_st *st;
    folder_copy("llama3", "model.safetensors", "cut");
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("cut"));
    assert_ok(neb__st_open(path, &st));
    const struct neb_st_tensor *t = neb__st_at(st, neb__st_count(st) - 1);
    float *values = neb__malloc((size_t)t->size * 2);
    assert_non_null(values);
    assert_ok(neb__st_to_f32(t, values));
    assert_int_equal(truncate(path, 100), 0);
    check_log_quiet();
    assert_status(neb__st_to_f32(t, values), NEB_ERR_CORRUPT);
    check_log_restore();
    assert_non_null(strstr(neb_last_error(), t->name));
    neb__free(values);
    neb__st_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(export_is_the_inverse_of_import),
        cmocka_unit_test(a_file_shortened_while_it_is_read_is_an_error),
        cmocka_unit_test(translations_are_those_of_transformers),
        cmocka_unit_test(translators_go_out_as_they_came),
        cmocka_unit_test(languages_are_asked_for),
        cmocka_unit_test(sentinels_are_part_of_a_text),
        cmocka_unit_test(numbering_is_the_tokenizers),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
