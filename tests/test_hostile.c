/* test_hostile.c: liars that speak our TLS. Each is refused, with a line in the log that says why, while the
 * running links notice nothing. */
#include "caller.h"
#include "check.h"
#include "scene.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void test_wrong_greeting(void **state)
{
    (void)state;
    struct neb_key *stranger, *member = caller_key(2);
    struct neb_hello h = caller_hello(), v = h;
    assert_ok(neb__key_create(&stranger));

    assert_int_equal(caller_refused(stranger, &h), NEB_REFUSE_KEY);
    assert_true(scene_logged("the key is not valid in epoch 0 of the roster"));
    v = h, v.run_id[0] ^= 1;
    assert_int_equal(caller_refused(member, &v), NEB_REFUSE_RUN);
    assert_true(scene_logged("it belongs to another run"));
    v = h, v.genesis.b[0] ^= 1;
    assert_int_equal(caller_refused(member, &v), NEB_REFUSE_GENESIS);
    v = h, v.version_min = NEB_WIRE_VERSION + 1, v.version_max = 9; /* refused */
    assert_int_equal(caller_refused(member, &v), NEB_REFUSE_VERSION);
    assert_true(scene_logged("speaks versions 6 to 9"));
    v = h, v.version_min = 1, v.version_max = 4; /* before leaders signed each record */
    assert_int_equal(caller_refused(member, &v), NEB_REFUSE_VERSION);
    assert_true(scene_logged("speaks versions 1 to 4"));
    assert_true(scene_logged("refused s2 (key ")); /* by name */
    v = h, v.head.b[0] ^= 1;                       /* it claims another roster for the same epoch */
    assert_int_equal(caller_refused(member, &v), NEB_REFUSE_FORK);
    assert_int_equal(scene_forks, 0);
    v = h, v.role = NEB_CONN_STRIPE; /* a stripe without a link */
    assert_int_equal(caller_refused(member, &v), NEB_REFUSE_TOKEN);
    neb__key_free(stranger);
    neb__key_free(member);
    scene_assert_undisturbed();
}

/* If the version range includes ours, the greeting goes on to WELCOME. */
static void test_version_negotiated(void **state)
{
    (void)state;
    struct caller c;
    struct neb_key *member = caller_key(2);
    uint8_t body[NEB_HELLO_SIZE + 40], plain[4096];
    struct neb_hello h = caller_hello();
    size_t got, have = 0;
    h.version_max = 7;
    caller_dial(&c, 0, member);
    memset(body, 0x5a, sizeof body); /* fields that a later version appends are skipped too */
    neb__hello_put(&h, body);
    caller_say(&c, NEB_FRAME_HELLO, body, sizeof body);
    for (; have < 2 * NEB_FRAME_HEADER + NEB_HELLO_SIZE; have += got)
        assert_true(caller_hear(&c, plain + have, sizeof plain - have, &got));
    assert_int_equal(plain[4], NEB_FRAME_HELLO);
    assert_int_equal(plain[NEB_FRAME_HEADER + NEB_HELLO_SIZE + 4], NEB_FRAME_WELCOME);
    caller_hang_up(&c);
    neb__key_free(member);
    scene_assert_undisturbed();
}

/* A second process of a site that is connected: an older incarnation, and a copy of the folder. */
static void test_second_process(void **state)
{
    (void)state;
    struct neb_key *key = caller_key(1);
    struct neb_hello h = caller_hello();
    struct neb_site *site = NULL;
    assert_status(neb__site_open(scene_sites.path[1], &site), NEB_ERR_BUSY);
    h.incarnation = 0;
    assert_int_equal(caller_refused(key, &h), NEB_REFUSE_INCARNATION);
    assert_true(scene_logged("older than"));
    h.incarnation = scene_nodes[1].site->incarnation;
    assert_int_equal(caller_refused(key, &h), NEB_REFUSE_INCARNATION);
    assert_true(scene_logged("its site folder was copied"));
    neb__key_free(key);
    scene_assert_undisturbed();
}

