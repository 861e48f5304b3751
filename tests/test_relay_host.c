/* test_relay_host.c: a relay host and its guests, without sites: strangers that meet, members that are joined, guests that
 * lie, quotas. */
#include "check.h"
#include "net/relay/meeting.h"
#include "net/relay/relay_host.h"
#include "net/relay/relay_host_internal.h"
#include "relay_visitor.h"
#include "base/clock.h"
#include "base/mem.h"

#include <nebula/log.h>

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct neb_relay_host *host;
static struct neb_key *host_key;
static struct neb_public host_public;
static char folder[256];
static struct neb_chain *chain;
static struct neb_key *member_key[3];

static void open_host(const struct neb_relay_limits *limits, bool with_file)
{
    static char file[300];
    static const char *files[] = {file};
    snprintf(file, sizeof file, "%s/../relay-test-%d.roster", folder, (int)getpid());
    if (with_file) assert_ok(neb__chain_write(chain, file, 0600));
    struct neb_relay_host_config config = {.key = host_key,
                                           .listen = "127.0.0.1:0",
                                           .folder = folder,
                                           .files = files,
                                           .files_n = with_file,
                                           .limits = *limits};
    assert_ok(neb__relay_host_open(&config, &host));
    if (with_file) unlink(file);
    assert_ok(neb__relay_host_start(host));
}

static int close_host(void **state)
{
    (void)state;
    neb__relay_host_close(host);
    host = NULL;
    return 0;
}

static int open_default(void **state)
{
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    (void)state;
    limits.meetings_per_minute = 1000;
    open_host(&limits, true);
    return 0;
}

/* Three members; the first two can be called at the host. */
static int set_up(void **state)
{
    struct neb_member members[3] = {{0}};
    struct neb_roster roster = {members, 3};
    struct neb_public operator_key;
    (void)state;
    check_make_dir(folder, sizeof folder);
    assert_ok(neb__key_create(&host_key));
    neb__key_public(host_key, &host_public);
    for (int i = 0; i < 3; i++) {
        assert_ok(neb__key_create(&member_key[i]));
        neb__key_public(member_key[i], &members[i].key);
        snprintf(members[i].name, sizeof members[i].name, "s%d", i);
        members[i].votes = 1;
        members[i].addresses = 1;
        assert_ok(neb__relay_address_format("127.0.0.1:7500", &host_public, members[i].address[0]));
    }
    operator_key = members[0].key;
    assert_ok(neb__chain_create(&operator_key, NULL, 0, &roster, &chain));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    neb__chain_free(chain);
    for (int i = 0; i < 3; i++) neb__key_free(member_key[i]);
    neb__key_free(host_key);
    check_remove_dir(folder);
    return 0;
}

/* ---- meetings ------------------------------------------------------------------------------------------ */

struct visitor {
    pthread_t thread;
    uint8_t id[NEB_MEETING_ID_SIZE];
    const struct neb_public *key;
    struct neb_meeting *meeting;
    neb_status status;
};

static void *visit(void *arg)
{
    struct visitor *v = arg;
    struct neb_meeting_place at = {.host = "127.0.0.1", .port = neb__relay_host_port(host), .key = v->key};
    v->status = neb__meeting_open(&at, v->id, 30, &v->meeting);
    return NULL;
}

static void both(struct visitor *a, struct visitor *b)
{
    assert_int_equal(pthread_create(&a->thread, NULL, visit, a), 0);
    visit(b);
    pthread_join(a->thread, NULL);
}

