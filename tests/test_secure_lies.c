/* test_secure_lies.c: members of secure sums that lie, and histories that come twice. A dealer of shares that nobody can use is left out; secrets that
 * were made for another roster are made anew; shares are revealed for one set of survivors, also if another history puts a second one under
 * the same index; a member with ever new keys does not have everybody deal for ever.
 *
 * The linker puts two functions of this file before those of the program (tests/CMakeLists.txt): so one of the members lies, or hears nothing. */
#include "check.h"
#include "sites.h"
#include "summing.h"
#include "base/mem.h"
#include "run/secure.h"

#include <string.h>

/* ---- what goes wrong ----------------------------------------------------------------------------------- */

static atomic_bool dealer_lies; /* site 4 seals its shares for sites 1 and 2 with keys that are none */
static _Atomic(neb_session *) liar;
static atomic_bool false_secret; /* site 4 deals another secret than it promises */
static atomic_bool deaf;         /* nobody hears what the others reveal */

neb_status __real_neb__mask_agree(const uint8_t secret[NEB_MASK_KEY], const uint8_t public[NEB_MASK_KEY],
                                  const struct neb_hash *attempt, const char *purpose, uint16_t a, uint16_t b,
                                  uint8_t out[NEB_MASK_KEY]);
neb_status __wrap_neb__mask_agree(const uint8_t secret[NEB_MASK_KEY], const uint8_t public[NEB_MASK_KEY],
                                  const struct neb_hash *attempt, const char *purpose, uint16_t a, uint16_t b,
                                  uint8_t out[NEB_MASK_KEY]);
neb_status __real_neb__shares_deal(const uint8_t secret[NEB_SECRET_SIZE], int t, int n,
                                   struct neb_share *out);
neb_status __wrap_neb__shares_deal(const uint8_t secret[NEB_SECRET_SIZE], int t, int n,
                                   struct neb_share *out);
neb_status __real_neb__reveal_get(const uint8_t *in, size_t n, struct neb_reveal *out);
neb_status __wrap_neb__reveal_get(const uint8_t *in, size_t n, struct neb_reveal *out);

static bool is_liar(void)
{
    neb_session *s = atomic_load(&liar);
    return s && pthread_equal(pthread_self(), s->driver.thread);
}

neb_status __wrap_neb__mask_agree(const uint8_t secret[NEB_MASK_KEY], const uint8_t public[NEB_MASK_KEY],
                                  const struct neb_hash *attempt, const char *purpose, uint16_t a, uint16_t b,
                                  uint8_t out[NEB_MASK_KEY])
{
    neb_status status = __real_neb__mask_agree(secret, public, attempt, purpose, a, b, out);
    if (atomic_load(&dealer_lies) && is_liar() && !strcmp(purpose, "nebula sum share") && a == 4 && b < 3)
        out[3] ^= 1;
    return status;
}

neb_status __wrap_neb__shares_deal(const uint8_t secret[NEB_SECRET_SIZE], int t, int n, struct neb_share *out)
{
    uint8_t given[NEB_SECRET_SIZE];
    memcpy(given, secret, sizeof given);
    given[3] ^= atomic_load(&false_secret) && is_liar();
    return __real_neb__shares_deal(given, t, n, out);
}

neb_status __wrap_neb__reveal_get(const uint8_t *in, size_t n, struct neb_reveal *out)
{
    neb_status status = __real_neb__reveal_get(in, n, out);
    if (atomic_load(&deaf)) out->index = 0; /* of no record: ignored */
    return status;
}

/* ---- members ------------------------------------------------------------------------------------------- */

struct run {
    struct sites sites;
    struct summing *m;
    int n;
};

static void begin(struct run *r, int sites, int begun)
{
    r->n = begun;
    r->m = NEB_NEW_ARRAY(struct summing, (size_t)sites);
    assert_non_null(r->m);
    sites_make(&r->sites, sites, NULL);
    for (int i = 0; i < begun; i++) {
        summing_begin(&r->m[i], r->sites.path[i], (float)i);
        if (i == 3) atomic_store(&liar, r->m[i].session);
    }
}

