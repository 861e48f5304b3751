/* test_proxy.c: sites that dial through a proxy or by a command. Small proxies in this file do what real ones do, and what
 * hostile ones might. The command that dials is this program itself (`test_proxy carry HOST PORT`). */
#include "check.h"
#include "sites.h"
#include "base/clock.h"
#include "net/way.h"

#include <arpa/inet.h>
#include <nebula/log.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what a user writes -------------------------------------------------------------------------------- */

static void test_addresses(void **state)
{
    (void)state;
    struct neb_proxy p;
    assert_ok(neb__proxy_parse("gate.example:3128", &p));
    assert_true(p.kind == NEB_PROXY_HTTP && p.port == 3128 && !strcmp(p.host, "gate.example") && !*p.user);
    assert_ok(neb__proxy_parse("SOCKS5h://me:a%40b%3Ac@[fd00::1]:1080/", &p));
    assert_true(p.kind == NEB_PROXY_SOCKS && p.port == 1080 && !strcmp(p.host, "fd00::1"));
    assert_string_equal(p.user, "me");
    assert_string_equal(p.password, "a@b:c");
    assert_ok(neb__proxy_parse("http://me:pa@ss@gate:80", &p));
    assert_string_equal(p.password, "pa@ss");
    static const char *const bad[] = {"",
                                      "gate",
                                      "https://u:hunter2@gate:1",
                                      "http://:hunter2@gate:1",
                                      "http://u:hunter2%4@gate:1",
                                      "http://u:hunter2%00@gate:1",
                                      "http://u:hunter2@gate:1/path",
                                      "http://u:hunter2@ga te:1",
                                      "http://u:hunter2@-gate:1",
                                      "http://u:hunter2@gate:99999"};
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_status(neb__proxy_parse(bad[i], &p), NEB_ERR_CONFIG);
        assert_null(strstr(neb_last_error(), "hunter2"));
    }
    check_log_restore();
}

static void test_spared(void **state)
{
    (void)state;
    const char *list = "example.org, .corp ,10.1.0.0/16,fd00::/8 192.0.2.7,10.2.3.4/99";
    static const char *const yes[] = {"example.org", "A.Example.ORG", "a.corp",   "corp",
                                      "10.1.2.3",    "fd12::3",       "192.0.2.7"};
    static const char *const no[] = {"badexample.org", "example.org.net", "10.2.0.1",
                                     "fe80::1",        "192.0.2.70",      "org"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) assert_true(neb__proxy_spares(list, yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) assert_false(neb__proxy_spares(list, no[i]));
    assert_true(neb__proxy_spares("a,*", "anything"));
    assert_false(neb__proxy_spares("", "a"));
    assert_false(neb__proxy_spares(NULL, "a"));
}

static void test_environment(void **state)
{
    (void)state;
    struct neb_way w;
    setenv("all_proxy", "socks5://u:w@gate.example:1080", 1);
    setenv("no_proxy", "near.example", 1);
    assert_ok(neb__way_init(&w, NULL, NULL, true));
    assert_true(w.proxy.kind == NEB_PROXY_SOCKS);
    assert_true(neb__way_uses_proxy(&w, "b.example"));
    assert_false(neb__way_uses_proxy(&w, "near.example"));
    assert_false(neb__way_uses_proxy(&w, "127.0.0.1"));
    neb__way_free(&w);
    setenv("https_proxy", "http://other:80", 1); /* it comes first */
    assert_ok(neb__way_init(&w, NULL, NULL, true));
    assert_true(w.proxy.kind == NEB_PROXY_HTTP);
    neb__way_free(&w);
    assert_ok(neb__way_init(&w, "none", NULL, true));
    assert_false(neb__way_uses_proxy(&w, "b.example"));
    neb__way_free(&w);
    assert_ok(neb__way_init(&w, NULL, NULL, false));
    assert_false(neb__way_uses_proxy(&w, "b.example"));
    neb__way_free(&w);
    assert_ok(neb__way_init(&w, "http://named:8080", NULL, true)); /* no_proxy is the environment's */
    assert_true(neb__way_uses_proxy(&w, "127.0.0.1"));
    neb__way_free(&w);
    check_log_quiet();
    assert_status(neb__way_init(&w, "http://named:8080", "ssh x -W %h:%p", true), NEB_ERR_CONFIG);
    setenv("https_proxy", "ftp://u:hunter2@gate:1", 1);
    assert_status(neb__way_init(&w, NULL, NULL, true), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "https_proxy"));
    assert_null(strstr(neb_last_error(), "hunter2"));
    check_log_restore();
    unsetenv("https_proxy");
    unsetenv("all_proxy");
    unsetenv("no_proxy");
}

