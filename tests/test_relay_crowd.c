/* test_relay_crowd.c: guests of a relay host who want it for themselves: rosters made to fill it, long chains, endless pings, all
 * meeting places, all connections. Others come from other networks of 127.0.0.0/8 and notice nothing. */
#include "check.h"
#include "relay_visitor.h"
#include "net/relay/meeting.h"
#include "net/relay/relay_host.h"
#include "net/relay/relay_host_internal.h"
#include "base/clock.h"

#include <nebula/log.h>

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const char crowd[] = "127.0.5.1", other[] = "127.0.6.1", third[] = "127.0.7.1";
static struct neb_relay_host *host;
static struct neb_key *host_key;
static struct neb_public host_public;

/* A run of one member, which names the host. */
struct run {
    struct neb_key *key;
    struct neb_chain *chain;
    struct neb_buf bytes;
};

static void run_make(struct run *r)
{
    struct neb_member m = {.votes = 1, .addresses = 1, .name = "s"};
    struct neb_roster roster = {&m, 1};
    assert_ok(neb__key_create(&r->key));
    neb__key_public(r->key, &m.key);
    assert_ok(neb__relay_address_format("127.0.0.1:7500", &host_public, m.address[0]));
    assert_ok(neb__chain_create(&m.key, NULL, 0, &roster, &r->chain));
    neb__buf_init(&r->bytes, 1 << 20);
    assert_ok(neb__chain_encode(r->chain, &r->bytes));
}

static void run_free(struct run *r)
{
    neb__chain_free(r->chain);
    neb__key_free(r->key);
    neb__buf_free(&r->bytes);
}

static void open_host(const struct neb_relay_limits *limits, const char *const *files)
{
    struct neb_relay_host_config config = {.key = host_key,
                                           .listen = "127.0.0.1:0",
                                           .limits = *limits,
                                           .files = files,
                                           .files_n = files != NULL};
    assert_ok(neb__relay_host_open(&config, &host));
    assert_ok(neb__relay_host_start(host));
}

static int close_host(void **state)
{
    (void)state;
    neb__relay_host_close(host);
    host = NULL;
    return 0;
}

static void ask(struct relay_visitor *v, const char *from, const struct run *r, enum neb_relay_what what)
{
    struct neb_relay_ask a = {NEB_RELAY_VERSION_MIN,
                              NEB_RELAY_VERSION,
                              (uint8_t)what,
                              r->chain->genesis_hash,
                              r->chain->epoch,
                              1,
                              0};
    visitor_ask(v, visitor_dial(neb__relay_host_port(host), from), r->key, &a);
}

static void stand(struct relay_visitor *v, const char *from, const struct run *r, bool shows)
{
    struct neb_relay_message m;
    ask(v, from, r, NEB_RELAY_STAND);
    if (shows) visitor_show(v, r->bytes.data, r->bytes.len);
    visitor_expect(v, NEB_RELAY_HERE, &m);
}

/* Whoever makes many rosters displaces those of its own network, and nobody else's. */
static void test_rosters(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct relay_visitor v;
    struct run honest, late, made;
    limits.rosters = 16;
    open_host(&limits, NULL);
    run_make(&honest);
    run_make(&late);
    stand(&v, other, &honest, true);
    visitor_leave(&v);
    for (int i = 0; i < 20; i++) {
        run_make(&made);
        stand(&v, crowd, &made, true);
        visitor_leave(&v);
        run_free(&made);
    }
    stand(&v, other, &honest, false); /* is known still */
    visitor_leave(&v);
    stand(&v, third, &late, true); /* and there is room */
    visitor_leave(&v);
    run_free(&honest);
    run_free(&late);
}

/* A network has an eighth of the places; runs whose members are connected stay, so it gets no more. */
static void test_rosters_in_use(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct relay_visitor stays[2], v;
    struct run held[2], made;
    limits.rosters = 16;
    open_host(&limits, NULL);
    for (int i = 0; i < 2; i++) {
        run_make(&held[i]);
        stand(&stays[i], crowd, &held[i], true);
    }
    run_make(&made);
    ask(&v, crowd, &made, NEB_RELAY_STAND);
    visitor_show(&v, made.bytes.data, made.bytes.len);
    assert_int_equal(visitor_refused(&v), NEB_RELAY_REFUSE_RUN);
    visitor_leave(&v);
    stand(&v, other, &made, true);
    visitor_leave(&v);
    for (int i = 0; i < 2; i++) {
        visitor_leave(&stays[i]);
        run_free(&held[i]);
    }
    run_free(&made);
}

