/* test_hf_export.c: what an export writes: numbers of tokens, types of values, files. */
#include "check.h"
#include "folders.h"
#include "store/safetensors.h"
#include "task/hf.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const recorded[] = {
    "bert_mlm",   "bert",    "bert_class", "xlmr",   "electra", "electra_generator",
    "distilbert", "gpt2",    "llama2",     "llama3", "mistral", "qwen2",
    "qwen3",      "gemma",   "marian",     "m2m100", "nllb",    "bart",
    "mbart",      "mbart50", "t5",         "mt5"};

/* ---- numbers of tokens -------------------------------------------------------------------------------------------- */

static json_t *config_in(const char *folder)
{
    char path[700];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

/* As config.json had them; without those, as the tokenizer has them; null where there is no such token. */
static void tokens_keep_their_numbers(void **state)
{
    (void)state;
    static const char *const keys[] = {"pad_token_id", "bos_token_id", "eos_token_id",
                                       "decoder_start_token_id"};
    for (size_t k = 0; k < sizeof recorded / sizeof *recorded; k++) {
        const char *name = recorded[k];
        assert_ok(neb__hf_import(folder_recorded(name), folder_in("ours")));
        assert_ok(neb__hf_export(folder_in("ours"), folder_in("numbers")));
        json_t *was = config_in(folder_recorded(name)), *is = config_in(folder_in("numbers"));
        for (int i = 0; i < 4; i++) {
            const json_t *a = json_object_get(was, keys[i]), *b = json_object_get(is, keys[i]);
            if (json_is_null(a) ? b && !json_is_null(b) : a && !json_equal(a, b))
                fail_msg("%s: '%s' is another", name, keys[i]);
        }
        json_decref(was);
        json_decref(is);
        check_remove_dir(folder_in("ours"));
        check_remove_dir(folder_in("numbers"));
    }
    folder_copy("llama3", "model.safetensors", "stops");
    folder_config("llama3", "stops", "eos_token_id", "[7, 9]");
    for (int known = 1; known >= 0; known--) {
        char path[500];
        assert_ok(neb__hf_import(folder_in("stops"), folder_in("ours")));
        snprintf(path, sizeof path, "%s/token_numbers.json", folder_in("ours"));
        if (!known) assert_int_equal(unlink(path), 0);
        assert_ok(neb__hf_export(folder_in("ours"), folder_in("numbers")));
        json_t *is = config_in(folder_in("numbers"));
        const json_t *eos = json_object_get(is, "eos_token_id"), *bos = json_object_get(is, "bos_token_id");
        if (known)
            assert_true(json_array_size(eos) == 2 && json_integer_value(json_array_get(eos, 1)) == 9 &&
                        json_integer_value(bos) == 1);
        else
            assert_true(json_is_null(eos) && json_is_null(bos));
        json_decref(is);
    }
}

/* ---- values of 16 bits -------------------------------------------------------------------------------------------- */

/* Two bytes of every value stay: as bf16 the upper ones; as fp16 small whole numbers divided by 64. */
static void write_halves(const char *kind, bool bf16, const char *to)
{
    struct neb_st *st;
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", folder_recorded(kind));
    assert_ok(neb__st_open(path, &st));
    const int n = neb__st_count(st);
    struct neb_st_tensor *list = calloc((size_t)n, sizeof *list);
    assert_non_null(list);
    for (int i = 0; i < n; i++) {
        list[i] = *neb__st_at(st, i);
        const size_t count = list[i].size / 4;
        uint16_t *half = malloc(2 * count);
        assert_non_null(half);
        for (size_t k = 0; k < count; k++) {
            memcpy(&half[k], (const uint8_t *)list[i].data + 4 * k + 2, 2);
            if (!bf16)
                half[k] =
                    (uint16_t)((k % 7 ? 0x3C00 : 0x0003) + (k * 31 & 0x83FF)); /* 1 … 2, and subnormal ones */
        }
        list[i].type = bf16 ? NEB_ST_BF16 : NEB_ST_F16;
        list[i].size /= 2;
        list[i].data = half;
    }
    folder_copy(kind, "config.json", to);
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in(to));
    assert_ok(neb__st_write(path, list, n, NULL, 0644));
    for (int i = 0; i < n; i++) free((void *)(uintptr_t)list[i].data);
    free(list);
    neb__st_close(st);
}

