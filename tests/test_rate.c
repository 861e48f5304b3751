/* test_rate.c: the rate controller on simulated lines. */
#include "check.h"
#include "line.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* One interval on a constant line; the driver sends as decided and reports.
 * Returns whether the update was late. */
static bool constant_round(struct line *s, double line, double noise, struct neb_rng *rng)
{
    neb__rate_decide(s->rate, &s->in, &s->d);
    if (s->d.kind == NEB_RATE_CLASS) neb__rate_class_changed(s->rate, s->d.cls);
    neb__rate_sample(s->rate, -1, line * (1 + noise * (2 * neb__rng_uniform(rng) - 1)));
    if (s->d.kind != NEB_RATE_SEND) return false;
    return neb__rate_sent(s->rate, s->d.bytes, s->d.bytes * (s->in.members - 1) / line);
}

static bool same_decision(const struct neb_rate_decision *a, const struct neb_rate_decision *b)
{
    return a->kind == b->kind && a->rung == b->rung && a->h == b->h;
}

/* Constant lines from 1 Mbit/s to 10 Gbit/s, 1 to 8 peers, 1 to 24 fragments: updates are late at most in the
 * first round, which knows nothing; the choice settles after three rounds; and with measurements off by 1 %
 * it moves at most once more, and not back. */
static void constant_lines(void **state)
{
    (void)state;
    static const int fragments[] = {1, 2, 8, 24};
    for (int run = 0; run < 2 * 8 * 4 * 17 * 2; run++) {
        int peers = 1 + run / 2 % 8, noisy = run / 64 / 17 % 2, moves = 0;
        double line = mbit(pow(10, run / 64 % 17 / 4.0));
        struct neb_rate_config c = line_config();
        c.prefer = run % 2 ? NEB_PREFER_QUALITY : NEB_PREFER_COST;
        c.fragments = fragments[run / 16 % 4];
        c.values = 100e6 / c.fragments;
        struct line s;
        struct neb_rng rng = {(uint64_t)run};
        line_open(&s, &c, peers);
        for (int i = 0; i < 4; i++)
            if (constant_round(&s, line, 0.01 * noisy, &rng)) assert_int_equal(i, 0);
        struct neb_rate_decision settled = s.d;
        for (int i = 0; i < 60; i++) {
            assert_false(constant_round(&s, line, 0.01 * noisy, &rng));
            if (same_decision(&s.d, &settled)) continue;
            if (++moves > noisy)
                fail_msg("%g bytes/s, %d peers: '%s' became '%s'", line, peers, settled.reason, s.d.reason);
            settled = s.d;
        }
        neb__rate_destroy(s.rate);
    }
}

static void falls_to_a_tenth_and_back(void **state)
{
    (void)state;
    for (double line = 30; line <= 3000; line *= 2.3) {
        struct neb_rate_config c = line_config();
        struct line s;
        struct neb_rng rng = {2};
        line_open(&s, &c, 2);
        for (int i = 0; i < 12; i++) line_round(&s, mbit(line), 0, &rng);
        struct neb_rate_decision high = s.d;
        for (int i = 0; i < 12; i++) {
            line_round(&s, mbit(line / 10), 0, &rng);
            if (i == 4)
                high.ceiling = s.d.ceiling; /* reused: after the fall and, if necessary, a change of class */
            if (i > 4) assert_true(fabs(s.d.ceiling / high.ceiling - 1) < 0.5 || s.d.h != high.h);
        }
        struct neb_rate_decision low = s.d;
        assert_true(low.kind != NEB_RATE_SEND || high.rung->bytes / high.h > low.rung->bytes / low.h);
        for (int i = 0; i < 4; i++) line_round(&s, mbit(line), 0, &rng);
        if (s.d.cls == NEB_DENSE) { /* in the sparse class the way back takes longer on purpose */
            assert_ptr_equal(s.d.rung, high.rung);
            assert_int_equal(s.d.h, high.h);
        }
        for (int i = 0; i < 20; i++) line_round(&s, mbit(line), 0, &rng);
        if (s.d.cls == NEB_DENSE && s.d.rung != high.rung)
            fail_msg("%g: '%s' but '%s'", line, high.reason, s.d.reason);
        assert_true(s.most_in_a_row <= 1 && s.late <= 2);
        neb__rate_destroy(s.rate);
    }
}

