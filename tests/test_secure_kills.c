/* test_secure_kills.c: one of four sites is killed at each step of a secure sum: before and after its offer, before and after its masked
 * update, and when it has revealed its shares. The others go on, every attempt that was opened ends once, as RESULT or as VOID, and the
 * site is in a sum again after its next start.
 *
 * The victim is a process of its own (this program with arguments). It looks at its own state between steps, and kills itself while it
 * holds the lock, so that it dies at that step and no other. */
#include "check.h"
#include "sites.h"
#include "stepping.h"
#include "base/mem.h"
#include "run/secure.h"

#include <nebula/nebula.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SITES = 4, VICTIM = 3, VALUES = 900 };
enum step { BEFORE_OFFER, AFTER_OFFER, BEFORE_UPDATE, AFTER_UPDATE, AFTER_REVEAL, STEPS };

struct member {
    neb_session *session;
    float x[VALUES];
    int site;
    int dies_at; /* STEPS: not at all */
    atomic_bool stop;
    neb_status status;
    pthread_t thread;
};

static bool is_at(const struct member *m)
{
    const struct neb_sum_attempt *a = &m->session->sums->fragment[0];
    struct neb_round_attempt now;
    if (!m->session->core || !neb__round_attempt(m->session->core, a->c0, &now)) return false;
    switch (m->dies_at) {
    case BEFORE_OFFER: return !now.open && a->keyed && !a->dealt;
    case AFTER_OFFER: return !now.open && a->dealt;
    case BEFORE_UPDATE: return now.open && !now.survivors && a->attempt == now.attempt && !a->used;
    case AFTER_UPDATE: return now.open && !now.survivors && a->attempt == now.attempt && a->used;
    case AFTER_REVEAL: return now.survivors && a->revealed == now.survivors;
    default: return false;
    }
}

static void die_if_due(struct member *m)
{
    if (m->dies_at == STEPS) return;
    for (int i = 0; i < 20; i++) {
        pthread_mutex_lock(&m->session->busy);
        if (is_at(m)) raise(SIGKILL);
        pthread_mutex_unlock(&m->session->busy);
        usleep(100);
    }
}

static void *train(void *arg)
{
    struct member *m = arg;
    while (!atomic_load(&m->stop) && m->status == NEB_OK) {
        for (int i = 0; i < VALUES; i++) m->x[i] += 0.02f * ((float)m->site - m->x[i]);
        m->status = step_until(m->session, 64, &m->stop);
        die_if_due(m);
        sleep_ms(2);
    }
    return NULL;
}

static void begin(struct member *m, const char *dir, int site)
{
    struct neb_session_config c = neb_session_defaults();
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    c.interval = 5;
    c.round_ms = 300;
    c.fragments = 1;
    m->site = site;
    assert_ok(neb_session_open(dir, &c, &m->session));
    assert_ok(neb__session_set_secure(m->session));
    assert_ok(neb_session_register(m->session, &p));
    assert_ok(neb_session_start(m->session, 0));
    pthread_create(&m->thread, NULL, train, m);
}

/* The victim: it ends by a signal. */
static int be_killed(const char *dir, int step)
{
    struct member *m = NEB_NEW(struct member);
    m->dies_at = step;
    begin(m, dir, VICTIM);
    pthread_join(m->thread, NULL);
    return 1;
}

static pid_t start_victim(const char *dir, int step)
{
    char number[16];
    snprintf(number, sizeof number, "%d", step);
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive a test that fails */
        execl("/proc/self/exe", "test_secure_kills", dir, number, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    return pid;
}

/* Sums in this site's log that have an update of `with`; 0: all. */
static int sums(struct member *m, unsigned with)
{
    struct neb_round_status st;
    int n = 0;
    pthread_mutex_lock(&m->session->busy);
    neb__round_status(m->session->core, &st);
    for (uint64_t i = 1; i <= st.applied; i++) {
        const struct neb_record *rec = neb__round_record(m->session->core, i);
        n += rec->type == NEB_RECORD_ROUND && rec->seeds && (!with || neb__record_of(rec, with));
    }
    pthread_mutex_unlock(&m->session->busy);
    return n;
}

static void wait_for_a_sum(struct member *m, unsigned with)
{
    int before = sums(m, with);
    while (sums(m, with) == before) sleep_ms(20);
}

/* OPEN, perhaps SURVIVORS, then one end, and only then the next OPEN. Only the newest attempt may be under way. Gives the number of sums
 * that lack the update of a contributor: they take the same three records, so a drop-out costs no round trip more once it is known. */
static int every_attempt_ends_once(struct member *m)
{
    struct neb_round_status st;
    int opened = 0, ended = 0, without = 0;
    uint32_t contributors = 0;
    bool under_way = false, survivors = false;
    pthread_mutex_lock(&m->session->busy);
    neb__round_status(m->session->core, &st);
    for (uint64_t i = 1; i <= st.commit; i++) {
        const struct neb_record *rec = neb__round_record(m->session->core, i);
        bool end = rec->type == NEB_RECORD_VOID || rec->type == NEB_RECORD_ROUND;
        if (rec->type == NEB_RECORD_OPEN) {
            assert_false(under_way);
            under_way = true, survivors = false, opened++;
            contributors = rec->contributors;
        } else if (rec->type == NEB_RECORD_SURVIVORS) {
            assert_true(under_way && !survivors);
            survivors = true;
        } else if (end) {
            assert_true(under_way && (rec->type == NEB_RECORD_ROUND) == survivors);
            under_way = false, ended++;
            without += rec->seeds && rec->updates < contributors;
        }
    }
    pthread_mutex_unlock(&m->session->busy);
    assert_true(opened - ended == under_way);
    return without;
}

static void kill_victim(const struct sites *sites, struct member *m, pid_t victim, int step)
{
    int status;
    if (!victim) victim = start_victim(sites->path[VICTIM], step);
    assert_int_equal(victim, waitpid(victim, &status, 0));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    wait_for_a_sum(m, 0);
}

static void a_site_is_killed_at_every_step(void **state)
{
    (void)state;
    struct sites sites;
    struct member *m = NEB_NEW_ARRAY(struct member, VICTIM);
    int status;
    sites_make(&sites, SITES, NULL);
    pid_t victim = start_victim(sites.path[VICTIM], 0);
    for (int i = 0; i < VICTIM; i++) {
        m[i].dies_at = STEPS;
        begin(&m[i], sites.path[i], i);
    }
    for (int step = 0; step < STEPS; step++) kill_victim(&sites, &m[0], step ? 0 : victim, step);
    /* An attempt ends as VOID instead if the leader hears of the loss too early. */
    while (!every_attempt_ends_once(&m[0])) kill_victim(&sites, &m[0], 0, BEFORE_UPDATE);
    victim = start_victim(sites.path[VICTIM], STEPS);
    wait_for_a_sum(&m[0], VICTIM);
    for (int i = 0; i < VICTIM; i++) (void)every_attempt_ends_once(&m[i]);
    kill(victim, SIGKILL);
    assert_int_equal(victim, waitpid(victim, &status, 0));
    for (int i = 0; i < VICTIM; i++) {
        atomic_store(&m[i].stop, true);
        pthread_join(m[i].thread, NULL);
        assert_ok(m[i].status);
        neb_session_close(m[i].session);
    }
    neb__free(m);
    sites_free(&sites);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_site_is_killed_at_every_step)};
    if (argc == 3) return be_killed(argv[1], atoi(argv[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
