/* test_conform_muon.c: the conformance suite's cases of Muon's fused slot, with a slot on the host that rounds as a device does
 * that multiplies in bf16: it conforms, and the suite notices one that is wrong in each of several ways. */
#include "check.h"
#include "base/bf16.h"
#include "device/conform.h"
#include "device/device.h"

#include <nebula/engine.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 96 * 96 };
static enum { RIGHT, FEWER_STEPS, NOT_ACROSS, NO_DECAY, DIVIDES_BY_ZERO, NO_SCALE, KINDS } kind;

static float rounded(const struct neb_muon_args *a, double x)
{
    return a->type == NEB_BF16 ? neb__bf16_value(neb__bf16((float)x)) : (float)x;
}

/* x -> c0 x + (c1 + c2 x x^T) x x^T x; x (rows, cols) */
static void iterate(const struct neb_muon_args *a, float *x)
{
    static float gram[MOST], square[MOST], out[MOST];
    const int64_t r = a->rows, c = a->cols;
    for (int64_t i = 0; i < r * r; i++) {
        double sum = 0;
        for (int64_t k = 0; k < c; k++) sum += (double)x[i / r * c + k] * (double)x[i % r * c + k];
        gram[i] = rounded(a, sum);
    }
    for (int64_t i = 0; i < r * r; i++) {
        double sum = 0;
        for (int64_t k = 0; k < r; k++) sum += (double)gram[i / r * r + k] * (double)gram[k * r + i % r];
        square[i] = rounded(a, (double)a->coefficient[1] * (double)gram[i] + (double)a->coefficient[2] * sum);
    }
    for (int64_t i = 0; i < r * c; i++) {
        double sum = (double)a->coefficient[0] * (double)x[i];
        for (int64_t k = 0; k < r; k++) sum += (double)square[i / c * r + k] * (double)x[k * c + i % c];
        out[i] = rounded(a, sum);
    }
    memcpy(x, out, (size_t)(r * c) * sizeof *x);
}

static void one(const struct neb_muon_args *a, int64_t at)
{
    static float x[MOST];
    const int64_t n = a->rows * a->cols;
    double norm = 0, size;
    for (int64_t i = 0; i < n; i++) {
        const float d = a->ctl->clip * a->grad[at + i];
        a->m[at + i] = a->momentum * a->m[at + i] + d;
        x[i] = d + a->momentum * a->m[at + i];
        norm += (double)x[i] * (double)x[i];
    }
    size = norm > 0 || kind == DIVIDES_BY_ZERO ? sqrt(norm) : 1;
    for (int64_t i = 0; i < n; i++) x[i] = rounded(a, (double)x[i] / size);
    for (int s = kind == FEWER_STEPS ? 3 : 0; s < a->steps; s++)
        if (kind != NOT_ACROSS) iterate(a, x);
    for (int64_t i = 0; i < n; i++) {
        float *p = &a->param[at + i];
        *p -=
            a->ctl->lr * ((kind == NO_SCALE ? 1 : a->scale) * x[i] + (kind == NO_DECAY ? 0 : a->decay) * *p);
        if (a->shadow) ((uint16_t *)a->shadow)[at + i] = neb__bf16(*p);
    }
}

static neb_status host_muon(void *dev, const struct neb_muon_args *a)
{
    (void)dev;
    assert_true(a->rows * a->cols <= MOST && a->rows * a->rows <= MOST);
    for (int b = 0; b < a->batch && !a->ctl->nonfinite; b++) one(a, a->at[b]);
    return NEB_OK;
}

static void the_suite_knows_right_from_wrong(void **state)
{
    (void)state;
    static const char *const cases[] = {"muon", "muon bf16"};
    neb_device *d;
    assert_ok(neb_device_open("cpu", NULL, &d));
    const struct neb_device_ops *own = d->ops;
    struct neb_device_ops ops = *own;
    ops.muon = host_muon;
    d->ops = &ops;
    for (int c = 0; c < 2; c++)
        for (int k = RIGHT; k < KINDS; k++) {
            struct neb_conform_result r;
            if (!c && k == FEWER_STEPS) continue; /* that case has one step or two */
            kind = k;
            for (uint64_t seed = 1; seed <= (k == RIGHT ? 10 : 1); seed++) {
                assert_ok(neb__conform_run(d, cases[c], seed, k == RIGHT ? stderr : NULL, &r));
                assert_true(r.checks > 0);
                if ((r.failures > 0) != (k != RIGHT))
                    fail_msg("%s, kind %d: %d failures", cases[c], k, r.failures);
            }
        }
    d->ops = own;
    neb_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_suite_knows_right_from_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