static void saw_tooth_and_jitter(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++)
        for (int kind = 0; kind < 3; kind++) {
            struct neb_rate_config c = line_config();
            c.prefer = seed % 2 ? NEB_PREFER_QUALITY : NEB_PREFER_COST;
            struct line s;
            struct neb_rng rng = {seed};
            double line = 20 * exp2((double)(seed % 8));
            line_open(&s, &c, 1 + (int)(seed % 4));
            for (int i = 0; i < 200; i++) {
                double x;
                if (kind == 0)
                    x = 0.1 + 0.9 * (i % 20) / 20; /* slowly up, then a fall */
                else if (kind == 1)
                    x = 1 - 0.9 * (i % 20) / 20; /* slowly down, then a jump */
                else
                    x = 0.5 + neb__rng_uniform(&rng); /* 50 % jitter */
                line_round(&s, mbit(line * x), kind == 2 ? 0 : 0.05, &rng);
            }
            if (s.most_in_a_row > 1)
                fail_msg("seed %d kind %d: late %d times in a row", (int)seed, kind, s.most_in_a_row);
            if (kind == 2) assert_true(s.late < 30);
            neb__rate_destroy(s.rate);
        }
}

/* A fast line, and intervals hardly longer than the work in them: coding and syncing take 20 ms of 100, now
 * and then nearly all of them or more. No update is sent that does not fit its interval, and H settles: it
 * changes a few times in ten minutes, not a thousand times. */
static void short_intervals_do_not_flap(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct neb_rate_config c = line_config();
        c.prefer = seed % 2 ? NEB_PREFER_QUALITY : NEB_PREFER_COST;
        c.fragments = 1 + (int)(seed / 2 % 4);
        c.h = 8 * c.fragments;
        c.values = 6e6;
        c.keep_class = true;
        struct line s;
        struct neb_rng rng = {seed};
        line_open(&s, &c, 1);
        int late_changes = 0, stretched = 0;
        for (int i = 0; i < 6000; i++) {
            int h = s.d.h;
            s.in.step = 0.0125;
            s.in.rtt = 0.001;
            double busy = c.fragments == 1 ? 0.09 : 0.11;
            s.in.overhead = neb__rng_uniform(&rng) >= 0.03 ? 0.02 : busy;
            neb__rate_decide(s.rate, &s.in, &s.d);
            assert_true(s.d.bytes <= s.d.ceiling * (1 + 1e-9));
            late_changes += s.d.h != h && i >= 3000;
            stretched += s.d.h > c.h;
            if (s.d.kind != NEB_RATE_SEND) continue;
            double goodput = 1e8 * (0.5 + neb__rng_uniform(&rng));
            neb__rate_sample(s.rate, -1, goodput);
            neb__rate_sent(s.rate, s.d.bytes, s.d.bytes / goodput);
        }
        if (late_changes > 30) fail_msg("seed %d: %d changes in 3000 intervals", (int)seed, late_changes);
        assert_true(stretched > 0);
        neb__rate_destroy(s.rate);
    }
}

/* Short intervals on a long line: two round trips are longer than a fragment's slot, but not longer than the
 * interval, and the fragments' rounds overlap. The line carries a small dense rung, so that rung is sent.
 * Each update fits its slot, each round its interval, and no update is late once the line is known. */
