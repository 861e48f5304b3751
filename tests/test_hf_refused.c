/* test_hf_refused.c: folders of the Hugging Face world that lie, lack something, or whose tensors say what their config does not. */
#include "check.h"
#include "folders.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA_SIZES                                                                                  \
    "\"vocab_size\": 31, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 1, " \
    "\"num_attention_heads\": 2, "
#define MARIAN_SIZES                                                                      \
    "\"vocab_size\": 31, \"d_model\": 12, \"encoder_layers\": 1, \"decoder_layers\": 1, " \
    "\"encoder_attention_heads\": 2, \"encoder_ffn_dim\": 20, \"activation_function\": \"relu\", "
#define T5_SIZES \
    "\"vocab_size\": 31, \"d_model\": 12, \"d_kv\": 5, \"d_ff\": 20, \"num_layers\": 1, \"num_heads\": 2, "
#define BERT_SIZES                                                                                    \
    "\"vocab_size\": 31, \"hidden_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, " \
    "\"intermediate_size\": 20, \"hidden_act\": \"gelu\", "

static void wrong_folders_are_answered(void **state)
{
    (void)state;
    static const struct {
        const char *config, *index;
        neb_status status;
        const char *says;
    } wrong[] = {
        {"{", "{}", NEB_ERR_CORRUPT, "config.json"},
        {"[]", "{}", NEB_ERR_CORRUPT, "not a JSON object"},
        {"{\"model_type\": \"umt5\"}", "{}", NEB_ERR_UNSUPPORTED, "'umt5' is not"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"feed_forward_proj\": \"gated-relu\"}", "{}",
         NEB_ERR_UNSUPPORTED, "'gated-relu' is not"},
        {"{\"model_type\": \"t5\", " T5_SIZES
         "\"feed_forward_proj\": \"gated-gelu\", \"dense_act_fn\": \"gelu\"}",
         "{}", NEB_ERR_UNSUPPORTED, "'dense_act_fn': contradicts"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"is_gated_act\": true}", "{}", NEB_ERR_UNSUPPORTED,
         "'is_gated_act': contradicts"},
        {"{\"model_type\": \"mt5\", " T5_SIZES "\"relative_attention_num_buckets\": 7}", "{}",
         NEB_ERR_CORRUPT, "impossible model"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"relative_attention_max_distance\": 16}", "{}",
         NEB_ERR_CORRUPT, "'relative_distance'"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"per_layer_bias\": true}", "{}", NEB_ERR_UNSUPPORTED,
         "'per_layer_bias': is not known"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"is_encoder_decoder\": false}", "{}", NEB_ERR_UNSUPPORTED,
         "'is_encoder_decoder'"},
        {"{\"model_type\": \"bert\"}", "{}", NEB_ERR_CORRUPT, "'vocab_size': is missing"},
        {"{\"model_type\": \"bert\", \"vocab_size\": -3}", "{}", NEB_ERR_CORRUPT, "out of range"},
        {"{\"model_type\": \"bert\", \"vocab_size\": 1e300}", "{}", NEB_ERR_CORRUPT, "not a whole number"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 0}", "{}", NEB_ERR_CORRUPT,
         "impossible model"},
        {"{\"model_type\": \"bert\", " BERT_SIZES
         "\"max_position_embeddings\": 16, \"position_embedding_type\": \"relative_key\"}",
         "{}", NEB_ERR_UNSUPPORTED, "relative_key"},
        {"{\"model_type\": \"llama\", " LLAMA_SIZES "\"rope_parameters\": {\"rope_type\": \"default\", "
         "\"partial_rotary_factor\": 0.5}}",
         "{}", NEB_ERR_UNSUPPORTED, "'partial_rotary_factor' is not known"},
        {"{\"model_type\": \"llama\", " LLAMA_SIZES
         "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}",
         "{}", NEB_ERR_UNSUPPORTED, "'yarn'"},
        {"{\"model_type\": \"llama\", " LLAMA_SIZES
         "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4, "
         "\"original_max_position_embeddings\": 0}}",
         "{}", NEB_ERR_UNSUPPORTED, "original_max_position_embeddings"},
        {"{\"model_type\": \"marian\", " MARIAN_SIZES "\"decoder_ffn_dim\": 24}", "{}", NEB_ERR_UNSUPPORTED,
         "'decoder_ffn_dim': 24"},
        {"{\"model_type\": \"marian\", " MARIAN_SIZES "\"normalize_before\": true}", "{}",
         NEB_ERR_UNSUPPORTED, "'normalize_before'"},
        {"{\"model_type\": \"marian\", " MARIAN_SIZES "\"share_encoder_decoder_embeddings\": false}", "{}",
         NEB_ERR_UNSUPPORTED, "'share_encoder_decoder_embeddings'"},
        {"{\"model_type\": \"m2m_100\", " MARIAN_SIZES "\"expert_capacity\": 64}", "{}", NEB_ERR_UNSUPPORTED,
         "'expert_capacity': is not known"},
        {"{\"model_type\": \"bart\", " MARIAN_SIZES "\"eos_token_id\": \"x\"}", "{}", NEB_ERR_CORRUPT,
         "'eos_token_id'"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}", "{}", NEB_ERR_CORRUPT,
         "weight_map"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}",
         "{\"weight_map\": {\"a\": \"../../etc/passwd\"}}", NEB_ERR_CORRUPT, "not in the folder"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}",
         "{\"weight_map\": {\"a\": 3}}", NEB_ERR_CORRUPT, "has no file"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}",
         "{\"weight_map\": {\"a\": \"absent.safetensors\"}}", NEB_ERR_NOTFOUND, "absent"},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t held = neb__mem_held();
        folder_put("bad", "config.json", wrong[i].config);
        folder_put("bad", "model.safetensors.index.json", wrong[i].index);
        assert_status(neb__hf_import(folder_in("bad"), folder_in("never")), wrong[i].status);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i].says);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
}

