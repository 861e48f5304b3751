/* test_greet.c: rosters, keys and processes that change during a greeting, between HELLO and WELCOME, and
 * between one link and the next. */
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

/* Returns whether s0 has a link to s2. */
static bool is_up(void)
{
    bool up = false;
    node_call(&scene_nodes[0], look, &up);
    return up;
}

static bool comes_up(void)
{
    for (int64_t start = neb__now_ns(); neb__seconds_since(start) < 120; sleep_ms(20))
        if (is_up()) return true;
    return false;
}

/* Makes an epoch in which s2 has another key. */
static void change_key(const struct neb_public *key, struct neb_buf *out)
{
    struct neb_chain *chain;
    assert_ok(neb__site_roster_load(scene_sites.path[0], &chain));
    chain->now.members[2].key = *key;
    sites_sign(&scene_sites, chain, &chain->now, out);
    neb__chain_free(chain);
}

/* The peer was a member when it sent HELLO, and is evicted before WELCOME. */
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

/* The peer's key belonged to the site when it sent HELLO; then the site gets another key. The rightful site
 * comes in after it. */
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

/* The WELCOME of an older process arrives when the next process is already linked. */
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

/* A site that lost its disk begins anew with another key and its first incarnation. It looks like an older
 * process, but is not refused as one. */
static void test_rekeyed_later(void **state)
{
    (void)state;
    char dir[300], identity[NEB_IDENTITY_SIZE], name[NEB_NAME_SIZE];
    struct neb_public key;
    struct neb_buf epoch;
    struct neb_chain *chain;
    for (int i = 0; i < 3; i++) { /* incarnations */
        node_open(&scene_nodes[2], scene_sites.path[2], &scene_events, (void *)2, NULL);
        assert_true(comes_up());
        node_close(&scene_nodes[2]);
        while (is_up()) sleep_ms(10);
    }
    snprintf(dir, sizeof dir, "%s/new", scene_sites.dir);
    assert_ok(neb__site_init(dir, "s2", identity));
    assert_ok(neb__site_identity(dir, name, &key));
    change_key(&key, &epoch);
    node_call(&scene_nodes[0], extend, &epoch);
    assert_ok(neb__site_roster_load(scene_sites.path[0], &chain));
    assert_ok(neb__site_roster_save(dir, chain));
    neb__chain_free(chain);
    node_open(&scene_nodes[2], dir, &scene_events, (void *)2, NULL);
    assert_true(comes_up());
    node_close(&scene_nodes[2]);
    neb__buf_free(&epoch);
    scene_assert_undisturbed();
}

/* s2 got another key while s0 was away. s0 dials it, finds a key that it does not know, and learns from s2 that the
 * key is s2's. */
static void test_rekeyed_unheard_of(void **state)
{
    (void)state;
    char dir[300], identity[NEB_IDENTITY_SIZE], name[NEB_NAME_SIZE];
    struct neb_public key;
    struct neb_buf epoch;
    struct neb_chain *chain;
    snprintf(dir, sizeof dir, "%s/unheard", scene_sites.dir);
    assert_ok(neb__site_init(dir, "s2", identity));
    assert_ok(neb__site_identity(dir, name, &key));
    change_key(&key, &epoch);
    assert_ok(neb__site_roster_load(scene_sites.path[0], &chain));
    assert_ok(neb__chain_extend(chain, epoch.data, epoch.len));
    assert_ok(neb__site_roster_save(dir, chain));
    neb__chain_free(chain);
    node_open(&scene_nodes[2], dir, &scene_events, (void *)2, NULL);
    assert_true(comes_up());
    node_close(&scene_nodes[2]);
    neb__buf_free(&epoch);
    scene_assert_undisturbed();
}

/* ---- forks --------------------------------------------------------------------------------------------- */

enum { MANY = 1000 }; /* epochs, more than a frame takes */

