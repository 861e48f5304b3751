/* test_lab.c: the laboratory as its users see it: real sockets over the real kernel, commands inside sites,
 * and nothing left behind. Tests that the machine does not allow are skipped with one line. */
#define _GNU_SOURCE
#include "check.h"
#include "net/lab/lab.h"
#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Several processes in mode relay share one loopback, so each uses its own port. */
#define PORT ((uint16_t)(10000 + port_base % 20000))
static pid_t port_base;

static struct neb_lab *make(enum neb_lab_mode mode, int sites, const struct neb_lab_line *line)
{
    struct neb_lab_config cfg;
    struct neb_lab *lab = NULL;
    assert_ok(neb__lab_config_init(sites, NULL, line, &cfg));
    cfg.mode = mode;
    cfg.ports = 1;
    cfg.port[0] = PORT;
    neb_status status = neb__lab_create(&cfg, &lab);
    neb__lab_config_free(&cfg);
    if (status == NEB_ERR_UNSUPPORTED) {
        print_message("skipped: mode %s: %s\n", neb__lab_mode_name(mode), neb_last_error());
        skip();
    }
    assert_ok(status);
    return lab;
}

/* ---- one server, one client ---------------------------------------------------------------------------- */

struct end {
    struct neb_lab *lab;
    int site, peer;
    int64_t bytes;         /* to send, or received */
    int wrong;             /* bytes that were not as sent */
    int failed;            /* errno of a step that had to work */
    pthread_barrier_t *up; /* the server listens */
};

static struct sockaddr_in address(struct neb_lab *lab, int viewer, int site)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, neb__lab_address(lab, viewer, site), &a.sin_addr);
    return a;
}

static int listen_in(struct neb_lab *lab, int site)
{
    struct sockaddr_in a = address(lab, site, site);
    int on = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s, (struct sockaddr *)&a, sizeof a) || listen(s, 16)) {
        close(s);
        return -1;
    }
    return s;
}

static uint8_t pattern(int64_t i)
{
    return (uint8_t)(i * 31 + (i >> 11));
}

static void *receive_all(void *arg)
{
    struct end *e = arg;
    static uint8_t buf[1 << 16];
    int s = neb__lab_enter(e->lab, e->site) == NEB_OK ? listen_in(e->lab, e->site) : -1;
    if (s < 0) e->failed = errno ? errno : EINVAL;
    pthread_barrier_wait(e->up);
    if (s < 0) return NULL;
    int c = accept(s, NULL, NULL);
    for (ssize_t n; c >= 0 && (n = recv(c, buf, sizeof buf, 0)) > 0; e->bytes += n)
        for (ssize_t i = 0; i < n; i++) e->wrong += buf[i] != pattern(e->bytes + i);
    close(c);
    close(s);
    return NULL;
}

static void *send_all(void *arg)
{
    struct end *e = arg;
    static uint8_t buf[1 << 16];
    pthread_barrier_wait(e->up);
    struct sockaddr_in a = address(e->lab, e->site, e->peer);
    int s = neb__lab_enter(e->lab, e->site) == NEB_OK ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof a)) e->failed = errno;
    for (int64_t at = 0; !e->failed && at < e->bytes;) {
        size_t n = e->bytes - at < (int64_t)sizeof buf ? (size_t)(e->bytes - at) : sizeof buf;
        for (size_t i = 0; i < n; i++) buf[i] = pattern(at + (int64_t)i);
        ssize_t k = send(s, buf, n, MSG_NOSIGNAL);
        if (k < 0) e->failed = errno;
        at += k;
    }
    close(s);
    return NULL;
}

/* Sends `bytes` from site 1 to site 0. Returns the seconds until all had arrived. */
static double transfer(struct neb_lab *lab, int64_t bytes, struct end *server)
{
    pthread_barrier_t up;
    pthread_t a, b;
    struct end client = {.lab = lab, .site = 1, .peer = 0, .bytes = bytes, .up = &up};
    *server = (struct end){.lab = lab, .site = 0, .peer = 1, .up = &up};
    pthread_barrier_init(&up, NULL, 2);
    int64_t began = neb__now_ns();
    assert_int_equal(pthread_create(&a, NULL, receive_all, server), 0);
    assert_int_equal(pthread_create(&b, NULL, send_all, &client), 0);
    pthread_join(b, NULL);
    pthread_join(a, NULL);
    pthread_barrier_destroy(&up);
    assert_int_equal(server->failed, 0);
    assert_int_equal(client.failed, 0);
    return neb__seconds_since(began);
}

