/* test_hf_adapters.c: adapters of the peft library: what they compute here and there, and folders that lie. */
#include "check.h"
#include "folders.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The model with what the method added beside its weights. neb__ready_open() may merge it. */
static void open_apart(const char *path, neb_device *device, struct neb_ready *m)
{
    int n;
    memset(m, 0, sizeof *m);
    m->device = device;
    assert_ok(neb__model_yaml_read(path, &m->folder));
    assert_ok(neb_params_create(&m->params));
    assert_ok(neb__model_create(&m->folder.model, &m->folder.peft, "", NULL, m->params, &m->model));
    assert_ok(neb_params_ready(m->params, device, 1));
    assert_ok(neb__folder_load(&m->folder, m->model, NULL, true, &n));
}

/* off: by how much a value may differ; 0: the same bytes. */
static void same_tensors(const char *was_path, const char *is_path, double off)
{
    struct neb_st *was, *is;
    assert_ok(neb__st_open(was_path, &was));
    assert_ok(neb__st_open(is_path, &is));
    assert_int_equal(neb__st_count(was), neb__st_count(is));
    for (int i = 0; i < neb__st_count(is); i++) {
        const struct neb_st_tensor *x = neb__st_at(is, i), *y = neb__st_find(was, x->name);
        assert_non_null(y);
        assert_int_equal(x->rank, y->rank);
        for (int k = 0; k < x->rank; k++) assert_int_equal(x->shape[k], y->shape[k]);
        assert_int_equal(x->size, y->size);
        if (!off) assert_memory_equal(x->data, y->data, x->size);
        for (size_t k = 0; off && k < x->size / sizeof(float); k++)
            assert_true(fabs((double)(((const float *)x->data)[k] - ((const float *)y->data)[k])) <= off);
    }
    neb__st_close(was);
    neb__st_close(is);
}

static void check_adapter(const char *name, neb_device *device, const char *on)
{
    struct vectors v;
    struct neb_ready m;
    char path[700], out[700];
    assert_ok(neb__hf_import_adapter(folder_recorded(name), folder_in("base"), folder_in("both")));
    snprintf(path, sizeof path, "%s/expect.bin", folder_recorded(name));
    vectors_load(path, &v);
    open_apart(folder_in("both"), device, &m);
    const char *patterns = strstr(name, "ia3") ? m.folder.peft.ia3_on : m.folder.peft.lora_on;
    if (on) assert_string_equal(patterns, on);
    for (int i = 0; i < 2; i++) folder_compare(&m, name, &v, i);
    neb__ready_close(&m);
    assert_ok(neb__ready_open(folder_in("both"), NULL, device, &m));
    for (int i = 0; i < 2; i++) folder_compare(&m, name, &v, i);
    neb__ready_close(&m);
    if (on) { /* merged: the same numbers without the method */
        assert_ok(neb__hf_export(folder_in("both"), folder_in("merged")));
        assert_ok(neb__hf_import(folder_in("merged"), folder_in("plain")));
        assert_ok(neb__ready_open(folder_in("plain"), NULL, device, &m));
        assert_string_equal(m.folder.peft.method, "full");
        for (int i = 0; i < 2; i++) folder_compare(&m, name, &v, i);
        neb__ready_close(&m);
    }
    vectors_free(&v);
    assert_ok(neb__hf_export_adapter(folder_in("both"), folder_in("adapter")));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder_recorded(name));
    snprintf(out, sizeof out, "%s/adapter_model.safetensors", folder_in("adapter"));
    same_tensors(path, out, strstr(name, "prefix") ? 1e-6 : 0); /* its keys are turned there and back */
}

static void adapters_compute_as_in_peft(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    assert_ok(neb__hf_import(folder_recorded("llama3"), folder_in("base")));
    check_adapter("llama3_lora", device, "*.attention.q,*.attention.v,*.ffn.up");
    check_adapter("llama3_dora", device, "*.attention.k,*.ffn.gate,*.ffn.out");
    check_adapter("llama3_ia3", device, "*.attention.k,*.attention.v");
    check_adapter("llama3_prefix", device, NULL); /* it cannot be merged */
    check_adapter("llama3_prompt", device, NULL);
    check_log_quiet();
    assert_status(neb__hf_export(folder_in("both"), folder_in("never")), NEB_ERR_UNSUPPORTED);
    check_log_restore();
    neb_device_close(device);
}