static void end(struct run *r)
{
    atomic_store(&dealer_lies, false);
    atomic_store(&false_secret, false);
    atomic_store(&deaf, false);
    atomic_store(&liar, NULL);
    for (int i = 0; i < r->n; i++) summing_end(&r->m[i]);
    neb__free(r->m);
    sites_free(&r->sites);
}

/* ---- the tests ----------------------------------------------------------------------------------------- */

/* Attempts that were begun behind the record `from` and have both sites among their contributors; *last: the newest record. */
static int attempts_with(neb_session *s, uint64_t from, unsigned one, unsigned other, uint64_t *last)
{
    struct neb_round_status st;
    int n = 0;
    pthread_mutex_lock(&s->busy);
    neb__round_status(s->core, &st);
    for (uint64_t i = from + 1; i <= st.commit; i++) {
        const struct neb_record *rec = neb__round_record(s->core, i);
        n += rec->type == NEB_RECORD_OPEN && neb__record_contributor(rec, one) &&
             neb__record_contributor(rec, other);
    }
    *last = st.commit;
    pthread_mutex_unlock(&s->busy);
    return n;
}

/* Sites 1 and 2 cannot use what site 4 deals to them. If they went on with it in every attempt, there would be hardly a sum with theirs
 * any more. They deal to it no longer, and the leader leaves it out: behind the attempts that were prepared when they noticed it, there is none with both. */
static void a_dealer_of_bad_shares_is_left_out(void **state)
{
    (void)state;
    struct run r;
    uint64_t from, noticed, last;
    begin(&r, 4, 4);
    summing_wait(&r.m[0], 1, 2);
    assert_true(attempts_with(r.m[0].session, 0, 1, 4, &from) > 0);
    atomic_store(&dealer_lies, true);
    for (bool avoid = false; !avoid; sleep_ms(20)) {
        avoid = true;
        for (int i = 0; i < 2; i++) {
            pthread_mutex_lock(&r.m[i].session->busy);
            avoid = avoid && r.m[i].session->sums->fragment[0].avoided[4];
            pthread_mutex_unlock(&r.m[i].session->busy);
        }
    }
    (void)attempts_with(r.m[0].session, from, 1, 4, &noticed);
    summing_wait(&r.m[0], 1, 4);
    summing_wait(&r.m[1], 2, 1);
    int both = attempts_with(r.m[0].session, noticed, 1, 4, &last);
    if (both > 1) fail_msg("%d attempts with a dealer of bad shares", both); /* one may be prepared */
    end(&r);
}

/* Each of site 4's shares is one that it dealt, and all of them together give another secret than it promised: nobody can tell before
 * the shares are out, and the work in the sum is lost. That happens once. */
static void a_dealer_of_a_false_secret_is_left_out(void **state)
{
    (void)state;
    enum { FEW = 2 }; /* one attempt with it may be prepared meanwhile */
    struct run r;
    int before, voids, turns = 0;
    begin(&r, 4, 4);
    summing_wait(&r.m[0], 4, 1);
    (void)summing_sums(&r.m[0], 0, &before);
    atomic_store(&false_secret, true);
    do {
        sleep_ms(20);
        (void)summing_sums(&r.m[0], 0, &voids);
    } while (voids == before && turns++ < 6000);
    assert_true(voids > before);
    summing_wait(&r.m[0], 1, 4);
    (void)summing_sums(&r.m[0], 0, &voids);
    if (voids - before > FEW) fail_msg("%d sums were void for one dealer", voids - before);
    end(&r);
}