static void test_commands(void **state)
{
    (void)state;
    struct neb_command c, filled;
    char *argv[NEB_COMMAND_WORDS + 1];
    assert_ok(neb__command_split("  ssh -o 'A b=\"c\"' log\\ in \"x'y\" -W %h:%p 100%%", &c));
    assert_ok(neb__command_fill(&c, "b.example", 7100, &filled));
    neb__command_words(&filled, argv);
    static const char *const want[] = {"ssh", "-o", "A b=\"c\"",      "log in",
                                       "x'y", "-W", "b.example:7100", "100%"};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) assert_string_equal(argv[i], want[i]);
    assert_null(argv[8]);
    assert_ok(neb__command_split("nc %h %p %h:%p", &c));
    assert_ok(neb__command_fill(&c, "fd00::1", 1, &filled));
    neb__command_words(&filled, argv);
    assert_string_equal(argv[1], "fd00::1");
    assert_string_equal(argv[3], "[fd00::1]:1");
    /* A roster that tries to give the command more than a host. */
    static const char *const hosts[] = {"-oProxyCommand=x", "a;id", "$(id)", "a b", "a%p", "", "a\nb", ".x"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        assert_status(neb__command_fill(&c, hosts[i], 1, &filled), NEB_ERR_INVALID);
    char longest[4096];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    static const char *const bad[] = {"", "  ", "'a", "a %x", "a %", "''"};
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_status(neb__command_split(bad[i], &c), NEB_ERR_CONFIG);
    assert_status(neb__command_split(longest, &c), NEB_ERR_CONFIG);
    for (size_t i = 1; i < sizeof longest; i += 2) longest[i] = ' ';
    assert_status(neb__command_split(longest, &c), NEB_ERR_CONFIG);
    check_log_restore();
}

/* ---- a proxy's answers, cut anywhere ------------------------------------------------------------------- */

/* Feeds the answer in pieces of `step` bytes. `rest`: how many of its bytes were not the proxy's. */
static neb_status feed(struct neb_proxy_talk *t, const char *answer, size_t n, size_t step, size_t *rest)
{
    neb_status status = NEB_ERR_AGAIN;
    size_t at = 0, used;
    while (status == NEB_ERR_AGAIN && at < n) {
        size_t now = n - at < step ? n - at : step;
        t->out_len = 0;
        status = neb__proxy_take(t, (const uint8_t *)answer + at, now, &used);
        if (status == NEB_OK || status == NEB_ERR_AGAIN) at += used;
    }
    *rest = n - at;
    return status;
}

struct answer {
    const char *proxy, *bytes;
    size_t n;
    neb_status want;
    size_t rest;
    const char *says;
};
#define BYTES(s) s, sizeof(s) - 1

