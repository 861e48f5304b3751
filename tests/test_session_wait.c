/* test_session_wait.c: a site never waits in silence: after three seconds a line says for whom and for what, once, and the
 * status says so all the time. */
#include "check.h"
#include "sites.h"
#include "base/clock.h"
#include "base/mem.h"
#include "run/session.h"

#include <nebula/log.h>
#include <nebula/nebula.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { VALUES = 300000, TOKENS = 64, PATIENCE_S = 60 };

/* ---- what is logged ------------------------------------------------------------------------------------------- */

static pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;
static char journal[1 << 16];
static const char *expected;

static void on_log(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&journal_lock);
    size_t n = strlen(journal);
    snprintf(journal + n, sizeof journal - n, "%s\n", line);
    pthread_mutex_unlock(&journal_lock);
}

static int logged(const char *text)
{
    int n = 0;
    pthread_mutex_lock(&journal_lock);
    for (const char *p = journal; (p = strstr(p, text)); p++) n++;
    pthread_mutex_unlock(&journal_lock);
    return n;
}

static int set_up(void **state)
{
    (void)state;
    journal[0] = 0;
    neb_log_set_level(NEB_LOG_INFO);
    neb_log_set_sink(on_log, NULL);
    return 0;
}

/* The line is there once, however long the wait lasted. */
static int tear_down(void **state)
{
    (void)state;
    if (logged(expected) != 1) print_error("said %d times: '%s'\n", logged(expected), expected);
    if (logged(expected) != 1) return -1;
    neb_log_set_sink(NULL, NULL);
    return 0;
}

static void says(const char *text)
{
    int64_t since = neb__now_ns();
    while (!logged(text) && neb__seconds_since(since) < PATIENCE_S) sleep_ms(20);
    if (!logged(text)) fail_msg("nobody says '%s' in:\n%s", text, journal);
    expected = text;
}

/* The status names the site that is waited for. */
static struct neb_session_status waits_for(neb_session *s, const char *site, const char *what)
{
    struct neb_session_status st;
    int64_t since = neb__now_ns();
    do {
        sleep_ms(20);
        neb_session_get_status(s, &st);
    } while ((!strstr(st.waiting_for, site) || !strstr(st.note, what)) &&
             neb__seconds_since(since) < PATIENCE_S);
    if (!strstr(st.waiting_for, site) || !strstr(st.note, what))
        fail_msg("waits for '%s': '%s'; expected '%s' and '%s'", st.waiting_for, st.note, site, what);
    assert_true(st.waiting_s >= 0);
    return st;
}

/* ---- sites ---------------------------------------------------------------------------------------------------- */

struct member {
    neb_session *session;
    const char *dir;
    float *x;
    int64_t drift_steps;
    uint64_t token_target;
    double end_seconds;
    int steps;   /* to make; then it goes on without steps, or stops calling */
    bool to_end; /* it goes on until the run ends */
    atomic_bool stop;
    neb_status status;
    pthread_t thread;
};

static void open_member(struct member *m)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 5;
    c.fragments = 1;
    c.round_ms = 1000;
    c.rung = "int8";
    c.drift_steps = m->drift_steps;
    c.token_target = m->token_target;
    c.end_seconds = m->end_seconds;
    if (!m->x) m->x = neb__calloc(VALUES, sizeof *m->x);
    assert_ok(neb_session_open(m->dir, &c, &m->session));
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    assert_ok(neb_session_register(m->session, &p));
    assert_ok(neb_session_start(m->session, 0));
}

static void *train(void *arg)
{
    struct member *m = arg;
    bool changed;
    m->status = NEB_OK;
    for (int i = 0; i < m->steps && m->status == NEB_OK && !m->stop; i++) {
        for (int k = 0; k < VALUES; k++) m->x[k] += 0.001f * (float)(k % 7);
        m->status = neb_step_within(m->session, TOKENS, 0.2, &changed);
        while (m->status == NEB_ERR_AGAIN && !m->stop)
            m->status = neb_step_within(m->session, NEB_NO_STEP, 0.2, &changed);
        sleep_ms(2);
    }
    while (m->to_end && !m->stop && (m->status == NEB_OK || m->status == NEB_ERR_AGAIN)) {
        m->status = neb_step_within(m->session, NEB_NO_STEP, 0.2, &changed);
        sleep_ms(20);
    }
    return NULL;
}

static void drop(struct member *m)
{
    neb_session_close(m->session);
    m->session = NULL;
    neb__free(m->x);
    m->x = NULL;
}

static void both_are_there(struct member m[2])
{
    for (int i = 0; i < 2; i++) {
        struct neb_session_status st;
        int64_t since = neb__now_ns();
        do {
            sleep_ms(20);
            neb_session_get_status(m[i].session, &st);
        } while (!st.caught_up && neb__seconds_since(since) < PATIENCE_S);
        assert_true(st.caught_up);
    }
}

/* ---- the waits ------------------------------------------------------------------------------------------------ */