static void test_meet(void **state)
{
    (void)state;
    struct visitor a = {.id = {1}, .key = &host_public}, b = {.id = {1}};
    uint8_t got[NEB_MEETING_MESSAGE_MAX];
    static uint8_t longest[NEB_MEETING_MESSAGE_MAX];
    struct neb_public seen;
    size_t n;
    both(&a, &b);
    assert_ok(a.status);
    assert_ok(b.status);
    assert_true(neb__meeting_is_first(a.meeting) != neb__meeting_is_first(b.meeting));
    neb__meeting_key(b.meeting, &seen);
    assert_true(neb__public_equal(&seen, &host_public));
    memset(longest, 0x5a, sizeof longest);
    for (int i = 0; i < NEB_MEETING_MESSAGES; i++) {
        longest[0] = (uint8_t)i;
        assert_ok(neb__meeting_send(a.meeting, longest, sizeof longest));
    }
    assert_status(neb__meeting_send(a.meeting, longest, 1), NEB_ERR_LIMIT);
    assert_ok(neb__meeting_send(b.meeting, "yes", 3));
    for (int i = 0; i < NEB_MEETING_MESSAGES; i++) {
        assert_ok(neb__meeting_receive(b.meeting, 30, got, &n));
        longest[0] = (uint8_t)i;
        assert_int_equal(n, sizeof longest);
        assert_memory_equal(got, longest, n);
    }
    assert_ok(neb__meeting_receive(a.meeting, 30, got, &n));
    assert_int_equal(n, 3);
    neb__meeting_close(a.meeting);
    assert_status(neb__meeting_receive(b.meeting, 30, got, &n), NEB_ERR_PEER);
    neb__meeting_close(b.meeting);
    /* The id is worth nothing any more; another id still is. */
    struct visitor third = {.id = {1}}, c = {.id = {2}}, d = {.id = {2}};
    visit(&third);
    assert_status(third.status, NEB_ERR_EXISTS);
    both(&c, &d);
    assert_ok(c.status);
    assert_ok(d.status);
    neb__meeting_close(c.meeting);
    neb__meeting_close(d.meeting);
}

static void test_meet_alone(void **state)
{
    (void)state;
    struct neb_meeting_place at = {.host = "127.0.0.1", .port = neb__relay_host_port(host)};
    struct neb_public wrong = {{1, 2, 3}};
    uint8_t id[NEB_MEETING_ID_SIZE] = {9};
    struct neb_meeting *m;
    assert_status(neb__meeting_open(&at, id, 0.2, &m), NEB_ERR_TIMEOUT);
    at.key = &wrong;
    assert_status(neb__meeting_open(&at, id, 5, &m), NEB_ERR_AUTH);
    assert_non_null(strstr(neb_last_error(), "its key is not the one"));
}

static int open_strict(void **state)
{
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    (void)state;
    limits.meetings_per_minute = 5;
    limits.rosters = 0;
    open_host(&limits, false);
    return 0;
}

/* Many attempts from one network: a few are let in, the others hear why, and the log has one line. */
static char journal[1 << 16];

static void note(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    size_t n = strlen(journal);
    if (n + strlen(line) + 2 < sizeof journal) sprintf(journal + n, "%s\n", line);
}

static int count(const char *what)
{
    int n = 0;
    for (const char *p = journal; (p = strstr(p, what)); p++) n++;
    return n;
}

static void test_too_many(void **state)
{
    (void)state;
    struct neb_meeting_place at = {.host = "127.0.0.1", .port = neb__relay_host_port(host)};
    int let_in = 0, sent_away = 0;
    struct neb_meeting *m;
    journal[0] = 0;
    neb_log_set_sink(note, NULL);
    for (int i = 0; i < 40; i++) {
        uint8_t id[NEB_MEETING_ID_SIZE] = {(uint8_t)i, 7};
        neb_status status = neb__meeting_open(&at, id, 0.3, &m);
        let_in += status == NEB_ERR_TIMEOUT;
        sent_away += status == NEB_ERR_AGAIN;
    }
    neb_log_set_sink(NULL, NULL);
    assert_in_range(let_in, 1, 8); /* the bucket refills while the test runs */
    assert_int_equal(let_in + sent_away, 40);
    assert_int_equal(count("too many attempts to meet"), 1);
}

/* ---- members ------------------------------------------------------------------------------------------- */

static int dial_host(void)
{
    return visitor_dial(neb__relay_host_port(host), NULL);
}

