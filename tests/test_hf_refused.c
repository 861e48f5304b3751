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
         "{\"weight_map\": {\"a\": \"\"}}", NEB_ERR_CORRUPT, "a file without a name"},
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

/* Two files have all tensors, two of them with other values; the index takes the token table from the second and the rest from the
 * first. */
static void the_index_says_which_file_has_a_tensor(void **state)
{
    (void)state;
    static const char table[] = "model.embed_tokens.weight", norm[] = "model.norm.weight";
    struct neb_st *st, *ours;
    char path[700], from[700];
    folder_copy("llama3", "config.json", "two");
    snprintf(path, sizeof path, "%s/model.safetensors", folder_recorded("llama3"));
    assert_ok(neb__st_open(path, &st));
    char index[16384] = "{\"weight_map\": {", *at = index + strlen(index);
    for (int i = 0; i < neb__st_count(st); i++) {
        const char *name = neb__st_at(st, i)->name;
        at +=
            sprintf(at, "%s\"%s\": \"%s.safetensors\"", i ? ", " : "", name, strcmp(name, table) ? "a" : "b");
    }
    strcpy(at, "}}");
    folder_put("two", "model.safetensors.index.json", index);
    for (int other = 0; other < 2; other++) {
        const struct folder_edit edits[] = {
            {table, NULL, false}, {table, table, true}, {norm, NULL, false}, {norm, norm, true}};
        folder_tensors("llama3", "two", edits, other ? 4 : 0);
        snprintf(from, sizeof from, "%s/model.safetensors", folder_in("two"));
        snprintf(path, sizeof path, "%s/%s.safetensors", folder_in("two"), other ? "b" : "a");
        assert_int_equal(rename(from, path), 0);
    }
    check_log_quiet();
    assert_ok(neb__hf_import(folder_in("two"), folder_in("ours")));
    check_log_restore();
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("ours"));
    assert_ok(neb__st_open(path, &ours));
    static const char *const names[][2] = {{table, "embed.token.weight"}, {norm, "decoder.norm.weight"}};
    for (int i = 0; i < 2; i++) {
        const struct neb_st_tensor *was = neb__st_find(st, names[i][0]),
                                   *is = neb__st_find(ours, names[i][1]);
        assert_true(was && is && was->size == is->size);
        const uint8_t *x = was->data, *y = is->data;
        assert_int_equal(x[was->size / 2] ^ (i ? 0 : 1), y[was->size / 2]);
    }
    neb__st_close(ours);
    neb__st_close(st);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_folders_are_answered),
        cmocka_unit_test(config_and_tensors_must_agree),
        cmocka_unit_test(the_index_says_which_file_has_a_tensor),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