/* Sends a datagram now and then to a site that sends it back, and measures the line: from the moment before
 * one end sends to the moment the other end's kernel has it, each way. The measure leaves out how late the
 * machine wakes the two ends: the kernel stamps arrivals, and the server tells how long it held the datagram.
 * The result is the median of the sums in ms; -1: nothing came back. */
struct echo {
    struct neb_lab *lab;
    int tries;
    double median;
};

struct probe {
    int64_t held; /* ns at the server */
    int number;
};

static int64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int datagram_socket(struct neb_lab *lab, int site)
{
    struct sockaddr_in a = address(lab, site, site);
    struct timeval patience = {.tv_usec = 300000};
    int on = 1, s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(s, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    if (s >= 0 && bind(s, (struct sockaddr *)&a, sizeof a) == 0) return s;
    close(s);
    return -1;
}

/* Receives one probe and the time at which the kernel had it. Returns false if none came. */
static bool receive_probe(int s, struct probe *p, struct sockaddr_in *from, int64_t *arrived)
{
    char control[CMSG_SPACE(sizeof(struct timespec))];
    struct iovec part = {p, sizeof *p};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_name = from,
                       .msg_namelen = sizeof *from,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    if (recvmsg(s, &m, 0) != (ssize_t)sizeof *p) return false;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    struct timespec t;
    assert_true(c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS);
    memcpy(&t, CMSG_DATA(c), sizeof t);
    *arrived = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    return true;
}

static void *echo_server(void *arg)
{
    struct neb_lab *lab = arg;
    struct sockaddr_in from;
    struct probe p;
    int64_t arrived = 0;
    if (neb__lab_enter(lab, 0) != NEB_OK) return NULL;
    int s = datagram_socket(lab, 0);
    for (int quiet = 0; quiet < 3;) {
        bool got = receive_probe(s, &p, &from, &arrived);
        quiet = got ? 0 : quiet + 1;
        p.held = wall_ns() - arrived;
        if (got) sendto(s, &p, sizeof p, 0, (struct sockaddr *)&from, sizeof from);
    }
    close(s);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int echo_client(void *arg)
{
    struct echo *e = arg;
    double ms[256];
    int n = 0;
    struct sockaddr_in to = address(e->lab, 1, 0), from;
    int s = datagram_socket(e->lab, 1);
    for (int i = 0; i < e->tries; i++) {
        struct probe sent = {.number = i}, p = {.number = -1};
        int64_t arrived = 0, began = wall_ns();
        sendto(s, &sent, sizeof sent, 0, (struct sockaddr *)&to, sizeof to);
        while (receive_probe(s, &p, &from, &arrived) && p.number != i) {}
        if (p.number == i) ms[n++] = (double)(arrived - began - p.held) * 1e-6;
        usleep(5000);
    }
    close(s);
    qsort(ms, (size_t)n, sizeof *ms, by_size);
    e->median = n ? ms[n / 2] : -1;
    return n;
}

static double round_trip(struct neb_lab *lab, int tries)
{
    struct echo e = {.lab = lab, .tries = tries};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, echo_server, lab), 0);
    usleep(50000);
    assert_ok(neb__lab_call(lab, 1, echo_client, &e, NULL));
    pthread_join(t, NULL);
    return e.median;
}

/* ---- namespaces ---------------------------------------------------------------------------------------- */

static void tcp_crosses_a_lossy_line_whole(void **state)
{
    (void)state;
    struct neb_lab_line line = {.rate = 2e8, .delay = 0.005, .loss = 0.005, .reorder = 0.01};
    struct neb_lab *lab = make(NEB_LAB_NAMESPACES, 2, &line);
    struct end server;
    struct neb_lab_stats s;
    transfer(lab, 8 << 20, &server);
    assert_int_equal(server.bytes, 8 << 20);
    assert_int_equal(server.wrong, 0);
    neb__lab_stats(lab, 1, 0, &s);
    assert_true(s.sent >= (8 << 20) / 1448 && s.lost > 0 && s.reordered > 0 && s.delivered_bytes > 8 << 20);
    assert_true(s.delivered + s.lost + s.overflowed + s.cut + s.refused <= s.sent);
    neb__lab_destroy(lab);
    assert_int_equal(neb__mem_held(), 0);
}

static void the_rate_is_a_ceiling(void **state)
{
    (void)state;
    struct neb_lab_line line = {.rate = 4e7, .delay = 0.005};
    struct neb_lab *lab = make(NEB_LAB_NAMESPACES, 2, &line);
    struct end server;
    double seconds = transfer(lab, 4 << 20, &server), least = (4 << 20) * (1500.0 / 1448) * 8 / 4e7;
    assert_true(seconds > least);
    neb__lab_destroy(lab);
}

