/* test_ops.c: every op of the engine against finite differences, and every fused slot against its composition
 * from primitives, on shapes that include 1 and non-multiples of the vector width.
 *
 * The directional derivative of a case's loss along a random direction must equal gradient · direction. */
#include "check.h"
#include "op_cases.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double slope(struct fixture *f, const float *x, const float *dir, int64_t n, double h)
{
    float *moved = neb__calloc((size_t)n, sizeof *moved);
    double loss[2];
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++) moved[i] = x[i] + (side ? 1 : -1) * (float)h * dir[i];
        op_write(f, moved);
        loss[side] = op_loss(f, false);
    }
    neb__free(moved);
    return (loss[1] - loss[0]) / (2 * h);
}

static void check_gradient(struct fixture *f)
{
    op_loss(f, true);
    int64_t n;
    float *g = op_read(f, true, &n), *x = op_read(f, false, &n);
    float *dir = neb__calloc((size_t)n, sizeof *dir);
    struct neb_rng r = {3};
    for (int round = 0; round < 4; round++) {
        double dot = 0, gnorm = 0, dnorm = 0;
        for (int64_t i = 0; i < n; i++) {
            /* half random, half along the gradient: the slope is then large against rounding */
            dir[i] = (float)neb__rng_normal(&r) * 0.3f + (round ? g[i] : 0);
            dot += (double)dir[i] * (double)g[i];
            gnorm += (double)g[i] * (double)g[i];
            dnorm += (double)dir[i] * (double)dir[i];
        }
        for (int64_t i = 0; i < n; i++) dir[i] /= (float)sqrt(dnorm);
        dot /= sqrt(dnorm);
        double s1 = slope(f, x, dir, n, 2e-2), s2 = slope(f, x, dir, n, 1e-2);
        double s = (4 * s2 - s1) / 3; /* Richardson: the h^2 term cancels */
        double scale = sqrt(gnorm) + 1e-3;
        if (!(fabs(s - dot) <= 4e-3 * scale))
            fail_msg("%s (%d rows, d %d): slope %g, gradient says %g (norm %g)", f->kase->name,
                     (int)f->s.rows, (int)f->s.d, s, dot, sqrt(gnorm));
    }
    op_write(f, x);
    neb__free(g);
    neb__free(x);
    neb__free(dir);
}

static void gradients_match_finite_differences(void **state)
{
    (void)state;
    for (int k = 0; k < OP_CASES; k++)
        for (size_t s = 0; s < OP_SHAPES; s++) {
            struct fixture f;
            op_open(&f, &op_cases[k], op_shapes[s]);
            check_gradient(&f);
            op_close(&f);
        }
}

static double difference(const float *a, const float *b, int64_t n)
{
    double top = 0, bottom = 0;
    for (int64_t i = 0; i < n; i++) {
        top += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        bottom += (double)b[i] * (double)b[i];
    }
    return sqrt(top) / (sqrt(bottom) + 1e-6);
}

static void fused_slots_equal_their_references(void **state)
{
    (void)state;
    for (int k = 0; k < OP_CASES; k++) {
        struct fixture f;
        op_open(&f, &op_cases[k], op_shapes[k % 3 + 1]);
        double fused = op_loss(&f, true);
        int64_t n;
        float *g = op_read(&f, true, &n);
        neb__tape_force_reference(f.tape, true);
        double reference = op_loss(&f, true);
        float *h = op_read(&f, true, &n);
        if (fabs(fused - reference) > 1e-5 * (1 + fabs(reference)) || difference(g, h, n) > 2e-5)
            fail_msg("%s: loss %.9g, reference %.9g; gradients differ by %g", f.kase->name, fused, reference,
                     difference(g, h, n));
        neb__free(g);
        neb__free(h);
        op_close(&f);
    }
}

static void a_poisoned_arena_changes_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < OP_CASES; k++) {
        struct fixture f;
        op_open(&f, &op_cases[k], op_shapes[3]);
        double clean = op_loss(&f, true);
        int64_t n;
        float *g = op_read(&f, true, &n);
        neb_tape_poison(f.tape, true);
        for (int round = 0; round < 2; round++) {
            double loss = op_loss(&f, true);
            float *h = op_read(&f, true, &n);
            if (memcmp(&loss, &clean, sizeof loss) || memcmp(g, h, (size_t)n * sizeof *g))
                fail_msg("%s: another result in a poisoned arena (loss %g, was %g)", f.kase->name, loss,
                         clean);
            neb__free(h);
        }
        neb__free(g);
        op_close(&f);
    }
}

