/* test_stream_rate.c: window and rung of a stream on traces of lines. The line, its queue, the credit and
 * both sites are simulated in steps of 5 ms, so the controller sees the delays that it causes. No clock takes
 * part. */
#include "check.h"
#include "base/rng.h"
#include "split/stream_rate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MANY = 1 << 17, TICK_MS = 5 };

/* The simulated world. It may change in mid-run. Item sizes are 40 kB at the first rung. */
struct world {
    struct neb_stream_rate rate;
    double line, rtt, make, take; /* bytes/s, s, items/s, items/s */
    double jitter;                /* of the round trip, seconds */
    struct neb_rng rng;

    double now, made, ready_at,
        free_at; /* ready_at: when the receiving site has used the items that it took; free_at: the line */
    double size[MANY], here[MANY], known[MANY];
    int64_t put, arrived, acked, got;
    double starved, credit, busy_bytes, busy_s; /* of this second */
    int64_t acked_before, got_before;
    double told_need, told_starved;
    /* sums since the last reset */
    double total_starved, seconds;
    int changes, rung_changes;
};

static const double item = 40e3, cost[4] = {1, 0.5, 0.28, 0.16};

static void begin(struct world *w, int rungs, int64_t window)
{
    struct neb_stream_rate_config c = {.rungs = rungs, .window = window, .least = 2};
    memset(w, 0, sizeof *w);
    for (int i = 0; i < rungs; i++) {
        snprintf(c.rung[i].name, sizeof c.rung[i].name, "rung %d", i);
        c.rung[i].bytes = cost[i];
    }
    neb__stream_rate_init(&w->rate, &c);
    w->rng.state = 5;
    w->rtt = 0.1;
    w->line = 12.5e6;
    w->make = 400;
    w->take = 80;
}

static void put(struct world *w)
{
    double size = item * cost[w->rate.rung], extra = w->jitter * neb__rng_uniform(&w->rng);
    int64_t i = w->put++;
    assert_true(i < MANY);
    w->free_at = fmax(w->free_at, w->now) + size / w->line;
    w->size[i] = size;
    w->here[i] = w->free_at + w->rtt / 2 + extra / 2;
    if (i && w->here[i] < w->here[i - 1]) w->here[i] = w->here[i - 1];
}

/* Moves items into the receiving site's queue, as long as that has room.
 * The sending site knows half a round trip later. */
static void arrive(struct world *w)
{
    while (w->arrived < w->put && w->here[w->arrived] <= w->now && w->arrived - w->got < w->rate.window)
        w->known[w->arrived++] = w->now + w->rtt / 2;
    while (w->acked < w->arrived && w->known[w->acked] <= w->now) w->acked++;
}

static void tick(struct world *w)
{
    double dt = TICK_MS * 1e-3;
    arrive(w);
    w->made = fmin(w->made + w->make * dt, 1 + w->make * dt);
    while (w->made >= 1 && w->put < w->acked + w->rate.window) put(w), w->made--;
    if (w->made >= 1) w->credit += dt;
    for (; w->ready_at <= w->now && w->got < w->arrived; w->got++)
        w->ready_at = fmax(w->ready_at, w->now - dt) + 1 / w->take;
    w->starved += fmin(dt, fmax(0, w->now - w->ready_at));
    if (w->free_at > w->now + dt) w->busy_s += dt, w->busy_bytes += w->line * dt;
    w->now += dt;
}

