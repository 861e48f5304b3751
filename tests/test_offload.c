/* test_offload.c: an optimizer whose state is on the host has the bits of one whose state is on the device, whether copies are
 * made on the spot or beside the computing; it needs less of the device's memory; it saves and loads its state. */
#include "check.h"
#include "late_copies.h"
#include "optim/optimizer.h"
#include "tensor/masters.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 6, WIDE = 96, LAYERS = 5, STEPS = 4, BUCKET = 4096, VALUES = 64 << 10 };

struct net {
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
    neb_param *w[LAYERS], *gamma[LAYERS], *beta[LAYERS];
    neb_buffer *x, *y;
    int sample;
};

static void model(neb_tape *t, void *arg)
{
    struct net *n = arg;
    neb_tensor *x = neb_op_convert(t, neb_input(t, n->x, NEB_F32, 2, (int64_t[]){ROWS, WIDE}));
    neb_tensor *y = neb_op_convert(t, neb_input(t, n->y, NEB_F32, 2, (int64_t[]){ROWS, WIDE}));
    struct neb_loss_spec loss = {0};
    for (int i = 0; i < LAYERS; i++) {
        x = neb_op_norm(t, x, n->gamma[i], n->beta[i], NEB_NORM_LAYER, 1e-5f);
        x = neb_op_linear(t, x, n->w[i], NULL, NEB_ACT_GELU);
    }
    neb_loss_mse(t, x, y, &loss);
}

static neb_status load(void *arg)
{
    struct net *n = arg;
    float x[ROWS * WIDE], y[ROWS * WIDE];
    for (int i = 0; i < ROWS * WIDE; i++) {
        x[i] = (float)((i * 7 + n->sample * 13) % 31) / 31 - 0.5f;
        y[i] = (float)((i * 5 + n->sample) % 17) / 17;
    }
    NEB_TRY(neb_buffer_upload(n->x, x, sizeof x));
    return neb_buffer_upload(n->y, y, sizeof y);
}

static neb_param *add(struct net *n, const char *what, int i, int ndim, neb_init init)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%d.%s", i, what);
    struct neb_param_spec s = {
        .name = name, .ndim = ndim, .shape = {WIDE, WIDE}, .init = init, .scale = 0.1f};
    return neb_params_add(n->ps, &s);
}

static void open_net(struct net *n, neb_device *d, struct neb_optimizer_config c, bool offload)
{
    *n = (struct net){.dev = d};
    assert_ok(neb_params_create(&n->ps));
    for (int i = 0; i < LAYERS; i++) {
        n->w[i] = add(n, "weight", i, 2, NEB_INIT_NORMAL);
        n->gamma[i] = add(n, "gamma", i, 1, NEB_INIT_ONE);
        n->beta[i] = add(n, "beta", i, 1, NEB_INIT_ZERO);
    }
    struct neb_state_place l = {.offload = offload, .bucket = BUCKET};
    if (offload) assert_ok(neb__params_offload(n->ps));
    assert_ok(neb_params_ready(n->ps, d, 3));
    assert_ok(neb_tape_create(d, n->ps, &n->tape));
    assert_ok(neb__optimizer_create(d, n->ps, &c, &l, &n->opt));
    assert_ok(neb_buffer_create(d, ROWS * WIDE * sizeof(float), &n->x));
    assert_ok(neb_buffer_create(d, ROWS * WIDE * sizeof(float), &n->y));
}

static void close_net(struct net *n)
{
    neb_buffer_destroy(n->x);
    neb_buffer_destroy(n->y);
    neb_optimizer_destroy(n->opt);
    neb_tape_destroy(n->tape);
    neb_params_destroy(n->ps);
}

static void steps(struct net *n, int count)
{
    struct neb_step_info info;
    for (int i = 0; i < count; i++) {
        struct neb_micro m[2] = {{load, model, n, 1, ROWS}, {load, model, n, 1, ROWS}};
        n->sample++;
        assert_ok(neb_train_step(n->opt, n->tape, m, 2, 1e-2f, 1, NULL, &info));
    }
}

struct state {
    float m[VALUES], v[VALUES], p[VALUES];
};

static struct state *state_of(struct net *n)
{
    struct state *s = calloc(1, sizeof *s);
    assert_non_null(s);
    assert_ok(neb_optimizer_save(n->opt, s->m, s->v));
    for (int i = 0; i < neb_params_count(n->ps); i++) {
        neb_param *p = neb_params_at(n->ps, i);
        assert_true(neb_param_offset(p) + neb_param_values(p) <= VALUES);
        assert_ok(neb_param_read(p, s->p + neb_param_offset(p)));
    }
    return s;
}

static struct state *trained(neb_device *d, struct neb_optimizer_config c, bool offload)
{
    struct net n;
    open_net(&n, d, c, offload);
    steps(&n, STEPS);
    struct state *s = state_of(&n);
    close_net(&n);
    return s;
}

