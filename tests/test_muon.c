/* test_muon.c: Muon against the public reference on recorded steps, in fp32 and in bf16, on every device that is there; matrices of one parameter that are
 * taken apart; gradients of zero and steps that are not finite; which parameters it takes. test_team and test_partition have
 * its layouts. */
#include "check.h"
#include "rig.h"
#include "base/mem.h"
#include "base/rng.h"
#include "optim/muon.h"
#include "optim/orthogonal.h"
#include "tensor/matrices.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 1 << 12 };

struct bench {
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
};

static void open_bench_on(const char *device, struct bench *b, const struct neb_param_spec *specs, int n,
                          float decay)
{
    struct neb_optimizer_config c = neb_optimizer_defaults();
    c.kind = NEB_MUON;
    c.decay = decay;
    assert_ok(neb_device_open(device, NULL, &b->dev));
    assert_ok(neb_params_create(&b->ps));
    for (int i = 0; i < n; i++) assert_non_null(neb_params_add(b->ps, &specs[i]));
    assert_ok(neb_params_ready(b->ps, b->dev, 3));
    assert_ok(neb_tape_create(b->dev, b->ps, &b->tape));
    assert_ok(neb_optimizer_create(b->dev, b->ps, &c, &b->opt));
}

static void open_bench(struct bench *b, const struct neb_param_spec *specs, int n, float decay)
{
    open_bench_on("cpu", b, specs, n, decay);
}

static void close_bench(struct bench *b)
{
    neb_optimizer_destroy(b->opt);
    neb_tape_destroy(b->tape);
    neb_params_destroy(b->ps);
    neb_device_close(b->dev);
}

static neb_param *at(const struct bench *b, int i)
{
    return neb_params_at(b->ps, i);
}

/* A step with gradients that are already there. */
static void step(struct bench *b, float lr, float clip, bool finite)
{
    struct neb_ctl c = {.step = 1, .lr = lr, .loss_scale = 1, .bias1 = 1, .bias2 = 1};
    assert_ok(neb_tape_begin_step(b->tape, &c));
    const int32_t other = !finite;
    const struct neb_device_ops *ops = b->dev->ops;
    char *ctl = (char *)b->tape->ctl;
    assert_int_equal(sizeof other, sizeof b->tape->ctl->nonfinite);
    assert_ok(ops->upload(b->dev->ctx, ctl + offsetof(struct neb_ctl, clip), &clip, sizeof clip));
    assert_ok(ops->upload(b->dev->ctx, ctl + offsetof(struct neb_ctl, nonfinite), &other, sizeof other));
    assert_ok(neb__muon_update(b->opt, b->tape));
}

static struct neb_param_spec matrix(const char *name, int64_t rows, int64_t cols)
{
    return (struct neb_param_spec){.name = name,
                                   .ndim = 2,
                                   .shape = {rows, cols},
                                   .init = NEB_INIT_NORMAL,
                                   .scale = 0.3f,
                                   .hidden = true};
}

/* ---- the public reference -------------------------------------------------------------------------------------- */

static void read_values(FILE *f, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) assert_int_equal(fscanf(f, "%f", &to[i]), 1);
}

static void follow_steps(FILE *f, const char *device)
{
    static float before[VALUES], after[VALUES], now[VALUES], grad[VALUES];
    long rows, cols;
    int steps;
    float lr, decay;
    assert_int_equal(fscanf(f, "%ld %ld %f %f %d", &rows, &cols, &lr, &decay, &steps), 5);
    const int64_t n = rows * cols;
    assert_true(n > 0 && n <= VALUES);
    struct neb_param_spec spec = matrix("layer.weight", rows, cols);
    struct bench b;
    open_bench_on(device, &b, &spec, 1, decay);
    read_values(f, before, n);
    assert_ok(neb_param_write(at(&b, 0), before));
    for (int i = 0; i < steps; i++) {
        read_values(f, grad, n);
        assert_ok(b.dev->ops->upload(b.dev->ctx, b.ps->grad, grad, (size_t)n * sizeof *grad));
        step(&b, lr, 1, true);
    }
    read_values(f, after, n);
    assert_ok(neb_param_read(at(&b, 0), now));
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(now[i] - after[i]) <= 1e-5f))
            fail_msg("%s, %ld x %ld, value %d: %.9g, reference %.9g", device, rows, cols, (int)i,
                     (double)now[i], (double)after[i]);
    close_bench(&b);
}