static void nothing_is_written_over_itself(void **state)
{
    (void)state;
    char link[300];
    folder_copy("llama3", "config.json", "itself");
    folder_copy("llama3", "model.safetensors", "itself");
    snprintf(link, sizeof link, "%s", folder_in("link"));
    assert_int_equal(symlink("itself", link), 0);
    check_log_quiet();
    assert_status(neb__hf_import(folder_in("itself"), link), NEB_ERR_INVALID);
    assert_ok(neb__hf_import(folder_recorded("llama3"), folder_in("base")));
    snprintf(link, sizeof link, "%s", folder_in("base"));
    assert_status(neb__hf_export(link, link), NEB_ERR_INVALID);
    assert_status(neb__hf_export_adapter(link, link), NEB_ERR_INVALID);
    assert_status(neb__hf_import_adapter(folder_recorded("llama3_lora"), link, link), NEB_ERR_INVALID);
    check_log_restore();
}

/* The recorded adapter (rank 2, alpha 6) with another rank and scale for some matrices, in which it computes the same: the pair of q_proj
 * gets a third row and column of which one is zero, and its second matrix is halved. */
static void put_ranks(const char *config)
{
    struct neb_st *st;
    char path[700];
    static float made[8][4096];
    int used = 0;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder_recorded("llama3_lora"));
    assert_ok(neb__st_open(path, &st));
    const int n = neb__st_count(st);
    struct neb_st_tensor *list = calloc((size_t)n, sizeof *list);
    assert_non_null(list);
    for (int i = 0; i < n; i++) {
        struct neb_st_tensor *t = &list[i];
        *t = *neb__st_at(st, i);
        const bool a = strstr(t->name, "lora_A") != NULL;
        if (!strstr(t->name, "q_proj")) continue;
        float *to = made[used++];
        const float *from = t->data;
        const int64_t rows = t->shape[0] + a, cols = t->shape[1] + !a;
        assert_true(used <= 8 && rows * cols <= 4096);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) {
                const bool extra = r == t->shape[0] || c == t->shape[1];
                to[r * cols + c] = extra ? (a ? 0.5f : 0) : from[r * t->shape[1] + c] * (a ? 1 : 0.5f);
            }
        t->shape[0] = rows;
        t->shape[1] = cols;
        t->size = (uint64_t)(rows * cols) * sizeof(float);
        t->data = to;
    }
    folder_put("ranks", "adapter_config.json", config);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder_in("ranks"));
    assert_ok(neb__st_write(path, list, n, NULL, 0644));
    free(list);
    neb__st_close(st);
}

static void matrices_may_have_ranks_of_their_own(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 6, \"rank_pattern\": {\"q_proj\": 3}, "
        "\"alpha_pattern\": {\"q_proj\": 18}}",
        "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 18, \"rank_pattern\": {\"v_proj\": 2, "
        "\"mlp\\\\.up_proj\": 2}, \"alpha_pattern\": {\"v_proj\": 6, \"^model.layers.0.mlp.up_proj\": 6, "
        "\"model.layers.1.mlp.up_proj\": 6, \"up_proj\": 1}}"};
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    assert_ok(neb__hf_import(folder_recorded("llama3"), folder_in("base")));
    for (int k = 0; k < 2; k++) {
        struct vectors v;
        struct neb_ready m;
        char path[700];
        put_ranks(configs[k]);
        assert_ok(neb__hf_import_adapter(folder_in("ranks"), folder_in("base"), folder_in("both")));
        assert_ok(neb__hf_export_adapter(folder_in("both"), folder_in("adapter"))); /* all with rank 3 */
        assert_ok(neb__hf_import_adapter(folder_in("adapter"), folder_in("base"), folder_in("again")));
        snprintf(path, sizeof path, "%s/expect.bin", folder_recorded("llama3_lora"));
        for (int i = 0; i < 4; i++) {
            vectors_load(path, &v);
            open_apart(folder_in(i < 2 ? "both" : "again"), device, &m);
            assert_int_equal(m.folder.peft.lora_rank, 3);
            folder_compare(&m, "llama3_lora", &v, i % 2);
            neb__ready_close(&m);
            vectors_free(&v);
        }
    }
    neb_device_close(device);
}

