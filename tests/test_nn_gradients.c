/* test_nn_gradients.c: finite differences through whole models, for every layer and every head.
 *
 * The loss is evaluated for each parameter at p + e d and p - e d, once along the gradient itself and once
 * along a random direction. The slope must be g·d. Dropout is on with a fixed seed, so masks of forward and
 * backward must agree, too. The arena is poisoned, so a read of memory that was not written shows as NaN.
 *
 * With ReLU a step may carry a unit over its kink, and then the slope is that of neither side. Few steps do,
 * so the median of several directions is compared. A wrong gradient is wrong along all of them. */
#include "check.h"
#include "rig.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct model_case {
    const char *family, *options, *peft;
    int lengths[6], target_lengths[6];
};

static bool has_kinks(const struct model_case *c)
{
    return strstr(c->options, "relu") != NULL;
}

static double norm(const float *x, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * x[i];
    return sqrt(s);
}

static double loss_at(struct rig *r, neb_param *p, const float *base, const float *d, double e, float *space)
{
    double loss;
    int64_t n = neb_param_values(p);
    for (int64_t i = 0; i < n; i++) space[i] = (float)(base[i] + e * d[i]);
    assert_ok(neb_param_write(p, space));
    assert_ok(rig_run(r, false, true, 5, &loss));
    return loss;
}

/* Fourth-order difference: the loss is F32, so steps must be long, and long steps need the higher order. */
static double slope(struct rig *r, neb_param *p, const float *base, const float *d, double e, float *space)
{
    double near = loss_at(r, p, base, d, e, space) - loss_at(r, p, base, d, -e, space);
    double far = loss_at(r, p, base, d, 2 * e, space) - loss_at(r, p, base, d, -2 * e, space);
    return (8 * near - far) / (12 * e);
}

/* The slope along d must be g·d. Returns the error as a multiple of the allowed one. */
static double miss(struct rig *r, neb_param *p, const float *base, const float *g, const float *d,
                   const char *what, const struct model_case *c)
{
    int64_t n = neb_param_values(p);
    double size = norm(g, n), want = 0;
    for (int64_t i = 0; i < n; i++) want += (double)g[i] * d[i];
    float *space = malloc((size_t)n * sizeof *space);
    double e = fmin(0.02, 0.02 / (size + 1e-3)), got = slope(r, p, base, d, e, space);
    /* the loss carries about 3e-7 of rounding, the difference divides it by e */
    double allowed = 0.01 * size + 1e-6 / e;
    if (!(fabs(got - want) <= allowed) && !has_kinks(c))
        fail_msg("%s [%s | %s]: %s: slope %.6g along %s, gradient says %.6g (norm %.6g, allowed %.2g)",
                 c->family, c->options, c->peft ? c->peft : "", neb_param_name(p), got, what, want, size,
                 allowed);
    assert_ok(neb_param_write(p, base));
    free(space);
    return fabs(got - want) / allowed;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void random_direction(struct neb_rng *rng, float *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++) d[i] = (float)(neb__rng_normal(rng) / sqrt((double)n));
}

static void check_over_kinks(struct rig *r, neb_param *p, const float *base, const float *g, float *d,
                             const struct model_case *c, struct neb_rng *rng)
{
    double misses[7];
    for (int k = 0; k < 7; k++) {
        random_direction(rng, d, neb_param_values(p));
        misses[k] = miss(r, p, base, g, d, "a random direction", c);
    }
    qsort(misses, 7, sizeof *misses, by_size);
    if (!(misses[3] <= 1))
        fail_msg("%s [%s]: %s: the median slope misses the gradient by %.2f of what is allowed", c->family,
                 c->options, neb_param_name(p), misses[3]);
}

static void check_param(struct rig *r, neb_param *p, const struct model_case *c, struct neb_rng *rng)
{
    size_t bytes = (size_t)neb_param_values(p) * sizeof(float);
    int64_t n = neb_param_values(p);
    float *base = malloc(bytes), *g = malloc(bytes), *d = malloc(bytes);
    assert_ok(neb_param_read(p, base));
    assert_ok(neb_param_read_grad(p, g));
    double size = norm(g, n);
    if (!isfinite(size))
        fail_msg("%s [%s]: gradient of %s is not finite", c->family, c->options, neb_param_name(p));
    if (has_kinks(c)) check_over_kinks(r, p, base, g, d, c, rng);
    if (size > 1e-6 && !has_kinks(c)) {
        for (int64_t i = 0; i < n; i++) d[i] = (float)(g[i] / size);
        miss(r, p, base, g, d, "itself", c);
    }
    random_direction(rng, d, n);
    miss(r, p, base, g, d, "a random direction", c);
    free(base), free(g), free(d);
}