/* Two of three sites are here, so the third one's keys are missing, and no attempt begins. */
static void secrets_for_another_roster_are_made_anew(void **state)
{
    (void)state;
    struct run r;
    uint8_t own[NEB_MASK_KEY];
    struct neb_mask_pair seal, mask;
    bool anew = false;
    begin(&r, 3, 2);
    neb_session *s = r.m[0].session;
    for (bool keyed = false; !keyed;) {
        sleep_ms(20);
        pthread_mutex_lock(&s->busy);
        struct neb_sum_attempt *a = s->sums ? &s->sums->fragment[0] : NULL;
        keyed = a && a->keyed;
        if (keyed) {
            assert_int_equal(neb__sum_threshold(3), a->threshold);
            a->threshold = neb__sum_threshold(4) + 1; /* as if they had been made under another roster */
            memcpy(own, a->own, sizeof own);
            seal = a->seal, mask = a->mask;
        }
        pthread_mutex_unlock(&s->busy);
    }
    int64_t looked = 0;
    for (int turns = 0; !anew;) {
        sleep_ms(20);
        pthread_mutex_lock(&s->busy);
        struct neb_sum_attempt *a = &s->sums->fragment[0];
        turns += s->sums->looked_at != looked;
        looked = s->sums->looked_at;
        assert_true(turns < 10); /* the first one should do */
        anew = a->keyed && a->threshold == neb__sum_threshold(3);
        if (anew) {
            assert_memory_not_equal(own, a->own, sizeof own);
            assert_memory_not_equal(seal.secret, a->seal.secret, sizeof seal.secret);
            assert_memory_not_equal(mask.secret, a->mask.secret, sizeof mask.secret);
        }
        pthread_mutex_unlock(&s->busy);
    }
    end(&r);
}

/* The attempt of the first fragment that waits for shares, which this site has revealed already; NULL: not now. */
static struct neb_sum_attempt *revealed(neb_session *s, struct neb_round_attempt *now)
{
    struct neb_sum_attempt *a = &s->sums->fragment[0];
    bool there = neb__round_attempt(s->core, a->c0, now) && now->survivors && a->revealed == now->survivors &&
                 a->reveal[s->self];
    return there ? a : NULL;
}

static void forget(neb_session *s, struct neb_sum_attempt *a)
{
    neb__free(a->reveal[s->self]);
    a->reveal[s->self] = NULL;
}

/* With the lock held. What is on disk decides after a start, too. */
static void reveal_again(neb_session *s, struct neb_sum_attempt *a, uint64_t index)
{
    const uint64_t set = a->revealed_set, other = set & ~neb__bit(__builtin_ctzll(set));
    const struct neb_record *who = neb__round_record(s->core, index);
    const uint16_t attempt = a->attempt;
    forget(s, a);
    neb__sums_reveal(s, index); /* the same set: said again */
    assert_non_null(a->reveal[s->self]);
    forget(s, a);
    a->revealed_set = other; /* under this index another history had other survivors */
    neb__sums_reveal(s, index);
    assert_null(a->reveal[s->self]);
    assert_int_equal(other, a->revealed_set);
    a->revealed = index + 7; /* … or under another one */
    neb__sums_reveal(s, index);
    assert_null(a->reveal[s->self]);
    assert_ok(neb__sums_keep(s, a, neb__sums_open_record(s, who)));
    a->used = false; /* a start: the note is read from disk */
    a->revealed = a->revealed_set = 0;
    assert_true(neb__sums_load(s, a, attempt));
    neb__sums_reveal(s, index);
    assert_null(a->reveal[s->self]);
    a->revealed_set = set; /* and the set that was revealed may be said again */
    neb__sums_reveal(s, index);
    assert_non_null(a->reveal[s->self]);
}

