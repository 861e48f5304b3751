/* test_session_secure.c: sessions whose updates are masked: they learn the same mean, a site that leaves does not stop four of them,
 * three wait for it and go on when it is back, and what does not fit is refused. */
#include "check.h"
#include "sites.h"
#include "base/mem.h"
#include "run/replay.h"
#include "run/secure.h"

#include <math.h>
#include <nebula/nebula.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { VALUES = 3000 };

struct member {
    neb_session *session;
    const char *dir;
    float x[VALUES], target;
    atomic_bool stop;
    neb_status status;
    pthread_t thread;
    struct neb_buf checkpoint;
};

static void *train(void *arg)
{
    struct member *m = arg;
    while (!atomic_load(&m->stop) && m->status == NEB_OK) {
        bool changed;
        for (int i = 0; i < VALUES; i++) m->x[i] += 0.02f * (m->target * (float)(1 + i % 7) - m->x[i]);
        m->status = neb_step(m->session, 64, &changed);
        sleep_ms(2);
    }
    return NULL;
}

static void begin(struct member *m, const char *dir, float target)
{
    struct neb_session_config c = neb_session_defaults();
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    for (int i = 0; i < VALUES; i++) m->x[i] = 0.25f * (float)(i % 5);
    c.interval = 5;
    c.round_ms = 700;
    c.outer_lr = 1;
    c.outer_momentum = 0.3f;
    c.archive = true;
    m->dir = dir;
    m->target = target;
    m->status = NEB_OK;
    atomic_store(&m->stop, false);
    assert_ok(neb_session_open(dir, &c, &m->session));
    assert_ok(neb__session_set_secure(m->session));
    assert_ok(neb_session_register(m->session, &p));
    if (m->checkpoint.len) assert_ok(neb_session_load(m->session, m->checkpoint.data, m->checkpoint.len));
    assert_ok(neb_session_start(m->session, 0));
    pthread_create(&m->thread, NULL, train, m);
}

static void halt(struct member *m)
{
    atomic_store(&m->stop, true);
    pthread_join(m->thread, NULL);
    assert_ok(m->status);
}

static void end(struct member *m)
{
    if (!m->session) return;
    halt(m);
    neb_session_close(m->session);
    m->session = NULL;
}

/* Sums that this site has applied: `with`, whose updates. */
static int sums(struct member *m, unsigned with, int *voids)
{
    int n = 0;
    *voids = 0;
    pthread_mutex_lock(&m->session->busy);
    struct neb_round_status st;
    neb__round_status(m->session->core, &st);
    for (uint64_t i = 1; i <= st.applied; i++) {
        const struct neb_record *rec = neb__round_record(m->session->core, i);
        assert_true(rec->type != NEB_RECORD_ROUND || rec->attempt);
        *voids += neb__record_is_void(rec);
        n += rec->type == NEB_RECORD_ROUND && rec->seeds && (!with || neb__record_of(rec, with));
    }
    pthread_mutex_unlock(&m->session->busy);
    return n;
}

static void wait_for_sums(struct member *m, unsigned with, int more)
{
    int voids, until = sums(m, with, &voids) + more;
    for (int i = 0; i < 2400 && sums(m, with, &voids) < until; i++) sleep_ms(50);
    int n = sums(m, with, &voids);
    if (n < until) fail_msg("%d of %d sums, %d void", n, until, voids);
}

static void root_of(const char *dir, uint64_t upto, struct neb_hash *out)
{
    struct neb_replay r;
    assert_ok(neb__run_replay(dir, "", upto, &r));
    *out = r.root;
}

/* Every update on disk is masked, and a replay of the archive comes to the state that the sites signed. */
static void three_sites_learn_the_mean(void **state)
{
    (void)state;
    struct sites sites;
    struct member *m = NEB_NEW_ARRAY(struct member, 3);
    int voids;
    sites_make(&sites, 3, NULL);
    sites_rule(&sites, "clip=2");
    for (int i = 0; i < 3; i++) begin(&m[i], sites.path[i], (float)i); /* the mean is 1 */
    wait_for_sums(&m[0], 0, 25);
    (void)sums(&m[0], 0, &voids);
    assert_int_equal(0, voids);
    struct neb_session_status st;
    for (int i = 0; i < 3; i++) halt(&m[i]);
    neb_session_get_status(m[0].session, &st);
    for (int k = 0; k < VALUES; k += 100) {
        double theta = (double)m[0].session->mirror.outer->theta[k];
        assert_true(fabs(theta - (1 + k % 7)) < 0.35 * (1 + k % 7));
    }
    for (int i = 0; i < 3; i++) neb_session_close(m[i].session);
    struct neb_hash root[2];
    for (int i = 0; i < 2; i++) root_of(sites.path[i], (uint64_t)st.root_at, &root[i]);
    assert_memory_equal(root[0].b, root[1].b, NEB_HASH_SIZE);
    assert_memory_equal(root[0].b, st.root, NEB_HASH_SIZE);
    neb__free(m);
    sites_free(&sites);
}

static void save(struct member *m)
{
    size_t n = 0;
    assert_ok(neb_session_save(m->session, NULL, &n));
    neb__buf_init(&m->checkpoint, n);
    assert_ok(neb__buf_reserve(&m->checkpoint, n));
    assert_ok(neb_session_save(m->session, m->checkpoint.data, &n));
    m->checkpoint.len = n;
}

/* Three need all of them; the one that comes back is in the next sum. */
static void three_sites_wait_for_one(void **state)
{
    (void)state;
    struct sites sites;
    struct member *m = NEB_NEW_ARRAY(struct member, 3);
    sites_make(&sites, 3, NULL);
    for (int i = 0; i < 3; i++) begin(&m[i], sites.path[i], (float)i);
    wait_for_sums(&m[1], 0, 3);
    halt(&m[2]);
    save(&m[2]);
    neb_session_close(m[2].session);
    int voids, n = sums(&m[1], 0, &voids);
    sleep_ms(1500);
    assert_true(sums(&m[1], 0, &voids) <= n + 1);
    begin(&m[2], sites.path[2], 2);
    wait_for_sums(&m[1], 0, 3);
    for (int i = 0; i < 3; i++) end(&m[i]);
    neb__buf_free(&m[2].checkpoint);
    neb__free(m);
    sites_free(&sites);
}

/* Four go on without one: the masks that they had with it are taken off by its key. */
static void four_sites_go_on_with_three(void **state)
{
    (void)state;
    struct sites sites;
    struct member *m = NEB_NEW_ARRAY(struct member, 4);
    int voids;
    sites_make(&sites, 4, NULL);
    for (int i = 0; i < 4; i++) begin(&m[i], sites.path[i], (float)i);
    wait_for_sums(&m[0], 4, 3);
    end(&m[3]);
    wait_for_sums(&m[0], 0, 4);
    (void)sums(&m[0], 0, &voids);
    for (int i = 0; i < 3; i++) end(&m[i]);
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