static const struct answer answers[] = {
    {"http://g:1", BYTES("HTTP/1.1 200 OK\r\n\r\nmore"), NEB_OK, 4, NULL},
    {"http://g:1", BYTES("HTTP/1.0 200 Connection established\r\nVia: x\r\n\r\n"), NEB_OK, 0, NULL},
    {"http://g:1", BYTES("HTTP/1.1 204\n\n"), NEB_OK, 0, NULL},
    {"http://g:1", BYTES("HTTP/1.1 403 For\033bidden\r\n\r\n"), NEB_ERR_NET, 0,
     "'HTTP/1.1 403 For?bidden' (many"},
    {"http://g:1", BYTES("HTTP/1.1 407 Who\r\n\r\n"), NEB_ERR_NET, 0, "wants a user"},
    {"http://u:w@g:1", BYTES("HTTP/1.1 407 Who\r\n\r\n"), NEB_ERR_NET, 0, "does not take this user"},
    {"http://g:1", BYTES("HTTP/1.1 200 OK\r\nA: b\r\n"), NEB_ERR_AGAIN, 0, NULL},
    {"http://g:1", BYTES("SSH-2.0-OpenSSH\r\n\r\n"), NEB_ERR_PROTOCOL, 0, "not an HTTP proxy"},
    {"http://g:1", BYTES("HTTP/x.1 200 OK\r\n\r\n"), NEB_ERR_PROTOCOL, 0, "not an HTTP proxy"},
    {"socks5://g:1", BYTES("\5\0\5\0\0\1\1\2\3\4\0\1more"), NEB_OK, 4, NULL},
    {"socks5://g:1", BYTES("\5\0\5\0\0\3\3abc\0\1"), NEB_OK, 0, NULL},
    {"socks5://g:1", BYTES("\5\0\5\0\0\4aaaaaaaaaaaaaaaa\0\1"), NEB_OK, 0, NULL},
    {"socks5://u:w@g:1", BYTES("\5\2\1\0\5\0\0\1\1\2\3\4\0\1"), NEB_OK, 0, NULL},
    {"socks5://u:w@g:1", BYTES("\5\0\5\0\0\1\1\2\3\4\0\1"), NEB_OK, 0, NULL},
    {"socks5://u:w@g:1", BYTES("\5\2\1\1"), NEB_ERR_NET, 0, "does not take this user"},
    {"socks5://g:1", BYTES("\5\xff"), NEB_ERR_NET, 0, "wants a user"},
    {"socks5://g:1", BYTES("\5\2"), NEB_ERR_PROTOCOL, 0, "not a SOCKS5 proxy"}, /* it was not offered */
    {"socks5://g:1", BYTES("\4\0"), NEB_ERR_PROTOCOL, 0, "not a SOCKS5 proxy"},
    {"socks5://g:1", BYTES("\5\0\5\5"), NEB_ERR_NET, 0, "nobody listens there"},
    {"socks5://g:1", BYTES("\5\0\5\x77"), NEB_ERR_NET, 0, "unknown reason"},
    {"socks5://g:1", BYTES("\5\0\5\0\0\7\1\2\3\4\0\1"), NEB_ERR_PROTOCOL, 0, "not a SOCKS5 proxy"},
    {"socks5://g:1", BYTES("\5\0\5\0\0\3\377short"), NEB_ERR_AGAIN, 0, NULL},
};

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        for (size_t step = 1; step <= answers[i].n; step++) {
            const struct answer *a = &answers[i];
            struct neb_proxy p;
            struct neb_proxy_talk t;
            size_t rest;
            assert_ok(neb__proxy_parse(a->proxy, &p));
            assert_ok(neb__proxy_ask(&t, &p, "b.example", 7100));
            neb_status got = feed(&t, a->bytes, a->n, step, &rest);
            if (got != a->want) fail_msg("answer %zu: %s: %s", i, neb_status_name(got), neb_last_error());
            if (got == NEB_OK) assert_int_equal(rest, a->rest);
            if (a->says && !strstr(neb_last_error(), a->says))
                fail_msg("answer %zu: %s", i, neb_last_error());
        }
}

static void test_endless(void **state)
{
    (void)state;
    struct neb_proxy p;
    struct neb_proxy_talk t;
    size_t used, sent = 0;
    neb_status status = NEB_ERR_AGAIN;
    assert_ok(neb__proxy_parse("http://g:1", &p));
    assert_ok(neb__proxy_ask(&t, &p, "b.example", 7100));
    assert_status(neb__proxy_take(&t, (const uint8_t *)"HTTP/1.1 200 OK\r\n", 17, &used), NEB_ERR_AGAIN);
    for (; status == NEB_ERR_AGAIN && sent < 1 << 20; sent += 8)
        status = neb__proxy_take(&t, (const uint8_t *)"A: bcd\r\n", 8, &used);
    assert_status(status, NEB_ERR_PROTOCOL);
    assert_true(sent <= NEB_PROXY_REPLY_MAX);
}

/* ---- a proxy that listens ------------------------------------------------------------------------------ */

enum manner { HONEST, ENDLESS, MUTE_END, REFUSING, WRONG };

struct gate {
    int fd;
    uint16_t port;
    enum manner manner;
    pthread_t thread;
    atomic_bool stop;
    atomic_int carried; /* connections */
    char login[64];     /* what a client must send; "": nothing */
};

static bool get(int fd, void *to, size_t n)
{
    return n == 0 || recv(fd, to, n, MSG_WAITALL) == (ssize_t)n;
}

