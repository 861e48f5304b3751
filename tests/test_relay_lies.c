/* test_relay_lies.c: a relay host that lies. It drops, alters, repeats, exchanges and delays bytes, and joins members with others
 * than those they asked for. No wrong message arrives, nobody crashes, and the log says what is wrong. When the host is honest
 * again the link goes on where it stopped. */
#include "check.h"
#include "letters.h"
#include "net/relay/relay_wire.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <nebula/log.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum lie { HONEST, FLIP, DROP, REPEAT, EXCHANGE, DELAY, SWAP, SILENT, GREEDY, NOISY, LIES };

static _Atomic enum lie lie;
static struct neb_key *host_key;
static struct neb_tls_context *host_tls;
static int listen_fd;
static uint16_t port;
static struct sites sites;
static struct neb_public member[3];
static atomic_bool stop;
static atomic_int threads;
static atomic_int chains, greedy; /* GREEDY: rosters that were shown; calls that ended so. */
static atomic_int refusals;       /* NOISY */

/* ---- a guest of the liar ------------------------------------------------------------------------------- */

struct guest {
    int fd, who; /* member index; -1: unknown */
    struct neb_tls *tls;
    struct neb_relay_reader reader;
    struct neb_relay_ask ask;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct guest *standing[3], *waiting[64]; /* waiting: callers, by ticket */

static void flush(struct guest *g)
{
    struct neb_buf *out = neb__tls_out(g->tls);
    send(g->fd, out->data, out->len, MSG_NOSIGNAL);
    neb__buf_clear(out);
}

static size_t pull(void *arg, uint8_t *to, size_t n)
{
    struct guest *g = arg;
    size_t left = neb__tls_record_left(g->tls);
    flush(g);
    ssize_t got = recv(g->fd, to, n < left ? n : left, 0);
    return got > 0 ? (size_t)got : 0;
}

static void say(struct guest *g, enum neb_relay_type type, const void *body, size_t n)
{
    if (neb__relay_send(g->tls, type, body, n) == NEB_OK) flush(g);
}

/* Passes bytes on, with the present lie. One piece is altered; else the connection that follows would wait for its deadline. */
static void pass(int from, int to)
{
    static _Thread_local uint8_t piece[3000], again[3000];
    static _Thread_local ssize_t kept;
    ssize_t n = recv(from, piece, sizeof piece, MSG_DONTWAIT);
    if (n <= 0) {
        shutdown(to, SHUT_RDWR);
        shutdown(from, SHUT_RDWR);
        return;
    }
    enum lie now = lie;
    if (now >= FLIP && now <= EXCHANGE) lie = HONEST;
    switch (now) {
    case FLIP: piece[n / 2] ^= 4; break;
    case DROP: n -= n / 3; break;
    case REPEAT: send(to, piece, (size_t)n, MSG_NOSIGNAL); break;
    case EXCHANGE: /* this piece comes after the next */
        memcpy(again, piece, (size_t)n);
        kept = n;
        return;
    case DELAY: usleep(1000); break;
    case SILENT: return;
    default: break;
    }
    send(to, piece, (size_t)n, MSG_NOSIGNAL);
    if (kept) send(to, again, (size_t)kept, MSG_NOSIGNAL);
    kept = 0;
}

static void join(int a, int b)
{
    struct pollfd p[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    while (!stop) {
        if (poll(p, 2, 100) <= 0) continue;
        for (int i = 0; i < 2; i++)
            if (p[i].revents) pass(p[i].fd, p[!i].fd);
        if ((p[0].revents | p[1].revents) & (POLLHUP | POLLERR)) return;
    }
}

static void ring(struct guest *caller, int ticket)
{
    struct neb_relay_ring r = {(uint64_t)ticket, (uint16_t)(caller->who + 1)};
    uint8_t body[NEB_RELAY_RING_SIZE];
    int called = caller->ask.peer - 1;
    if (lie == SWAP) called = 2; /* another one answers */
    neb__relay_ring_put(&r, body);
    if (called >= 0 && called < 3 && standing[called])
        say(standing[called], NEB_RELAY_RING, body, sizeof body);
}

/* Calls that nobody made. */
static void ring_all(struct guest *g)
{
    uint8_t body[NEB_RELAY_RING_SIZE];
    for (int i = 0; i < 32; i++) {
        struct neb_relay_ring r = {1000 + (uint64_t)i, (uint16_t)(g->who ? 1 : 2)};
        neb__relay_ring_put(&r, body);
        say(g, NEB_RELAY_RING, body, sizeof body);
    }
}

/* Wants the roster again and again, until the guest has had enough. */
static void want_more(struct guest *g)
{
    struct neb_relay_message m;
    neb_status status = NEB_ERR_AGAIN;
    for (int i = 0; i < 3; i++) say(g, NEB_RELAY_WANT, NULL, 0);
    while (!stop && (status == NEB_OK || status == NEB_ERR_AGAIN)) {
        char byte;
        status = neb__relay_next(g->tls, &g->reader, UINT32_MAX, &m);
        if (status == NEB_OK && m.type == NEB_RELAY_SHOW && m.body[0]) chains++;
        if (status == NEB_ERR_AGAIN && recv(g->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) break;
    }
    greedy++;
}

/* Refuses, each time in other words. */
static void refuse(struct guest *g)
{
    char text[64];
    snprintf(text, sizeof text, "reason %d", ++refusals);
    if (neb__relay_send_refusal(g->tls, NEB_RELAY_REFUSE_QUOTA, text) == NEB_OK) flush(g);
}

static void take_call(struct guest *g)
{
    if (lie == GREEDY) {
        want_more(g);
        return;
    }
    if (lie == NOISY) {
        refuse(g);
        return;
    }
    int ticket = 0;
    pthread_mutex_lock(&lock);
    while (ticket < 63 && waiting[ticket]) ticket++;
    waiting[ticket] = g;
    ring(g, ticket);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < 300 && !stop; i++) { /* whoever answers takes it out */
        pthread_mutex_lock(&lock);
        bool there = waiting[ticket] == g;
        if (there && i == 299) waiting[ticket] = NULL;
        pthread_mutex_unlock(&lock);
        if (!there) return;
        usleep(10000);
    }
}

static void take_answer(struct guest *g)
{
    if (lie == NOISY) {
        refuse(g);
        return;
    }
    pthread_mutex_lock(&lock);
    struct guest *caller = g->ask.ticket < 64 ? waiting[g->ask.ticket] : NULL;
    int fd = caller ? dup(caller->fd) : -1;
    if (caller) {
        waiting[g->ask.ticket] = NULL;
        say(caller, NEB_RELAY_JOINED, NULL, 0);
        say(g, NEB_RELAY_JOINED, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    if (fd < 0) return;
    join(fd, g->fd);
    close(fd);
}

static void take_stand(struct guest *g)
{
    struct neb_relay_message m;
    pthread_mutex_lock(&lock);
    standing[g->who] = g;
    say(g, NEB_RELAY_HERE, NULL, 0);
    pthread_mutex_unlock(&lock);
    while (!stop && neb__relay_next(g->tls, &g->reader, UINT32_MAX, &m) == NEB_ERR_AGAIN) {
        if (lie == NOISY) ring_all(g);
        struct pollfd p = {g->fd, POLLIN, 0};
        char byte;
        if (poll(&p, 1, 100) > 0 && recv(g->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) break;
    }
    pthread_mutex_lock(&lock);
    if (standing[g->who] == g) standing[g->who] = NULL;
    pthread_mutex_unlock(&lock);
}

static void *serve(void *arg)
{
    struct guest *g = arg;
    struct timeval limit = {0, 100000};
    struct neb_relay_message m;
    struct neb_public key;
    neb_status status = NEB_ERR_AGAIN;
    setsockopt(g->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (int i = 0; i < 50 && status == NEB_ERR_AGAIN && !stop; i++) status = neb__tls_handshake(g->tls);
    flush(g);
    if (status == NEB_OK) neb__tls_peer(g->tls, &key);
    if (status == NEB_OK) status = NEB_ERR_AGAIN;
    for (int i = 0; i < 50 && status == NEB_ERR_AGAIN && !stop; i++)
        status = neb__relay_next(g->tls, &g->reader, UINT32_MAX, &m);
    if (status == NEB_OK && neb__relay_ask_get(m.body, m.size, &g->ask) == NEB_OK) {
        for (int i = 0; i < 3; i++)
            if (neb__public_equal(&member[i], &key)) g->who = i;
        if (g->who >= 0 && g->ask.what == NEB_RELAY_STAND) take_stand(g);
        if (g->who >= 0 && g->ask.what == NEB_RELAY_CALL) take_call(g);
        if (g->who >= 0 && g->ask.what == NEB_RELAY_ANSWER) take_answer(g);
    }
    pthread_mutex_lock(&lock);
    close(g->fd);
    neb__tls_close(g->tls);
    free(g);
    pthread_mutex_unlock(&lock);
    threads--;
    return NULL;
}

static void *host_main(void *arg)
{
    (void)arg;
    while (!stop) {
        struct pollfd p = {listen_fd, POLLIN, 0};
        pthread_t thread;
        if (poll(&p, 1, 50) <= 0) continue;
        struct guest *g = calloc(1, sizeof *g);
        g->fd = accept(listen_fd, NULL, NULL);
        g->who = -1;
        assert_ok(neb__tls_open(host_tls, true, 1 << 20, pull, g, &g->tls));
        threads++;
        assert_int_equal(pthread_create(&thread, NULL, serve, g), 0);
        pthread_detach(thread);
    }
    return NULL;
}

/* ---- the test ------------------------------------------------------------------------------------------ */

static char journal[1 << 18];
static pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;

static void note(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&journal_lock);
    size_t n = strlen(journal);
    if (n + strlen(line) + 2 < sizeof journal) sprintf(journal + n, "%s\n", line);
    pthread_mutex_unlock(&journal_lock);
}

static bool logged(const char *text)
{
    pthread_mutex_lock(&journal_lock);
    bool there = strstr(journal, text) != NULL;
    pthread_mutex_unlock(&journal_lock);
    return there;
}

static void begin_lie(enum lie which)
{
    pthread_mutex_lock(&journal_lock);
    journal[0] = 0;
    pthread_mutex_unlock(&journal_lock);
    lie = which;
}

enum { PATIENCE = 30000 }; /* hundredths of a second at least: a busy machine may need several connections */

static void await_logged(const char *text)
{
    for (int i = 0; i < PATIENCE; i++) {
        if (logged(text)) return;
        letters_feed();
        sleep_ms(10);
    }
    fail_msg("no line with '%s' in:\n%s", text, journal);
}

static int count(const char *text)
{
    int n = 0;
    pthread_mutex_lock(&journal_lock);
    for (const char *p = journal; (p = strstr(p, text)); p++) n++;
    pthread_mutex_unlock(&journal_lock);
    return n;
}

/* Each of three sites shows its roster once in a connection, and then goes. */
static void be_greedy(void)
{
    lie = GREEDY;
    for (int i = 0; i < PATIENCE && greedy < 3; i++) letters_feed(), sleep_ms(10);
    lie = HONEST;
    assert_true(greedy >= 3);
    assert_in_range(chains, 1, greedy);
}

/* Hundreds of refusals, each in its own words: three sites log ten lines a second each at most, and a count. */
static void be_noisy(void)
{
    int64_t since = neb__now_ns();
    begin_lie(NOISY);
    for (int i = 0; i < PATIENCE && refusals < 300; i++) letters_feed(), sleep_ms(10);
    int lines = count("refuses a connection: reason");
    double s = neb__seconds_since(since);
    lie = HONEST;
    assert_true(refusals >= 300 && lines >= 1);
    if (lines > 3 * 10 * (int)(s + 2)) fail_msg("%d lines in %.1f s for %d refusals", lines, s, refusals);
}

static struct node third;

static void test_lies(void **state)
{
    (void)state;
    static const struct neb_net_events nothing;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, host_main, NULL), 0);
    node_open(&third, sites.path[2], &nothing, NULL, NULL);
    letters_open(&sites, NULL);
    letters_path(true);
    letters_await(5);
    static const enum lie altering[] = {FLIP, DROP, REPEAT, EXCHANGE};
    for (int i = 0; i < 4; i++) {
        begin_lie(altering[i]);
        await_logged("alters its bytes");
        letters_await(5);
    }
    begin_lie(DELAY);
    letters_await(2);
    begin_lie(SILENT);
    await_logged("is down: no answer in time");
    be_greedy();
    letters_await(2);
    be_noisy();
    letters_await(2);
    begin_lie(SILENT);
    await_logged("is down: no answer in time");
    lie = SWAP; /* the next call is answered by another member */
    await_logged("dialled s1, but s2 answered");
    lie = HONEST;
    letters_await(5);
    letters_close();
    node_close(&third);
    stop = true;
    pthread_join(thread, NULL);
    for (int i = 0; i < 1000 && threads; i++) sleep_ms(10);
    assert_int_equal(threads, 0);
}

static int set_up(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    struct neb_public key;
    struct neb_chain *chain;
    char place[64];
    static char address[NEB_ADDRESS_SIZE];
    (void)state;
    assert_ok(neb__key_create(&host_key));
    assert_ok(neb__tls_context_create(host_key, "liar", &host_tls));
    neb__key_public(host_key, &key);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listen_fd, 64), 0);
    getsockname(listen_fd, (struct sockaddr *)&a, &n);
    port = ntohs(a.sin_port);
    snprintf(place, sizeof place, "127.0.0.1:%u", port);
    assert_ok(neb__relay_address_format(place, &key, address));
    sites_make(&sites, 3, NULL);
    const char *const addresses[3][2] = {{address}, {address}, {address}};
    sites_address(&sites, addresses);
    assert_ok(neb__site_roster_load(sites.path[0], &chain));
    for (int i = 0; i < 3; i++) member[i] = chain->now.members[i].key;
    neb__chain_free(chain);
    neb_log_set_sink(note, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    neb_log_set_sink(NULL, NULL);
    close(listen_fd);
    sites_free(&sites);
    neb__tls_context_free(host_tls);
    neb__key_free(host_key);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lies)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