static void recomputation_gives_the_same_bits(void **state)
{
    (void)state;
    float *g[2];
    int64_t n = 0;
    double loss[2];
    int at = 0;
    for (int k = 0; k < OP_CASES; k++) {
        if (!strstr(op_cases[k].name, "recompute")) continue;
        struct fixture f;
        struct kase same = op_cases[k];
        same.name = "blocks"; /* scopes name the dropout masks */
        op_open(&f, &same, op_shapes[2]);
        loss[at] = op_loss(&f, true);
        g[at++] = op_read(&f, true, &n);
        op_close(&f);
    }
    assert_int_equal(at, 2);
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
    assert_memory_equal(g[0], g[1], (size_t)n * sizeof **g);
    neb__free(g[0]);
    neb__free(g[1]);
}

static void later_steps_allocate_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < OP_CASES; k++) {
        struct fixture f;
        op_open(&f, &op_cases[k], op_shapes[2]);
        op_loss(&f, true);
        neb__mem_fail_at(0);
        op_loss(&f, true);
        if (neb__mem_count())
            fail_msg("%s: %d allocations in the second step", f.kase->name, (int)neb__mem_count());
        op_close(&f);
    }
}

static void m_stopped(neb_tape *t, struct fixture *f)
{
    neb_tensor *x = neb_weight(t, f->p[0]);
    op_finish(t, f, neb_op_add(t, neb_op_stop_gradient(t, neb_op_scale(t, x, 3)), x));
}

/* The gradient is that of the other path alone:
 * at equal loss, a third of what the plain sum 3x' + x would give. */
static void gradients_stop_where_told(void **state)
{
    (void)state;
    const struct kase stopped = {"stopped", op_case("dropout")->params, m_stopped};
    struct fixture f;
    op_open(&f, &stopped, op_shapes[2]);
    op_loss(&f, true);
    int64_t n;
    float *g = op_read(&f, true, &n), *x = op_read(&f, false, &n), *dir = neb__calloc((size_t)n, sizeof *dir);
    double norm = 0, dot = 0;
    for (int64_t i = 0; i < n; i++) norm += (double)g[i] * (double)g[i];
    for (int64_t i = 0; i < n; i++) dir[i] = g[i] / (float)sqrt(norm), dot += (double)dir[i] * (double)g[i];
    double s = slope(&f, x, dir, n, 1e-2); /* moves both paths: four times the gradient */
    assert_true(fabs(s / dot - 4) < 0.02);
    neb__free(g);
    neb__free(x);
    neb__free(dir);
    op_close(&f);
}

static void m_wrong_shape(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_linear(t, neb_weight(t, f->p[0]), f->p[1], f->p[0], NEB_ACT_NONE));
}

static void m_wrong_dtype(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_linear(t, op_ints(t, f->ids, f->s.rows), f->p[1], NULL, NEB_ACT_NONE));
}

static void m_unknown_dtype(neb_tape *t, struct fixture *f)
{
    neb_input(t, f->ids, (neb_dtype)17, 1, &f->s.rows);
}

static void m_unknown_act(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_act(t, neb_weight(t, f->p[0]), (neb_act)99));
}

static void m_no_pop(neb_tape *t, struct fixture *f)
{
    neb_push(t, "left open");
    op_finish(t, f, neb_weight(t, f->p[0]));
}

static void m_too_large(neb_tape *t, struct fixture *f)
{
    neb_input(t, f->ids, NEB_I32, 2, (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40});
}

static void m_dropout_without_rows(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_dropout(t, neb_weight(t, f->p[0]), 0.5f));
}

static void m_no_param(neb_tape *t, struct fixture *f)
{
    neb_param *none = neb_params_find(f->ps, "p17");
    op_finish(t, f, neb_op_linear(t, neb_weight(t, f->p[0]), none, NULL, NEB_ACT_NONE));
}

static void m_no_residual(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_add(t, neb_weight(t, f->p[0]), NULL));
}

static void m_nothing_out(neb_tape *t, struct fixture *f)
{
    neb_output(t, NULL, f->logits, NEB_F32);
}

static void m_one_row_twice(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_gather(t, neb_weight(t, f->p[0]), op_ints(t, f->ids2, 2)));
}

