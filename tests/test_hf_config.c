/* test_hf_config.c: config.json key by key: what is not known, contradicts itself or has another type is refused by its name. */
#include "check.h"
#include "folders.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model_type and a recorded model whose config.json has all that it needs. */
static const struct {
    const char *type, *kind;
} types[] = {{"bert", "bert"},
             {"roberta", "xlmr"},
             {"xlm-roberta", "xlmr"},
             {"electra", "electra"},
             {"distilbert", "distilbert"},
             {"gpt2", "gpt2"},
             {"llama", "llama3"},
             {"mistral", "mistral"},
             {"qwen2", "qwen2"},
             {"qwen3", "qwen3"},
             {"gemma", "gemma"},
             {"marian", "marian"},
             {"m2m_100", "m2m100"},
             {"bart", "bart"},
             {"mbart", "mbart"},
             {"t5", "t5"},
             {"mt5", "mt5"}};
enum { TYPES = sizeof types / sizeof *types };

/* Reads a recorded config.json with some keys changed: "key": value, … */
static neb_status read_with(const char *kind, const char *changes)
{
    char path[700];
    struct neb_model_config m;
    struct neb_hf_config c;
    snprintf(path, sizeof path, "%s/config.json", folder_recorded(kind));
    json_t *j = json_load_file(path, 0, NULL);
    json_error_t e;
    char text[2000];
    snprintf(text, sizeof text, "{%s}", changes);
    json_t *more = json_loads(text, 0, &e);
    if (!j || !more) fail_msg("%s: %s", changes, e.text);
    assert_int_equal(json_object_update(j, more), 0);
    char *bytes = json_dumps(j, 0);
    json_decref(more);
    json_decref(j);
    assert_ok(neb__model_config_init(NULL, &m));
    const neb_status status = neb__hf_config_read(bytes, strlen(bytes), &m, &c);
    neb__model_config_free(&m);
    free(bytes);
    return status;
}

static void refused(const char *kind, const char *changes, neb_status status, const char *says)
{
    const int64_t held = neb__mem_held();
    const neb_status got = read_with(kind, changes);
    if (got != status) fail_msg("%s with %s: %d instead of %d", kind, changes, (int)got, (int)status);
    if (!strstr(neb_last_error(), says)) fail_msg("%s with %s: %s", kind, changes, neb_last_error());
    assert_int_equal(neb__mem_held(), held);
}

static void unknown_keys_are_refused_by_name(void **state)
{
    (void)state;
    check_log_quiet();
    for (int i = 0; i < TYPES; i++) {
        char changes[300];
        static const char *const values[] = {"0.5", "true", "\"x\"", "[1]", "{\"0\": [1]}"};
        snprintf(changes, sizeof changes, "\"model_type\": \"%s\"", types[i].type);
        assert_ok(read_with(types[i].kind, changes));
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            snprintf(changes, sizeof changes, "\"model_type\": \"%s\", \"new_scale\": %s", types[i].type,
                     values[v]);
            refused(types[i].kind, changes, NEB_ERR_UNSUPPORTED, "'new_scale': is not known");
        }
        snprintf(changes, sizeof changes, "\"model_type\": \"%s\", \"pruned_heads\": {\"0\": [1]}",
                 types[i].type);
        refused(types[i].kind, changes, NEB_ERR_UNSUPPORTED, "'pruned_heads': is not known");
        snprintf(changes, sizeof changes, "\"model_type\": \"%s\", \"quantization_config\": {\"bits\": 4}",
                 types[i].type);
        refused(types[i].kind, changes, NEB_ERR_UNSUPPORTED, "'quantization_config': quantised");
        snprintf(
            changes, sizeof changes,
            "\"model_type\": \"%s\", \"new_scale\": null, \"other\": false, \"pruned_heads\": {}, \"more\": "
            "[], "
            "\"quantization_config\": null, \"top_k\": 50, \"length_penalty\": 1.0, \"torchscript\": true",
            types[i].type);
        assert_ok(read_with(types[i].kind, changes));
    }
    check_log_restore();
}

static void rotary_positions_are_said_once(void **state)
{
    (void)state;
#define PARAMETERS "\"rope_parameters\": {\"rope_theta\": 500.0, \"rope_type\": \"linear\", \"factor\": 2.0}"
    static const struct {
        const char *changes;
        neb_status status;
        const char *says;
    } list[] = {
        {PARAMETERS ", \"rope_scaling\": null", NEB_OK, ""},
        {PARAMETERS ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_theta\": 500", NEB_OK,
         ""},
        {PARAMETERS ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}", NEB_ERR_UNSUPPORTED,
         "'rope_scaling'"},
        {PARAMETERS ", \"rope_scaling\": {\"rope_type\": \"default\"}", NEB_ERR_UNSUPPORTED,
         "'rope_scaling'"},
        {PARAMETERS ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2}", NEB_ERR_UNSUPPORTED,
         "'rope_scaling'"},
        {PARAMETERS ", \"rope_theta\": 10000.0", NEB_ERR_UNSUPPORTED, "'rope_theta'"},
        {"\"rope_parameters\": null, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}", NEB_OK, ""},
        {"\"rope_parameters\": []", NEB_ERR_CORRUPT, "'rope_parameters': is not an object"},
        {"\"rope_parameters\": 2", NEB_ERR_CORRUPT, "'rope_parameters': is not an object"},
        {"\"rope_scaling\": \"linear\"", NEB_ERR_CORRUPT, "'rope_scaling': is not an object"},
        {"\"rope_parameters\": {\"rope_type\": 3}", NEB_ERR_CORRUPT, "'rope_type': is not a text"},
        {"\"rope_parameters\": {\"type\": true}", NEB_ERR_CORRUPT, "'type': is not a text"},
        {"\"rope_parameters\": {\"factor\": 2.0}", NEB_ERR_UNSUPPORTED, "'factor'"},
        {"\"rope_parameters\": {\"rope_type\": \"linear\"}", NEB_ERR_UNSUPPORTED, "'factor'"},
        {"\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": \"2\"}", NEB_ERR_CORRUPT, "'factor'"},
        {"\"rope_parameters\": {\"rope_type\": \"linear\", \"type\": \"llama3\", \"factor\": 2}",
         NEB_ERR_UNSUPPORTED, "'rope_type'"},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        refused("llama3", list[i].changes, list[i].status, list[i].says);
    check_log_restore();
}

