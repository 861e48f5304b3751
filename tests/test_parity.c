/* test_parity.c: the same numbers as PyTorch, for one small model of each family.
 *
 * tests/data/parity_NAME.bin was recorded by tools/make_parity_vectors.py from the transformers library. Compared are the
 * logits, the loss, the gradient of every parameter and the losses of 20 AdamW steps, all to 1e-4 of the largest
 * reference value of the array. */
#include "check.h"
#include "rig.h"
#include "vectors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TOLERANCE 1e-4

static double worst_seen; /* largest difference so far, as a share of what it is compared with */

static void compare(const char *what, const float *got, const struct vector *want)
{
    double top = 0, worst = 0;
    size_t where = 0;
    for (size_t i = 0; i < want->n; i++) {
        double d = fabs((double)got[i] - want->data.f[i]);
        if (!(d <= worst)) worst = d, where = i; /* a NaN is the worst */
        top = fmax(top, fabs(want->data.f[i]));
    }
    if (top > 0) worst_seen = fmax(worst_seen, worst / top);
    if (!(worst <= TOLERANCE * top))
        fail_msg("%s: value %zu is %.8g instead of %.8g; allowed difference %.3g", what, where, got[where],
                 want->data.f[where], TOLERANCE * top);
}

static void load_weights(struct rig *r, const struct vectors *v)
{
    for (int i = 0; i < neb_params_count(r->params); i++) {
        neb_param *p = neb_params_at(r->params, i);
        char name[160];
        int64_t shape[4];
        if (strstr(neb_param_name(p), "sinusoid")) continue; /* computed by both */
        snprintf(name, sizeof name, "weight:%s", neb_param_name(p));
        struct vector *w = vectors_need(v, name);
        assert_int_equal(neb_param_shape(p, shape), w->ndim);
        for (int d = 0; d < w->ndim; d++) assert_int_equal(shape[d], w->shape[d]);
        assert_ok(neb_param_write(p, w->data.f));
    }
    for (int i = 0; i < v->count; i++)
        if (!strncmp(v->list[i].name, "weight:", 7) && !v->list[i].used)
            fail_msg("the model has no parameter for %s", v->list[i].name);
}

static void load_side(const struct vectors *v, const char *name, struct neb_model_input_side *s,
                      uint32_t *sample)
{
    char key[64];
    snprintf(key, sizeof key, "%s.ids", name);
    struct vector *ids = vectors_need(v, key);
    snprintf(key, sizeof key, "%s.position", name);
    s->position = vectors_need(v, key)->data.i;
    snprintf(key, sizeof key, "%s.type", name);
    s->type = vectors_need(v, key)->data.i;
    snprintf(key, sizeof key, "%s.starts", name);
    struct vector *starts = vectors_need(v, key);
    s->ids = ids->data.i;
    s->starts = starts->data.i;
    s->rows = (int32_t)ids->n;
    s->seqs = (int32_t)starts->n - 1;
    for (int32_t q = 0; q < s->seqs; q++) {
        if (s->starts[q + 1] - s->starts[q] > s->max_len) s->max_len = s->starts[q + 1] - s->starts[q];
        for (int32_t r = s->starts[q]; r < s->starts[q + 1]; r++) sample[r] = (uint32_t)q;
    }
    s->sample = sample;
}

static void load_batch(struct rig *r, const struct vectors *v)
{
    uint32_t sample[2][64];
    struct neb_model_input_data d = {.sides = vectors_find(v, "target.ids") ? 2 : 1};
    load_side(v, "source", &d.side[0], sample[0]);
    if (d.sides == 2) load_side(v, "target", &d.side[1], sample[1]);
    struct vector *rows = vectors_need(v, "rows"), *labels = vectors_need(v, "labels");
    d.targets = (int32_t)rows->n;
    d.target_row = rows->data.i;
    d.target = labels->data.i;
    assert_ok(neb__model_input_load(r->feed, &d));
}

static void compare_gradients(struct rig *r, const struct vectors *v)
{
    for (int i = 0; i < neb_params_count(r->params); i++) {
        neb_param *p = neb_params_at(r->params, i);
        char name[160];
        if (!neb_param_trainable(p)) continue;
        float *grad = malloc((size_t)neb_param_values(p) * sizeof *grad);
        assert_ok(neb_param_read_grad(p, grad));
        snprintf(name, sizeof name, "grad:%s", neb_param_name(p));
        compare(name, grad, vectors_need(v, name));
        free(grad);
    }
}

static void check_family(const char *name, const char *options, bool recompute)
{
    char path[512], all[512];
    struct vectors v;
    struct rig r;
    double loss;
    snprintf(path, sizeof path, "%s/parity_%s.bin", NEB_TEST_DATA, name);
    snprintf(all, sizeof all, "vocab=61 layers=2 max_positions=16 dropout=0 attention_dropout=0 %s%s",
             options, recompute ? " recompute=yes" : "");
    vectors_load(path, &v);
    assert_ok(rig_open(&r, name, all, NULL, 2));
    neb_tape_poison(r.tape, true);
    load_weights(&r, &v);
    load_batch(&r, &v);

    float *logits;
    assert_ok(rig_logits(&r, &logits));
    struct vector *want = vectors_need(&v, "logits");
    assert_int_equal(r.logit_rows * r.logit_cols, want->n);
    compare("logits", logits, want);
    free(logits);

    assert_ok(rig_run(&r, true, true, 1, &loss));
    compare("loss", &(float){(float)loss}, vectors_need(&v, "loss"));
    compare_gradients(&r, &v);

    struct vector *losses = vectors_need(&v, "losses");
    float got[64];
    assert_in_range(losses->n, 20, 64);
    for (size_t i = 0; i < losses->n; i++) assert_ok(rig_step(&r, 2e-3f, 1, &got[i]));
    print_message("%s%s: logits, loss, gradients within %.1e;", name, recompute ? " recomputed" : "",
                  worst_seen);
    worst_seen = 0;
    for (size_t i = 0; i < losses->n; i++)
        worst_seen = fmax(worst_seen, fabs(got[i] - losses->data.f[i]) / fabs(losses->data.f[i]));
    print_message(" losses of %zu steps within %.1e\n", losses->n, worst_seen);
    worst_seen = 0;
    for (size_t i = 0; i < losses->n; i++)
        if (!(fabs(got[i] - losses->data.f[i]) <= TOLERANCE * fabs(losses->data.f[i])))
            fail_msg("%s: loss of step %zu is %.7g instead of %.7g", name, i + 1, got[i], losses->data.f[i]);
    rig_close(&r);
    vectors_free(&v);
}

static void check_both(const char *name, const char *options)
{
    check_family(name, options, false);
    check_family(name, options, true);
}

static void bert(void **state)
{
    (void)state;
    check_both("bert", "hidden=24 heads=3 ffn=48");
}

static void electra(void **state)
{
    (void)state;
    check_both("electra", "hidden=24 embedding=12 heads=3 ffn=48");
}

static void gpt2(void **state)
{
    (void)state;
    check_both("gpt2", "hidden=24 heads=3 ffn=48");
}

static void llama(void **state)
{
    (void)state;
    check_both("llama", "hidden=32 heads=4 kv_heads=2 ffn=40");
}

static void marian(void **state)
{
    (void)state;
    check_both("marian", "hidden=24 heads=3 ffn=48 head_bias=no");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bert), cmocka_unit_test(electra),
                                       cmocka_unit_test(gpt2), cmocka_unit_test(llama),
                                       cmocka_unit_test(marian)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
