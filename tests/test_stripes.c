/* test_stripes.c: the controller finds the number of stripes on lines that are only functions. Two stripes
 * take turns on sockets that go nowhere, by the test's own clock. */
#include "check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "net/link.h"
#include "net/stripes.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Runs the controller for `seconds` of busy time on a line where n stripes give rate(n), with noise of +-2 %;
 * the mean goodput over the last quarter. */
static double run(struct neb_stripes *s, double (*rate)(int n), double rtt, double seconds, uint64_t seed)
{
    struct neb_rng rng = {seed};
    int64_t now = 0;
    double sum = 0, count = 0;
    for (double t = 0; t < seconds; t += 0.1) {
        double r = rate(s->target) * (0.98 + 0.04 * neb__rng_uniform(&rng));
        now += 100000000;
        s->try_more = true;
        neb__stripes_sample(s, now, r * 0.1, 0.1, rtt);
        if (t > 0.75 * seconds) sum += r, count++;
    }
    return sum / count;
}

static double one_fills_it(int n)
{
    return n == 1 ? 1e7 : 0.99e7;
}

static double buffers_limit(int n)
{
    return n * 0.3e8 < 1.2e8 ? n * 0.3e8 : 1.2e8;
}

static double many_harm(int n)
{
    return n <= 4 ? 1e6 * n : 4e6 / (1 + 0.1 * (n - 4));
}

static void test_converges(void **state)
{
    (void)state;
    static const struct {
        double (*rate)(int);
        double best;
    } lines[] = {{one_fills_it, 1e7}, {buffers_limit, 1.2e8}, {many_harm, 4e6}};
    for (int l = 0; l < 3; l++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct neb_stripes s;
            neb__stripes_init(&s, 0, 32, 0);
            double got = run(&s, lines[l].rate, 0.1, 120, seed);
            if (got < 0.95 * lines[l].best)
                fail_msg("line %d, seed %d: %.3g of %.3g with %d stripes", l, (int)seed, got, lines[l].best,
                         s.target);
        }
}

static void test_fixed_and_bounds(void **state)
{
    (void)state;
    struct neb_stripes s;
    neb__stripes_init(&s, 5, 32, 0);
    run(&s, buffers_limit, 0.01, 60, 1);
    assert_int_equal(s.target, 5);
    neb__stripes_init(&s, 0, 2, 0);
    run(&s, buffers_limit, 0.01, 60, 1);
    assert_int_equal(s.target, 2);
    neb__stripes_init(&s, 0, 1, 0);
    run(&s, buffers_limit, 0.01, 60, 1);
    assert_int_equal(s.target, 1);
}

/* If TCP reports nothing that more flows could help against, no more are tried; if there are several, fewer
 * are tried. */
static void test_no_try_without_reason(void **state)
{
    (void)state;
    struct neb_stripes s;
    neb__stripes_init(&s, 0, 32, 0);
    for (int64_t t = 1; t < 600; t++) {
        neb__stripes_sample(&s, t * 100000000, 1e6, 0.1, 0.05);
        assert_int_equal(s.target, 1);
    }
    s.target = s.best = 8;
    for (int64_t t = 600; t < 6000; t++) neb__stripes_sample(&s, t * 100000000, 1e6, 0.1, 0.05);
    assert_true(s.best <= 2);
}

/* ---- turns --------------------------------------------------------------------------------------------- */

struct pair {
    struct neb_net net;
    struct neb_peer peer;
    struct neb_conn conn[2];
};

static int64_t at(double seconds)
{
    return (int64_t)(seconds * 1e9);
}

static void open_pair(struct pair *t)
{
    memset(t, 0, sizeof *t);
    assert_int_equal(uv_loop_init(&t->net.loop), 0);
    uv_timer_init(&t->net.loop, &t->net.turn_timer);
    t->net.turn_timer.data = &t->net;
    t->net.peers = &t->peer;
    t->peer.net = &t->net;
    t->peer.up = true;
    neb__stripes_init(&t->peer.stripes, 0, 8, 0);
    for (int i = 0; i < 2; i++) {
        struct neb_conn *c = t->peer.stripe[i] = &t->conn[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(c->fd >= 0);
        c->peer = &t->peer;
        c->role = NEB_CONN_STRIPE;
        c->stripe = (uint8_t)i;
        c->state = NEB_CONN_READY;
    }
}

static void close_pair(struct pair *t)
{
    for (int i = 0; i < 2; i++) close(t->conn[i].fd);
    uv_close((uv_handle_t *)&t->net.turn_timer, NULL);
    uv_run(&t->net.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&t->net.loop), 0);
}

/* Returns the stripe that may send, or -1. */
static int who_sends(const struct pair *t)
{
    bool a = neb__bbr_turns_may_send(&t->conn[0]), b = neb__bbr_turns_may_send(&t->conn[1]);
    assert_false(a && b);
    if (a) return 0;
    return b ? 1 : -1;
}

