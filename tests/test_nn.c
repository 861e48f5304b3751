/* test_nn.c: models as a whole: configs, shapes, packing, reproducibility, memory failures. */
#include "check.h"
#include "recorder.h"
#include "rig.h"
#include "base/mem.h"
#include "device/device.h"
#include "tensor/relative.h"
#include "tensor/tape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZES "vocab=53 hidden=32 layers=2 heads=4 ffn=64 max_positions=16 init_deviation=0.1 "

static const int lengths[] = {9, 4, 12, 1, 0};
static const int targets[] = {3, 8, 5, 2, 0};

static const char *peft_of_all = "";

static void open_loaded(struct rig *r, struct rig_batch *b, const char *family, const char *options)
{
    char all[400];
    snprintf(all, sizeof all, SIZES "%s", options);
    assert_ok(rig_open(r, family, all, peft_of_all, 2));
    rig_batch_make(b, r->model, lengths, r->model->arch.kind == NEB_ENCODER_DECODER ? targets : NULL, 1);
    assert_ok(neb__model_input_load(r->feed, &b->data));
}

/* ---- configs ------------------------------------------------------------------------------------------- */

static void refuse(const char *family, const char *options, const char *word)
{
    struct rig r;
    check_log_quiet();
    assert_status(rig_open(&r, family, options, NULL, 1), NEB_ERR_CONFIG);
    check_log_restore();
    if (!strstr(neb_last_error(), word))
        fail_msg("[%s] '%s' does not name %s", options, neb_last_error(), word);
}

/* T5's buckets, as transformers' _relative_position_bucket() gives them for 32 buckets and distances up to 128. */
static void distances_have_the_buckets_of_t5(void **state)
{
    (void)state;
    static const int32_t both[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91},
                         behind[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                       16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    struct neb_relative r;
    neb__relative_buckets(32, 128, true, &r);
    assert_true(r.both_ways && r.buckets == 16);
    for (int i = 0; i < 16; i++) assert_int_equal(r.from[i], both[i]);
    neb__relative_buckets(32, 128, false, &r);
    assert_true(!r.both_ways && r.buckets == 32);
    for (int i = 0; i < 32; i++) assert_int_equal(r.from[i], behind[i]);
    for (int64_t n = 2; n <= NEB_BIAS_BUCKETS; n++) /* whatever the sizes: all buckets, in their order */
        for (int64_t far = n / 2 + 1; far < n + 40; far++) {
            neb__relative_buckets(n, far, false, &r);
            assert_int_equal(r.buckets, n);
            for (int64_t i = 1; i < n; i++) assert_true(r.from[i] >= r.from[i - 1] && r.from[i] <= far);
        }
}

/* A device or a layout without them says which option it is. */
static void relative_positions_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const families[] = {"t5", "t5-v1.1"};
    struct rig r;
    double loss;
    struct rig_batch b;
    check_log_quiet();
    for (int i = 0; i < 2; i++) {
        open_loaded(&r, &b, families[i], "");
        const struct neb_device_ops *ops = r.device->ops;
        struct neb_device_ops lame = *ops;
        lame.attn_biased = NULL;
        lame.attn_biased_bwd = NULL;
        r.device->ops = &lame;
        assert_status(neb__model_ready(r.model), NEB_ERR_UNSUPPORTED);
        assert_non_null(strstr(neb_last_error(), "model.positions: relative"));
        assert_status(rig_run(&r, true, true, 1, &loss), NEB_ERR_UNSUPPORTED);
        assert_non_null(strstr(neb_last_error(), "model.positions: relative"));
        r.device->ops = ops;
        rig_batch_free(&b);
        rig_close(&r);
    }
    assert_status(rig_open_stage(&r, "t5", SIZES, NULL, 0, 2), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "parallel.pipeline"));
    assert_status(rig_open(&r, "t5", SIZES, "method=prefix", 1), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "positions: relative"));
    check_log_restore();
}