static void same_bits(neb_device *plain, neb_device *d, struct neb_optimizer_config c)
{
    struct state *a = trained(plain, c, false), *b = trained(d, c, true);
    assert_memory_equal(a, b, sizeof *a);
    free(a);
    free(b);
}

static void has_equal_bits(void **state)
{
    (void)state;
    struct neb_optimizer_config adam = neb_optimizer_defaults(), sgd = adam, plain = adam;
    adam.max_norm = 0.01f;
    sgd.kind = plain.kind = NEB_SGD;
    plain.beta1 = 0;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct late l;
        late_open_as(&l, bf16 ? NEB_BF16 : NEB_F32);
        same_bits(l.cpu[0], l.cpu[0], adam); /* copies on the spot */
        same_bits(l.cpu[0], &l.device[0], adam);
        assert_true(late_copies() > 0);
        same_bits(l.cpu[0], &l.device[0], sgd);
        same_bits(l.cpu[0], &l.device[0], plain);
        late_close(&l);
    }
}

static int64_t used(neb_device *d)
{
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    return info.memory_used;
}

/* In BF16 a value takes 18 bytes of the device, and 6 with moments and masters on the host. */
static void spares_memory(void **state)
{
    (void)state;
    struct late l;
    struct net n;
    late_open_as(&l, NEB_BF16);
    int64_t before = used(l.cpu[0]), whole, part, values;
    open_net(&n, &l.device[0], neb_optimizer_defaults(), false);
    whole = used(l.cpu[0]) - before;
    close_net(&n);
    open_net(&n, &l.device[0], neb_optimizer_defaults(), true);
    part = used(l.cpu[0]) - before;
    neb_params_slab(n.ps, &values);
    assert_true(neb__masters_on_host(n.ps));
    int64_t ring = 4 * 3 * BUCKET * 4, stage = 4 << 20, vectors = 2 * LAYERS * 128 * 4, rest = 64 << 10;
    assert_in_range(whole, 18 * values, 18 * values + rest);
    assert_in_range(part, 6 * values, 6 * values + ring + stage + vectors + rest);
    close_net(&n);
    late_close(&l);
}

/* Half of the steps, saved and loaded elsewhere, then the other half. */
static void goes_on(void **state)
{
    (void)state;
    struct late l;
    struct net a, b;
    late_open_as(&l, NEB_BF16);
    struct state *want = trained(l.cpu[0], neb_optimizer_defaults(), false);
    open_net(&a, &l.device[0], neb_optimizer_defaults(), true);
    steps(&a, STEPS / 2);
    struct state *half = state_of(&a);
    open_net(&b, &l.device[1], neb_optimizer_defaults(), true);
    steps(&b, 1); /* its own state is overwritten */
    assert_ok(neb_optimizer_load(b.opt, STEPS / 2, half->m, half->v));
    for (int i = 0; i < neb_params_count(b.ps); i++) {
        neb_param *p = neb_params_at(b.ps, i);
        assert_ok(neb_param_write(p, half->p + neb_param_offset(p)));
    }
    b.sample = a.sample;
    steps(&b, STEPS - STEPS / 2);
    struct state *got = state_of(&b);
    assert_memory_equal(want, got, sizeof *want);
    free(want);
    free(half);
    free(got);
    close_net(&a);
    close_net(&b);
    late_close(&l);
}

/* A step without loss weight makes no update. What it has brought to the device is old when the parameters change. */
static struct state *changed_after_empty(neb_device *d, bool offload)
{
    struct net n;
    struct neb_step_info info;
    float values[WIDE * WIDE];
    open_net(&n, d, neb_optimizer_defaults(), offload);
    steps(&n, 1);
    struct neb_micro empty = {load, model, &n, 1, 0};
    assert_ok(neb_train_step(n.opt, n.tape, &empty, 1, 1e-2f, 1, NULL, &info));
    for (int i = 0; i < neb_params_count(n.ps); i++) {
        neb_param *p = neb_params_at(n.ps, i);
        assert_ok(neb_param_read(p, values));
        for (int64_t k = 0; k < neb_param_values(p); k++) values[k] += 0.25f;
        assert_ok(neb_param_write(p, values));
    }
    steps(&n, 1);
    struct state *s = state_of(&n);
    close_net(&n);
    return s;
}

static void forgets_after_empty(void **state)
{
    (void)state;
    struct late l;
    late_open_as(&l, NEB_BF16);
    neb_device *list[] = {l.cpu[0], &l.device[0]}; /* copies as early as they may be, and as late */
    struct state *want = changed_after_empty(l.cpu[0], false);
    for (int i = 0; i < 2; i++) {
        struct state *got = changed_after_empty(list[i], true);
        assert_memory_equal(want, got, sizeof *want);
        free(got);
    }
    free(want);
    late_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(has_equal_bits), cmocka_unit_test(spares_memory),
                                       cmocka_unit_test(goes_on), cmocka_unit_test(forgets_after_empty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
