/* test_pair_guesses.c: somebody who knows the number of a code guesses its words, at a relay host. A creator makes codes all
 * the time; each attempt of the guesser that gets through is one guess, voids the code, and is wrong. The relay host limits
 * the attempts from one network and says so once. NEB_GUESSES is the number of attempts (200; the documented figures are
 * of 10,000). */
#include "check.h"
#include "base/clock.h"
#include "net/relay/meeting.h"
#include "net/relay/relay_host.h"
#include "seal/pairing.h"

#include <nebula/log.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static struct neb_relay_host *host;
static uint16_t port;
static atomic_uint number; /* of the creator's present code */
static atomic_int guesses, taken, refused, spoilt, lines;
static atomic_bool over;

static void count_lines(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)line;
    lines += level >= NEB_LOG_WARN;
}

static neb_status prove(struct neb_meeting *m, bool creator, const struct neb_pair_code *code)
{
    struct neb_pairing p;
    uint8_t hello[NEB_PAIRING_HELLO], proof[NEB_PAIRING_PROOF], in[NEB_MEETING_MESSAGE_MAX];
    struct neb_public relay;
    size_t n;
    neb__meeting_key(m, &relay);
    NEB_TRY(neb__pairing_begin(&p, creator, code, &relay, hello));
    NEB_TRY(neb__meeting_send(m, hello, sizeof hello));
    NEB_TRY(neb__meeting_receive(m, 60, in, &n));
    NEB_TRY(neb__pairing_hello(&p, in, n, proof));
    NEB_TRY(neb__meeting_send(m, proof, sizeof proof));
    NEB_TRY(neb__meeting_receive(m, 60, in, &n));
    return neb__pairing_proof(&p, in, n);
}

static neb_status meet(const struct neb_pair_code *code, double seconds, struct neb_meeting **out)
{
    struct neb_meeting_place at = {.host = "127.0.0.1", .port = port, .fd = -1};
    uint8_t id[32];
    NEB_TRY(neb__pair_code_place(code, id));
    return neb__meeting_open(&at, id, seconds, out);
}

static void rest(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static void *create(void *arg)
{
    struct neb_pair_code code;
    struct neb_meeting *m;
    (void)arg;
    while (!over) {
        if (neb__pair_code_make(&code) != NEB_OK) return NULL;
        number = code.number;
        neb_status status = meet(&code, 1, &m);
        if (status != NEB_OK) {
            rest(20);
            continue;
        }
        status = prove(m, true, &code);
        guesses += status == NEB_ERR_AUTH;
        taken += status == NEB_OK;
        spoilt += status != NEB_ERR_AUTH && status != NEB_OK;
        neb__meeting_close(m);
    }
    return NULL;
}

static void guess(void)
{
    struct neb_pair_code code;
    struct neb_meeting *m;
    if (neb__pair_code_make(&code) != NEB_OK) return;
    code.number = number;
    neb_status status = meet(&code, 0.5, &m);
    refused += status == NEB_ERR_AGAIN || status == NEB_ERR_EXISTS;
    if (status != NEB_OK) return;
    taken += prove(m, false, &code) == NEB_OK;
    neb__meeting_close(m);
}

/* Returns the seconds that it took. */
static double attack(int attempts, double per_minute)
{
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct neb_key *key;
    pthread_t creator;
    limits.meetings_per_minute = per_minute;
    assert_ok(neb__key_create(&key));
    struct neb_relay_host_config config = {.key = key, .listen = "127.0.0.1:0", .limits = limits};
    guesses = taken = refused = spoilt = lines = 0;
    number = 0;
    over = false;
    neb_log_set_sink(count_lines, NULL);
    assert_ok(neb__relay_host_open(&config, &host));
    port = neb__relay_host_port(host);
    assert_ok(neb__relay_host_start(host));
    assert_int_equal(pthread_create(&creator, NULL, create, NULL), 0);
    while (!number) rest(1);
    int64_t since = neb__now_ns();
    for (int i = 0; i < attempts; i++) guess();
    double seconds = neb__seconds_since(since);
    over = true;
    pthread_join(creator, NULL);
    neb__relay_host_close(host);
    neb__key_free(key);
    neb_log_set_sink(NULL, NULL);
    printf("%d attempts in %.1f s at %.0f a minute: %d refused, %d guesses, all wrong but %d; %d lines in "
           "the log\n",
           attempts, seconds, per_minute, refused, guesses, taken, lines);
    return seconds;
}

static int how_many(void)
{
    const char *n = getenv("NEB_GUESSES");
    return n ? atoi(n) : 200;
}

/* The relay host as it comes: 12 attempts a minute from one network. */
static void test_limited(void **state)
{
    (void)state;
    int n = how_many();
    double seconds = attack(n, 12);
    assert_int_equal(taken, 0);
    assert_true(guesses <= 12 + seconds / 60 * 12);
    assert_true(refused >= n - 24 - (int)(seconds / 60 * 12));
    assert_in_range(lines, 1, 1);
}

/* Without that limit every attempt may be a guess, but one each. */
static void test_unlimited(void **state)
{
    (void)state;
    int n = how_many();
    attack(n, 1e9);
    assert_int_equal(taken, 0);
    assert_in_range(guesses, 1, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limited), cmocka_unit_test(test_unlimited)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