/* Zeros (LoRA's B, adapters' up, biases) and ones hide mistakes: move everything a little. */
static void shake(struct rig *r, struct neb_rng *rng)
{
    for (int i = 0; i < neb_params_count(r->params); i++) {
        neb_param *p = neb_params_at(r->params, i);
        if (strstr(neb_param_name(p), "sinusoid")) continue;
        int64_t n = neb_param_values(p);
        float *x = malloc((size_t)n * sizeof *x);
        assert_ok(neb_param_read(p, x));
        for (int64_t j = 0; j < n; j++) x[j] += (float)(0.1 * neb__rng_normal(rng));
        assert_ok(neb_param_write(p, x));
        free(x);
    }
}

static void check_case(const struct model_case *c)
{
    struct rig r;
    struct rig_batch b;
    struct neb_rng rng = {11};
    double loss;
    char options[400];
    snprintf(options, sizeof options, "vocab=29 layers=2 max_positions=16 init_deviation=0.2 dropout=0.1 %s",
             c->options);
    assert_ok(rig_open(&r, c->family, options, c->peft, 2));
    neb_tape_poison(r.tape, true);
    shake(&r, &rng);
    rig_batch_make(&b, r.model, c->lengths, c->target_lengths[0] ? c->target_lengths : NULL, 100);
    assert_ok(neb__model_input_load(r.feed, &b.data));
    assert_ok(rig_run(&r, true, true, 5, &loss));
    assert_true(isfinite(loss) && loss > 0);
    int checked = 0;
    for (int i = 0; i < neb_params_count(r.params); i++) {
        neb_param *p = neb_params_at(r.params, i);
        if (!neb_param_trainable(p)) continue;
        check_param(&r, p, c, &rng);
        checked++;
    }
    assert_true(checked > 0);
    rig_batch_free(&b);
    rig_close(&r);
}

#define RUN(...)                                                                         \
    do {                                                                                 \
        static const struct model_case cases[] = {__VA_ARGS__};                          \
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]); \
    } while (0)

static void encoders(void **state)
{
    (void)state;
    RUN({"bert", "hidden=20 heads=5 ffn=33", NULL, {5, 1, 9}, {0}},
        {"bert", "hidden=7 heads=1 ffn=1 norm_place=pre", NULL, {1}, {0}},
        {"electra", "hidden=12 heads=3 embedding=5 ffn=17", NULL, {4, 7}, {0}},
        {"electra", "hidden=12 heads=3 embedding=5 ffn=17 head=tokens tied=no", NULL, {4, 7}, {0}},
        {"xlm-r", "hidden=12 heads=2 ffn=17 head=class classes=3", NULL, {4, 1, 6}, {0}},
        {"xlm-r",
         "hidden=12 heads=2 ffn=17 head=class classes=5 pooling=mean recompute=yes",
         NULL,
         {4, 1, 6},
         {0}});
}

static void decoders(void **state)
{
    (void)state;
    RUN({"gpt2", "hidden=18 heads=3 ffn=31", NULL, {6, 1, 8}, {0}},
        {"llama", "hidden=24 heads=4 kv_heads=2 ffn=19 attention_dropout=0.1", NULL, {6, 3}, {0}},
        {"llama", "hidden=10 heads=3 kv_heads=1 head_dim=2 ffn=7 tied=yes bias=yes", NULL, {5}, {0}},
        {"gemma", "hidden=24 heads=4 kv_heads=2 head_dim=4 ffn=19", NULL, {6, 3}, {0}},
        {"gpt2", "hidden=16 heads=2 norm_place=post activation=silu positions=none", NULL, {6, 2}, {0}},
        {"gpt2", "hidden=16 heads=4 kv_heads=2 positions=relative relative_buckets=5", NULL, {15, 2}, {0}});
}