static void bad_configs(void **state)
{
    (void)state;
    refuse("bret", SIZES, "'bret'");
    refuse("bert", "", "'vocab': 0");
    refuse("bert", SIZES "hidden=-3", "'hidden': '-3'");
    refuse("bert", SIZES "hidden=99999999999999", "'hidden'");
    refuse("bert", SIZES "layers=0", "'layers': '0'");
    refuse("bert", SIZES "heads=5", "'heads': 5 does not divide hidden (32)");
    refuse("llama", SIZES "kv_heads=3", "'kv_heads': 3 does not divide heads (4)");
    refuse("llama", SIZES "kv_heads=8", "'kv_heads': 8");
    refuse("llama", SIZES "head_dim=3", "even width");
    refuse("transformer", SIZES "hidden=33 heads=3", "sinusoidal needs an even width");
    refuse("gpt2", SIZES "embedding=16", "'embedding': 16");
    refuse("t5", SIZES "relative_buckets=9", "'relative_buckets': 9 cannot be halved");
    refuse("t5", SIZES "relative_distance=16", "'relative_distance': 16 must be above");
    refuse("t5", SIZES "relative_buckets=129", "'relative_buckets'");
    refuse("gpt2", SIZES "types=2", "'types': 2");
    refuse("gpt2", SIZES "head=class", "'class'");
    refuse("bert", SIZES "head=class", "'classes': 0");
    refuse("bert", SIZES "dropout=1", "'dropout': '1'");
    refuse("bert", SIZES "attention_dropout=2", "'attention_dropout'");
    refuse("bert", SIZES "norm_eps=-1", "'norm_eps': '-1'");
    refuse("bert", SIZES "rope_base=0", "'rope_base': '0'");
    refuse("bert", SIZES "activation=geluu", "'geluu'");
    refuse("bert", SIZES "kind=decode", "'decode'");
    refuse("bert", SIZES "hiden=3", "did you mean 'hidden'");
    refuse("bert", SIZES "max_positions=0", "'max_positions': '0'");
}

/* ---- inputs -------------------------------------------------------------------------------------------- */

static void bad_batches(void **state)
{
    (void)state;
    struct rig r;
    struct rig_batch b;
    open_loaded(&r, &b, "bert", "");
    struct neb_model_input_data d = b.data;
    int32_t starts[] = {0, 9, 8, 25, 26};
    check_log_quiet();
    d.side[0].starts = starts;
    assert_status(neb__model_input_load(r.feed, &d), NEB_ERR_RANGE);
    d = b.data;
    d.side[0].rows = 65;
    assert_status(neb__model_input_load(r.feed, &d), NEB_ERR_RANGE);
    d = b.data;
    d.side[0].max_len = 11;
    assert_status(neb__model_input_load(r.feed, &d), NEB_ERR_RANGE);
    d = b.data;
    int32_t row[64] = {26};
    d.target_row = row;
    assert_status(neb__model_input_load(r.feed, &d), NEB_ERR_RANGE);
    check_log_restore();
    rig_batch_free(&b);
    rig_close(&r);
}

/* ---- packing ------------------------------------------------------------------------------------------- */

/* A sample's loss, dropout included, does not depend on the samples that are packed with it. */
static void check_packing(const char *family, const char *options, const char *peft)
{
    struct rig r;
    struct rig_batch b;
    double packed, other_seed, sum = 0, weight, loss;
    char all[400];
    snprintf(all, sizeof all, SIZES "dropout=0.3 attention_dropout=0.3 %s", options);
    assert_ok(rig_open(&r, family, all, peft, 2));
    const int *second = r.model->arch.kind == NEB_ENCODER_DECODER ? targets : NULL;
    rig_batch_make(&b, r.model, lengths, second, 1);
    assert_ok(neb__model_input_load(r.feed, &b.data));
    assert_ok(rig_run(&r, true, true, 3, &packed));
    weight = neb__model_input_weight(r.feed);
    assert_ok(rig_run(&r, true, true, 4, &other_seed));
    rig_batch_free(&b);
    for (int i = 0; lengths[i]; i++) {
        int one[2] = {lengths[i], 0}, two[2] = {targets[i], 0};
        rig_batch_make(&b, r.model, one, second ? two : NULL, 1 + (uint32_t)i);
        assert_ok(neb__model_input_load(r.feed, &b.data));
        assert_ok(rig_run(&r, true, true, 3, &loss));
        sum += loss * neb__model_input_weight(r.feed);
        rig_batch_free(&b);
    }
    if (fabs(packed - other_seed) < 1e-3 * packed) fail_msg("%s: dropout does nothing (%g)", family, packed);
    if (!(fabs(packed - sum / weight) < 1e-5 * packed))
        fail_msg("%s: %.8g packed, %.8g one by one", family, packed, sum / weight);
    rig_close(&r);
}

static void packing(void **state)
{
    (void)state;
    check_packing("bert", "", NULL);
    check_packing("bert", "head=class classes=4 recompute=yes", NULL);
    check_packing("llama", "kv_heads=2", NULL);
    check_packing("gpt2", "", "method=lora,prefix lora_dropout=0.2");
    check_packing("transformer", "", NULL);
    check_packing("transformer", "norm_place=pre recompute=yes", NULL);
    check_packing("t5", "relative_buckets=8 relative_distance=7", NULL);
}

