/* test_routes.c: paths between sites, and members that lie about them. Four sites in a row pass messages on; states and
 * messages are forged, changed, repeated, meant for others, and too many. The signatures are a toy: a hash over signer,
 * purpose and message, which only this file can make. */
#include "check.h"
#include "base/bytes.h"
#include "base/rng.h"
#include "round/routes.h"

#include <string.h>

enum { SITES = 4, KIND = 1 };

static bool seal_hash(unsigned signer, const char *purpose, const void *p, size_t n,
                      uint8_t out[NEB_SEAL_SIZE])
{
    uint8_t all[1024] = {(uint8_t)signer};
    struct neb_hash h;
    size_t k = strlen(purpose);
    assert_true(n + k + 1 <= sizeof all);
    memcpy(all + 1, purpose, k);
    memcpy(all + 1 + k, p, n);
    assert_ok(neb__hash(all, 1 + k + n, &h));
    memset(out, 0, NEB_SEAL_SIZE);
    memcpy(out, h.b, NEB_HASH_SIZE);
    return true;
}

static neb_status sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    seal_hash((unsigned)(uintptr_t)arg, purpose, p, n, out);
    return NEB_OK;
}

static bool verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    uint8_t want[NEB_SEAL_SIZE];
    (void)arg;
    seal_hash(signer, purpose, p, n, want);
    return !memcmp(want, signature, sizeof want);
}

static struct neb_routes *open_site(unsigned i, uint64_t life)
{
    struct neb_routes *r;
    struct neb_routes_config c = {.self = (uint16_t)i,
                                  .life = life,
                                  .seal = {.arg = (void *)(uintptr_t)i, .sign = sign, .verify = verify}};
    assert_ok(neb__routes_create(&c, &r));
    neb__routes_members(r, (1u << SITES) - 1);
    return r;
}

struct net {
    struct neb_routes *r[SITES];
    uint64_t reached[SITES], far[SITES];
};

/* Carries link states to neighbours until nobody has any more to say. */
static void settle(struct net *n)
{
    struct neb_buf b;
    unsigned to, site;
    enum neb_reach was, how;
    neb__buf_init(&b, NEB_SITES_MAX * NEB_LINK_STATE_SIZE);
    for (int again = 1; again;) {
        again = 0;
        for (unsigned i = 0; i < SITES; i++)
            while (neb__routes_tell(n->r[i], &to, &b)) {
                again = 1;
                assert_true(neb__routes_hear(n->r[to], 1, i, b.data, b.len));
            }
    }
    for (unsigned i = 0; i < SITES; i++)
        while (neb__routes_changed(n->r[i], &site, &was, &how)) {
            n->reached[i] &= ~neb__bit(site), n->far[i] &= ~neb__bit(site);
            if (how != NEB_REACH_NONE) n->reached[i] |= neb__bit(site);
            if (how == NEB_REACH_FAR) n->far[i] |= neb__bit(site);
        }
    neb__buf_free(&b);
}

static void link_up(struct net *n, unsigned a, unsigned b, bool up)
{
    neb__routes_link(n->r[a], 1, b, up);
    neb__routes_link(n->r[b], 1, a, up);
}

static void in_a_row(struct net *n)
{
    memset(n, 0, sizeof *n);
    for (unsigned i = 0; i < SITES; i++) n->r[i] = open_site(i, 1);
    for (unsigned i = 0; i + 1 < SITES; i++) link_up(n, i, i + 1, true);
    settle(n);
}

static void close_all(struct net *n)
{
    for (int i = 0; i < SITES; i++) neb__routes_destroy(n->r[i]);
}

/* Sends `text` on from `at` and returns how the last site took it. */
static enum neb_relay travel(struct net *n, unsigned from, unsigned at, struct neb_buf *b,
                             struct neb_relayed *m)
{
    for (;;) {
        enum neb_relay how = neb__routes_take(n->r[at], 1, from, b->data, b->len, m);
        if (how != NEB_RELAY_FORWARD) return how;
        from = at;
        at = m->next;
    }
}

