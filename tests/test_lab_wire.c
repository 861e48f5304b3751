/* test_lab_wire.c: the laboratory's queues and lines in virtual time (packet_path.c). Every time below is
 * exact. */
#include "check.h"
#include "net/lab/packet_path.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

#define MS INT64_C(1000000)
enum { PACKETS = 200000 };

/* The packets that came out, in order. */
struct out {
    int n, drops[4];
    int64_t at[PACKETS];
    uint32_t index[PACKETS];
    uint8_t from[PACKETS];
};
static struct out out;

static void on_deliver(void *arg, const struct neb_path_packet *p, int64_t at)
{
    (void)arg;
    if (out.n == PACKETS) fail_msg("more packets than were sent");
    out.at[out.n] = at;
    out.index[out.n] = p->index;
    out.from[out.n++] = (uint8_t)p->from;
}

static void on_drop(void *arg, const struct neb_path_packet *p, enum neb_packet_drop why)
{
    (void)arg, (void)p;
    out.drops[why]++;
}

static const struct neb_path_sink sink = {on_deliver, on_drop, NULL};

static struct neb_packet_path *make(int sites, const struct neb_lab_line *line, struct neb_lab_config *cfg,
                                    bool lossless)
{
    struct neb_packet_path *w;
    memset(&out, 0, sizeof out);
    if (!cfg->sites) assert_ok(neb__lab_config_init(sites, NULL, line, cfg));
    assert_ok(neb__lab_config_check(cfg));
    assert_ok(neb__packet_path_create(cfg, &sink, 0, lossless, &w));
    return w;
}

static void end(struct neb_packet_path *w, struct neb_lab_config *cfg)
{
    neb__packet_path_destroy(w);
    neb__lab_config_free(cfg);
    assert_int_equal(neb__mem_held(), 0);
}

static void a_line_serialises_and_delays(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 1e8, .delay = 0.025, .queue = 1000000};
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    for (uint32_t i = 0; i < 10; i++) neb__packet_path_send(w, 0, 0, 1, 1500, NULL, i);
    assert_int_equal(neb__packet_path_next(w),
                     25 * MS + 120000); /* the first arrival, not the first internal event */
    neb__packet_path_advance(w, 25 * MS + 119999);
    assert_int_equal(out.n, 0);
    neb__packet_path_advance(w, 1000 * MS);
    assert_int_equal(out.n, 10);
    for (int i = 0; i < 10; i++) assert_int_equal(out.at[i], 25 * MS + 120000 * (i + 1));
    assert_int_equal(neb__packet_path_next(w), INT64_MAX);
    neb__packet_path_send(w, 2000 * MS, 0, 1, 500, NULL, 0); /* an idle line starts at once */
    neb__packet_path_advance(w, 3000 * MS);
    assert_int_equal(out.at[10], 2025 * MS + 40000);
    end(w, &cfg);
}

static void a_queue_drops_at_its_tail_by_bytes(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 1e6, .queue = 6000};
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    struct neb_lab_stats s;
    for (uint32_t i = 0; i < 10; i++) neb__packet_path_send(w, 0, 0, 1, 1500, NULL, i);
    neb__packet_path_send(w, 0, 0, 1, 40, NULL, 10); /* full to the byte: not even a small one */
    neb__packet_path_stats(w, 0, 1, &s);
    assert_true(s.overflowed == 7 && s.queued == 6000 && s.queued_most == 6000);
    neb__packet_path_advance(w, 12 * MS); /* the first is out */
    neb__packet_path_send(w, 12 * MS, 0, 1, 1500, NULL, 11);
    neb__packet_path_send(w, 12 * MS, 0, 1, 1500, NULL, 12);
    neb__packet_path_advance(w, 1000 * MS);
    neb__packet_path_stats(w, 0, 1, &s);
    assert_true(out.n == 5 && out.index[4] == 11 && s.overflowed == 8 && s.delivered == 5 && s.sent == 13);
    assert_int_equal(s.delivered_bytes, 5 * 1500);
    end(w, &cfg);
}