static void m_beyond_the_rows(neb_tape *t, struct fixture *f)
{
    struct neb_seqs seqs = {.starts = op_ints(t, f->starts_k, 3), .count = 2, .max_len = 19};
    op_finish(t, f, neb_op_mean_pool(t, neb_weight(t, f->p[0]), &seqs));
}

/* Wrong models get a status and a message with the scope, the op and the numbers; the tape stays usable. */
static void wrong_models_are_refused(void **state)
{
    (void)state;
    static const struct {
        void (*model)(neb_tape *, struct fixture *);
        neb_status want;
        const char *says;
    } wrong[] = {
        {m_wrong_shape, NEB_ERR_SHAPE, "wrong: linear: bias 'p0' is (19, 48)"},
        {m_wrong_dtype, NEB_ERR_DTYPE, "x is i32; it must be f32"},
        {m_unknown_dtype, NEB_ERR_DTYPE, "dtype 17"},
        {m_unknown_act, NEB_ERR_INVALID, "unknown activation 99"},
        {m_no_pop, NEB_ERR_STATE, "neb_push() without a matching neb_pop()"},
        {m_too_large, NEB_ERR_SHAPE, "dimension 0"},
        {m_dropout_without_rows, NEB_ERR_STATE, "neb_set_rows"},
        {m_no_param, NEB_ERR_INVALID, "linear: weight is NULL"},
        {m_no_residual, NEB_ERR_INVALID, "residual is NULL"},
        {m_nothing_out, NEB_ERR_INVALID, "x is NULL"},
        {m_one_row_twice, NEB_ERR_INVALID, "two rows go to row 0"},
        {m_beyond_the_rows, NEB_ERR_SHAPE, "sequence 1 is [4, 1000) of 19 rows"},
    };
    struct kase k = {"wrong", op_case("linear")->params, op_case("linear")->model};
    struct fixture f;
    op_open(&f, &k, op_shapes[2]);
    double right = op_loss(&f, true);
    assert_ok(neb_buffer_upload(f.ids2, (int32_t[]){0, 0}, 8));
    assert_ok(neb_buffer_upload(f.starts_k, (int32_t[]){0, 4, 1000}, 12));
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        k.model = wrong[i].model;
        struct neb_run run = {.fn = op_model, .arg = &f, .key = 100 + i, .grad = true, .train = true};
        assert_status(neb_tape_run(f.tape, &run), wrong[i].want);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("message: %s; expected: %s", neb_last_error(), wrong[i].says);
    }
    check_log_restore();
    k.model = op_case("linear")->model;
    assert_true(op_loss(&f, true) == right);
    op_close(&f);
}

static int64_t swing_rows;

static void m_swing(neb_tape *t, struct fixture *f)
{
    op_finish(t, f, neb_op_scale(t, neb_op_rows_of(t, neb_weight(t, f->p[0]), 0, swing_rows), 2));
}

/* Another shape under the same key is planned anew, and its loss counted once. */
static void a_mismatch_plans_again(void **state)
{
    (void)state;
    const struct kase k = {"swing", op_case("dropout")->params, m_swing};
    struct fixture f;
    op_open(&f, &k, op_shapes[2]);
    double loss[2][2];
    for (int i = 0; i < 4; i++) {
        swing_rows = i % 2 ? 5 : 17;
        loss[i / 2][i % 2] = op_loss(&f, true);
    }
    assert_true(loss[0][0] != loss[0][1]);
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    op_close(&f);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    check_log_quiet();
    for (int k = 0; k < OP_CASES; k += 3) {
        struct fixture f;
        op_open(&f, &op_cases[k], op_shapes[2]);
        struct neb_run run = {.fn = op_model, .arg = &f, .key = 1, .grad = true, .train = true};
        neb_status status = NEB_ERR_NOMEM;
        int64_t failures = 0;
        for (int64_t i = 1; status != NEB_OK; i++) {
            neb__mem_fail_at(i);
            status = neb_tape_run(f.tape, &run);
            if (status != NEB_OK) assert_int_equal(status, NEB_ERR_NOMEM), failures++;
        }
        neb__mem_fail_at(0);
        assert_true(failures > 0);
        op_close(&f);
    }
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(fused_slots_equal_their_references),
        cmocka_unit_test(a_poisoned_arena_changes_nothing),
        cmocka_unit_test(recomputation_gives_the_same_bits),
        cmocka_unit_test(later_steps_allocate_nothing),
        cmocka_unit_test(gradients_stop_where_told),
        cmocka_unit_test(wrong_models_are_refused),
        cmocka_unit_test(a_mismatch_plans_again),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