static void encoder_decoders(void **state)
{
    (void)state;
    RUN({"transformer", "hidden=12 heads=2 ffn=17 activation=silu", NULL, {5, 2}, {3, 6}},
        {"transformer",
         "hidden=12 heads=2 ffn=17 activation=gelu norm_place=pre decoder_layers=1",
         NULL,
         {5, 2},
         {3, 6}},
        {"transformer", "hidden=12 heads=2 ffn=17 activation=relu", NULL, {5, 2}, {3, 6}},
        {"marian", "hidden=12 heads=2 ffn=9 tied=no recompute=yes", NULL, {1, 4}, {1, 2}},
        {"bart", "hidden=12 heads=4 kv_heads=2 ffn=9", NULL, {3, 4}, {5, 2}},
        {"t5",
         "hidden=12 heads=3 head_dim=6 ffn=9 activation=relu relative_buckets=8 relative_distance=7",
         NULL,
         {9, 1, 4},
         {12, 2, 1}},
        {"t5-v1.1",
         "hidden=12 heads=2 ffn=9 relative_buckets=4 relative_distance=3 recompute=yes attention_scale=yes",
         NULL,
         {5, 8},
         {11, 3}});
}

static void parameter_efficient(void **state)
{
    (void)state;
    RUN({"bert",
         "hidden=12 heads=3 ffn=17",
         "method=lora lora_on=* lora_rank=3 lora_dropout=0.1",
         {5, 4},
         {0}},
        {"llama",
         "hidden=12 heads=2 ffn=17",
         "method=lora,prefix prefix_length=3 lora_on=*.ffn.*",
         {5, 4},
         {0}},
        {"llama",
         "hidden=12 heads=2 kv_heads=1 ffn=17",
         "method=lora lora_on=*.attention.q,*.attention.v,*.ffn.up lora_rank=2 lora_dropout=0.1",
         {5, 4},
         {0}},
        {"m2m100", "hidden=12 heads=3 ffn=17", "method=lora lora_on=*.cross.v,*.attention.k", {5, 4}, {3, 3}},
        {"bert", "hidden=12 heads=3 ffn=17", "method=prefix prefix_length=2", {5, 4}, {0}},
        {"llama", "hidden=12 heads=3 kv_heads=1 ffn=17", "method=ia3", {5, 4}, {0}},
        {"llama", "hidden=12 heads=3 kv_heads=1 ffn=17", "method=prompt prompt_length=3", {5, 1, 4}, {0}},
        {"gpt2",
         "hidden=12 heads=3 ffn=17",
         "method=prompt,lora prompt_length=1 train=*.embed.*",
         {5, 4},
         {0}},
        {"marian", "hidden=12 heads=3 ffn=17", "method=ia3,bias", {5, 4}, {3, 3}},
        {"gpt2",
         "hidden=12 heads=3 ffn=17 recompute=yes",
         "method=ia3 ia3_on=*.qkv,*.ffn.in ia3_in=*.out train=decoder.embed.*",
         {5, 4},
         {0}},
        /* the backward takes the lengths of rows for constants: differences of A and B show something else */
        {"llama",
         "hidden=12 heads=3 kv_heads=1 ffn=17",
         "method=lora lora_dora=yes lora_on=*.attention.q,*.attention.v,*.ffn.* freeze=*.lora.[ab] "
         "train=embed.*",
         {5, 4},
         {0}},
        {"bert",
         "hidden=12 heads=3 ffn=17",
         "method=lora,bias lora_dora=yes lora_on=*.qkv,*.out freeze=*.lora.[ab] frozen=int8",
         {5, 4},
         {0}},
        {"bart",
         "hidden=12 heads=3 ffn=17",
         "method=adapter,bias adapter_size=5 adapter_after=both",
         {5, 4},
         {3, 3}},
        {"gpt2", "hidden=12 heads=3 ffn=17 recompute=yes", "method=lora,prefix prefix_length=2", {5, 4}, {0}},
        {"t5-v1.1",
         "hidden=12 heads=3 ffn=17",
         "method=lora lora_on=*.attention.q train=encoder.embed.*",
         {5, 4},
         {3, 3}},
        {"marian", "hidden=12 heads=3 ffn=17", "method=frozen train=encoder.layers.0.*", {5, 4}, {3, 3}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encoders), cmocka_unit_test(decoders),
                                       cmocka_unit_test(encoder_decoders),
                                       cmocka_unit_test(parameter_efficient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
