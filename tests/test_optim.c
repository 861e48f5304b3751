/* test_optim.c: the optimizers against a plain double-precision reference, clipping, skipped steps, schedules,
 * accumulation over micro-batches, freezing, and what is announced about gradients. */
#include "check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/tape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 12, IN = 10, OUT = 7, VALUES = OUT * IN + OUT };

struct net {
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
    neb_param *w, *b;
    neb_buffer *x, *y;
    float xs[ROWS * IN], ys[ROWS * OUT];
    int64_t first, rows; /* the part of the batch that this micro-batch has */
};

static void model(neb_tape *t, void *arg)
{
    struct net *n = arg;
    neb_tensor *x = neb_input(t, n->x, NEB_F32, 2, (int64_t[]){n->rows, IN});
    neb_tensor *y = neb_input(t, n->y, NEB_F32, 2, (int64_t[]){n->rows, OUT});
    struct neb_loss_spec loss = {0};
    neb_loss_mse(t, neb_op_linear(t, x, n->w, n->b, NEB_ACT_NONE), y, &loss);
}

static neb_status load(void *arg)
{
    struct net *n = arg;
    NEB_TRY(neb_buffer_upload(n->x, n->xs + n->first * IN, (size_t)n->rows * IN * sizeof(float)));
    return neb_buffer_upload(n->y, n->ys + n->first * OUT, (size_t)n->rows * OUT * sizeof(float));
}

static void open_net(struct net *n, struct neb_optimizer_config c, const char *freeze)
{
    *n = (struct net){.rows = ROWS};
    struct neb_rng r = {8};
    for (int i = 0; i < ROWS * IN; i++) n->xs[i] = (float)neb__rng_normal(&r);
    for (int i = 0; i < ROWS * OUT; i++) n->ys[i] = (float)neb__rng_normal(&r);
    assert_ok(neb_device_open("cpu", NULL, &n->dev));
    assert_ok(neb_params_create(&n->ps));
    struct neb_param_spec w = {
        .name = "net.weight", .ndim = 2, .shape = {OUT, IN}, .init = NEB_INIT_NORMAL, .scale = 0.5f};
    struct neb_param_spec b = {.name = "net.bias", .ndim = 1, .shape = {OUT}, .no_decay = true};
    n->w = neb_params_add(n->ps, &w);
    n->b = neb_params_add(n->ps, &b);
    if (freeze) assert_int_equal(neb_params_trainable(n->ps, freeze, false), 1);
    assert_ok(neb_params_ready(n->ps, n->dev, 1));
    assert_ok(neb_tape_create(n->dev, n->ps, &n->tape));
    assert_ok(neb_optimizer_create(n->dev, n->ps, &c, &n->opt));
    assert_ok(neb_buffer_create(n->dev, sizeof n->xs, &n->x));
    assert_ok(neb_buffer_create(n->dev, sizeof n->ys, &n->y));
}

static void close_net(struct net *n)
{
    neb_buffer_destroy(n->x);
    neb_buffer_destroy(n->y);
    neb_optimizer_destroy(n->opt);
    neb_tape_destroy(n->tape);
    neb_params_destroy(n->ps);
    neb_device_close(n->dev);
}

static neb_status step(struct net *n, float lr, struct neb_step_info *info)
{
    struct neb_micro m = {load, model, n, 1, ROWS};
    return neb_train_step(n->opt, n->tape, &m, 1, lr, 0, NULL, info);
}

static void values(struct net *n, float *out)
{
    assert_ok(neb_param_read(n->w, out));
    assert_ok(neb_param_read(n->b, out + OUT * IN));
}

/* Micro-batches without a weight have nothing to say: the step counts, nothing moves, not even by momentum or decay. */
static void a_step_without_weights_changes_nothing(void **state)
{
    (void)state;
    struct net n;
    struct neb_step_info info;
    struct neb_micro none = {load, model, &n, 1, 0};
    float before[VALUES], after[VALUES];
    open_net(&n, neb_optimizer_defaults(), NULL);
    assert_ok(step(&n, 0.1f, &info));
    assert_false(info.skipped);
    values(&n, before);
    assert_ok(neb_train_step(n.opt, n.tape, &none, 1, 0.1f, 0, NULL, &info));
    assert_true(info.skipped && info.step == 2 && info.loss[0] == 0);
    values(&n, after);
    assert_memory_equal(before, after, sizeof before);
    assert_ok(step(&n, 0.1f, &info));
    assert_true(!info.skipped && info.step == 3 && info.loss[0] > 0);
    values(&n, after);
    assert_memory_not_equal(before, after, sizeof before);
    none.weight = -1;
    check_log_quiet();
    assert_status(neb_train_step(n.opt, n.tape, &none, 1, 0.1f, 0, NULL, &info), NEB_ERR_RANGE);
    check_log_restore();
    close_net(&n);
}

