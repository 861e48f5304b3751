/* test_faults.c: links and streams in the laboratory while things break: processes killed at random moments, stopped,
 * lines cut, cut one way, corrupted; a reader that is slow. A stream must deliver every item exactly once throughout.
 *
 * Site a produces items whose content follows from their number; site b consumes them, keeps a checkpoint (last item, running
 * sum) on disk and tells it as retained. Whatever happens, the checkpoint must end as if nothing had: a lost, repeated or
 * damaged item changes the sum or breaks the order, which b checks at every item.
 *
 * NEB_SOAK=1 makes it long (200 kills, outages of 15 and 60 s): `make soak`. */
#include "check.h"
#include "sites.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "net/lab/lab.h"

#include <nebula/log.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STREAM = 7, ITEM_MOST = 30000, WINDOW = 1 << 20 };

/* Seen by all processes. */
struct board {
    volatile int finish;     /* a: produce no more */
    volatile uint64_t total; /* a: how many there are, once finished */
    volatile uint64_t produced, received;
    volatile int up[2], wrong;
    volatile int64_t down_at[2];
    volatile neb_status why[2];
    volatile int slow;    /* b takes this many bytes a second */
    volatile long rss[2]; /* kB, the most seen */
};

static struct board *board;
static struct sites sites;

struct role {
    int me;
    struct neb_net *net;
    struct neb_net_stream *stream;
    uint64_t last, sum;
    uint64_t unsaved;
    double budget; /* of the slow reader */
    char path[300];
};

static size_t item_size(uint64_t k)
{
    return (size_t)(neb__mix64(k) % ITEM_MOST);
}

static void item_fill(uint64_t k, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(k * 13 + i * 5 + (i >> 8));
}

static uint64_t item_sum(uint64_t k, uint64_t sum)
{
    return neb__mix64(sum ^ k);
}

static void note_rss(int me)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*d %ld", &pages) == 1 && pages * 4 > board->rss[me]) board->rss[me] = pages * 4;
    if (f) fclose(f);
}

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    struct role *r = arg;
    (void)peer, (void)incarnation;
    board->up[r->me] = 1;
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    struct role *r = arg;
    (void)peer;
    board->up[r->me] = 0;
    board->why[r->me] = why;
    board->down_at[r->me] = neb__now_ns();
}

static const struct neb_net_events events = {.peer_up = on_up, .peer_down = on_down};

/* ---- a ----------------------------------------------------------------------------------------------------------- */

static void produce(void *arg)
{
    struct role *r = arg;
    static uint8_t data[ITEM_MOST];
    uint64_t item;
    for (int i = 0; i < 50 && !board->finish; i++) {
        uint64_t k = neb__net_stream_next(r->stream);
        if (k > board->received + (board->slow ? 2000 : 400)) break; /* far enough ahead */
        item_fill(k, data, item_size(k));
        if (neb__net_stream_produce(r->stream, data, item_size(k), &item) != NEB_OK) break;
        if (item != k) board->wrong = 1;
        board->produced = k;
    }
    if (board->finish && !board->total) board->total = neb__net_stream_next(r->stream) - 1;
    note_rss(0);
}

static int producer_main(void *arg)
{
    struct role r = {.me = 0};
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_net_stream_producer p = {.arg = &r};
    struct neb_net_timer *timer;
    (void)arg;
    neb_log_set_level(NEB_LOG_NONE);
    if (neb__site_open(sites.path[0], &cfg.site) != NEB_OK) return 3;
    cfg.events = &events;
    cfg.arg = &r;
    cfg.dial_min = 0.05, cfg.dial_max = 1;
    if (neb__net_open(&cfg, &r.net) != NEB_OK ||
        neb__net_stream_open_producer(r.net, 2, STREAM, true, 1, &p, &r.stream) != NEB_OK ||
        neb__net_timer_start(r.net, 0.01, 0.01, produce, &r, &timer) != NEB_OK)
        return 4;
    neb__net_run(r.net);
    return 0;
}

/* ---- b ----------------------------------------------------------------------------------------------------------- */

static void checkpoint(struct role *r)
{
    uint64_t state[2] = {r->last, r->sum};
    if (neb__file_replace(r->path, state, sizeof state, 0600) != NEB_OK) board->wrong = 2;
    neb__net_stream_retain(r->stream, r->last);
    r->unsaved = 0;
}

