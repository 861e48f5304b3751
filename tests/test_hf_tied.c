/* test_hf_tied.c: whether the output of an imported model is its token table: what config.json says, and what the tensors say. */
#include "check.h"
#include "folders.h"
#include "store/safetensors.h"

#include <stdio.h>
#include <string.h>

#define T5_SIZES \
    "\"vocab_size\": 31, \"d_model\": 12, \"d_kv\": 5, \"d_ff\": 20, \"num_layers\": 1, \"num_heads\": 2, "

static const struct family {
    const char *kind, *table, *output;
} families[] = {
    {"llama3", "model.embed_tokens.weight", "lm_head.weight"},
    {"llama2", "model.embed_tokens.weight", "lm_head.weight"},
    {"qwen2", "model.embed_tokens.weight", "lm_head.weight"},
    {"gemma", "model.embed_tokens.weight", "lm_head.weight"},
    {"gpt2", "transformer.wte.weight", "lm_head.weight"},
    {"xlmr", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"},
    {"electra_generator", "electra.embeddings.word_embeddings.weight", "generator_lm_head.weight"},
    {"distilbert", "distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"},
    {"marian", "model.shared.weight", "lm_head.weight"},
    {"m2m100", "model.shared.weight", "lm_head.weight"},
    {"bart", "model.shared.weight", "lm_head.weight"},
    {"mbart", "model.shared.weight", "lm_head.weight"},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* The recorded model with such a config; its own output, the table again (same), another (changed), or none. */
static void put_family(const struct family *f, const char *tied, bool output, bool changed)
{
    const struct folder_edit edits[] = {{f->output, NULL, false}, {f->output, f->table, changed}};
    folder_config(f->kind, "tied", "tie_word_embeddings", tied);
    folder_tensors(f->kind, "tied", edits, output ? 2 : 1);
}

static void assert_tied(const char *folder, const char *what, bool tied)
{
    struct neb_model_yaml f;
    assert_ok(neb__model_yaml_read(folder, &f));
    if (f.model.tied != tied) fail_msg("%s: tied is %d", what, f.model.tied);
    neb__model_yaml_free(&f);
}

/* An output of other values than the table is the model's own, whatever config.json says; so it also goes out and comes back. */
static void tensors_decide_where_both_are_there(void **state)
{
    (void)state;
    check_log_quiet();
    for (int i = 0; i < FAMILIES; i++)
        for (int untied = 0; untied < 2; untied++)
            for (int changed = 0; changed < 2; changed++) {
                struct neb_st *st;
                char path[700];
                put_family(&families[i], untied ? "false" : "true", true, changed);
                assert_ok(neb__hf_import(folder_in("tied"), folder_in("ours")));
                assert_tied(folder_in("ours"), families[i].kind, !untied && !changed);
                if (!changed || !strcmp(families[i].kind, "gemma")) continue;
                assert_ok(neb__hf_export(folder_in("ours"), folder_in("out")));
                snprintf(path, sizeof path, "%s/model.safetensors", folder_in("out"));
                assert_ok(neb__st_open(path, &st));
                const struct neb_st_tensor *own = neb__st_find(st, families[i].output);
                const struct neb_st_tensor *table = neb__st_find(st, families[i].table);
                assert_true(own && table && own->size == table->size);
                assert_memory_not_equal(own->data, table->data, own->size);
                neb__st_close(st);
                assert_ok(neb__hf_import(folder_in("out"), folder_in("again")));
                assert_tied(folder_in("again"), families[i].kind, false);
            }
    check_log_restore();
}

/* transformers would begin with a random output. Without the key the class decides: only Llama's and its relatives' are untied. */
static void a_lost_output_is_answered(void **state)
{
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        const bool llama = strstr(families[i].kind, "llama") || strstr(families[i].kind, "qwen");
        put_family(&families[i], "true", false, false);
        assert_ok(neb__hf_import(folder_in("tied"), folder_in("ours")));
        assert_tied(folder_in("ours"), families[i].kind, true);
        for (int key = 0; key < 2; key++) {
            put_family(&families[i], key ? "false" : NULL, false, false);
            if (!key && !llama) {
                assert_ok(neb__hf_import(folder_in("tied"), folder_in("ours")));
                assert_tied(folder_in("ours"), families[i].kind, true);
                continue;
            }
            check_log_quiet();
            assert_status(neb__hf_import(folder_in("tied"), folder_in("never")), NEB_ERR_NOTFOUND);
            assert_non_null(strstr(neb_last_error(), "set the key to true"));
            assert_non_null(strstr(neb_last_error(), families[i].output));
            check_log_restore();
        }
    }
}

/* Of two biases, transformers adds that of the output layer. An untied model has both. */
static void the_output_layer_has_the_bias(void **state)
{
    (void)state;
    static const char table[] = "roberta.embeddings.word_embeddings.weight";
    const struct folder_edit edits[] = {{"lm_head.decoder.bias", "lm_head.bias", true},
                                        {"lm_head.decoder.weight", table, true}};
    struct neb_st *st, *was;
    char path[700];
    folder_config("xlmr", "tied", "tie_word_embeddings", "false");
    folder_tensors("xlmr", "tied", edits, 2);
    assert_ok(neb__hf_import(folder_in("tied"), folder_in("ours")));
    assert_ok(neb__hf_export(folder_in("ours"), folder_in("out")));
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("tied"));
    assert_ok(neb__st_open(path, &was));
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in("out"));
    assert_ok(neb__st_open(path, &st));
    const struct neb_st_tensor *a = neb__st_find(was, edits[0].name), *b = neb__st_find(st, edits[0].name);
    assert_true(a && b && a->size == b->size);
    assert_memory_equal(a->data, b->data, a->size);
    neb__st_close(st);
    neb__st_close(was);
}

