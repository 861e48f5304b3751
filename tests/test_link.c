/* test_link.c: links over loopback: messages, order, resumption, restarts, streams, rosters that change
 * meanwhile. */
#include "check.h"
#include "sites.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "net/link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* One end. It counts its events: its node's thread writes the counters, and the test reads them through
 * atomics. */
struct end {
    struct node node;
    atomic_int up, downs, lies, epochs; /* lies: the other end was dropped for breaking the protocol */
    atomic_int got[NEB_PRIORITIES], bad, sent_ok, sent_peer, sent_cancelled;
    _Atomic uint64_t bytes;
    uint32_t expect[NEB_PRIORITIES];
    atomic_int hold; /* answer NEB_ERR_AGAIN this many times */
    neb_status why;
};

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    struct end *e = arg;
    (void)peer, (void)incarnation;
    e->up = 1;
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    struct end *e = arg;
    (void)peer;
    e->why = why;
    e->lies += why == NEB_ERR_PROTOCOL;
    e->up = 0;
    e->downs++;
}

/* A message of these tests carries its running number (also in the low bits of its kind) and a pattern. */
static void fill(uint8_t *p, size_t n, uint32_t number)
{
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(number * 31 + i * 7 + (i >> 12));
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    struct end *e = arg;
    if (e->hold > 0) {
        e->hold--;
        return NEB_ERR_AGAIN;
    }
    uint32_t number = e->expect[m->priority]++;
    if (m->kind != (number & 0xffff)) e->bad++;
    for (size_t i = 0; i < m->size; i += i < 100 || i + 100 > m->size ? 1 : 997)
        if (m->data[i] != (uint8_t)(number * 31 + i * 7 + (i >> 12))) {
            e->bad++;
            break;
        }
    e->bytes += m->size;
    e->got[m->priority]++;
    return NEB_OK;
}

static void on_roster(void *arg, const struct neb_chain *chain)
{
    struct end *e = arg;
    e->epochs = (int)chain->epoch;
}

static const struct neb_net_events events = {
    .peer_up = on_up, .peer_down = on_down, .message = on_message, .roster = on_roster};

static void tune_fast(struct neb_net_config *c)
{
    c->heartbeat = 0.2;
    c->dead_after = 1.5;
    c->dial_min = 0.02;
    c->dial_max = 0.2;
    c->window[NEB_BULK] = 8 << 20;
    c->twice = 1;
}