static void a_change_of_rate_acts_on_what_waits(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 12e6, .queue = 1000000}; /* 1 ms a packet */
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    for (uint32_t i = 0; i < 3; i++) neb__packet_path_send(w, 0, 0, 1, 1500, NULL, i);
    line.rate = 1.2e6;
    neb__packet_path_set_line(w, MS / 2, 0, 1,
                              &line); /* half of the first is out: the other half takes 5 ms */
    neb__packet_path_advance(w, 100 * MS);
    assert_int_equal(out.at[0], MS / 2 + 5 * MS);
    assert_int_equal(out.at[1], MS / 2 + 15 * MS);
    assert_int_equal(out.at[2], MS / 2 + 25 * MS);
    end(w, &cfg);
}

static void a_token_bucket_lets_a_burst_through(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 12e6, .queue = 1000000, .burst = 4500};
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    neb__packet_path_advance(w, 1000 * MS);
    for (uint32_t i = 0; i < 6; i++) neb__packet_path_send(w, 1000 * MS, 0, 1, 1500, NULL, i);
    neb__packet_path_advance(w, 2000 * MS);
    static const int64_t want[] = {0, 0, 0, 1, 2, 3};
    for (int i = 0; i < 6; i++) assert_int_equal(out.at[i], (1000 + want[i]) * MS);
    end(w, &cfg);
}

static void loss_is_as_asked_and_repeats(void **state)
{
    (void)state;
    static uint32_t first[PACKETS];
    int n = 0, share = 0;
    for (int run = 0; run < 3; run++) {
        struct neb_lab_config cfg = {0};
        struct neb_lab_line line = {.loss = 0.01};
        assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
        cfg.seed = run == 2 ? 2 : 1;
        struct neb_packet_path *w = make(2, &line, &cfg, false);
        for (uint32_t i = 0; i < 100000; i++) {
            neb__packet_path_send(w, i, 0, 1, 1500, NULL, i);
            neb__packet_path_advance(w, i);
        }
        /* binomial: deviation 31 */
        assert_in_range(out.drops[NEB_PACKET_LOST], 1000 - 130, 1000 + 130);
        if (run == 0) {
            n = out.n;
            memcpy(first, out.index, sizeof first);
        } else {
            share = memcmp(first, out.index, (size_t)n * sizeof *first) == 0 && n == out.n;
            assert_int_equal(share, run == 1); /* the same seed loses the same packets, another seed others */
        }
        end(w, &cfg);
    }
}

static void bursts_have_their_share_and_length(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.burst_loss = 0.02, .burst_length = 10};
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    for (uint32_t i = 0; i < PACKETS; i++) {
        neb__packet_path_send(w, i, 0, 1, 1500, NULL, i);
        neb__packet_path_advance(w, i);
    }
    int bursts = 0;
    for (int i = 1; i < out.n; i++) bursts += out.index[i] != out.index[i - 1] + 1;
    double share = (double)out.drops[NEB_PACKET_LOST] / PACKETS,
           length = (double)out.drops[NEB_PACKET_LOST] / bursts;
    assert_true(fabs(share - 0.02) < 0.004); /* about 400 bursts: deviation 0.0014 */
    assert_true(fabs(length - 10) < 2);
    end(w, &cfg);
}

static void held_packets_are_overtaken(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {
        .rate = 12e6, .delay = 0.01, .queue = 1 << 28, .reorder = 0.05, .reorder_delay = 0.005};
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    for (uint32_t i = 0; i < 10000; i++) neb__packet_path_send(w, 0, 0, 1, 1500, NULL, i);
    neb__packet_path_advance(w, INT64_C(100000) * MS);
    int late = 0;
    for (int i = 0; i < out.n; i++) {
        int64_t normal = (out.index[i] + 1) * (int64_t)MS + 10 * MS;
        if (i) assert_true(out.at[i] >= out.at[i - 1]);
        if (out.at[i] == normal) continue;
        assert_int_equal(out.at[i], normal + 5 * MS);
        late++;
    }
    assert_int_equal(out.n, 10000);
    assert_in_range(late, 400, 600);
    end(w, &cfg);
}

