/* test_nn_peft.c: only the chosen parameters train, and the others cost nothing. */
#include "check.h"
#include "rig.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZES "vocab=53 hidden=32 layers=2 heads=4 ffn=64 max_positions=16 init_deviation=0.1 "

static const int lengths[] = {9, 4, 12, 1, 0};

static float **read_all(struct rig *r)
{
    float **all = calloc((size_t)neb_params_count(r->params), sizeof *all);
    for (int i = 0; i < neb_params_count(r->params); i++) {
        neb_param *p = neb_params_at(r->params, i);
        all[i] = malloc((size_t)neb_param_values(p) * sizeof(float));
        assert_ok(neb_param_read(p, all[i]));
    }
    return all;
}

static void free_all(struct rig *r, float **all)
{
    for (int i = 0; i < neb_params_count(r->params); i++) free(all[i]);
    free(all);
}

static bool listed(const char *patterns, const char *name)
{
    char part[100];
    for (int i = 0; neb__list_part(patterns, i, part, sizeof part); i++)
        if (!fnmatch(part, name, 0)) return true;
    return false;
}

/* Trains a few steps; exactly the parameters matching `expected` may and do change. */
static void check_method(const char *family, const char *options, const char *peft, const char *expected)
{
    struct rig r;
    struct rig_batch b;
    float first = 0, loss = 0;
    char all[400];
    snprintf(all, sizeof all, SIZES "%s", options);
    assert_ok(rig_open(&r, family, all, peft, 2));
    rig_batch_make(&b, r.model, lengths, r.model->arch.kind == NEB_ENCODER_DECODER ? lengths : NULL, 1);
    assert_ok(neb__model_input_load(r.feed, &b.data));
    float **before = read_all(&r);
    for (int i = 0; i < 40; i++) {
        assert_ok(rig_step(&r, 1e-2f, 1, &loss));
        if (!i) first = loss;
    }
    if (!(loss < 0.97f * first)) fail_msg("%s %s: loss went from %g to %g", family, peft, first, loss);
    float **after = read_all(&r);
    int64_t values = 0, slab;
    for (int i = 0; i < neb_params_count(r.params); i++) {
        neb_param *p = neb_params_at(r.params, i);
        bool want = listed(expected, neb_param_name(p));
        bool changed = memcmp(before[i], after[i], (size_t)neb_param_values(p) * sizeof(float)) != 0;
        if (neb_param_trainable(p) != want || changed != want)
            fail_msg("%s %s: %s is %strained and %schanged", family, peft, neb_param_name(p),
                     neb_param_trainable(p) ? "" : "not ", changed ? "" : "un");
        if (want) values += neb_param_values(p);
        if (!want) {
            check_log_quiet();
            assert_status(neb_param_read_grad(p, after[i]), NEB_ERR_STATE);
            check_log_restore();
        }
    }
    assert_int_equal(values, neb_params_values(r.params, true));
    neb_params_slab(r.params, &slab);
    assert_true(slab >= values && slab <= values + 64 * neb_params_count(r.params));
    free_all(&r, before);
    free_all(&r, after);
    rig_batch_free(&b);
    rig_close(&r);
}

static void methods(void **state)
{
    (void)state;
    check_method("bert", "dropout=0", "method=lora", "*.qkv.lora.[ab]");
    check_method("llama", "", "method=lora frozen=int8", "*.qkv.lora.[ab]");
    check_method("gpt2", "dropout=0", "method=adapter adapter_size=6 frozen=nf4", "*.ffn.adapter.*");
    check_method("marian", "dropout=0", "method=bias frozen=nf4", "*.bias");
    check_method("gpt2", "dropout=0", "method=prefix prefix_length=5 frozen=bf16", "*.prefix.*");
    check_method("llama", "", "method=lora lora_on=*.ffn.*,*.attention.out",
                 "*.ffn.*.lora.[ab],*.attention.out.lora.[ab]");
    check_method("llama", "", "method=lora lora_on=*.attention.q,*.ffn.gate",
                 "*.attention.q.lora.[ab],*.ffn.gate.lora.[ab]");
    check_method("marian", "dropout=0", "method=lora", "*.attention.qkv.lora.[ab],*.cross.*.lora.[ab]");
    check_method("gpt2", "dropout=0", "method=adapter adapter_size=6", "*.ffn.adapter.*");
    check_method("bert", "dropout=0", "method=adapter adapter_size=6 adapter_after=both", "*.adapter.*");
    check_method("llama", "", "method=ia3", "*.attention.[kv].ia3.out,*.ffn.out.ia3.in");
    check_method("gpt2", "dropout=0", "method=ia3 ia3_on=*.qkv ia3_in=none frozen=nf4", "*.qkv.ia3.out");
    check_method("llama", "", "method=lora lora_dora=yes", "*.qkv.lora.[abm]");
    check_method("bert", "dropout=0", "method=lora lora_dora=yes lora_on=*.attention.q,*.ffn.out frozen=int8",
                 "*.attention.q.lora.[abm],*.ffn.out.lora.[abm]");
    check_method("llama", "", "method=prompt prompt_length=3", "embed.prompt.weight");
    check_method("gpt2", "dropout=0", "method=prompt,lora prompt_length=2 frozen=int8",
                 "embed.prompt.weight,*.qkv.lora.[ab]");
    check_method("bert", "dropout=0", "method=bias", "*.bias");
    check_method("gpt2", "dropout=0", "method=prefix prefix_length=5", "*.prefix.*");
    check_method("marian", "dropout=0", "method=prefix prefix_length=5", "*.prefix.*");
    check_method("bert", "dropout=0", "method=lora train=head.* freeze=head.bias",
                 "*.lora.[ab],head.transform.*,head.norm.*");
    check_method("transformer", "dropout=0", "method=full freeze=encoder.*",
                 "embed.*,decoder.embed.position.*,decoder.layers.*");
}