static struct neb_relay_ask asks(enum neb_relay_what what)
{
    return (struct neb_relay_ask){
        NEB_RELAY_VERSION_MIN, NEB_RELAY_VERSION, (uint8_t)what, chain->genesis_hash, 0, 0, 0};
}

static void stand(struct relay_visitor *g, int member)
{
    struct neb_relay_ask ask = asks(NEB_RELAY_STAND);
    struct neb_relay_message m;
    visitor_ask(g, dial_host(), member_key[member], &ask);
    visitor_expect(g, NEB_RELAY_HERE, &m);
}

/* Member 0 calls member 1, which stands. Bytes of both ways arrive, in any amount, and nothing of the host's is among them. */
static void join(struct relay_visitor *standing, struct relay_visitor *caller, struct relay_visitor *answerer)
{
    struct neb_relay_ask ask = asks(NEB_RELAY_CALL);
    struct neb_relay_message m;
    struct neb_relay_ring ring;
    ask.peer = 2;
    visitor_ask(caller, dial_host(), member_key[0], &ask);
    visitor_expect(standing, NEB_RELAY_RING, &m);
    assert_ok(neb__relay_ring_get(m.body, m.size, &ring));
    assert_int_equal(ring.caller, 1);
    ask = asks(NEB_RELAY_ANSWER);
    ask.ticket = ring.ticket;
    visitor_ask(answerer, dial_host(), member_key[1], &ask);
    visitor_expect(caller, NEB_RELAY_JOINED, &m);
    visitor_expect(answerer, NEB_RELAY_JOINED, &m);
}

enum { BULK = 24 << 20 };

static void *send_bulk(void *arg)
{
    static uint8_t piece[1 << 16];
    int fd = *(int *)arg;
    for (size_t at = 0; at < BULK; at += sizeof piece) {
        for (size_t i = 0; i < sizeof piece; i++) piece[i] = (uint8_t)((at + i) * 2654435761u >> 24);
        for (size_t done = 0; done < sizeof piece;) {
            ssize_t n = send(fd, piece + done, sizeof piece - done, MSG_NOSIGNAL);
            if (n <= 0) return (void *)1;
            done += (size_t)n;
        }
    }
    shutdown(fd, SHUT_WR);
    return NULL;
}

static void test_join(void **state)
{
    (void)state;
    struct relay_visitor standing, caller, answerer;
    static uint8_t got[1 << 16];
    pthread_t sender;
    void *failed;
    size_t at = 0;
    stand(&standing, 1);
    join(&standing, &caller, &answerer);
    assert_int_equal(send(answerer.fd, "back", 4, 0), 4);
    assert_int_equal(recv(caller.fd, got, 4, MSG_WAITALL), 4);
    assert_memory_equal(got, "back", 4);
    assert_int_equal(pthread_create(&sender, NULL, send_bulk, &caller.fd), 0);
    for (;;) {
        ssize_t n = recv(answerer.fd, got, sizeof got, 0);
        if (n <= 0) break;
        for (ssize_t i = 0; i < n; i++, at++)
            if (got[i] != (uint8_t)(at * 2654435761u >> 24)) fail_msg("byte %zu is wrong", at);
    }
    pthread_join(sender, &failed);
    assert_null(failed);
    assert_int_equal(at, BULK);
    visitor_leave(&caller);
    visitor_leave(&answerer);
    visitor_leave(&standing);
}

/* A pair whose receiver reads nothing holds neither the host nor another pair. */
static void test_stalled_pair(void **state)
{
    (void)state;
    struct relay_visitor standing, a[2], b[2];
    static uint8_t piece[1 << 16];
    struct timeval brief = {0, 300000};
    size_t stuffed = 0;
    stand(&standing, 1);
    for (int i = 0; i < 2; i++) join(&standing, &a[i], &b[i]);
    setsockopt(a[0].fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief);
    for (ssize_t n; (n = send(a[0].fd, piece, sizeof piece, MSG_NOSIGNAL)) > 0;) stuffed += (size_t)n;
    assert_in_range(stuffed, 1, 64u << 20);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(send(a[1].fd, piece, 1000, 0), 1000);
        assert_int_equal(recv(b[1].fd, piece, 1000, MSG_WAITALL), 1000);
    }
    for (int i = 0; i < 2; i++) visitor_leave(&a[i]), visitor_leave(&b[i]);
    visitor_leave(&standing);
}