/* The extreme singular values, as roots of the eigenvalues of x x^T or x^T x (Jacobi's rotations). */
static void singular_values(const float *x, int64_t rows, int64_t cols, double *least, double *most)
{
    enum { SIDE = 64 };
    static double a[SIDE][SIDE];
    const bool tall = rows > cols;
    const int n = (int)(tall ? cols : rows);
    assert_true(n <= SIDE);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            a[i][j] = 0;
            for (int64_t k = 0; k < (tall ? rows : cols); k++)
                a[i][j] += tall ? (double)x[k * cols + i] * (double)x[k * cols + j]
                                : (double)x[i * cols + k] * (double)x[j * cols + k];
        }
    for (int sweep = 0; sweep < 30; sweep++)
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                if (fabs(a[p][q]) < 1e-14) continue;
                double angle = 0.5 * atan2(2 * a[p][q], a[p][p] - a[q][q]), c = cos(angle), s = sin(angle);
                for (int k = 0; k < n; k++) {
                    double u = a[k][p], v = a[k][q];
                    a[k][p] = c * u + s * v, a[k][q] = c * v - s * u;
                }
                for (int k = 0; k < n; k++) {
                    double u = a[p][k], v = a[q][k];
                    a[p][k] = c * u + s * v, a[q][k] = c * v - s * u;
                }
            }
    *least = INFINITY, *most = 0;
    for (int i = 0; i < n; i++) {
        *least = fmin(*least, sqrt(fabs(a[i][i])));
        *most = fmax(*most, sqrt(fabs(a[i][i])));
    }
}

static void check_values(FILE *f, const char *device)
{
    static float x[VALUES], out[VALUES];
    long rows, cols;
    double low, high, least, most;
    assert_int_equal(fscanf(f, "%ld %ld %lf %lf", &rows, &cols, &low, &high), 4);
    assert_true(rows * cols > 0 && rows * cols <= VALUES);
    read_values(f, x, rows * cols);
    const int64_t shape[1][2] = {{rows, cols}};
    const size_t bytes = (size_t)(rows * cols) * sizeof *x;
    neb_device *d;
    void *from, *to;
    assert_ok(neb_device_open(device, NULL, &d));
    assert_ok(d->ops->alloc(d->ctx, bytes, &from));
    assert_ok(d->ops->alloc(d->ctx, bytes, &to));
    assert_ok(d->ops->upload(d->ctx, from, x, bytes));
    for (int type = NEB_F32; type <= NEB_BF16; type++) {
        struct neb_orthogonal o;
        assert_ok(neb__orthogonal_create(d, (neb_dtype)type, shape, 1, &o));
        assert_ok(neb__orthogonal_run(&o, 0, from, 1, to));
        assert_ok(d->ops->download(d->ctx, out, to, bytes));
        neb__orthogonal_free(&o);
        singular_values(out, rows, cols, &least, &most);
        if (least < low - 0.03 || most > high + 0.03)
            fail_msg("%ld x %ld, type %d: singular values from %g to %g, reference %g to %g", rows, cols,
                     type, least, most, low, high);
    }
    d->ops->free(d->ctx, from);
    d->ops->free(d->ctx, to);
    neb_device_close(d);
}

static bool is_there(const char *device)
{
    neb_device *d = NULL;
    check_log_quiet();
    neb_status status = neb_device_open(device, NULL, &d);
    check_log_restore();
    if (status == NEB_OK) neb_device_close(d);
    return status == NEB_OK;
}

static void follows_the_public_reference(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "opencl", "cuda"};
    for (int i = 0; i < 3; i++) {
        char word[16];
        int steps = 0, values = 0;
        if (i && !is_there(devices[i])) continue;
        print_message("on %s\n", devices[i]);
        FILE *f = fopen(NEB_TEST_DATA "/muon.txt", "r");
        assert_non_null(f);
        while (fscanf(f, "%15s", word) == 1) {
            const bool moves = !strcmp(word, "steps");
            if (moves)
                follow_steps(f, devices[i]), steps++;
            else
                check_values(f, devices[i]), values++;
        }
        fclose(f);
        assert_true(steps == 4 && values == 2);
    }
}