static void rounds_overlap(void **state)
{
    (void)state;
    static const struct {
        int h, fragments;
        double step, rtt, overhead, values, line;
    } runs[] = {
        {20, 3, 0.009, 0.1, 0.012, 262144, 10},  {20, 8, 0.02, 0.1, 0.012, 262144, 30},
        {100, 8, 0.009, 0.3, 0.02, 524288, 30},  {64, 24, 0.01, 0.1, 0.004, 262144, 300},
        {40, 24, 0.02, 0.25, 0.01, 262144, 300}, {20, 1, 0.03, 0.1, 0.02, 262144, 10},
    };
    for (size_t i = 0; i < 2 * sizeof runs / sizeof *runs; i++) {
        struct neb_rate_config c = line_config();
        struct line s;
        struct neb_rng rng = {i};
        c.prefer = i % 2 ? NEB_PREFER_COST : NEB_PREFER_QUALITY;
        c.h = runs[i / 2].h, c.fragments = runs[i / 2].fragments, c.values = runs[i / 2].values;
        line_open(&s, &c, 1);
        s.in = (struct neb_rate_input){
            .step = runs[i / 2].step, .rtt = runs[i / 2].rtt, .overhead = runs[i / 2].overhead, .members = 2};
        for (int k = 0; k < 100; k++) {
            bool late = constant_round(&s, mbit(runs[i / 2].line), 0.01, &rng);
            assert_int_equal(s.d.kind, NEB_RATE_SEND);
            assert_int_equal(s.d.cls, NEB_DENSE);
            if (k < 3) continue;
            assert_false(late);
            double took = s.d.bytes / mbit(runs[i / 2].line), slot = s.d.h * s.in.step / c.fragments;
            if (took > slot || took + 2 * s.in.rtt + s.in.overhead > c.fragments * slot ||
                s.in.rtt + s.in.overhead > c.pipeline * slot)
                fail_msg("run %d: '%s' does not fit", (int)i, s.d.reason);
            /* H is not stretched further than the rounds need: a quarter octave and the margins. */
            double least = fmax(took / 0.72 + 2 * s.in.rtt + s.in.overhead, /* at the smallest dense update */
                                fmax(took / 0.72 * c.fragments,
                                     (took / 0.72 + s.in.rtt + s.in.overhead) * c.fragments / c.pipeline));
            if (s.d.h > c.h && s.d.h * s.in.step > 1.2 * least + s.in.step)
                fail_msg("run %d: '%s' stretches further than to %g", (int)i, s.d.reason, least / s.in.step);
        }
        neb__rate_destroy(s.rate);
    }
}

/* Coding is one thread's work. If it takes longer than a slot, H grows, however fast the
 * line and however many fragments. */
static void coding_fits_a_slot(void **state)
{
    (void)state;
    struct neb_rng rng = {3};
    struct neb_rate_config c = line_config();
    struct line s;
    c.fragments = 8;
    line_open(&s, &c, 1);
    s.in = (struct neb_rate_input){.step = 0.01, .rtt = 0.001, .overhead = 0.06, .members = 2};
    for (int k = 0; k < 10; k++) {
        constant_round(&s, mbit(100000), 0, &rng);
        assert_true(s.d.h * s.in.step / c.fragments >= s.in.overhead && s.d.h <= 64);
        assert_int_equal(s.d.kind, NEB_RATE_SEND);
    }
    neb__rate_destroy(s.rate);
}

/* A change of class throws the momentum away. One late update, or a moment in which the line
 * carries a fifth, does not justify it. */
static void a_moment_does_not_change_the_class(void **state)
{
    (void)state;
    struct neb_rng rng = {5};
    struct neb_rate_config c = line_config();
    struct line s;
    c.prefer = NEB_PREFER_COST;
    c.h = 20, c.fragments = 3, c.values = 262144;
    line_open(&s, &c, 1);
    s.in = (struct neb_rate_input){.step = 0.009, .rtt = 0.1, .overhead = 0.012, .members = 2};
    for (int k = 0; k < 200; k++) {
        bool late = constant_round(&s, mbit(k % 10 == 9 ? 2 : 10), 0.01, &rng);
        if (k % 10 == 9 && s.d.kind == NEB_RATE_SEND) assert_true(late);
        assert_int_not_equal(s.d.kind, NEB_RATE_CLASS);
    }
    for (int k = 0; k < 6; k++) constant_round(&s, mbit(1), 0.01, &rng); /* a lasting fall justifies it */
    assert_int_equal(s.d.cls, NEB_SPARSE);
    /* The class goes back, although two round trips ask for more than the nominal H in either class. */
    for (int k = 0; k < 40; k++) constant_round(&s, mbit(100), 0.01, &rng);
    assert_int_equal(s.d.cls, NEB_DENSE);
    assert_true(s.d.h > c.h);
    neb__rate_destroy(s.rate);
}

/* A fast line, and a site so busy that coding takes nearly all of every interval: it holds or
 * stretches H, and the class stays. The same site changes the class on a line that carries a
 * third of the smallest dense update. */