static void paths_follow_links(void **state)
{
    (void)state;
    struct net n;
    in_a_row(&n);
    for (unsigned i = 0; i < SITES; i++) assert_int_equal(n.reached[i], 15 & ~(1u << i));
    assert_int_equal(n.far[0], 12);
    assert_int_equal(neb__routes_via(n.r[0], 3), 1);
    assert_int_equal(neb__routes_via(n.r[0], 1), NEB_NO_SITE);
    assert_true(neb__routes_between(n.r[1]) && !neb__routes_between(n.r[0]));
    assert_int_equal(neb__routes_children(n.r[1], 0, 15), 4); /* 2 gets what 0 made from 1 */
    assert_int_equal(neb__routes_children(n.r[2], 0, 15), 8);
    assert_int_equal(neb__routes_children(n.r[1], 3, 15), 1);
    link_up(&n, 0, 3, true);
    settle(&n);
    assert_int_equal(n.far[0], 4);
    assert_int_equal(neb__routes_children(n.r[2], 0, 15), 0); /* 3 has its own line now */
    assert_int_equal(neb__routes_children(n.r[3], 0, 15), 0); /* 2 gets what 0 made from 1 … */
    assert_int_equal(neb__routes_children(n.r[3], 0, 13),
                     4); /* … or from 3, while 1 is not a member by the log */
    link_up(&n, 1, 2, false);
    settle(&n);
    assert_int_equal(neb__routes_via(n.r[0], 2), 3); /* the other way round */
    link_up(&n, 0, 3, false);
    settle(&n);
    assert_int_equal(n.reached[0], 2);
    close_all(&n);
}

static void messages_travel_once(void **state)
{
    (void)state;
    struct net n;
    struct neb_buf b;
    struct neb_relayed m;
    unsigned next;
    in_a_row(&n);
    neb__buf_init(&b, NEB_RELAY_MAX);
    assert_int_equal(neb__routes_wrap(n.r[0], 1, 1, KIND, "hello", 5, &b, &next), NEB_ERR_PEER); /* linked */
    assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "hello", 5, &b, &next));
    assert_int_equal(next, 1);
    assert_int_equal(travel(&n, 0, 1, &b, &m), NEB_RELAY_DELIVER);
    assert_true(m.author == 0 && m.kind == KIND && m.n == 5 && !memcmp(m.bytes, "hello", 5));
    assert_int_equal(travel(&n, 0, 1, &b, &m), NEB_RELAY_IGNORE);
    assert_int_equal(travel(&n, 2, 3, &b, &m), NEB_RELAY_IGNORE);
    /* to a process that is gone; and by one that began anew, whose numbers begin again */
    assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "again", 5, &b, &next));
    neb__routes_destroy(n.r[3]);
    n.r[3] = open_site(3, 2);
    neb__routes_link(n.r[3], 1, 2, true);
    settle(&n);
    assert_int_equal(travel(&n, 2, 3, &b, &m), NEB_RELAY_IGNORE);
    assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "third", 5, &b, &next));
    assert_int_equal(travel(&n, 0, 1, &b, &m), NEB_RELAY_DELIVER);
    struct neb_buf old;
    neb__buf_init(&old, NEB_RELAY_MAX);
    assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "of life 1", 9, &old, &next));
    neb__routes_destroy(n.r[0]);
    n.r[0] = open_site(0, 2);
    neb__routes_link(n.r[1], 1, 0, false); /* the links notice another process */
    link_up(&n, 0, 1, true);
    settle(&n);
    assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "of life 2", 9, &b, &next));
    assert_int_equal(travel(&n, 0, 1, &b, &m), NEB_RELAY_DELIVER);
    assert_int_equal(travel(&n, 2, 3, &old, &m), NEB_RELAY_IGNORE);
    neb__buf_free(&old);
    neb__buf_free(&b);
    close_all(&n);
}

/* Every byte of a message and of a link state is changed, every length tried. */
/* A site that lost its folder gets a new key, and its processes are counted from one again. */
static void a_new_key_begins_new_lives(void **state)
{
    (void)state;
    struct net n;
    struct neb_buf b;
    struct neb_relayed m;
    unsigned next;
    in_a_row(&n);
    neb__buf_init(&b, NEB_RELAY_MAX);
    for (uint64_t life = 9; life; life = life == 9) {
        neb__routes_destroy(n.r[0]);
        n.r[0] = open_site(0, life);
        n.reached[0] = n.far[0] = 0;
        neb__routes_link(n.r[1], 1, 0, false);
        for (unsigned i = 1; life == 1 && i < SITES; i++) neb__routes_forget(n.r[i], 0);
        link_up(&n, 0, 1, true);
        settle(&n);
        assert_int_equal(n.far[3], 3);
        assert_int_equal(n.r[3]->state[0].life, life);
        assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "hello", 5, &b, &next));
        assert_int_equal(travel(&n, 0, next, &b, &m), NEB_RELAY_DELIVER);
    }
    neb__buf_free(&b);
    close_all(&n);
}