/* The recorded adapter with an output layer, which the base (tied: none) has in its place. */
static void put_saved(const char *name, const char *like)
{
    struct neb_st *st, *base;
    char path[700];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder_recorded("llama3_lora"));
    assert_ok(neb__st_open(path, &st));
    snprintf(path, sizeof path, "%s/model.safetensors", folder_recorded("llama3"));
    assert_ok(neb__st_open(path, &base));
    const int n = neb__st_count(st);
    struct neb_st_tensor *list = calloc((size_t)n + 1, sizeof *list);
    assert_non_null(list);
    for (int i = 0; i < n; i++) list[i] = *neb__st_at(st, i);
    list[n] = *neb__st_find(base, like);
    float *values = malloc(list[n].size);
    assert_non_null(values);
    memcpy(values, list[n].data, list[n].size);
    values[3] += 1;
    list[n].name = name;
    list[n].data = values;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder_in("saved"));
    assert_ok(neb__file_make_dir(folder_in("saved"), 0755));
    assert_ok(neb__st_write(path, list, n + 1, NULL, 0644));
    free(values);
    free(list);
    neb__st_close(base);
    neb__st_close(st);
}

#define SAVED "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 6, \"modules_to_save\": "

static void a_head_comes_and_goes_with_its_adapter(void **state)
{
    (void)state;
    char path[700], out[700];
    struct neb_model_yaml f;
    assert_ok(neb__hf_import(folder_recorded("llama3"), folder_in("base")));
    put_saved("base_model.model.lm_head.weight", "model.embed_tokens.weight");
    folder_put("saved", "adapter_config.json", SAVED "[\"lm_head\", \"score\"]}");
    assert_ok(neb__hf_import_adapter(folder_in("saved"), folder_in("base"), folder_in("both")));
    assert_ok(neb__model_yaml_read(folder_in("both"), &f));
    assert_true(!f.model.tied && !strcmp(f.peft.train, "head.weight"));
    neb__model_yaml_free(&f);
    assert_ok(neb__hf_export_adapter(folder_in("both"), folder_in("adapter")));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder_in("saved"));
    snprintf(out, sizeof out, "%s/adapter_model.safetensors", folder_in("adapter"));
    same_tensors(path, out, 0);
    assert_ok(neb__hf_import_adapter(folder_in("adapter"), folder_in("base"), folder_in("again")));
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("both"));
    snprintf(out, sizeof out, "%s/model.safetensors", folder_in("again"));
    same_tensors(path, out, 0);
    static const struct {
        const char *name, *like, *list;
        neb_status status;
        const char *says;
    } wrong[] = {
        {"base_model.model.lm_head.weight", "model.embed_tokens.weight", "null}", NEB_ERR_NOTFOUND,
         "lm_head"},
        {"base_model.model.lm_head.weight", "model.embed_tokens.weight", "[\"head\"]}", NEB_ERR_NOTFOUND,
         "lm_head"},
        {"base_model.model.lm_head.weight", "model.embed_tokens.weight", "\"lm_head\"}", NEB_ERR_UNSUPPORTED,
         "modules_to_save"},
        {"base_model.model.lm_head.weight", "model.norm.weight", "[\"lm_head\"]}", NEB_ERR_SHAPE, "lm_head"},
        {"base_model.model.model.embed_tokens.weight", "model.embed_tokens.weight", "[\"embed_tokens\"]}",
         NEB_ERR_UNSUPPORTED, "modules_to_save"},
        {"base_model.model.classifier.weight", "model.embed_tokens.weight", "[\"classifier\"]}",
         NEB_ERR_UNSUPPORTED, "modules_to_save"},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char config[300];
        const int64_t held = neb__mem_held();
        put_saved(wrong[i].name, wrong[i].like);
        snprintf(config, sizeof config, SAVED "%s", wrong[i].list);
        folder_put("saved", "adapter_config.json", config);
        assert_status(neb__hf_import_adapter(folder_in("saved"), folder_in("base"), folder_in("never")),
                      wrong[i].status);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i].says);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
}

