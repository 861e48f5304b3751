/* test_guard.c: the rate controller's quality guard: its refusals and their duration, and a
 * training that diverges without it. */
#include "check.h"
#include "line.h"
#include "codec/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void residuals_and_losses_refuse_rungs(void **state)
{
    (void)state;
    struct neb_rng rng = {9};
    struct neb_rate_config c = line_config();
    c.prefer = NEB_PREFER_COST;
    struct line s;
    line_open(&s, &c, 1);
    for (int i = 0; i < 3; i++) line_round(&s, mbit(9000), 0, &rng);
    assert_string_equal(s.d.rung->name, "stat2");
    neb__rate_quality(s.rate, s.d.rung->id, 1.0, 0.9);
    line_round(&s, mbit(9000), 0, &rng);
    assert_string_equal(s.d.rung->name, "int4e");
    assert_non_null(strstr(s.d.reason, "stat2 refused"));
    neb__rate_loss(s.rate, 3.0);
    neb__rate_loss(s.rate, NAN); /* once is enough */
    line_round(&s, mbit(9000), 0, &rng);
    assert_string_equal(s.d.rung->name, "int8e");
    int back = 0; /* refusals end, and last longer each time */
    for (; back < 100 && strcmp(s.d.rung->name, "stat2"); back++) line_round(&s, mbit(9000), 0, &rng);
    assert_in_range(back, 55, 65);
    neb__rate_quality(s.rate, s.d.rung->id, 1.0, INFINITY);
    line_round(&s, mbit(9000), 0, &rng);
    for (back = 0; back < 300 && strcmp(s.d.rung->name, "stat2"); back++) line_round(&s, mbit(9000), 0, &rng);
    assert_in_range(back, 240, 257);
    neb__rate_destroy(s.rate);
}

/* ---- the guard on a training --------------------------------------------------------------------------- */

enum { DIM = 16384, SITES = 2 };

/* Two sites train on gap + 0.17 gap^3 (gap = x - a), 30 % of it in a round; one value in 64 is all noise, as
 * rows of an embedding are, and sets the scale of its block. So the other values move by a third of that
 * noise or not at all, and swing around their place. Returns the mean squared gap. */
static double train(bool guarded, int rounds, double *worst)
{
    struct neb_rate_config c = line_config();
    c.prefer = NEB_PREFER_COST;
    c.values = DIM;
    c.keep_class = true;
    c.force = neb__rung_by_name("int2")->id;
    c.no_guard = !guarded;
    struct line s;
    line_open(&s, &c, 1);
    static float x[DIM], m[DIM], g[DIM], a[DIM], dec[DIM], u[SITES][DIM];
    memset(m, 0, sizeof m);
    memset(x, 0, sizeof x);
    memset(u, 0, sizeof u);
    struct neb_rng rng = {12};
    for (int i = 0; i < DIM; i++) a[i] = (float)neb__rng_normal(&rng);
    struct neb_buf out;
    neb__buf_init(&out, 1 << 20);
    double loss = 0;
    *worst = 0;
    for (int round = 0; round < rounds; round++) {
        neb__rate_decide(s.rate, &s.in, &s.d);
        assert_int_equal(s.d.kind, NEB_RATE_SEND);
        const struct neb_rung *rung = neb__rung_by_id((uint8_t)s.d.rung->id);
        memset(g, 0, sizeof g);
        double delta = 0, residual = 0;
        neb_status status = NEB_OK;
        for (int site = 0; status == NEB_OK && site < SITES; site++) {
            struct neb_codec_stats stats;
            for (int i = 0; i < DIM; i++) {
                float gap = x[i] + u[site][i] - a[i], noise = (float)neb__rng_normal(&rng);
                u[site][i] += i % 64 ? -0.3f * (gap + 0.17f * gap * gap * gap) + 0.01f * noise : 2.6f * noise;
            }
            struct neb_codec_input in = {u[site], DIM, NULL, 1, NULL};
            neb__buf_clear(&out);
            status = neb__codec_encode(rung, &in, NULL, &stats, &out);
            if (status != NEB_OK) break; /* beyond any float: it diverged */
            assert_ok(neb__codec_decode(out.data, out.len, NULL, DIM, dec));
            for (int i = 0; i < DIM; i++) u[site][i] -= dec[i], g[i] += 0.5f * dec[i];
            delta += stats.z_sq, residual += stats.residual_sq;
        }
        loss = status == NEB_OK ? 0 : INFINITY;
        if (status != NEB_OK) break;
        for (int i = 0; i < DIM; i++) {
            m[i] = 0.9f * m[i] + g[i];
            x[i] += 0.7f * (g[i] + 0.9f * m[i]);
            double gap = (double)x[i] - (double)a[i];
            if (i % 64) loss += gap * gap / DIM;
        }
        neb__rate_sample(s.rate, -1, 1e9);
        neb__rate_sent(s.rate, (double)out.len, 1e-3);
        neb__rate_quality(s.rate, s.d.rung->id, sqrt(delta), sqrt(residual));
        if (round % 5 == 4) neb__rate_loss(s.rate, loss);
        *worst = fmax(*worst, loss);
        if (getenv("RATE_TRACE"))
            printf("%d %s %g %g\n", round, s.d.rung->name, loss, sqrt(residual / delta));
    }
    neb__buf_free(&out);
    neb__rate_destroy(s.rate);
    return loss;
}

static void a_forced_rung_does_harm_without_the_guard(void **state)
{
    (void)state;
    double worst;
    check_log_quiet();
    double without = train(false, 200, &worst);
    check_log_restore();
    assert_true(without > 0.3); /* it began at 1 */
    double with = train(true, 200, &worst);
    assert_true(with < 0.1 && worst < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residuals_and_losses_refuse_rungs),
        cmocka_unit_test(a_forced_rung_does_harm_without_the_guard),
    };
    return cmocka_run_group_tests(tests, line_table, NULL);
}
