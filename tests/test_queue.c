/* test_queue.c: the line's queue stays short while bulk data fills the line.
 *
 * The line has 20 Mbit/s, 20 ms and a queue that holds a second's worth of data; the congestion control fills
 * any queue. Without the links' own pacing a control message would wait behind a second of bulk data. With
 * it, most take a small part of that. The bulk data must meanwhile keep the line busy. */
#include "check.h"
#include "sites.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/lab/lab.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BULK = 1 << 20, AHEAD = 6, DELAYS = 60, WARM = 5 };

/* Shared by all processes. */
static struct board {
    volatile int delays;
    double delay[DELAYS];
    volatile double busy; /* share of the line that bulk data had while delays were taken */
} * board;

static struct sites sites;

struct role {
    struct neb_net *net;
    uint8_t *data;
    int ahead;
    int64_t began;
    struct neb_line first;
};

static void keep_busy(struct role *r);

static void sent(void *arg, neb_status status)
{
    struct role *r = arg;
    r->ahead--;
    if (status == NEB_OK) keep_busy(r);
}

static void keep_busy(struct role *r)
{
    while (r->ahead < AHEAD && neb__net_send(r->net, 2, NEB_BULK, 1, r->data, BULK, sent, r) == NEB_OK)
        r->ahead++;
}

static void probe(void *arg)
{
    struct role *r = arg;
    struct neb_line line;
    int64_t now = neb__now_ns();
    if (board->delays == DELAYS) neb__net_stop(r->net);
    if (!neb__net_is_up(r->net, 2)) return;
    if (!r->began) r->began = now;
    keep_busy(r);
    if (neb__seconds_since(r->began) < WARM || neb__net_line(r->net, 2, &line) != NEB_OK) return;
    if (!r->first.acked_at) r->first = line;
    if (line.acked_at > r->first.acked_at)
        board->busy = 8 * (double)(line.bytes_out - r->first.bytes_out) /
                      ((double)(line.acked_at - r->first.acked_at) * 1e-9) / 20e6;
    neb__net_send_copy(r->net, 2, NEB_CONTROL, 2, &now, sizeof now, NULL, NULL);
}

static neb_status got(void *arg, struct neb_message *m)
{
    int64_t then;
    struct role *r = arg;
    if (m->kind != 2 || m->size != sizeof then || board->delays == DELAYS) return NEB_OK;
    memcpy(&then, m->data, sizeof then);
    board->delay[board->delays] = neb__seconds_since(then);
    if (++board->delays == DELAYS) neb__net_stop(r->net);
    return NEB_OK;
}

static int side_main(void *arg)
{
    static const struct neb_net_events events = {.message = got};
    int me = *(int *)arg;
    struct role r = {0};
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_net_timer *timer;
    neb_log_set_level(NEB_LOG_NONE);
    r.data = neb__calloc(BULK, 1);
    if (!r.data || neb__site_open(sites.path[me], &cfg.site) != NEB_OK) return 3;
    cfg.events = &events;
    cfg.arg = &r;
    cfg.congestion = "reno";
    cfg.stripes = 1;
    if (neb__net_open(&cfg, &r.net) != NEB_OK) return 4;
    if (!me && neb__net_timer_start(r.net, 0.01, 0.05, probe, &r, &timer) != NEB_OK) return 4;
    neb__net_run(r.net);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void test_control_is_not_behind_bulk(void **state)
{
    (void)state;
    struct neb_lab_config cfg;
    struct neb_lab_line line;
    struct neb_lab *lab;
    int side[2] = {0, 1}, handle[2], status = -1;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    assert_ok(neb__lab_line_parse("20mbit,20ms", &line));
    line.queue = 2500000;
    assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
    assert_ok(neb__lab_create(&cfg, &lab));
    neb__lab_config_free(&cfg);
    if (neb__lab_mode(lab) == NEB_LAB_RELAY) {
        neb__lab_destroy(lab);
        skip(); /* without packets TCP makes no queue */
    }
    sites_make(&sites, 2, NULL);
    sites_move(&sites, (const char *[]){neb__lab_address(lab, 0, 0), neb__lab_address(lab, 1, 1)});
    for (int i = 1; i >= 0; i--) {
        struct neb_lab_command c = {.out = -1, .err = -1, .fn = side_main, .arg = &side[i]};
        assert_ok(neb__lab_start(lab, i, &c, &handle[i]));
    }
    assert_ok(neb__lab_wait(lab, handle[1], 60, &status));
    assert_int_equal(status, 0);
    assert_ok(neb__lab_wait(lab, handle[0], 20, &status));
    qsort(board->delay, DELAYS, sizeof *board->delay, by_value);
    print_message("control behind bulk: median %.0f ms, most %.0f ms; bulk had %.0f %% of the line\n",
                  1e3 * board->delay[DELAYS / 2], 1e3 * board->delay[DELAYS - 1], 100 * board->busy);
    assert_true(board->delay[DELAYS / 2] < 0.4);
    assert_true(board->busy > 0.3);
    neb__lab_destroy(lab);
    sites_free(&sites);
    munmap(board, sizeof *board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_control_is_not_behind_bulk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