#define WAIT(cond, seconds)                                                        \
    do {                                                                           \
        int64_t wait_start = neb__now_ns();                                        \
        while (!(cond) && neb__seconds_since(wait_start) < (seconds)) sleep_ms(5); \
        if (!(cond)) fail_msg("not within %g s: %s", (double)(seconds), #cond);    \
    } while (0)

static void on_sent(void *arg, neb_status status)
{
    struct end *e = arg;
    if (status == NEB_OK)
        e->sent_ok++;
    else if (status == NEB_ERR_PEER)
        e->sent_peer++;
    else
        e->sent_cancelled++;
}

struct burst {
    struct end *from;
    uint16_t to;
    enum neb_priority priority;
    uint32_t first, count;
    size_t size;
};

static void send_burst(void *arg)
{
    struct burst *b = arg;
    for (uint32_t i = 0; i < b->count; i++) {
        uint8_t *p = neb__malloc(b->size + 1);
        fill(p, b->size, b->first + i);
        assert_ok(neb__net_send_copy(b->from->node.net, b->to, b->priority, (b->first + i) & 0xffff, p,
                                     b->size, on_sent, b->from));
        neb__free(p);
    }
}

static void burst(struct end *from, uint16_t to, enum neb_priority priority, uint32_t first, uint32_t count,
                  size_t size)
{
    struct burst b = {from, to, priority, first, count, size};
    node_call(&from->node, send_burst, &b);
}

static void open_pair(struct sites *s, struct end e[2])
{
    memset(e, 0, 2 * sizeof *e);
    for (int i = 0; i < 2; i++) node_open(&e[i].node, s->path[i], &events, &e[i], tune_fast);
    WAIT(e[0].up && e[1].up, 30);
}

static void test_messages(void **state)
{
    (void)state;
    struct sites s;
    struct end e[2];
    int64_t held = neb__mem_held();
    sites_make(&s, 2, NULL);
    open_pair(&s, e);
    burst(&e[0], 2, NEB_CONTROL, 0, 100, 100);
    burst(&e[0], 2, NEB_STREAM, 0, 50, 100000);
    burst(&e[0], 2, NEB_ROUND, 0, 20, 1 << 20);
    burst(&e[0], 2, NEB_BULK, 0, 10, 5 << 20);
    burst(&e[1], 1, NEB_BULK, 0, 3, 0);
    burst(&e[1], 1, NEB_ROUND, 0, 30, NEB_CHUNK);
    WAIT(e[0].sent_ok == 180 && e[1].sent_ok == 33, 30);
    assert_int_equal(e[1].got[NEB_CONTROL], 100);
    assert_int_equal(e[1].got[NEB_BULK], 10);
    assert_int_equal(e[0].got[NEB_ROUND], 30);
    assert_int_equal(e[0].bad + e[1].bad, 0);
    node_close(&e[0].node);
    node_close(&e[1].node);
    sites_free(&s);
    assert_int_equal(neb__mem_held(), held);
}

/* The callback says "not now": the sender fills its window and sends no more. Later everything arrives. */
static void resume_bulk(void *arg)
{
    struct end *e = arg;
    neb__net_resume(e->node.net, 1, NEB_BULK);
}

static void test_hold(void **state)
{
    (void)state;
    struct sites s;
    struct end e[2];
    sites_make(&s, 2, NULL);
    open_pair(&s, e);
    e[1].hold = 1;
    burst(&e[0], 2, NEB_BULK, 0, 20, 1 << 20);
    sleep_ms(300);
    assert_int_equal(e[1].got[NEB_BULK], 0);
    burst(&e[0], 2, NEB_ROUND, 0, 5, 1000); /* other priorities go on */
    WAIT(e[1].got[NEB_ROUND] == 5, 30);
    WAIT(e[0].sent_ok >= 5, 30);
    assert_int_equal(e[0].sent_ok, 5);
    node_call(&e[1].node, resume_bulk, &e[1]);
    WAIT(e[0].sent_ok == 25, 30);
    assert_int_equal(e[1].bad, 0);
    node_close(&e[0].node);
    node_close(&e[1].node);
    sites_free(&s);
}

/* Connections are cut at random while messages flow: nothing is lost, repeated or reordered. */
struct cut {
    struct end *e;
    uint64_t random;
};

static void cut_one(void *arg)
{
    struct cut *c = arg;
    struct neb_peer *p = c->e->node.net->peers;
    int which = (int)(c->random % 6);
    struct neb_conn *conn = p->stripe[which % 2];
    if (which == 4) conn = p->control;
    if (which == 5) conn = p->stripe[NEB_CONTROL_COPY];
    if (conn) shutdown(conn->fd, SHUT_RDWR);
}

static void test_cuts(void **state)
{
    (void)state;
    struct sites s;
    struct end e[2];
    struct neb_rng rng = {42};
    sites_make(&s, 2, NULL);
    open_pair(&s, e);
    if (!getenv("LINK_TEST_LOG")) check_log_quiet();
    for (uint32_t i = 0; i < 40; i++) {
        burst(&e[0], 2, NEB_ROUND, i * 4, 4, 700000);
        burst(&e[1], 1, NEB_BULK, i * 2, 2, 1500000);
        burst(&e[0], 2, NEB_CONTROL, i * 5, 3, 70000);
        burst(&e[0], 2, NEB_CONTROL, i * 5 + 3, 2, 300); /* these are sent twice */
        struct cut c = {&e[neb__rng_below(&rng, 2)], neb__rng_next(&rng)};
        sleep_ms((int)neb__rng_below(&rng, 30));
        node_call(&c.e->node, cut_one, &c);
    }
    WAIT(e[0].sent_ok == 360 && e[1].sent_ok == 80, 60);
    check_log_restore();
    assert_int_equal(e[1].got[NEB_ROUND], 160);
    assert_int_equal(e[1].got[NEB_CONTROL], 200);
    assert_int_equal(e[0].got[NEB_BULK], 80);
    assert_int_equal(e[0].bad + e[1].bad, 0);
    node_close(&e[0].node);
    node_close(&e[1].node);
    sites_free(&s);
}

/* Small control messages leave on two connections and arrive once, in order, even when the first of the two
 * stalls. */
struct copies {
    struct end *e;
    bool ready;
    uint64_t copies;
};

static void count_copies(void *arg)
{
    struct copies *t = arg;
    const struct neb_peer *p = t->e->node.net->peers;
    const struct neb_conn *c = p->stripe[NEB_CONTROL_COPY];
    t->ready = c && c->state == NEB_CONN_READY && neb__control_copy_is(c);
    t->copies = p->copies;
}

static struct copies copies_of(struct end *e)
{
    struct copies t = {e, false, 0};
    node_call(&e->node, count_copies, &t);
    return t;
}

/* Stops reading the control connection. */
static void go_deaf(void *arg)
{
    struct end *e = arg;
    uv_poll_stop(&e->node.net->peers->control->poll);
}

static void test_control_copy(void **state)
{
    (void)state;
    struct sites s;
    struct end e[2];
    sites_make(&s, 2, NULL);
    open_pair(&s, e);
    WAIT(copies_of(&e[0]).ready && copies_of(&e[1]).ready, 30);
    for (uint32_t i = 0; i < 50; i++) burst(&e[0], 2, NEB_CONTROL, i, 1, 200);
    WAIT(e[0].sent_ok == 50, 30);
    assert_int_equal(e[1].got[NEB_CONTROL], 50);
    assert_true(copies_of(&e[0]).copies > 0);
    node_call(&e[1].node, go_deaf, &e[1]);
    burst(&e[0], 2, NEB_CONTROL, 50, 10, 200);
    WAIT(e[1].got[NEB_CONTROL] == 60,
         30); /* by the control copy connection, or once the deaf connection was given up */
    WAIT(e[0].sent_ok == 60, 30);
    assert_int_equal(e[1].bad, 0);
    node_close(&e[0].node);
    node_close(&e[1].node);
    sites_free(&s);
}

/* The peer's process is replaced: messages that it had begun to receive end with NEB_ERR_PEER, the others go
 * to the new process. */
struct begun {
    struct end *e;
    uint64_t bytes;
};

static void look_begun(void *arg)
{
    struct begun *b = arg;
    b->bytes = b->e->node.net->peers->out.queue[NEB_BULK].begun_bytes;
}

static uint64_t begun_bytes(struct end *e)
{
    struct begun b = {e, 0};
    node_call(&e->node, look_begun, &b);
    return b.bytes;
}

static void test_restart(void **state)
{
    (void)state;
    struct sites s;
    struct end e[2];
    sites_make(&s, 2, NULL);
    open_pair(&s, e);
    e[1].hold = 1 << 30;
    burst(&e[0], 2, NEB_BULK, 0, 20, 1 << 20); /* the window holds 8 of them */
    WAIT(begun_bytes(&e[0]) == 8 << 20, 30);
    check_log_quiet();
    node_close(&e[1].node);
    WAIT(!e[0].up, 30);
    memset(&e[1], 0, sizeof e[1]);
    e[1].expect[NEB_BULK] = 8;
    node_open(&e[1].node, s.path[1], &events, &e[1], tune_fast);
    WAIT(e[0].sent_ok + e[0].sent_peer == 20, 30);
    check_log_restore();
    assert_int_equal(e[0].sent_peer, 8);
    assert_int_equal(e[1].got[NEB_BULK], 12);
    assert_int_equal(e[1].bad, 0);
    /* messages that are still queued when a node closes are cancelled */
    e[1].hold = 1 << 30;
    burst(&e[0], 2, NEB_BULK, 20, 3, 1000);
    node_close(&e[0].node);
    assert_int_equal(e[0].sent_cancelled, 3);
    node_close(&e[1].node);
    sites_free(&s);
}

/* A link that broke owed its peer an answer to a ping. The next link does not send it. */
static void break_owing(void *arg)
{
    struct end *e = arg;
    struct neb_peer *p = e->node.net->peers;
    neb__link_down(p, NEB_ERR_PEER);
    p->pong_due = true; /* like an answer that waits for the next acknowledgement */
}

static void look_ping(void *arg)
{
    void **a = arg;
    *(uint32_t *)a[1] = ((struct end *)a[0])->node.net->peers->ping_number;
}

static uint32_t pings(struct end *e)
{
    uint32_t n = 0;
    node_call(&e->node, look_ping, (void *[]){e, &n});
    return n;
}

static void test_stale_answer(void **state)
{
    (void)state;
    struct sites s;
    struct end e[2];
    sites_make(&s, 2, NULL);
    open_pair(&s, e);
    check_log_quiet();
    for (int i = 0; i < 4; i++) {
        struct end *a = &e[i % 2], *b = &e[1 - i % 2];
        int downs = b->downs;
        uint32_t before = pings(b);
        WAIT(pings(b) > before + 1, 30);
        node_call(&a->node, break_owing, a);
        WAIT(b->downs > downs, 30);
        WAIT(a->up && b->up, 30);
    }
    burst(&e[0], 2, NEB_ROUND, 0, 3, 1000);
    WAIT(e[0].sent_ok == 3, 30);
    sleep_ms(500);
    check_log_restore();
    assert_int_equal(e[0].lies + e[1].lies, 0);
    node_close(&e[0].node);
    node_close(&e[1].node);
    sites_free(&s);
}

/* A site that never joined a run is told so. */
static void test_not_joined(void **state)
{
    (void)state;
    struct sites s;
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_net *net = NULL;
    char roster[300];
    int64_t held = neb__mem_held();
    sites_make(&s, 1, NULL);
    snprintf(roster, sizeof roster, "%s/roster", s.path[0]);
    assert_false(unlink(roster));
    assert_ok(neb__site_open(s.path[0], &cfg.site));
    cfg.events = &events;
    check_log_quiet();
    assert_status(neb__net_open(&cfg, &net), NEB_ERR_NOTFOUND);
    check_log_restore();
    assert_null(net);
    neb__site_close(cfg.site);
    sites_free(&s);
    assert_int_equal(neb__mem_held(), held);
}

/* A third site is admitted, and one evicted, while links run. A site that missed an epoch is sent it. */
static void extend(void *arg)
{
    void **a = arg;
    struct end *e = a[0];
    struct neb_buf *b = a[1];
    assert_ok(neb__net_extend_roster(e->node.net, b->data, b->len));
}

static void test_epochs(void **state)
{
    (void)state;
    struct sites s;
    struct end e[3];
    char third[300], identity[NEB_IDENTITY_SIZE];
    struct neb_buf admit, evict;
    struct neb_chain *chain;
    sites_make(&s, 2, NULL);
    open_pair(&s, e);
    memset(&e[2], 0, sizeof e[2]);
    snprintf(third, sizeof third, "%s/third", s.dir);
    assert_ok(neb__site_init(third, "third", identity));
    sites_epoch(&s, 0, NULL, third, &admit);

    /* only the newcomer knows the epoch that admits it, and brings it along */
    assert_ok(neb__site_roster_load(s.path[0], &chain));
    assert_ok(neb__chain_extend(chain, admit.data, admit.len));
    assert_ok(neb__site_roster_save(third, chain));
    neb__chain_free(chain);
    node_open(&e[2].node, third, &events, &e[2], tune_fast);
    WAIT(e[2].up, 30);
    WAIT(e[0].epochs == 1 && e[1].epochs == 1, 30);
    burst(&e[2], 1, NEB_ROUND, 0, 3, 1000);
    WAIT(e[2].sent_ok == 3, 30);

    /* s0 learns of an eviction and tells s1; the evicted site is refused from then on */
    sites_epoch(&s, 0, "third", NULL, &evict);
    check_log_quiet();
    node_call(&e[0].node, extend, (void *[]){&e[0], &evict});
    WAIT(e[1].epochs == 2, 30);
    WAIT(!e[2].up, 30);
    WAIT(e[2].epochs == 2, 30); /* the refusal shows it the epoch that removes it */
    assert_false(e[2].up);
    check_log_restore();
    assert_ok(neb__site_roster_load(third, &chain));
    assert_int_equal(chain->epoch, 2);
    assert_null(neb__roster_by_name(&chain->now, "third"));
    neb__chain_free(chain);
    burst(&e[0], 2, NEB_ROUND, 0, 3, 1000); /* the others did not notice */
    WAIT(e[0].sent_ok == 3, 30);
    assert_ok(neb__site_roster_load(s.path[1], &chain));
    assert_int_equal(chain->epoch, 2);
    neb__chain_free(chain);
    for (int i = 0; i < 3; i++) node_close(&e[i].node);
    neb__buf_free(&admit), neb__buf_free(&evict);
    sites_free(&s);
}

/* A chain fills several frames: many sites join and leave while one site is away, which then gets all of
 * it. */
enum { CROWD = 240, CROWDED = 40 };

static void long_chain(const struct sites *s, struct neb_chain *chain)
{
    struct neb_member *all = calloc(CROWD + 2, sizeof *all);
    struct neb_hash head = {{0}};
    struct neb_key *key;
    struct neb_buf b;
    char ops[300];
    snprintf(ops, sizeof ops, "%s/ops", s->dir);
    assert_ok(neb__site_key(ops, &key));
    neb__buf_init(&b, 1 << 20);
    for (int k = 0; k <= CROWDED; k++) {
        struct neb_roster r = {all, k < CROWDED ? CROWD + 2 : 2};
        memcpy(all, chain->now.members, (k ? r.count : 2) * sizeof *all);
        for (int i = 0; !k && i < CROWD; i++) {
            struct neb_member *m = &all[2 + i];
            snprintf(m->name, sizeof m->name, "one-of-a-crowd-of-many-%d", i);
            memset(&m->key, 0x40, sizeof m->key);
            memcpy(&m->key, &i, sizeof i);
        }
        neb__buf_clear(&b);
        assert_ok(neb__chain_propose(chain, NEB_EPOCH_EVICT, 0, &head, &r,
                                     (const struct neb_key *const[]){key}, 1, &b));
        assert_ok(neb__chain_extend(chain, b.data, b.len));
    }
    neb__buf_free(&b);
    neb__key_free(key);
    free(all);
}

static void test_long_chain(void **state)
{
    (void)state;
    struct sites s;
    struct end e[2];
    struct neb_chain *chain;
    sites_make(&s, 2, NULL);
    assert_ok(neb__site_roster_load(s.path[1], &chain));
    long_chain(&s, chain);
    assert_true(chain->tail.len > 2 * NEB_EPOCH_BYTES_MAX);
    assert_ok(neb__site_roster_save(s.path[1], chain));
    neb__chain_free(chain);
    check_log_quiet();
    open_pair(&s, e);
    check_log_restore();
    assert_int_equal(e[0].epochs, CROWDED + 1);
    burst(&e[0], 2, NEB_ROUND, 0, 3, 1000);
    WAIT(e[0].sent_ok == 3, 30);
    assert_ok(neb__site_roster_load(s.path[0], &chain));
    assert_int_equal(chain->epoch, CROWDED + 1);
    neb__chain_free(chain);
    for (int i = 0; i < 2; i++) node_close(&e[i].node);
    sites_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),   cmocka_unit_test(test_hold),
        cmocka_unit_test(test_cuts),       cmocka_unit_test(test_control_copy),
        cmocka_unit_test(test_restart),    cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_long_chain), cmocka_unit_test(test_stale_answer),
        cmocka_unit_test(test_not_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