static void the_delay_is_kept_to_a_millisecond(void **state)
{
    (void)state;
    struct neb_lab_line line = {.rate = 1e8, .delay = 0.02};
    struct neb_lab *lab = make(NEB_LAB_NAMESPACES, 2, &line);
    double ms = 0;
    /* A busy machine can make a packet late, so a failed try is repeated. */
    for (int i = 0; i < 3 && !(ms > 39 && ms < 41); i++) ms = round_trip(lab, 31);
    neb__lab_destroy(
        lab); /* before the check, so that later tests do not count this lab's descriptors if it fails */
    print_message("asked for 40 ms, the median was %.2f ms\n", ms);
    if (ms > 39 && ms < 41) return;
    double late = check_late_ms();
    if (late <= 1) fail_msg("asked for 40 ms, the median was %.2f ms", ms);
    print_message("skipped: this machine wakes one sleeper in ten more than %.1f ms late\n", late);
    skip();
}

static void lines_are_cut_and_mended_while_it_runs(void **state)
{
    (void)state;
    struct neb_lab_line line = {.delay = 0.002};
    struct neb_lab *lab = make(NEB_LAB_NAMESPACES, 3, &line);
    struct neb_lab_stats there, back;
    assert_true(round_trip(lab, 3) > 0);
    assert_ok(neb__lab_set_down(lab, 0, 1, true)); /* one way: requests arrive, answers don't */
    assert_true(round_trip(lab, 2) < 0);
    neb__lab_stats(lab, 1, 0, &there);
    neb__lab_stats(lab, 0, 1, &back);
    assert_int_equal(there.delivered, 5);
    assert_true(back.cut == 2 && back.delivered == 3);
    assert_ok(neb__lab_set_down(lab, 0, 1, false));
    line.delay = 0.05;
    assert_ok(neb__lab_set_line(lab, 0, 1, &line));
    assert_true(round_trip(lab, 3) > 51);
    check_log_quiet();
    assert_status(neb__lab_set_rate(lab, 0, 0, 1e6), NEB_ERR_INVALID);
    assert_status(neb__lab_set_rate(lab, 0, 7, 1e6), NEB_ERR_INVALID);
    assert_status(neb__lab_set_rate(lab, 0, 1, -5), NEB_ERR_CONFIG);
    check_log_restore();
    neb__lab_destroy(lab);
}

static void flipped_bits_pass_below_tcp(void **state)
{
    (void)state;
    struct neb_lab_line line = {.rate = 2e8, .corrupt = 0.01};
    struct neb_lab *lab = make(NEB_LAB_NAMESPACES, 2, &line);
    struct end server;
    transfer(lab, 4 << 20, &server);
    assert_int_equal(server.bytes, 4 << 20);
    assert_in_range(server.wrong, 5, 100); /* of about 2900 segments */
    neb__lab_destroy(lab);
}

/* ---- commands ------------------------------------------------------------------------------------------ */

static int start(struct neb_lab *lab, int site, const char *script, int out)
{
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL};
    struct neb_lab_command c = {.argv = argv, .out = out, .err = -1};
    int handle;
    assert_ok(neb__lab_start(lab, site, &c, &handle));
    return handle;
}

static int status_of(struct neb_lab *lab, int handle)
{
    int status = -1;
    assert_ok(neb__lab_wait(lab, handle, 20, &status));
    return status;
}

static bool gone(pid_t pid)
{
    for (int i = 0; i < 300; i++) {
        if (kill(pid, 0) && errno == ESRCH) return true;
        usleep(10000);
    }
    return false;
}

static int seven(void *arg)
{
    return *(int *)arg == 42 ? 7 : 1;
}