static int connect_port(uint16_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Copies both ways until either end closes, or `stop`. */
static void carry(int a_in, int a_out, int b, const atomic_bool *stop)
{
    char bytes[16384];
    struct pollfd p[2] = {{.fd = a_in, .events = POLLIN}, {.fd = b, .events = POLLIN}};
    while (!stop || !*stop) {
        if (poll(p, 2, 50) <= 0) continue;
        for (int i = 0; i < 2; i++) {
            if (!p[i].revents) continue;
            ssize_t n = read(p[i].fd, bytes, sizeof bytes), at = 0;
            if (n <= 0) return;
            while (at < n) {
                ssize_t w = write(i ? a_out : b, bytes + at, (size_t)(n - at));
                if (w <= 0) return;
                at += w;
            }
        }
    }
}

static int serve_http(struct gate *g, int fd)
{
    char text[2048] = "";
    unsigned port = 0;
    for (size_t n = 0; n < sizeof text - 1 && !strstr(text, "\r\n\r\n"); n++)
        if (!get(fd, text + n, 1)) return -1;
    if (sscanf(text, "CONNECT 127.0.0.1:%u HTTP/1.1\r\n", &port) != 1) return -1;
    if (*g->login && !strstr(text, g->login)) {
        send(fd, "HTTP/1.1 407 Login\r\n\r\n", 22, MSG_NOSIGNAL);
        return -1;
    }
    int out = connect_port((uint16_t)port);
    if (out >= 0) send(fd, "HTTP/1.1 200 OK\r\nVia: test\r\n\r\n", 30, MSG_NOSIGNAL);
    return out;
}

static int serve_socks(struct gate *g, int fd, uint8_t methods)
{
    uint8_t m[256], head[4], body[64], n = methods;
    if (!get(fd, m, n)) return -1;
    bool login = *g->login && memchr(m, 2, n);
    send(fd, login ? "\5\2" : "\5\0", 2, MSG_NOSIGNAL);
    if (login) {
        char user[256] = "", word[256] = "", both[520];
        if (!get(fd, m, 2) || !get(fd, user, m[1]) || !get(fd, m, 1) || !get(fd, word, m[0])) return -1;
        snprintf(both, sizeof both, "%s:%s", user, word);
        bool right = !strcmp(both, g->login);
        send(fd, right ? "\1\0" : "\1\1", 2, MSG_NOSIGNAL);
        if (!right) return -1;
    }
    if (!get(fd, head, 4) || head[3] != 1 || !get(fd, body, 6)) return -1;
    int out = connect_port((uint16_t)(body[4] << 8 | body[5]));
    if (out >= 0) send(fd, "\5\0\0\1\0\0\0\0\0\0", 10, MSG_NOSIGNAL);
    return out;
}

struct client {
    struct gate *gate;
    int fd;
};

static void *serve(void *arg)
{
    struct client c = *(struct client *)arg;
    struct gate *g = c.gate;
    uint8_t first[2];
    int out = -1;
    free(arg);
    switch (g->manner) {
    case HONEST:
        if (recv(c.fd, first, 2, MSG_WAITALL | MSG_PEEK) != 2) break;
        if (first[0] == 5 && get(c.fd, first, 2))
            out = serve_socks(g, c.fd, first[1]);
        else if (first[0] == 'C')
            out = serve_http(g, c.fd);
        if (out < 0) break;
        g->carried++;
        carry(c.fd, c.fd, out, &g->stop);
        break;
    case ENDLESS:
        send(c.fd, "HTTP/1.1 200 OK\r\n", 17, MSG_NOSIGNAL);
        while (!g->stop && send(c.fd, "X: y\r\n", 6, MSG_NOSIGNAL) == 6) {}
        break;
    case MUTE_END: recv(c.fd, first, 2, MSG_WAITALL); break;
    case REFUSING: send(c.fd, "HTTP/1.1 503 Not today\r\n\r\n", 26, MSG_NOSIGNAL); break;
    case WRONG: send(c.fd, "220 mail ready\r\n", 16, MSG_NOSIGNAL); break;
    }
    if (g->manner > ENDLESS) usleep(20000); /* the answer is read before the end */
    if (out >= 0) close(out);
    shutdown(c.fd, SHUT_RDWR);
    close(c.fd);
    return NULL;
}

static void *listen_on(void *arg)
{
    struct gate *g = arg;
    pthread_t threads[64];
    int n = 0;
    while (!g->stop) {
        struct pollfd p = {.fd = g->fd, .events = POLLIN};
        if (poll(&p, 1, 20) <= 0 || n == 64) continue;
        struct client *c = malloc(sizeof *c);
        *c = (struct client){g, accept(g->fd, NULL, NULL)};
        if (pthread_create(&threads[n], NULL, serve, c) == 0) n++;
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    return NULL;
}

static void gate_open(struct gate *g, enum manner manner, const char *login)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    *g = (struct gate){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .manner = manner};
    snprintf(g->login, sizeof g->login, "%s", login);
    assert_int_equal(bind(g->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(g->fd, 64), 0);
    assert_int_equal(getsockname(g->fd, (struct sockaddr *)&a, &n), 0);
    g->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&g->thread, NULL, listen_on, g), 0);
}

