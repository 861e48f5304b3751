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
    if (!creator) NEB_TRY(neb__meeting_send(m, proof, sizeof proof));
    NEB_TRY(neb__meeting_receive(m, 60, in, &n));
    NEB_TRY(neb__pairing_proof(&p, in, n));
    return creator ? neb__meeting_send(m, proof, sizeof proof) : NEB_OK;
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

struct comer {
    const struct neb_pair_code *code;
    struct neb_meeting *m;
    neb_status met, proved;
};

static void *come(void *arg)
{
    struct comer *c = arg;
    c->met = meet(c->code, 60, &c->m);
    return NULL;
}

static void *come_and_prove(void *arg)
{
    struct comer *c = arg;
    come(c);
    if (c->met == NEB_OK) c->proved = prove(c->m, true, c->code);
    return NULL;
}

/* The creator meets somebody who says so many messages, none of them a proof, and goes. */
static void meet_in_vain(const struct neb_pair_code *code, int messages)
{
    struct comer creator = {.code = code};
    struct neb_meeting *guest;
    uint8_t nothing[NEB_PAIRING_HELLO] = {0};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, come, &creator), 0);
    assert_ok(meet(code, 60, &guest));
    pthread_join(t, NULL);
    assert_ok(creator.met);
    for (int i = 0; i < messages; i++) {
        uint8_t in[NEB_MEETING_MESSAGE_MAX];
        size_t n;
        assert_ok(neb__meeting_send(guest, nothing, sizeof nothing));
        assert_ok(neb__meeting_receive(creator.m, 60, in, &n)); /* the host has passed it on */
    }
    neb__meeting_close(guest);
    neb__meeting_close(creator.m);
}

/* Whoever comes with the number of a code and says nothing, or a hello alone, has made no guess: the rightful two still meet under
 * it. Afterwards nobody does. */
static void test_no_guess(void **state)
{
    (void)state;
    struct neb_relay_limits limits = NEB_RELAY_LIMITS;
    struct neb_pair_code code;
    struct neb_key *key;
    struct neb_meeting *m;
    pthread_t t;
    limits.meetings_per_minute = 1e9;
    assert_ok(neb__key_create(&key));
    struct neb_relay_host_config config = {.key = key, .listen = "127.0.0.1:0", .limits = limits};
    assert_ok(neb__relay_host_open(&config, &host));
    port = neb__relay_host_port(host);
    assert_ok(neb__relay_host_start(host));
    assert_ok(neb__pair_code_make(&code));
    meet_in_vain(&code, 0);
    meet_in_vain(&code, 1);
    struct comer creator = {.code = &code, .proved = NEB_ERR_STATE};
    assert_int_equal(pthread_create(&t, NULL, come_and_prove, &creator), 0);
    assert_ok(meet(&code, 60, &m));
    assert_ok(prove(m, false, &code));
    pthread_join(t, NULL);
    assert_ok(creator.proved);
    neb__meeting_close(m);
    neb__meeting_close(creator.m);
    assert_int_equal(meet(&code, 60, &m), NEB_ERR_EXISTS);
    assert_ok(neb__pair_code_make(&code)); /* two messages may be a hello and a guess */
    meet_in_vain(&code, 2);
    assert_int_equal(meet(&code, 60, &m), NEB_ERR_EXISTS);
    neb__relay_host_close(host);
    neb__key_free(key);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limited), cmocka_unit_test(test_unlimited),
                                       cmocka_unit_test(test_no_guess)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