static void a_busy_site_is_not_a_thin_line(void **state)
{
    (void)state;
    struct neb_rng rng = {9};
    for (int thin = 0; thin < 2; thin++) {
        struct neb_rate_config c = line_config();
        struct line s;
        line_open(&s, &c, 1);
        int changes = 0;
        for (int i = 0; i < 200; i++) {
            s.in.overhead =
                thin ? 0.05
                     : 4 * c.h * s.in.step / c.fragments - 0.1; /* 0.02 s are left of 8, at H 4 times */
            if (i < 3) s.in.overhead = 0.05;
            changes += s.d.kind == NEB_RATE_CLASS;
            constant_round(&s, thin ? mbit(2) : mbit(300), 0.01, &rng);
        }
        assert_int_equal(changes > 0, thin);
        neb__rate_destroy(s.rate);
    }
}

static void outage(void **state)
{
    (void)state;
    struct neb_rate_config c = line_config();
    struct line s;
    struct neb_rng rng = {4};
    line_open(&s, &c, 1);
    for (int i = 0; i < 10; i++) line_round(&s, mbit(300), 0.02, &rng);
    struct neb_rate_decision before = s.d;
    int late = s.late;
    for (int i = 0; i < 10; i++) line_round(&s, 0, 0, &rng);
    assert_true(s.d.kind == NEB_RATE_HOLD && s.d.probe > 0 && s.d.ceiling == 0);
    assert_true(s.late == late + 1 && s.holds == 9);
    for (int i = 0; i < 3; i++) line_round(&s, mbit(300), 0, &rng);
    assert_ptr_equal(s.d.rung, before.rung);
    neb__rate_destroy(s.rate);
}

static void peers_with_slow_ingress_count(void **state)
{
    (void)state;
    struct neb_rate_config c = line_config();
    struct neb_rate *r;
    struct neb_rate_input in = {.step = 0.25, .members = 3};
    struct neb_rate_decision d;
    assert_ok(neb__rate_create(&c, &r));
    for (int i = 0; i < 3; i++)
        neb__rate_sample(r, -1, 1e9), neb__rate_sample(r, 0, 1e9), neb__rate_sample(r, 1, 1e7);
    neb__rate_sample(r, 1, NAN);
    neb__rate_sample(r, 1, -5);
    neb__rate_decide(r, &in, &d);
    assert_true(fabs(d.ceiling - 0.9 * d.h * 0.25 / 4 * 1e7 / 2) < 1);
    neb__rate_peer_gone(r, 1);
    neb__rate_decide(r, &in, &d);
    assert_true(fabs(d.ceiling - 0.9 * d.h * 0.25 / 4 * 1e9 / 2) < 100);
    in.members = 1;
    neb__rate_decide(r, &in, &d);
    assert_int_equal(d.kind, NEB_RATE_HOLD);
    neb__rate_destroy(r);
    c.owners = true; /* 2 (N - 1) / N copies */
    assert_ok(neb__rate_create(&c, &r));
    in.members = 8;
    neb__rate_sample(r, -1, 1e8);
    neb__rate_decide(r, &in, &d);
    assert_true(fabs(d.ceiling - 0.9 * d.h * 0.25 / 4 * 1e8 / (14.0 / 8)) < 10);
    neb__rate_destroy(r);
}

static void egress_costs_are_capped(void **state)
{
    (void)state;
    for (double cap = 1e8; cap < 1e12; cap *= 7) {
        struct neb_rate_config c = line_config();
        c.max_bytes_per_hour = cap;
        struct line s;
        struct neb_rng rng = {6};
        line_open(&s, &c, 2);
        for (int i = 0; i < 300; i++) line_round(&s, mbit(2000), 0.02, &rng);
        assert_true(s.sent <= cap * s.seconds / 3600 * 1.001);
        neb__rate_destroy(s.rate);
    }
}

