/* test_private_step.c: a step of privacy.unit: sample against the gradients of its samples, each taken by itself and clipped
 * here. The noise is the least that the accountant allows, so the mean shows through. */
#include "check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "optim/private_step.h"
#include "tensor/tape.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 12, IN = 10, OUT = 7, VALUES = OUT * IN + OUT };

struct net {
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
    neb_param *w, *b;
    neb_buffer *x, *y;
    float xs[SAMPLES * IN], ys[SAMPLES * OUT];
    int64_t at;    /* the sample to load */
    int64_t given; /* samples that next() has given */
};

static void model(neb_tape *t, void *arg)
{
    struct net *n = arg;
    neb_tensor *x = neb_input(t, n->x, NEB_F32, 2, (int64_t[]){1, IN});
    neb_tensor *y = neb_input(t, n->y, NEB_F32, 2, (int64_t[]){1, OUT});
    struct neb_loss_spec loss = {0};
    neb_loss_mse(t, neb_op_linear(t, x, n->w, n->b, NEB_ACT_NONE), y, &loss);
}

static neb_status load(void *arg)
{
    struct net *n = arg;
    NEB_TRY(neb_buffer_upload(n->x, n->xs + n->at * IN, IN * sizeof(float)));
    return neb_buffer_upload(n->y, n->ys + n->at * OUT, OUT * sizeof(float));
}

