/* test_cut_lines.c: sites that have no line to each other. Two sites cannot be dialled, so they reach each other only
 * through those that can. The first one leads, so the other is linked to followers alone. The site in the middle is killed
 * and started again; of two in the middle, one goes, and then the other. All sites must follow the log with work of
 * everybody in it, and come to the same state. The middle runs in a process of its own, so that it can be killed. */
#include "check.h"
#include "sites.h"
#include "base/mem.h"
#include "run/relaying.h"
#include "run/site_status.h"

#include <nebula/log.h>
#include <nebula/nebula.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VALUES = 3000, HIDDEN = 2, WAIT_MS = 120000 };

extern char **environ;
static const char *program;

struct member {
    neb_session *s;
    float x[VALUES];
};

static void begin(struct member *m, const char *folder)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 5;
    c.fragments = 1;
    c.round_ms = 500;
    c.rung = "int8";
    c.drift_steps = 20;
    assert_ok(neb_session_open(folder, &c, &m->s));
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    assert_ok(neb_session_register(m->s, &p));
    assert_ok(neb_session_start(m->s, 0));
}

static struct neb_session_status status(const struct member *m)
{
    struct neb_session_status st;
    neb_session_get_status(m->s, &st);
    return st;
}

static void step(struct member *m, int turn, float towards)
{
    bool changed;
    for (int v = turn % 7; v < VALUES; v += 7) m->x[v] += 0.05f * (towards - m->x[v]);
    neb_status st = neb_step_within(m->s, 64, 0.01, &changed);
    if (st != NEB_OK && st != NEB_ERR_AGAIN) fail_msg("a site stopped: %s", status(m).note);
}

/* ---- the middle, in its own process --------------------------------------------------------------------- */

static int middle(const char *folder)
{
    struct member *m = neb__calloc(1, sizeof *m);
    pid_t parent = getppid();
    check_log_quiet();
    begin(m, folder);
    for (int i = 0;; i++) { /* until it is killed, or its parent is gone */
        step(m, i, 2);
        sleep_ms(2);
        if (getppid() != parent) return 1;
    }
}

static pid_t start_middle(const char *folder)
{
    pid_t pid;
    char *argv[] = {(char *)program, (char *)"middle", (char *)folder, NULL};
    assert_int_equal(posix_spawn(&pid, program, NULL, NULL, argv, environ), 0);
    return pid;
}

static void kill_middle(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
}

/* ---- the two that cannot meet ----------------------------------------------------------------------------- */

/* Both hidden sites step until each has applied so many more records, and has so many more of its own updates in the
 * model (a merge counts every record). */
static void follow(struct member m[HIDDEN], int64_t more)
{
    int64_t from[HIDDEN];
    for (int k = 0; k < HIDDEN; k++) from[k] = status(&m[k]).applied;
    bool done = false;
    for (int i = 0; i < WAIT_MS / 2 && !done; i++) {
        done = true;
        for (int k = 0; k < HIDDEN; k++) {
            step(&m[k], i, (float)(1 + 2 * k));
            done &= status(&m[k]).applied >= from[k] + more;
        }
        sleep_ms(2);
    }
    for (int k = 0; k < HIDDEN; k++)
        if (status(&m[k]).applied < from[k] + more)
            fail_msg("site %d is at record %lld, not %lld: %s", k, (long long)status(&m[k]).applied,
                     (long long)(from[k] + more), status(&m[k]).note);
}

/* They have the same state root at the same record. Steps go on meanwhile, so both are looked at until they agree. */
static void agree(struct member m[HIDDEN])
{
    for (int i = 0; i < WAIT_MS / 2; i++) {
        struct neb_session_status a = status(&m[0]), b = status(&m[1]);
        if (a.root_at > 0 && a.root_at == b.root_at) {
            assert_memory_equal(a.root, b.root, NEB_HASH_SIZE);
            return;
        }
        for (int k = 0; k < HIDDEN; k++) step(&m[k], i, (float)(1 + 2 * k));
        sleep_ms(2);
    }
    fail_msg("the sites had no root at the same record");
}

/* The first one says through whom it reaches the second. */
static void assert_via(struct member m[HIDDEN], const char *name)
{
    struct neb_site_status st;
    for (int i = 0; i < WAIT_MS / 10; i++) {
        uint16_t via = neb__members_via(&m[0].s->members, m[1].s->self);
        char is[NEB_NAME_SIZE] = "";
        if (via != NEB_NO_SITE) neb__members_name(&m[0].s->members, via, is);
        if (!strcmp(is, name) && neb__session_heard(m[0].s, "s1", &st)) {
            assert_string_equal(st.via, name);
            assert_true(st.up);
            return;
        }
        step(&m[0], i, 1), step(&m[1], i, 3);
        sleep_ms(10);
    }
    fail_msg("the site is not reached via %s", name);
}