/* ---- the same bits ------------------------------------------------------------------------------------- */

/* Returns all trainable values after `steps` steps. */
static float *trained(const char *family, const char *options, bool record, int steps, int64_t *n,
                      float *last)
{
    struct rig r;
    struct rig_batch b;
    open_loaded(&r, &b, family, options);
    if (record) recorder_take(r.device);
    for (int i = 0; i < steps; i++) assert_ok(rig_step(&r, 3e-3f, (uint32_t)i, last));
    if (record) assert_true(recorder_launches() >= steps - 2);
    *n = 0;
    float *all = calloc((size_t)neb_params_values(r.params, true), sizeof *all);
    for (int i = 0; i < neb_params_count(r.params); i++) {
        neb_param *p = neb_params_at(r.params, i);
        if (!neb_param_trainable(p)) continue;
        assert_ok(neb_param_read(p, all + *n));
        *n += neb_param_values(p);
    }
    rig_batch_free(&b);
    rig_close(&r);
    return all;
}

static neb_status lost(void *arg)
{
    (void)arg;
    return neb__quiet(NEB_ERR_PEER, "rank 1 of 2 has ended");
}

/* A recording that holds exchanges with a rank that is lost must not run once more. */
static void a_refused_run_launches_nothing(void **state)
{
    (void)state;
    struct rig r;
    struct rig_batch b;
    float loss[8];
    open_loaded(&r, &b, "bert", "");
    recorder_take(r.device);
    for (int i = 0; i < 5; i++) assert_ok(rig_step(&r, 3e-3f, (uint32_t)i, loss));
    const int before = recorder_launches();
    assert_true(before > 0);
    neb__tape_ask_first(r.tape, lost, NULL);
    assert_status(rig_step(&r, 3e-3f, 5, loss), NEB_ERR_PEER);
    assert_int_equal(recorder_launches(), before);
    rig_batch_free(&b);
    rig_close(&r);
}

static void compare_bits(const char *family, const char *one, const char *two, bool record, int steps)
{
    int64_t n, m;
    float a_loss, b_loss;
    float *a = trained(family, one, false, steps, &n, &a_loss),
          *b = trained(family, two, record, steps, &m, &b_loss);
    assert_int_equal(n, m);
    assert_true(isfinite(a_loss));
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s [%s] and [%s]: value %d is %.9g and %.9g after %d steps", family, one, two, (int)i,
                     a[i], b[i], steps);
    free(a), free(b);
}

static void check_bits(const char *family, const char *one, const char *two, int steps)
{
    compare_bits(family, one, two, false, steps);
}

static void repeats_bit_for_bit(void **state)
{
    (void)state;
    check_bits("bert", "", "", 50);
    check_bits("llama", "kv_heads=2", "kv_heads=2", 50);
    check_bits("transformer", "", "", 50);
    check_bits("t5", "", "", 20);
}

static void recomputing_changes_no_bit(void **state)
{
    (void)state;
    check_bits("bert", "", "recompute=yes", 10);
    check_bits("gpt2", "", "recompute=yes", 10);
    check_bits("llama", "kv_heads=2", "recompute=yes kv_heads=2", 10);
    check_bits("transformer", "", "recompute=yes", 10);
    peft_of_all =
        "method=lora lora_on=*.ffn.*,*.attention.*"; /* a pair's first product is read in the backward */
    check_bits("llama", "", "recompute=yes", 10);
    peft_of_all = "method=lora lora_on=*.ffn.* lora_dropout=0.3";
    check_bits("llama", "", "recompute=yes", 10);
    peft_of_all = "";
}

/* A recorded run repeats what it did, with new dropout bits at each step.
 * So do blocks that are computed twice. */
static void recording_changes_no_bit(void **state)
{
    (void)state;
    compare_bits("bert", "", "", true, 8);
    compare_bits("llama", "kv_heads=2", "recompute=yes kv_heads=2", true, 8);
    compare_bits("transformer", "", "recompute=yes", true, 8);
}

static void recomputing_saves_memory(void **state)
{
    (void)state;
    int64_t planned[2];
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct rig_batch b;
        struct neb_memory m;
        double loss;
        open_loaded(&r, &b, "bert", i ? "layers=8 recompute=yes" : "layers=8");
        assert_ok(rig_run(&r, true, true, 1, &loss));
        neb_tape_memory(r.tape, &m);
        planned[i] = m.planned;
        rig_batch_free(&b);
        rig_close(&r);
    }
    if (planned[1] * 2 > planned[0])
        fail_msg("%d bytes when recomputing, %d when not", (int)planned[1], (int)planned[0]);
}