static void changed_bytes_are_refused(void **state)
{
    (void)state;
    struct net n;
    struct neb_buf b;
    struct neb_relayed m;
    unsigned next;
    neb__buf_init(&b, NEB_RELAY_MAX);
    in_a_row(&n);
    assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "hello", 5, &b, &next));
    for (size_t i = 0; i < b.len; i++) {
        b.data[i] ^= 4;
        n.r[3]->peer[2].forged = NEB_FORGED_BURST; /* its patience is another test */
        assert_int_not_equal(neb__routes_take(n.r[3], 1, 2, b.data, b.len, &m), NEB_RELAY_DELIVER);
        b.data[i] ^= 4;
        n.r[3]->peer[2].forged = NEB_FORGED_BURST;
        assert_int_not_equal(neb__routes_take(n.r[3], 1, 2, b.data, i, &m), NEB_RELAY_DELIVER);
    }
    n.r[3]->peer[2].forged = NEB_FORGED_BURST;
    assert_int_equal(neb__routes_take(n.r[3], 1, 2, b.data, b.len, &m), NEB_RELAY_DELIVER);
    struct neb_routes *fresh = open_site(3, 9);
    uint8_t bytes[NEB_LINK_STATE_SIZE];
    for (size_t i = 0; i < sizeof bytes; i++) {
        memcpy(bytes, n.r[1]->state[1].bytes, sizeof bytes);
        bytes[i] ^= 1;
        fresh->peer[2].forged = NEB_FORGED_BURST;
        (void)neb__routes_hear(fresh, 1, 2, bytes, sizeof bytes);
        (void)neb__routes_hear(fresh, 1, 2, bytes, i);
        for (int k = 0; k < NEB_SITES_MAX; k++) assert_true(fresh->state[k].life == 0);
    }
    neb__routes_destroy(fresh);
    neb__buf_free(&b);
    close_all(&n);
}

/* A site says that it is linked to one that does not say so; and an older state comes after a newer one. */
static void links_that_do_not_exist(void **state)
{
    (void)state;
    struct net n;
    in_a_row(&n);
    uint8_t old[NEB_LINK_STATE_SIZE];
    memcpy(old, n.r[1]->state[1].bytes, sizeof old);
    link_up(&n, 2, 3, false);
    settle(&n);
    assert_int_equal(n.reached[0], 6);
    neb__routes_link(n.r[1], 1, 3, true); /* a lie of 1 */
    settle(&n);
    assert_int_equal(n.reached[0], 6);
    uint64_t seq = n.r[0]->state[1].seq;
    assert_true(neb__routes_hear(n.r[0], 1, 1, old, sizeof old));
    assert_int_equal(n.r[0]->state[1].seq, seq);
    close_all(&n);
}

static void too_much_is_not_passed_on(void **state)
{
    (void)state;
    static uint8_t big[NEB_RELAY_PAYLOAD + 1];
    struct net n;
    struct neb_buf b;
    struct neb_relayed m;
    unsigned next;
    neb__buf_init(&b, NEB_RELAY_MAX);
    in_a_row(&n);
    assert_int_equal(neb__routes_wrap(n.r[0], 1, 3, KIND, big, sizeof big, &b, &next), NEB_ERR_LIMIT);
    int passed = 0, limited = 0;
    for (int i = 0; i < 64; i++) {
        assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, big, NEB_RELAY_PAYLOAD, &b, &next));
        enum neb_relay how = neb__routes_take(n.r[1], 1, 0, b.data, b.len, &m);
        passed += how == NEB_RELAY_FORWARD, limited += how == NEB_RELAY_LIMITED;
    }
    assert_true(passed >= 8 && passed <= NEB_RELAY_BURST / NEB_RELAY_PAYLOAD && passed + limited == 64);
    assert_ok(neb__routes_wrap(n.r[3], 1, 0, KIND, "x", 1, &b, &next)); /* of another author: not its fault */
    assert_int_equal(travel(&n, 3, 2, &b, &m), NEB_RELAY_DELIVER);
    /* a neighbour with bad signatures is not listened to for a while; then it is again */
    assert_ok(neb__routes_wrap(n.r[0], 1, 3, KIND, "y", 1, &b, &next));
    b.data[b.len - 1] ^= 1;
    for (int i = 0; i < 2 * NEB_FORGED_BURST; i++)
        assert_int_equal(neb__routes_take(n.r[3], 1, 2, b.data, b.len, &m), NEB_RELAY_FORGED);
    b.data[b.len - 1] ^= 1;
    assert_int_equal(neb__routes_take(n.r[3], 1, 2, b.data, b.len, &m), NEB_RELAY_FORGED);
    assert_int_equal(neb__routes_take(n.r[3], 5000, 2, b.data, b.len, &m), NEB_RELAY_DELIVER);
    neb__buf_free(&b);
    close_all(&n);
}