static void commands_find_their_site(void **state)
{
    struct neb_lab_line line = {0};
    struct neb_lab *lab = make(*(enum neb_lab_mode *)*state, 2, &line);
    char text[512] = "", want[256];
    int p[2], arg = 42, handle;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    handle = start(lab, 1,
                   "echo $NEBULA_WAN_SITE $NEBULA_WAN_INDEX $NEBULA_WAN_SITES $NEBULA_WAN_ADDR_A "
                   "$NEBULA_WAN_ADDR $NEBULA_WAN_MODE; exit 3",
                   p[1]);
    close(p[1]);
    assert_int_equal(status_of(lab, handle), 3);
    assert_true(read(p[0], text, sizeof text - 1) > 0);
    close(p[0]);
    snprintf(want, sizeof want, "b 1 a b %s %s %s\n", neb__lab_address(lab, 1, 0),
             neb__lab_address(lab, 1, 1), neb__lab_mode_name(neb__lab_mode(lab)));
    assert_string_equal(text, want);

    struct neb_lab_command fn = {.fn = seven, .arg = &arg, .out = -1, .err = -1};
    assert_ok(neb__lab_start(lab, 0, &fn, &handle));
    assert_int_equal(status_of(lab, handle), 7);
    assert_int_equal(status_of(lab, start(lab, 0, "exec /nonexistent/x 2>/dev/null", -1)), 127);
    assert_int_equal(status_of(lab, start(lab, 0, "kill -USR1 $$", -1)), 128 + SIGUSR1);
    check_log_quiet();
    assert_status(neb__lab_wait(lab, handle, 0, NULL), NEB_ERR_NOTFOUND); /* once */
    check_log_restore();
    neb__lab_destroy(lab);
    assert_int_equal(neb__mem_held(), 0);
}

static void commands_end_with_all_they_started(void **state)
{
    struct neb_lab_line line = {0};
    struct neb_lab *lab = make(*(enum neb_lab_mode *)*state, 2, &line);
    int status, a = start(lab, 0, "sleep 1000 & sleep 1000 & wait", -1),
                b = start(lab, 1, "trap '' TERM; sleep 1000", -1);
    pid_t pid_a = neb__lab_pid(lab, a), pid_b = neb__lab_pid(lab, b);
    assert_true(pid_a > 0 && pid_b > 0 && kill(pid_a, 0) == 0);
    assert_status(neb__lab_wait(lab, a, 0.1, &status), NEB_ERR_TIMEOUT);
    assert_ok(neb__lab_kill(lab, a, SIGTERM));
    assert_int_equal(status_of(lab, a), 128 + SIGTERM);
    assert_true(gone(pid_a) && gone(-pid_a)); /* its process group too */
    neb__lab_destroy(lab);
    assert_true(gone(pid_b) && gone(-pid_b));
}