/* ---- sharing an embedding ------------------------------------------------------------------------------ */

static void two_models_share_a_table(void **state)
{
    (void)state;
    neb_params *ps;
    struct neb_model_config c;
    struct neb_model *generator, *discriminator, *other;
    assert_ok(neb_params_create(&ps));
    assert_ok(neb__model_config_init("electra", &c));
    c.vocab = 53, c.hidden = 16, c.embedding = 8;
    assert_ok(neb__model_create(&c, NULL, "discriminator.", NULL, ps, &discriminator));
    assert_ok(neb__opts_set(neb__model_options, &c, "head", "tokens"));
    c.hidden = 8;
    assert_ok(neb__model_create(&c, NULL, "generator.", discriminator, ps, &generator));
    assert_ptr_equal(generator->token, discriminator->token);
    assert_non_null(neb_params_find(ps, "discriminator.embed.token.weight"));
    assert_null(neb_params_find(ps, "generator.embed.token.weight"));
    assert_non_null(neb_params_find(ps, "generator.encoder.layers.3.ffn.in.weight"));
    c.vocab = 54;
    check_log_quiet();
    assert_status(neb__model_create(&c, NULL, "other.", discriminator, ps, &other), NEB_ERR_CONFIG);
    check_log_restore();
    neb__model_destroy(generator);
    neb__model_destroy(discriminator);
    neb__model_config_free(&c);
    neb_params_destroy(ps);
}

/* ---- memory failures ----------------------------------------------------------------------------------- */

static neb_status whole_life(void)
{
    struct rig r;
    struct rig_batch b;
    float loss;
    NEB_TRY(rig_open(&r, "bert", SIZES "recompute=yes", "method=lora", 2));
    rig_batch_make(&b, r.model, lengths, NULL, 1);
    neb_status status = neb__model_input_load(r.feed, &b.data);
    if (status == NEB_OK) status = rig_step(&r, 1e-3f, 1, &loss);
    if (status == NEB_OK) status = rig_step(&r, 1e-3f, 1, &loss);
    rig_batch_free(&b);
    rig_close(&r);
    return status;
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    assert_ok(whole_life());
    int64_t held = neb__mem_held();
    int failed = 0;
    check_log_quiet();
    for (int64_t n = 1;; n++) {
        neb__mem_fail_at(n);
        neb_status status = whole_life();
        bool reached = neb__mem_count() >= n;
        neb__mem_fail_at(0);
        if (neb__mem_held() != held)
            fail_msg("allocation %d failing leaks %d blocks", (int)n, (int)(neb__mem_held() - held));
        if (!reached) {
            assert_ok(status);
            break;
        }
        if (status != NEB_OK && status != NEB_ERR_NOMEM)
            fail_msg("allocation %d failing: %s: %s", (int)n, neb_status_name(status), neb_last_error());
        failed += status == NEB_ERR_NOMEM;
    }
    check_log_restore();
    assert_true(failed > 50);
}

/* After the first step of a shape, a step allocates nothing. */
static void steps_allocate_nothing(void **state)
{
    (void)state;
    struct rig r;
    struct rig_batch b;
    float loss;
    open_loaded(&r, &b, "transformer", "");
    for (int i = 0; i < 3; i++) assert_ok(rig_step(&r, 1e-3f, 1, &loss));
    neb__mem_fail_at(0);
    int64_t before = neb__mem_count();
    for (int i = 0; i < 3; i++) {
        assert_ok(neb__model_input_load(r.feed, &b.data));
        assert_ok(rig_step(&r, 1e-3f, 1, &loss));
    }
    assert_int_equal(neb__mem_count() - before, 0);
    rig_batch_free(&b);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_refused_run_launches_nothing),
                                       cmocka_unit_test(bad_configs),
                                       cmocka_unit_test(distances_have_the_buckets_of_t5),
                                       cmocka_unit_test(relative_positions_are_refused_by_name),
                                       cmocka_unit_test(bad_batches),
                                       cmocka_unit_test(packing),
                                       cmocka_unit_test(repeats_bit_for_bit),
                                       cmocka_unit_test(recomputing_changes_no_bit),
                                       cmocka_unit_test(recording_changes_no_bit),
                                       cmocka_unit_test(recomputing_saves_memory),
                                       cmocka_unit_test(two_models_share_a_table),
                                       cmocka_unit_test(every_allocation_fails_once),
                                       cmocka_unit_test(steps_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