static void jitter_keeps_order_mean_and_deviation(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.delay = 0.05, .jitter = 0.005};
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    enum { N = 100000 };
    for (uint32_t i = 0; i < N; i++) { /* one every 10 ms */
        neb__packet_path_advance(w, i * INT64_C(10000000));
        neb__packet_path_send(w, i * INT64_C(10000000), 0, 1, 100, NULL, i);
    }
    neb__packet_path_advance(w, INT64_MAX / 4);
    double sum = 0, squares = 0;
    assert_int_equal(out.n, N);
    for (int i = 0; i < N; i++) {
        double d = (double)(out.at[i] - i * INT64_C(10000000)) * 1e-6;
        assert_int_equal(out.index[i], i);
        sum += d, squares += d * d;
    }
    double mean = sum / N, deviation = sqrt(squares / N - mean * mean);
    assert_true(fabs(mean - 50) < 0.3);
    assert_true(fabs(deviation - 5) < 0.5);
    end(w, &cfg);
}

static void the_schedule_cuts_and_changes_at_its_times(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 12e6, .queue = 1 << 20};
    assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
    assert_ok(neb__lab_schedule_parse("1s+1s a>b down; 3s+500ms/2s rate=1.2mbit", &cfg));
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    static const int64_t at[] = {500, 1500, 2500, 3100, 3700, 5100, 5700};
    static const int64_t cost[] = {1, -1, 1, 10, 1, 10, 1}; /* ms for 1500 bytes; -1: cut */
    int n = 0;
    for (int i = 0; i < 7; i++) {
        neb__packet_path_advance(w, at[i] * MS);
        neb__packet_path_send(w, at[i] * MS, 0, 1, 1500, NULL, 0);
        neb__packet_path_advance(w, at[i] * MS + 50 * MS);
        if (cost[i] > 0) assert_int_equal(out.at[n], (at[i] + cost[i]) * MS);
        n += cost[i] > 0;
        assert_int_equal(out.n, n);
    }
    assert_int_equal(out.drops[NEB_PACKET_CUT], 1);
    neb__packet_path_destroy(w);
    w = make(2, &line, &cfg, false); /* one way: the other direction runs on */
    neb__packet_path_advance(w, 1500 * MS);
    neb__packet_path_send(w, 1500 * MS, 1, 0, 1500, NULL, 0);
    neb__packet_path_advance(w, 1600 * MS);
    assert_int_equal(out.n, 1);
    assert_int_equal(neb__packet_path_next(w), 2000 * MS);
    end(w, &cfg);
}

static void sites_share_their_own_uplink_and_downlink(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 12e6, .delay = 0.01, .queue = 1 << 20};
    assert_ok(neb__lab_config_init(3, NULL, &line, &cfg));
    cfg.site[0].up = 12e6; /* both its lines together get no more than each alone could carry */
    cfg.site[2].down = 12e6;
    struct neb_packet_path *w = make(3, &line, &cfg, false);
    for (uint32_t i = 0; i < 10; i++) neb__packet_path_send(w, 0, 0, 1 + (int)(i & 1), 1500, NULL, i);
    neb__packet_path_advance(w, 1000 * MS);
    assert_int_equal(out.n, 10);
    assert_int_equal(out.at[9], 10 * MS + 1 * MS + 10 * MS + MS); /* uplink, line, delay, downlink */
    memset(&out, 0, sizeof out);
    for (uint32_t i = 0; i < 10; i++) neb__packet_path_send(w, 2000 * MS, (int)(i & 1), 2, 1500, NULL, i);
    neb__packet_path_advance(w, 3000 * MS);
    assert_int_equal(out.n, 10);
    for (int i = 1; i < 10; i++) assert_true(out.at[i] - out.at[i - 1] >= MS); /* never two at once */
    end(w, &cfg);
}

