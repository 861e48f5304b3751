/* test_greet.c: greetings under which the world changes: rosters, keys and processes between HELLO and WELCOME, and between one
 * link and the next. */
#include "caller.h"
#include "check.h"
#include "scene.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>

enum { S2 = 3 }; /* its member id */

static void extend(void *arg)
{
    struct neb_buf *epoch = arg;
    assert_ok(neb__net_extend_roster(scene_nodes[0].net, epoch->data, epoch->len));
}

static void look(void *arg)
{
    *(bool *)arg = neb__net_is_up(scene_nodes[0].net, S2);
}

/* Whether s0 has a link to s2. */
static bool is_up(void)
{
    bool up = false;
    node_call(&scene_nodes[0], look, &up);
    return up;
}

static bool comes_up(void)
{
    for (int64_t start = neb__now_ns(); neb__seconds_since(start) < 20; sleep_ms(20))
        if (is_up()) return true;
    return false;
}

/* An epoch in which s2 has another key. */
static void change_key(const struct neb_public *key, struct neb_buf *out)
{
    struct neb_chain *chain;
    assert_ok(neb__site_roster_load(scene_sites.path[0], &chain));
    chain->now.members[2].key = *key;
    sites_sign(&scene_sites, chain, &chain->now, out);
    neb__chain_free(chain);
}

/* It was a member when it said HELLO. */
static void test_evicted_meanwhile(void **state)
{
    (void)state;
    struct caller c;
    struct neb_buf epoch;
    struct neb_key *key = caller_key(2);
    struct neb_hello h = caller_hello();
    caller_greet(&c, key, &h);
    sites_epoch(&scene_sites, 0, "s2", NULL, &epoch);
    node_call(&scene_nodes[0], extend, &epoch);
    node_call(&scene_nodes[0], extend, &epoch); /* the peer is gone when this has run */
    caller_say(&c, NEB_FRAME_WELCOME, NULL, 0);
    assert_int_equal(caller_refusal(&c), NEB_REFUSE_KEY);
    assert_false(is_up());
    caller_hang_up(&c);
    neb__buf_free(&epoch);
    neb__key_free(key);
    scene_assert_undisturbed();
}

/* Its key was the site's when it said HELLO; the rightful site comes in after it. */
static void test_rekeyed_meanwhile(void **state)
{
    (void)state;
    struct caller c;
    struct neb_buf epoch;
    struct neb_key *old = caller_key(2), *new;
    struct neb_public public;
    struct neb_hello h = caller_hello();
    assert_ok(neb__key_create(&new));
    neb__key_public(new, &public);
    h.incarnation = (uint64_t)1 << 60;
    caller_greet(&c, old, &h);
    change_key(&public, &epoch);
    node_call(&scene_nodes[0], extend, &epoch);
    node_call(&scene_nodes[0], extend, &epoch);
    caller_say(&c, NEB_FRAME_WELCOME, NULL, 0);
    assert_int_equal(caller_refusal(&c), NEB_REFUSE_KEY);
    assert_false(is_up());
    caller_hang_up(&c);
    h = caller_hello(), h.incarnation = 1, h.boot++;
    caller_link(&c, new, &h);
    assert_true(comes_up());
    caller_hang_up(&c);
    neb__buf_free(&epoch);
    neb__key_free(old), neb__key_free(new);
    scene_assert_undisturbed();
}

/* The process before: its WELCOME arrives when the next one is linked already. */
static void test_late_process(void **state)
{
    (void)state;
    struct caller c;
    struct neb_key *key = caller_key(2);
    struct neb_hello h = caller_hello();
    h.incarnation = 0;
    caller_greet(&c, key, &h);
    node_open(&scene_nodes[2], scene_sites.path[2], &scene_events, (void *)2, NULL);
    assert_true(comes_up());
    int ups = scene_ups[0];
    caller_say(&c, NEB_FRAME_WELCOME, NULL, 0);
    assert_int_equal(caller_refusal(&c), NEB_REFUSE_INCARNATION);
    assert_true(is_up());
    assert_int_equal(scene_ups[0], ups);
    caller_hang_up(&c);
    node_close(&scene_nodes[2]);
    neb__key_free(key);
    scene_assert_undisturbed();
}

#define IN_SCENE(test) cmocka_unit_test_setup_teardown(test, scene_set_up, scene_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_SCENE(test_evicted_meanwhile),
        IN_SCENE(test_rekeyed_meanwhile),
        IN_SCENE(test_late_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