static void test_not_members(void **state)
{
    (void)state;
    struct neb_relay_ask ask = asks(NEB_RELAY_STAND);
    struct neb_key *stranger;
    struct relay_visitor g;
    assert_ok(neb__key_create(&stranger));
    visitor_ask(&g, dial_host(), stranger, &ask);
    assert_int_equal(visitor_refused(&g), NEB_RELAY_REFUSE_KEY);
    visitor_leave(&g);
    ask = asks(NEB_RELAY_CALL);
    ask.peer = 3;
    visitor_ask(&g, dial_host(), member_key[0], &ask);
    assert_int_equal(visitor_refused(&g), NEB_RELAY_REFUSE_ABSENT);
    visitor_leave(&g);
    ask = asks(NEB_RELAY_ANSWER);
    ask.ticket = 12345;
    visitor_ask(&g, dial_host(), member_key[0], &ask);
    assert_int_equal(visitor_refused(&g), NEB_RELAY_REFUSE_TICKET);
    visitor_leave(&g);
    ask.version_min = ask.version_max = 99;
    visitor_ask(&g, dial_host(), member_key[0], &ask);
    assert_int_equal(visitor_refused(&g), NEB_RELAY_REFUSE_VERSION);
    visitor_leave(&g);
    neb__key_free(stranger);
}

/* A ticket is for the member that was rung: another one cannot take the call. */
static void test_stolen_ticket(void **state)
{
    (void)state;
    struct relay_visitor standing, caller, thief;
    struct neb_relay_ask ask = asks(NEB_RELAY_CALL);
    struct neb_relay_message m;
    struct neb_relay_ring ring;
    stand(&standing, 1);
    ask.peer = 2;
    visitor_ask(&caller, dial_host(), member_key[0], &ask);
    visitor_expect(&standing, NEB_RELAY_RING, &m);
    assert_ok(neb__relay_ring_get(m.body, m.size, &ring));
    ask = asks(NEB_RELAY_ANSWER);
    ask.ticket = ring.ticket;
    visitor_ask(&thief, dial_host(), member_key[2], &ask);
    assert_int_equal(visitor_refused(&thief), NEB_RELAY_REFUSE_TICKET);
    visitor_leave(&thief);
    visitor_leave(&caller);
    visitor_leave(&standing);
}

static void test_shown(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct neb_relay_ask ask = asks(NEB_RELAY_STAND);
    struct neb_relay_message m;
    struct neb_buf bytes;
    struct relay_visitor g;
    struct neb_key *stranger;
    open_host(&limits, false);
    neb__buf_init(&bytes, 1 << 20);
    assert_ok(neb__chain_encode(chain, &bytes));
    assert_ok(neb__key_create(&stranger));
    visitor_ask(&g, dial_host(), stranger, &ask); /* not a member of what it shows */
    visitor_show(&g, bytes.data, bytes.len);
    assert_int_equal(visitor_refused(&g), NEB_RELAY_REFUSE_RUN);
    visitor_leave(&g);
    bytes.data[bytes.len / 2] ^= 1;
    visitor_ask(&g, dial_host(), member_key[0], &ask);
    visitor_show(&g, bytes.data, bytes.len);
    assert_int_equal(visitor_refused(&g), NEB_RELAY_REFUSE_RUN);
    visitor_leave(&g);
    bytes.data[bytes.len / 2] ^= 1;
    visitor_ask(&g, dial_host(), member_key[0], &ask);
    visitor_show(&g, bytes.data, bytes.len);
    visitor_expect(&g, NEB_RELAY_HERE, &m);
    visitor_leave(&g);
    close_host(NULL);
    open_host(&limits, false); /* it has kept what it was shown */
    stand(&g, 0);
    visitor_leave(&g);
    close_host(NULL);
    neb__buf_free(&bytes);
    neb__key_free(stranger);
}

