/* test_relayed.c: sites that reach each other through a relay host, while a direct path comes and goes.
 *
 * The direct path is a gate: a small forwarder in front of the site that can be dialled. When it shuts, connections through it
 * fall silent, as behind a firewall that has changed its mind, and new ones are closed. */
#include "check.h"
#include "letters.h"
#include "net/relay/relay_host.h"
#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <nebula/log.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- a gate -------------------------------------------------------------------------------------------- */

enum { GATE_PAIRS = 64 };

static struct {
    int listen_fd;
    uint16_t port, to;
    atomic_bool open, stop;
    pthread_t thread;
    int fd[GATE_PAIRS][2];
    int pairs;
    atomic_int passed; /* connections that were let through */
} gate;

static int dial_port(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!connect(fd, (struct sockaddr *)&a, sizeof a)) return fd;
    close(fd);
    return -1;
}

static void gate_drop(int i)
{
    close(gate.fd[i][0]);
    close(gate.fd[i][1]);
    gate.pairs--;
    memcpy(gate.fd[i], gate.fd[gate.pairs], sizeof gate.fd[i]);
}

static void gate_accept(void)
{
    int fd = accept(gate.listen_fd, NULL, NULL),
        on = gate.open && gate.pairs < GATE_PAIRS ? dial_port(gate.to) : -1;
    if (fd >= 0 && on >= 0) {
        gate.fd[gate.pairs][0] = fd;
        gate.fd[gate.pairs++][1] = on;
        gate.passed++;
        return;
    }
    if (fd >= 0) close(fd);
    if (on >= 0) close(on);
}

static bool gate_copy(int from, int to)
{
    static char piece[1 << 16];
    ssize_t n = recv(from, piece, sizeof piece, MSG_DONTWAIT);
    if (n == 0) return false;
    for (ssize_t at = 0; at < n;) {
        ssize_t k = send(to, piece + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (k <= 0) return false;
        at += k;
    }
    return true;
}

static void *gate_main(void *arg)
{
    bool was_open = false;
    (void)arg;
    while (!gate.stop) {
        struct pollfd p[1 + 2 * GATE_PAIRS] = {{gate.listen_fd, POLLIN, 0}};
        if (gate.open && !was_open)
            while (gate.pairs) gate_drop(0); /* what fell silent stays dead */
        was_open = gate.open;
        int n = 1, pairs = gate.pairs;
        for (int i = 0; i < pairs && was_open; i++)
            for (int k = 0; k < 2; k++) p[n++] = (struct pollfd){gate.fd[i][k], POLLIN, 0};
        poll(p, (nfds_t)n, 10);
        for (int i = pairs - 1; i >= 0 && was_open; i--)
            for (int k = 0; k < 2; k++)
                if (p[1 + 2 * i + k].revents && !gate_copy(gate.fd[i][k], gate.fd[i][!k])) {
                    gate_drop(i);
                    break;
                }
        if (p[0].revents) gate_accept();
    }
    while (gate.pairs) gate_drop(0);
    return NULL;
}

static void gate_begin(uint16_t to)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    memset(&gate, 0, sizeof gate);
    gate.to = to;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    gate.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(gate.listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(gate.listen_fd, 64), 0);
    getsockname(gate.listen_fd, (struct sockaddr *)&a, &n);
    gate.port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&gate.thread, NULL, gate_main, NULL), 0);
}

static void gate_end(void)
{
    gate.stop = true;
    pthread_join(gate.thread, NULL);
    close(gate.listen_fd);
}

/* ---- the scene ----------------------------------------------------------------------------------------- */

static struct neb_relay_host *host;
static struct neb_key *host_key;
static char host_address[NEB_ADDRESS_SIZE];
static uint16_t host_port;
static struct sites sites;

static void open_host(void)
{
    char listen[64];
    struct neb_relay_host_config config = {.key = host_key, .listen = listen, .limits = NEB_RELAY_LIMITS};
    snprintf(listen, sizeof listen, "127.0.0.1:%u", host_port);
    assert_ok(neb__relay_host_open(&config, &host));
    host_port = neb__relay_host_port(host);
    assert_ok(neb__relay_host_start(host));
}

static void close_all(void)
{
    letters_close();
    neb__relay_host_close(host);
    sites_free(&sites);
}

static void make(const char *direct)
{
    struct neb_public key;
    char place[64];
    host_port = 0;
    open_host();
    neb__key_public(host_key, &key);
    snprintf(place, sizeof place, "127.0.0.1:%u", host_port);
    assert_ok(neb__relay_address_format(place, &key, host_address));
    sites_make(&sites, 2, NULL);
    const char *const address[2][2] = {{host_address}, {host_address, direct}};
    sites_address(&sites, address);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

/* Neither can be dialled. The host was shown no roster before: the sites show it theirs. */
static void test_hidden(void **state)
{
    (void)state;
    struct neb_relay_counts counts;
    make(NULL);
    letters_open(&sites, NULL);
    letters_path(true);
    letters_await(20);
    sleep_ms(600); /* the host counts twice a second */
    neb__relay_host_counts(host, &counts);
    assert_true(counts.standing == 2 && counts.pairs >= 2 && counts.runs == 1);
    assert_true(counts.bytes > 2 * 1000000);
    assert_int_equal(letters_events(), 2);
    close_all();
}

/* The host ends and another process with its key begins: the link resumes, and no message is lost. */
static void test_host_restarts(void **state)
{
    (void)state;
    make(NULL);
    letters_open(&sites, NULL);
    letters_path(true);
    letters_await(10);
    neb__relay_host_close(host);
    for (int i = 0; i < 30; i++) letters_feed(), sleep_ms(10);
    open_host();
    letters_await(20);
    close_all();
}

/* A direct path is found and lost ten times. Finding it disturbs nobody: no layer above hears of it. Losing it is an outage of
 * the line, which the relay host ends. Messages come once and in order all the time. */
static void test_paths(void **state)
{
    (void)state;
    char direct[64], listen[64];
    uint16_t real = free_port();
    gate_begin(real);
    snprintf(direct, sizeof direct, "127.0.0.1:%u", gate.port);
    make(direct);
    snprintf(listen, sizeof listen, "127.0.0.1:%u", real);
    letters_open(&sites, listen);
    letters_path(true);
    for (int turn = 0; turn < 10; turn++) {
        int before = letters_events();
        gate.open = true;
        letters_path(false);
        letters_await(3);
        int found = letters_events() - before;
        if (found) fail_msg("finding a direct path made %d events", found);
        gate.open = false;
        letters_path(true);
        letters_await(3);
    }
    assert_true(gate.passed >= 10);
    close_all();
    gate_end();
}

static int set_up(void **state)
{
    (void)state;
    return neb__key_create(&host_key);
}

static int tear_down(void **state)
{
    (void)state;
    neb__key_free(host_key);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_host_restarts),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