/* ---- matrices -------------------------------------------------------------------------------------------------- */

/* q, k, v as one parameter move like three parameters. */
static void takes_matrices_apart(void **state)
{
    (void)state;
    enum { Q = 12, K = 4, COLS = 9, ROWS = Q + 2 * K };
    struct neb_param_spec one = matrix("qkv.weight", ROWS, COLS);
    one.matrices = 3;
    memcpy(one.matrix_rows, (int64_t[]){Q, K, K}, sizeof one.matrix_rows);
    struct neb_param_spec three[] = {matrix("q.weight", Q, COLS), matrix("k.weight", K, COLS),
                                     matrix("v.weight", K, COLS)};
    struct bench a, b;
    float values[ROWS * COLS], result[2][ROWS * COLS];
    struct neb_rng r = {4};
    open_bench(&a, &one, 1, 0.1f);
    open_bench(&b, three, 3, 0.1f);
    assert_ok(neb_param_read(at(&a, 0), values));
    int64_t from = 0;
    for (int i = 0; i < 3; from += neb_param_values(at(&b, i++)))
        assert_ok(neb_param_write(at(&b, i), values + from));
    for (int s = 0; s < 3; s++) {
        from = 0;
        for (int i = 0; i < ROWS * COLS; i++) a.ps->grad[i] = (float)neb__rng_normal(&r);
        for (int i = 0; i < 3; from += neb_param_values(at(&b, i++)))
            memcpy(b.ps->grad + at(&b, i)->offset, a.ps->grad + from,
                   (size_t)neb_param_values(at(&b, i)) * sizeof(float));
        step(&a, 0.1f, 0.5f, true);
        step(&b, 0.1f, 0.5f, true);
    }
    assert_ok(neb_param_read(at(&a, 0), result[0]));
    from = 0;
    for (int i = 0; i < 3; from += neb_param_values(at(&b, i++)))
        assert_ok(neb_param_read(at(&b, i), result[1] + from));
    assert_memory_equal(result[0], result[1], sizeof result[0]);
    assert_memory_not_equal(result[0], values, sizeof values);
    close_bench(&a);
    close_bench(&b);
}

static void a_gradient_of_zero_changes_nothing(void **state)
{
    (void)state;
    struct neb_param_spec spec = matrix("layer.weight", 6, 4);
    struct bench b;
    float before[24], after[24], m[64], zeros[64] = {0};
    open_bench(&b, &spec, 1, 0);
    assert_ok(neb_param_read(at(&b, 0), before));
    step(&b, 0.1f, 1, true);
    assert_ok(neb_param_read(at(&b, 0), after));
    assert_ok(neb_optimizer_save(b.opt, m, NULL));
    assert_memory_equal(before, after, sizeof before);
    assert_memory_equal(m, zeros, sizeof m);
    close_bench(&b);
}

static void a_step_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    struct neb_param_spec spec = matrix("layer.weight", 6, 4);
    struct bench b;
    float before[24], after[24], m[2][64];
    open_bench(&b, &spec, 1, 0.1f);
    for (int i = 0; i < 24; i++) b.ps->grad[i] = (float)(i % 5) - 1;
    step(&b, 0.1f, 1, true);
    assert_ok(neb_param_read(at(&b, 0), before));
    assert_ok(neb_optimizer_save(b.opt, m[0], NULL));
    b.ps->grad[3] = NAN;
    step(&b, 0.1f, 0, false);
    assert_ok(neb_param_read(at(&b, 0), after));
    assert_ok(neb_optimizer_save(b.opt, m[1], NULL));
    assert_memory_equal(before, after, sizeof before);
    assert_memory_equal(m[0], m[1], sizeof m[0]);
    close_bench(&b);
}

/* ---- which parameters ------------------------------------------------------------------------------------------ */

static int taken(const struct rig *r, const char *part)
{
    int n = 0;
    for (int i = 0; i < r->params->count; i++)
        n += r->params->list[i]->taken_as_matrix && strstr(r->params->list[i]->name, part);
    return n;
}

#define SIZES "vocab=53 hidden=32 layers=2 heads=4 ffn=64 max_positions=16 "