/* Only the operator's files count, and there is none. */
static void test_not_taken(void **state)
{
    (void)state;
    struct neb_relay_ask ask = asks(NEB_RELAY_STAND);
    struct neb_buf bytes;
    struct relay_visitor g;
    char path[600];
    snprintf(path, sizeof path, "%s/", folder);
    neb__buf_init(&bytes, 1 << 20);
    assert_ok(neb__chain_encode(chain, &bytes));
    visitor_ask(&g, dial_host(), member_key[0], &ask);
    visitor_show(&g, bytes.data, bytes.len);
    assert_int_equal(visitor_refused(&g), NEB_RELAY_REFUSE_RUN);
    visitor_leave(&g);
    neb__buf_free(&bytes);
}

static int open_small(void **state)
{
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    (void)state;
    limits.member_connections = 3;
    limits.member_rate = 40e6;
    open_host(&limits, true);
    return 0;
}

static void test_quotas(void **state)
{
    (void)state;
    struct neb_relay_ask ask = asks(NEB_RELAY_CALL);
    struct relay_visitor standing, a, b, more, refused;
    static uint8_t piece[1 << 16];
    struct timespec begin, end;
    stand(&standing, 1);
    join(&standing, &a, &b);
    size_t got = 0;
    pthread_t sender;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    assert_int_equal(pthread_create(&sender, NULL, send_bulk, &a.fd), 0);
    for (ssize_t n; got < 6u << 20 && (n = recv(b.fd, piece, sizeof piece, 0)) > 0;) got += (size_t)n;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double s = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    assert_true(got >= 6u << 20);
    if (s < 0.9) fail_msg("6 MiB passed in %.2f s: the limit is 5 MB/s after a burst of 1.25 MB", s);
    visitor_leave(&b);
    pthread_join(sender, NULL);
    visitor_leave(&a);
    /* member 1 stands (1 connection) and may have two more */
    stand(&a, 1); /* its newer standing connection replaces the older */
    visitor_leave(&standing);
    ask.peer = 2;
    join(&a, &more, &b);
    struct relay_visitor more2, b2;
    join(&a, &more2, &b2);
    ask = asks(NEB_RELAY_ANSWER);
    visitor_ask(&refused, dial_host(), member_key[1], &ask);
    assert_int_equal(visitor_refused(&refused), NEB_RELAY_REFUSE_QUOTA);
    visitor_leave(&refused);
    visitor_leave(&more), visitor_leave(&more2), visitor_leave(&b), visitor_leave(&b2), visitor_leave(&a);
}

/* Member `from` calls member 1, which stands, and hangs up at once. True: member 1 was rung. False: refused; *why. */
static bool ring_and_leave(struct relay_visitor *standing, int from, struct neb_relay_refusal *why)
{
    struct neb_relay_ask ask = asks(NEB_RELAY_CALL);
    struct timeval at_once = {0, 1000};
    struct relay_visitor caller;
    struct neb_relay_message m = {0};
    bool rung = false;
    ask.peer = 2;
    visitor_ask(&caller, dial_host(), member_key[from], &ask);
    setsockopt(caller.fd, SOL_SOCKET, SO_RCVTIMEO, &at_once, sizeof at_once);
    while (!rung && m.type != NEB_RELAY_REFUSE) {
        struct pollfd fds[2] = {{standing->fd, POLLIN, 0}, {caller.fd, POLLIN, 0}};
        assert_true(poll(fds, 2, 30000) > 0);
        if (fds[0].revents) {
            assert_ok(visitor_hear(standing, &m));
            rung = m.type == NEB_RELAY_RING; /* else the host pings */
        } else {
            neb_status status = visitor_hear(&caller, &m); /* a record of TLS alone is no message */
            assert_true(status == NEB_OK || status == NEB_ERR_AGAIN);
        }
    }
    if (!rung) assert_ok(neb__relay_refusal_get(m.body, m.size, why));
    visitor_leave(&caller);
    return rung;
}