/* Gradient of the mean squared error, in double; returns its norm. */
static double reference_gradient(const struct net *n, const double *p, double *g)
{
    memset(g, 0, VALUES * sizeof *g);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double e = p[OUT * IN + o] - (double)n->ys[r * OUT + o];
            for (int i = 0; i < IN; i++) e += p[o * IN + i] * (double)n->xs[r * IN + i];
            double d = 2 * e / OUT / ROWS;
            g[OUT * IN + o] += d;
            for (int i = 0; i < IN; i++) g[o * IN + i] += d * (double)n->xs[r * IN + i];
        }
    double norm = 0;
    for (int i = 0; i < VALUES; i++) norm += g[i] * g[i];
    return sqrt(norm);
}

static void compare_with_reference(struct neb_optimizer_config c)
{
    struct net n;
    open_net(&n, c, NULL);
    float now[VALUES];
    double p[VALUES], m[VALUES] = {0}, v[VALUES] = {0}, g[VALUES];
    values(&n, now);
    for (int i = 0; i < VALUES; i++) p[i] = (double)now[i];
    for (int s = 1; s <= 30; s++) {
        struct neb_step_info info;
        const double lr = 0.02;
        double norm = reference_gradient(&n, p, g), clip = 1;
        if (c.max_norm > 0 && norm > (double)c.max_norm) clip = (double)c.max_norm / norm;
        assert_ok(step(&n, (float)lr, &info));
        assert_true(info.step == s && fabs((double)info.grad_norm - norm) < 1e-4 * norm);
        for (int i = 0; i < VALUES; i++) {
            double d = g[i] * clip, decay = i < OUT * IN ? (double)c.decay : 0;
            m[i] = (double)c.beta1 * m[i] + (c.kind == NEB_ADAMW ? 1 - (double)c.beta1 : 1) * d;
            v[i] = (double)c.beta2 * v[i] + (1 - (double)c.beta2) * d * d;
            double up = m[i];
            if (c.kind == NEB_ADAMW)
                up = m[i] / (1 - pow((double)c.beta1, s)) /
                     (sqrt(v[i] / (1 - pow((double)c.beta2, s))) + (double)c.eps);
            p[i] -= lr * (up + decay * p[i]);
        }
    }
    values(&n, now);
    for (int i = 0; i < VALUES; i++)
        if (fabs((double)now[i] - p[i]) > 2e-5 * (1 + fabs(p[i])))
            fail_msg("value %d: %g, reference %g", i, (double)now[i], p[i]);
    close_net(&n);
}

static void adamw_and_sgd_follow_the_textbook(void **state)
{
    (void)state;
    struct neb_optimizer_config c = neb_optimizer_defaults();
    c.decay = 0.1f;
    c.max_norm = 0;
    compare_with_reference(c);
    c.max_norm = 0.3f;
    compare_with_reference(c);
    c.kind = NEB_SGD;
    compare_with_reference(c);
    c.beta1 = 0;
    compare_with_reference(c);
}

static void micro_batches_add_up_to_the_batch(void **state)
{
    (void)state;
    struct neb_optimizer_config c = neb_optimizer_defaults();
    float whole[VALUES], parts[VALUES];
    for (int split = 0; split < 2; split++) {
        struct net n;
        open_net(&n, c, NULL);
        for (int s = 0; s < 5; s++) {
            struct neb_step_info info;
            struct net first = n, second = n;
            if (!split) {
                assert_ok(step(&n, 0.05f, &info));
                continue;
            }
            first.rows = 5, second.first = 5, second.rows = ROWS - 5;
            struct neb_micro m[] = {{load, model, &first, 5, 5}, {load, model, &second, 7, ROWS - 5}};
            assert_ok(neb_train_step(n.opt, n.tape, m, 2, 0.05f, 0, NULL, &info));
        }
        values(&n, split ? parts : whole);
        close_net(&n);
    }
    for (int i = 0; i < VALUES; i++) assert_true(fabsf(whole[i] - parts[i]) < 1e-5f);
}