/* Simulates one second, then decides with the receiving site's report of a second ago. */
static void second(struct world *w)
{
    w->starved = w->credit = w->busy_s = w->busy_bytes = 0;
    w->acked_before = w->acked;
    w->got_before = w->got;
    for (int i = 0; i < 1000 / TICK_MS; i++) tick(w);
    struct neb_stream_rate_sample s = {.seconds = 1,
                                       .items = (double)(w->acked - w->acked_before),
                                       .rtt = w->rtt + w->jitter * neb__rng_uniform(&w->rng),
                                       .need = w->told_need,
                                       .starved = w->told_starved,
                                       .credit = w->credit};
    if (w->put) s.item_bytes = w->size[w->put - 1];
    if (w->busy_s > 0.5) s.line = w->busy_bytes / w->busy_s;
    if (w->got > w->got_before && w->starved < 0.999)
        w->told_need = (double)(w->got - w->got_before) / (1 - w->starved);
    w->told_starved = w->starved;
    int rung = w->rate.rung;
    w->changes += neb__stream_rate_step(&w->rate, &s);
    w->rung_changes += w->rate.rung != rung;
    w->total_starved += w->starved;
    w->seconds++;
}

static void run(struct world *w, int seconds)
{
    w->total_starved = w->seconds = 0;
    w->changes = w->rung_changes = 0;
    for (int i = 0; i < seconds; i++) second(w);
}

/* Returns the most faithful rung that the line carries at the receiving site's pace. */
static int best(const struct world *w)
{
    int r = 0;
    while (r < 3 && w->take * item * cost[r] > 0.9 * w->line) r++;
    return r;
}

static struct world w;

static void test_wide_lines(void **state)
{
    (void)state;
    static const double trips[] = {0.001, 0.01, 0.1, 0.3, 0.8}, paces[] = {0.5, 8, 80, 300};
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++) {
            begin(&w, 4, 0);
            w.rtt = trips[i];
            w.take = paces[k];
            w.make = 1200;
            w.line = 125e6;
            run(&w, 10);
            run(&w, 200);
            if (w.total_starved > 0.01 * w.seconds)
                fail_msg("%g s, %g batches/s: waited %g s of 200, window %lld", trips[i], paces[k],
                         w.total_starved, (long long)w.rate.window);
            assert_int_equal(w.rate.rung, 0);
            assert_int_equal(w.rung_changes, 0);
            assert_in_range(w.changes, 0, 2);
            /* large enough, and at most a few times as large as the round trip needs */
            double flight = paces[k] * (trips[i] + 0.25);
            assert_true((double)w.rate.window >= paces[k] * trips[i]);
            assert_true((double)w.rate.window <= 8 + 4 * flight);
            assert_true(w.rate.boost <= 2); /* the round trip decides; at most one doubling at the start */
        }
}

static void test_thin_lines(void **state)
{
    (void)state;
    static const double lines[] = {0.3e6, 0.7e6, 1.1e6, 2e6, 2.9e6};
    for (int i = 0; i < 5; i++) {
        begin(&w, 4, 0);
        w.line = lines[i];
        run(&w, 12); /* before the first try to go back */
        assert_int_equal(w.rate.rung, best(&w));
        assert_true(strlen(w.rate.reason) > 20);
        run(&w, 600);
        /* the way back is tried less and less often */
        assert_in_range(w.rung_changes, 0, 16);
        double floor_pace = lines[i] / (item * cost[best(&w)]);
        double must = floor_pace < w.take ? 1 - floor_pace / w.take : 0; /* waits that no rung avoids */
        if (w.total_starved / w.seconds > must + 0.05)
            fail_msg("%g bytes/s: waited %.1f %%, %.1f %% must be", lines[i],
                     100 * w.total_starved / w.seconds, 100 * must);
    }
}

/* Without the controller the first rung would starve the receiving site.
 * So the test above sees the controller's work. */
static void test_by_hand(void **state)
{
    (void)state;
    begin(&w, 1, 8);
    w.line = 1.1e6;
    run(&w, 100);
    assert_int_equal(w.rate.window, 8);
    assert_int_equal(w.changes, 0);
    assert_true(w.total_starved > 50);
}