/* ---- nothing is left ----------------------------------------------------------------------------------- */

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void nothing_stays_open(void **state)
{
    (void)state;
    struct neb_lab_line line = {.delay = 0.05};
    int before = open_files();
    for (int i = 0; i < 5; i++) {
        struct neb_lab *lab = make(NEB_LAB_NAMESPACES, 4, &line);
        start(lab, 3, "sleep 1000", -1);
        neb__lab_destroy(lab);
    }
    assert_int_equal(open_files(), before);
    assert_int_equal(neb__mem_held(), 0);
    assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

/* When the owner is killed, everything in its sites ends. */
static void a_killed_owner_leaves_nothing(void **state)
{
    enum neb_lab_mode mode = *(enum neb_lab_mode *)*state;
    struct neb_lab_line line = {0};
    neb__lab_destroy(make(mode, 2, &line)); /* skips the test if the mode is not allowed */
    int p[2];
    pid_t pids[2] = {0, 0};
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    pid_t owner = fork();
    if (owner == 0) {
        struct neb_lab *lab = make(mode, 2, &line);
        for (int i = 0; i < 2; i++)
            pids[i] = neb__lab_pid(lab, start(lab, i, "sleep 1000 & exec sleep 1000", -1));
        (void)!write(p[1], pids, sizeof pids);
        pause();
    }
    close(p[1]);
    assert_int_equal(read(p[0], pids, sizeof pids), sizeof pids);
    close(p[0]);
    assert_true(pids[0] > 0 && kill(pids[0], 0) == 0 && kill(pids[1], 0) == 0);
    kill(owner, SIGKILL);
    waitpid(owner, NULL, 0);
    for (int i = 0; i < 2; i++) assert_true(gone(pids[i]) && gone(-pids[i]));
}

/* ---- the other two modes ------------------------------------------------------------------------------- */

/* Runs in its own process, since that process stays in the user namespace. */
static void an_ordinary_user_has_a_laboratory(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct neb_lab_config cfg;
        struct neb_lab_line line = {.rate = 1e8, .delay = 0.005, .loss = 0.001};
        struct neb_lab *lab;
        struct end server;
        assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
        cfg.mode = NEB_LAB_USER;
        if (neb__lab_create(&cfg, &lab) != NEB_OK) {
            print_message("skipped: mode user: %s\n", neb_last_error());
            _exit(77);
        }
        transfer(lab, 1 << 20, &server);
        int status = status_of(lab, start(lab, 0, "grep -q 10.77.0.2 /etc/hosts", -1));
        bool ok =
            server.bytes == 1 << 20 && server.wrong == 0 && neb__lab_mode(lab) == NEB_LAB_USER && status == 0;
        neb__lab_destroy(lab);
        _exit(ok ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_relay_shapes_streams_and_loses_nothing(void **state)
{
    (void)state;
    struct neb_lab_line line = {.rate = 8e7, .delay = 0.02, .loss = 0.2};
    struct neb_lab *lab = make(NEB_LAB_RELAY, 2, &line);
    struct end server;
    int64_t bytes = 8 << 20;
    double seconds = transfer(lab, bytes, &server), least = (double)bytes * (1500.0 / 1448) * 8 / 8e7;
    assert_int_equal(server.bytes, bytes);
    assert_int_equal(server.wrong, 0);
    assert_true(seconds > least && seconds < least * 1.5 + 1);
    assert_ok(neb__lab_set_down(lab, 1, 0, true));
    pthread_t t;
    struct end client = {.lab = lab, .site = 1, .peer = 0, .bytes = 100000};
    pthread_barrier_t up;
    pthread_barrier_init(&up, NULL, 2);
    client.up = &up;
    struct end late = {.lab = lab, .site = 0, .peer = 1, .up = &up};
    pthread_t r;
    pthread_create(&r, NULL, receive_all, &late);
    pthread_create(&t, NULL, send_all, &client);
    usleep(300000);
    struct neb_lab_stats s;
    neb__lab_stats(lab, 1, 0, &s);
    uint64_t stuck = s.delivered;
    usleep(200000);
    neb__lab_stats(lab, 1, 0, &s);
    assert_int_equal(s.delivered, stuck); /* down: it waits */
    assert_ok(neb__lab_set_down(lab, 1, 0, false));
    pthread_join(t, NULL);
    pthread_join(r, NULL);
    pthread_barrier_destroy(&up);
    assert_true(late.bytes == 100000 && late.wrong == 0);
    neb__lab_destroy(lab);
    assert_int_equal(neb__mem_held(), 0);
}

static void a_relay_passes_a_refusal_on(void **state)
{
    (void)state;
    struct neb_lab_line line = {.delay = 0.001};
    struct neb_lab *lab = make(NEB_LAB_RELAY, 3, &line);
    struct sockaddr_in a = address(lab, 1, 2); /* nobody listens in site 2 */
    char byte;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof a), 0);
    assert_true(recv(s, &byte, 1, 0) <= 0);
    close(s);
    int before = open_files();
    check_log_quiet();
    struct neb_lab_config cfg;
    struct neb_lab *second;
    assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
    cfg.mode = NEB_LAB_RELAY;
    assert_status(neb__lab_create(&cfg, &second), NEB_ERR_CONFIG); /* no ports */
    cfg.ports = 1;
    cfg.port[0] = PORT;
    assert_status(neb__lab_create(&cfg, &second), NEB_ERR_BUSY); /* the first lab listens on them */
    neb__lab_config_free(&cfg);
    check_log_restore();
    assert_int_equal(open_files(), before);
    neb__lab_destroy(lab);
}

int main(void)
{
    static enum neb_lab_mode namespaces = NEB_LAB_NAMESPACES, relay = NEB_LAB_RELAY;
    port_base = getpid();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_ordinary_user_has_a_laboratory),
        cmocka_unit_test(tcp_crosses_a_lossy_line_whole),
        cmocka_unit_test(the_rate_is_a_ceiling),
        cmocka_unit_test(the_delay_is_kept_to_a_millisecond),
        cmocka_unit_test(lines_are_cut_and_mended_while_it_runs),
        cmocka_unit_test(flipped_bits_pass_below_tcp),
        cmocka_unit_test_prestate(commands_find_their_site, &namespaces),
        cmocka_unit_test_prestate(commands_find_their_site, &relay),
        cmocka_unit_test_prestate(commands_end_with_all_they_started, &namespaces),
        cmocka_unit_test_prestate(commands_end_with_all_they_started, &relay),
        cmocka_unit_test(nothing_stays_open),
        cmocka_unit_test_prestate(a_killed_owner_leaves_nothing, &namespaces),
        cmocka_unit_test_prestate(a_killed_owner_leaves_nothing, &relay),
        cmocka_unit_test(a_relay_shapes_streams_and_loses_nothing),
        cmocka_unit_test(a_relay_passes_a_refusal_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
