/* test_slow_line.c: lines on which everything takes longer than the usual times, and a process that stands still. The line is a
 * command that dials (`test_slow_line carry HOST PORT MS`): it passes every byte on MS milliseconds later, both ways. */
#define _GNU_SOURCE
#include "check.h"
#include "sites.h"
#include "base/clock.h"
#include "round/core.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the line ------------------------------------------------------------------------------------------ */

enum { SLOTS = 4096, SLOT = 16384 };

struct piece {
    int64_t at;
    size_t n;
    char bytes[SLOT];
};

struct way {
    int in, out;
    struct piece *ring;
    unsigned first, last;
};

/* Returns false at the end of the input, once all is passed on. */
static bool pass(struct way *w, int64_t delay, bool readable, bool *ended)
{
    if (readable && !*ended && w->last - w->first < SLOTS) {
        struct piece *p = &w->ring[w->last % SLOTS];
        ssize_t n = read(w->in, p->bytes, SLOT);
        if (n <= 0) *ended = true;
        p->n = n > 0 ? (size_t)n : 0;
        p->at = neb__now_ns() + delay;
        w->last += n > 0;
    }
    while (w->first != w->last && w->ring[w->first % SLOTS].at <= neb__now_ns()) {
        struct piece *p = &w->ring[w->first++ % SLOTS];
        for (size_t at = 0; at < p->n;) {
            ssize_t n = write(w->out, p->bytes + at, p->n - at);
            if (n <= 0) return false;
            at += (size_t)n;
        }
    }
    return !*ended || w->first != w->last;
}

static int carry(const char *port, const char *ms)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)atoi(port))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) return 1;
    struct way w[2] = {{.in = 0, .out = fd, .ring = calloc(SLOTS, sizeof(struct piece))},
                       {.in = fd, .out = 1, .ring = calloc(SLOTS, sizeof(struct piece))}};
    int64_t delay = atoi(ms) * INT64_C(1000000);
    bool ended[2] = {false, false};
    for (;;) {
        struct pollfd p[2] = {{.fd = ended[0] ? -1 : 0, .events = POLLIN},
                              {.fd = ended[1] ? -1 : fd, .events = POLLIN}};
        poll(p, 2, 2);
        for (int i = 0; i < 2; i++)
            if (!pass(&w[i], delay, p[i].revents != 0, &ended[i])) return 0;
    }
}

/* ---- sites --------------------------------------------------------------------------------------------- */

static atomic_int up, down;
static atomic_size_t arrived;

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)arg, (void)peer, (void)incarnation;
    up++;
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    (void)arg, (void)peer, (void)why;
    down++;
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    (void)arg;
    arrived += m->size;
    return NEB_OK;
}

static const struct neb_net_events events = {.peer_up = on_up, .peer_down = on_down, .message = on_message};
static const char *dial;

static void tune(struct neb_net_config *c)
{
    c->greet = 0.8; /* less than a greeting takes here */
    c->heartbeat = 0.2;
    c->dead_after = 0.5; /* less than a round trip */
    c->dial = dial;
}

#define WAIT_FOR(condition)                                                                                 \
    do {                                                                                                    \
        for (int64_t begun = neb__now_ns(); !(condition) && neb__seconds_since(begun) < 120;) sleep_ms(10); \
        if (!(condition)) fail_msg("%s does not come to hold", #condition);                                 \
    } while (0)

static void send_some(void *arg)
{
    static uint8_t bytes[300000];
    struct node *n = arg;
    assert_ok(neb__net_send(n->net, 2, NEB_ROUND, 7, bytes, sizeof bytes, NULL, NULL));
}

/* A round trip of 0.8 s, where a peer is down after 0.5 s and a greeting may take 0.8 s: both times are learned. */
static void test_long_round_trip(void **state)
{
    (void)state;
    struct sites s;
    struct node n[2];
    up = down = 0;
    arrived = 0;
    dial = NULL;
    sites_make(&s, 2, NULL);
    sites_hide(&s, 1);
    node_open(&n[1], s.path[1], &events, NULL, NULL);
    dial = "/proc/self/exe carry %p 400";
    node_open(&n[0], s.path[0], &events, NULL, tune);
    WAIT_FOR(up == 2);
    node_call(&n[0], send_some, &n[0]);
    WAIT_FOR(arrived == 300000);
    sleep_ms(2500); /* five times dead_after */
    assert_int_equal(down, 0);
    node_close(&n[0]);
    node_close(&n[1]);
    sites_free(&s);
}

static void tune_still(struct neb_net_config *c)
{
    c->heartbeat = 0.5;
    c->dead_after = 3; /* so long the other thread always gets its turn, on a busy machine too */
}

static void tune_patient(struct neb_net_config *c)
{
    c->dead_after = 100;
}

static void stand_still(void *arg)
{
    (void)arg;
    sleep_ms(7000);
}

/* The links' thread gets no time for more than twice dead_after. The peer, which is patient, was there all the while. */
static void test_own_standstill(void **state)
{
    (void)state;
    struct sites s;
    struct node n[2];
    up = down = 0;
    dial = NULL;
    sites_make(&s, 2, NULL);
    sites_hide(&s, 1);
    node_open(&n[1], s.path[1], &events, NULL, tune_patient);
    node_open(&n[0], s.path[0], &events, NULL, tune_still);
    WAIT_FOR(up == 2);
    node_call(&n[0], stand_still, NULL);
    sleep_ms(1500);
    assert_int_equal(down, 0);
    node_close(&n[0]);
    node_close(&n[1]);
    sites_free(&s);
}

/* The core waits longer for votes, and as usual again on a fast line. */
static void test_core_times(void **state)
{
    (void)state;
    struct neb_round r = {.cfg = {.ping_ms = 0}};
    neb__round_defaults(&r.cfg);
    r.usual = r.cfg;
    neb__round_set_line(&r, 500);
    assert_int_equal(r.cfg.elect_ms, 3000);
    assert_int_equal(r.cfg.contact_ms, 5000);
    neb__round_set_line(&r, 6000);
    assert_int_equal(r.cfg.elect_ms, 24000);
    assert_int_equal(r.cfg.fetch_ms, 18000);
    neb__round_set_line(&r, INT64_MAX);
    assert_int_equal(r.cfg.elect_ms, 120000);
    neb__round_set_line(&r, 20);
    assert_int_equal(r.cfg.elect_ms, 3000);
    assert_int_equal(r.cfg.fetch_ms, 2000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_core_times),
                                       cmocka_unit_test(test_long_round_trip),
                                       cmocka_unit_test(test_own_standstill)};
    if (argc == 4 && !strcmp(argv[1], "carry")) return carry(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