static void a_step_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    struct net n;
    open_net(&n, neb_optimizer_defaults(), NULL);
    struct neb_step_info info;
    float before[VALUES], after[VALUES], m[256], m2[256];
    assert_ok(step(&n, 0.05f, &info));
    values(&n, before);
    assert_ok(neb_optimizer_save(n.opt, m, NULL));
    n.xs[3] = NAN;
    check_log_quiet();
    assert_status(step(&n, 0.05f, &info), NEB_ERR_NONFINITE);
    check_log_restore();
    assert_true(info.skipped && info.step == 2);
    assert_non_null(strstr(neb_last_error(), "step 2"));
    values(&n, after);
    assert_ok(neb_optimizer_save(n.opt, m2, NULL));
    assert_memory_equal(before, after, sizeof before);
    assert_memory_equal(m, m2, 64 * sizeof *m);
    n.xs[3] = 1;
    assert_ok(step(&n, 0.05f, &info));
    assert_false(info.skipped);
    close_net(&n);
}

static void frozen_parameters_stay_and_take_no_memory(void **state)
{
    (void)state;
    struct net n;
    open_net(&n, neb_optimizer_defaults(), "*.weight");
    float before[VALUES], after[VALUES];
    values(&n, before);
    struct neb_step_info info;
    for (int i = 0; i < 3; i++) assert_ok(step(&n, 0.05f, &info));
    values(&n, after);
    assert_memory_equal(before, after, OUT * IN * sizeof *before);
    assert_memory_not_equal(before + OUT * IN, after + OUT * IN, OUT * sizeof *before);
    assert_int_equal(neb_params_values(n.ps, true), OUT);
    int64_t slab;
    neb_params_slab(n.ps, &slab);
    assert_int_equal(slab, NEB_PARAM_ALIGN); /* the bias alone: gradients and moments have this size */
    check_log_quiet();
    assert_status(neb_param_read_grad(n.w, before), NEB_ERR_STATE);
    check_log_restore();
    close_net(&n);
}

static void announce(void *arg, neb_param *p)
{
    char *text = arg;
    strcat(strcat(text, neb_param_name(p)), " ");
}

static void gradients_are_announced_once_when_complete(void **state)
{
    (void)state;
    struct net n;
    open_net(&n, neb_optimizer_defaults(), NULL);
    char text[256] = "";
    neb_tape_on_grad_ready(n.tape, announce, text);
    struct neb_step_info info;
    struct neb_micro m[] = {{load, model, &n, 1, ROWS}, {load, model, &n, 1, ROWS}};
    for (int i = 0; i < 2; i++) {
        text[0] = 0;
        assert_ok(neb_train_step(n.opt, n.tape, m, 2, 0.01f, 0, NULL, &info));
        assert_string_equal(text, "net.weight net.bias ");
    }
    close_net(&n);
}

static neb_status double_it(void *arg, double *v, int k)
{
    (void)arg;
    for (int i = 0; i < k; i++) v[i] *= 2;
    return NEB_OK;
}

static neb_status double_grads(void *arg, float *slab, int64_t k)
{
    (void)arg;
    for (int64_t i = 0; i < k; i++) slab[i] *= 2; /* the CPU's device memory is the host's */
    return NEB_OK;
}

/* Two ranks with the same batch are one rank with it. */
static void reduction_goes_through_one_hook(void **state)
{
    (void)state;
    float alone[VALUES], together[VALUES];
    for (int i = 0; i < 2; i++) {
        struct net n;
        open_net(&n, neb_optimizer_defaults(), NULL);
        struct neb_reduce reduce = {double_it, double_grads, NULL};
        struct neb_micro m = {load, model, &n, 1, ROWS};
        struct neb_step_info info;
        for (int s = 0; s < 3; s++)
            assert_ok(neb_train_step(n.opt, n.tape, &m, 1, 0.05f, 0, i ? &reduce : NULL, &info));
        values(&n, i ? together : alone);
        close_net(&n);
    }
    assert_memory_equal(alone, together, sizeof alone);
}

/* Ten steps a second; the time allows 50 of the 110 steps. */
static void a_schedule_ends_with_the_time(void **state)
{
    (void)state;
    struct neb_schedule s = {.kind = NEB_LINEAR, .peak = 1, .warmup = 10, .total = 110};
    assert_true(neb_schedule_lr_within(&s, 5, 0.5, 5) == neb_schedule_lr(&s, 5));
    assert_true(neb_schedule_lr_within(&s, 60, 6, 0) == neb_schedule_lr(&s, 60));
    assert_true(neb_schedule_lr_within(&s, 60, 6, 100) == neb_schedule_lr(&s, 60));
    assert_true(fabsf(neb_schedule_lr_within(&s, 30, 3, 5) - 0.5f) < 1e-6f);
    assert_true(neb_schedule_lr_within(&s, 50, 5, 5) < 1e-6f && neb_schedule_lr_within(&s, 70, 7, 5) < 1e-6f);
    s.kind = NEB_WSD, s.decay = 0.2f;
    assert_true(neb_schedule_lr_within(&s, 39, 3.9, 5) == 1 &&
                fabsf(neb_schedule_lr_within(&s, 45, 4.5, 5) - 0.5f) < 1e-6f);
}