static neb_status on_item(void *arg, struct neb_net_stream *s, uint64_t item, const uint8_t *data,
                          size_t size)
{
    struct role *r = arg;
    static uint8_t want[ITEM_MOST];
    (void)s;
    if (board->slow) {
        if (r->budget < (double)size) return NEB_ERR_AGAIN;
        r->budget -= (double)size;
    }
    item_fill(item, want, item_size(item));
    if (item != r->last + 1) board->wrong = 3;
    if (size != item_size(item) || memcmp(data, want, size)) board->wrong = 4;
    r->last = item;
    r->sum = item_sum(item, r->sum);
    r->unsaved++;
    board->received = item;
    return NEB_OK;
}

static void look(void *arg)
{
    struct role *r = arg;
    r->budget += board->slow * 0.05;
    neb__net_stream_resume(r->stream);
    if (r->unsaved > 37 || (r->unsaved && board->total)) checkpoint(r);
    note_rss(1);
    if (board->wrong || (board->total && r->last == board->total && !r->unsaved)) neb__net_stop(r->net);
}

static int consumer_main(void *arg)
{
    struct role r = {.me = 1};
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_net_stream_consumer c = {&r, on_item, NULL};
    struct neb_net_timer *timer;
    struct neb_buf b;
    (void)arg;
    neb_log_set_level(NEB_LOG_NONE);
    snprintf(r.path, sizeof r.path, "%s/checkpoint", sites.dir);
    neb__buf_init(&b, 64);
    if (!access(r.path, F_OK) && neb__file_read(r.path, &b) == NEB_OK && b.len == 16) {
        memcpy(&r.last, b.data, 8);
        memcpy(&r.sum, b.data + 8, 8);
    }
    if (neb__site_open(sites.path[1], &cfg.site) != NEB_OK) return 3;
    cfg.events = &events;
    cfg.arg = &r;
    if (neb__net_open(&cfg, &r.net) != NEB_OK ||
        neb__net_stream_open_consumer(r.net, 1, STREAM, r.last, WINDOW, &c, &r.stream) != NEB_OK ||
        neb__net_timer_start(r.net, 0.01, 0.05, look, &r, &timer) != NEB_OK)
        return 4;
    neb__net_run(r.net);
    neb__net_close(r.net); /* with a goodbye, so that the last mark leaves */
    return board->wrong ? 5 : 0;
}

/* ---- the laboratory ---------------------------------------------------------------------------------------------- */

static struct neb_lab *lab;
static int handle[2];
static bool soak;

static void start(int side)
{
    struct neb_lab_command c = {.out = -1, .err = -1, .fn = side ? consumer_main : producer_main};
    board->up[side] = 0;
    assert_ok(neb__lab_start(lab, side, &c, &handle[side]));
}

static void kill_side(int side)
{
    int status;
    assert_ok(neb__lab_kill(lab, handle[side], SIGKILL));
    assert_ok(neb__lab_wait(lab, handle[side], 10, &status));
}