/* 0, 1 and "false" are no booleans; numbers and texts are what they are. */
static void values_have_one_type(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *key, *value;
    } wrong[] = {{"bert", "tie_word_embeddings", "0"},
                 {"bert", "is_decoder", "1"},
                 {"bert", "add_cross_attention", "\"no\""},
                 {"bert", "position_embedding_type", "2"},
                 {"bert", "layer_norm_eps", "\"1e-5\""},
                 {"bert", "is_encoder_decoder", "\"false\""},
                 {"gpt2", "scale_attn_weights", "0"},
                 {"gpt2", "scale_attn_by_inverse_layer_idx", "1"},
                 {"llama2", "tie_word_embeddings", "1"},
                 {"llama2", "tie_word_embeddings", "\"true\""},
                 {"llama2", "mlp_bias", "1"},
                 {"llama2", "attention_bias", "\"true\""},
                 {"llama2", "hidden_act", "5"},
                 {"llama2", "partial_rotary_factor", "\"0.5\""},
                 {"mistral", "sliding_window", "\"4\""},
                 {"mistral", "sliding_window", "4.5"},
                 {"qwen2", "use_sliding_window", "1"},
                 {"qwen2", "layer_types", "\"full_attention\""},
                 {"gemma", "hidden_activation", "[]"},
                 {"marian", "scale_embedding", "1"},
                 {"bart", "normalize_before", "1"},
                 {"bart", "scale_embedding", "\"true\""},
                 {"t5", "is_gated_act", "1"},
                 {"t5", "scale_decoder_outputs", "0"},
                 {"t5", "dense_act_fn", "3"},
                 {"t5", "is_encoder_decoder", "0"},
                 {"t5", "tie_word_embeddings", "\"false\""}};
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char changes[200];
        snprintf(changes, sizeof changes, "\"%s\": %s", wrong[i].key, wrong[i].value);
        refused(wrong[i].kind, changes, NEB_ERR_CORRUPT, wrong[i].key);
        snprintf(changes, sizeof changes, "\"%s\": null", wrong[i].key);
        assert_ok(read_with(wrong[i].kind, changes));
    }
    check_log_restore();
}

static void numbers_of_tokens_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *changes, *says; /* says NULL: it is fine */
    } list[] = {{"bert", "\"eos_token_id\": \"x\"", "'eos_token_id'"},
                {"llama2", "\"eos_token_id\": [2, null]", "'eos_token_id'"},
                {"llama2", "\"pad_token_id\": true", "'pad_token_id'"},
                {"gpt2", "\"bos_token_id\": -2", "'bos_token_id'"},
                {"llama2", "\"eos_token_id\": [2, 3], \"pad_token_id\": -1", NULL}};
    check_log_quiet();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        refused(list[i].kind, list[i].changes, list[i].says ? NEB_ERR_CORRUPT : NEB_OK,
                list[i].says ? list[i].says : "");
    refused("m2m100", "\"pad_token_id\": 0", NEB_ERR_UNSUPPORTED, "'pad_token_id': only 1");
    check_log_restore();
}

/* Its class has a window of 4096 where the file has no such key; null is no window. */
static void mistral_has_a_window(void **state)
{
    (void)state;
    struct neb_model_config m;
    struct neb_hf_config c;
    static const struct {
        const char *kind, *window;
        int64_t positions;
    } list[] = {{"mistral", "", 4096},
                {"mistral", "\"sliding_window\": null,", 9000},
                {"mistral", "\"sliding_window\": 100,", 100},
                {"mistral", "\"sliding_window\": 10000,", 9000},
                {"llama", "", 9000}};
    check_log_quiet();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char text[500];
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"%s\", %s \"vocab_size\": 31, \"hidden_size\": 16, \"intermediate_size\": 24, "
            "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"max_position_embeddings\": 9000}",
            list[i].kind, list[i].window);
        assert_ok(neb__model_config_init(NULL, &m));
        assert_ok(neb__hf_config_read(text, strlen(text), &m, &c));
        assert_int_equal(m.max_positions, list[i].positions);
        neb__model_config_free(&m);
    }
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_keys_are_refused_by_name),
        cmocka_unit_test(rotary_positions_are_said_once),
        cmocka_unit_test(values_have_one_type),
        cmocka_unit_test(numbers_of_tokens_are_checked),
        cmocka_unit_test(mistral_has_a_window),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