static void a_lossless_wire_waits_where_others_drop(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 12e6, .queue = 6000, .loss = 0.5};
    assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
    assert_ok(neb__lab_schedule_parse("0s+100ms down", &cfg));
    struct neb_packet_path *w = make(2, &line, &cfg, true);
    assert_int_equal(neb__packet_path_room(w, 0, 1), 6000);
    for (uint32_t i = 0; i < 4; i++) neb__packet_path_send(w, 0, 0, 1, 1500, NULL, i);
    assert_int_equal(neb__packet_path_room(w, 0, 1), 0);
    neb__packet_path_advance(w, 99 * MS);
    assert_int_equal(out.n, 0);
    neb__packet_path_advance(w, 1000 * MS);
    assert_int_equal(out.n, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(out.at[i], (101 + i) * MS);
    assert_int_equal(out.drops[NEB_PACKET_LOST] + out.drops[NEB_PACKET_OVERFLOW] + out.drops[NEB_PACKET_CUT],
                     0);
    end(w, &cfg);
}

static void memory_is_bounded_and_its_lack_is_a_drop(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.delay = 1};
    struct neb_lab_stats s;
    assert_ok(neb__lab_config_init(2, NULL, &line, &cfg));
    cfg.memory = 1 << 20;
    struct neb_packet_path *w = make(2, &line, &cfg, false);
    neb__mem_fail_at(1);
    neb__packet_path_send(w, 0, 0, 1, 1500, NULL, 0);
    neb__mem_fail_at(0);
    assert_int_equal(out.drops[NEB_PACKET_NO_MEMORY], 1);
    for (uint32_t i = 0; i < 1000; i++) neb__packet_path_send(w, 0, 0, 1, 1500, NULL, i);
    neb__packet_path_stats(w, 0, 1, &s);
    assert_int_equal(s.refused, 1 + 1000 - (1 << 20) / 1500);
    neb__packet_path_advance(w, 2000 * MS);
    assert_int_equal(out.n, (1 << 20) / 1500);
    end(w, &cfg);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    struct neb_lab_config cfg = {0};
    struct neb_lab_line line = {.rate = 1e6};
    struct neb_packet_path *w;
    check_log_quiet();
    for (int64_t n = 1;; n++) {
        neb__mem_fail_at(n);
        neb_status status = neb__lab_config_init(3, NULL, &line, &cfg);
        if (status == NEB_OK) status = neb__lab_schedule_parse("1s down", &cfg);
        if (status == NEB_OK) status = neb__packet_path_create(&cfg, &sink, 0, false, &w);
        bool reached = neb__mem_count() >= n;
        neb__mem_fail_at(0);
        if (status == NEB_OK) neb__packet_path_destroy(w);
        neb__lab_config_free(&cfg);
        assert_int_equal(neb__mem_held(), 0);
        if (!reached) break;
        assert_status(status, NEB_ERR_NOMEM);
    }
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_serialises_and_delays),
        cmocka_unit_test(a_queue_drops_at_its_tail_by_bytes),
        cmocka_unit_test(a_change_of_rate_acts_on_what_waits),
        cmocka_unit_test(a_token_bucket_lets_a_burst_through),
        cmocka_unit_test(loss_is_as_asked_and_repeats),
        cmocka_unit_test(bursts_have_their_share_and_length),
        cmocka_unit_test(held_packets_are_overtaken),
        cmocka_unit_test(jitter_keeps_order_mean_and_deviation),
        cmocka_unit_test(the_schedule_cuts_and_changes_at_its_times),
        cmocka_unit_test(sites_share_their_own_uplink_and_downlink),
        cmocka_unit_test(a_lossless_wire_waits_where_others_drop),
        cmocka_unit_test(memory_is_bounded_and_its_lack_is_a_drop),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