/* peft takes a part of the base's weights away when it loads such adapters. */
static void beginnings_that_change_the_base_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        bool fine;
    } list[] = {
        {"init_lora_weights", "true", true},
        {"init_lora_weights", "false", true},
        {"init_lora_weights", "null", true},
        {"init_lora_weights", "\"gaussian\"", true},
        {"init_lora_weights", "\"eva\"", true},
        {"init_lora_weights", "\"orthogonal\"", true},
        {"init_lora_weights", "\"pissa\"", false},
        {"init_lora_weights", "\"pissa_niter_16\"", false},
        {"init_lora_weights", "\"olora\"", false},
        {"init_lora_weights", "\"corda\"", false},
        {"init_lora_weights", "\"loftq\"", false},
        {"init_lora_weights", "\"lora_ga\"", false},
        {"init_lora_weights", "\"new\"", false},
        {"init_lora_weights", "1", false},
        {"loftq_config", "{}", true},
        {"loftq_config", "{\"loftq_bits\": 4}", false},
        {"corda_config", "null", true},
        {"corda_config", "{\"cache_file\": \"x\"}", false},
        {"lora_ga_config", "{\"direction\": 1}", false},
    };
    assert_ok(neb__hf_import(folder_recorded("llama3"), folder_in("base")));
    folder_copy("llama3_lora", "adapter_model.safetensors", "begun");
    check_log_quiet();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char path[700];
        snprintf(path, sizeof path, "%s/adapter_config.json", folder_recorded("llama3_lora"));
        json_t *j = json_load_file(path, 0, NULL), *value = json_loads(list[i].value, JSON_DECODE_ANY, NULL);
        assert_true(j && value && !json_object_set_new(j, list[i].key, value));
        char *text = json_dumps(j, 0);
        folder_put("begun", "adapter_config.json", text);
        free(text);
        json_decref(j);
        const neb_status status =
            neb__hf_import_adapter(folder_in("begun"), folder_in("base"), folder_in("with"));
        if (status != (list[i].fine ? NEB_OK : NEB_ERR_UNSUPPORTED))
            fail_msg("%s: %s: %d", list[i].key, list[i].value, (int)status);
        if (!list[i].fine) assert_non_null(strstr(neb_last_error(), list[i].key));
    }
    check_log_restore();
}

/* A name that ends where the letter of a LoRA matrix is expected. */
static void short_names_are_answered(void)
{
    char path[500];
    static const float value[1];
    static const char *const names[] = {"base_model.model.lora_", "base_model.model.model.lora_",
                                        "base_model.model.model.layers.0.self_attn.q_proj.lora_A",
                                        "base_model.model..lora_B.weight", ".lora_"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct neb_st_tensor t = {
            .name = names[i], .type = NEB_ST_F32, .rank = 1, .shape = {1}, .data = value, .size = 4};
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder_in("wrong"));
        assert_ok(neb__st_write(path, &t, 1, NULL, 0644));
        assert_status(neb__hf_import_adapter(folder_in("wrong"), folder_in("base"), folder_in("never")),
                      NEB_ERR_NOTFOUND);
    }
}

