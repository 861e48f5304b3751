/* scene.c: see scene.h. */
#include "scene.h"
#include "check.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <nebula/log.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

void (*scene_tune)(struct neb_net_config *c);
struct sites scene_sites;
struct node scene_nodes[3];
atomic_int scene_ups[3], scene_forks;
static atomic_int downs[3], received;

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)peer, (void)incarnation;
    scene_ups[(intptr_t)arg]++;
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    (void)why;
    if (peer != 3) downs[(intptr_t)arg]++; /* s2 comes and goes as it likes */
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    (void)arg, (void)m;
    received++;
    return NEB_OK;
}

static void on_fork(void *arg, uint16_t peer, uint64_t epoch)
{
    (void)arg, (void)peer, (void)epoch;
    scene_forks++;
}

const struct neb_net_events scene_events = {
    .peer_up = on_up, .peer_down = on_down, .message = on_message, .roster_fork = on_fork};

char scene_journal[1 << 16];
static pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;

static void on_log(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&journal_lock);
    size_t n = strlen(scene_journal);
    if (n + strlen(line) + 2 < sizeof scene_journal) sprintf(scene_journal + n, "%s\n", line);
    pthread_mutex_unlock(&journal_lock);
}

bool scene_logged(const char *text)
{
    for (int i = 0; i < 6000; i++) {
        pthread_mutex_lock(&journal_lock);
        bool there = strstr(scene_journal, text) != NULL;
        pthread_mutex_unlock(&journal_lock);
        if (there) return true;
        sleep_ms(10);
    }
    return false;
}

static void say(void *arg)
{
    (void)arg;
    assert_ok(neb__net_send_copy(scene_nodes[0].net, 2, NEB_ROUND, 1, "still here", 10, NULL, NULL));
}

void scene_assert_undisturbed(void)
{
    int before = received;
    node_call(&scene_nodes[0], say, NULL);
    for (int i = 0; i < 6000 && received == before; i++) sleep_ms(10);
    assert_int_equal(received, before + 1);
    assert_int_equal(downs[0] + downs[1], 0);
    pthread_mutex_lock(&journal_lock);
    scene_journal[0] = 0;
    pthread_mutex_unlock(&journal_lock);
    sleep_ms(1000 - (int)(neb__now_ns() / 1000000 % 1000) +
             1); /* refusals are logged at most ten times a second */
}

int scene_set_up(void **state)
{
    (void)state;
    struct rlimit r = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &r);
    for (int i = 0; i < 3; i++) scene_ups[i] = downs[i] = 0;
    scene_forks = 0;
    sites_make(&scene_sites, 3, NULL);
    neb_log_set_sink(on_log, NULL);
    for (intptr_t i = 0; i < 2; i++)
        node_open(&scene_nodes[i], scene_sites.path[i], &scene_events, (void *)i, scene_tune);
    for (int i = 0; i < 6000 && !(scene_ups[0] && scene_ups[1]); i++) sleep_ms(10);
    assert_true(scene_ups[0] && scene_ups[1]);
    return 0;
}

int scene_tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) node_close(&scene_nodes[i]);
    neb_log_set_sink(NULL, NULL);
    sites_free(&scene_sites);
    return 0;
}

int scene_dial(int site)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(scene_sites.port[site])};
    struct timeval t = {15, 0};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    assert_true(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a));
    return fd;
}

bool scene_closed(int fd, int seconds)
{
    char b[4096];
    for (int64_t start = neb__now_ns(); neb__seconds_since(start) < seconds;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 100) > 0) {
            ssize_t n = recv(fd, b, sizeof b, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
        }
    }
    return false;
}