/* No method changes the model at first: second matrices are zero, factors one, lengths those of the weights. */
static void starts_as_the_base(void **state)
{
    (void)state;
    static const char *const ways[] = {"method=full", "method=lora lora_on=*",
                                       "method=adapter adapter_after=both", "method=ia3",
                                       "method=lora lora_dora=yes lora_on=*"};
    float *logits[5] = {0};
    for (int i = 0; i < 5; i++) {
        struct rig r;
        struct rig_batch b;
        assert_ok(rig_open(&r, "bert", SIZES, ways[i], 2));
        rig_batch_make(&b, r.model, lengths, NULL, 1);
        assert_ok(neb__model_input_load(r.feed, &b.data));
        assert_ok(rig_logits(&r, &logits[i]));
        int64_t n = r.logit_rows * r.logit_cols;
        for (int64_t j = 0; i && j < n; j++)
            if (fabsf(logits[i][j] - logits[0][j]) > 1e-5f)
                fail_msg("%s: logit %d is %g instead of %g", ways[i], (int)j, logits[i][j], logits[0][j]);
        rig_batch_free(&b);
        rig_close(&r);
    }
    for (int i = 0; i < 5; i++) free(logits[i]);
}

static int64_t planned(const char *peft)
{
    struct rig r;
    struct rig_batch b;
    struct neb_memory m;
    double loss;
    assert_ok(rig_open(&r, "bert", SIZES "layers=6", peft, 2));
    rig_batch_make(&b, r.model, lengths, NULL, 1);
    assert_ok(neb__model_input_load(r.feed, &b.data));
    assert_ok(rig_run(&r, true, true, 1, &loss));
    neb_tape_memory(r.tape, &m);
    rig_batch_free(&b);
    rig_close(&r);
    return m.unplanned;
}

/* If only the head is trained, no activation below it is kept or has a gradient. */
static void frozen_layers_keep_nothing(void **state)
{
    (void)state;
    int64_t full = planned("method=full"), head = planned("method=frozen train=head.*");
    if (head * 10 > full * 7)
        fail_msg("%d bytes of activations with a frozen body, %d in full", (int)head, (int)full);
}

static void refuse(const char *peft, const char *word)
{
    struct rig r;
    check_log_quiet();
    assert_status(rig_open(&r, "llama", SIZES, peft, 1), NEB_ERR_CONFIG);
    check_log_restore();
    if (!strstr(neb_last_error(), word)) fail_msg("'%s' does not name %s", neb_last_error(), word);
}

static void bad_configs(void **state)
{
    (void)state;
    refuse("method=lorra", "'lorra'");
    refuse("method=full,lora", "stand alone");
    refuse("method=lora lora_rank=0", "'lora_rank': '0'");
    refuse("method=lora lora_alpha=-1", "'lora_alpha': '-1'");
    refuse("method=lora lora_dropout=1", "'lora_dropout'");
    refuse("method=lora lora_on=*.qqkv", "'*.qqkv'");
    refuse("method=ia3 ia3_on=*.qqkv ia3_in=none", "'*.qqkv'");
    refuse("method=adapter adapter_size=-5", "'adapter_size': '-5'");
    refuse("method=adapter adapter_after=none", "'adapter_after'");
    refuse("method=prefix prefix_length=0", "'prefix_length': '0'");
    refuse("method=bias", "without biases");
    refuse("method=prompt prompt_length=16", "'prompt_length'");
    refuse("method=frozen train=haed.*", "'haed.*'");
    refuse("method=full freeze=nothing", "'nothing'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(methods), cmocka_unit_test(starts_as_the_base),
                                       cmocka_unit_test(frozen_layers_keep_nothing),
                                       cmocka_unit_test(bad_configs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
