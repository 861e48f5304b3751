/* test_session_secure.c: sessions whose updates are masked: they learn the same mean, a site that leaves does not stop four of them,
 * three wait for it and go on when it is back, and what does not fit is refused. */
#include "check.h"
#include "sites.h"
#include "summing.h"
#include "base/mem.h"
#include "run/audit.h"
#include "run/replay.h"
#include "run/secure.h"

#include <math.h>
#include <string.h>

static void root_of(const char *dir, uint64_t upto, struct neb_hash *out)
{
    struct neb_replay r;
    assert_ok(neb__run_replay(dir, "", upto, &r));
    *out = r.root;
}

/* Nothing is wrong, and each update counts once, although SURVIVORS names it, too. */
static void audited(const char *dir)
{
    struct neb_audit *a;
    assert_ok(neb__run_audit(dir, NULL, NULL, &a));
    if (a->problems) fail_msg("%s", a->problem[0]);
    assert_true(a->replayed && a->rounds);
    for (int i = 0; i < NEB_SITES_MAX; i++) assert_true(a->site[i].seen <= a->site[i].named);
    neb__free(a);
}

/* Every update on disk is masked, and a replay of the archive comes to the state that the sites signed. */
static void three_sites_learn_the_mean(void **state)
{
    (void)state;
    struct sites sites;
    struct summing *m = NEB_NEW_ARRAY(struct summing, 3);
    int voids;
    sites_make(&sites, 3, NULL);
    sites_rule(&sites, "clip=2");
    for (int i = 0; i < 3; i++) summing_begin(&m[i], sites.path[i], (float)i); /* the mean is 1 */
    summing_wait(&m[0], 0, 25);
    (void)summing_sums(&m[0], 0, &voids);
    assert_int_equal(0, voids);
    struct neb_session_status st;
    for (int i = 0; i < 3; i++) summing_halt(&m[i]);
    neb_session_get_status(m[0].session, &st);
    for (int k = 0; k < SUMMING_VALUES; k += 100) {
        double theta = (double)m[0].session->mirror.outer->theta[k];
        assert_true(fabs(theta - (1 + k % 7)) < 0.35 * (1 + k % 7));
    }
    for (int i = 0; i < 3; i++) neb_session_close(m[i].session);
    struct neb_hash root[2];
    for (int i = 0; i < 2; i++) root_of(sites.path[i], (uint64_t)st.root_at, &root[i]);
    assert_memory_equal(root[0].b, root[1].b, NEB_HASH_SIZE);
    assert_memory_equal(root[0].b, st.root, NEB_HASH_SIZE);
    audited(sites.path[0]);
    neb__free(m);
    sites_free(&sites);
}

/* Three need all of them; the one that comes back is in the next sum. */
static void three_sites_wait_for_one(void **state)
{
    (void)state;
    struct sites sites;
    struct summing *m = NEB_NEW_ARRAY(struct summing, 3);
    sites_make(&sites, 3, NULL);
    for (int i = 0; i < 3; i++) summing_begin(&m[i], sites.path[i], (float)i);
    summing_wait(&m[1], 0, 3);
    summing_halt(&m[2]);
    summing_save(&m[2]);
    neb_session_close(m[2].session);
    int voids, n = summing_sums(&m[1], 0, &voids);
    sleep_ms(1500);
    assert_true(summing_sums(&m[1], 0, &voids) <= n + 1);
    summing_begin(&m[2], sites.path[2], 2);
    summing_wait(&m[1], 0, 3);
    for (int i = 0; i < 3; i++) summing_end(&m[i]);
    neb__buf_free(&m[2].checkpoint);
    neb__free(m);
    sites_free(&sites);
}

/* Four go on without one: the masks that they had with it are taken off by its key. */
static void four_sites_go_on_with_three(void **state)
{
    (void)state;
    struct sites sites;
    struct summing *m = NEB_NEW_ARRAY(struct summing, 4);
    int voids;
    sites_make(&sites, 4, NULL);
    for (int i = 0; i < 4; i++) summing_begin(&m[i], sites.path[i], (float)i);
    summing_wait(&m[0], 4, 3);
    summing_end(&m[3]);
    summing_wait(&m[0], 0, 4);
    (void)summing_sums(&m[0], 0, &voids);
    for (int i = 0; i < 3; i++) summing_end(&m[i]);
    neb__free(m);
    sites_free(&sites);
}

static void two_sites_are_refused(void **state)
{
    (void)state;
    struct sites sites;
    struct neb_session_config c = neb_session_defaults();
    float x[8] = {0};
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {8}, .values = x};
    neb_session *s;
    sites_make(&sites, 2, NULL);
    assert_ok(neb_session_open(sites.path[0], &c, &s));
    assert_ok(neb__session_set_secure(s));
    assert_ok(neb_session_register(s, &p));
    assert_int_equal(NEB_ERR_CONFIG, neb_session_start(s, 0));
    assert_non_null(strstr(neb_last_error(), "three sites"));
    neb_session_close(s);
    c.rung = "int4";
    assert_ok(neb_session_open(sites.path[0], &c, &s));
    assert_int_equal(NEB_ERR_CONFIG, neb__session_set_secure(s));
    neb_session_close(s);
    sites_free(&sites);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_sites_are_refused),
        cmocka_unit_test(three_sites_learn_the_mean),
        cmocka_unit_test(four_sites_go_on_with_three),
        cmocka_unit_test(three_sites_wait_for_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