static void takes_the_weights_between_hidden_states(void **state)
{
    (void)state;
    struct rig r;
    struct neb_matrix m[NEB_PARAM_PARTS];
    rig_optimizer = NEB_MUON;
    assert_ok(rig_open(&r, "llama", SIZES "kv_heads=2", NULL, 1));
    assert_int_equal(taken(&r, ""), 2 * 4); /* qkv, out, in, out */
    assert_int_equal(taken(&r, "embed") + taken(&r, "head") + taken(&r, "norm"), 0);
    for (int i = 0; i < r.params->count; i++) {
        const neb_param *p = r.params->list[i];
        if (strstr(p->name, "qkv.weight")) {
            assert_int_equal(neb__param_matrices(p, m), 3);
            assert_true(m[0].rows == 32 && m[1].rows == 16 && m[2].rows == 16 &&
                        m[2].at == p->offset + 48 * 32);
        }
        if (strstr(p->name, "ffn.in.weight")) assert_int_equal(neb__param_matrices(p, m), 2);
    }
    float loss;
    struct rig_batch batch;
    rig_batch_make(&batch, r.model, (const int[]){9, 4, 12, 0}, NULL, 1);
    assert_ok(neb__model_input_load(r.feed, &batch.data));
    assert_ok(rig_step(&r, 1e-2f, 3, &loss));
    const float first = loss;
    for (int i = 0; i < 30; i++) assert_ok(rig_step(&r, 1e-2f, 3, &loss));
    assert_true(loss < 0.5f * first); /* it learns one batch by heart */
    rig_batch_free(&batch);
    rig_close(&r);
    assert_ok(rig_open(&r, "gpt2", SIZES, "method=lora,adapter,prefix lora_on=*", 1));
    assert_int_equal(taken(&r, ""), 0);
    rig_close(&r);
    rig_optimizer = NEB_ADAMW;
}

static void takes_others_when_asked(void **state)
{
    (void)state;
    struct rig r;
    assert_ok(rig_open(&r, "gpt2", SIZES, "method=lora lora_on=*", 1));
    check_log_quiet();
    assert_status(neb__params_take_matrices(r.params, "*.nothing"), NEB_ERR_CONFIG);
    check_log_restore();
    assert_non_null(strstr(neb_last_error(), "'*.nothing' matches no trainable matrix"));
    assert_ok(neb__params_take_matrices(r.params, "*.lora.a , *.qkv.lora.b"));
    assert_true(taken(&r, "lora.a") > 0 && taken(&r, "lora.b") == 2 && !taken(&r, "bias"));
    rig_close(&r);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    struct neb_param_spec spec = matrix("layer.weight", 6, 4);
    struct neb_optimizer_config c = neb_optimizer_defaults();
    neb_device *d;
    neb_params *ps;
    neb_optimizer *o;
    check_log_quiet();
    assert_ok(neb_device_open("cpu", NULL, &d));
    assert_ok(neb_params_create(&ps));
    spec.matrices = 2, spec.matrix_rows[0] = 5, spec.matrix_rows[1] = 2; /* 7 of 6 rows */
    assert_null(neb_params_add(ps, &spec));
    neb_params_destroy(ps);
    spec.matrix_rows[0] = 4;
    assert_ok(neb_params_create(&ps));
    assert_non_null(neb_params_add(ps, &spec));
    assert_ok(neb_params_ready(ps, d, 1));
    c.kind = NEB_MUON;
    c.muon_momentum = 1;
    assert_status(neb_optimizer_create(d, ps, &c, &o), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "muon_momentum is 1"));
    c.muon_momentum = 0.9f;
    struct neb_state_place host = {.offload = true};
    assert_status(neb__optimizer_create(d, ps, &c, &host, &o), NEB_ERR_UNSUPPORTED);
    check_log_restore();
    neb_params_destroy(ps);
    neb_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(follows_the_public_reference),
                                       cmocka_unit_test(takes_matrices_apart),
                                       cmocka_unit_test(a_gradient_of_zero_changes_nothing),
                                       cmocka_unit_test(a_step_that_is_not_finite_changes_nothing),
                                       cmocka_unit_test(takes_the_weights_between_hidden_states),
                                       cmocka_unit_test(takes_others_when_asked),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
