/* test_old_wire.c: the frames that cross a connection are those of version 0.1, byte by byte (test_old_bytes.c tells how;
 * tests/data/version-0.1/links.txt). `test_old_wire --write` prints the file. */
#include "check.h"
#include "recorded.h"

#include "net/link.h"
#include "net/stream.h"
#include "net/wire.h"

#include <stdio.h>
#include <string.h>

static void fill(void *p, size_t n, uint8_t first)
{
    for (size_t i = 0; i < n; i++) ((uint8_t *)p)[i] = (uint8_t)(first + 3 * i);
}

static void check_hello(void)
{
    struct neb_hello h = {.version_min = NEB_WIRE_VERSION_MIN,
                          .version_max = NEB_WIRE_VERSION,
                          .role = NEB_CONN_STRIPE,
                          .stripe = 5,
                          .epoch = 0x1112131415161718,
                          .incarnation = 0x2122232425262728,
                          .boot = 0x3132333435363738,
                          .token = 0x4142434445464748,
                          .chunk = NEB_CHUNK,
                          .window = {0x51, 0x5253545556575859, 0x71, 0x81}},
                     g;
    uint8_t bytes[NEB_HELLO_SIZE];
    fill(h.run_id, sizeof h.run_id, 1);
    fill(h.genesis.b, sizeof h.genesis.b, 2);
    fill(h.head.b, sizeof h.head.b, 3);
    neb__hello_put(&h, bytes);
    recorded_is("hello", bytes, sizeof bytes);
    assert_ok(neb__hello_get(bytes, sizeof bytes, &g));
    memset(bytes, 0, sizeof bytes);
    neb__hello_put(&g, bytes);
    recorded_is("hello", bytes, sizeof bytes);
}

static void check_pings(void)
{
    const struct neb_ping p = {0x01020304, 21, 0x1112131415161718, 0x2122232425262728, 0x3132333435363738};
    const struct neb_pong q = {0x01020304, 0x05060708, 0x1112131415161718};
    struct neb_ping p2;
    struct neb_pong q2;
    uint8_t ping[NEB_PING_SIZE], pong[NEB_PONG_SIZE];
    neb__ping_put(&p, ping);
    recorded_is("ping", ping, sizeof ping);
    assert_ok(neb__ping_get(ping, sizeof ping, &p2));
    neb__ping_put(&p2, ping);
    recorded_is("ping", ping, sizeof ping);
    neb__pong_put(&q, pong);
    recorded_is("pong", pong, sizeof pong);
    assert_ok(neb__pong_get(pong, sizeof pong, &q2));
    neb__pong_put(&q2, pong);
    recorded_is("pong", pong, sizeof pong);
}

static void check_acks(void)
{
    const uint64_t delivered[NEB_PRIORITIES] = {0x11, 0x2122232425262728, 0x33, 0x44};
    const struct neb_ack a = {2, 0x31323334353637, 0x41424344, 0x51525354};
    uint64_t delivered2[NEB_PRIORITIES];
    struct neb_ack a2;
    bool resume;
    uint32_t entries;
    uint8_t bytes[NEB_ACK_HEADER + NEB_ACK_ENTRY];
    neb__ack_head_put(delivered, true, 1, bytes);
    neb__ack_put(&a, bytes + NEB_ACK_HEADER);
    recorded_is("ack", bytes, sizeof bytes);
    assert_ok(neb__ack_head_get(bytes, sizeof bytes, delivered2, &resume, &entries));
    assert_ok(neb__ack_get(bytes + NEB_ACK_HEADER, &a2));
    neb__ack_head_put(delivered2, resume, entries, bytes);
    neb__ack_put(&a2, bytes + NEB_ACK_HEADER);
    recorded_is("ack", bytes, sizeof bytes);
}

/* ---- whole frames, through the reader ---------------------------------------------------------------------------- */

struct heard {
    int frames;
    enum neb_frame_type type;
    size_t n;
    struct neb_chunk chunk;
    uint8_t payload[16];
};

static neb_status on_frame(void *arg, enum neb_frame_type type, const uint8_t *body, size_t n)
{
    struct heard *h = arg;
    (void)body;
    h->frames++, h->type = type, h->n = n;
    return NEB_OK;
}

static neb_status on_begin(void *arg, const struct neb_chunk *c)
{
    (void)arg, (void)c;
    return NEB_OK;
}

static uint8_t *on_place(void *arg, const struct neb_chunk *c)
{
    struct heard *h = arg;
    (void)c;
    return h->payload;
}

static neb_status on_end(void *arg, const struct neb_chunk *c)
{
    struct heard *h = arg;
    h->frames++, h->type = NEB_FRAME_CHUNK, h->chunk = *c;
    return NEB_OK;
}

static void read_frame(const uint8_t *bytes, size_t n, struct heard *h)
{
    static const struct neb_framer_events events = {on_frame, on_begin, on_place, on_end};
    uint8_t skip[64];
    struct neb_framer f;
    *h = (struct heard){0};
    neb__framer_init(&f, &events, h, skip, sizeof skip);
    f.allowed = UINT32_MAX;
    for (size_t at = 0; at < n;) {
        uint8_t *to;
        size_t room;
        neb__framer_want(&f, &to, &room);
        if (room > n - at) room = n - at;
        memcpy(to, bytes + at, room);
        assert_ok(neb__framer_got(&f, room));
        at += room;
    }
    neb__framer_free(&f);
    assert_int_equal(h->frames, 1);
}