static void gate_close(struct gate *g)
{
    g->stop = true;
    pthread_join(g->thread, NULL);
    close(g->fd);
}

/* ---- two sites ----------------------------------------------------------------------------------------- */

static atomic_int up;
static atomic_size_t arrived;
static const char *proxy_now, *dial_now;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];

static void keep_log(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&log_lock);
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", line);
    pthread_mutex_unlock(&log_lock);
}

static int logged(const char *what)
{
    int n = 0;
    pthread_mutex_lock(&log_lock);
    for (const char *at = log_text; (at = strstr(at, what)); at++) n++;
    pthread_mutex_unlock(&log_lock);
    return n;
}

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)arg, (void)peer, (void)incarnation;
    up++;
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    (void)arg;
    arrived += m->size;
    return NEB_OK;
}

static const struct neb_net_events events = {.peer_up = on_up, .message = on_message};

static void tune(struct neb_net_config *c)
{
    c->proxy = proxy_now;
    c->dial = dial_now;
}

static void open_pair(struct sites *s, struct node n[2], const char *proxy, const char *dial)
{
    proxy_now = proxy;
    dial_now = dial;
    up = 0;
    arrived = 0;
    pthread_mutex_lock(&log_lock);
    *log_text = 0;
    pthread_mutex_unlock(&log_lock);
    neb_log_set_level(NEB_LOG_INFO);
    neb_log_set_sink(keep_log, NULL);
    sites_make(s, 2, NULL);
    sites_hide(s, 1); /* s1 cannot dial: only the way under test leads to a link */
    node_open(&n[1], s->path[1], &events, NULL, NULL);
    node_open(&n[0], s->path[0], &events, NULL, tune);
}

static void close_pair(struct sites *s, struct node n[2])
{
    node_close(&n[0]);
    node_close(&n[1]);
    sites_free(s);
    neb_log_set_sink(NULL, NULL);
}