/* A minute's worth of rosters from one network, then it is told to wait; another network is not. */
static void test_rosters_rate(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct relay_visitor v;
    struct run made;
    struct neb_relay_message m;
    int wanted = 0, refused = 0;
    open_host(&limits, NULL);
    run_make(&made);
    for (int i = 0; i < 200 && !refused; i++) {
        ask(&v, crowd, &made, NEB_RELAY_STAND);
        assert_ok(visitor_hear(&v, &m));
        wanted += m.type == NEB_RELAY_WANT;
        refused += m.type == NEB_RELAY_REFUSE;
        visitor_leave(&v);
    }
    assert_int_equal(refused, 1);
    assert_true(wanted >= 60);
    stand(&v, other, &made, true);
    visitor_leave(&v);
    run_free(&made);
}

/* Thousands of signatures are not checked on the thread that passes bytes on. */
static void test_long_chain(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct neb_relay_counts before, after;
    struct neb_hash head = {{7}};
    struct relay_visitor v;
    struct run r;
    struct neb_chain *again;
    struct neb_buf epoch;
    open_host(&limits, NULL);
    run_make(&r);
    neb__buf_init(&epoch, 1 << 20);
    for (int i = 1; r.bytes.len < 200 << 10; i++) { /* each epoch changes the member's address */
        char place[64];
        struct neb_member m = r.chain->now.members[0];
        struct neb_roster next = {&m, 1};
        snprintf(place, sizeof place, "127.0.0.1:%d", 1000 + i);
        assert_ok(neb__relay_address_format(place, &host_public, m.address[0]));
        neb__buf_clear(&epoch);
        assert_ok(neb__chain_propose(r.chain, NEB_EPOCH_CHANGE, (uint64_t)i, &head, &next,
                                     (const struct neb_key *const *)&r.key, 1, &epoch));
        assert_ok(neb__chain_extend(r.chain, epoch.data, epoch.len));
        assert_ok(neb__buf_append(&r.bytes, epoch.data, epoch.len));
    }
    double cpu = neb__thread_cpu();
    assert_ok(neb__chain_decode(r.bytes.data, r.bytes.len, &again));
    cpu = neb__thread_cpu() - cpu;
    neb__relay_host_counts(host, &before);
    stand(&v, other, &r, true);
    do { /* the host counts twice a second */
        poll(NULL, 0, 20);
        neb__relay_host_counts(host, &after);
    } while (!after.standing);
    if (after.cpu - before.cpu > 0.6 * cpu)
        fail_msg("a chain that takes %.3f s took %.3f s of the loop's time", cpu, after.cpu - before.cpu);
    visitor_leave(&v);
    neb__chain_free(again);
    neb__buf_free(&epoch);
    run_free(&r);
}

/* A guest that leaves while its chain is being checked, or sends on, harms nothing. */
static void test_leaves(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct relay_visitor v;
    struct run r;
    open_host(&limits, NULL);
    run_make(&r);
    for (int i = 0; i < 20; i++) {
        ask(&v, crowd, &r, NEB_RELAY_STAND);
        visitor_show(&v, r.bytes.data, r.bytes.len / 2); /* not a roster */
        if (i % 2) {
            uint8_t more[] = {1, 2, 3};
            neb__relay_send(v.tls, NEB_RELAY_SHOW, more, sizeof more);
            visitor_flush(&v);
        }
        visitor_leave(&v);
    }
    stand(&v, other, &r, true);
    visitor_leave(&v);
    run_free(&r);
}

/* One answer a second, however many pings. */
static void test_pings(void **state)
{
    (void)state;
    enum { PINGS = 20000 };
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct neb_relay_message m;
    struct relay_visitor v;
    struct run r;
    int answers = 0;
    open_host(&limits, NULL);
    run_make(&r);
    stand(&v, crowd, &r, true);
    int64_t began = neb__now_ns();
    for (int i = 0; i < PINGS; i++) {
        assert_ok(neb__relay_send(v.tls, NEB_RELAY_PING, NULL, 0));
        if (i % 100 == 99) visitor_flush(&v);
    }
    assert_ok(neb__relay_send(v.tls, NEB_RELAY_WANT, NULL, 0)); /* a guest must not: the host closes */
    visitor_flush(&v);
    while (visitor_hear(&v, &m) == NEB_OK) answers += m.type == NEB_RELAY_PONG;
    assert_in_range(answers, 1, 2 + (neb__now_ns() - began) / 1000000000);
    visitor_leave(&v);
    run_free(&r);
}

struct pair_half {
    const char *from;
    uint8_t id[NEB_MEETING_ID_SIZE];
    neb_status status;
};

static void *meet(void *arg)
{
    struct pair_half *h = arg;
    struct neb_meeting_place at = {.host = "127.0.0.1",
                                   .port = neb__relay_host_port(host),
                                   .fd = visitor_dial(neb__relay_host_port(host), h->from)};
    struct neb_meeting *m = NULL;
    h->status = neb__meeting_open(&at, h->id, 30, &m);
    neb__meeting_close(m);
    return NULL;
}