static void check_chunk(void)
{
    const struct neb_chunk c = {.priority = 2,
                                .kind = 0x01020304,
                                .message = 0x1112131415161718,
                                .size = 2 * NEB_CHUNK + 4,
                                .index = 2,
                                .length = 4};
    uint8_t bytes[NEB_FRAME_HEADER + NEB_CHUNK_HEADER + 4] = {0};
    struct heard h;
    for (int again = 0; again < 2; again++) {
        neb__frame_header(bytes, NEB_FRAME_CHUNK, NEB_CHUNK_HEADER + 4);
        neb__chunk_put(again ? &h.chunk : &c, bytes + NEB_FRAME_HEADER);
        memcpy(bytes + NEB_FRAME_HEADER + NEB_CHUNK_HEADER, "data", 4);
        recorded_is("chunk", bytes, sizeof bytes);
        read_frame(bytes, sizeof bytes, &h);
        assert_int_equal(h.type, NEB_FRAME_CHUNK);
        assert_memory_equal(h.payload, "data", 4);
    }
}

/* A header in front of the shortest body of its type. */
static void check_headers(void)
{
    static const size_t least[NEB_FRAME_TYPES] = {[NEB_FRAME_HELLO] = NEB_HELLO_SIZE,
                                                  [NEB_FRAME_REFUSE] = 2,
                                                  [NEB_FRAME_CHAIN] = 4,
                                                  [NEB_FRAME_PING] = NEB_PING_SIZE,
                                                  [NEB_FRAME_PONG] = NEB_PONG_SIZE,
                                                  [NEB_FRAME_ACK] = NEB_ACK_HEADER};
    for (int type = NEB_FRAME_HELLO; type < NEB_FRAME_TYPES; type++) {
        char name[40];
        uint8_t bytes[NEB_FRAME_HEADER + NEB_HELLO_SIZE] = {0};
        struct heard h;
        if (type == NEB_FRAME_CHUNK) continue;
        neb__frame_header(bytes, (enum neb_frame_type)type, (uint32_t)least[type]);
        snprintf(name, sizeof name, "header-%d", type);
        recorded_is(name, bytes, NEB_FRAME_HEADER);
        read_frame(bytes, NEB_FRAME_HEADER + least[type], &h);
        assert_int_equal(h.type, type);
        assert_int_equal(h.n, least[type]);
    }
}

static void check_numbers(void)
{
    static const uint8_t refusal[] = {NEB_REFUSE_PROTOCOL, 0, 'w', 'h', 'y'};
    const uint8_t frames[] = {NEB_FRAME_HELLO, NEB_FRAME_WELCOME, NEB_FRAME_REFUSE,
                              NEB_FRAME_CHAIN, NEB_FRAME_PING,    NEB_FRAME_PONG,
                              NEB_FRAME_CHUNK, NEB_FRAME_ACK,     NEB_FRAME_BYE};
    const uint8_t refusals[] = {NEB_REFUSE_VERSION, NEB_REFUSE_RUN,         NEB_REFUSE_GENESIS,
                                NEB_REFUSE_KEY,     NEB_REFUSE_INCARNATION, NEB_REFUSE_FORK,
                                NEB_REFUSE_TOKEN,   NEB_REFUSE_PROTOCOL};
    const uint8_t priorities[] = {NEB_CONTROL, NEB_STREAM, NEB_ROUND, NEB_BULK, NEB_PRIORITIES};
    const uint8_t marks[] = {NEB_OP_OFFER, NEB_OP_MARK, NEB_OP_END};
    const uint8_t kinds[] = {NEB_KIND_STREAM_ITEM >> 16, NEB_KIND_STREAM_ITEM & 255,
                             NEB_KIND_STREAM_MARK >> 16, NEB_KIND_STREAM_MARK & 255};
    uint16_t code;
    char text[257];
    recorded_is("frame-types", frames, sizeof frames);
    recorded_is("refusals", refusals, sizeof refusals);
    recorded_is("priorities", priorities, sizeof priorities);
    recorded_is("stream-marks", marks, sizeof marks);
    recorded_is("stream-kinds", kinds, sizeof kinds);
    assert_ok(neb__refuse_get(refusal, sizeof refusal, &code, text));
    assert_int_equal(code, NEB_REFUSE_PROTOCOL);
    assert_string_equal(text, "why");
}

static void all(void)
{
    check_hello();
    check_pings();
    check_acks();
    check_chunk();
    check_headers();
    check_numbers();
}

static void bytes_are_the_recorded_ones(void **state)
{
    (void)state;
    recorded_open(NEB_TEST_DATA "/version-0.1/links.txt");
    all();
    recorded_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_the_recorded_ones)};
    if (argc == 2 && !strcmp(argv[1], "--write")) {
        recorded_write();
        all();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