static void test_bad_frames(void **state)
{
    (void)state;
    struct neb_key *key;
    assert_ok(neb__key_create(&key));
    static const struct {
        uint32_t length;
        uint8_t type, zero;
    } heads[] = {{0xffffffff, NEB_FRAME_HELLO, 0},
                 {5, NEB_FRAME_HELLO, 0},
                 {NEB_HELLO_MAX + 1, NEB_FRAME_HELLO, 0},
                 {100, NEB_FRAME_CHUNK, 0},
                 {0, NEB_FRAME_WELCOME, 0},
                 {192, NEB_FRAME_HELLO, 1},
                 {8, 200, 0},
                 {300000, NEB_FRAME_CHAIN, 0}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct caller c;
        uint8_t head[NEB_FRAME_HEADER];
        caller_dial(&c, 0, key);
        neb__frame_header(head, heads[i].type, heads[i].length);
        head[5] = heads[i].zero;
        caller_say_raw(&c, head, sizeof head);
        assert_true(scene_closed(c.fd, 60));
        caller_hang_up(&c);
    }
    assert_true(scene_logged("unexpected frame of type"));
    struct caller c; /* truncated: half a greeting, then gone */
    uint8_t body[NEB_HELLO_SIZE] = {0};
    caller_dial(&c, 0, key);
    neb__frame_header(body, NEB_FRAME_HELLO, NEB_HELLO_SIZE);
    caller_say_raw(&c, body, 100);
    caller_hang_up(&c);
    caller_dial(&c, 0, key); /* garbage below TLS, after a good handshake */
    memset(body, 0xa5, sizeof body);
    send(c.fd, body, sizeof body, MSG_NOSIGNAL);
    assert_true(scene_closed(c.fd, 60));
    caller_hang_up(&c);
    neb__key_free(key);
    scene_assert_undisturbed();
}

/* Somebody else sends again the bytes that a member once sent. They are worthless without the keys of that
 * connection. */
static void test_replay(void **state)
{
    (void)state;
    struct caller c;
    struct neb_key *member = caller_key(2);
    uint8_t body[NEB_HELLO_SIZE];
    struct neb_hello h = caller_hello();
    caller_dial(&c, 0, member);
    neb__hello_put(&h, body);
    caller_say(&c, NEB_FRAME_HELLO, body, sizeof body);
    sleep_ms(100);
    int fd = scene_dial(0);
    assert_int_equal(send(fd, c.raw, c.raw_len, MSG_NOSIGNAL), (ssize_t)c.raw_len);
    assert_true(scene_closed(fd, 60));
    close(fd);
    caller_hang_up(&c);
    neb__key_free(member);
    scene_assert_undisturbed();
}

/* An answer to a ping from before the connection is ignored; an answer to a ping that was never sent is a
 * lie. */
static void test_answers(void **state)
{
    (void)state;
    struct caller c;
    struct neb_key *key = caller_key(2);
    struct neb_hello h = caller_hello();
    uint8_t body[NEB_PONG_SIZE];
    caller_link(&c, key, &h);
    sleep_ms(100); /* its first ping leaves at once */
    neb__pong_put(&(struct neb_pong){.number = 1, .time = 1}, body);
    caller_say(&c, NEB_FRAME_PONG, body, sizeof body);
    assert_false(scene_closed(c.fd, 1));
    neb__pong_put(&(struct neb_pong){.number = 1000, .time = 1}, body);
    caller_say(&c, NEB_FRAME_PONG, body, sizeof body);
    assert_true(scene_closed(c.fd, 60));
    assert_true(scene_logged("s2 breaks the protocol: it answers a ping that was never sent"));
    caller_hang_up(&c);
    neb__key_free(key);
    scene_assert_undisturbed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_greeting), cmocka_unit_test(test_version_negotiated),
        cmocka_unit_test(test_second_process), cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_replay),         cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests(tests, scene_set_up, scene_tear_down);
}