/* A ring: 0 reaches 2 over 1 or 3. 1 passes nothing on. */
static void a_way_around_one_that_drops(void **state)
{
    (void)state;
    struct net n;
    struct neb_buf b;
    unsigned next;
    neb__buf_init(&b, NEB_RELAY_MAX);
    in_a_row(&n);
    link_up(&n, 0, 3, true);
    settle(&n);
    int64_t now = 1;
    unsigned first = 9, seen = 0;
    for (int i = 0; i < 40; i++, now += 1000) {
        neb__routes_tick(n.r[0], now);
        assert_ok(neb__routes_wrap(n.r[0], now, 2, KIND, "z", 1, &b, &next));
        if (first == 9) first = next;
        seen |= 1u << next;
        struct neb_relayed m;
        if (next == 3) { /* it arrives, and the answer confirms it */
            assert_int_equal(travel(&n, 0, 3, &b, &m), NEB_RELAY_DELIVER);
            n.r[2]->peer[0].hops = 2, n.r[2]->peer[0].path[0] = 3, n.r[2]->peer[0].path[1] = 0;
            assert_ok(neb__routes_wrap(n.r[2], now, 0, KIND, "!", 1, &b, &next));
            assert_int_equal(travel(&n, 2, 3, &b, &m), NEB_RELAY_DELIVER);
        }
    }
    assert_int_equal(first, 1);
    assert_int_equal(seen, 1u << 1 | 1u << 3);
    assert_int_equal(neb__routes_via(n.r[0], 2), 3); /* and it stays there */
    neb__buf_free(&b);
    close_all(&n);
}

static void hear_links(struct neb_routes *r, unsigned from, unsigned site, uint64_t links)
{
    uint8_t b[NEB_HASH_SIZE + NEB_LINK_STATE_SIZE] = {0}, *state = b + NEB_HASH_SIZE;
    neb__put16(state, (uint16_t)site);
    neb__put64(state + 2, 1);
    neb__put64(state + 10, 1);
    neb__put64(state + 18, links);
    assert_ok(sign((void *)(uintptr_t)site, "nebula link state", b, sizeof b - NEB_SEAL_SIZE,
                   state + NEB_LINK_STATE_SIZE - NEB_SEAL_SIZE));
    assert_true(neb__routes_hear(r, 1, from, state, NEB_LINK_STATE_SIZE));
}

/* 0 reaches 4 through 3, and 3 through 1 or 2. Nobody can go around 3. Each of the other two is tried, again and again. */
static void a_member_that_cannot_be_avoided(void **state)
{
    (void)state;
    struct neb_routes *r = open_site(0, 1);
    struct neb_buf b;
    unsigned next;
    int over[3] = {0};
    neb__buf_init(&b, NEB_RELAY_MAX);
    neb__routes_members(r, 31);
    for (unsigned i = 1; i < 3; i++) neb__routes_link(r, 1, i, true);
    for (unsigned i = 1; i < 3; i++) hear_links(r, i, i, 1 | 8);
    hear_links(r, 1, 3, 2 | 4 | 16);
    hear_links(r, 1, 4, 8);
    for (int64_t i = 0, now = 1; i < 200; i++, now += 1000) {
        neb__routes_tick(r, now);
        assert_ok(neb__routes_wrap(r, now, 4, KIND, "z", 1, &b, &next));
        assert_int_equal(r->peer[4].path[1], 3);
        over[next]++;
    }
    assert_true(over[1] > 40 && over[2] > 40);
    neb__buf_free(&b);
    neb__routes_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_follow_links),          cmocka_unit_test(messages_travel_once),
        cmocka_unit_test(a_new_key_begins_new_lives),  cmocka_unit_test(changed_bytes_are_refused),
        cmocka_unit_test(links_that_do_not_exist),     cmocka_unit_test(too_much_is_not_passed_on),
        cmocka_unit_test(a_way_around_one_that_drops), cmocka_unit_test(a_member_that_cannot_be_avoided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