static void schedules_have_their_shapes(void **state)
{
    (void)state;
    struct neb_schedule s = {.kind = NEB_LINEAR, .peak = 1, .floor = 0.1f, .warmup = 10, .total = 110};
    assert_ok(neb_schedule_check(&s));
    assert_true(fabsf(neb_schedule_lr(&s, 0) - 0.1f) < 1e-6f && neb_schedule_lr(&s, 10) == 1);
    assert_true(fabsf(neb_schedule_lr(&s, 60) - 0.55f) < 1e-6f &&
                fabsf(neb_schedule_lr(&s, 999) - 0.1f) < 1e-6f);
    s.kind = NEB_COSINE;
    assert_true(fabsf(neb_schedule_lr(&s, 60) - 0.55f) < 1e-6f &&
                fabsf(neb_schedule_lr(&s, 110) - 0.1f) < 1e-6f);
    s.kind = NEB_INVERSE_SQRT;
    assert_true(fabsf(neb_schedule_lr(&s, 39) - 0.5f) < 1e-6f);
    s.kind = NEB_WSD, s.decay = 0.2f;
    assert_true(neb_schedule_lr(&s, 87) == 1 && fabsf(neb_schedule_lr(&s, 99) - 0.55f) < 1e-6f);
    check_log_quiet();
    s.decay = 0;
    assert_status(neb_schedule_check(&s), NEB_ERR_CONFIG);
    s.kind = NEB_LINEAR, s.warmup = 200;
    assert_status(neb_schedule_check(&s), NEB_ERR_CONFIG);
    s.peak = NAN;
    assert_status(neb_schedule_check(&s), NEB_ERR_CONFIG);
    struct net n = {0};
    struct neb_optimizer_config c = neb_optimizer_defaults();
    c.beta2 = 1.5f;
    assert_status(neb_optimizer_create(n.dev, n.ps, &c, &n.opt), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "beta2 is 1.5"));
    check_log_restore();
}

/* Initial values depend on seed and name, not on order or on how a parameter is cut over processes. */
static void initial_values_do_not_depend_on_the_layout(void **state)
{
    (void)state;
    neb_device *dev;
    assert_ok(neb_device_open("cpu", NULL, &dev));
    float whole[6 * 8], part[6 * 8];
    for (int i = 0; i < 3; i++) {
        neb_params *ps;
        assert_ok(neb_params_create(&ps));
        struct neb_param_spec other = {.name = "other", .ndim = 1, .shape = {5}, .init = NEB_INIT_ONE};
        struct neb_param_spec s = {
            .name = "w", .ndim = 2, .shape = {6, 8}, .init = NEB_INIT_NORMAL, .scale = 1};
        if (i) neb_params_add(ps, &other);
        if (i)
            s.split = i == 1 ? NEB_SPLIT_ROW : NEB_SPLIT_COLUMN, s.local_first = 3,
            s.local_count = i == 1 ? 3 : 4;
        neb_param *p = neb_params_add(ps, &s);
        assert_ok(neb_params_ready(ps, dev, 99));
        assert_ok(neb_param_read(p, i ? part : whole));
        assert_int_equal(neb_param_values(p), 48);
        for (int64_t k = 0; i && k < 48; k++) {
            bool here = i == 1 ? k / 8 >= 3 : k % 8 >= 3 && k % 8 < 7;
            assert_true(part[k] == (here ? whole[k] : 0));
        }
        neb_params_destroy(ps);
    }
    neb_params *ps;
    assert_ok(neb_params_create(&ps));
    struct neb_param_spec bad = {.name = "w", .ndim = 2, .shape = {6, 0}};
    check_log_quiet();
    assert_null(neb_params_add(ps, &bad));
    assert_status(neb_params_ready(ps, dev, 1), NEB_ERR_SHAPE);
    check_log_restore();
    neb_params_destroy(ps);
    neb_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_without_weights_changes_nothing),
        cmocka_unit_test(adamw_and_sgd_follow_the_textbook),
        cmocka_unit_test(micro_batches_add_up_to_the_batch),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing),
        cmocka_unit_test(frozen_parameters_stay_and_take_no_memory),
        cmocka_unit_test(gradients_are_announced_once_when_complete),
        cmocka_unit_test(reduction_goes_through_one_hook),
        cmocka_unit_test(schedules_have_their_shapes),
        cmocka_unit_test(a_schedule_ends_with_the_time),
        cmocka_unit_test(initial_values_do_not_depend_on_the_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
