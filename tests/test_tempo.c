/* test_tempo.c: the log shows how fast the sites are beside each other and how far the furthest is. */
#include "check.h"
#include "base/mem.h"
#include "run/tempo.h"

#include <stdlib.h>

enum { CELLS = 8, FRAGMENTS = 4 };

/* A round over all fragments, in which site i has made tau[i] steps; 0: it is not in it. */
static void round_of(struct neb_tempo *t, const uint32_t *tau, int sites)
{
    for (uint32_t f = 0; f < FRAGMENTS; f++) {
        struct neb_record *rec = neb__record_new((uint32_t)sites);
        assert_non_null(rec);
        rec->c0 = f * CELLS / FRAGMENTS, rec->c1 = (f + 1) * CELLS / FRAGMENTS;
        rec->updates = 0;
        for (int i = 0; i < sites; i++)
            if (tau[i]) rec->update[rec->updates++] = (struct neb_named){.site = (uint16_t)i, .tau = tau[i]};
        neb__tempo_count(t, rec, CELLS, FRAGMENTS);
        neb__free(rec);
    }
}

static void nothing_is_known(void **state)
{
    (void)state;
    struct neb_tempo t = {0};
    assert_float_equal(neb__tempo_of(&t, 0), 1, 0);
    assert_float_equal(neb__tempo_furthest(&t, 0, 0), 0, 0);
    round_of(&t, (const uint32_t[]){100}, 1);
    assert_float_equal(neb__tempo_of(&t, 1), 1, 0); /* in no record yet: nobody knows its speed */
}

/* The first round waits for the slowest site; from then on each has as many steps as its speed gives. */
static void steps_are_speeds(void **state)
{
    (void)state;
    struct neb_tempo t = {0};
    static const double speed[] = {1, 0.5, 0.2, 0.1};
    round_of(&t, (const uint32_t[]){100, 100, 100, 100}, 4);
    for (int i = 0; i < 4; i++) assert_float_equal(neb__tempo_of(&t, (uint16_t)i), 1, 1e-9);
    for (int k = 0; k < 20; k++) round_of(&t, (const uint32_t[]){100, 50, 20, 10}, 4);
    for (int i = 0; i < 4; i++) assert_float_equal(neb__tempo_of(&t, (uint16_t)i), speed[i], 0.01);
    assert_float_equal(neb__tempo_furthest(&t, 3, 0), 2100, 1e-6);
}

/* A site whose line is thin sends four intervals at once. It is not faster than the others, nor they slower. */
static void a_late_site_is_not_slow(void **state)
{
    (void)state;
    struct neb_tempo t = {0};
    for (int k = 0; k < 40; k++) round_of(&t, (const uint32_t[]){100, k % 4 == 3 ? 400 : 0}, 2);
    assert_true(neb__tempo_of(&t, 0) > 0.6);
    assert_true(neb__tempo_of(&t, 1) > 0.6);
    assert_float_equal(neb__tempo_furthest(&t, 0, 0), 4000, 1e-6);
}

/* A site was away: its tempo is that of the last rounds, and comes back with it. */
static void the_past_fades(void **state)
{
    (void)state;
    struct neb_tempo t = {0};
    for (int k = 0; k < 20; k++) round_of(&t, (const uint32_t[]){100, 100}, 2);
    for (int k = 0; k < 20; k++) round_of(&t, (const uint32_t[]){100, 0}, 2);
    assert_true(neb__tempo_of(&t, 1) < 0.1 && neb__tempo_of(&t, 1) > 0);
    for (int k = 0; k < 10; k++) round_of(&t, (const uint32_t[]){100, 100}, 2);
    assert_true(neb__tempo_of(&t, 1) > 0.9);
}

static void a_claim_has_a_bound(void **state)
{
    (void)state;
    struct neb_tempo t = {0};
    for (int k = 0; k < 20; k++) round_of(&t, (const uint32_t[]){100, 100, 4000000000u}, 3);
    assert_float_equal(neb__tempo_of(&t, 0), 1 / 16.0, 1e-9);
    assert_float_equal(neb__tempo_furthest(&t, 0, 0), 16 * 2000.0, 1e-6);
    struct neb_record *rec = neb__record_new(1);
    assert_non_null(rec);
    rec->c1 = CELLS;
    rec->updates = 1;
    rec->update[0] = (struct neb_named){.site = 5, .tau = 7, .reject = NEB_REJECT_NORM};
    neb__tempo_count(&t, rec, CELLS, FRAGMENTS);
    assert_float_equal(t.all[5], 0, 0); /* rejected */
    neb__free(rec);
}

/* The first record of a run may name one site alone. Whoever reads it has made steps, too. */
static void the_first_claim_has_a_bound(void **state)
{
    (void)state;
    struct neb_tempo t = {0};
    round_of(&t, (const uint32_t[]){0, 4000000000u}, 2);
    assert_float_equal(neb__tempo_furthest(&t, 0, 0), 0, 0);
    assert_float_equal(neb__tempo_furthest(&t, 0, 50), 16 * 50.0, 1e-6);
    struct neb_tempo honest = {0};
    round_of(&honest, (const uint32_t[]){0, 100}, 2);
    assert_float_equal(neb__tempo_furthest(&honest, 0, 10), 100, 1e-6);
    assert_float_equal(neb__tempo_furthest(&honest, 1, 120), 120, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known),        cmocka_unit_test(steps_are_speeds),
        cmocka_unit_test(a_late_site_is_not_slow), cmocka_unit_test(the_past_fades),
        cmocka_unit_test(a_claim_has_a_bound),     cmocka_unit_test(the_first_claim_has_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