/* Calls without a pause until `text` was said ten times. `burst` calls may go through at once, and as many in each 8 s. */
static void call_without_end(struct relay_visitor *standing, const int *from, int burst, const char *text)
{
    int64_t begin = neb__now_ns();
    int rung = 0, refused = 0;
    for (int i = 0; refused < 10; i++) {
        struct neb_relay_refusal why;
        if (ring_and_leave(standing, from[i % 2], &why)) {
            double s = neb__seconds_since(begin);
            if (++rung > burst + 1 + (int)(s * burst / 8)) fail_msg("%d calls in %.1f s", rung, s);
            continue;
        }
        assert_int_equal(why.code,
                         NEB_RELAY_REFUSE_QUOTA); /* another one counts connections that are closing */
        refused += strstr(why.text, text) != NULL;
    }
    assert_true(rung >= burst);
}

static void limit_calls(int member_connections, int run_connections, const int *from, const char *text)
{
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct neb_relay_refusal why;
    struct relay_visitor standing;
    bool of_member = member_connections < run_connections;
    limits.member_connections = member_connections;
    limits.run_connections = run_connections;
    journal[0] = 0;
    neb_log_set_sink(note, NULL);
    open_host(&limits, true);
    stand(&standing, 1);
    call_without_end(&standing, from, of_member ? member_connections : run_connections, text);
    assert_int_equal(count("calls more than 2 times a second"), 1);
    if (of_member) assert_true(ring_and_leave(&standing, 2, &why)); /* another member has its own bucket */
    neb_log_set_sink(NULL, NULL);
    visitor_leave(&standing);
}

enum { PAIRS = 8 };

/* Member 0 calls member 1 until one call more waits than the run may have pairs. The bucket of calls gives that many at once, and one more
 * in a second. */
static void let_wait(struct relay_visitor *standing, struct relay_visitor *caller, uint64_t *ticket)
{
    for (int i = 0; i <= PAIRS; i++) {
        struct neb_relay_ask ask = asks(NEB_RELAY_CALL);
        struct neb_relay_message m;
        struct neb_relay_ring ring;
        ask.peer = 2;
        if (i == PAIRS) sleep(2);
        visitor_ask(&caller[i], dial_host(), member_key[0], &ask);
        visitor_expect(standing, NEB_RELAY_RING, &m);
        assert_ok(neb__relay_ring_get(m.body, m.size, &ring));
        ticket[i] = ring.ticket;
    }
}

/* Member 1 answers all. False: some callers have waited for too long on a slow machine. */
static bool answer_all(struct relay_visitor *answerer, const uint64_t *ticket, int *joined, int *refused)
{
    bool in_time = true;
    for (int i = *joined = *refused = 0; i <= PAIRS; i++) {
        struct neb_relay_ask ask = asks(NEB_RELAY_ANSWER);
        struct neb_relay_message m;
        struct neb_relay_refusal why;
        ask.ticket = ticket[i];
        visitor_ask(&answerer[i], dial_host(), member_key[1], &ask);
        assert_ok(visitor_hear(&answerer[i], &m));
        *joined += m.type == NEB_RELAY_JOINED;
        if (m.type != NEB_RELAY_REFUSE) continue;
        assert_ok(neb__relay_refusal_get(m.body, m.size, &why));
        *refused += why.code == NEB_RELAY_REFUSE_QUOTA;
        in_time = in_time && why.code != NEB_RELAY_REFUSE_TICKET;
    }
    return in_time;
}