/* One network waits in every place where strangers meet: two others meet all the same. */
static void test_meetings(void **state)
{
    (void)state;
    enum { PLACES = 6 };
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct neb_relay_counts c;
    struct relay_visitor waits[PLACES];
    struct pair_half a = {.from = other, .id = {200}}, b = {.from = third, .id = {200}};
    struct run r;
    pthread_t thread;
    limits.meetings = PLACES;
    limits.meetings_per_minute = 1000;
    open_host(&limits, NULL);
    run_make(&r);
    for (int i = 0; i < PLACES; i++) {
        struct neb_relay_ask m = {
            NEB_RELAY_VERSION_MIN, NEB_RELAY_VERSION, NEB_RELAY_MEET, {{(uint8_t)(i + 1)}}, 0, 0, 0};
        visitor_ask(&waits[i], visitor_dial(neb__relay_host_port(host), crowd), r.key, &m);
    }
    do {
        poll(NULL, 0, 20);
        neb__relay_host_counts(host, &c);
    } while (c.meetings < PLACES);
    assert_int_equal(pthread_create(&thread, NULL, meet, &a), 0);
    meet(&b);
    pthread_join(thread, NULL);
    assert_ok(a.status);
    assert_ok(b.status);
    for (int i = 0; i < PLACES; i++) visitor_leave(&waits[i]);
    run_free(&r);
}

/* A bucket of calls gives its burst at once, then its rate. */
static void test_calls(void **state)
{
    (void)state;
    struct neb_relay_bucket b = {0};
    int64_t second = 1000000000, now = 5 * second;
    for (int i = 0; i < 8; i++) assert_true(neb__relay_within_burst(&b, 8, 2, now));
    assert_false(neb__relay_within_burst(&b, 8, 2, now));
    now += second;
    assert_true(neb__relay_within_burst(&b, 8, 2, now) && neb__relay_within_burst(&b, 8, 2, now));
    assert_false(neb__relay_within_burst(&b, 8, 2, now));
    now += 1000 * second; /* no more than a full bucket */
    for (int i = 0; i < 8; i++) assert_true(neb__relay_within_burst(&b, 8, 2, now));
    assert_false(neb__relay_within_burst(&b, 8, 2, now));
}

/* A run that a guest showed takes all connections: a run of the operator's gets one of them. */
static void test_connections(void **state)
{
    (void)state;
    enum { MORE = 130 };
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct rlimit files, few;
    struct relay_visitor standing, callers[MORE], v;
    struct neb_relay_message m;
    struct run own, made;
    char path[] = "/tmp/relay-crowd-XXXXXX";
    const char *const given[] = {path};
    int fd = mkstemp(path), n = 0;
    run_make(&own);
    run_make(&made);
    close(fd);
    assert_ok(neb__chain_write(own.chain, path, 0600));
    getrlimit(RLIMIT_NOFILE, &files);
    few = files;
    few.rlim_cur = 400; /* room for 112 */
    setrlimit(RLIMIT_NOFILE, &few);
    limits.member_connections = 1000;
    open_host(&limits, given);
    setrlimit(RLIMIT_NOFILE, &files);
    stand(&standing, crowd, &made, true);
    for (; n < MORE; n++) { /* until the one that stands is dropped, at the latest */
        ask(&callers[n], crowd, &made, NEB_RELAY_CALL); /* nobody answers it */
        if (visitor_hear(&standing, &m) != NEB_OK) break;
    }
    for (int i = 0; i < 5; i++) {
        stand(&v, other, &own, false);
        visitor_leave(&v);
    }
    for (int i = 0; i < n + (n < MORE); i++) visitor_leave(&callers[i]);
    visitor_leave(&standing);
    unlink(path);
    run_free(&own);
    run_free(&made);
}

static int set_up(void **state)
{
    (void)state;
    assert_ok(neb__key_create(&host_key));
    neb__key_public(host_key, &host_public);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    neb__key_free(host_key);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_rosters, close_host),
        cmocka_unit_test_teardown(test_rosters_in_use, close_host),
        cmocka_unit_test_teardown(test_rosters_rate, close_host),
        cmocka_unit_test_teardown(test_long_chain, close_host),
        cmocka_unit_test_teardown(test_leaves, close_host),
        cmocka_unit_test_teardown(test_pings, close_host),
        cmocka_unit_test_teardown(test_meetings, close_host),
        cmocka_unit_test_teardown(test_connections, close_host),
        cmocka_unit_test(test_calls),
    };
    neb_log_set_level(NEB_LOG_ERROR);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