static void open_net(struct net *n)
{
    struct neb_rng r = {8};
    struct neb_optimizer_config c = {.kind = NEB_SGD};
    *n = (struct net){0};
    for (int i = 0; i < SAMPLES * IN; i++) n->xs[i] = (float)(neb__rng_normal(&r) * (i / IN % 3 ? 0.2 : 3));
    for (int i = 0; i < SAMPLES * OUT; i++) n->ys[i] = (float)neb__rng_normal(&r);
    assert_ok(neb_device_open("cpu", NULL, &n->dev));
    assert_ok(neb_params_create(&n->ps));
    struct neb_param_spec w = {
        .name = "net.weight", .ndim = 2, .shape = {OUT, IN}, .init = NEB_INIT_NORMAL, .scale = 0.5f};
    struct neb_param_spec b = {.name = "net.bias", .ndim = 1, .shape = {OUT}};
    n->w = neb_params_add(n->ps, &w);
    n->b = neb_params_add(n->ps, &b);
    assert_ok(neb_params_ready(n->ps, n->dev, 1));
    assert_ok(neb_tape_create(n->dev, n->ps, &n->tape));
    assert_ok(neb_optimizer_create(n->dev, n->ps, &c, &n->opt));
    assert_ok(neb_buffer_create(n->dev, IN * sizeof(float), &n->x));
    assert_ok(neb_buffer_create(n->dev, OUT * sizeof(float), &n->y));
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

static void values(struct net *n, float *out)
{
    assert_ok(neb_param_read(n->w, out));
    assert_ok(neb_param_read(n->b, out + OUT * IN));
}

/* With plain SGD and a learning rate of 1 the parameters fall by the gradient. */
static double gradient(int64_t sample, double *out)
{
    struct net n;
    struct neb_step_info info;
    float before[VALUES], after[VALUES];
    double square = 0;
    open_net(&n);
    n.at = sample;
    struct neb_micro m = {load, model, &n, 1, 1};
    values(&n, before);
    assert_ok(neb_train_step(n.opt, n.tape, &m, 1, 1, 0, NULL, &info));
    values(&n, after);
    for (int i = 0; i < VALUES; i++) {
        out[i] = (double)before[i] - (double)after[i];
        square += out[i] * out[i];
    }
    close_net(&n);
    return sqrt(square);
}

static neb_status next(void *arg, struct neb_micro *out)
{
    struct net *n = arg;
    if (n->given == SAMPLES) return NEB_ERR_AGAIN;
    n->at = n->given++;
    *out = (struct neb_micro){load, model, n, 1, 1};
    return NEB_OK;
}

/* The mean of the samples' clipped gradients, computed one by one. Sample 5 counts as 0. Returns how many are longer than the clip. */
static int expected_mean(double clip, double expected, double *mean)
{
    double g[VALUES];
    int longer = 0;
    memset(mean, 0, VALUES * sizeof *mean);
    for (int k = 0; k < SAMPLES; k++) {
        double norm = gradient(k, g);
        longer += norm > clip;
        for (int i = 0; i < VALUES && k != 5; i++) mean[i] += g[i] * fmin(1, clip / norm) / expected;
    }
    return longer;
}

static void open_private(struct net *n, struct neb_private_step *p, double noise)
{
    open_net(n);
    n->xs[5 * IN + 2] = NAN; /* one that cannot be computed counts as 0, and the step is made */
    p->next = next;
    p->arg = n;
    assert_ok(neb__step_key_new(&p->key));
    assert_ok(neb__private_step_check(n->opt));
    assert_ok(neb__noise_create(noise * NEB_PRIVACY_UNITS, &p->noise));
    p->sum = NEB_NEW_ARRAY(int64_t, (size_t)n->ps->trainable_values);
    assert_non_null(p->sum);
}

static void close_private(struct net *n, struct neb_private_step *p)
{
    neb__noise_free(p->noise);
    neb__free(p->sum);
    close_net(n);
}

/* Within seven deviations, and the noise as large as it should be. */
static void assert_mean(const float *before, const float *after, const double *mean, double deviation)
{
    double square = 0;
    for (int i = 0; i < VALUES; i++) {
        double off = (double)before[i] - (double)after[i] - mean[i];
        if (!(fabs(off) < 7 * deviation + 1e-5))
            fail_msg("value %d is off by %g, %.1f deviations", i, off, off / deviation);
        square += off * off;
    }
    double measured = sqrt(square / VALUES) / deviation; /* 77 values: within 40 % but once in 10^6 runs */
    if (!(measured > 0.6 && measured < 1.4))
        fail_msg("the noise is %.2f times as large as it should be", measured);
}

static void the_mean_of_clipped_gradients(void **state)
{
    (void)state;
    const double clip = 1.5, noise = 0.01, expected = 9, deviation = noise * clip / expected;
    double mean[VALUES];
    float before[VALUES], after[VALUES];
    struct net n;
    struct neb_step_info info;
    struct neb_private_step p = {.clip = clip, .samples = expected};
    int longer = expected_mean(clip, expected, mean);
    assert_true(longer > 2 && longer < SAMPLES - 2);
    open_private(&n, &p, noise);
    values(&n, before);
    assert_ok(neb__private_step(n.opt, n.tape, &p, 1, 0, &info));
    values(&n, after);
    assert_true(p.drawn == SAMPLES && p.clipped >= longer && !info.skipped && info.step == 1);
    assert_mean(before, after, mean, deviation);

    /* no sample at all: noise alone, and still a step */
    n.given = SAMPLES;
    assert_ok(neb__step_key_new(&p.key));
    assert_ok(neb__private_step(n.opt, n.tape, &p, 1, 0, &info));
    values(&n, before);
    assert_true(p.drawn == 0 && !info.skipped);
    assert_memory_not_equal(before, after, sizeof before);
    for (int i = 0; i < VALUES; i++) assert_true(fabs((double)before[i] - (double)after[i]) < 8 * deviation);
    close_private(&n, &p);
}

/* The slab has gaps between its parameters, and noise falls into them, too. It is no part of the next step's gradients: they would be
 * clipped for it, and a step would depend on what this process did before. */
static void noise_of_one_step_is_not_in_the_next(void **state)
{
    (void)state;
    const double clip = 1.5, expected = 9;
    double mean[VALUES];
    float before[VALUES], after[VALUES];
    struct net n;
    struct neb_step_info info;
    struct neb_private_step p = {.clip = clip, .samples = expected};
    expected_mean(clip, expected, mean);
    open_private(&n, &p, 1000); /* a step of noise, by which the parameters do not move */
    assert_true(n.ps->trainable_values > VALUES);
    n.given = SAMPLES;
    assert_ok(neb__private_step(n.opt, n.tape, &p, 0, 0, &info));
    neb__noise_free(p.noise);
    assert_ok(neb__noise_create(0.01 * NEB_PRIVACY_UNITS, &p.noise));
    n.given = 0;
    values(&n, before);
    assert_ok(neb__private_step(n.opt, n.tape, &p, 1, 0, &info));
    values(&n, after);
    assert_mean(before, after, mean, 0.01 * clip / expected);
    close_private(&n, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_mean_of_clipped_gradients),
                                       cmocka_unit_test(noise_of_one_step_is_not_in_the_next)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