/* Calls that wait together are joined one by one: no more pairs than the run may have. */
static void test_pairs_of_run(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    bool in_time = false;
    limits.run_connections = PAIRS;
    while (!in_time) {
        struct relay_visitor standing, caller[PAIRS + 1], answerer[PAIRS + 1];
        uint64_t ticket[PAIRS + 1];
        int joined, refused;
        open_host(&limits, true);
        stand(&standing, 1);
        let_wait(&standing, caller, ticket);
        in_time = answer_all(answerer, ticket, &joined, &refused);
        assert_true(joined <= PAIRS);
        if (in_time) assert_true(joined == PAIRS && refused == 1);
        for (int i = 0; i <= PAIRS; i++) visitor_leave(&caller[i]), visitor_leave(&answerer[i]);
        visitor_leave(&standing);
        if (!in_time) close_host(NULL);
    }
}

/* A member that calls without end wakes the called one no more than its bucket allows; the other members call as before. */
static void test_calls_of_member(void **state)
{
    (void)state;
    limit_calls(16, 512, (const int[]){0, 0}, "this member calls too often");
}

/* Two members together: the run's bucket. */
static void test_calls_of_run(void **state)
{
    (void)state;
    limit_calls(512, 16, (const int[]){0, 2}, "this run calls too often");
}

/* What waits for the clock: some 768 KiB, half a round trip but no less than 10 ms; 3 to 64 ms. */
static void test_clock(void **state)
{
    (void)state;
    assert_float_equal(neb__joint_wait_ms(12.5e6, 100), 50, 1e-9); /* half of the round trip */
    assert_float_equal(neb__joint_wait_ms(12.5e6, 1000), 62.9, 0.1);
    assert_float_equal(neb__joint_wait_ms(1e6, 1000), 64, 1e-9);
    assert_float_equal(neb__joint_wait_ms(12.5e6, 0.2), 10, 1e-9); /* members next to each other */
    assert_float_equal(neb__joint_wait_ms(1e9, 100), 3, 1e-9);
    assert_float_equal(neb__joint_wait_ms(0, 20), 10, 1e-9);
}

/* Silent, half-greeted, and talkative strangers: each is closed, and members notice nothing. */
static void test_strangers(void **state)
{
    (void)state;
    struct relay_visitor standing, a, b;
    int fd[200];
    static uint8_t junk[4096];
    stand(&standing, 1);
    for (int i = 0; i < 200; i++) fd[i] = dial_host();
    for (int i = 0; i < 200; i += 2) send(fd[i], junk, sizeof junk, MSG_NOSIGNAL);
    join(&standing, &a, &b);
    assert_int_equal(send(a.fd, junk, 100, 0), 100);
    assert_int_equal(recv(b.fd, junk, 100, MSG_WAITALL), 100);
    for (int i = 0; i < 200; i++) close(fd[i]);
    visitor_leave(&a), visitor_leave(&b), visitor_leave(&standing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_not_taken, open_strict, close_host),
        cmocka_unit_test_setup_teardown(test_too_many, open_strict, close_host),
        cmocka_unit_test_setup_teardown(test_meet, open_default, close_host),
        cmocka_unit_test_setup_teardown(test_meet_alone, open_default, close_host),
        cmocka_unit_test_setup_teardown(test_join, open_default, close_host),
        cmocka_unit_test_setup_teardown(test_stalled_pair, open_default, close_host),
        cmocka_unit_test_setup_teardown(test_not_members, open_default, close_host),
        cmocka_unit_test_setup_teardown(test_stolen_ticket, open_default, close_host),
        cmocka_unit_test_setup_teardown(test_quotas, open_small, close_host),
        cmocka_unit_test_setup_teardown(test_strangers, open_default, close_host),
        cmocka_unit_test_teardown(test_pairs_of_run, close_host),
        cmocka_unit_test_teardown(test_calls_of_member, close_host),
        cmocka_unit_test_teardown(test_calls_of_run, close_host),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_shown),
    };
    neb_log_set_level(NEB_LOG_WARN);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