static void cost_and_quality_differ(void **state)
{
    (void)state;
    struct neb_rng rng = {8};
    struct neb_rate_config c = line_config();
    struct line s;
    line_open(&s, &c, 1);
    for (int i = 0; i < 5; i++) line_round(&s, mbit(9000), 0, &rng);
    assert_string_equal(s.d.rung->name, "fp32");
    neb__rate_destroy(s.rate);
    c.prefer = NEB_PREFER_COST;
    line_open(&s, &c, 1);
    for (int i = 0; i < 5; i++) line_round(&s, mbit(9000), 0, &rng);
    assert_string_equal(s.d.rung->name, "stat2"); /* it leaves out less than int2e and is smaller */
    assert_int_equal(s.d.h, 32);
    /* H grows while evaluations show no harm, and goes back when they do. */
    double loss = 5;
    for (int i = 0; i < 40; i++) {
        neb__rate_loss(s.rate, loss *= 0.995);
        line_round(&s, mbit(9000), 0, &rng);
    }
    assert_int_equal(s.d.h, 128);
    neb__rate_loss(s.rate, loss * 1.03);
    neb__rate_loss(s.rate, loss * 1.03);
    line_round(&s, mbit(9000), 0, &rng);
    assert_int_equal(s.d.h, 64);
    assert_non_null(strstr(s.d.reason, "back to 64 steps"));
    neb__rate_destroy(s.rate);
}

static void class_changes_are_proposed(void **state)
{
    (void)state;
    struct neb_rng rng = {10};
    struct neb_rate_config c = line_config();
    struct line s;
    line_open(&s, &c, 1);
    for (int i = 0; i < 6; i++) line_round(&s, mbit(4), 0, &rng); /* too slow for any dense rung */
    assert_int_equal(s.class_changes, 1);
    assert_int_equal(s.d.cls, NEB_SPARSE);
    assert_int_equal(s.d.kind, NEB_RATE_SEND);
    for (int i = 0; i < 8; i++) line_round(&s, mbit(400), 0, &rng);
    assert_int_equal(s.class_changes, 1); /* not at once */
    for (int i = 0; i < 6; i++) line_round(&s, mbit(400), 0, &rng);
    assert_int_equal(s.class_changes, 2);
    assert_int_equal(s.d.cls, NEB_DENSE);
    for (int i = 0; i < 60; i++) line_round(&s, mbit(400), 0, &rng);
    assert_int_equal(s.class_changes, 2);
    neb__rate_destroy(s.rate);
    c.prefer = NEB_PREFER_COST;
    line_open(&s, &c, 1);
    for (int i = 0; i < 6; i++) line_round(&s, mbit(4), 0, &rng);
    assert_string_equal(s.d.rung->name, "sparse1.k32"); /* the cheapest that does not leave too much behind */
    neb__rate_destroy(s.rate);
    c.prefer = line_config().prefer;
    c.keep_class = true;
    line_open(&s, &c, 1);
    for (int i = 0; i < 6; i++) line_round(&s, mbit(4), 0, &rng);
    assert_int_equal(s.d.kind, NEB_RATE_HOLD);
    assert_non_null(strstr(s.d.reason, "training goes on"));
    neb__rate_destroy(s.rate);
}

static void configurations_are_checked(void **state)
{
    (void)state;
    struct neb_rate *r;
    struct neb_rate_config c = line_config();
    check_log_quiet();
    c.h = 0;
    assert_status(neb__rate_create(&c, &r), NEB_ERR_INVALID);
    c = line_config();
    c.force = 99;
    assert_status(neb__rate_create(&c, &r), NEB_ERR_INVALID);
    c = line_config();
    c.values = NAN;
    assert_status(neb__rate_create(&c, &r), NEB_ERR_INVALID);
    c = line_config();
    neb__mem_fail_at(1);
    assert_status(neb__rate_create(&c, &r), NEB_ERR_NOMEM);
    neb__mem_fail_at(0);
    check_log_restore();
    neb__rate_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_lines),
        cmocka_unit_test(falls_to_a_tenth_and_back),
        cmocka_unit_test(saw_tooth_and_jitter),
        cmocka_unit_test(short_intervals_do_not_flap),
        cmocka_unit_test(rounds_overlap),
        cmocka_unit_test(coding_fits_a_slot),
        cmocka_unit_test(a_moment_does_not_change_the_class),
        cmocka_unit_test(a_busy_site_is_not_a_thin_line),
        cmocka_unit_test(outage),
        cmocka_unit_test(peers_with_slow_ingress_count),
        cmocka_unit_test(egress_costs_are_capped),
        cmocka_unit_test(cost_and_quality_differ),
        cmocka_unit_test(class_changes_are_proposed),
        cmocka_unit_test(configurations_are_checked),
    };
    return cmocka_run_group_tests(tests, line_table, NULL);
}
