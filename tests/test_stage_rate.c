/* test_stage_rate.c: bits and micro-batches in flight of a stage, for lines and turns of all kinds. */
#include "check.h"
#include "split/stage_rate.h"

#include <math.h>
#include <string.h>

static struct neb_stage_rate begin(int bits, int depth, int behind, int micro)
{
    struct neb_stage_rate r;
    struct neb_stage_rate_config c = {.bits = bits, .depth = depth, .behind = behind, .micro = micro};
    neb__stage_rate_init(&r, &c);
    return r;
}

/* in flight = stages from here on + ceil((round trips + transfers) / turn) */
static void depth_follows_the_formula(void **state)
{
    (void)state;
    for (int behind = 1; behind < 4; behind++)
        for (double rtt = 0.001; rtt < 1; rtt *= 3)
            for (double turn = 0.005; turn < 1; turn *= 3) {
                struct neb_stage_rate r = begin(0, 0, behind, 64);
                struct neb_stage_rate_sample in = {.turn = turn, .rtt = rtt, .line = 1e9, .bytes = 1e6};
                in.unknown = behind - 1;
                double away = behind * (rtt + 2 * 1e6 / 1e9);
                int want = behind + 1 + (int)ceil(away / turn);
                (void)neb__stage_rate_step(&r, &in);
                assert_int_equal(r.bits, 8);
                assert_int_equal(r.depth, want > 64 ? 64 : want);
                assert_false(neb__stage_rate_step(&r, &in)); /* and stays there */
            }
}

static void a_thin_line_gets_four_bits(void **state)
{
    (void)state;
    struct neb_stage_rate r = begin(0, 0, 1, 16);
    struct neb_stage_rate_sample in = {.turn = 0.1, .rtt = 0.05, .line = 12.5e6, .bytes = 1e6};
    (void)neb__stage_rate_step(&r, &in); /* 80 ms of 100 */
    assert_int_equal(r.bits, 8);
    in.bytes = 2e6;
    assert_true(neb__stage_rate_step(&r, &in));
    assert_int_equal(r.bits, 4);
    assert_non_null(strstr(r.reason, "4 bits"));
    assert_non_null(strstr(r.reason, "160 ms"));
    in.bytes = 1.1e6; /* 88 ms: not worth a change */
    (void)neb__stage_rate_step(&r, &in);
    assert_int_equal(r.bits, 4);
    in.bytes = 0.5e6;
    assert_true(neb__stage_rate_step(&r, &in));
    assert_int_equal(r.bits, 8);
}

static void a_job_may_fix_both(void **state)
{
    (void)state;
    struct neb_stage_rate r = begin(32, 3, 1, 16);
    struct neb_stage_rate_sample in = {.turn = 0.01, .rtt = 0.5, .line = 1e5, .bytes = 1e7};
    assert_false(neb__stage_rate_step(&r, &in));
    assert_true(r.bits == 32 && r.depth == 3);
}

/* The last stage has one; nothing is more than a step, or than memory allows; nonsense changes nothing. */
static void limits(void **state)
{
    (void)state;
    struct neb_stage_rate r = begin(0, 0, 0, 16);
    struct neb_stage_rate_sample in = {.turn = 0.01, .rtt = 0.5, .line = 1e9, .bytes = 1e5};
    (void)neb__stage_rate_step(&r, &in);
    assert_int_equal(r.depth, 1);
    r = begin(0, 0, 1, 4);
    (void)neb__stage_rate_step(&r, &in);
    assert_int_equal(r.depth, 4);
    r = begin(0, 0, 1, 64);
    in.room = 5;
    (void)neb__stage_rate_step(&r, &in);
    assert_int_equal(r.depth, 5);
    in = (struct neb_stage_rate_sample){.turn = NAN, .rtt = -1, .line = INFINITY, .bytes = NAN};
    assert_false(neb__stage_rate_step(&r, &in));
    in.turn = 1;
    assert_false(neb__stage_rate_step(&r, &in));
    assert_true(r.bits == 8 && r.depth == 5);
}

/* What a slot takes is not known before a step: with limited memory one is the start, and the room that a step has shown is used. */
static void limited_memory_begins_with_one(void **state)
{
    (void)state;
    struct neb_stage_rate r;
    struct neb_stage_rate_config c = {.behind = 1, .micro = 16, .careful = true};
    neb__stage_rate_init(&r, &c);
    assert_int_equal(r.depth, 1);
    struct neb_stage_rate_sample in = {.turn = 0.01, .rtt = 0.05, .line = 1e9, .bytes = 1e5, .room = 3};
    assert_true(neb__stage_rate_step(&r, &in));
    assert_int_equal(r.depth, 3);
    c.depth = 6; /* by hand */
    neb__stage_rate_init(&r, &c);
    assert_int_equal(r.depth, 6);
}

/* A short line in front of a long one: what counts is how long a micro-batch is on both. */
static void lines_differ(void **state)
{
    (void)state;
    struct neb_stage_rate r = begin(8, 0, 2, 64);
    struct neb_stage_rate_sample in = {
        .turn = 0.1, .rtt = 0.002, .line = 1e9, .bytes = 1e6, .further = 0.8, .unknown = 0};
    assert_true(neb__stage_rate_step(&r, &in));
    assert_int_equal(r.depth, 3 + 9); /* 4 ms and 800 ms */
    assert_true(fabs(r.line_s - 0.004) < 1e-9);
    r = begin(8, 0, 2, 64);
    in = (struct neb_stage_rate_sample){.turn = 0.1, .rtt = 0.8, .line = 1e9, .bytes = 1e6, .further = 0.004};
    assert_true(neb__stage_rate_step(&r, &in));
    assert_int_equal(r.depth, 3 + 9);
    in.further = NAN;
    (void)neb__stage_rate_step(&r, &in);
    assert_int_equal(r.depth, 3 + 9);
    r = begin(8, 5, 2, 64); /* a fixed depth: the line is measured for the others all the same */
    (void)neb__stage_rate_step(&r, &in);
    assert_true(r.depth == 5 && r.line_s > 0.8);
}

/* A depth that a stage could not have is not asked for again; less is. */
static void a_depth_without_memory(void **state)
{
    (void)state;
    struct neb_stage_rate r = begin(0, 0, 1, 64);
    struct neb_stage_rate_sample in = {.turn = 0.01, .rtt = 0.2, .line = 1e9, .bytes = 1e5};
    assert_true(neb__stage_rate_step(&r, &in));
    assert_true(r.depth > 20);
    neb__stage_rate_cap(&r, 3);
    assert_int_equal(r.depth, 3);
    assert_false(neb__stage_rate_step(&r, &in));
    assert_int_equal(r.depth, 3);
    in.rtt = 0.001;
    in.room = 64;
    (void)neb__stage_rate_step(&r, &in);
    assert_true(r.depth <= 3);
    in.rtt = 1;
    (void)neb__stage_rate_step(&r, &in);
    assert_int_equal(r.depth, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(depth_follows_the_formula),
        cmocka_unit_test(a_thin_line_gets_four_bits),
        cmocka_unit_test(a_job_may_fix_both),
        cmocka_unit_test(limits),
        cmocka_unit_test(limited_memory_begins_with_one),
        cmocka_unit_test(a_depth_without_memory),
        cmocka_unit_test(lines_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