static void shares_are_revealed_for_one_set_of_survivors(void **state)
{
    (void)state;
    struct run r;
    bool done = false;
    begin(&r, 4, 4);
    summing_wait(&r.m[0], 0, 1);
    atomic_store(&deaf, true); /* so that an attempt stays between SURVIVORS and RESULT for a while */
    neb_session *s = r.m[0].session;
    while (!done) {
        struct neb_round_attempt now;
        sleep_ms(5);
        pthread_mutex_lock(&s->busy);
        struct neb_sum_attempt *a = revealed(s, &now);
        if (a) reveal_again(s, a, now.survivors);
        done = a != NULL;
        pthread_mutex_unlock(&s->busy);
    }
    atomic_store(&deaf, false);
    summing_wait(&r.m[0], 0, 2); /* and the run goes on */
    end(&r);
}

/* New keys of a member, signed, for the attempt that the site `s` prepares. */
static void say_new_keys(neb_session *s, neb_session *member)
{
    const struct neb_seal seal = neb__session_seal(member);
    const struct neb_sum_attempt *a = &s->sums->fragment[0];
    struct neb_mask_pair one, other;
    uint8_t b[NEB_HASH_SIZE + NEB_KEYS_SIZE], *body = b + NEB_HASH_SIZE;
    assert_ok(neb__mask_pair_create(&one));
    assert_ok(neb__mask_pair_create(&other));
    struct neb_sum_keys k = {
        .site = member->self, .attempt = a->attempt, .c0 = a->c0, .version = a->version, .weight = 64};
    memcpy(k.seal, one.public, NEB_MASK_KEY);
    memcpy(k.mask, other.public, NEB_MASK_KEY);
    memcpy(b, s->genesis.b, NEB_HASH_SIZE);
    neb__keys_put(&k, body);
    assert_ok(seal.sign(seal.arg, "nebula sum keys", b, NEB_HASH_SIZE + NEB_KEYS_BODY, body + NEB_KEYS_BODY));
    neb__sums_message(s, member->self, NEB_MSG_SUM_KEYS, body, NEB_KEYS_SIZE);
}

/* The site has dealt to the member, and the attempt is not open yet. */
static bool has_dealt(neb_session *s, unsigned to)
{
    const struct neb_sum_attempt *a = &s->sums->fragment[0];
    struct neb_round_attempt now;
    return neb__round_attempt(s->core, a->c0, &now) && !now.open && a->keyed && (a->dealt & neb__bit(to)) &&
           a->offer[s->self][0].len;
}

/* A site that has started again has new keys, and the others deal to it anew. For one that has new keys all the time they would make and send
 * an offer each time, and the offers that the leader writes into OPEN would be gone before OPEN is there. */
static void a_member_with_ever_new_keys_is_dealt_to_now_and_then(void **state)
{
    (void)state;
    enum { CHANGES = 20 };
    struct run r;
    int dealt = -1;
    begin(&r, 4, 4);
    neb_session *s = r.m[0].session;
    while (dealt < 0) {
        sleep_ms(1);
        pthread_mutex_lock(&s->busy);
        for (int i = 0; s->sums && has_dealt(s, 4) && i < CHANGES; i++) {
            const struct neb_buf *own = &s->sums->fragment[0].offer[s->self][0];
            struct neb_hash before, after;
            assert_ok(neb__hash(own->data, own->len, &before));
            say_new_keys(s, r.m[3].session);
            own = &s->sums->fragment[0].offer[s->self][0];
            assert_ok(neb__hash(own->data, own->len, &after));
            if (!i) dealt = 0;
            dealt += !neb__hash_equal(&before, &after);
        }
        pthread_mutex_unlock(&s->busy);
    }
    assert_int_equal(1, dealt);  /* of its new keys the first ones count */
    summing_wait(&r.m[1], 0, 2); /* and the run goes on */
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dealer_of_bad_shares_is_left_out),
        cmocka_unit_test(a_dealer_of_a_false_secret_is_left_out),
        cmocka_unit_test(secrets_for_another_roster_are_made_anew),
        cmocka_unit_test(shares_are_revealed_for_one_set_of_survivors),
        cmocka_unit_test(a_member_with_ever_new_keys_is_dealt_to_now_and_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
