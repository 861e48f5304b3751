/* test_session_disk.c: what a site finds in its folder when it starts again: a checkpoint from before the first record, a
 * ledger rotten at its beginning, a folder that a full disk left half made. The two sites must go on as one run. */
#include "check.h"
#include "sites.h"
#include "base/mem.h"
#include "run/job_facts.h"
#include "run/session.h"

#include <nebula/nebula.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { VALUES = 300000 }; /* more than one cell */

struct member {
    neb_session *session;
    const char *dir;
    float x[VALUES], target;
    void *state;
    size_t state_size;
};

static neb_status open_member(struct member *m)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 10;
    c.fragments = 2;
    c.round_ms = 1500;
    c.outer_lr = 1;
    c.outer_momentum = 0;
    c.rung = "int8";
    NEB_TRY(neb_session_open(m->dir, &c, &m->session));
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    NEB_TRY(neb_session_register(m->session, &p));
    if (m->state) NEB_TRY(neb_session_load(m->session, m->state, m->state_size));
    return neb_session_start(m->session, 0);
}

static struct neb_session_status status_of(struct member *m)
{
    struct neb_session_status s;
    neb_session_get_status(m->session, &s);
    return s;
}

static void steps(struct member *m, int n)
{
    for (int k = 0; k < n; k++) {
        bool changed;
        for (int i = 0; i < VALUES; i++) m->x[i] += 0.004f * (m->target - m->x[i]);
        assert_ok(neb_step(m->session, 64, &changed));
    }
}

static void have_leader(struct member *m)
{
    for (int i = 0; i < 2400; i++, sleep_ms(50))
        if (status_of(&m[0]).leader || status_of(&m[1]).leader) return;
    fail_msg("no leader after two minutes");
}

/* Both train until so many more records are applied by both. */
static void records(struct member *m, int64_t more)
{
    int64_t from[2] = {status_of(&m[0]).applied, status_of(&m[1]).applied};
    for (int k = 0; k < 12000; k++, sleep_ms(10)) {
        for (int i = 0; i < 2; i++) steps(&m[i], 1);
        if (status_of(&m[0]).applied >= from[0] + more && status_of(&m[1]).applied >= from[1] + more) return;
    }
    fail_msg("%d and %d records of %d", (int)(status_of(&m[0]).applied - from[0]),
             (int)(status_of(&m[1]).applied - from[1]), (int)more);
}

static void save(struct member *m)
{
    assert_ok(neb_session_save(m->session, NULL, &m->state_size));
    m->state = neb__malloc(m->state_size);
    assert_ok(neb_session_save(m->session, m->state, &m->state_size));
}

static const char *in_run(const struct member *m, const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/run/%s", m->dir, name);
    return path;
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(c ^ 1, f);
    assert_int_equal(fclose(f), 0);
}

static struct sites sites;
static struct member m[2];

static int make(void **state)
{
    (void)state;
    sites_make(&sites, 2, NULL);
    memset(m, 0, sizeof m);
    for (int i = 0; i < 2; i++) m[i].dir = sites.path[i], m[i].target = i ? 1 : -0.5f;
    return 0;
}

static int drop(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        neb_session_close(m[i].session);
        neb__free(m[i].state);
    }
    check_log_restore();
    sites_free(&sites);
    return 0;
}

/* As a trainer does: the checkpoint is in the parameters, the initial values are no longer there. */
static void a_checkpoint_before_the_first_record(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) assert_ok(open_member(&m[i]));
    have_leader(m);
    steps(&m[1], 5); /* of an interval of 10 */
    assert_int_equal(status_of(&m[1]).applied, 0);
    for (int again = 0; again < 2; again++) {
        neb__free(m[1].state);
        save(&m[1]);
        neb_session_close(m[1].session);
        m[1].session = NULL;
        assert_ok(open_member(&m[1]));
    }
    records(m, 2);
}

static void a_ledger_rotten_at_its_beginning(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) assert_ok(open_member(&m[i]));
    have_leader(m);
    records(m, 4);
    save(&m[1]);
    neb_session_close(m[1].session);
    m[1].session = NULL;
    flip(in_run(&m[1], "ledger"), 20);
    assert_ok(open_member(&m[1]));
    records(m, 2);
}

/* Where there was no room for a first byte: that is a site that never began, not one that forgot what it promised. */
static void a_folder_that_a_full_disk_left(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mkdir(in_run(&m[i], ""), 0700), 0);
        FILE *f = fopen(in_run(&m[i], "ledger"), "w");
        assert_non_null(f);
        assert_int_equal(fclose(f), 0);
        assert_ok(open_member(&m[i]));
    }
    have_leader(m);
    records(m, 1);
}

/* A file of another run among them is whole by itself, but not what this one began with. */
static void initial_values_that_do_not_belong_together(void **state)
{
    (void)state;
    static float other[VALUES];
    for (int again = 0; again < 2; again++) {
        assert_ok(open_member(&m[1]));
        if (!again) save(&m[1]);
        other[0] = (float)again; /* at first the same values */
        size_t n = (VALUES - NEB_CELL) * sizeof *other;
        pthread_mutex_lock(&m[1].session->busy); /* the disk is the driver's */
        assert_ok(neb__blob_save(&m[1].session->disk, "genesis-1", other, n, true));
        pthread_mutex_unlock(&m[1].session->busy);
        neb_session_close(m[1].session);
        m[1].session = NULL;
    }
    check_log_quiet();
    assert_status(open_member(&m[1]), NEB_ERR_CORRUPT);
    assert_non_null(strstr(neb_last_error(), "genesis files of another site"));
}

static neb_status start_small(struct member *one)
{
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {1000}, .values = one->x};
    one->session = NULL;
    NEB_TRY(neb_session_open(one->dir, NULL, &one->session));
    NEB_TRY(neb__session_facts(one->session, "name=x", 6));
    NEB_TRY(neb_session_register(one->session, &p));
    return neb_session_start(one->session, 0);
}

/* Nothing is left behind in memory, and the folder can be started again: first one that never began, then one that did. */
static void every_allocation_of_a_start_may_fail(void **state)
{
    (void)state;
    check_log_quiet();
    assert_ok(start_small(&m[0])); /* tables that stay until the process ends are made now */
    neb_session_close(m[0].session);
    m[0].session = NULL;
    for (int site = 1; site >= 0; site--) {
        int64_t held = neb__mem_held(), count = 0;
        neb_status status = NEB_ERR_NOMEM;
        for (int64_t n = 1; status != NEB_OK || count >= n; n++) {
            neb__mem_fail_at(n);
            status = start_small(&m[site]);
            count = neb__mem_count();
            neb__mem_fail_at(0);
            neb_session_close(m[site].session);
            m[site].session = NULL;
            if (neb__mem_held() != held)
                fail_msg("allocation %d failed: %d blocks are left", (int)n, (int)(neb__mem_held() - held));
            if (n > 20000) fail_msg("a start makes too many allocations");
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_checkpoint_before_the_first_record, make, drop),
        cmocka_unit_test_setup_teardown(a_ledger_rotten_at_its_beginning, make, drop),
        cmocka_unit_test_setup_teardown(a_folder_that_a_full_disk_left, make, drop),
        cmocka_unit_test_setup_teardown(initial_values_that_do_not_belong_together, make, drop),
        cmocka_unit_test_setup_teardown(every_allocation_of_a_start_may_fail, make, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