#define WAIT(cond, seconds)                                                                            \
    do {                                                                                               \
        int64_t wait_start = neb__now_ns();                                                            \
        while (!(cond) && !board->wrong && neb__seconds_since(wait_start) < (seconds)) sleep_ms(10);   \
        if (board->wrong) fail_msg("items went wrong (%d) while waiting for %s", board->wrong, #cond); \
        if (!(cond)) fail_msg("not within %g s: %s", (double)(seconds), #cond);                        \
    } while (0)

static int begin(void **state)
{
    (void)state;
    struct neb_lab_config cfg;
    struct neb_lab_line line;
    soak = getenv("NEB_SOAK") != NULL;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    assert_ok(neb__lab_line_parse("50mbit,20ms", &line));
    assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
    assert_ok(neb__lab_create(&cfg, &lab));
    neb__lab_config_free(&cfg);
    sites_make(&sites, 2, NULL);
    sites_move(&sites, (const char *[]){neb__lab_address(lab, 0, 0), neb__lab_address(lab, 1, 1)});
    start(1);
    start(0);
    WAIT(board->received > 100, 20);
    return 0;
}

/* Ends the stream and compares the checkpoint with what it must be. */
static int finish(void **state)
{
    (void)state;
    int status = -1;
    uint64_t sum = 0, got[2] = {0, 0};
    struct neb_buf b;
    char path[300];
    board->slow = 0;
    board->finish = 1;
    assert_ok(neb__lab_wait(lab, handle[1], 60, &status));
    assert_int_equal(status, 0);
    snprintf(path, sizeof path, "%s/checkpoint", sites.dir);
    neb__buf_init(&b, 64);
    assert_ok(neb__file_read(path, &b));
    memcpy(got, b.data, 16);
    for (uint64_t k = 1; k <= board->total; k++) sum = item_sum(k, sum);
    assert_int_equal(got[0], board->total);
    assert_int_equal(got[1], sum);
    print_message("%llu items, each exactly once\n", (unsigned long long)board->total);
    neb__buf_free(&b);
    neb__lab_destroy(lab);
    sites_free(&sites);
    return 0;
}

static void test_kill(void **state)
{
    (void)state;
    struct neb_rng rng = {(uint64_t)neb__now_ns()};
    int cycles = soak ? 200 : 15;
    for (int i = 0; i < cycles; i++) {
        int side = (int)neb__rng_below(&rng, 2);
        uint64_t had = board->received;
        sleep_ms((int)neb__rng_below(&rng, 250));
        kill_side(side);
        sleep_ms((int)neb__rng_below(&rng, 50));
        start(side);
        if (i % 4 == 0)
            WAIT(board->received > had + 10,
                 20); /* sometimes it gets somewhere, sometimes it is hit at once */
    }
    uint64_t had = board->received;
    WAIT(board->received > had + 100, 20);
}

static void test_stop(void **state)
{
    (void)state;
    uint64_t had = board->received;
    int64_t since = neb__now_ns();
    kill(neb__lab_pid(lab, handle[1]), SIGSTOP);
    WAIT(!board->up[0], 10); /* the other side knows within 10 s */
    print_message("a stopped peer was noticed after %.1f s\n", neb__seconds_since(since));
    kill(neb__lab_pid(lab, handle[1]), SIGCONT);
    WAIT(board->received > had + 100, 20);
}

static void cut(double seconds)
{
    uint64_t had = board->received;
    assert_ok(neb__lab_set_down(lab, 0, 1, true));
    assert_ok(neb__lab_set_down(lab, 1, 0, true));
    if (seconds > 10) {
        WAIT(!board->up[0] && !board->up[1], 10);
        sleep_ms((int)(seconds * 1000) - 10000);
    } else {
        sleep_ms((int)(seconds * 1000));
    }
    assert_ok(neb__lab_set_down(lab, 0, 1, false));
    assert_ok(neb__lab_set_down(lab, 1, 0, false));
    WAIT(board->received > had + 200, 20);
}

static void test_outages(void **state)
{
    (void)state;
    cut(1);
    if (!soak) return;
    cut(15);
    cut(60);
}

static void test_one_way(void **state)
{
    (void)state;
    uint64_t had = board->received;
    int64_t since = neb__now_ns();
    assert_ok(neb__lab_set_down(lab, 0, 1, true));
    WAIT(!board->up[0] && !board->up[1], 10); /* both, though b's packets still reach a */
    print_message("a one-way cut was noticed by both after %.1f s\n", neb__seconds_since(since));
    assert_ok(neb__lab_set_down(lab, 0, 1, false));
    WAIT(board->received > had + 100, 20);
}

static void test_corruption(void **state)
{
    (void)state;
    struct neb_lab_line line, was;
    uint64_t had = board->received;
    neb__lab_get_line(lab, 0, 1, &was);
    line = was;
    line.corrupt = 2e-4;
    assert_ok(neb__lab_set_line(lab, 0, 1, &line));
    WAIT(board->received > had + 500, 60);
    assert_ok(neb__lab_set_line(lab, 0, 1, &was));
}

/* 1 Mbit/s taken in while 50 would come: credit runs out, memory does not. */
static void test_slow_reader(void **state)
{
    (void)state;
    uint64_t had = board->received;
    board->slow = 125000;
    sleep_ms(1000);
    long a = board->rss[0], b = board->rss[1];
    sleep_ms(soak ? 20000 : 4000);
    assert_true(board->received > had);
    print_message("slow reader: producer grew by %ld kB, consumer by %ld kB\n", board->rss[0] - a,
                  board->rss[1] - b);
    assert_true(board->rss[0] - a < 32 << 10 && board->rss[1] - b < 8 << 10);
    board->slow = 0;
    had = board->received;
    WAIT(board->received > had + 100, 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill),    cmocka_unit_test(test_stop),       cmocka_unit_test(test_outages),
        cmocka_unit_test(test_one_way), cmocka_unit_test(test_corruption), cmocka_unit_test(test_slow_reader),
    };
    return cmocka_run_group_tests(tests, begin, finish);
}