static void wrong_adapters_are_answered(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        neb_status status;
        const char *says;
    } wrong[] = {
        {"{", NEB_ERR_CORRUPT, "adapter_config.json"},
        {"{\"peft_type\": \"LOHA\"}", NEB_ERR_UNSUPPORTED, "'peft_type'"},
        {"{\"peft_type\": \"PROMPT_TUNING\", \"num_virtual_tokens\": 0}", NEB_ERR_UNSUPPORTED, "num_virtual"},
        {"{\"peft_type\": \"PROMPT_TUNING\", \"num_virtual_tokens\": 2}", NEB_ERR_NOTFOUND, "is no prompt"},
        {"{\"peft_type\": \"PREFIX_TUNING\"}", NEB_ERR_CORRUPT, "num_virtual_tokens"},
        {"{\"peft_type\": \"PREFIX_TUNING\", \"num_virtual_tokens\": 2}", NEB_ERR_NOTFOUND, "is no prefix"},
        {"{\"peft_type\": \"P_TUNING\"}", NEB_ERR_UNSUPPORTED, "'peft_type'"},
        {"{\"peft_type\": \"IA3\"}", NEB_ERR_NOTFOUND, "is not IA3"}, /* the tensors are LoRA's */
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"bias\": \"all\"}", NEB_ERR_UNSUPPORTED, "'bias'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"use_dora\": true}", NEB_ERR_CORRUPT, "magnitudes"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"bias\": 1}", NEB_ERR_CORRUPT, "'bias'"},
        {"{\"peft_type\": 3, \"r\": 2}", NEB_ERR_CORRUPT, "'peft_type'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"use_dora\": \"true\"}", NEB_ERR_CORRUPT, "'use_dora'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"use_rslora\": 1}", NEB_ERR_CORRUPT, "'use_rslora'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_bias\": true}", NEB_ERR_UNSUPPORTED, "'lora_bias'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"rank_pattern\": {\"q_proj\": 4}}", NEB_ERR_SHAPE,
         "is needed"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"rank_pattern\": {\"(q|v)_proj\": 4}}", NEB_ERR_UNSUPPORTED,
         "regular expression"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"rank_pattern\": {\"q_proj\": 0}}", NEB_ERR_UNSUPPORTED,
         "'rank_pattern'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"rank_pattern\": {\"q_proj\": 2.5}}", NEB_ERR_UNSUPPORTED,
         "'rank_pattern'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"rank_pattern\": [2]}", NEB_ERR_UNSUPPORTED, "'rank_pattern'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"alpha_pattern\": {\"q_proj\": \"6\"}}", NEB_ERR_UNSUPPORTED,
         "'alpha_pattern'"},
        {"{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 6}", NEB_ERR_SHAPE, "is needed"},
        {"{\"peft_type\": \"LORA\", \"lora_alpha\": 6}", NEB_ERR_CORRUPT, "'r'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_dropout\": 7}", NEB_ERR_CONFIG, "lora_dropout"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": -1}", NEB_ERR_CONFIG, "lora_alpha"},
    };
    assert_ok(neb__hf_import(folder_recorded("llama3"), folder_in("base")));
    folder_copy("llama3_lora", "adapter_model.safetensors", "wrong");
    check_log_quiet();
    assert_ok(neb__hf_import(folder_recorded("gpt2"),
                             folder_in("learned"))); /* whose positions a prefix would move */
    assert_status(
        neb__hf_import_adapter(folder_recorded("llama3_prefix"), folder_in("learned"), folder_in("never")),
        NEB_ERR_UNSUPPORTED);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t held = neb__mem_held();
        folder_put("wrong", "adapter_config.json", wrong[i].config);
        assert_status(neb__hf_import_adapter(folder_in("wrong"), folder_in("base"), folder_in("never")),
                      wrong[i].status);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i].says);
        assert_int_equal(neb__mem_held(), held);
    }
    folder_put("wrong", "adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": 2}");
    short_names_are_answered();
    folder_copy("llama3_lora", "adapter_model.safetensors", "wrong");
    assert_ok(neb__hf_import(folder_recorded("gpt2"), folder_in("base"))); /* another model */
    assert_status(neb__hf_import_adapter(folder_in("wrong"), folder_in("base"), folder_in("never")),
                  NEB_ERR_NOTFOUND);
    assert_status(neb__hf_export_adapter(folder_in("base"), folder_in("never")), NEB_ERR_UNSUPPORTED);
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_compute_as_in_peft),
        cmocka_unit_test(nothing_is_written_over_itself),
        cmocka_unit_test(matrices_may_have_ranks_of_their_own),
        cmocka_unit_test(a_head_comes_and_goes_with_its_adapter),
        cmocka_unit_test(beginnings_that_change_the_base_are_refused),
        cmocka_unit_test(wrong_adapters_are_answered),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
