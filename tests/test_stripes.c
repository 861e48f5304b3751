/* test_stripes.c: the number of stripes finds its way on lines that are only functions. */
#include "check.h"
#include "base/rng.h"
#include "net/stripes.h"

/* Runs the controller for `seconds` of busy time on a line where n stripes give rate(n), with noise of +-2 %; the mean goodput
 * over the last quarter. */
static double run(struct neb_stripes *s, double (*rate)(int n), double rtt, double seconds, uint64_t seed)
{
    struct neb_rng rng = {seed};
    int64_t now = 0;
    double sum = 0, count = 0;
    for (double t = 0; t < seconds; t += 0.1) {
        double r = rate(s->target) * (0.98 + 0.04 * neb__rng_uniform(&rng));
        now += 100000000;
        s->try_more = true;
        neb__stripes_sample(s, now, r * 0.1, 0.1, rtt);
        if (t > 0.75 * seconds) sum += r, count++;
    }
    return sum / count;
}

static double one_fills_it(int n)
{
    return n == 1 ? 1e7 : 0.99e7;
}

static double buffers_limit(int n)
{
    return n * 0.3e8 < 1.2e8 ? n * 0.3e8 : 1.2e8;
}

static double many_harm(int n)
{
    return n <= 4 ? 1e6 * n : 4e6 / (1 + 0.1 * (n - 4));
}

static void test_converges(void **state)
{
    (void)state;
    static const struct {
        double (*rate)(int);
        double best;
    } lines[] = {{one_fills_it, 1e7}, {buffers_limit, 1.2e8}, {many_harm, 4e6}};
    for (int l = 0; l < 3; l++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct neb_stripes s;
            neb__stripes_init(&s, 0, 32, 0);
            double got = run(&s, lines[l].rate, 0.1, 120, seed);
            if (got < 0.95 * lines[l].best)
                fail_msg("line %d, seed %d: %.3g of %.3g with %d stripes", l, (int)seed, got, lines[l].best,
                         s.target);
        }
}

static void test_fixed_and_bounds(void **state)
{
    (void)state;
    struct neb_stripes s;
    neb__stripes_init(&s, 5, 32, 0);
    run(&s, buffers_limit, 0.01, 60, 1);
    assert_int_equal(s.target, 5);
    neb__stripes_init(&s, 0, 2, 0);
    run(&s, buffers_limit, 0.01, 60, 1);
    assert_int_equal(s.target, 2);
    neb__stripes_init(&s, 0, 1, 0);
    run(&s, buffers_limit, 0.01, 60, 1);
    assert_int_equal(s.target, 1);
}

/* Where TCP sees nothing that more flows could help against, none is tried; where there are several, fewer are. */
static void test_no_try_without_reason(void **state)
{
    (void)state;
    struct neb_stripes s;
    neb__stripes_init(&s, 0, 32, 0);
    for (int64_t t = 1; t < 600; t++) {
        neb__stripes_sample(&s, t * 100000000, 1e6, 0.1, 0.05);
        assert_int_equal(s.target, 1);
    }
    s.target = s.best = 8;
    for (int64_t t = 600; t < 6000; t++) neb__stripes_sample(&s, t * 100000000, 1e6, 0.1, 0.05);
    assert_true(s.best <= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_converges),
                                       cmocka_unit_test(test_fixed_and_bounds),
                                       cmocka_unit_test(test_no_try_without_reason)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