/* Lets a site's own copy of the roster grow by epochs that no other site has. */
static void branch_off(const struct sites *s, int site, int epochs)
{
    struct neb_chain *chain;
    struct neb_buf epoch;
    assert_ok(neb__site_roster_load(s->path[site], &chain));
    for (int i = 0; i < epochs; i++) {
        chain->now.members[2].votes = (uint8_t)site;
        sites_sign(s, chain, &chain->now, &epoch);
        assert_ok(neb__chain_extend(chain, epoch.data, epoch.len));
        neb__buf_free(&epoch);
    }
    if (epochs == MANY) assert_true(chain->tail.len > NEB_EPOCH_BYTES_MAX);
    assert_ok(neb__site_roster_save(s->path[site], chain));
    neb__chain_free(chain);
}

struct side {
    struct node node;
    atomic_int ups, forks;
};

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)peer, (void)incarnation;
    ((struct side *)arg)->ups++;
}

static void on_fork(void *arg, uint16_t peer, uint64_t epoch)
{
    (void)epoch;
    if (peer) ((struct side *)arg)->forks++;
}

/* Both ends see the proof, however much longer one branch is. */
static void forked(int common, int one, int other)
{
    static const struct neb_net_events events = {.peer_up = on_up, .roster_fork = on_fork};
    struct sites s;
    struct side a[2] = {0};
    sites_make(&s, 3, NULL);
    if (common) {
        struct neb_chain *chain;
        branch_off(&s, 0, common);
        assert_ok(neb__site_roster_load(s.path[0], &chain));
        assert_ok(neb__site_roster_save(s.path[1], chain));
        neb__chain_free(chain);
    }
    branch_off(&s, 0, one);
    branch_off(&s, 1, other);
    check_log_quiet();
    for (int i = 0; i < 2; i++) node_open(&a[i].node, s.path[i], &events, &a[i], NULL);
    for (int64_t start = neb__now_ns(); !(a[0].forks && a[1].forks) && neb__seconds_since(start) < 120;)
        sleep_ms(10);
    assert_true(a[0].forks && a[1].forks);
    assert_int_equal(a[0].ups + a[1].ups, 0);
    for (int i = 0; i < 2; i++) node_close(&a[i].node);
    check_log_restore();
    sites_free(&s);
}

static void test_forks(void **state)
{
    (void)state;
    forked(0, 1, 1);
    forked(0, 1, 3);
    forked(2, 2, 1);
    forked(0, MANY, 1); /* the long branch needs a second frame */
    forked(MANY, 1, 2); /* the first frame has no room for the proof */
}

/* A peer that only claims a fork loses its own link; nobody else is affected. */
static void test_claimed_fork(void **state)
{
    (void)state;
    struct neb_buf epoch;
    struct neb_key *key = caller_key(2);
    struct neb_hello h = caller_hello();
    struct neb_public same;
    neb__key_public(key, &same);
    change_key(&same, &epoch); /* an epoch that changes nothing */
    node_call(&scene_nodes[0], extend, &epoch);
    h.head.b[0] ^= 1; /* the hash of the epoch before */
    assert_int_equal(caller_refused(key, &h), NEB_REFUSE_FORK);
    h = caller_hello();
    assert_int_equal(h.epoch, 1);
    h.head.b[0] ^= 1;
    assert_int_equal(caller_refused(key, &h), NEB_REFUSE_FORK);
    assert_int_equal(scene_forks, 0);
    neb__buf_free(&epoch);
    neb__key_free(key);
    scene_assert_undisturbed();
}

#define IN_SCENE(test) cmocka_unit_test_setup_teardown(test, scene_set_up, scene_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_SCENE(test_evicted_meanwhile), IN_SCENE(test_rekeyed_meanwhile),  IN_SCENE(test_late_process),
        IN_SCENE(test_rekeyed_later),     IN_SCENE(test_rekeyed_unheard_of), cmocka_unit_test(test_forks),
        IN_SCENE(test_claimed_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