/* Stacks have no tables of their own here. */
static void stacks_share_a_table(void **state)
{
    (void)state;
    static const char *const names[] = {"model.encoder.embed_tokens.weight",
                                        "model.decoder.embed_tokens.weight"};
    check_log_quiet();
    for (int i = 0; i < 4; i++) {
        const struct folder_edit edit = {names[i % 2], "model.shared.weight", i > 1};
        folder_copy("bart", "config.json", "tied");
        folder_tensors("bart", "tied", &edit, 1);
        assert_status(neb__hf_import(folder_in("tied"), folder_in("ours")),
                      i > 1 ? NEB_ERR_UNSUPPORTED : NEB_OK);
        if (i > 1) assert_non_null(strstr(neb_last_error(), names[i % 2]));
    }
    check_log_restore();
}

/* The recorded T5 with the copies of its token table that older files have; one of them (other >= 0) differs from the table in one
 * bit. alone: the table itself is not there, only its copies. */
static void write_copies(int other, bool alone)
{
    struct folder_edit edits[4] = {{"lm_head.weight", "shared.weight", other == 0},
                                   {"encoder.embed_tokens.weight", "shared.weight", other == 1},
                                   {"decoder.embed_tokens.weight", "shared.weight", other == 2},
                                   {"shared.weight", NULL, false}};
    folder_tensors("t5", "copies", edits, alone ? 4 : 3);
}

/* Whether T5's output is the token table, the tensors say; whether it is divided, the config. */
static void t5_is_tied_where_its_tensors_are_equal(void **state)
{
    (void)state;
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
            write_copies(i ? 0 : -1, alone);
            assert_ok(neb__hf_import(folder_in("copies"), folder_in("tied")));
            assert_ok(neb__model_yaml_read(folder_in("tied"), &f));
            assert_true(f.model.tied == !i && f.model.head_scale);
            neb__model_yaml_free(&f);
        }
        write_copies(1, alone);
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
        cmocka_unit_test(tensors_decide_where_both_are_there),    cmocka_unit_test(a_lost_output_is_answered),
        cmocka_unit_test(the_output_layer_has_the_bias),          cmocka_unit_test(stacks_share_a_table),
        cmocka_unit_test(t5_is_tied_where_its_tensors_are_equal),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