#define WAIT_FOR(condition)                                                                                 \
    do {                                                                                                    \
        for (int64_t begun = neb__now_ns(); !(condition) && neb__seconds_since(begun) < 120;) sleep_ms(10); \
        if (!(condition)) fail_msg("%s does not come to hold; the log:\n%s", #condition, log_text);         \
    } while (0)

static void send_much(void *arg)
{
    static uint8_t bytes[3 << 20];
    struct node *n = arg;
    assert_ok(neb__net_send(n->net, 2, NEB_ROUND, 7, bytes, sizeof bytes, NULL, NULL));
}

static void assert_works(const char *proxy, const char *dial)
{
    struct sites s;
    struct node n[2];
    open_pair(&s, n, proxy, dial);
    WAIT_FOR(up == 2);
    node_call(&n[0], send_much, &n[0]); /* over stripes, which go the same way */
    WAIT_FOR(arrived == 3 << 20);
    if (logged("cannot reach") || logged("hunter2")) fail_msg("the log:\n%s", log_text);
    close_pair(&s, n);
}

static void test_through_proxies(void **state)
{
    (void)state;
    static const struct {
        const char *format, *login;
    } ways[] = {{"http://127.0.0.1:%u", ""},
                {"http://me:hunter2@127.0.0.1:%u", "Proxy-Authorization: Basic bWU6aHVudGVyMg==\r\n"},
                {"socks5://127.0.0.1:%u", ""},
                {"socks5://me:hunter2@127.0.0.1:%u", "me:hunter2"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct gate g;
        char proxy[80];
        gate_open(&g, HONEST, ways[i].login);
        snprintf(proxy, sizeof proxy, ways[i].format, g.port);
        assert_works(proxy, NULL);
        assert_true(g.carried >= 2);
        gate_close(&g);
    }
}

static void assert_trouble(const char *proxy, const char *dial, const char *says)
{
    struct sites s;
    struct node n[2];
    open_pair(&s, n, proxy, dial);
    WAIT_FOR(logged(says));
    assert_int_equal(logged("hunter2"), 0);
    assert_int_equal(up, 0);
    close_pair(&s, n);
}

static void test_bad_proxies(void **state)
{
    (void)state;
    static const struct {
        enum manner manner;
        const char *format, *says;
    } rows[] = {{ENDLESS, "http://127.0.0.1:%u", "has no end"},
                {MUTE_END, "http://127.0.0.1:%u", "instead of an answer"},
                {REFUSING, "http://127.0.0.1:%u", "it says 'HTTP/1.1 503 Not today'"},
                {WRONG, "http://127.0.0.1:%u", "is not an HTTP proxy"},
                {WRONG, "socks5://127.0.0.1:%u", "is not a SOCKS5 proxy"},
                {HONEST, "socks5://me:hunter2@127.0.0.1:%u", "does not take this user and password"},
                {HONEST, "http://127.0.0.1:%u", "wants a user and a password"}};
    char proxy[80];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gate g;
        gate_open(&g, rows[i].manner, "somebody:else");
        snprintf(proxy, sizeof proxy, rows[i].format, g.port);
        assert_trouble(proxy, NULL, rows[i].says);
        gate_close(&g);
    }
    snprintf(proxy, sizeof proxy, "http://127.0.0.1:%u", free_port());
    assert_trouble(proxy, NULL, "cannot be reached: Connection refused");
}

/* The same failure again and again is told once. */
static void test_told_once(void **state)
{
    (void)state;
    struct sites s;
    struct node n[2];
    struct gate g;
    char proxy[80];
    gate_open(&g, REFUSING, "");
    snprintf(proxy, sizeof proxy, "http://127.0.0.1:%u", g.port);
    open_pair(&s, n, proxy, NULL);
    neb_log_set_level(NEB_LOG_DEBUG);
    WAIT_FOR(logged("the connection to 127.0.0.1") >= 4);
    assert_int_equal(logged("cannot reach s1: the proxy"), 1);
    close_pair(&s, n);
    gate_close(&g);
}

/* ---- a command that dials ------------------------------------------------------------------------------ */

static void test_by_command(void **state)
{
    (void)state;
    assert_works(NULL, "/proc/self/exe carry %h %p");
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

static void test_bad_commands(void **state)
{
    (void)state;
    assert_trouble(NULL, "/nonexistent/dialler %h", "cannot run '/nonexistent/dialler'");
    assert_trouble(NULL, "sh -c 'printf \"no route\\033[31m\\nto %h\\n\" >&2; exit 7'",
                   "ended with status 7 before there was a link; it said: to 127.0.0.1");
    assert_int_equal(logged("no route?[31m"), 1);
    assert_trouble(NULL, "sh -c 'kill -9 $$'", "was ended by signal 9");
    assert_trouble(NULL, "sh -c 'while echo x >&2; do :; done'",
                   "says: x"); /* bounded, and killed at the end */
    assert_in_range(logged("says: x"), 1, 20);
    assert_trouble(NULL, "sh -c 'trap \"\" TERM; echo stays >&2; while :; do sleep 1; done'", "says: stays");
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static int carry_for(const char *host, const char *port)
{
    int fd = strcmp(host, "127.0.0.1") ? -1 : connect_port((uint16_t)atoi(port));
    if (fd < 0) return 1;
    carry(0, 1, fd, NULL);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),       cmocka_unit_test(test_spared),
        cmocka_unit_test(test_environment),     cmocka_unit_test(test_commands),
        cmocka_unit_test(test_answers),         cmocka_unit_test(test_endless),
        cmocka_unit_test(test_through_proxies), cmocka_unit_test(test_bad_proxies),
        cmocka_unit_test(test_told_once),       cmocka_unit_test(test_by_command),
        cmocka_unit_test(test_bad_commands)};
    if (argc == 4 && !strcmp(argv[1], "carry")) return carry_for(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