static void test_turns(void **state)
{
    (void)state;
    struct pair *t = calloc(1, sizeof *t);
    assert_non_null(t);
    open_pair(t);
    t->peer.turns.on = t->conn[0].had_turn = true;
    int turns = 0, before = 0;
    t->conn[1].round_trip_at = at(2.5);
    for (double s = 2.6; s < 60; s += 0.1) {
        if (turns == 3)
            t->conn[before].round_trip_at = at(s); /* this stripe keeps finding shorter round trips */
        neb__bbr_turns_acked(&t->peer, 0.1, at(s));
        assert_int_equal(neb__bbr_turns_stripes(&t->peer), 2);
        if (t->peer.turns.closing) {
            assert_int_equal(who_sends(t), -1); /* the bytes in the socket leave first */
            assert_true(neb__bbr_turns_is_in_use(&t->conn[before]) &&
                        !neb__bbr_turns_is_in_use(&t->conn[!before]));
            bool rested =
                !t->conn[!before].had_turn || s - (double)t->conn[!before].round_trip_at * 1e-9 > 10;
            assert_true(rested);
            assert_true(turns == 0 || s - (double)t->conn[before].round_trip_at * 1e-9 < 10);
            neb__bbr_turns_hand_over(&t->net, at(s));
            assert_int_equal(who_sends(t), !before);
            before = !before;
            turns++;
        }
        assert_int_equal(who_sends(t), before);
    }
    assert_int_equal(turns, 3); /* one change at once, two within ten seconds each, then no more */
    t->conn[before].state = NEB_CONN_CLOSED;
    assert_true(neb__bbr_turns_may_send(&t->conn[!before])); /* the stripe that is left may send */
    t->peer.stripes.target = 2;
    assert_int_equal(neb__bbr_turns_stripes(&t->peer), 2);
    assert_true(neb__bbr_turns_may_send(&t->conn[0]) && neb__bbr_turns_may_send(&t->conn[1]));
    close_pair(t);
    free(t);
}

static void test_turns_only_where_they_help(void **state)
{
    (void)state;
    struct pair *t = calloc(1, sizeof *t);
    assert_non_null(t);
    open_pair(t);
    for (int i = 0; i < 100; i++) neb__bbr_turns_acked(&t->peer, i % 10 ? 0.1 : 0, at(0.1 * i));
    assert_int_equal(neb__bbr_turns_stripes(&t->peer),
                     1); /* the queue was never full for two seconds on end */
    t->peer.stripes.fixed = true;
    for (int i = 0; i < 100; i++) neb__bbr_turns_acked(&t->peer, 0.1, at(10 + 0.1 * i));
    assert_int_equal(neb__bbr_turns_stripes(&t->peer), 1);
    t->peer.stripes.fixed = false;
    setsockopt(t->conn[0].fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    for (int i = 0; i < 100; i++) neb__bbr_turns_acked(&t->peer, 0.1, at(20 + 0.1 * i));
    assert_int_equal(neb__bbr_turns_stripes(&t->peer), 1);
    if (!setsockopt(t->conn[0].fd, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3)) {
        neb__bbr_turns_acked(&t->peer, 0.1, at(31));
        assert_int_equal(neb__bbr_turns_stripes(&t->peer), 2);
    }
    close_pair(t);
    free(t);
}

/* A larger send buffer is requested, but the kernel may still grow it later; the socket's marks follow. */
static void test_room(void **state)
{
    (void)state;
    struct pair *t = calloc(1, sizeof *t);
    int room = 0, mark = 0, locked = 9;
    socklen_t n = sizeof room;
    assert_non_null(t);
    open_pair(t);
    struct neb_conn *c = &t->conn[0];
    neb__conn_unsent(c, 300000, 75000);
    assert_int_equal(getsockopt(c->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &mark, &n), 0);
    assert_int_equal(mark, 300000);
    c->blocked = true; /* it becomes writable when fewer than 75000 bytes wait, half of the mark */
    neb__conn_unsent(c, 600000, 150000);
    assert_int_equal(getsockopt(c->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &mark, &n), 0);
    assert_int_equal(mark, 300000);
#ifdef SO_BUF_LOCK
    if (!getsockopt(c->fd, SOL_SOCKET, SO_BUF_LOCK, &locked, &n)) {
        neb__conn_room(c, 300000);
        assert_int_equal(getsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &room, &n), 0);
        assert_true(room >= 300000);
        assert_int_equal(getsockopt(c->fd, SOL_SOCKET, SO_BUF_LOCK, &locked, &n), 0);
        assert_int_equal(locked, 0);
        neb__conn_room(c, 100000); /* the buffer never shrinks */
        int now = 0;
        assert_int_equal(getsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &now, &n), 0);
        assert_int_equal(now, room);
    }
#endif
    (void)locked, (void)room;
    close_pair(t);
    free(t);
}

/* The time that an answer was held does not count as round trip. Older versions do not tell it. */
static void test_held_answer(void **state)
{
    (void)state;
    struct pair *t = calloc(1, sizeof *t);
    assert_non_null(t);
    open_pair(t);
    t->peer.control = &t->conn[0];
    t->peer.ping_number = 7;
    for (int version = 2; version <= 3; version++) {
        uint8_t body[NEB_PONG_SIZE];
        int64_t then = neb__now_ns() - 500000000;
        struct neb_pong pong = {7, 400000, (uint64_t)then};
        t->peer.version = version;
        t->peer.measure.rtt = 0;
        t->conn[0].opened_at = then - 1;
        neb__pong_put(&pong, body);
        assert_ok(neb__link_frames.frame(&t->conn[0], NEB_FRAME_PONG, body, sizeof body));
        double most = (double)(neb__now_ns() - then) * 1e-9, held = version == 3 ? 0.4 : 0;
        assert_true(t->peer.measure.rtt > 0.499 - held && t->peer.measure.rtt <= most - held + 1e-6);
    }
    close_pair(t);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_converges),
                                       cmocka_unit_test(test_fixed_and_bounds),
                                       cmocka_unit_test(test_no_try_without_reason),
                                       cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_turns_only_where_they_help),
                                       cmocka_unit_test(test_room),
                                       cmocka_unit_test(test_held_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