/* A record names an update of each of the two: the work of neither is shut out. */
static void assert_both_named(struct member m[HIDDEN], int64_t behind)
{
    uint64_t seen = 0, want = neb__bit(m[0].s->self) | neb__bit(m[1].s->self);
    for (int i = 0; i < WAIT_MS / 10 && (seen & want) != want; i++) {
        pthread_mutex_lock(&m[0].s->busy);
        for (uint64_t at = (uint64_t)behind + 1; at <= (uint64_t)status(&m[0]).applied; at++) {
            const struct neb_record *r = neb__round_record(m[0].s->core, at);
            for (uint32_t k = 0; r && r->type == NEB_RECORD_ROUND && k < r->updates; k++)
                seen |= neb__bit(r->update[k].site);
        }
        pthread_mutex_unlock(&m[0].s->busy);
        step(&m[0], i, 1), step(&m[1], i, 3);
        sleep_ms(5);
    }
    assert_true((seen & want) == want);
}

/* The site in the middle does not lead: it is killed and started again until another one does. */
static pid_t let_others_lead(struct member m[HIDDEN], const char *folder, pid_t c)
{
    for (int i = 0; i < 20; i++) {
        uint16_t leader;
        follow(m, 2);
        (void)neb__members_roster(&m[0].s->members, &leader);
        if (leader == m[0].s->self || leader == m[1].s->self) return c;
        kill_middle(c);
        c = start_middle(folder);
    }
    fail_msg("the site in the middle always leads");
    return c;
}

static struct member *begin_hidden(struct sites *sites, int count)
{
    struct member *m = neb__calloc(HIDDEN, sizeof *m);
    sites_make(sites, count, NULL);
    sites_hide(sites, HIDDEN);
    for (int i = 0; i < HIDDEN; i++) begin(&m[i], sites->path[i]);
    return m;
}

static void end_hidden(struct sites *sites, struct member *m)
{
    for (int i = 0; i < HIDDEN; i++) neb_session_close(m[i].s);
    neb__free(m);
    sites_free(sites);
}

/* a and b through c, which does not lead; c is killed and comes back. */
static void the_middle_is_killed(void **state)
{
    (void)state;
    struct sites sites;
    check_log_quiet();
    struct member *m = begin_hidden(&sites, 3);
    pid_t c = let_others_lead(m, sites.path[2], start_middle(sites.path[2]));
    follow(m, 6);
    assert_via(m, "s2");
    assert_both_named(m, 0);
    agree(m);
    kill_middle(c);
    int64_t before = status(&m[0]).applied;
    c = start_middle(sites.path[2]);
    follow(m, 6);
    assert_both_named(m, before + 1); /* one record may have been under way */
    assert_via(m, "s2");
    agree(m);
    kill_middle(c);
    end_hidden(&sites, m);
    check_log_restore();
}

/* a and b through c or d. One of these goes, comes back, and the other goes. */
static void the_path_changes(void **state)
{
    (void)state;
    static const char *const name[] = {"s2", "s3"};
    struct sites sites;
    check_log_quiet();
    struct member *m = begin_hidden(&sites, 4);
    pid_t pid[2] = {start_middle(sites.path[2]), start_middle(sites.path[3])};
    follow(m, 4);
    for (int gone = 0; gone < 2; gone++) {
        kill_middle(pid[gone]);
        assert_via(m, name[!gone]);
        int64_t before = status(&m[0]).applied;
        follow(m, 4);
        assert_both_named(m, before + 1);
        pid[gone] = start_middle(sites.path[2 + gone]);
        for (int i = 0; i < WAIT_MS / 10 && status(&m[0]).peers_up < 3; i++) {
            step(&m[0], i, 1), step(&m[1], i, 3);
            sleep_ms(10);
        }
        assert_true(status(&m[0]).peers_up == 3);
    }
    agree(m);
    for (int i = 0; i < 2; i++) kill_middle(pid[i]);
    end_hidden(&sites, m);
    check_log_restore();
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3 && !strcmp(argv[1], "middle")) return middle(argv[2]);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_middle_is_killed),
        cmocka_unit_test(the_path_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
