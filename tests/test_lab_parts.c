/* test_lab_parts.c: the laboratory's parsers: trains of TCP segments, and descriptions. */
#include "check.h"
#include "net/lab/segments.h"
#include "net/lab/lab.h"
#include "base/mem.h"
#include "base/rng.h"

#include <arpa/inet.h>
#include <linux/virtio_net.h>
#include <stdio.h>
#include <string.h>

/* Makes a TCP packet from 10.77.0.1 to 10.77.0.2 with `payload` bytes 0, 1, 2 …, as a train of segments of
 * `mss` bytes if that is not 0. */
static struct neb_segment_train *tcp_frame(struct neb_frames *pool, uint32_t payload, uint32_t mss,
                                           uint8_t flags)
{
    struct neb_segment_train *f = neb__segments_take(pool, NEB_SEGMENTS_PREFIX + 52 + payload);
    assert_non_null(f);
    struct virtio_net_hdr h = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = 20, .csum_offset = 16};
    if (mss) h.gso_type = VIRTIO_NET_HDR_GSO_TCPV4, h.gso_size = (uint16_t)mss, h.hdr_len = 52;
    memset(f->data, 0, NEB_SEGMENTS_PREFIX + 52);
    memcpy(f->data, &h, sizeof h);
    uint8_t *ip = f->data + NEB_SEGMENTS_PREFIX, *tcp = ip + 20;
    uint32_t total = 52 + payload;
    ip[0] = 0x45, ip[2] = (uint8_t)(total >> 8), ip[3] = (uint8_t)total, ip[4] = 1, ip[5] = 0xfe, ip[8] = 64,
    ip[9] = 6;
    memcpy(ip + 12, "\x0a\x4d\0\1\x0a\x4d\0\2", 8);
    tcp[4] = 0xff, tcp[5] = 0xff, tcp[6] = 0xff, tcp[7] = 0x00; /* the sequence number will wrap */
    tcp[12] = 8 << 4, tcp[13] = flags;
    for (uint32_t i = 0; i < payload; i++) tcp[32 + i] = (uint8_t)i;
    f->len = NEB_SEGMENTS_PREFIX + 52 + payload;
    return f;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t fold(const uint8_t *p, size_t n, uint32_t sum)
{
    for (size_t i = 0; i < n; i += 2) sum += (uint32_t)p[i] << 8 | p[i + 1];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static void a_train_is_cut_as_the_kernel_would(void **state)
{
    (void)state;
    struct neb_frames pool = {0};
    struct neb_segment_train *f =
        tcp_frame(&pool, 5000, 1448, 0x80 | 0x10 | 0x08 | 0x01); /* CWR ACK PSH FIN */
    uint32_t dest;
    assert_true(neb__segments_parse(f, &dest));
    assert_int_equal(dest, 0x0a4d0002);
    assert_int_equal(f->packets, 4);
    assert_int_equal(neb__segments_packet_bytes(f, 0), 1500);
    assert_int_equal(neb__segments_packet_bytes(f, 3), 52 + 5000 - 3 * 1448);
    uint32_t covered = 0;
    for (uint32_t first = 0; first < 4; first++)
        for (uint32_t count = 1; first + count <= 4; count++) {
            uint8_t scratch[NEB_SEGMENTS_HEADERS], whole[NEB_SEGMENTS_MOST];
            struct iovec part[2];
            int parts = neb__segments_cut(f, first, count, scratch, part);
            size_t n = 0;
            for (int i = 0; i < parts; i++) {
                memcpy(whole + n, part[i].iov_base, part[i].iov_len);
                n += part[i].iov_len;
            }
            struct virtio_net_hdr h;
            memcpy(&h, whole, sizeof h);
            const uint8_t *ip = whole + NEB_SEGMENTS_PREFIX, *tcp = ip + 20;
            uint32_t bytes = first + count == 4 ? 5000 - first * 1448 : count * 1448;
            assert_int_equal(n, NEB_SEGMENTS_PREFIX + 52 + bytes);
            assert_int_equal(ip[2] << 8 | ip[3], 52 + bytes);
            assert_int_equal(be32(tcp + 4), 0xffffff00u + first * 1448);
            assert_int_equal(h.gso_type, count > 1 ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_NONE);
            assert_int_equal(tcp[13], 0x10 | (first ? 0 : 0x80) | (first + count == 4 ? 0x09 : 0));
            assert_int_equal(tcp[32], (uint8_t)(first * 1448));
            if (count < 4) { /* the whole train is written as it came */
                assert_int_equal(ip[4] << 8 | ip[5], 0x1fe + first);
                assert_int_equal(fold(ip, 20, 0), 0xffff);
                assert_int_equal(tcp[16] << 8 | tcp[17], fold(ip + 12, 8, 6 + 32 + bytes));
            }
            covered++;
        }
    assert_int_equal(covered, 10);
    neb__segments_give(&pool, f);
    neb__segments_clear(&pool);
    assert_int_equal(neb__mem_held(), 0);
}

static void malformed_packets_are_refused_within_their_bytes(void **state)
{
    (void)state;
    struct neb_frames pool = {0};
    struct neb_rng r = {7};
    uint32_t dest, parsed = 0;
    for (int i = 0; i < 20000; i++) {
        /* The allocation is exactly as long as the data, so that a sanitizer sees a read behind the end. */
        uint32_t payload = (uint32_t)neb__rng_below(&r, 300);
        struct neb_segment_train *f = tcp_frame(&pool, payload, neb__rng_below(&r, 2) ? 100 : 0, 0x18);
        uint32_t len = (uint32_t)neb__rng_below(&r, f->len + 1);
        struct neb_segment_train *exact = neb__malloc(sizeof *f + len);
        assert_non_null(exact);
        *exact = *f;
        exact->len = exact->room = len;
        memcpy(exact->data, f->data, len);
        for (uint64_t k = neb__rng_below(&r, 4); len && k; k--)
            exact->data[neb__rng_below(&r, len)] = (uint8_t)neb__rng_next(&r);
        if (neb__segments_parse(exact, &dest)) {
            uint8_t scratch[NEB_SEGMENTS_HEADERS];
            struct iovec part[2];
            uint32_t sum = 0, bytes;
            parsed++;
            for (uint32_t p = 0; p < exact->packets; p++) {
                sum += neb__segments_packet_bytes(exact, p) - (p ? exact->headers : 0);
                neb__segments_payload(exact, p, &bytes);
                assert_in_range(neb__segments_cut(exact, p, 1, scratch, part), 1, 2);
            }
            assert_int_equal(sum, len - NEB_SEGMENTS_PREFIX);
        }
        neb__free(exact);
        neb__segments_give(&pool, f);
    }
    assert_true(parsed > 1000);
    neb__segments_clear(&pool);
}

static void short_forms(void **state)
{
    (void)state;
    struct neb_lab_line l;
    assert_ok(neb__lab_line_parse("100mbit,50ms,0.1%", &l));
    assert_true(l.rate == 1e8 && l.delay == 0.025 && l.loss == 0.001);
    assert_ok(neb__lab_line_parse("1gbit", &l));
    assert_true(l.rate == 1e9 && l.delay == 0 && l.loss == 0);
    check_log_quiet();
    static const char *const bad[] = {"", "fast", "1gbit,", "1gbit,1s,2", "1gbit,1s,1%,4", "1gbit,1s,200%"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_status(neb__lab_line_parse(bad[i], &l), NEB_ERR_CONFIG);
    check_log_restore();
    assert_true(l.rate == 1e9); /* untouched */
}

static void schedules_in_a_line(void **state)
{
    (void)state;
    struct neb_lab_config c;
    struct neb_lab_line l = {.rate = 1e6};
    assert_ok(neb__lab_config_init(3, NULL, &l, &c));
    assert_ok(neb__lab_schedule_parse(
        "10s+5s down;20s a>b rate=10mbit loss=5% ; 1s+100ms/2s b<>c rtt=80ms;3s c up;", &c));
    assert_int_equal(c.events, 4);
    const struct neb_lab_event *e = c.event;
    assert_true(e[0].at == 10 && e[0].lasts == 5 && e[0].from == -1 && e[0].line.down && e[0].set == 1 << 4);
    assert_true(e[1].from == 0 && e[1].to == 1 && !e[1].both && e[1].line.rate == 1e7 &&
                e[1].line.loss == 0.05);
    assert_true(e[2].every == 2 && e[2].both && e[2].from == 1 && e[2].to == 2 && e[2].line.delay == 0.04);
    assert_true(e[3].both && e[3].from == 2 && e[3].to == -1 && !e[3].line.down && e[3].set == 1 << 4);
    assert_ok(neb__lab_config_check(&c));
    check_log_quiet();
    static const char *const bad[] = {"soon down",  "1s d down", "1s a>d down",
                                      "1s queue=5", "1s rate=x", "+ down"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_status(neb__lab_schedule_parse(bad[i], &c), NEB_ERR_CONFIG);
    assert_int_equal(c.events, 4);
    assert_ok(neb__lab_schedule_parse("1s+3s/2s down", &c)); /* longer than its period */
    assert_status(neb__lab_config_check(&c), NEB_ERR_CONFIG);
    check_log_restore();
    neb__lab_config_free(&c);
}

static char path[300];

static neb_status load(const char *text, struct neb_lab_config *c)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return neb__lab_config_load(path, c);
}

static const char good[] =
    "seed: 9\nmtu: 9000\nports: [7000, 7001]\nmode: relay\n"
    "sites:\n  - name: paris\n    up: 1gbit\n    command: echo hi\n  - name: tokyo\n  - name: x\n"
    "line:\n  rate: 100mbit\n  rtt: 40ms\n"
    "lines:\n  - between: [paris, tokyo]\n    loss: 1%\n  - from: x\n    rate: 1mbit\n"
    "schedule:\n  - at: 1s\n    for: 2s\n    site: x\n    down: yes\n";

static void a_file_says_all_of_it(void **state)
{
    (void)state;
    struct neb_lab_config c;
    assert_ok(load(good, &c));
    assert_true(c.sites == 3 && c.seed == 9 && c.mtu == 9000 && c.ports == 2 && c.port[1] == 7001);
    assert_int_equal(c.mode, NEB_LAB_RELAY);
    assert_string_equal(c.site[0].command, "echo hi");
    assert_true(c.site[0].up == 1e9 && c.site[1].up == 0);
    assert_true(c.line[1].loss == 0.01 && c.line[3].loss == 0.01 && c.line[1].delay == 0.02);
    assert_true(c.line[6].rate == 1e6 && c.line[7].rate == 1e6 && c.line[2].rate == 1e8);
    assert_true(c.events == 1 && c.event[0].from == 2 && c.event[0].both && c.event[0].line.down);
    neb__lab_config_free(&c);
    assert_int_equal(neb__mem_held(), 0);
}

static void a_wrong_file_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"sites: [{name: a}]\n", ""},
        {"sites: [{name: a}, {name: a}]\n", "two sites are named 'a'"},
        {"sites: [{name: a}, {name: b/c}]\n", "letters"},
        {"sites: [{name: a}, {name: b}]\nline: {rate: fast}\n", "'fast' is not a rate"},
        {"sites: [{name: a}, {name: b}]\nline: {rate: 1mbit, rtt: 1s, delay: 1s}\n", "not both"},
        {"sites: [{name: a}, {name: b}]\nline: {delay: -1s}\n",
         "option 'delay': '-1s' is not a time from 0 s to 60 s"},
        {"sites: [{name: a}, {name: b}]\nline: {rtt: 121s}\n",
         "option 'rtt': '121s' is not a time from 0 s to 120 s"},
        {"sites: [{name: a}, {name: b}]\nline: {rate: 1bit}\n", "is not a rate from 1kbit to 1000gbit, or 0"},
        {"sites: [{name: a}, {name: b}]\nline: {queue: 1k}\n", "is not a size at least 1500 bytes, or 0"},
        {"sites: [{name: a}, {name: b}]\nlines: [{loss: 1%}]\n", "needs `between`"},
        {"sites: [{name: a}, {name: b}]\nlines: [{from: c, loss: 1%}]\n", "no site 'c'"},
        {"sites: [{name: a}, {name: b}]\nschedule: [{down: yes}]\n", "needs `at`"},
        {"sites: [{name: a}, {name: b}]\nschedule: [{at: 1s}]\n", "changes nothing"},
        {"sites: [{name: a}, {name: b}]\nschedule: [{at: 1s, queue: 5}]\n", "not 'queue'"},
        {"sites: [{name: a}, {name: b}]\nmode: magic\n", "'magic' is not"},
        {"sites: [{name: a}, {name: b}]\nports: [70000]\n",
         "option 'port': '70000' is not a whole number from 1 to 65535"},
        {"sites: [{name: a}, {name: b}]\ncolour: blue\n", ""},
        {"sites: [{name: a}, {name: b}]\nline: &x {rate: 1mbit}\nlines: [*x]\n", ""},
        {"sites: {\n", ""},
        {"", ""},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct neb_lab_config c;
        assert_status(load(bad[i][0], &c), NEB_ERR_CONFIG);
        if (!strstr(neb_last_error(), bad[i][1])) fail_msg("%s\nsaid: %s", bad[i][0], neb_last_error());
        assert_int_equal(neb__mem_held(), 0);
    }
    struct neb_lab_config c;
    assert_status(neb__lab_config_load("/nonexistent/lab.yaml", &c), NEB_ERR_NOTFOUND);
    check_log_restore();
}

static void every_failed_allocation_of_a_file_is_survived(void **state)
{
    (void)state;
    struct neb_lab_config c;
    check_log_quiet();
    for (int64_t n = 1;; n++) {
        FILE *f = fopen(path, "w");
        fputs(good, f);
        fclose(f);
        neb__mem_fail_at(n);
        neb_status status = neb__lab_config_load(path, &c);
        bool reached = neb__mem_count() >= n;
        neb__mem_fail_at(0);
        if (status == NEB_OK) neb__lab_config_free(&c);
        assert_int_equal(neb__mem_held(), 0);
        if (!reached) break;
        assert_status(status, NEB_ERR_NOMEM);
    }
    check_log_restore();
}

int main(void)
{
    char dir[256];
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/lab.yaml", dir);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_train_is_cut_as_the_kernel_would),
        cmocka_unit_test(malformed_packets_are_refused_within_their_bytes),
        cmocka_unit_test(short_forms),
        cmocka_unit_test(schedules_in_a_line),
        cmocka_unit_test(a_file_says_all_of_it),
        cmocka_unit_test(a_wrong_file_is_told_what_is_wrong),
        cmocka_unit_test(every_failed_allocation_of_a_file_is_survived),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    check_remove_dir(dir);
    return failed;
}