/* A size that is not the tensors', a tensor that is not there. */
static void config_and_tensors_must_agree(void **state)
{
    (void)state;
    struct neb_buf bytes;
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", folder_recorded("bert"));
    folder_read(path, &bytes);
    folder_put("bad2", "config.json",
               "{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 17}");
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("bad2"));
    assert_ok(neb__file_replace(path, bytes.data, bytes.len, 0644));
    check_log_quiet();
    assert_status(neb__hf_import(folder_in("bad2"), folder_in("never")), NEB_ERR_SHAPE);
    assert_non_null(strstr(neb_last_error(), "position_embeddings.weight is 16 x 12"));
    char *layers = strdup("{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}");
    *(strstr(layers, "layers\": 2") + 9) = '3';
    folder_put("bad2", "config.json", layers);
    free(layers);
    assert_status(neb__hf_import(folder_in("bad2"), folder_in("never")), NEB_ERR_NOTFOUND);
    assert_non_null(strstr(neb_last_error(), "encoder.layer.2."));
    bytes.data[20] ^= 0x20;
    assert_ok(neb__file_replace(path, bytes.data, bytes.len / 2, 0644));
    assert_status(neb__hf_import(folder_in("bad2"), folder_in("never")), NEB_ERR_CORRUPT);
    check_log_restore();
    neb__buf_free(&bytes);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    int64_t held = neb__mem_held();
    static const char *const names[] = {"electra", "marian", "m2m100", "t5", "mt5"};
    check_log_quiet();
    for (int k = 0; k < 5; k++) {
        neb_status status = NEB_ERR_NOMEM;
        for (int64_t i = 1; status != NEB_OK; i += 1 + i / 8) {
            neb__mem_fail_at(i);
            status = neb__hf_import(folder_recorded(names[k]), folder_in("ours"));
            if (status == NEB_OK) status = neb__hf_export(folder_in("ours"), folder_in("back"));
            neb__mem_fail_at(0);
            assert_true(status == NEB_OK || status == NEB_ERR_NOMEM);
            assert_int_equal(neb__mem_held(), held);
        }
    }
    check_log_restore();
}

/* The recorded T5 with the copies of its token table that older files have; `other` differs from the table in one bit. alone: the
 * table itself is not there, only its copies. */
static void write_copies(const char *const *names, int n, const char *other, bool alone)
{
    struct neb_st *st;
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", folder_recorded("t5"));
    assert_ok(neb__st_open(path, &st));
    const int all = neb__st_count(st);
    struct neb_st_tensor *list = calloc((size_t)(all + n), sizeof *list);
    const struct neb_st_tensor *shared = neb__st_find(st, "shared.weight");
    int count = 0;
    uint8_t *changed = malloc(shared->size);
    assert_true(list && changed);
    memcpy(changed, shared->data, shared->size);
    changed[shared->size / 2] ^= 1;
    for (int i = 0; i < all; i++)
        if (!alone || neb__st_at(st, i) != shared) list[count++] = *neb__st_at(st, i);
    for (int i = 0; i < n; i++) {
        list[count + i] = *shared;
        list[count + i].name = names[i];
        if (other && !strcmp(names[i], other)) list[count + i].data = changed;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("copies"));
    assert_ok(neb__st_write(path, list, count + n, NULL, 0644));
    free(changed);
    free(list);
    neb__st_close(st);
}

/* Whether T5's output is the token table, the tensors say; whether it is divided, the config. */
static void t5_is_tied_where_its_tensors_are_equal(void **state)
{
    (void)state;
    static const char *const names[] = {"lm_head.weight", "encoder.embed_tokens.weight",
                                        "decoder.embed_tokens.weight"};
    static const struct {
        const char *config;
        bool scaled;
    } says[] = {
        {"\"model_type\": \"t5\", ", true},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": false, ", false},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": true, \"scale_decoder_outputs\": false, ", false},
        {"\"model_type\": \"mt5\", ", false}};
    struct neb_model_yaml f;
    check_log_quiet();
    for (int alone = 0; alone < 2; alone++) {
        for (int i = 0; i < 2; i++) {
            folder_copy("t5", "config.json", "copies");
            write_copies(names, 3, i ? names[0] : NULL, alone);
            assert_ok(neb__hf_import(folder_in("copies"), folder_in("tied")));
            assert_ok(neb__model_yaml_read(folder_in("tied"), &f));
            assert_true(f.model.tied == !i && f.model.head_scale);
            neb__model_yaml_free(&f);
        }
        write_copies(names, 3, names[1], alone);
        assert_status(neb__hf_import(folder_in("copies"), folder_in("never")), NEB_ERR_UNSUPPORTED);
        assert_non_null(strstr(neb_last_error(), "coder.embed_tokens.weight"));
    }
    check_log_restore();
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        struct neb_model_config m;
        struct neb_hf_config c;
        char text[600];
        snprintf(text, sizeof text, "{%s%s\"d_kv\": 5}", says[i].config, T5_SIZES);
        assert_ok(neb__model_config_init(NULL, &m));
        assert_ok(neb__hf_config_read(text, strlen(text), &m, &c));
        if (m.head_scale != says[i].scaled) fail_msg("%s", text);
        assert_true(!m.attention_scale && !m.bias && m.head_dim == 5 && m.relative_buckets == 32);
        neb__model_config_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_folders_are_answered),
        cmocka_unit_test(t5_is_tied_where_its_tensors_are_equal),
        cmocka_unit_test(config_and_tensors_must_agree),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