static void test_fall_and_return(void **state)
{
    (void)state;
    begin(&w, 4, 0);
    run(&w, 30);
    assert_int_equal(w.rate.rung, 0);
    w.line = 0.8e6;
    run(&w, 15);
    assert_int_equal(w.rate.rung, best(&w));
    w.line = 12.5e6;
    run(&w, 200);
    assert_int_equal(w.rate.rung, 0);
    assert_in_range(w.rung_changes, 3, 3);
    run(&w, 100);
    assert_int_equal(w.rung_changes, 0);
    assert_true(w.total_starved < 1);
}

/* The sending site is slower than the receiving one, so the line is not to blame. */
static void test_slow_feeder(void **state)
{
    (void)state;
    begin(&w, 4, 0);
    w.make = 30;
    run(&w, 300);
    assert_int_equal(w.rate.rung, 0);
    assert_true(w.total_starved > 100);
}

static void test_jitter(void **state)
{
    (void)state;
    begin(&w, 4, 0);
    w.jitter = 0.2;
    run(&w, 20);
    run(&w, 600);
    assert_int_equal(w.rate.rung, 0);
    assert_true(w.total_starved < 6);
    assert_in_range(w.changes, 0, 4);
}

/* Items take long although the line is not full (a slow disk under the journal): the window grows. */
static void test_slow_disk(void **state)
{
    (void)state;
    begin(&w, 4, 0);
    w.rtt = 0.02;
    struct neb_stream_rate_sample s = {.seconds = 1,
                                       .items = 30,
                                       .item_bytes = item,
                                       .rtt = 0.02,
                                       .need = 80,
                                       .starved = 0.5,
                                       .credit = 0.5,
                                       .line = 100e6};
    int64_t before = w.rate.window;
    for (int i = 0; i < 12; i++) (void)neb__stream_rate_step(&w.rate, &s);
    assert_true(w.rate.window > 4 * before);
    assert_int_equal(w.rate.rung, 0);
}

static void test_outage(void **state)
{
    (void)state;
    begin(&w, 4, 0);
    run(&w, 20);
    int64_t window = w.rate.window;
    struct neb_stream_rate_sample s = {
        .seconds = 1, .item_bytes = item, .rtt = 0.1, .need = 80, .starved = 1, .credit = 1, .line = 1e4};
    for (int i = 0; i < 60; i++) assert_false(neb__stream_rate_step(&w.rate, &s));
    assert_int_equal(w.rate.window, window);
}

static void test_nonsense(void **state)
{
    (void)state;
    static const double odd[] = {NAN, INFINITY, -INFINITY, -1, 0, 1e300, 1e-300};
    struct neb_rng rng = {9};
    begin(&w, 4, 0);
    for (int i = 0; i < 20000; i++) {
        double v[8];
        for (int k = 0; k < 8; k++) v[k] = odd[neb__rng_below(&rng, 7)];
        struct neb_stream_rate_sample s = {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]};
        (void)neb__stream_rate_step(&w.rate, &s);
        assert_in_range(w.rate.window, 2, NEB_STREAM_RATE_WINDOW_MAX);
        assert_in_range(w.rate.rung, 0, 3);
    }
}

static void test_repeats(void **state)
{
    (void)state;
    char said[64][sizeof w.rate.reason];
    for (int turn = 0; turn < 2; turn++) {
        begin(&w, 4, 0);
        w.jitter = 0.1;
        for (int i = 0; i < 64; i++) {
            w.line = i % 20 < 10 ? 12.5e6 : 0.8e6;
            second(&w);
            if (turn) assert_string_equal(said[i], w.rate.reason);
            snprintf(said[i], sizeof said[i], "%s", w.rate.reason);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide_lines),  cmocka_unit_test(test_thin_lines),
        cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_fall_and_return),
        cmocka_unit_test(test_slow_feeder), cmocka_unit_test(test_jitter),
        cmocka_unit_test(test_slow_disk),   cmocka_unit_test(test_outage),
        cmocka_unit_test(test_nonsense),    cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