/* Import keeps them, and so does a folder that is written while they are frozen. */
static void values_of_16_bits_stay(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct neb_ready m;
        struct neb_buf a, b;
        char path[500];
        write_halves("llama2", bf16, "halves");
        assert_ok(neb__hf_import(folder_in("halves"), folder_in("kept")));
        assert_ok(neb__ready_open(folder_in("kept"), NULL, device, &m));
        assert_ok(neb__folder_write(&m.folder, folder_in("written"), m.model, NULL));
        snprintf(path, sizeof path, "%s/model.safetensors", folder_in("kept"));
        folder_read(path, &a);
        struct neb_st *st;
        assert_ok(neb__st_open(path, &st));
        for (int i = 0; i < neb__st_count(st); i++)
            assert_int_equal(neb__st_at(st, i)->type, bf16 ? NEB_ST_BF16 : NEB_ST_F16);
        neb__st_close(st);
        snprintf(path, sizeof path, "%s/model.safetensors", folder_in("written"));
        folder_read(path, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        neb__buf_free(&a);
        neb__buf_free(&b);
        neb__ready_close(&m);
    }
    neb_device_close(device);
}

/* The types of all tensors of a folder, and what its config.json says of them. */
static void assert_type(const char *folder, enum neb_st_type type, const char *says)
{
    struct neb_st *st;
    char path[500];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(neb__st_open(path, &st));
    for (int i = 0; i < neb__st_count(st); i++) assert_int_equal(neb__st_at(st, i)->type, type);
    neb__st_close(st);
    json_t *j = config_in(folder);
    assert_string_equal(json_string_value(json_object_get(j, "torch_dtype")), says);
    json_decref(j);
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    struct neb_buf x, y;
    char path[500];
    snprintf(path, sizeof path, "%s/%s", a, name);
    folder_read(path, &x);
    snprintf(path, sizeof path, "%s/%s", b, name);
    folder_read(path, &y);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    neb__buf_free(&x);
    neb__buf_free(&y);
}

static void export_keeps_16_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"llama2", "gpt2", "xlmr", "distilbert", "bart", "t5", "gemma"};
    check_log_quiet();
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            if (!bf16 && !strcmp(names[k], "gemma")) continue; /* 1 + w is fp32 here */
            write_halves(names[k], bf16, "halves");
            assert_ok(neb__hf_import(folder_in("halves"), folder_in("kept")));
            assert_ok(neb__hf_export(folder_in("kept"), folder_in("out")));
            assert_type(folder_in("out"), bf16 ? NEB_ST_BF16 : NEB_ST_F16, bf16 ? "bfloat16" : "float16");
            assert_ok(neb__hf_import(folder_in("out"), folder_in("again")));
            assert_same_file(folder_in("kept"), folder_in("again"), "model.safetensors");
        }
    check_log_restore();
}

/* Files end where the next tensor would be too much; what an earlier export left is not read. */
static void large_models_go_out_in_several_files(void **state)
{
    (void)state;
    char path[500];
    enum { LIMIT = 2000 };
    assert_ok(neb__hf_import(folder_recorded("llama2"), folder_in("ours")));
    assert_ok(neb__hf_export(folder_in("ours"), folder_in("parts")));
    assert_ok(neb__hf_export_cut(folder_in("ours"), folder_in("parts"), LIMIT));
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("parts"));
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder_in("parts"));
    json_t *index = json_load_file(path, 0, NULL), *file;
    const char *tensor;
    int64_t bytes = 0, files = 0;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file)
    {
        struct neb_st *st;
        snprintf(path, sizeof path, "%s/%s", folder_in("parts"), json_string_value(file));
        assert_ok(neb__st_open(path, &st));
        const struct neb_st_tensor *t = neb__st_find(st, tensor);
        assert_non_null(t);
        uint64_t all = 0;
        for (int i = 0; i < neb__st_count(st); i++) all += neb__st_at(st, i)->size;
        assert_true(all <= LIMIT || neb__st_count(st) == 1);
        files += neb__st_at(st, 0) == t;
        bytes += (int64_t)t->size;
        neb__st_close(st);
    }
    assert_true(files > 3);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
                     bytes);
    json_decref(index);
    assert_ok(neb__hf_import(folder_in("parts"), folder_in("again")));
    assert_same_file(folder_in("ours"), folder_in("again"), "model.safetensors");
    assert_ok(neb__hf_export(folder_in("ours"), folder_in("parts")));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder_in("parts"));
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_keep_their_numbers),
        cmocka_unit_test(values_of_16_bits_stay),
        cmocka_unit_test(export_keeps_16_bits),
        cmocka_unit_test(large_models_go_out_in_several_files),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