static void at_the_start_for_the_others(void **state)
{
    (void)state;
    struct sites sites;
    sites_make(&sites, 2, NULL);
    struct member m[2] = {{.dir = sites.path[0]}, {.dir = sites.path[1]}};
    open_member(&m[0]);
    waits_for(m[0].session, "s1 (not connected)", "a quorum of the sites must be connected");
    says("waiting for s1 (not connected): a quorum of the sites must be connected; until it is connected");
    open_member(&m[1]);
    both_are_there(m);
    struct neb_session_status st;
    int64_t since = neb__now_ns();
    do {
        sleep_ms(20);
        neb_session_get_status(m[0].session, &st);
    } while (st.waiting_s > 0 && neb__seconds_since(since) < PATIENCE_S);
    assert_true(!st.waiting_for[0] && !st.note[0] && !(st.waiting_s > 0));
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

/* A site that has made all the steps that it may without the others. */
static void at_the_drift_limit(void **state)
{
    (void)state;
    struct sites sites;
    sites_make(&sites, 2, NULL);
    struct member m[2] = {{.dir = sites.path[0]}, {.dir = sites.path[1]}};
    for (int i = 0; i < 2; i++) m[i].drift_steps = 20, open_member(&m[i]);
    both_are_there(m);
    drop(&m[1]);
    m[0].steps = 100000;
    pthread_create(&m[0].thread, NULL, train, &m[0]);
    waits_for(m[0].session, "s1 (not connected)", "waiting for s1");
    says("waiting for s1 (not connected)");
    m[0].stop = true;
    pthread_join(m[0].thread, NULL);
    assert_int_equal(m[0].status, NEB_ERR_AGAIN);
    drop(&m[0]);
    sites_free(&sites);
}

/* The token target is reached, and one site does not call neb_step(): the others wait for its last update, and no longer
 * than the end may take. */
static void at_the_end_for_last_updates(void **state)
{
    (void)state;
    struct sites sites;
    bool changed;
    sites_make(&sites, 2, NULL);
    struct member m[2] = {{.dir = sites.path[0]}, {.dir = sites.path[1]}};
    for (int i = 0; i < 2; i++) {
        m[i].token_target = TOKENS * 40, m[i].end_seconds = 5;
        open_member(&m[i]);
    }
    both_are_there(m);
    m[0].steps = 100000, m[1].steps = 30;
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    pthread_join(m[1].thread, NULL);
    bool leads[2];
    struct neb_session_status st = waits_for(m[0].session, "s1", "the last updates of the run");
    assert_true(st.seconds_left >= 0 && st.seconds_left <= 5);
    assert_string_equal(st.state, "ending");
    for (int i = 0; i < 2; i++) {
        neb_session_get_status(m[i].session, &st);
        leads[i] = st.leader;
    }
    assert_true(leads[0] || leads[1]);
    says("waiting for s1: the last updates of the run");
    pthread_join(m[0].thread, NULL); /* without a word of the other site's loop */
    assert_int_equal(m[0].status, NEB_ERR_CANCELLED);
    assert_int_equal(neb_step_within(m[1].session, NEB_NO_STEP, PATIENCE_S, &changed), NEB_ERR_CANCELLED);
    assert_memory_equal(m[0].x, m[1].x, VALUES * sizeof(float));
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

/* A caller that makes no more steps of its own, as the Python session does at the end of its `with` block. */
static void for_the_tokens_of_the_others(void **state)
{
    (void)state;
    struct sites sites;
    sites_make(&sites, 2, NULL);
    struct member m[2] = {{.dir = sites.path[0]}, {.dir = sites.path[1]}};
    for (int i = 0; i < 2; i++) m[i].token_target = TOKENS * 150, m[i].steps = 12, open_member(&m[i]);
    both_are_there(m);
    m[0].to_end = true;
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    pthread_join(m[1].thread, NULL);
    waits_for(m[0].session, "s1", "of 9600 tokens are made");
    says("waiting for s1: the run goes on there");
    m[0].stop = true;
    pthread_join(m[0].thread, NULL);
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

/* ---- streams -------------------------------------------------------------------------------------------------- */

struct end {
    neb_session *session;
    neb_stream *stream;
    pthread_t thread;
    neb_status status;
};

static void open_end(struct end *e, const char *dir, const char *other, bool produce)
{
    struct neb_session_config c = neb_session_defaults();
    struct neb_stream_config k = {.site = other, .number = 7, .produce = produce, .items = 2};
    assert_ok(neb_session_open(dir, &c, &e->session));
    assert_ok(neb_session_start(e->session, 0));
    assert_ok(neb_stream_open(e->session, &k, &e->stream));
}

static void *get_one(void *arg)
{
    struct end *e = arg;
    const void *bytes;
    size_t n;
    uint64_t item;
    e->status = neb_stream_get(e->stream, -1, &bytes, &n, &item);
    return NULL;
}

static void for_items_and_for_credit(void **state)
{
    (void)state;
    struct sites sites;
    struct end e[2];
    sites_make(&sites, 2, NULL);
    open_end(&e[0], sites.path[0], "s1", true);
    open_end(&e[1], sites.path[1], "s0", false);
    pthread_create(&e[1].thread, NULL, get_one, &e[1]);
    waits_for(e[1].session, "s0", "the next items, item 1");
    says("waiting for s0: the next items, item 1");
    assert_ok(neb_stream_put(e[0].stream, 1, "item", 4, PATIENCE_S));
    pthread_join(e[1].thread, NULL);
    assert_ok(e[1].status);
    neb_stream_close(e[1].stream);
    neb_session_close(e[1].session);
    neb_status put = NEB_OK;
    for (uint64_t i = 2; i < 10 && put == NEB_OK; i++) put = neb_stream_put(e[0].stream, i, "item", 4, 1);
    assert_int_equal(put, NEB_ERR_TIMEOUT);
    waits_for(e[0].session, "s1 (not connected)", "room for no more items");
    neb_stream_close(e[0].stream);
    neb_session_close(e[0].session);
    sites_free(&sites);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(at_the_start_for_the_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(at_the_drift_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(at_the_end_for_last_updates, set_up, tear_down),
        cmocka_unit_test_setup_teardown(for_the_tokens_of_the_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(for_items_and_for_credit, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
