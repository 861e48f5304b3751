/* test_session_exit.c: processes that exit at any moment without closing their sessions: none crashes, none hangs, and the
 * status file of each site says that it stopped. */
#include "check.h"
#include "sites.h"

#include <nebula/log.h>
#include <nebula/nebula.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VALUES = 20000, EXITS = 10, CODE = 7, LATEST_MS = 1500 };

struct member {
    neb_session *session;
    pthread_t thread;
    float x[VALUES];
};

static void open_member(struct member *m, const char *dir)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 2;
    c.fragments = 1;
    c.round_ms = 1500;
    c.rung = "int8";
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    if (neb_session_open(dir, &c, &m->session) != NEB_OK || neb_session_register(m->session, &p) != NEB_OK ||
        neb_session_start(m->session, 0) != NEB_OK)
        _exit(1);
}

static void *train(void *arg)
{
    struct member *m = arg;
    bool changed;
    for (;;) {
        for (int i = 0; i < VALUES; i++) m->x[i] += 0.01f * (1 - m->x[i]);
        if (neb_step_within(m->session, 8, 0.2, &changed) == NEB_ERR_NONFINITE) _exit(2);
        usleep(500);
    }
    return NULL;
}

/* These processes leave their memory to the system on purpose; every other error is still looked for. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

/* Registered before OpenSSL's handler, so it runs after it: a large program, too, takes its time to end. */
static bool lingers;

static void linger(void)
{
    if (lingers) sleep_ms(400);
}

/* exit() comes while the training loops and the sessions' own threads are at work. A child of fork() has a copy of the
 * sessions and must leave them alone. */
static void leave_open(const struct sites *sites, int after_ms)
{
    static struct member m[2];
    alarm(60);
    for (int i = 0; i < 2; i++) open_member(&m[i], sites->path[i]);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&m[i].thread, NULL, train, &m[i])) _exit(3);
    sleep_ms(after_ms);
    pid_t child = fork();
    if (child == 0) {
        neb_session_close(m[0].session);
        exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status) _exit(4);
    lingers = true;
    exit(CODE);
}

static void check_stopped(const char *dir)
{
    char path[300], text[8192] = "";
    snprintf(path, sizeof path, "%s/run/status.json", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    assert_non_null(strstr(text, "\"stopped\""));
}

static void test_exit_without_close(void **state)
{
    (void)state;
    for (int i = 0; i < EXITS; i++) {
        struct sites sites;
        sites_make(&sites, 2, "localhost");
        int status, after = (int)((7919u * (unsigned)i + 104729u * (unsigned)getpid()) % LATEST_MS);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            neb_log_set_level(NEB_LOG_ERROR);
            leave_open(&sites, after);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != CODE)
            fail_msg("exit() after %d ms: wait status %#x", after, (unsigned)status);
        for (int k = 0; k < 2; k++) check_stopped(sites.path[k]);
        sites_free(&sites);
    }
}

int main(void)
{
    if (atexit(linger)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exit_without_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
