/* test_stream_lies.c: the other end of a stream lies. It loses its link or gains nothing, and never gets more
 * of our memory than was meant for it. */
#include "caller.h"
#include "check.h"
#include "scene.h"
#include "base/bytes.h"
#include "net/link.h"
#include "net/stream.h"

#include <stdio.h>
#include <string.h>

enum { S2 = 3, STREAM = 7, ITEM = 1 << 20, ITEMS = 16, QUEUE = 4 << 20 };

static void tune(struct neb_net_config *c)
{
    c->queue_max = QUEUE;
}

static struct neb_net_stream *stream;

/* ---- a consumer that forgets, again and again ---------------------------------------------------------- */

static void produce(void *arg)
{
    static uint8_t item[ITEM];
    struct neb_net_stream_producer p = {0};
    uint64_t n;
    (void)arg;
    assert_ok(neb__net_stream_open_producer(scene_nodes[0].net, S2, STREAM, true, 1, &p, &stream));
    for (int i = 0; i < ITEMS; i++) assert_ok(neb__net_stream_produce(stream, item, sizeof item, &n));
}

static void look(void *arg)
{
    struct neb_line line;
    assert_ok(neb__net_line(scene_nodes[0].net, S2, &line));
    *(uint64_t *)arg = line.queued;
}

static void close_stream(void *arg)
{
    (void)arg;
    neb__net_stream_close(stream);
}

static void say_mark(struct caller *c, uint64_t number, uint64_t received)
{
    uint8_t m[32] = {NEB_OP_MARK};
    neb__put32(m + 4, STREAM);
    neb__put64(m + 8, received);
    neb__put64(m + 24, UINT64_MAX); /* its window */
    caller_message(c, NEB_CONTROL, number, NEB_KIND_STREAM_MARK, m, sizeof m);
}

static void test_forgetful_consumer(void **state)
{
    (void)state;
    struct caller c;
    struct neb_key *key = caller_key(2);
    struct neb_hello h = caller_hello();
    uint64_t number = 1, most = 0, queued;
    caller_link(&c, key, &h);
    node_call(&scene_nodes[0], produce, NULL);
    for (int i = 0; i < 20; i++) {
        say_mark(&c, number++, 0);
        sleep_ms(50);
        node_call(&scene_nodes[0], look, &queued);
        if (queued > most) most = queued;
        say_mark(&c, number++, 1);
    }
    assert_true(most >= ITEM);
    assert_true(most <= QUEUE + (1 << 16)); /* the margin is for the stream's marks */
    node_call(&scene_nodes[0], close_stream, NULL);
    caller_hang_up(&c);
    neb__key_free(key);
    scene_assert_undisturbed();
}

/* ---- a producer of nothing ----------------------------------------------------------------------------- */

static neb_status not_now(void *arg, struct neb_net_stream *s, uint64_t item, const uint8_t *data,
                          size_t size)
{
    (void)arg, (void)s, (void)item, (void)data, (void)size;
    return NEB_ERR_AGAIN;
}

static void consume(void *arg)
{
    struct neb_net_stream_consumer c = {.item = not_now};
    (void)arg;
    assert_ok(neb__net_stream_open_consumer(scene_nodes[0].net, S2, STREAM, 0, 1 << 20, &c, &stream));
}

static void look_queued(void *arg)
{
    *(uint64_t *)arg = stream->queued;
}

/* Returns how many items have arrived at s0, once that is `wanted` or the seconds are over. */
static uint64_t arrived(uint64_t wanted, int seconds)
{
    uint64_t n = 0;
    for (int i = 0; i < 100 * seconds && n < wanted; i++, sleep_ms(10))
        node_call(&scene_nodes[0], look_queued, &n);
    return n;
}

static void test_empty_items(void **state)
{
    (void)state;
    struct caller c, t;
    struct neb_key *key = caller_key(2);
    struct neb_hello h = caller_hello();
    uint8_t item[NEB_ITEM_HEAD] = {0};
    caller_link(&c, key, &h);
    node_call(&scene_nodes[0], consume, NULL);
    h.role = NEB_CONN_STRIPE;
    caller_link(&t, key, &h);
    neb__put32(item, STREAM);
    for (uint64_t n = 1; n <= NEB_STREAM_ITEMS_OPEN + 1; n++) {
        if (n == NEB_STREAM_ITEMS_OPEN + 1)
            assert_int_equal(arrived(n - 1, 60), n - 1); /* an honest one may */
        neb__put64(item + 8, n);
        caller_message(&t, NEB_STREAM, n, NEB_KIND_STREAM_ITEM, item, sizeof item);
    }
    assert_true(scene_closed(t.fd, 60));
    assert_true(scene_logged("dropping s2: its message"));
    assert_int_equal(arrived(NEB_STREAM_ITEMS_OPEN + 1, 2), NEB_STREAM_ITEMS_OPEN);
    node_call(&scene_nodes[0], close_stream, NULL);
    caller_hang_up(&c), caller_hang_up(&t);
    neb__key_free(key);
    scene_assert_undisturbed();
}

static int set_up(void **state)
{
    scene_tune = tune;
    return scene_set_up(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_forgetful_consumer, set_up, scene_tear_down),
        cmocka_unit_test_setup_teardown(test_empty_items, set_up, scene_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
